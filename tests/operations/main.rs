//! Tests for operators: control ports and builders behind TLS, tokens that are replaced, restarts, backups, monitoring,
//! the page, packages, calls over HTTP.

#[path = "../common/mod.rs"]
mod common;

mod alerts;
mod backing;
mod backups;
mod browser;
mod builder_tls;
mod cluster;
mod cluster_access;
mod cluster_balance;
mod cluster_clients;
mod cluster_copies;
mod cluster_dev;
mod cluster_directory;
mod cluster_failover;
mod cluster_full_disk;
mod cluster_memcached;
mod cluster_move;
mod cluster_move_partial;
mod cluster_network;
mod cluster_scrub;
mod cluster_servers;
mod cluster_split;
mod cluster_streams;
mod cluster_triggers;
mod code_tiers;
mod culprits;
mod disk;
mod feeds;
mod follow;
mod full_disk;
mod histories;
mod hostile_text;
mod http;
mod http_calls;
mod monitoring;
mod object_backups;
mod otlp;
mod packages;
mod page_keyboard;
mod records;
mod restart;
mod rotation;
mod spill_kills;
mod tenant_debugging;
mod tls;
mod transaction_kills;
mod triggers;
mod typed_triggers;
mod url_tokens;
mod usage;
mod versions;
mod viewers;
mod webhooks;

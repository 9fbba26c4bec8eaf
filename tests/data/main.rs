//! Records and calls by this project's own protocol, against a data plane in this process.

#[path = "../common/mod.rs"]
mod common;

mod backing;
mod backing_clients;
mod client_counts;
mod client_histories;
mod client_transactions;
mod connections;
mod costs;
mod latency;
mod ordered;
mod positions;
mod quotas;
mod sealed;
mod slow_requests;
mod spill;
mod spill_clients;
mod spill_quotas;
mod spill_scans;
mod touches;
mod transactions;
mod versions;
mod wire;
mod zero_copy;

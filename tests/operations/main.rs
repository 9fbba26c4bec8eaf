//! Tests for operators: control ports and builders behind TLS, tokens that are replaced, restarts.

#[path = "../common/mod.rs"]
mod common;

mod backups;
mod builder_tls;
mod code_tiers;
mod disk;
mod records;
mod restart;
mod rotation;
mod tls;

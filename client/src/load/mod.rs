//! The load generator.
pub mod keys;
pub mod workload;

//! Clusters of servers: who is a member, and who owns which slots of the keys, agreed in etcd.
//!
//! [`ClusterAddress`] names a cluster, [`metadata`] is what is needed of the store of its state (with a model for
//! tests), `etcd` that store. [`member`] is one server's part in the agreement, step by step and without clocks or
//! threads; [`agent`] the thread that runs it.
#![forbid(unsafe_code)]

mod address;
pub mod agent;
mod etcd;
pub mod limits;
pub mod member;
pub mod metadata;
#[cfg(test)]
mod model;
mod state;

pub use address::ClusterAddress;
pub use agent::{ClusterAgent, ClusterStartError, JoiningServer};
pub use state::server_id;

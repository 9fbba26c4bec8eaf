//! Clusters of servers: which servers are members and which own which slots of the keys, agreed in etcd.
//!
//! [`ClusterAddress`] names a cluster, [`EtcdAccess`] says what it takes to reach the etcd, [`metadata`] what is needed
//! of the store of its state (with a model for tests); `etcd` is that store. [`ClusterDirectory`] has the tenants on
//! which the servers agree. [`member`] is one server's part in the agreement on slots, step by step and without clocks
//! or threads; [`agent`] the thread that runs it.
#![forbid(unsafe_code)]

mod access;
mod address;
pub mod agent;
mod answer_budget;
#[cfg(test)]
mod backed_move_tests;
pub mod backed_moves;
mod balance_requests;
mod broken_rules;
mod call_link;
pub mod called_positions;
pub mod change_calls;
#[cfg(test)]
mod copies_tests;
pub mod copies_view;
mod copy_channel;
mod copy_coordinator;
mod copy_format;
mod copy_links;
#[cfg(test)]
mod copy_model;
mod copy_notes;
mod copy_replicator;
mod copy_scrub;
pub mod copy_store;
pub mod copy_stream;
mod copy_watch;
mod copy_watcher;
mod directory;
#[cfg(test)]
mod directory_model;
mod etcd;
mod failover_mode;
mod forward_batch;
mod forward_link;
mod forward_queue;
mod forwarder;
mod generations;
mod given_up_copies;
mod gone_copies;
mod inherited_calls;
mod inherited_log;
mod kept_changes;
mod last_changes;
mod life_link;
pub mod limits;
pub mod load_link;
mod log_scrubber;
pub mod losing_tables;
mod lost_place;
mod map_requests;
pub mod member;
pub mod metadata;
#[cfg(test)]
mod model;
pub mod move_coordinator;
#[cfg(test)]
mod move_model;
pub mod move_progress;
mod peer_link;
#[cfg(test)]
mod place_tests;
pub mod replica_link;
mod replica_messages;
pub mod slot_balance;
#[cfg(test)]
mod slot_balance_tests;
mod slot_copy;
#[cfg(test)]
mod slot_move_tests;
mod slot_mover;
pub mod slot_moves;
#[cfg(test)]
mod slot_plan_tests;
pub mod slot_plans;
pub mod slot_source;
pub mod slot_split;
#[cfg(test)]
mod slot_split_tests;
mod source_walk;
mod state;
mod stream_copies;
mod succession;
mod unneeded_streams;

pub use access::{EtcdAccess, EtcdAccessError, EtcdEndpoint};
pub use address::ClusterAddress;
pub use agent::{ClusterAgent, ClusterStartError, CopySettings, JoiningServer};
pub use call_link::{CALLS_PATH, CallLinks};
pub use directory::ClusterDirectory;
pub use failover_mode::FailoverMode;
pub use forward_link::FORWARD_PATH;
pub use forwarder::ClusterForwarder;
pub use life_link::LIFE_PATH;
pub use log_scrubber::LogScrubber;
pub use move_coordinator::MoveCoordinator;
pub use sandstorm_jetstream::{NatsAccess, NatsAddress};
pub use state::{SERVER_ID_FILE, server_id};
pub use stream_copies::{STREAM_HOLDER, StreamSettings};

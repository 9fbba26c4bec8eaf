//! Workers: pinned threads that serve requests, each on a port of its own.
//!
//! Start with [`worker`], the loop, and [`serve`], the path of a packet's request from top to bottom. Below them:
//!
//! - fronts: [`serve`] with [`port`], [`ingress`], [`early_drop`] and [`admission`] for packets; [`connections`] for
//!   memcached and Redis clients;
//! - what runs requests: [`executor`], with [`record_operations`] for operations on records, and [`invocations`] with
//!   [`tasks`], [`run_queue`] and [`steal`] for tenant code; [`replies`] answers what ended; [`local_caller`] takes
//!   calls of this process, which [`local_calls`] keeps, and questions about calls ([`call_look`]), which
//!   [`located_calls`] answers;
//! - how much of messages is run in one go, and what waits then: [`message_server`], [`piece_budget`],
//!   [`message_pieces`], [`postponed_message`];
//! - what a port remembers of its peers: [`sessions`], [`verified_peers`], [`pending_queries`], [`response_assembly`],
//!   [`rx_zero_copy`], [`rejections`];
//! - around the loop: [`context`], [`latency_ledger`], [`call_latency`], [`ended_call`], [`turn_history`],
//!   [`waits`] and [`slow`], [`shared`], [`idle`] with [`spin`]; [`start`] with [`options`], [`network`] and
//!   [`listeners`].

mod admission;
mod call_latency;
mod call_look;
mod cold_messages;
mod cold_progress;
mod cold_wait;
mod connections;
mod context;
mod database_queue;
mod databases;
mod early_drop;
mod ended_call;
mod executor;
mod generational_slab;
mod idle;
mod ingress;
mod invocations;
mod latency_ledger;
mod listener_config;
mod listeners;
mod local_caller;
mod local_calls;
mod located_calls;
mod log_watch;
mod message_pieces;
mod message_server;
mod network;
mod operation_response;
mod options;
mod pending_answers;
mod pending_queries;
mod piece_budget;
mod port;
mod port_answers;
mod postponed_message;
mod recent_tenants;
mod record_operations;
mod rejections;
mod replies;
mod response_assembly;
mod run_queue;
mod rx_zero_copy;
mod serve;
mod sessions;
mod shared;
mod slow;
mod spin;
mod start;
mod steal;
#[cfg(feature = "testing")]
mod stepped_worker;
mod tasks;
mod turn_history;
mod verified_peers;
mod waits;
mod worker;

pub use call_look::{CallLook, CallLookDone, CallUnderWay, WorkerCalls};
pub use listener_config::{ListenerConfig, PortAddress};
pub use local_caller::LocalCaller;
pub use local_calls::{LocalCall, LocalCallDone, LocalCallEnd, LocalCallResult};
pub use options::{NetworkOptions, WorkerOptions, WorkerStartError};
pub use start::Workers;
#[cfg(feature = "testing")]
pub use stepped_worker::SteppedWorker;

//! Triggers: calls of a tenant's extensions by the clock, or for each change of a table.
//!
//! - [`definition`]: what a trigger is; [`schedule`]: when it is due;
//! - [`definition_change`]: what of a trigger may be changed while it is there;
//! - [`call_queue`]: its calls, in order by key, with their retries;
//! - [`call_routes`]: where they are made, here or at another server of a cluster; [`begun_calls`]: how they begin and
//!   end; [`remote_calls`]: what the servers say to each other of them; [`remote_caller`]: how they are sent;
//!   [`remote_order`]: that none is run behind a later one;
//! - [`batch_size`]: how many changes a call has, of a trigger that takes several;
//! - [`active`]: one trigger at work: it reads the log, makes calls, and keeps its position and its dead letters;
//! - [`expiry_requests`]: has the log told of records that expire, for triggers that are called for it;
//! - [`noted_position`]: what the log is told of a trigger, for the server that takes this one's place;
//! - [`runner`]: the thread for all of them; [`trigger_store`]: those of each tenant under a lock of its own;
//!   [`state_file`] keeps them over a restart;
//! - [`trigger_outcome`]: the outcome of a change;
//! - [`typed_calls`]: JSON of a schedule and changes of a table, as the bytes of a typed function.
//!
//! A call is made at least once. A table's trigger reads the log of changes, so tables without triggers pay nothing for
//! it, and writers of watched ones pay nothing either.

mod active;
mod batch_size;
mod begun_calls;
mod call_queue;
mod call_routes;
mod definition;
mod definition_change;
mod expiry_requests;
mod noted_position;
mod remote_caller;
mod remote_calls;
mod remote_order;
mod runner;
mod schedule;
mod state_file;
mod trigger_outcome;
mod trigger_store;
mod typed_calls;

pub use active::{TriggerCounts, TriggerPhase, TriggerStatus};
pub(crate) use begun_calls::CallSinks;
pub(crate) use call_routes::CallRoutes;
pub use definition::{TriggerDefinition, TriggerOp};
pub use definition_change::TriggerChange;
pub(crate) use remote_caller::RemoteCaller;
pub(crate) use remote_calls::{LateAnswer, RemoteCall, RemoteCalls, RemoteOutcome, own_args};
pub(crate) use remote_order::{OrderRefusal, RemoteOrders, RunningCall};
pub use runner::TriggerRunner;
pub(crate) use state_file::DeadLetter;
pub use state_file::TRIGGER_FOLDER;
pub(crate) use trigger_outcome::DeclaredTrigger;
pub use trigger_outcome::TriggerError;
pub use typed_calls::check_manifest;

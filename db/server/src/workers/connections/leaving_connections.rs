//! The connections of a worker that are to go to another one.

use std::collections::VecDeque;

use super::connection_id::ConnectionId;

/// The connections of a worker whose tenants have their homes elsewhere.
#[derive(Default)]
pub(super) struct LeavingConnections {
    /// They are handed over by and by.
    pub(super) queue: VecDeque<ConnectionId>,
    /// The generation of the snapshot by whose homes the worker's connections were compared last.
    pub(super) generation: u64,
}

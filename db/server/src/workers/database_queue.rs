//! The tables that Redis clients wait for.

use std::collections::VecDeque;

use parking_lot::Mutex;
use sandstorm_dialects::WantedDatabase;

use super::connections::connection_id::ConnectionId;

/// A database that a connection waits for.
pub(super) struct DatabaseRequest {
    /// The connection's worker, and its id there.
    pub(super) worker: usize,
    pub(super) connection: ConnectionId,
    pub(super) tenant: u32,
    pub(super) wanted: WantedDatabase,
}

/// The requests, and whether a thread works on them.
#[derive(Default)]
pub(super) struct DatabaseQueue(pub(super) Mutex<(VecDeque<DatabaseRequest>, bool)>);

//! The answers of a connection that wait for the log's disk, and the order of the connections that have such.

use std::collections::VecDeque;

use super::connection_id::ConnectionId;

/// The answers of a connection that wait.
#[derive(Default)]
pub(super) struct PendingOutput {
    pub(super) bytes: Vec<u8>,
    /// How far the log has to be on the disk before they may leave.
    pub(super) position: u64,
    /// Whether the selector has reported the connection since: it is not to do so again.
    is_reported: bool,
}

impl PendingOutput {
    /// Whether there are any.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Bytes of their memory.
    pub(super) fn used_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether the selector need not be told to be quiet.
    pub(super) fn is_unreported(&self) -> bool {
        self.is_some() && !self.is_reported
    }

    /// Notes that the selector has reported the connection.
    pub(super) fn note_report(&mut self) {
        self.is_reported = self.is_some();
    }
}

/// The connections of a worker whose answers wait, in the order in which they began to.
#[derive(Default)]
pub(super) struct PendingConnections(pub(super) VecDeque<(u64, ConnectionId)>);

//! The answers of a connection that wait for the log's disk, and the order of the connections that have such.

use std::collections::VecDeque;

use super::connection_id::ConnectionId;
use crate::workers::latency_ledger::ReadyCall;

/// The answers of a connection that wait.
#[derive(Default)]
pub(super) struct PendingOutput {
    pub(super) bytes: Vec<u8>,
    /// How far the log has to be on the disk before they may leave.
    pub(super) position: u64,
    /// Since when they wait, in the workers' nanoseconds.
    pub(super) since_ns: u64,
    /// When the commands came that they answer; `None`: they are counted elsewhere, or go on.
    pub(super) received_ns: Option<u64>,
    /// The call whose reply is among them, if its sending is measured, or it is counted when they leave.
    pub(super) call: Option<Box<ReadyCall>>,
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

/// Answers of a connection that are ready, and leave with its next turn.
#[derive(Default)]
pub(super) struct ReadyOutput {
    /// Of commands whose answers waited for the log: when they came, and since when they wait no more.
    pub(super) commands_ns: Option<(u64, u64)>,
    /// The call whose reply is among them, if its sending is measured.
    pub(super) call: Option<Box<ReadyCall>>,
}

impl ReadyOutput {
    /// Whether there are any.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.commands_ns.is_some() || self.call.is_some()
    }
}

/// The connections of a worker whose answers wait, in the order in which they began to.
#[derive(Default)]
pub(super) struct PendingConnections(pub(super) VecDeque<(u64, ConnectionId)>);

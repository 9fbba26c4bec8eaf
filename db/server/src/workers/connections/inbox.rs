//! Messages from other workers to one worker's connections: connections that it is the home of, and results of
//! invocations that ran elsewhere.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::Mutex;
use sandstorm_net::forwarding::ForwardedAnswer;
use sandstorm_net::rpc::{CallCost, RpcStatus};

use super::connection::ClientConnection;
use super::connection_id::ConnectionId;
use crate::workers::latency_ledger::ReadyCall;

/// A message to a worker's connections.
pub(in crate::workers) enum InboxMessage {
    /// A connection, with its input and its unsent answers.
    Connection(Box<ClientConnection>),
    /// The result of an invocation that a connection waits for, and how far the log has to be on the disk before it may
    /// be shown. `ready`: the call, if its reply's sending is measured.
    InvocationResult {
        connection: ConnectionId,
        status: RpcStatus,
        number: u64,
        value: Vec<u8>,
        shown: u64,
        cost: Option<Box<CallCost>>,
        ready: Option<Box<ReadyCall>>,
    },
    /// What other servers have answered to commands that a connection waits for.
    Forwarded { connection: ConnectionId, answers: Vec<ForwardedAnswer> },
    /// The same for a datagram of one of the worker's UDP ports.
    ForwardedDatagram { port: usize, number: u64, answers: Vec<ForwardedAnswer> },
    /// Closes a connection that another connection of its tenant has killed.
    Close(ConnectionId),
    /// Closes a connection whose permit another one has taken.
    Shed(ConnectionId),
}

/// One worker's inbox.
#[derive(Default)]
pub(in crate::workers) struct WorkerInbox {
    messages: Mutex<Vec<InboxMessage>>,
    /// Set while there are messages.
    has_messages: AtomicBool,
}

impl WorkerInbox {
    /// Adds a message. The caller wakes the worker if it may sleep.
    pub(in crate::workers) fn put(&self, message: InboxMessage) {
        self.messages.lock().push(message);
        self.has_messages.store(true, SeqCst);
    }

    /// Whether there are messages.
    pub(in crate::workers) fn has_messages(&self) -> bool {
        self.has_messages.load(SeqCst)
    }

    /// Takes the messages.
    pub(super) fn take(&self) -> Vec<InboxMessage> {
        if !self.has_messages() {
            return Vec::new();
        }
        // The flag is cleared before the messages are taken: later ones are seen next time.
        self.has_messages.store(false, SeqCst);
        std::mem::take(&mut *self.messages.lock())
    }
}

//! What other workers send to the connections of one: connections whose tenant is at home there, answers of invocations
//! that ran elsewhere.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::Mutex;
use sandstorm_net::rpc::RpcStatus;

use super::connection::ClientConnection;
use super::connection_id::ConnectionId;

/// What is sent.
pub(in crate::workers) enum InboxMessage {
    /// A connection, with all that it has said and not heard yet.
    Connection(Box<ClientConnection>),
    /// How an invocation ended that a connection waits for.
    InvocationResult { connection: ConnectionId, status: RpcStatus, number: u64, value: Vec<u8> },
    /// Another of its tenant's connections has ended that one.
    Close(ConnectionId),
    /// Another one has taken the place of that one, which has not shown whose it is.
    Shed(ConnectionId),
}

/// One worker's inbox.
#[derive(Default)]
pub(in crate::workers) struct WorkerInbox {
    messages: Mutex<Vec<InboxMessage>>,
    /// Set while there is some.
    waits: AtomicBool,
}

impl WorkerInbox {
    /// Puts something in. The worker is to be woken if it may sleep.
    pub(in crate::workers) fn put(&self, message: InboxMessage) {
        self.messages.lock().push(message);
        self.waits.store(true, SeqCst);
    }

    /// Whether there is something.
    pub(in crate::workers) fn has_messages(&self) -> bool {
        self.waits.load(SeqCst)
    }

    /// Takes what there is.
    pub(super) fn take(&self) -> Vec<InboxMessage> {
        if !self.has_messages() {
            return Vec::new();
        }
        // Before the messages are taken: what comes in between is seen next time.
        self.waits.store(false, SeqCst);
        std::mem::take(&mut *self.messages.lock())
    }
}

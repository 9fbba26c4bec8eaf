//! Commands between the servers of a cluster: those that a connection has sent to other servers, and the connections
//! that bring in those of other servers. Both are channels within the process: the control port is at their other end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use sandstorm_dialects::ProtocolSession;
use sandstorm_dialects::memcached::PeerSession;
use sandstorm_metrics::WorkerCounters;
use sandstorm_net::driver::StreamSocket;
use sandstorm_net::forwarding::{ForwardedAnswer, ForwardedBatch, ForwardedHead};

use super::connection::{ClientConnection, ConnectionPhase};
use super::connection_id::ConnectionId;
use super::inbox::InboxMessage;
use super::transport::ConnectionTransport;
use crate::workers::executor::RequestExecutor;
use crate::workers::shared::SharedWorkerState;

/// What a client is told where nothing forwards.
pub(super) const NO_FORWARDER: &str = "SERVER_ERROR another server of the cluster owns the key: ask that one";

/// Sends commands to the servers that have their keys. The connection waits for the answers; where nothing forwards
/// they are refused.
pub(super) fn begin_forward(
    connection: &mut ClientConnection,
    id: ConnectionId,
    batch: ForwardedBatch,
    executor: &RequestExecutor,
    answers: &mut Vec<u8>,
) {
    let context = &executor.context;
    let Some(forwarder) = &context.shared.forwarder else {
        let refused = batch.commands.iter().map(|_| ForwardedAnswer::Refused(NO_FORWARDER.to_owned())).collect();
        return connection.session.forwarded(refused, answers);
    };
    context.counters.commands_forwarded.add(batch.commands.len() as u64);
    let (shared, worker) = (Arc::downgrade(&context.shared), context.index);
    connection.state = ConnectionPhase::Invoking;
    let done = move |answers| {
        if let Some(shared) = shared.upgrade() {
            shared.send_to_inbox(worker, InboxMessage::Forwarded { connection: id, answers });
        }
    };
    forwarder.forward(batch, Box::new(done));
}

/// Counts the answers of other servers.
pub(super) fn count_answers(answers: &[ForwardedAnswer], counters: &WorkerCounters) {
    let is_refused = |answer: &&ForwardedAnswer| matches!(answer, ForwardedAnswer::Refused(_));
    counters.forwards_refused.add(answers.iter().filter(is_refused).count() as u64);
}

/// Ends a connection of [`peer_connection`] that no worker can take: its other end sees that.
pub(in crate::workers) fn give_up(shared: &SharedWorkerState, connection: &ClientConnection) {
    shared.connection_budget.leave(connection.tenant, None);
}

/// A connection that runs commands of another server, its worker, and its other end. `None`: there is no such tenant
/// here yet.
///
/// # Errors
/// There are too many connections, or no files.
pub(in crate::workers) fn peer_connection(
    shared: &SharedWorkerState,
    head: &ForwardedHead,
) -> io::Result<Option<(usize, ClientConnection, UnixStream)>> {
    let snapshot = shared.directory.snapshot();
    let found = PeerSession::new(&snapshot, head).zip(snapshot.tenant(head.tenant));
    let Some((session, view)) = found else { return Ok(None) };
    let (outer, inner) = UnixStream::pair()?;
    inner.set_nonblocking(true)?;
    let tenant = view.tenant.id;
    if !shared.connection_budget.take(tenant) {
        return Err(io::Error::other("the server has as many connections as it may have"));
    }
    let made = ConnectionTransport::new(StreamSocket::from(OwnedFd::from(inner)), None);
    let Some(transport) = made else {
        shared.connection_budget.leave(tenant, None);
        return Err(io::Error::other("there is no transport"));
    };
    let session = ProtocolSession::Peer(Box::new(session));
    let mut connection = ClientConnection::new(transport, session, shared.elapsed_us());
    connection.tenant = tenant;
    Ok(Some((view.tenant.home_worker as usize % shared.ports.len(), connection, outer)))
}

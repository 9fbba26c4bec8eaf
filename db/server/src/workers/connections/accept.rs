//! Accepts connections at the stream ports.

use std::sync::Arc;

use sandstorm_dialects::{ConnectionIdentity, PortService, ProtocolSession};
use sandstorm_metrics::ConnectionReason;
use sandstorm_net::driver::StreamSocket;

use super::connection::ClientConnection;
use super::inbox::InboxMessage;
use super::permit::{ConnectionLocation, Origin, UnauthenticatedPermit};
use super::transport::ConnectionTransport;
use super::worker_connections::{WorkerConnections, count_refused};
use crate::limits::connections::ACCEPTS_PER_TURN;
use crate::workers::context::WorkerContext;
use crate::workers::shared::SharedWorkerState;

/// Reserves one connection in the budget, for a tenant or for an unauthenticated client. For the latter, returns its
/// permit and the connection that must be closed for it, if any.
fn take_permit(
    shared: &SharedWorkerState,
    tenant: u32,
    stream: &StreamSocket,
) -> Option<(Option<UnauthenticatedPermit>, Option<ConnectionLocation>)> {
    if tenant != 0 {
        return shared.connection_budget.take(tenant).then_some((None, None));
    }
    let (permit, displaced) = shared.connection_budget.take_unauthenticated(Origin::of(stream))?;
    Some((Some(permit), displaced))
}

impl WorkerConnections {
    /// Accepts connections at a stream port.
    pub(super) fn accept(&mut self, stream_port: usize, context: &WorkerContext) {
        let shared = Arc::clone(&context.shared);
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(stream_port) = self.stream_ports.get(stream_port) else { return };
            let stream = match stream_port.listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(_) => {
                    count_refused(&context.counters, ConnectionReason::NoFiles);
                    return self.pause(context.clock.now_us);
                }
            };
            context.counters.connections_accepted.add(1);
            // With TLS it has no tenant until the handshake is over.
            let identity = ConnectionIdentity::from_port(&context.snapshot, &stream_port.service)
                .filter(|_| stream_port.tls.is_none());
            let home = identity.and_then(|identity| identity.view(&context.snapshot)).map(|view| &view.tenant);
            let tenant = home.map_or(0, |tenant| tenant.id);
            let Some((permit, displaced)) = take_permit(&shared, tenant, &stream) else {
                count_refused(&context.counters, ConnectionReason::Full);
                if stream_port.tls.is_none() {
                    let _for_politeness = stream.send(stream_port.service.protocol.full());
                }
                continue;
            };
            let made = ConnectionTransport::new(stream, stream_port.tls.as_ref())
                .map(|transport| new_connection(transport, &stream_port.service, context.clock.now_us));
            if let Some((at, id)) = displaced {
                if at == context.index {
                    self.shed(id, context)
                } else {
                    shared.send_to_inbox(at, InboxMessage::Shed(id))
                }
            }
            let Some(mut connection) = made else {
                shared.connection_budget.leave(tenant, permit);
                count_refused(&context.counters, ConnectionReason::Handshake);
                continue;
            };
            (connection.tenant, connection.permit) = (tenant, permit);
            let home =
                context.snapshot.tenant(tenant).map(|view| view.tenant.home_worker as usize % shared.ports.len());
            match home {
                Some(home) if home != context.index => {
                    context.counters.connections_handed_over.add(1);
                    shared.send_to_inbox(home, InboxMessage::Connection(connection));
                }
                _ => self.take_message(InboxMessage::Connection(connection), context),
            }
        }
    }
}

/// A new connection at a stream port.
fn new_connection(transport: ConnectionTransport, service: &Arc<PortService>, now_us: u64) -> Box<ClientConnection> {
    Box::new(ClientConnection::new(transport, ProtocolSession::new(service), now_us))
}

//! Connections that come: accepted at a gate, and who has to go for them where all places are taken.

use std::sync::Arc;

use sandstorm_net::driver::StreamSocket;

use super::budget::{At, Origin, Seat};
use super::inbox::{ConnectionId, InboxMessage};
use super::transport::ConnectionTransport;
use super::{WorkerConnections, count_refused, new_connection};
use crate::limits::connections::{ACCEPT_PAUSE_US, ACCEPTS_PER_TURN};
use crate::workers::{SharedWorkerState, Worker};
use sandstorm_dialects::ConnectionIdentity;
use sandstorm_metrics::ConnectionReason;

/// A place for a connection of a tenant, or of one that has not shown whose it is: of that its seat, and who has to go
/// for it.
fn place(shared: &SharedWorkerState, tenant: u32, stream: &StreamSocket) -> Option<(Option<Seat>, Option<At>)> {
    if tenant != 0 {
        return shared.room.take(tenant).then_some((None, None));
    }
    let (seat, goes) = shared.room.take_stranger(Origin::of(stream))?;
    Some((Some(seat), goes))
}

impl WorkerConnections {
    /// Accepts connections at a gate.
    pub(super) fn accept(&mut self, gate: usize, worker: &mut Worker) {
        let shared = Arc::clone(&worker.shared);
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(gate) = self.stream_ports.get(gate) else { return };
            let stream = match gate.listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(_) => {
                    count_refused(&worker.counters, ConnectionReason::NoFiles);
                    return self.pause(worker.now_us);
                }
            };
            worker.counters.connections_accepted.add(1);
            // With TLS it counts for nobody until the handshake is over.
            let identity =
                ConnectionIdentity::from_port(&worker.snapshot, &gate.service).filter(|_| gate.tls.is_none());
            let home = identity.and_then(|identity| identity.view(&worker.snapshot)).map(|view| &view.tenant);
            let tenant = home.map_or(0, |tenant| tenant.id);
            let Some((seat, goes)) = place(&shared, tenant, &stream) else {
                count_refused(&worker.counters, ConnectionReason::Full);
                if gate.tls.is_none() {
                    let _for_politeness = stream.send(gate.service.protocol.full());
                }
                continue;
            };
            let made = ConnectionTransport::new(stream, gate.tls.as_ref())
                .map(|wire| new_connection(wire, &gate.service, worker.now_us));
            if let Some((at, name)) = goes {
                if at == worker.index {
                    self.shed(name, worker)
                } else {
                    shared.send_to_inbox(at, InboxMessage::Shed(name))
                }
            }
            let Some(mut connection) = made else {
                shared.room.leave(tenant, seat);
                count_refused(&worker.counters, ConnectionReason::Handshake);
                continue;
            };
            (connection.tenant, connection.seat) = (tenant, seat);
            let home = worker.snapshot.tenant(tenant).map(|view| view.tenant.home_worker as usize % shared.ports.len());
            match home {
                Some(home) if home != worker.index => {
                    worker.counters.connections_handed_over.add(1);
                    shared.send_to_inbox(home, InboxMessage::Connection(connection));
                }
                _ => self.open(InboxMessage::Connection(connection), worker),
            }
        }
    }

    /// Another one has taken the place of a connection, unless that has shown meanwhile whose it is.
    pub(super) fn shed(&mut self, name: ConnectionId, worker: &mut Worker) {
        if self.places.get(name).is_some_and(|connection| connection.seat.is_some()) {
            self.refuse(name, ConnectionReason::Full, worker);
        }
    }

    /// Accepts nothing for a while.
    fn pause(&mut self, now_us: u64) {
        self.accept_paused_until_us = Some(now_us + ACCEPT_PAUSE_US);
        self.stream_ports.iter().for_each(|gate| self.selector.remove(&gate.listener));
    }
}

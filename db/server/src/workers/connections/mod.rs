//! A worker's connections, in the worker's own loop: accept, hand over to the home worker, receive, run, answer.
//!
//! In a turn each connection that has something to say is read once, into a buffer that all share; what it asks for is
//! run from there and answered in one send. Only what is not whole yet, or does not leave at once, is copied into
//! buffers of its own, so an idle connection has none. [`event_loop`] is the way of a request; read it first.

mod arrivals;
mod budget;
mod connection;
mod event_loop;
mod handshakes;
mod inbox;
mod ready_queue;
mod records;
mod slots;
mod transport;
mod udp_port;

use std::io;
use std::sync::Arc;

use sandstorm_net::driver::{EpollSelector, SocketInterest, StreamListener};
use tokio_rustls::rustls::ServerConfig;

pub(super) use self::budget::ConnectionBudget;
use self::connection::ClientConnection;
use self::handshakes::TlsHandshakeQueue;
pub(super) use self::inbox::{ConnectionId, WorkerInbox};
use self::ready_queue::ReadyQueue;
use self::slots::ConnectionSlots;
use self::transport::ConnectionTransport;
pub(super) use self::udp_port::UdpPort;
use super::SharedWorkerState;
use sandstorm_dialects::{PortService, ProtocolSession};
use sandstorm_metrics::{ConnectionReason, WorkerCounters};

/// A port at which connections come in.
pub(super) struct StreamPort {
    pub(super) listener: StreamListener,
    pub(super) service: Arc<PortService>,
    /// TLS, if it is spoken there.
    pub(super) tls: Option<Arc<ServerConfig>>,
}

/// Tokens from here on are the gates', then the wickets'; those below are words of connections' ids.
const PORT_TOKEN_FLAG: u64 = 1 << 63;

/// The connections of one worker.
pub(super) struct WorkerConnections {
    selector: EpollSelector,
    stream_ports: Vec<StreamPort>,
    udp_ports: Vec<UdpPort>,
    places: ConnectionSlots,
    /// Those that have something to do.
    line: ReadyQueue,
    /// Tokens of gates and wickets of which the selector told.
    ready_ports: Vec<u64>,
    /// Connections that are gone, as the selector told.
    broken: Vec<ConnectionId>,
    /// Where all receive.
    received: Vec<u8>,
    /// Where all answer.
    answers: Vec<u8>,
    /// Those that have no keys yet.
    handshakes: TlsHandshakeQueue,
    /// Connections with answers that wait.
    unsent: usize,
    /// What has been run in this turn of what goes on in the next, in plain requests.
    pieces: u32,
    /// When it was last looked for those whose time is up.
    looked_us: u64,
    /// Nothing is accepted before this moment.
    accept_paused_until_us: Option<u64>,
}

impl WorkerConnections {
    /// With these gates and wickets, and no connection yet.
    pub(super) fn new(stream_ports: Vec<StreamPort>, udp_ports: Vec<UdpPort>) -> io::Result<WorkerConnections> {
        let selector = EpollSelector::new()?;
        for (index, gate) in stream_ports.iter().enumerate() {
            selector.add(&gate.listener, PORT_TOKEN_FLAG | index as u64, SocketInterest::READ)?;
        }
        for (index, wicket) in udp_ports.iter().enumerate() {
            selector.add(
                &wicket.driver,
                PORT_TOKEN_FLAG | (stream_ports.len() + index) as u64,
                SocketInterest::READ,
            )?;
        }
        Ok(WorkerConnections {
            selector,
            stream_ports,
            udp_ports,
            places: ConnectionSlots::default(),
            line: ReadyQueue::default(),
            ready_ports: Vec::new(),
            broken: Vec::new(),
            received: vec![0; sandstorm_dialects::limits::protocols::RECEIVE_BYTES],
            answers: Vec::new(),
            handshakes: TlsHandshakeQueue::default(),
            unsent: 0,
            pieces: 0,
            looked_us: 0,
            accept_paused_until_us: None,
        })
    }

    /// Datagrams that were not answered.
    pub(super) fn datagrams_dropped(&self) -> u64 {
        self.udp_ports.iter().map(UdpPort::dropped).sum()
    }

    /// What to sleep on beside packets.
    pub(super) fn selector(&self) -> &EpollSelector {
        &self.selector
    }

    /// When it wants to be looked at again though nothing comes, in the workers' microseconds.
    pub(super) fn timer_us(&self) -> Option<u64> {
        let look = self.unsent > 0 || self.places.held(0) > 0;
        let look_us = look.then(|| self.looked_us + crate::limits::connections::TIMEOUT_CHECK_US);
        [look_us, self.accept_paused_until_us, self.handshakes.due_us()].into_iter().flatten().min()
    }

    /// Whether some go on by themselves.
    pub(super) fn has_work(&self) -> bool {
        self.line.len() > 0 || self.udp_ports.iter().any(UdpPort::waits)
    }

    /// Gives a connection a place, and has its stream looked after. None if the kernel has no room for that.
    fn admit(&mut self, mut connection: Box<ClientConnection>) -> Option<ConnectionId> {
        self.unsent += usize::from(connection.unsent() > 0);
        // Not what the worker before had it look for: nobody asks again what it waits for until it has something to
        // say.
        connection.interest = connection.wanted();
        let interest = connection.interest;
        let name = self.places.insert(connection);
        let added = self.places.get(name).map(|connection| self.selector.add(&connection.wire, name.word(), interest));
        if added.is_some_and(|added| added.is_ok()) {
            return Some(name);
        }
        self.release(name);
        None
    }

    /// Takes a connection away from here.
    fn release(&mut self, name: ConnectionId) -> Option<Box<ClientConnection>> {
        let connection = self.places.remove(name)?;
        self.selector.remove(&connection.wire);
        self.unsent -= usize::from(connection.unsent() > 0);
        Some(connection)
    }

    /// Puts a connection in the line of those that have something to do.
    fn queue(&mut self, name: ConnectionId) {
        if let Some(connection) = self.places.get(name)
            && !std::mem::replace(&mut connection.queued, true)
        {
            let tenant = connection.tenant;
            self.line.push(tenant, name);
        }
    }
}

/// Notes why a connection was closed, or not taken.
fn count_refused(counters: &WorkerCounters, reason: ConnectionReason) {
    counters.connections_refused[reason as usize].add(1);
}

impl SharedWorkerState {
    /// Puts something into a worker's inbox, and sees to it that it looks there.
    fn send_to_inbox(&self, worker: usize, messages: inbox::InboxMessage) {
        self.inboxes[worker].put(messages);
        if self.idle.load(std::sync::atomic::Ordering::SeqCst) & (1 << worker) != 0 {
            self.ports[worker].waker.wake();
        }
    }
}

/// A new connection at a gate.
fn new_connection(wire: ConnectionTransport, service: &Arc<PortService>, now_us: u64) -> Box<ClientConnection> {
    Box::new(ClientConnection::new(wire, ProtocolSession::new(service), now_us))
}

//! A worker's connections, in the worker's own loop: accept, hand over to the home worker, receive, run, answer.
//!
//! In a turn each connection that has something to say is read once, into a buffer that all share; what it asks for is run from
//! there and answered in one send. Only what is not whole yet, or does not leave at once, is copied into buffers of its own, so an
//! idle connection has none. [`turn`] is the way of a request; read it first.

mod arrivals;
mod connection;
mod datagrams;
mod handshakes;
mod inbox;
mod line;
mod places;
mod records;
mod room;
mod turn;
mod wire;

use std::io;
use std::sync::Arc;

use sandstorm_net::driver::{Interest, Listener, Selector};
use tokio_rustls::rustls::ServerConfig;

use self::connection::Connection;
pub(super) use self::datagrams::Wicket;
use self::handshakes::Handshakes;
pub(super) use self::inbox::{Inbox, Name};
use self::line::Line;
use self::places::Places;
pub(super) use self::places::may_hold;
pub(super) use self::room::Room;
use self::wire::Wire;
use super::Shared;
use sandstorm_dialects::{Conversation, Entrance};
use sandstorm_metrics::{ConnectionReason, WorkerCounters};

/// A port at which connections come in.
pub(super) struct Gate {
    pub(super) listener: Listener,
    pub(super) entrance: Arc<Entrance>,
    /// TLS, if it is spoken there.
    pub(super) tls: Option<Arc<ServerConfig>>,
}

/// Tokens from here on are the gates', then the wickets'.
const GATES: u64 = 1 << 63;

fn token(name: Name) -> u64 {
    u64::from(name.generation) << 32 | u64::from(name.place)
}

fn name(token: u64) -> Name {
    Name { place: token as u32, generation: (token >> 32) as u32 }
}

/// The connections of one worker.
pub(super) struct Connections {
    selector: Selector,
    gates: Vec<Gate>,
    wickets: Vec<Wicket>,
    places: Places,
    /// Those that have something to do.
    line: Line,
    /// Tokens of gates and wickets of which the selector told.
    at_gates: Vec<u64>,
    /// Connections that are gone, as the selector told.
    broken: Vec<Name>,
    /// Where all receive.
    received: Vec<u8>,
    /// Where all answer.
    answers: Vec<u8>,
    /// Those that have no keys yet.
    handshakes: Handshakes,
    /// Connections with answers that wait.
    unsent: usize,
    /// What has been run in this turn of what goes on in the next, in plain requests.
    pieces: u32,
    /// When it was last looked for those whose time is up.
    looked_us: u64,
    /// Nothing is accepted before this moment.
    paused_until_us: Option<u64>,
}

impl Connections {
    /// With these gates and wickets, and no connection yet.
    pub(super) fn new(gates: Vec<Gate>, wickets: Vec<Wicket>) -> io::Result<Connections> {
        let selector = Selector::new()?;
        for (index, gate) in gates.iter().enumerate() {
            selector.add(&gate.listener, GATES | index as u64, Interest::READ)?;
        }
        for (index, wicket) in wickets.iter().enumerate() {
            selector.add(&wicket.driver, GATES | (gates.len() + index) as u64, Interest::READ)?;
        }
        Ok(Connections {
            selector,
            gates,
            wickets,
            places: Places::default(),
            line: Line::default(),
            at_gates: Vec::new(),
            broken: Vec::new(),
            received: vec![0; sandstorm_dialects::limits::protocols::RECEIVE_BYTES],
            answers: Vec::new(),
            handshakes: Handshakes::default(),
            unsent: 0,
            pieces: 0,
            looked_us: 0,
            paused_until_us: None,
        })
    }

    /// Datagrams that were not answered.
    pub(super) fn datagrams_dropped(&self) -> u64 {
        self.wickets.iter().map(Wicket::dropped).sum()
    }

    /// What to sleep on beside packets.
    pub(super) fn selector(&self) -> &Selector {
        &self.selector
    }

    /// When it wants to be looked at again though nothing comes, in the workers' microseconds.
    pub(super) fn timer_us(&self) -> Option<u64> {
        let look = self.unsent > 0 || self.places.held(0) > 0;
        let look_us = look.then(|| self.looked_us + crate::limits::connections::LOOK_US);
        [look_us, self.paused_until_us, self.handshakes.due_us()].into_iter().flatten().min()
    }

    /// Whether some go on by themselves.
    pub(super) fn has_work(&self) -> bool {
        self.line.len() > 0 || self.wickets.iter().any(Wicket::waits)
    }

    /// Gives a connection a place, and has its stream looked after. None if the kernel has no room for that.
    fn admit(&mut self, mut connection: Box<Connection>) -> Option<Name> {
        self.unsent += usize::from(connection.unsent() > 0);
        // Not what the worker before had it look for: nobody asks again what it waits for until it has something to say.
        connection.interest = connection.wanted();
        let interest = connection.interest;
        let name = self.places.insert(connection);
        let added = self.places.get(name).map(|connection| self.selector.add(&connection.wire, token(name), interest));
        if added.is_some_and(|added| added.is_ok()) {
            return Some(name);
        }
        self.release(name);
        None
    }

    /// Takes a connection away from here.
    fn release(&mut self, name: Name) -> Option<Box<Connection>> {
        let connection = self.places.remove(name)?;
        self.selector.remove(&connection.wire);
        self.unsent -= usize::from(connection.unsent() > 0);
        Some(connection)
    }

    /// Puts a connection in the line of those that have something to do.
    fn queue(&mut self, name: Name) {
        if let Some(connection) = self.places.get(name)
            && !std::mem::replace(&mut connection.queued, true)
        {
            let tenant = connection.tenant;
            self.line.push(tenant, name);
        }
    }
}

/// Notes why a connection was closed, or not taken.
fn note(counters: &WorkerCounters, reason: ConnectionReason) {
    counters.connections_refused[reason as usize].add(1);
}

impl Shared {
    /// Puts something into a worker's inbox, and sees to it that it looks there.
    fn send_mail(&self, worker: usize, mail: inbox::Mail) {
        self.inboxes[worker].put(mail);
        if self.idle.load(std::sync::atomic::Ordering::SeqCst) & (1 << worker) != 0 {
            self.ports[worker].waker.wake();
        }
    }
}

/// A new connection at a gate.
fn connection(wire: Wire, entrance: &Arc<Entrance>, now_us: u64) -> Box<Connection> {
    Box::new(Connection::new(wire, Conversation::new(entrance), now_us))
}

//! A worker's connections, in the worker's own loop: accept, hand over to the home worker, receive, run, answer.
//!
//! In a turn each connection that has something to say is read once, into a buffer that all share; what it asks for is run from
//! there and answered in one send. Only what is not whole yet, or does not leave at once, is copied into buffers of its own, so an
//! idle connection has none. [`turn`] is the way of a request; read it first.

mod connection;
mod datagrams;
mod inbox;
mod places;
mod turn;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use sandstorm_net::driver::{Interest, Listener, Ready, Selector, Stream};

use self::connection::Connection;
pub(super) use self::datagrams::Wicket;
pub(super) use self::inbox::{Inbox, Name};
use self::places::{Places, may_hold};
use super::Shared;
use crate::limits::MAX_WORKERS;
use crate::limits::connections::{CONNECTIONS, OTHER_FILES};
use crate::metrics::{ConnectionReason, WorkerCounters};
use crate::protocols::{Conversation, Entrance};

/// A port at which connections come in.
pub(super) struct Gate {
    pub(super) listener: Listener,
    pub(super) entrance: Arc<Entrance>,
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
    /// Those that go on although nothing new has come.
    line: VecDeque<Name>,
    /// What the selector told last.
    ready: Vec<Ready>,
    /// Where all receive.
    received: Vec<u8>,
    /// Where all answer.
    answers: Vec<u8>,
    /// Bytes of the connections' own buffers.
    buffered: usize,
    /// Connections with answers that wait.
    unsent: usize,
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
            line: VecDeque::new(),
            ready: Vec::new(),
            received: vec![0; crate::limits::connections::RECEIVE_BYTES],
            answers: Vec::new(),
            buffered: 0,
            unsent: 0,
            looked_us: 0,
            paused_until_us: None,
        })
    }

    /// What to sleep on beside packets.
    pub(super) fn selector(&self) -> &Selector {
        &self.selector
    }

    /// When it wants to be looked at again though nothing comes, in the workers' microseconds.
    pub(super) fn timer_us(&self) -> Option<u64> {
        let look = self.unsent > 0 || self.places.held(0) > 0;
        let look_us = look.then(|| self.looked_us + crate::limits::connections::LOOK_US);
        [look_us, self.paused_until_us].into_iter().flatten().min()
    }

    /// Whether some go on by themselves.
    pub(super) fn has_work(&self) -> bool {
        !self.line.is_empty()
    }

    /// Gives a connection a place, and has its stream looked after. None if the kernel has no room for that.
    fn admit(&mut self, connection: Box<Connection>) -> Option<Name> {
        self.buffered += connection.buffered();
        self.unsent += usize::from(connection.unsent() > 0);
        let interest = connection.interest;
        let name = self.places.insert(connection);
        let added =
            self.places.get(name).map(|connection| self.selector.add(&connection.stream, token(name), interest));
        if added.is_some_and(|added| added.is_ok()) {
            return Some(name);
        }
        self.release(name);
        None
    }

    /// Takes a connection away from here.
    fn release(&mut self, name: Name) -> Option<Box<Connection>> {
        let connection = self.places.remove(name)?;
        self.selector.remove(&connection.stream);
        self.buffered -= connection.buffered();
        self.unsent -= usize::from(connection.unsent() > 0);
        Some(connection)
    }

    /// Puts a connection in the line of those that go on by themselves.
    fn queue(&mut self, name: Name) {
        if let Some(connection) = self.places.get(name)
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.line.push_back(name);
        }
    }
}

/// How many connections the server has, and may have.
pub(super) struct Room {
    live: AtomicUsize,
    limit: usize,
}

impl Room {
    /// Room for as many as the process may have files open; the limit of those is raised as far as it can be.
    pub(super) fn new() -> Room {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let files = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: files.maximum, maximum: files.maximum };
        let may = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => files.maximum,
            Err(_) => files.current,
        };
        let may = may.map_or(usize::MAX, |may| usize::try_from(may).unwrap_or(usize::MAX));
        Room { live: AtomicUsize::new(0), limit: may.saturating_sub(OTHER_FILES).clamp(MAX_WORKERS, CONNECTIONS) }
    }

    /// Connections that there may be.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Whether one that holds so many may take one more.
    fn has_for(&self, held: usize) -> bool {
        may_hold(self.limit, self.live.load(Relaxed), held)
    }

    fn count(&self, change: isize) {
        // Wraps for a negative one, as it should.
        self.live.fetch_add(change as usize, Relaxed);
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
fn connection(stream: Stream, entrance: &Arc<Entrance>, now_us: u64) -> Box<Connection> {
    Box::new(Connection::new(stream, Conversation::new(entrance), now_us))
}

//! The protocols that clients of other servers speak, on connections: memcached and Redis.
//!
//! A [`ProtocolSession`] is what one connection has said and heard. It is given the bytes that have come, runs the
//! whole commands among them on its tenant's tables, appends the answers, and tells what is to happen next. It knows no
//! socket: sending, receiving and waiting are the workers' (`workers/connections`).
#![forbid(unsafe_code)]

mod http_detection;
mod identity;
pub mod limits;
pub mod memcached;
pub(crate) mod redis;

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use sandstorm_net::rpc::RpcStatus;

pub use self::identity::ConnectionIdentity;
use crate::limits::REQUEST_NS;
use crate::limits::protocols::{BYTES_PER_REQUEST, EMPTY_WORK, PIECE_WORK};
use sandstorm_catalog::{DirectorySnapshot, TenantView};
use sandstorm_metrics::{ConnectionReason, ServerMetrics, WorkerCounters};
use sandstorm_store::{Participant, RecordTable};

/// Which protocol a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's, classic text and meta commands.
    Memcached,
    /// Redis's, RESP2 and RESP3.
    Redis,
}

impl Protocol {
    /// What a client is told whose connection is not taken.
    pub fn full(self) -> &'static [u8] {
        match self {
            Protocol::Memcached => b"ERROR Too many open connections\r\n",
            Protocol::Redis => b"-ERR max number of clients reached\r\n",
        }
    }
}

/// What a port is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortService {
    /// What is spoken there.
    pub protocol: Protocol,
    /// The name of the tenant that everybody acts for who connects; else a connection shows first who it is.
    pub tenant: Option<String>,
    /// The name of the table that is used at first.
    pub table: Option<String>,
    /// Whether other machines reach it: then it speaks for open tenants only.
    pub public: bool,
}

/// What is the same for the whole server, for those who ask about it.
pub struct ServerProperties {
    /// The server's counters.
    pub metrics: Arc<ServerMetrics>,
    /// Number of workers.
    pub workers: usize,
    /// When the server began, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Connections that one worker holds at most.
    pub connections: usize,
    /// Microseconds from which on a command counts as slow.
    pub slow_us: u64,
}

/// What a command may use: this worker's part of the server.
pub struct CommandContext<'w> {
    /// The worker's part in reclamation.
    pub participant: &'w Participant,
    /// The tenants, as the worker has them now.
    pub snapshot: &'w Arc<DirectorySnapshot>,
    /// Time of day, milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// The worker's monotonic clock, microseconds.
    pub now_us: u64,
    /// The worker's number.
    pub worker: usize,
    /// What the worker counts.
    pub counters: &'w WorkerCounters,
    /// What does not change while the server runs.
    pub facts: &'w ServerProperties,
    /// Requests run since the worker looked last, and other work in so many plain requests, which it bills to the
    /// tenant.
    pub requests: Cell<u32>,
    /// What [`Participant::retired`] was before.
    pub retired: u64,
    /// Work after which others have their turn, in plain requests.
    pub budget: u32,
}

impl CommandContext<'_> {
    /// What was run in so many plain requests. A write replaces a record at most, but one into a cache that is full may
    /// evict thousands.
    #[inline]
    pub fn work_done(&self) -> u32 {
        let retired = self.participant.retired() - self.retired;
        self.requests.get().max(u32::try_from(retired).unwrap_or(u32::MAX))
    }

    /// Whether others have their turn before this goes on. Whoever asks has done something before: a conversation that
    /// stands still never ends.
    #[inline]
    pub(crate) fn is_enough(&self) -> bool {
        self.work_done() >= self.budget
    }

    /// The same for a piece that began then, whatever its work was counted as.
    pub(crate) fn is_over_budget_since(&self, begun: Instant) -> bool {
        self.is_enough() || begun.elapsed().as_nanos() as u64 >= u64::from(self.budget) * REQUEST_NS
    }

    /// Whether so many more requests of the tenant keep within its rate (`requests_per_s`); counts them either way.
    #[inline]
    pub(crate) fn admit(&self, view: &TenantView, requests: u32) -> bool {
        let admitted = self.admit_rate(view, requests);
        if admitted {
            self.work(u64::from(requests));
        }
        admitted
    }

    /// The same for requests whose work is counted when it is done.
    pub(crate) fn admit_rate(&self, view: &TenantView, requests: u32) -> bool {
        let counters = view.tenant.usage.worker(self.worker);
        let admitted = view.tenant.admit_requests(self.now_us.saturating_mul(1000), requests);
        let counter = if admitted { &counters.requests } else { &counters.over_quota };
        counter.add(u64::from(requests));
        admitted
    }

    /// Counts work beyond that of a plain request, in what so many of these would take.
    #[inline]
    pub(crate) fn work(&self, requests: u64) {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.requests.set(self.requests.get().saturating_add(requests));
    }

    /// Counts that a table is emptied: its locks, and the array that takes the place of the old one. The records are
    /// freed in pieces, later.
    pub(crate) fn empties(&self, table: &RecordTable) {
        self.work(EMPTY_WORK + (table.stats().records / 2).min(PIECE_WORK.into()));
    }

    /// Counts bytes that are copied or looked at.
    #[inline]
    pub(crate) fn bytes(&self, bytes: usize) {
        if bytes >= BYTES_PER_REQUEST {
            self.work((bytes / BYTES_PER_REQUEST) as u64);
        }
    }

    /// Notes that a connection is closed because of what it said.
    #[cold]
    pub(crate) fn count_protocol_error(&self) {
        self.counters.connections_refused[ConnectionReason::Protocol as usize].add(1);
    }
}

/// What is to happen after a conversation has run what it could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// More bytes have to come: at least so many, together with those that were not used up.
    NeedMore(usize),
    /// The batch is full or the answers are long: to be called again, after others had their turn.
    Yield,
    /// An extension is to be called. Nothing further runs on this connection until [`ProtocolSession::answered`].
    Invoke {
        /// Its name.
        extension: Vec<u8>,
        /// Its arguments.
        args: Vec<u8>,
    },
    /// It is known now whose connection this is: the tenant of that id. Its home worker serves it from here on; to be
    /// called again there.
    HandOver(u32),
    /// The connection ends once the answers are sent.
    Close,
}

/// How an invocation ended.
#[derive(Clone, Copy, Debug)]
pub struct InvocationResult<'a> {
    /// `Ok`, `Failed`, `Killed`, or why it did not begin.
    pub status: RpcStatus,
    /// The extension's version; the error's code; the kill's cause.
    pub number: u64,
    /// The reply, or a text that says what was wrong.
    pub value: &'a [u8],
}

/// One connection's conversation.
pub enum ProtocolSession {
    /// Of a memcached client.
    Memcached(memcached::MemcachedSession),
    /// Of a Redis client.
    Redis(Box<redis::RedisSession>),
}

impl ProtocolSession {
    /// A conversation that begins at this port.
    pub fn new(service: &Arc<PortService>) -> ProtocolSession {
        match service.protocol {
            Protocol::Memcached => ProtocolSession::Memcached(memcached::MemcachedSession::new(service)),
            Protocol::Redis => ProtocolSession::Redis(Box::new(redis::RedisSession::new(service))),
        }
    }

    /// Runs whole commands from the front of `input`, as many as are there up to one batch or to the context's budget,
    /// and appends their answers to `out`. Tells how many bytes were used up, and what is next. A command that takes
    /// longer than the budget is run in pieces, one each call: its bytes are used up with the last one, and stay in the
    /// input until then.
    pub fn run(&mut self, context: &CommandContext<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, NextAction) {
        match self {
            ProtocolSession::Memcached(session) => session.run(context, input, out),
            ProtocolSession::Redis(session) => session.run(context, input, out),
        }
    }

    /// The invocation that was asked for has ended.
    pub fn answered(&mut self, ended: &InvocationResult<'_>, out: &mut Vec<u8>) {
        match self {
            ProtocolSession::Memcached(_) => {}
            ProtocolSession::Redis(session) => session.answered(ended, out),
        }
    }

    /// Answers a client that asks for something while the server is shutting down: it was not run. Clients of Redis
    /// take `LOADING` for an answer to connect and ask again. Of a command that has run in part nothing is said: the
    /// connection just ends.
    pub fn stops(&self, input: &[u8], out: &mut Vec<u8>) {
        match self {
            ProtocolSession::Memcached(session) => session.reply_closing(input, memcached::SHUTTING_DOWN, out),
            ProtocolSession::Redis(session) if session.has_suspended() => {}
            ProtocolSession::Redis(_) => {
                out.extend_from_slice(b"-LOADING the server is shutting down and did not run the command\r\n");
            }
        }
    }

    /// A worker has its connection now, under that name. Addresses are asked for only where they are shown.
    pub fn placed(&mut self, place: (u32, u64), addresses: impl FnOnce() -> Option<(SocketAddr, SocketAddr)>) {
        match self {
            ProtocolSession::Memcached(_) => {}
            ProtocolSession::Redis(session) => session.placed(place, addresses),
        }
    }

    /// Whether another connection of its tenant has ended it.
    pub fn is_killed(&self) -> bool {
        match self {
            ProtocolSession::Memcached(_) => false,
            ProtocolSession::Redis(session) => session.is_killed(),
        }
    }

    /// Takes the connections that it has ended: the worker of each, and the connection's name there.
    pub fn killed(&mut self) -> Vec<(u32, u64)> {
        match self {
            ProtocolSession::Memcached(_) => Vec::new(),
            ProtocolSession::Redis(session) => session.killed(),
        }
    }

    /// Bytes that it holds beside what waits in the connection's buffers.
    pub fn held_bytes(&self) -> usize {
        match self {
            ProtocolSession::Memcached(_) => 0,
            ProtocolSession::Redis(session) => session.held_bytes(),
        }
    }

    /// Whom it acts for, once that is known.
    pub fn identity(&self) -> Option<&ConnectionIdentity> {
        match self {
            ProtocolSession::Memcached(session) => session.identity(),
            ProtocolSession::Redis(session) => session.identity(),
        }
    }
}

/// A key's hash in a table. Tests count how often a command asks for one.
#[inline]
pub(crate) fn hash_key(table: &RecordTable, key: &[u8]) -> u64 {
    #[cfg(test)]
    hashed::note(1);
    table.hash(key)
}

/// How many keys this thread has hashed.
#[cfg(test)]
pub(crate) mod hashed {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn note(keys: usize) {
        COUNT.set(COUNT.get() + keys as u64);
    }

    pub(crate) fn take() -> u64 {
        COUNT.take()
    }
}

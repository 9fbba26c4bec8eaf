//! The protocols of other servers' clients, on connections: memcached and Redis.
//!
//! A [`ProtocolSession`] is the state of one connection. It gets the received bytes, runs the whole commands among them
//! on its tenant's tables, appends the answers, and returns the next action. It has no socket: the workers send,
//! receive and wait (`workers/connections`).
#![forbid(unsafe_code)]

mod cold_command;
mod first_command;
mod http_detection;
mod identity;
pub mod limits;
pub mod memcached;
pub(crate) mod redis;

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use sandstorm_net::forwarding::{ForwardedAnswer, ForwardedBatch};
use sandstorm_net::rpc::{CallCost, RpcStatus};

pub use self::identity::ConnectionIdentity;
use crate::limits::REQUEST_NS;
use crate::limits::protocols::{BYTES_PER_REQUEST, EMPTY_WORK, PIECE_WORK};
use sandstorm_accounts::RequestSubject;
use sandstorm_catalog::{DirectorySnapshot, TenantView};
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_metrics::{ConnectionReason, ServerMetrics, WorkerCounters};
use sandstorm_store::spill::SpillReadError;
use sandstorm_store::{Participant, RecordTable};

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's, classic text and meta commands.
    Memcached,
    /// Redis's, RESP2 and RESP3.
    Redis,
}

impl Protocol {
    /// The answer to a client whose connection is refused.
    pub fn full(self) -> &'static [u8] {
        match self {
            Protocol::Memcached => b"ERROR Too many open connections\r\n",
            Protocol::Redis => b"-ERR max number of clients reached\r\n",
        }
    }
}

/// The service of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortService {
    /// The protocol.
    pub protocol: Protocol,
    /// The name of the tenant that all its clients act for; without one, each client must authenticate.
    pub tenant: Option<String>,
    /// The name of the default table.
    pub table: Option<String>,
    /// Whether other machines reach it: then it serves open tenants only.
    pub public: bool,
}

/// What an answer has waited for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncertainAnswer {
    /// The disk of the server's log.
    Log,
    /// What is behind a table.
    Backing,
}

impl UncertainAnswer {
    /// What a client is told instead of answers that cannot be relied on.
    pub(crate) fn text(self) -> &'static str {
        match self {
            UncertainAnswer::Log => {
                "the commands whose answers are missing were run, but the server's disk has failed or takes too long: a crash \
                 may take them back"
            }
            UncertainAnswer::Backing => {
                "the commands whose answers are missing were run, but the table's backing does not have what they changed: it \
                 fails, or another writer has changed it; read before you write again"
            }
        }
    }
}

/// The properties of the server, for commands that report them.
pub struct ServerProperties {
    /// The server's counters.
    pub metrics: Arc<ServerMetrics>,
    /// Number of workers.
    pub workers: usize,
    /// The start of the server, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Connections of one worker, at most.
    pub connections: usize,
}

impl ServerProperties {
    /// Whether a command that took so long counts as slow.
    pub(crate) fn is_slow(&self, took_us: u64) -> bool {
        took_us.saturating_mul(1000) >= self.metrics.slow.ns()
    }
}

/// The context of a command: this worker's part of the server.
pub struct CommandContext<'w> {
    /// The worker's participant in reclamation.
    pub participant: &'w Participant,
    /// The tenants, in the worker's current snapshot.
    pub snapshot: &'w Arc<DirectorySnapshot>,
    /// Time of day, milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// The worker's monotonic clock, microseconds.
    pub now_us: u64,
    /// The worker's number.
    pub worker: usize,
    /// The worker's counters.
    pub counters: &'w WorkerCounters,
    /// The constant properties of the server.
    pub facts: &'w ServerProperties,
    /// Requests run since the worker read this last, and other work in plain requests. The worker bills them to the
    /// tenant.
    pub requests: Cell<u32>,
    /// The earlier value of [`Participant::retired`].
    pub retired: u64,
    /// Work after which the command yields, in plain requests.
    pub budget: u32,
}

impl CommandContext<'_> {
    /// The work that was done, in plain requests. A write replaces one record at most, but one into a full cache may
    /// evict thousands.
    #[inline]
    pub fn work_done(&self) -> u32 {
        let retired = self.participant.retired() - self.retired;
        self.requests.get().max(u32::try_from(retired).unwrap_or(u32::MAX))
    }

    /// Whether the session should yield before it goes on. The caller has done some work before: a session without
    /// progress would never end.
    #[inline]
    pub(crate) fn is_enough(&self) -> bool {
        self.work_done() >= self.budget
    }

    /// The same for a piece that began at `begun`, regardless of its counted work.
    pub(crate) fn is_over_budget_since(&self, begun: Instant) -> bool {
        self.is_enough() || begun.elapsed().as_nanos() as u64 >= u64::from(self.budget) * REQUEST_NS
    }

    /// Whether `requests` more of the tenant are within its rate (`requests_per_s`); counts them in any case.
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

    /// Counts work beyond that of a plain request, in plain requests.
    #[inline]
    pub(crate) fn work(&self, requests: u64) {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.requests.set(self.requests.get().saturating_add(requests));
    }

    /// Counts the work of emptying a table: its locks, and a new array in place of the old one. The records are freed
    /// in pieces, later.
    pub(crate) fn empties(&self, records: u64) {
        self.work(EMPTY_WORK + (records / 2).min(PIECE_WORK.into()));
    }

    /// Counts bytes that are copied or scanned.
    #[inline]
    pub(crate) fn bytes(&self, bytes: usize) {
        if bytes >= BYTES_PER_REQUEST {
            self.work((bytes / BYTES_PER_REQUEST) as u64);
        }
    }

    /// Notes that a connection is closed because of a protocol error.
    #[cold]
    pub(crate) fn count_protocol_error(&self) {
        self.counters.connections_refused[ConnectionReason::Protocol as usize].add(1);
    }
}

/// The next action after a session has run what it could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// More bytes are needed: at least this many, together with the unused ones.
    NeedMore(usize),
    /// The batch is full or the answers are long: the session is to be called again after other tenants' turns.
    Yield,
    /// An extension is to be called. Nothing more runs on this connection until [`ProtocolSession::answered`].
    Invoke {
        /// Its name.
        extension: Vec<u8>,
        /// Its version; 0: the newest.
        version: u64,
        /// Its arguments.
        args: Vec<u8>,
        /// What the call is about, if its arguments do not begin with that as Redis' keys: a version that is tried on
        /// a share of the calls gets all calls of a key, or none.
        key: Option<Vec<u8>>,
        /// Whether its result tells what it cost.
        with_cost: bool,
    },
    /// A table is to be made for the database of this number. Nothing more runs on this connection until
    /// [`ProtocolSession::answered`].
    MakeDatabase(WantedDatabase),
    /// The connection has authenticated, for the tenant of that id. Its home worker serves it from here on, and calls
    /// the session again.
    HandOver(u32),
    /// The next command has met cold records, and has done nothing. The session is to be called again, with its bytes,
    /// once they are in memory: the participant has noted them.
    FetchCold,
    /// Commands are to be sent to other servers of the cluster. Nothing more runs on this connection until
    /// [`ProtocolSession::forwarded`].
    Forward(Box<ForwardedBatch>),
    /// The connection ends once the answers are sent.
    Close,
}

/// A database that a Redis client has selected by a number that no table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedDatabase {
    /// The number: the id that its table gets.
    pub number: u64,
    /// The table whose mode and durability it gets: the connection's default table.
    pub like: Option<u64>,
}

impl WantedDatabase {
    /// The name of its table.
    pub fn table_name(&self) -> String {
        format!("db{}", self.number)
    }
}

/// The result of an invocation.
#[derive(Clone, Copy, Debug)]
pub struct InvocationResult<'a> {
    /// `Ok`, `Failed`, `Killed`, or the reason that it did not begin.
    pub status: RpcStatus,
    /// The extension's version; the error's code; the kill's cause.
    pub number: u64,
    /// The reply, or the text of an error.
    pub value: &'a [u8],
    /// What it cost, if that was asked for and it has run.
    pub cost: Option<CallCost>,
}

/// The session of one connection.
pub enum ProtocolSession {
    /// A memcached client's.
    Memcached(memcached::MemcachedSession),
    /// A Redis client's.
    Redis(Box<redis::RedisSession>),
    /// Another server's of the cluster, which sends commands of memcached clients.
    Peer(Box<memcached::PeerSession>),
}

impl ProtocolSession {
    /// A new session at this port.
    pub fn new(service: &Arc<PortService>) -> ProtocolSession {
        match service.protocol {
            Protocol::Memcached => ProtocolSession::Memcached(memcached::MemcachedSession::new(service)),
            Protocol::Redis => ProtocolSession::Redis(Box::new(redis::RedisSession::new(service))),
        }
    }

    /// Runs whole commands from the front of `input`, up to one batch or to the context's budget, and appends their
    /// answers to `out`. Returns the number of used bytes, and the next action. A command that takes longer than the
    /// budget is run in pieces, one each call. Its bytes stay in the input until the last piece.
    pub fn run(&mut self, context: &CommandContext<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, NextAction) {
        match self {
            ProtocolSession::Memcached(session) => session.run(context, input, out),
            ProtocolSession::Redis(session) => session.run(context, input, out),
            ProtocolSession::Peer(session) => session.run(context, input, out),
        }
    }

    /// The kind of its commands, for counters.
    pub fn request_class(&self) -> RequestClass {
        match self {
            ProtocolSession::Memcached(_) | ProtocolSession::Peer(_) => RequestClass::Memcached,
            ProtocolSession::Redis(_) => RequestClass::Redis,
        }
    }

    /// What the first command is about that ran since [`ProtocolSession::begin_answers`]; if none has run, the one
    /// before.
    pub fn first_command(&self) -> RequestSubject {
        match self {
            ProtocolSession::Memcached(session) => session.first_command(),
            ProtocolSession::Peer(session) => session.first_command(),
            ProtocolSession::Redis(session) => session.first_command(),
        }
    }

    /// Notes that the answers so far are counted.
    #[inline]
    pub fn begin_answers(&mut self) {
        match self {
            ProtocolSession::Memcached(session) => session.begin_answers(),
            ProtocolSession::Peer(session) => session.begin_answers(),
            ProtocolSession::Redis(session) => session.begin_answers(),
        }
    }

    /// Continues after the requested invocation has ended.
    pub fn answered(&mut self, ended: &InvocationResult<'_>, out: &mut Vec<u8>) {
        match self {
            ProtocolSession::Memcached(_) | ProtocolSession::Peer(_) => {}
            ProtocolSession::Redis(session) => session.answered(ended, out),
        }
    }

    /// Continues with what other servers have answered to the commands that were sent to them.
    pub fn forwarded(&mut self, answers: Vec<ForwardedAnswer>, out: &mut Vec<u8>) {
        if let ProtocolSession::Memcached(session) = self {
            session.forwarded(answers, out);
        }
    }

    /// Answers a client that sends a request while the server is shutting down: it was not run. Redis clients take
    /// `LOADING` as a reason to connect and try again. For a command that has run in part there is no answer: the
    /// connection just ends.
    pub fn stops(&self, input: &[u8], out: &mut Vec<u8>) {
        match self {
            ProtocolSession::Peer(session) => session.stops(out),
            ProtocolSession::Memcached(session) => match session.unanswered(input) {
                b"" if !input.is_empty() => {}
                input => session.reply_closing(input, memcached::SHUTTING_DOWN, out),
            },
            ProtocolSession::Redis(session) if session.has_suspended() => {}
            ProtocolSession::Redis(_) => {
                out.extend_from_slice(b"-LOADING the server is shutting down and did not run the command\r\n");
            }
        }
    }

    /// The one answer in place of those that have waited in vain; the connection ends behind it.
    pub fn not_durable(&self, uncertain: UncertainAnswer, out: &mut Vec<u8>) {
        match self {
            ProtocolSession::Memcached(session) => session.not_durable(uncertain, out),
            ProtocolSession::Peer(session) => session.not_durable(uncertain, out),
            ProtocolSession::Redis(_) => {
                out.extend_from_slice(b"-MISCONF ");
                out.extend_from_slice(uncertain.text().as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Notes why the cold records that it waited for could not be read: the command that meets them again is refused.
    pub fn set_cold_error(&mut self, error: SpillReadError) {
        match self {
            ProtocolSession::Memcached(session) => session.cold.set_error(error),
            ProtocolSession::Redis(session) => session.set_cold_error(error),
            ProtocolSession::Peer(session) => session.set_cold_error(error),
        }
    }

    /// Sets the worker that has its connection, and the connection's name there. Addresses are read only if they are
    /// shown.
    pub fn set_location(&mut self, location: (u32, u64), addresses: impl FnOnce() -> Option<(SocketAddr, SocketAddr)>) {
        match self {
            ProtocolSession::Memcached(_) | ProtocolSession::Peer(_) => {}
            ProtocolSession::Redis(session) => session.set_location(location, addresses),
        }
    }

    /// Whether another connection of its tenant has killed it.
    pub fn is_killed(&self) -> bool {
        match self {
            ProtocolSession::Memcached(_) | ProtocolSession::Peer(_) => false,
            ProtocolSession::Redis(session) => session.is_killed(),
        }
    }

    /// Takes the connections that it has killed: the worker of each, and the connection's name there.
    pub fn killed(&mut self) -> Vec<(u32, u64)> {
        match self {
            ProtocolSession::Memcached(_) | ProtocolSession::Peer(_) => Vec::new(),
            ProtocolSession::Redis(session) => session.killed(),
        }
    }

    /// Bytes that it uses beside the connection's buffers.
    pub fn used_bytes(&self) -> usize {
        match self {
            ProtocolSession::Memcached(session) => session.used_bytes(),
            ProtocolSession::Peer(_) => 0,
            ProtocolSession::Redis(session) => session.used_bytes(),
        }
    }

    /// The identity that it acts for, once it is known.
    pub fn identity(&self) -> Option<&ConnectionIdentity> {
        match self {
            ProtocolSession::Memcached(session) => session.identity(),
            ProtocolSession::Redis(session) => session.identity(),
            ProtocolSession::Peer(session) => session.identity(),
        }
    }
}

/// A key's hash in a table. Tests count the calls.
#[inline]
pub(crate) fn hash_key(table: &RecordTable, key: &[u8]) -> u64 {
    #[cfg(test)]
    hashed::note(1);
    table.hash(key)
}

/// The number of keys that this thread has hashed.
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

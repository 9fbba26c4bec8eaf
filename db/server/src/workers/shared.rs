//! The state that the workers of a server share.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use crossbeam_deque::Stealer;
use crossbeam_utils::CachePadded;
use sandstorm_catalog::Directory;
use sandstorm_dialects::ServerProperties;
use sandstorm_net::forwarding::CommandForwarder;

use super::connections::budget::ConnectionBudget;
use super::connections::inbox::{InboxMessage, WorkerInbox};
use super::database_queue::DatabaseQueue;
use super::local_calls::LocalCalls;
use super::port::WorkerPort;
use super::tasks::InvocationTask;

/// The state that the workers share.
pub(super) struct SharedWorkerState {
    pub(super) ports: Vec<WorkerPort>,
    /// The queues from which each worker's offered invocations can be taken.
    pub(super) stealers: Vec<Stealer<InvocationTask>>,
    pub(super) directory: Arc<Directory>,
    /// A bit for each worker that sleeps.
    pub(super) idle: CachePadded<AtomicU64>,
    /// A bit for each port with answers that wait for the log.
    pub(super) holding_ports: CachePadded<AtomicU64>,
    /// A bit for each worker with such connections.
    pub(super) holding_connections: CachePadded<AtomicU64>,
    /// Set while a worker runs invocations: its packets wait.
    pub(super) in_guest_code: Vec<CachePadded<AtomicBool>>,
    /// Messages between the workers' connections.
    pub(super) inboxes: Vec<CachePadded<WorkerInbox>>,
    /// Calls that come from this process.
    pub(super) local_calls: LocalCalls,
    /// For each worker, the times that cold records came for its invocations and connections.
    pub(super) arrivals: Vec<CachePadded<AtomicU64>>,
    /// Tables that are being made for connections.
    pub(super) databases: DatabaseQueue,
    /// The number of connections, and its limit.
    pub(super) connection_budget: ConnectionBudget,
    pub(super) properties: ServerProperties,
    pub(super) stop: AtomicBool,
    /// The start of the workers' microseconds.
    pub(super) epoch: Instant,
    /// A random number, not 0, that tells this start of the server from others.
    pub(super) start: u32,
    /// Whether workers never sleep.
    pub(super) poll: bool,
    /// See [`super::WorkerOptions::steal`].
    pub(super) steal: bool,
    /// Whether invocations that wait for a record take turns.
    pub(super) interleave: bool,
    /// Whether large values are sent from their records.
    pub(super) zero_copy: bool,
    /// See [`super::WorkerOptions::allow_plaintext`].
    pub(super) allow_plaintext: bool,
    /// See [`super::WorkerOptions::forwarder`].
    pub(super) forwarder: Option<Arc<dyn CommandForwarder>>,
}

impl SharedWorkerState {
    /// Whether the server is shutting down.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Microseconds since the workers started.
    pub(super) fn elapsed_us(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }

    /// Wakes one sleeping worker other than `worker`, if there is one.
    pub(super) fn wake_idle_neighbour(&self, worker: usize) {
        let idle = self.idle.load(SeqCst) & !(1 << worker);
        if idle != 0 {
            self.ports[idle.trailing_zeros() as usize].waker.wake();
        }
    }

    /// Puts a message into a worker's inbox, and wakes the worker if it sleeps.
    pub(super) fn send_to_inbox(&self, worker: usize, message: InboxMessage) {
        self.inboxes[worker].put(message);
        self.wake_if_idle(worker);
    }

    /// Notes that cold records came which an invocation or a connection of a worker waits for.
    pub(super) fn note_arrival(&self, worker: usize) {
        self.arrivals[worker].fetch_add(1, SeqCst);
        self.wake_if_idle(worker);
    }

    /// Wakes a worker if it sleeps. It looks for work once more after it has said that it sleeps.
    pub(super) fn wake_if_idle(&self, worker: usize) {
        if self.idle.load(SeqCst) & (1 << worker) != 0 {
            self.ports[worker].waker.wake();
        }
    }
}

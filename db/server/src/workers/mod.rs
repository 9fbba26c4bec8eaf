//! Workers: pinned threads that serve requests, each on a port of its own.
//!
//! [`serve`] is the way of a request, top to bottom; read it first. Around it: [`admission`], the door;
//! [`record_operations`], operations on records; [`connections`], clients of memcached and Redis; [`tasks`],
//! invocations; [`run_queue`], whose turn it is; [`steal`], sharing; [`ingress`] and [`early_drop`], fairness between
//! those who send; [`port`], [`response_assembly`], [`sessions`], [`verified_peers`], [`rx_zero_copy`], what is
//! remembered between packets.

mod admission;
mod connections;
mod drain;
mod early_drop;
mod ingress;
mod listeners;
mod network;
mod pending_queries;
mod port;
mod recent_tenants;
mod record_operations;
mod rejections;
mod response_assembly;
mod run_queue;
mod rx_zero_copy;
mod serve;
mod sessions;
mod slot_map;
mod spin;
mod start;
mod steal;
mod tasks;
mod verified_peers;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crossbeam_deque::{Stealer, Worker as Deque};
use crossbeam_utils::CachePadded;
use sandstorm_net::driver::DatagramDriver;

use self::connections::{ConnectionBudget, WorkerConnections, WorkerInbox};
use self::early_drop::EarlyDropController;
use self::ingress::IngressScheduler;
use self::port::{ResponseBuffer, WorkerPort, WorkerPortState};
use self::recent_tenants::RecentTenants;
use self::run_queue::RunQueue;
use self::spin::SpinController;
use self::steal::StealOffer;
use self::tasks::{FinishedTask, InvocationTask};
use crate::limits::{CLOCK_MAX_AGE_US, STEAL_POLL_MS};
use sandstorm_catalog::{Directory, DirectorySnapshot};
use sandstorm_dialects::ServerProperties;
use sandstorm_metrics::WorkerCounters;
use sandstorm_runtime::Engine;
use sandstorm_store::Participant;

pub use listeners::{ListenerConfig, PortAddress};
pub use network::NetworkOptions;
pub use start::{WorkerOptions, WorkerStartError, Workers};

/// What the workers share.
struct SharedWorkerState {
    ports: Vec<WorkerPort>,
    /// Where each worker's offered invocations can be taken.
    stealers: Vec<Stealer<InvocationTask>>,
    directory: Arc<Directory>,
    /// A bit for each worker that sleeps.
    idle: CachePadded<AtomicU64>,
    /// Set while a worker is in its tasks: its packets wait.
    in_guest_code: Vec<CachePadded<AtomicBool>>,
    /// What workers send to each other's connections.
    inboxes: Vec<CachePadded<WorkerInbox>>,
    /// How many connections there are, and may be.
    room: ConnectionBudget,
    facts: ServerProperties,
    stop: AtomicBool,
    /// Where the workers' microseconds start.
    epoch: Instant,
    /// A random number, not 0, by which this start of the server is told from others.
    start: u32,
    /// Never sleep.
    poll: bool,
    /// See [`WorkerOptions::steal`].
    steal: bool,
    /// Invocations that wait for a record take turns.
    interleave: bool,
    /// Large values are sent from where they are stored.
    zero_copy: bool,
    /// See [`WorkerOptions::allow_plaintext`].
    allow_plaintext: bool,
}

/// One worker's own.
struct Worker {
    index: usize,
    shared: Arc<SharedWorkerState>,
    participant: Participant,
    engine: Engine,
    counters: Arc<CachePadded<WorkerCounters>>,
    snapshot: Arc<DirectorySnapshot>,
    queue: RunQueue<InvocationTask>,
    asked: RecentTenants,
    offered: Deque<InvocationTask>,
    steal_offer: StealOffer,
    ended: Vec<FinishedTask>,
    /// Invocations in the run queue or being interleaved.
    live: usize,
    /// The server is shutting down: nothing new is run.
    stops: bool,
    /// None on a server without ports for them.
    connections: Option<Box<WorkerConnections>>,
    was_last_turn_long: bool,
    /// The polls of the last turn that had some were short.
    has_short_polls: bool,
    /// Turns with packets since the port's counts were taken over.
    uncounted_turns: usize,
    /// Answers of this turn wait for those of short invocations.
    is_transmit_deferred: bool,
    overload: EarlyDropController,
    now_us: u64,
    now_ms: u64,
    /// When `now_ms` was read.
    clock_read_us: u64,
    spin: SpinController,
    /// When the last turn ended that found something to do.
    idle_since_us: u64,
    /// It has slept since.
    has_slept: bool,
    /// The turn before this one found something to do: it lasted until now.
    was_busy: bool,
    /// When an idle neighbour was last told to look around.
    neighbour_woken_us: u64,
    /// Response buffers of a burst's messages.
    responses: Vec<ResponseBuffer>,
    /// Where one operation's answer is put together.
    answer: Vec<u8>,
}

impl Worker {
    /// Serves until the server stops, then finishes what is under way.
    fn run(mut self, mut intake: IngressScheduler) {
        while !self.shared.stop.load(Relaxed) {
            let was_busy = self.was_busy;
            let done = self.turn(&mut intake);
            if was_busy {
                self.idle_since_us = self.now_us;
            }
            let idle_us = self.now_us.saturating_sub(self.idle_since_us);
            if done > 0 {
                self.spin.found_work(self.now_us, idle_us, std::mem::take(&mut self.has_slept));
                self.was_busy = true;
            } else if !self.shared.poll && !self.spin.goes_on(idle_us) {
                self.sleep();
                self.has_slept = true;
            } else {
                std::hint::spin_loop();
            }
        }
        self.drain(&mut intake);
        let shared = Arc::clone(&self.shared);
        if let Some(state) = shared.ports[self.index].open(true) {
            self.publish_port_counters(&state);
        }
    }

    /// Takes the time, and the directory if it has changed.
    fn refresh(&mut self) {
        let now_us = self.shared.epoch.elapsed().as_micros() as u64;
        if std::mem::take(&mut self.was_busy) {
            self.counters.busy_us.add(now_us - self.now_us);
        }
        self.now_us = now_us;
        // A turn may be shorter than it takes to read a clock.
        if self.now_ms == 0 || now_us.saturating_sub(self.clock_read_us) >= CLOCK_MAX_AGE_US {
            self.now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
            self.clock_read_us = now_us;
        }
        self.refresh_snapshot();
    }

    /// Takes the directory if it has changed.
    fn refresh_snapshot(&mut self) {
        if self.shared.directory.generation() != self.snapshot.generation() {
            self.snapshot = self.shared.directory.snapshot();
            self.engine.sees(self.snapshot.generation());
        }
    }

    /// Sleeps in the kernel until a packet, a signal or a timer comes.
    fn sleep(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mark = 1 << self.index;
        let idle = shared.idle.fetch_or(mark, SeqCst) | mark;
        // A neighbour that offers looks at the marks after it has offered; so look at the offers after the mark is set.
        let offers = shared.stealers.iter().any(|stealer| !stealer.is_empty())
            || shared.inboxes[self.index].waits()
            || self.connections.as_ref().is_some_and(|connections| connections.has_work());
        if !offers && !shared.stop.load(SeqCst) && shared.directory.generation() == self.snapshot.generation() {
            let Some((timer_us, for_room)) = self.prepare_to_park() else {
                shared.idle.fetch_and(!mark, SeqCst);
                return;
            };
            let all_idle = idle.count_ones() as usize == shared.ports.len();
            let look_us = (!all_idle && shared.steal).then_some(STEAL_POLL_MS * 1000);
            let timer_us = timer_us.map(|at_us| at_us.saturating_sub(self.now_us).max(1));
            let connections = self.connections.as_deref();
            let due_us = connections.and_then(WorkerConnections::timer_us);
            let due_us = due_us.map(|at_us| at_us.saturating_sub(self.now_us).max(1));
            let timeout_us = [timer_us, look_us, due_us].into_iter().flatten().min();
            let selector = connections.map(|connections| connections.selector().as_fd());
            self.counters.sleeps.add(1);
            self.participant.offline();
            if let Err(error) = shared.ports[self.index].waiter.wait_with(timeout_us, for_room, selector) {
                tracing::error!(worker = self.index, %error, "cannot wait for packets");
                std::thread::sleep(std::time::Duration::from_millis(STEAL_POLL_MS));
            }
            self.participant.online();
        }
        shared.idle.fetch_and(!mark, SeqCst);
    }

    /// Whether it may sleep: then when its port wants to be looked at next, and whether something waits there for room.
    /// None: there is to be another turn before.
    fn prepare_to_park(&self) -> Option<(Option<u64>, bool)> {
        let Some(mut state) = self.shared.ports[self.index].open(true) else { return Some((None, false)) };
        let may = state.driver.may_sleep();
        may.then(|| (state.context.timer_us, !state.context.outbox.is_empty()))
    }

    fn count_turn(&self, done: usize) {
        self.counters.turns.add(1);
        if done == 0 {
            self.counters.idle_turns.add(1);
        }
        self.counters.invocations_live.set((self.live + self.offered.len()) as u64);
    }

    /// Takes over what the port's parts have counted.
    fn publish_port_counters(&mut self, state: &WorkerPortState) {
        let counters = &self.counters;
        counters.bursts.add(std::mem::take(&mut self.uncounted_turns) as u64);
        let driver = state.driver.counters();
        counters.packets_in.set(driver.received);
        counters.packets_out.set(driver.sent);
        counters.bytes_in.set(driver.received_bytes);
        counters.bytes_out.set(driver.sent_bytes);
        counters.packets_unsent.set(state.context.outbox.dropped());
        counters.packets_unsegmented.set(driver.unsegmented);
        counters.refusals_unsent.set(state.context.refusals.unsent());
        let endpoint = state.context.endpoint.counters();
        let at_wickets = self.connections.as_deref().map_or(0, WorkerConnections::datagrams_dropped);
        counters.packets_dropped.set(endpoint.malformed.total() + driver.truncated + at_wickets);
        counters.retransmissions.set(endpoint.retransmissions);
        counters.sessions.set(state.context.once.sessions() as u64);
        counters.sealed_sessions.set(state.context.seal.sessions() as u64);
        let seal = state.context.seal.counters();
        counters.handshakes.set(seal.handshakes);
        for (counter, (_, refused)) in counters.sealed_refused.iter().zip(seal.refused_by_reason()) {
            counter.set(refused);
        }
    }
}

//! Workers: pinned threads that serve requests, each on a port of its own.
//!
//! [`serve`] is the way of a request, top to bottom; read it first. Around it: [`admit`], the door; [`plain`], operations
//! on records; [`connections`], clients of memcached and Redis; [`tasks`], invocations; [`run_queue`], whose turn it is; [`steal`], sharing; [`intake`] and [`overload`], fairness between
//! those who send; [`port`], [`assembly`], [`sessions`], [`known`], [`kept`], what is remembered between packets.

mod admit;
mod asked;
mod assembly;
mod connections;
mod drain;
mod intake;
mod kept;
mod known;
mod listening;
mod network;
mod overload;
mod plain;
mod port;
mod queries;
mod refusals;
mod run_queue;
mod serve;
mod sessions;
mod spin;
mod start;
mod steal;
mod tasks;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crossbeam_deque::{Stealer, Worker as Deque};
use crossbeam_utils::CachePadded;
use sandstorm_net::driver::Driver;

use self::asked::Asked;
use self::connections::{Connections, Inbox, Room};
use self::intake::Intake;
use self::overload::Overload;
use self::port::{Port, PortState, Response};
use self::run_queue::RunQueue;
use self::spin::Spin;
use self::steal::Offer;
use self::tasks::{Ended, Task};
use crate::limits::{DATE_US, STEAL_LOOK_MS};
use sandstorm_catalog::{Directory, Snapshot};
use sandstorm_dialects::Facts;
use sandstorm_metrics::WorkerCounters;
use sandstorm_runtime::Engine;
use sandstorm_store::Participant;

pub use listening::{ListenAt, PortAddress};
pub use network::NetworkOptions;
pub use start::{WorkerOptions, WorkerStartError, Workers};

/// What the workers share.
struct Shared {
    ports: Vec<Port>,
    /// Where each worker's offered invocations can be taken.
    stealers: Vec<Stealer<Task>>,
    directory: Arc<Directory>,
    /// A bit for each worker that sleeps.
    idle: CachePadded<AtomicU64>,
    /// Set while a worker is in its tasks: its packets wait.
    held_up: Vec<CachePadded<AtomicBool>>,
    /// What workers send to each other's connections.
    inboxes: Vec<CachePadded<Inbox>>,
    /// How many connections there are, and may be.
    room: Room,
    facts: Facts,
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
    shared: Arc<Shared>,
    participant: Participant,
    engine: Engine,
    counters: Arc<CachePadded<WorkerCounters>>,
    snapshot: Arc<Snapshot>,
    queue: RunQueue<Task>,
    asked: Asked,
    offered: Deque<Task>,
    offer: Offer,
    ended: Vec<Ended>,
    /// Invocations in the run queue or being interleaved.
    live: usize,
    /// The server is shutting down: nothing new is run.
    stops: bool,
    /// None on a server without ports for them.
    connections: Option<Box<Connections>>,
    last_turn_was_long: bool,
    /// The polls of the last turn that had some were short.
    polls_are_short: bool,
    /// Turns with packets since the port's counts were taken over.
    uncounted: usize,
    /// Answers of this turn wait for those of short invocations.
    kept_back: bool,
    overload: Overload,
    now_us: u64,
    now_ms: u64,
    /// When `now_ms` was read.
    dated_us: u64,
    spin: Spin,
    /// When the last turn ended that found something to do.
    idle_since_us: u64,
    /// It has slept since.
    has_slept: bool,
    /// The turn before this one found something to do: it lasted until now.
    was_busy: bool,
    /// When an idle neighbour was last told to look around.
    roused_us: u64,
    /// Response buffers of a burst's messages.
    responses: Vec<Response>,
    /// Where one operation's answer is put together.
    answer: Vec<u8>,
}

impl Worker {
    /// Serves until the server stops, then finishes what is under way.
    fn run(mut self, mut intake: Intake) {
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
            self.count_port(&state);
        }
    }

    /// Takes the time, and the directory if it has changed.
    fn look_around(&mut self) {
        let now_us = self.shared.epoch.elapsed().as_micros() as u64;
        if std::mem::take(&mut self.was_busy) {
            self.counters.busy_us.add(now_us - self.now_us);
        }
        self.now_us = now_us;
        // A turn may be shorter than it takes to read a clock.
        if self.now_ms == 0 || now_us.saturating_sub(self.dated_us) >= DATE_US {
            self.now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
            self.dated_us = now_us;
        }
        self.take_directory();
    }

    /// Takes the directory if it has changed.
    fn take_directory(&mut self) {
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
            let Some((timer_us, for_room)) = self.lie_down() else {
                shared.idle.fetch_and(!mark, SeqCst);
                return;
            };
            let all_idle = idle.count_ones() as usize == shared.ports.len();
            let look_us = (!all_idle && shared.steal).then_some(STEAL_LOOK_MS * 1000);
            let timer_us = timer_us.map(|at_us| at_us.saturating_sub(self.now_us).max(1));
            let connections = self.connections.as_deref();
            let due_us = connections.and_then(Connections::timer_us);
            let due_us = due_us.map(|at_us| at_us.saturating_sub(self.now_us).max(1));
            let timeout_us = [timer_us, look_us, due_us].into_iter().flatten().min();
            let selector = connections.map(|connections| connections.selector().as_fd());
            self.counters.sleeps.add(1);
            self.participant.offline();
            if let Err(error) = shared.ports[self.index].waiter.wait_also(timeout_us, for_room, selector) {
                tracing::error!(worker = self.index, %error, "cannot wait for packets");
                std::thread::sleep(std::time::Duration::from_millis(STEAL_LOOK_MS));
            }
            self.participant.online();
        }
        shared.idle.fetch_and(!mark, SeqCst);
    }

    /// Whether it may sleep: then when its port wants to be looked at next, and whether something waits there for room. None: there is to be another turn before.
    fn lie_down(&self) -> Option<(Option<u64>, bool)> {
        let Some(mut state) = self.shared.ports[self.index].open(true) else { return Some((None, false)) };
        let may = state.driver.may_sleep();
        may.then(|| (state.desk.timer_us, !state.desk.outbox.is_empty()))
    }

    fn count_turn(&self, done: usize) {
        self.counters.turns.add(1);
        if done == 0 {
            self.counters.idle_turns.add(1);
        }
        self.counters.invocations_live.set((self.live + self.offered.len()) as u64);
    }

    /// Takes over what the port's parts have counted.
    fn count_port(&mut self, state: &PortState) {
        let counters = &self.counters;
        counters.bursts.add(std::mem::take(&mut self.uncounted) as u64);
        let driver = state.driver.counters();
        counters.packets_in.set(driver.received);
        counters.packets_out.set(driver.sent);
        counters.bytes_in.set(driver.received_bytes);
        counters.bytes_out.set(driver.sent_bytes);
        counters.packets_unsent.set(state.desk.outbox.dropped());
        counters.packets_unsegmented.set(driver.unsegmented);
        counters.refusals_unsent.set(state.desk.refusals.unsent());
        let endpoint = state.desk.endpoint.counters();
        let at_wickets = self.connections.as_deref().map_or(0, Connections::datagrams_dropped);
        counters.packets_dropped.set(endpoint.malformed.total() + driver.truncated + at_wickets);
        counters.retransmissions.set(endpoint.retransmissions);
        counters.sessions.set(state.desk.once.sessions() as u64);
        counters.sealed_sessions.set(state.desk.seal.sessions() as u64);
        let seal = state.desk.seal.counters();
        counters.handshakes.set(seal.handshakes);
        for (counter, (_, refused)) in counters.sealed_refused.iter().zip(seal.refused_by_reason()) {
            counter.set(refused);
        }
    }
}

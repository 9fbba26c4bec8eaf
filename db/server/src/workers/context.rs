//! The context that all parts of a worker share: its number, its view of the directory, its clock and its counters.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crossbeam_utils::CachePadded;
use sandstorm_catalog::DirectorySnapshot;
use sandstorm_log::PositionState;
use sandstorm_metrics::{SingleWriterCounter, WorkerCounters};
use sandstorm_net::driver::ArrivalClock;
use sandstorm_store::Participant;

use super::latency_ledger::LatencyLedger;
use super::log_watch::LogWatch;
use super::recent_tenants::RecentTenants;
use super::shared::SharedWorkerState;
use super::slow::SlowAnswer;
use super::turn_history::TurnHistory;
use crate::limits::{CLOCK_MAX_AGE_US, SLOW_PER_TURN};
use sandstorm_accounts::{SlowCall, SlowRequest};

/// The context of a worker: see the head of this file.
pub(super) struct WorkerContext {
    /// The worker's number, which is that of its port, too.
    pub(super) index: usize,
    pub(super) shared: Arc<SharedWorkerState>,
    pub(super) participant: Participant,
    pub(super) counters: Arc<CachePadded<WorkerCounters>>,
    pub(super) snapshot: Arc<DirectorySnapshot>,
    pub(super) clock: WorkerClock,
    pub(super) recent_tenants: RecentTenants,
    /// Requests that were answered in this turn.
    pub(super) answered: LatencyLedger,
    /// Whose invocations were polled lately.
    pub(super) turns: RefCell<TurnHistory>,
    /// The log that answers wait for.
    pub(super) log: LogWatch,
    /// Whether the server is shutting down: nothing new is run.
    pub(super) is_draining: bool,
}

/// The time of a turn of the worker's loop. It stands still while the turn lasts.
pub(super) struct WorkerClock {
    /// Microseconds since the workers started.
    pub(super) now_us: u64,
    /// The same in nanoseconds.
    pub(super) now_ns: u64,
    /// Unix time.
    pub(super) now_ms: u64,
    /// What the time was when the kernel received something.
    pub(super) arrivals: ArrivalClock,
    /// When `now_ms` was read.
    unix_time_read_us: u64,
    epoch: Instant,
}

impl WorkerClock {
    pub(super) fn new(epoch: Instant) -> WorkerClock {
        let arrivals = ArrivalClock::default();
        WorkerClock { now_us: 0, now_ns: 0, now_ms: 0, arrivals, unix_time_read_us: 0, epoch }
    }

    /// Reads the clock within a turn: nanoseconds since the workers started.
    #[inline]
    pub(super) fn read_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Takes the time. Returns the microseconds since it was last taken.
    pub(super) fn advance(&mut self) -> u64 {
        self.now_ns = self.read_ns();
        let now_us = self.now_ns / 1000;
        let passed_us = now_us - self.now_us;
        self.now_us = now_us;
        // A turn may be shorter than it takes to read a clock.
        if self.now_ms == 0 || now_us.saturating_sub(self.unix_time_read_us) >= CLOCK_MAX_AGE_US {
            // What was read when the turn began may be some time ago; the two readings should not be.
            let now_ns = self.read_ns();
            let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
            self.arrivals.note(now_ns, unix_ns);
            self.now_ms = unix_ns / 1_000_000;
            self.unix_time_read_us = now_us;
        }
        passed_us
    }
}

impl WorkerContext {
    /// Whether the log is on the disk up to a position.
    #[inline]
    pub(super) fn position_state(&self, position: u64) -> PositionState {
        self.log.state_of(&self.shared, position)
    }

    /// Has the log's thread wake this worker for answers to connections, and write up to a position.
    pub(super) fn mark_holding_connections(&self, position: u64) {
        self.counters.answers_delayed.add(1);
        self.log.want(position);
        let bit = 1 << self.index;
        if self.shared.holding_connections.load(Relaxed) & bit == 0 {
            self.shared.holding_connections.fetch_or(bit, SeqCst);
        }
    }

    /// Notes that the answers of this turn so far are ready, and only have to be sent.
    #[inline]
    pub(super) fn note_ready(&mut self) {
        let clock = &self.clock;
        self.answered.note_ready(|| clock.read_ns());
    }

    /// Counts the requests that were answered since the last call: their answers have left by `now_ns`.
    #[inline]
    pub(super) fn settle_answered(&mut self, now_ns: u64) {
        if !self.answered.is_empty() {
            let turns = self.turns.get_mut();
            turns.begin(now_ns);
            let note = |tenant, count| turns.note_requests(tenant, count);
            self.answered.settle(&self.snapshot, self.index, now_ns, note);
            if self.answered.has_slow() {
                self.keep_slow(now_ns);
            }
            self.answered.slow_ns = self.shared.properties.metrics.slow.ns();
        }
    }
}

impl WorkerContext {
    /// Keeps the slow requests among those that were answered.
    #[cold]
    fn keep_slow(&mut self, now_ns: u64) {
        let slow = self.answered.take_slow();
        for (number, answered) in slow.iter().enumerate() {
            if let Some(view) = self.snapshot.tenant(answered.tenant) {
                let slow = &view.tenant.usage.slow_requests;
                if number >= SLOW_PER_TURN {
                    slow.leave_out(answered.count);
                } else if slow.admit(now_ns, answered.count) {
                    slow.keep(self.slow_request(answered, now_ns, None));
                }
            }
        }
    }

    /// A slow request, with whose turns there were while it waited.
    #[cold]
    pub(super) fn slow_request(&self, answered: &SlowAnswer, now_ns: u64, call: Option<SlowCall>) -> SlowRequest {
        let SlowAnswer { class, subject, count, waiting_ns, service_ns, waits, .. } = *answered;
        let (turns, known_ns) = self.turns.borrow().since(now_ns.saturating_sub(waiting_ns + service_ns), now_ns);
        SlowRequest {
            id: self.shared.properties.metrics.slow.next_id(),
            at_ms: self.clock.now_ms,
            class,
            subject,
            count,
            waiting_ns,
            service_ns,
            waits,
            worker: self.index as u32,
            call,
            turns,
            known_ns: now_ns.saturating_sub(known_ns),
        }
    }
}

/// Adds one to a counter of a family.
pub(super) fn count(family: &[SingleWriterCounter], index: usize) {
    if let Some(counter) = family.get(index) {
        counter.add(1);
    }
}

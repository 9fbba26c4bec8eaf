//! The CPU cost of polls, and the invocations that are under way for too long.

use super::clock::{self, TickLength};
use super::invocation::{InvocationStage, InvocationState};
use crate::limits::{
    CHARGE_CHECK_US, CPU_MARK_AGE_US, LIFE_LATE_POLLS, LIFE_MIN_US, LIFE_PER_TOTAL, RECLAIM_PRESSURE_LATE_POLLS,
    RECLAIM_PRESSURE_LIFE_US,
};
use sandstorm_extension::KillCause;
use sandstorm_store::Participant;

/// The reason why an invocation is under way for longer than it may be.
pub(super) struct OverdueRule {
    /// Polls that it still has.
    pub(super) late_polls: u32,
    pub(super) cause: KillCause,
    pub(super) text: &'static str,
}

/// The rule at any time.
const LIFETIME_RULE: OverdueRule = OverdueRule {
    late_polls: LIFE_LATE_POLLS,
    cause: KillCause::TotalBudget,
    text: "the invocation was under way for 100 times the CPU time that it may use, and for a second at least",
};

/// The rule while memory waits for it.
const RECLAIM_PRESSURE_RULE: OverdueRule = OverdueRule {
    late_polls: RECLAIM_PRESSURE_LATE_POLLS,
    cause: KillCause::ReclaimPressure,
    text: "the invocation was under way for more than 50 ms, and its reads held up memory reclamation; retry",
};

/// The rule once the server waits no longer for calls that are under way.
const STOP_RULE: OverdueRule =
    OverdueRule { late_polls: 0, cause: KillCause::Unloaded, text: "the server stopped while the invocation ran" };

/// The rule for the calls of a deleted tenant.
const DELETED_RULE: OverdueRule =
    OverdueRule { late_polls: 0, cause: KillCause::Unloaded, text: "the tenant was deleted while the invocation ran" };

/// Charges polls: by the processor's counter, checked against the worker's CPU clock where much is at stake.
#[derive(Debug)]
pub(super) struct CpuMeter {
    tick: TickLength,
    clock: libc::clockid_t,
    /// The counter at the start of the current poll or, where `fresh`, at the end of the last one.
    pub(super) ticks: u64,
    fresh: bool,
    /// A reading of the CPU clock, and of the counter at that moment.
    mark_ns: u64,
    mark_ticks: u64,
    mark_age_ticks: u64,
    check_ticks: u64,
    is_stopping: bool,
}

impl CpuMeter {
    pub(super) fn new(clock: libc::clockid_t) -> CpuMeter {
        let tick = TickLength::measured();
        CpuMeter {
            tick,
            clock,
            ticks: 0,
            fresh: false,
            mark_ns: 0,
            mark_ticks: 0,
            mark_age_ticks: tick.ticks(CPU_MARK_AGE_US * 1000),
            check_ticks: tick.ticks(CHARGE_CHECK_US * 1000),
            is_stopping: false,
        }
    }

    /// From now on, what is under way for 50 ms is overdue.
    pub(super) fn stop_calls(&mut self) {
        self.is_stopping = true;
    }

    pub(super) fn interrupted(&mut self) {
        self.fresh = false;
    }

    /// Returns whether an invocation is under way for longer than it may be, by the last reading of the counter. It
    /// blocks the reclamation of records meanwhile, even if it only yields and so uses next to nothing of its CPU time.
    #[inline]
    pub(super) fn overdue(&self, body: &InvocationState, participant: &Participant) -> Option<OverdueRule> {
        if !matches!(body.stage, InvocationStage::Pending | InvocationStage::Preempted | InvocationStage::Retrying) {
            return None;
        }
        let age_ns = self.tick.ns(self.ticks.saturating_sub(body.first_poll_ticks));
        if age_ns <= RECLAIM_PRESSURE_LIFE_US * 1000 {
            return None;
        }
        let life_ns = body.total_ns.saturating_mul(LIFE_PER_TOTAL).max(LIFE_MIN_US * 1000);
        if age_ns > life_ns {
            Some(LIFETIME_RULE)
        } else if self.is_stopping {
            Some(STOP_RULE)
        } else if body.refs.as_ref().is_some_and(|refs| refs.view.tenant.usage.is_deleted()) {
            Some(DELETED_RULE)
        } else {
            participant.epochs().is_crowded().then_some(RECLAIM_PRESSURE_RULE)
        }
    }

    /// Begins a poll; returns the counter.
    #[inline]
    pub(super) fn start(&mut self) -> u64 {
        if !self.fresh {
            self.ticks = clock::ticks();
        }
        // A charge is never more than the CPU time since the mark: with an old mark that would say nothing.
        if self.ticks.wrapping_sub(self.mark_ticks) > self.mark_age_ticks {
            self.mark();
        }
        self.ticks
    }

    #[cold]
    fn mark(&mut self) {
        self.mark_ns = clock::cpu_ns(self.clock);
        self.mark_ticks = clock::ticks();
        self.ticks = self.mark_ticks;
    }

    /// Ends the poll; returns its cost, in nanoseconds, and whether that had to be checked.
    #[inline]
    pub(super) fn stop(&mut self) -> (u64, bool) {
        let now = clock::ticks();
        let passed = now.saturating_sub(self.ticks);
        self.ticks = now;
        self.fresh = true;
        let charge_ns = self.tick.ns(passed);
        if passed <= self.check_ticks { (charge_ns, false) } else { (self.check(charge_ns), true) }
    }

    #[cold]
    fn check(&mut self, charge_ns: u64) -> u64 {
        let before_ns = self.mark_ns;
        self.mark();
        charge_ns.min(self.mark_ns.saturating_sub(before_ns))
    }
}

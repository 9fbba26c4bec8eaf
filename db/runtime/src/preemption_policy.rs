//! When the watchdog asks for a poll to be switched out: a function of what was read, without clocks of its own.
//!
//! A switch costs an innocent poll a few microseconds and nothing else, so the time since the poll began is enough to
//! go by; whether its thread had a processor all that time does not matter. What an invocation has used, and when it is
//! over its total, is for its engine to say, by the thread's CPU clock.

use crate::limits::{SWITCH_LATE_US, WATCHDOG_MIN_PERIOD_US, WATCHDOG_PERIOD_US};

/// What one look at a worker that runs tenants' code has read; all of it is of the same poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollReading {
    /// Time since the poll began, nanoseconds.
    pub(super) elapsed_ns: u64,
    /// What it may take, nanoseconds.
    pub(super) limit_ns: u64,
    /// The last request is still unanswered.
    pub(super) asked: bool,
    /// It is in a host call, which a switch waits for.
    pub(super) in_call: bool,
}

/// What to do about a poll now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreemptionAction {
    Wait,
    /// Ask for it to be switched out.
    Preempt,
}

/// What to do now, and in how many microseconds to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreemptionDecision {
    pub(super) act: PreemptionAction,
    pub(super) next_us: u64,
}

/// What is remembered of one worker's poll between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PreemptionPolicy {
    sequence: u64,
    /// How long the poll had run when it was last asked for, nanoseconds.
    requested_ns: Option<u64>,
    /// Looks for which more of the same is expected: long polls come in rows.
    expecting: u32,
}

/// Looks after a request, at each of which the worker may be between two long polls.
const ALERT_LOOKS: u32 = 16;

/// The longest that a poll is charged for which was not ended, nanoseconds: it would have been switched out before, so
/// what is measured above it is time that the hypervisor took from the processor.
pub(super) fn max_charge_ns(slice_ns: u64) -> u64 {
    slice_ns.saturating_add(SWITCH_LATE_US * 1000)
}

impl PreemptionPolicy {
    /// Notes which poll there is; whether it is another one than at the last look.
    pub(super) fn sees(&mut self, sequence: u64) -> bool {
        let moved = sequence != self.sequence;
        if moved {
            (self.sequence, self.requested_ns) = (sequence, None);
        }
        moved
    }

    /// The poll under judgement.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Judges the poll by a reading of it.
    pub(super) fn decide(&self, reading: &PollReading) -> PreemptionDecision {
        let PollReading { elapsed_ns, limit_ns, asked, in_call } = *reading;
        // One that could not be switched out is asked again after as long; one that was not yet reached is not: signals
        // would queue up for a worker that has no processor. The end of a host call takes what was asked during it.
        let due_ns = match self.requested_ns {
            None => limit_ns,
            Some(_) if asked || in_call => u64::MAX,
            Some(requested_ns) => requested_ns.saturating_add(limit_ns.max(WATCHDOG_PERIOD_US * 1000)),
        };
        let left_us = due_ns.saturating_sub(elapsed_ns) / 1000;
        PreemptionDecision {
            act: if elapsed_ns >= due_ns { PreemptionAction::Preempt } else { PreemptionAction::Wait },
            next_us: left_us.clamp(WATCHDOG_MIN_PERIOD_US, WATCHDOG_PERIOD_US),
        }
    }

    /// No tenant's code runs: in how many microseconds to look again. Where the last polls were long, the next one,
    /// which may begin right after this look, is not to run for a whole period beyond its limit.
    pub(super) fn rests(&mut self, limit_ns: u64) -> u64 {
        if self.expecting == 0 {
            return WATCHDOG_PERIOD_US;
        }
        self.expecting -= 1;
        (limit_ns / 2000).clamp(WATCHDOG_MIN_PERIOD_US, WATCHDOG_PERIOD_US)
    }

    /// Remembers that the poll was asked for.
    pub(super) fn note_requested(&mut self, reading: &PollReading) {
        self.expecting = ALERT_LOOKS;
        self.requested_ns = Some(reading.elapsed_ns);
    }
}

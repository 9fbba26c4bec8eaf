//! The watchdog's decision to request a switch of a poll: a function of its readings, without clocks of its own.
//!
//! A switch costs an innocent poll a few microseconds and nothing else, so the time since the poll began is a good
//! enough measure. Whether its thread had a processor all that time does not matter. The engine decides what an
//! invocation has used, and when it is over its total, by the thread's CPU clock.

use crate::limits::{SWITCH_LATE_US, WATCHDOG_MIN_PERIOD_US, WATCHDOG_PERIOD_US};

/// The readings of one look at a worker that runs tenants' code; all of them are of the same poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollReading {
    /// Time since the poll began, nanoseconds.
    pub(super) elapsed_ns: u64,
    /// The poll's limit, nanoseconds.
    pub(super) limit_ns: u64,
    /// The last request is still unanswered.
    pub(super) asked: bool,
    /// The poll is in a host call, which a switch waits for.
    pub(super) in_call: bool,
}

/// The action on a poll now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreemptionAction {
    Wait,
    /// Request its switch.
    Preempt,
}

/// The action now, and the microseconds until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreemptionDecision {
    pub(super) act: PreemptionAction,
    pub(super) next_us: u64,
}

/// The state that is kept of one worker's poll between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PreemptionPolicy {
    sequence: u64,
    /// The poll's run time at the last request, nanoseconds.
    requested_ns: Option<u64>,
    /// Looks for which further long polls are expected: they come in rows.
    expecting: u32,
}

/// Looks after a request, at each of which the worker may be between two long polls.
const ALERT_LOOKS: u32 = 16;

/// The maximum charge of a poll that was not ended, nanoseconds. It would have been switched out before, so time
/// measured beyond it is time that the hypervisor took from the processor.
pub(super) fn max_charge_ns(slice_ns: u64) -> u64 {
    slice_ns.saturating_add(SWITCH_LATE_US * 1000)
}

impl PreemptionPolicy {
    /// Notes the current poll; returns whether it differs from that of the last look.
    pub(super) fn sees(&mut self, sequence: u64) -> bool {
        let moved = sequence != self.sequence;
        if moved {
            (self.sequence, self.requested_ns) = (sequence, None);
        }
        moved
    }

    /// Returns the poll under judgement.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Judges the poll by a reading of it.
    pub(super) fn decide(&self, reading: &PollReading) -> PreemptionDecision {
        let PollReading { elapsed_ns, limit_ns, asked, in_call } = *reading;
        // A poll that could not be switched out is asked again after as long. A poll that was not yet reached is not:
        // signals would queue up for a worker that has no processor. The end of a host call takes a request that came
        // during it.
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

    /// Returns the microseconds until the next look while no tenant's code runs. Where the last polls were long, the
    /// next one may begin right after this look, and must not run for a whole period beyond its limit.
    pub(super) fn rests(&mut self, limit_ns: u64) -> u64 {
        if self.expecting == 0 {
            return WATCHDOG_PERIOD_US;
        }
        self.expecting -= 1;
        (limit_ns / 2000).clamp(WATCHDOG_MIN_PERIOD_US, WATCHDOG_PERIOD_US)
    }

    /// Notes the request to the poll.
    pub(super) fn note_requested(&mut self, reading: &PollReading) {
        self.expecting = ALERT_LOOKS;
        self.requested_ns = Some(reading.elapsed_ns);
    }
}

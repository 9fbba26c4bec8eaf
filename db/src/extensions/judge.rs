//! When the watchdog probes a poll and when it ends it: a function of what was read, without clocks of its own.
//!
//! A thread's CPU clock goes on while the hypervisor has taken its processor away, so the clock alone condemns nobody. A
//! poll that nears its limit is probed: the signal's handler acknowledges that the poll is still running, which it can
//! only do once the processor is back. What has ended by microseconds later was innocent; only a poll that goes on
//! computing after the acknowledgement, and is past its limit, is ended.

use crate::limits::{
    PROBE_AT_PER_CENT, PROBE_GRACE_MIN_US, PROBE_GRACE_PER_CENT, WATCHDOG_MAX_PERIOD_US, WATCHDOG_MIN_PERIOD_US,
    WATCHDOG_RESEND_US,
};

/// What one look at a worker that runs tenants' code has read; all of it is of the same poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The worker's CPU clock, nanoseconds.
    pub(super) cpu_ns: u64,
    /// CPU time that the poll may take, nanoseconds.
    pub(super) limit_ns: u64,
    /// The worker's CPU clock when the poll acknowledged a probe.
    pub(super) acknowledged_ns: Option<u64>,
    /// It is in a host call, which a kill waits for.
    pub(super) in_call: bool,
}

/// What to do about a poll now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Wait,
    /// Ask for a sign of life.
    Probe,
    /// End it.
    Kill,
}

/// What to do now, and in how many microseconds to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) act: Act,
    pub(super) next_us: u64,
}

/// A signal that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// The worker's CPU clock at that time.
    at_ns: u64,
    /// How often it was sent again.
    again: u32,
}

/// What is remembered of one worker's poll between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Judge {
    sequence: u64,
    /// The worker's CPU clock when the poll was first seen running.
    since_ns: Option<u64>,
    probe: Option<Sent>,
    kill: Option<Sent>,
}

/// Microseconds between two looks at a poll with that limit.
pub(super) fn period_us(limit_ns: u64) -> u64 {
    (limit_ns / 4000).clamp(WATCHDOG_MIN_PERIOD_US, WATCHDOG_MAX_PERIOD_US)
}

/// The longest that a poll which returned can have run, nanoseconds: past that it would have been ended, so what is
/// measured above it is time that others took from the processor.
pub(super) fn longest_ns(slice_ns: u64) -> u64 {
    slice_ns.saturating_add(period_us(slice_ns) * 1000)
}

/// CPU time that a poll may still take after it acknowledged a probe.
fn grace_ns(limit_ns: u64) -> u64 {
    (limit_ns / 100 * PROBE_GRACE_PER_CENT).max(PROBE_GRACE_MIN_US * 1000)
}

impl Judge {
    /// Notes which poll there is; whether it is another one than at the last look.
    pub(super) fn sees(&mut self, sequence: u64) -> bool {
        let moved = sequence != self.sequence;
        if moved {
            *self = Judge { sequence, ..Judge::default() };
        }
        moved
    }

    /// The poll under judgement.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether a kill of the poll has been sent.
    pub(super) fn has_killed(&self) -> bool {
        self.kill.is_some()
    }

    /// Judges the poll by a reading of it.
    pub(super) fn decide(&self, reading: &Reading) -> Verdict {
        let Reading { cpu_ns, limit_ns, .. } = *reading;
        let passed_ns = cpu_ns.saturating_sub(self.since_ns.unwrap_or(cpu_ns));
        let wait = |ns: u64| Verdict {
            act: Act::Wait,
            next_us: (ns / 1000).clamp(WATCHDOG_MIN_PERIOD_US, period_us(limit_ns)),
        };
        let send = |act, last: Option<Sent>| match last {
            Some(sent) if !sent.is_overdue(cpu_ns) => wait(0),
            _ => Verdict { act, next_us: WATCHDOG_MIN_PERIOD_US },
        };
        let probe_at_ns = limit_ns / 100 * PROBE_AT_PER_CENT;
        if passed_ns < probe_at_ns {
            return wait(probe_at_ns - passed_ns);
        }
        let Some(acknowledged_ns) = reading.acknowledged_ns else {
            return send(Act::Probe, self.probe);
        };
        let limit_in_ns = limit_ns.saturating_sub(passed_ns);
        let grace_in_ns = grace_ns(limit_ns).saturating_sub(cpu_ns.saturating_sub(acknowledged_ns));
        match limit_in_ns.max(grace_in_ns) {
            // The call's end takes the kill that was sent.
            0 if self.has_killed() && reading.in_call => wait(0),
            0 => send(Act::Kill, self.kill),
            ns => wait(ns),
        }
    }

    /// Remembers that the poll was seen running, and what was done about it.
    pub(super) fn note(&mut self, reading: &Reading, sent: Act) {
        self.since_ns.get_or_insert(reading.cpu_ns);
        let slot = match sent {
            Act::Wait => return,
            Act::Probe => &mut self.probe,
            Act::Kill => &mut self.kill,
        };
        let again = slot.map_or(0, |last| last.again + 1);
        *slot = Some(Sent { at_ns: reading.cpu_ns, again });
    }
}

impl Sent {
    /// Whether it is time to send again. Each wait is twice the one before: signals queue up for a worker that has no
    /// processor.
    fn is_overdue(self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) >= (WATCHDOG_RESEND_US * 1000) << self.again.min(20)
    }
}

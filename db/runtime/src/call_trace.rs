//! What an invocation did and waited for: noted between its polls, read at its end.

use super::clock::{TickLength, ticks};
use super::invocation::{InvocationHandle, InvocationStage, InvocationState};
use super::invocation_trace::{ColdWaits, InvocationTrace};
use super::pause_sums::{PauseKind, PauseSums};
use sandstorm_store::{LockWaits, Participant, ShownPosition};

impl InvocationState {
    /// Notes that a poll begins, by the processor's counter.
    #[inline]
    pub(super) fn end_pause(&mut self, now_ticks: u64) {
        if self.stage == InvocationStage::Begun {
            self.pause.begun_ticks = now_ticks;
        }
        if self.pause.since_ticks != 0 {
            self.pauses.note(self.pause.kind, now_ticks.saturating_sub(self.pause.since_ticks));
            (self.pause.since_ticks, self.pause.has_any) = (0, true);
        }
        self.pause.has_asked = false;
    }

    /// Notes that a poll has ended, and the invocation has not.
    #[inline]
    pub(super) fn begin_pause(&mut self, now_ticks: u64) {
        let kind = match self.stage {
            InvocationStage::Preempted => PauseKind::Switched,
            InvocationStage::Retrying => PauseKind::Retry,
            _ if self.shown.has_cold() => PauseKind::Cold,
            _ if self.awaits_call() => PauseKind::Call,
            _ if self.pause.has_asked && self.abi.interleave != 0 => PauseKind::Read,
            _ => PauseKind::Yield,
        };
        self.pause_for(kind, now_ticks);
    }

    /// Notes that it is not polled from now on, and why.
    pub(super) fn pause_for(&mut self, kind: PauseKind, now_ticks: u64) {
        if kind == PauseKind::Retry {
            (self.pauses.vain_until_ticks, self.pause.has_any) = (now_ticks, true);
        }
        (self.pause.kind, self.pause.since_ticks) = (kind, now_ticks);
    }

    /// Whether it has asked for a call of another extension, or was refused one.
    fn awaits_call(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.requested.is_some() || calls.ended.is_some())
    }

    /// Forgets the pauses of the invocation that was here before.
    #[inline]
    pub(super) fn forget_pauses(&mut self) {
        if self.pause.has_any {
            self.pauses = PauseSums::default();
        }
        self.pause = Default::default();
    }

    /// Hands its pause over to the invocation that it has called: that is polled from now on.
    pub(super) fn hand_pause_to(&mut self, callee: &mut InvocationState) {
        (callee.pause.kind, callee.pause.since_ticks) = (PauseKind::Call, self.pause.since_ticks);
        self.pause.since_ticks = 0;
    }

    /// Takes over what an invocation has waited for that it has called, and that has ended.
    pub(super) fn take_waits_of(&mut self, callee: &InvocationState) {
        self.pauses.add(&callee.pauses);
        self.pause.has_any |= callee.pause.has_any;
        if callee.shown.has_lock_waits() {
            self.shown.note_lock_waits(callee.shown.lock_waits());
        }
    }

    /// Takes over what a read of it has seen, and waited for.
    pub(super) fn take_shown(&self, shown: &ShownPosition) {
        self.shown.raise(shown.get());
        if shown.has_lock_waits() {
            self.shown.note_lock_waits(shown.take_lock_waits());
        }
    }

    /// Ends a poll: takes over how its thread has waited for others meanwhile.
    #[inline]
    pub(super) fn take_lock_waits(&mut self, participant: &Participant) {
        if participant.shown().has_lock_waits() {
            self.shown.note_lock_waits(participant.shown().take_lock_waits());
        }
    }
}

impl InvocationHandle {
    /// Returns what it did, for the explanation of a slow call.
    pub fn trace(&self) -> InvocationTrace {
        let body = self.body();
        let InvocationState { polls, switches, reads, read_bytes, cold, first_poll_ticks, log_call, .. } = *body;
        let ColdWaits { waits: cold_waits, disk_ns, backing_ns } = cold;
        let calls = body.calls.as_ref();
        let (nested_calls, nested_cpu_ns) = calls.map_or((0, 0), |calls| (calls.begun, calls.callee_ns));
        let (now_ticks, tick) = (ticks(), TickLength::measured());
        let since = |then: u64| if polls == 0 { 0 } else { tick.ns(now_ticks.saturating_sub(then)) };
        let (sums, locks) = self.waits();
        InvocationTrace {
            polls,
            switches,
            reads,
            read_bytes,
            since_begun_ns: since(body.pause.begun_ticks),
            since_first_poll_ns: since(first_poll_ticks),
            cold_waits,
            disk_ns,
            backing_ns,
            nested_calls,
            nested_cpu_ns,
            pauses: sums.read(body.pause.begun_ticks, locks),
            log_call,
        }
    }

    /// Its pauses and waits, with those of the invocation that it has called and that has not ended.
    fn waits(&self) -> (PauseSums, LockWaits) {
        let body = self.body();
        let (mut sums, mut locks) = (body.pauses, body.shown.lock_waits());
        if let Some(callee) = body.calls.as_ref().and_then(|calls| calls.callee.as_ref()) {
            let (of_callee, locks_of_callee) = callee.waits();
            sums.add(&of_callee);
            locks.add(locks_of_callee);
        }
        (sums, locks)
    }
}

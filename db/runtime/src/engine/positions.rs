//! Where calls under way are, when a client asks: in which of the extensions that have called each other, at which
//! line, and what they wait for. A switched-out call is found on its stack. A call that waits in an `.await` has no
//! stack. If it waits for records it is polled once more, as its future allows at any time, and its stack is read in
//! the host's function that reports the wait. A call that waits for another extension is not polled: the callee may
//! end, fail or make it start over, for which none of its code may run.
//!
//! Such a poll is charged to the call itself, which may make progress in it as in any other.

use std::sync::Arc;

use sandstorm_accounts::CodePlace;
use sandstorm_extension::LoadedExtension;
use sandstorm_store::Participant;

use super::{Engine, PollOutcome};
use crate::clock::{TickLength, ticks};
use crate::code_look::CodeLook;
use crate::invocation::{InvocationHandle, InvocationStage};
use crate::kill_trace::parked_places;

/// What a call does, in one of the extensions that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallActivity {
    /// It has not begun, or is to begin anew.
    New,
    /// It has yielded, and waits for its next turn.
    Ready,
    /// It computed past its slice, and waits for its next turn.
    SwitchedOut,
    /// It waits for records that are not in memory.
    AwaitsRecords,
    /// It waits for the extension that it has called.
    AwaitsCall,
}

/// One of the extensions that a call is in.
#[derive(Clone, Debug)]
pub struct CallLevel {
    /// The extension.
    pub extension: Arc<LoadedExtension>,
    /// What its code does.
    pub activity: CallActivity,
    /// Whether it was polled, or its stack walked, to find out where it is.
    pub is_looked_at: bool,
    /// Where it is, the innermost function first; none: not known, or not asked for.
    pub places: Vec<CodePlace>,
}

/// What is asked about calls.
#[derive(Clone, Copy, Debug)]
pub struct PositionQuery {
    /// Unix time, milliseconds.
    pub now_ms: u64,
    /// Whether the call waits for records that are not in memory.
    pub is_cold: bool,
    /// Whether to find out where it is.
    pub with_places: bool,
}

impl Engine {
    /// Tells where an invocation is, the extension that was called last first. With places it may have been polled
    /// meanwhile: then it may have met cold records ([`InvocationHandle::take_cold`]), or have ended, which the next
    /// poll says.
    #[cold]
    pub fn positions(
        &mut self,
        participant: &Participant,
        invocation: &mut InvocationHandle,
        query: PositionQuery,
    ) -> Vec<CallLevel> {
        let mut levels = Vec::new();
        let callee = invocation.body_mut().calls.as_mut().and_then(|calls| calls.callee.take());
        let awaits_call = callee.is_some();
        if let Some(mut callee) = callee {
            let before_ns = callee.cpu_ns();
            levels = self.positions(participant, &mut callee, query);
            let used_ns = callee.cpu_ns() - before_ns;
            let body = invocation.body_mut();
            body.spent_ns += used_ns;
            let calls = body.calls.get_or_insert_default();
            (calls.callee_ns, calls.callee) = (calls.callee_ns + used_ns, Some(callee));
        }
        let activity = match invocation.body().stage {
            _ if awaits_call => CallActivity::AwaitsCall,
            InvocationStage::Begun | InvocationStage::Retrying => CallActivity::New,
            InvocationStage::Preempted => CallActivity::SwitchedOut,
            InvocationStage::Pending if query.is_cold => CallActivity::AwaitsRecords,
            InvocationStage::Pending | InvocationStage::Ended(_) => CallActivity::Ready,
        };
        let Some(extension) = invocation.extension().cloned() else { return levels };
        let is_parked = invocation.body().stage == InvocationStage::Preempted;
        // A poll of one that has lived too long counts against it, and ends it soon. That of one which waits for its
        // callee may be switched out, and would survive if the callee has it begin anew.
        let may_be_polled =
            activity == CallActivity::AwaitsRecords && self.meter.overdue(invocation.body(), participant).is_none();
        let is_looked_at = query.with_places && (is_parked || may_be_polled);
        let places = match is_looked_at {
            false => Vec::new(),
            true if is_parked => parked_places(invocation.body()),
            true => self.look(participant, invocation, query.now_ms),
        };
        levels.push(CallLevel { extension, activity, is_looked_at, places });
        levels
    }

    /// Polls an invocation that waits for records, to see where. It has no callee.
    fn look(&mut self, participant: &Participant, invocation: &mut InvocationHandle, now_ms: u64) -> Vec<CodePlace> {
        // What was done since the last poll is not the tenant's.
        self.meter.interrupted();
        invocation.body_mut().notes.look = Some(Box::new(CodeLook::new(self.side.block())));
        let polled = self.poll_own(participant, invocation, now_ms, false);
        let look = invocation.body_mut().notes.look.take();
        if polled == PollOutcome::Pending {
            self.begin_requested(invocation);
        }
        let body = invocation.body();
        match (polled, look, &body.refs) {
            (PollOutcome::Pending, Some(look), Some(held)) => look.places(held.extension.library.code()),
            (PollOutcome::Preempted, ..) => parked_places(body),
            _ => Vec::new(),
        }
    }
}

impl InvocationHandle {
    /// For how long it has not been polled, nanoseconds, or the extension that it has called; 0: it was never polled.
    pub fn paused_ns(&self) -> u64 {
        let body = self.body();
        if let Some(callee) = body.calls.as_ref().and_then(|calls| calls.callee.as_ref()) {
            return callee.paused_ns();
        }
        match body.pause.since_ticks {
            0 => 0,
            since => TickLength::measured().ns(ticks().saturating_sub(since)),
        }
    }
}

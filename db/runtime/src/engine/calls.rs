//! Invocations that other invocations have called: the engine polls the callee in its caller's turns, on the caller's
//! budget.
//!
//! Guarantees: a caller is not polled while its callee runs, except to look where it waits, and gets nothing then; a
//! callee is finished before its caller.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::sync::Arc;

use sandstorm_accounts::KillRecord;
use sandstorm_accounts::limits::INVOCATION_UNITS;
use sandstorm_api::abi::{self, STATUS_KILLED, STATUS_OUT_OF_MEMORY, STATUS_TOO_LARGE};
use sandstorm_api::limits::{CALL_BYTES, TRANSACTION_TRIES};
use sandstorm_api::typed::callee::CalleeName;
use sandstorm_extension::{Budget, InvocationOutcome, KillCause, callee_arguments};
use sandstorm_store::Participant;

use super::poll_steps::kill;
use super::{Engine, PollOutcome};
use crate::begin_error::BeginError;
use crate::clock::{TickLength, ticks};
use crate::invocation::nested_calls::{EndedNestedCall, RequestedCall};
use crate::invocation::{InvocationHandle, InvocationStage, InvocationState};
use crate::pause_sums::PauseKind;

/// CPU time below which a caller's budget counts as used up: a callee's is counted in whole microseconds.
const BUDGET_REST_NS: u64 = 1_000;

/// Whether the latencies of callees are counted: always, but for a build that tells what measuring costs
/// (`scripts/compare`).
const IS_OBSERVED: bool = !cfg!(unobserved);

/// The text of an invocation whose transaction, and those of the extensions that it called, were tried too often.
const CONTENDED_TEXT: &[u8] = b"the transaction met the writes of others each time; nothing was written: call again";

impl Engine {
    /// Polls an invocation that has called others, or was called: its callee, if there is one.
    pub(super) fn poll_in_call(
        &mut self,
        participant: &Participant,
        invocation: &mut InvocationHandle,
        now_ms: u64,
        interleave: bool,
    ) -> PollOutcome {
        // SAFETY: held alone. The callee is another invocation.
        let body = unsafe { invocation.0.as_mut() };
        let Some(mut callee) = body.calls.as_mut().and_then(|calls| calls.callee.take()) else {
            let polled = self.poll_own(participant, invocation, now_ms, interleave);
            if polled == PollOutcome::Pending {
                self.begin_requested(invocation);
            }
            return polled;
        };
        // As its caller, it neither yields nor reads by an old clock where a conflict has begun all anew.
        let again = body.transaction.conflicts != 0;
        let now_ms = if again { now_ms.max(participant.epochs().latest_commit_ms()) } else { now_ms };
        let before_ns = callee.cpu_ns();
        let polled = self.poll(participant, &mut callee, now_ms, interleave && !again);
        let used_ns = callee.cpu_ns() - before_ns;
        body.spent_ns += used_ns;
        body.polls = body.polls.wrapping_add(1);
        body.switches = body.switches.wrapping_add(u32::from(polled == PollOutcome::Preempted));
        let calls = body.calls.get_or_insert_default();
        calls.callee_ns += used_ns;
        if matches!(polled, PollOutcome::Pending | PollOutcome::Preempted) && !callee.has_conflict() {
            calls.callee = Some(callee);
            return polled;
        }
        self.end_callee(participant, body, callee, polled, now_ms)
    }

    /// Begins the call that an invocation has asked for, if any.
    pub(super) fn begin_requested(&mut self, invocation: &mut InvocationHandle) {
        // SAFETY: held alone.
        let body = unsafe { invocation.0.as_mut() };
        let Some(request) = body.calls.as_mut().and_then(|calls| calls.requested.take()) else { return };
        let RequestedCall { extension, args, notes, .. } = match with_fingerprint(body, request) {
            Ok(request) => request,
            Err(refused) => {
                body.calls.get_or_insert_default().ended = Some(refused);
                return;
            }
        };
        let Some(view) = body.refs.as_ref().map(|refs| Arc::clone(&refs.view)) else { return };
        let own = view.budget(&extension);
        let budget = Budget {
            slice_us: own.slice_us.min(body.slice_ns / 1_000),
            total_us: own.total_us.min(body.total_ns.saturating_sub(body.spent_ns) / 1_000).max(1),
            memory_bytes: own.memory_bytes,
            reply_bytes: own.reply_bytes.min(CALL_BYTES),
        };
        let (depth, log_call) = (body.call_depth() + 1, body.log_call);
        let begun = match view.tenant.charge_memory(INVOCATION_UNITS) {
            false => Err(BeginError::OverQuota),
            true => self
                .begin(&view, &extension, &args, budget)
                .inspect_err(|_| view.tenant.uncharge_memory(INVOCATION_UNITS)),
        };
        let calls = body.calls.get_or_insert_default();
        match begun {
            Ok(mut callee) => {
                callee.set_called(depth, notes, log_call);
                (calls.begun, calls.begun_ticks) = (calls.begun.saturating_add(1), ticks());
                // SAFETY: held alone.
                body.hand_pause_to(unsafe { callee.0.as_mut() });
                body.calls.get_or_insert_default().callee = Some(callee);
            }
            Err(error) => {
                let is_large = matches!(error, BeginError::TooLarge { .. });
                let code = if is_large { STATUS_TOO_LARGE } else { STATUS_OUT_OF_MEMORY };
                calls.ended = Some(EndedNestedCall::failed(code, &error.to_string()));
            }
        }
    }

    /// Takes a callee's outcome over to its caller, which goes on with its next poll, or ends as well.
    fn end_callee(
        &mut self,
        participant: &Participant,
        body: &mut InvocationState,
        mut callee: InvocationHandle,
        polled: PollOutcome,
        now_ms: u64,
    ) -> PollOutcome {
        // SAFETY: held alone.
        let ended = unsafe { callee.0.as_mut() };
        body.shown.raise(ended.shown.get());
        body.reads += ended.reads;
        body.read_bytes += ended.read_bytes;
        body.take_waits_of(ended);
        body.pause_for(PauseKind::Call, self.meter.ticks);
        body.log_call = if body.log_call == 0 { ended.log_call } else { body.log_call };
        if let Some(refs) = ended.refs.as_ref().filter(|_| IS_OBSERVED) {
            // As of a client's call: the time that it did not compute it waited, with its caller.
            let begun_ticks = body.calls.as_ref().map_or(0, |calls| calls.begun_ticks);
            let total_ns = TickLength::measured().ns(ticks().saturating_sub(begun_ticks));
            refs.extension.latency.record(self.worker, total_ns.saturating_sub(ended.spent_ns), ended.spent_ns);
        }
        let name = ended.refs.as_ref().map_or_else(String::new, |refs| refs.extension.name.to_string());
        if callee.has_conflict() {
            // SAFETY: as above.
            unsafe { callee.0.as_mut() }.stage = InvocationStage::Ended(InvocationOutcome::Failed);
            self.finish(participant, callee);
            body.pause_for(PauseKind::Retry, self.meter.ticks);
            return begin_anew(body);
        }
        let cause = if let PollOutcome::Killed(cause) = polled { Some(cause) } else { None };
        let (code, reply) = match polled {
            PollOutcome::Failed { code } => (code, callee.text().to_vec()),
            PollOutcome::Killed(cause) => {
                self.record_kill(&callee, cause, now_ms);
                (STATUS_KILLED, [b"the server ended it: ", callee.text()].concat())
            }
            PollOutcome::Done | PollOutcome::Pending | PollOutcome::Preempted => (0, callee.take_reply()),
        };
        // SAFETY: as above.
        let returned = unsafe { callee.0.as_mut() }.calls.as_mut().map(|calls| std::mem::take(&mut calls.returned));
        let notes = returned.filter(|_| cause.is_none()).unwrap_or_default();
        self.finish(participant, callee);
        if body.spent_ns + BUDGET_REST_NS >= body.total_ns && cause == Some(KillCause::TotalBudget) {
            let text =
                format!("it exceeded its CPU budget in total (total_us), in the extension {name:?} that it called");
            return kill(body, KillCause::TotalBudget, text.as_bytes());
        }
        let is_charged = body.charge_call(reply.len() + notes.len());
        body.calls.get_or_insert_default().ended = Some(match is_charged {
            true => EndedNestedCall { code, reply, notes },
            false => EndedNestedCall::failed(STATUS_OUT_OF_MEMORY, sandstorm_accounts::MEMORY_TEXT),
        });
        PollOutcome::Pending
    }

    /// Lists a callee that was ended among its tenant's kills.
    fn record_kill(&self, callee: &InvocationHandle, cause: KillCause, now_ms: u64) {
        let (Some(view), Some(extension)) = (callee.view(), callee.extension()) else { return };
        view.tenant.usage.record_kill(KillRecord {
            worker: self.worker as u32,
            extension: extension.name.to_string(),
            version: extension.version,
            cause,
            cpu_us: callee.cpu_ns() / 1_000,
            wall_us: callee.trace().since_first_poll_ns / 1_000,
            at_ms: now_ms,
            text: String::from_utf8_lossy(callee.text()).into_owned(),
            places: callee.places().to_vec(),
            arguments: callee.kept_arguments(),
        });
    }
}

/// A call with its arguments as its callee takes them: those of a typed one behind the function's fingerprint, if the
/// types are the same. What that takes counts as the caller's CPU time, which chooses how long its types are.
fn with_fingerprint(body: &mut InvocationState, request: RequestedCall) -> Result<RequestedCall, EndedNestedCall> {
    let RequestedCall { extension, name, args, notes } = request;
    let begun_ticks = ticks();
    let schema = extension.library.schema().map(|schema| &**schema);
    let taken = match callee_arguments(schema, CalleeName::parse(&name), &args) {
        Ok(Cow::Borrowed(_)) => Ok(None),
        Ok(Cow::Owned(whole)) => Ok(Some(whole)),
        Err((code, text)) => Err(EndedNestedCall::failed(code, &text)),
    };
    body.spent_ns += TickLength::measured().ns(ticks().saturating_sub(begun_ticks));
    let args = taken?.unwrap_or(args);
    Ok(RequestedCall { extension, name, args, notes })
}

/// Begins all anew whose transaction has met the writes of others in a callee; one that was called itself leaves that
/// to its caller.
fn begin_anew(body: &mut InvocationState) -> PollOutcome {
    body.transaction.conflicts += 1;
    if body.call_depth() > 0 {
        return PollOutcome::Pending;
    }
    if body.transaction.conflicts >= TRANSACTION_TRIES {
        body.reply.clear();
        body.set_text(CONTENDED_TEXT);
        body.code = abi::STATUS_CONTENDED;
        body.stage = InvocationStage::Ended(InvocationOutcome::Failed);
        return PollOutcome::Failed { code: abi::STATUS_CONTENDED };
    }
    match body.restart() {
        Ok(()) => PollOutcome::Pending,
        Err(error) => kill(body, KillCause::OutOfMemory, format!("no new start after a conflict: {error}").as_bytes()),
    }
}

impl InvocationHandle {
    /// Whether it was called by another invocation, and its transaction has met the writes of others.
    fn has_conflict(&self) -> bool {
        // SAFETY: held alone.
        let body = unsafe { self.0.as_ref() };
        body.call_depth() > 0 && body.transaction.conflicts > 0
    }

    /// Makes it a callee, so deep, with the transaction of its caller, whose number in the log it has.
    fn set_called(&mut self, depth: u32, notes: Vec<u8>, log_call: u64) {
        // SAFETY: held alone.
        let body = unsafe { self.0.as_mut() };
        let calls = body.calls.get_or_insert_default();
        (calls.depth, calls.inherited) = (depth, notes);
        body.log_call = log_call;
        body.set_nested();
        // Its memory is charged as that of every invocation, which clients' calls are when they are counted.
        body.add_charged(INVOCATION_UNITS);
    }
}

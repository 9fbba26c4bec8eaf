//! The steps of a poll: what to call or resume, its limits, and what its end means.

use sandstorm_api::abi;
use sandstorm_extension::{CallTrust, InvocationOutcome, KillCause};
use sandstorm_store::Participant;

use super::PollOutcome;
use crate::cpu_meter::OverdueRule;
use crate::guest_runner::{GuestExit, PollLimits};
use crate::guest_stacks::stack_owner;
use crate::invocation::{InvocationStage, InvocationState, NextPoll};
use crate::kill_trace::note_parked;
use crate::preemption_policy::max_charge_ns;

/// Returns the next poll's action, or how the invocation has ended.
pub(super) fn next_poll(
    body: &mut InvocationState,
    participant: &Participant,
    now_ms: u64,
    interleave: bool,
) -> Result<NextPoll, PollOutcome> {
    body.restore_late_polls();
    let vtable = match (&body.refs, body.stage) {
        (_, InvocationStage::Ended(outcome)) => return Err(outcome_of(outcome, body.code)),
        (None, _) => return Err(PollOutcome::Killed(KillCause::Unloaded)),
        (Some(refs), _) => refs.extension.library.vtable(),
    };
    if body.stage == InvocationStage::Retrying
        && let Some(pin) = body.pin.take()
    {
        // Its earlier reads are forgotten.
        participant.unpin(pin);
    }
    if body.pin.is_none() {
        // Not before it runs: however long it has waited for its turn, it has read nothing.
        body.pin = Some(participant.pin());
    }
    let again = body.transaction.conflicts != 0;
    // A run that begins anew reads by the clock by which it will be judged. Where this worker's clock is behind, a
    // record may be live here that the commit finds expired, each time. And it does not yield its turn: then only other
    // workers' writes can come between.
    body.abi.now_ms = if again { now_ms.max(participant.epochs().latest_commit_ms()) } else { now_ms };
    body.abi.interleave = u32::from(interleave && !again);
    if body.parked.is_some()
        && let Some(parked) = body.parked.take()
    {
        return Ok(NextPoll::Resume(parked));
    }
    if let Some(memory) = &body.guest_memory {
        body.set_guest_clock(memory);
    }
    Ok(match body.stage {
        InvocationStage::Begun | InvocationStage::Retrying => NextPoll::Call(vtable.start, body.slot),
        _ => NextPoll::Call(vtable.poll, body.slot),
    })
}

/// Ends an invocation that is under way for too long. Its switched-out function is not resumed.
#[cold]
pub(super) fn kill_overdue(body: &mut InvocationState, overdue: &OverdueRule) -> PollOutcome {
    let outcome = kill(body, overdue.cause, overdue.text.as_bytes());
    if let PollOutcome::Killed(cause) = outcome {
        note_parked(body, cause);
    }
    outcome
}

/// Ends an invocation from outside of its code.
pub(super) fn kill(body: &mut InvocationState, cause: KillCause, text: &[u8]) -> PollOutcome {
    if body.transaction.committed {
        return finish_committed(body);
    }
    body.reply.clear();
    body.set_text(text);
    body.stage = InvocationStage::Ended(InvocationOutcome::Killed(cause));
    PollOutcome::Killed(cause)
}

/// Ends an invocation whose transaction was committed, which is its last action. Whatever ended it after that, it has
/// done its task.
#[cold]
pub(super) fn finish_committed(body: &mut InvocationState) -> PollOutcome {
    body.stage = InvocationStage::Ended(InvocationOutcome::Done);
    PollOutcome::Done
}

/// Returns the limits of the next run.
pub(super) fn poll_limits(
    body: &InvocationState,
    trust: CallTrust,
    longest_ns: u64,
    participant: *const Participant,
    invocation: *mut abi::InvocationHeader,
    started: u64,
) -> PollLimits {
    let left_ns = body.total_ns.saturating_sub(body.spent_ns);
    let limit_ns = body.slice_ns.min(longest_ns).min(left_ns);
    let memory = body.guest_memory.as_deref().map_or(std::ptr::null(), std::ptr::from_ref);
    PollLimits {
        participant,
        invocation,
        guest_memory: memory.cast_mut(),
        guest_invocation: std::ptr::without_provenance_mut(body.guest.header as usize),
        stack_owner: stack_owner(body.owner, !memory.is_null()),
        trust,
        limit_ns,
        left_ns,
        started,
    }
}

/// Returns the result of a poll that took so long.
pub(in super::super) fn finish_poll(body: &mut InvocationState, ended: GuestExit, charge_ns: u64) -> PollOutcome {
    // Time that the hypervisor took does not add up to a total that the invocation never used.
    body.spent_ns += match ended {
        GuestExit::Returned(_) | GuestExit::Preempted(_) if charge_ns > body.slice_ns && !body.transaction.tried => {
            charge_ns.min(max_charge_ns(body.slice_ns))
        }
        // A commit is a host call that takes time in proportion to its reads and writes, so that time is the
        // invocation's own.
        _ => charge_ns,
    };
    body.transaction.tried = false;
    let in_time = body.spent_ns < body.total_ns;
    let outcome = match ended {
        GuestExit::Returned(abi::POLL_DONE) => InvocationOutcome::Done,
        GuestExit::Returned(abi::POLL_FAILED) => InvocationOutcome::Failed,
        GuestExit::Returned(abi::POLL_AGAIN) if in_time && body.transaction.may_retry => {
            return match body.restart() {
                Ok(()) => PollOutcome::Pending,
                Err(error) => {
                    kill(body, KillCause::OutOfMemory, format!("no new start after a conflict: {error}").as_bytes())
                }
            };
        }
        // Nothing has asked for that: the memory of a module would be made anew for as long as it has time.
        GuestExit::Returned(abi::POLL_AGAIN) if in_time => InvocationOutcome::Killed(KillCause::IllegalInstruction),
        GuestExit::Returned(_) if in_time => {
            body.stage = InvocationStage::Pending;
            return PollOutcome::Pending;
        }
        GuestExit::Preempted(_) if in_time => {
            body.stage = InvocationStage::Preempted;
            body.switches = body.switches.wrapping_add(1);
            return PollOutcome::Preempted;
        }
        GuestExit::Returned(_) | GuestExit::Preempted(_) => InvocationOutcome::Killed(KillCause::TotalBudget),
        GuestExit::Trapped(cause) => InvocationOutcome::Killed(cause),
    };
    if matches!(outcome, InvocationOutcome::Killed(_)) {
        if body.transaction.committed {
            return finish_committed(body);
        }
        body.reply.clear();
    }
    body.stage = InvocationStage::Ended(outcome);
    outcome_of(outcome, body.code)
}

/// Ends a switched-out invocation that may not keep its stack: its tenant's invocations have all the memory that they
/// may have.
#[cold]
pub(super) fn refuse_stack(body: &mut InvocationState) -> PollOutcome {
    let killed = kill(body, KillCause::OutOfMemory, NO_STACK_MEMORY_TEXT.as_bytes());
    body.append_quota_name();
    killed
}

/// The text of an invocation that is ended instead of being switched out.
const NO_STACK_MEMORY_TEXT: &str =
    "it computed past its slice, and there is no memory to keep its stack while others have their turn";

/// The same where its tenant's invocations have reached their limit of side stacks.
pub(super) const STACK_QUOTA_TEXT: &str = "it computed past its slice, and too many invocations of the tenant are switched out already: they hold its \
                          share of the side stacks";

pub(super) fn outcome_of(outcome: InvocationOutcome, code: u32) -> PollOutcome {
    match outcome {
        InvocationOutcome::Done => PollOutcome::Done,
        InvocationOutcome::Failed => PollOutcome::Failed { code },
        InvocationOutcome::Killed(cause) => PollOutcome::Killed(cause),
    }
}

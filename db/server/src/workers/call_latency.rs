//! Counts how long calls took, and keeps those that were slow. A call's time ends when its reply may leave: once the
//! log is on the disk, or on its copies, as far as the reply shows it.

use std::sync::Arc;

use sandstorm_accounts::{RequestWaits, SlowCall};
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_metrics::{KILL_CAUSES, cause_index};
use sandstorm_runtime::{InvocationTrace, PollOutcome};

use super::context::WorkerContext;
use super::ended_call::EndedCall;
use super::latency_ledger::{ReadyCall, SampledCall};
use super::tasks::InvocationTask;

/// Counts the latency of a task that ended, and whose reply need not wait, and keeps it if it was slow.
#[inline]
pub(super) fn measure_finished(context: &WorkerContext, task: &InvocationTask, outcome: &PollOutcome, now_ns: u64) {
    let invocation = &task.invocation;
    let (Some(view), Some(extension)) = (invocation.view(), invocation.extension()) else { return };
    let (total_ns, cpu_ns) = (now_ns.saturating_sub(task.received_ns()), invocation.cpu_ns());
    let waiting_ns = total_ns.saturating_sub(cpu_ns);
    view.tenant.usage.latency(context.index).of(RequestClass::Call).record(waiting_ns, cpu_ns, 1);
    extension.latency.record(context.index, waiting_ns, cpu_ns);
    if total_ns >= context.shared.properties.metrics.slow.ns()
        && let Some(ended) = ended_call(task, outcome, (now_ns, true))
    {
        keep_slow(context, ended, now_ns);
    }
}

/// A task that ended at `now_ns`, to be counted once its reply may leave; with its arguments if it may be slow.
#[cold]
pub(super) fn ended_call(
    task: &InvocationTask,
    outcome: &PollOutcome,
    (now_ns, may_be_slow): (u64, bool),
) -> Option<EndedCall> {
    let invocation = &task.invocation;
    let (view, extension) = (invocation.view()?, invocation.extension()?);
    let trace = invocation.trace();
    let InvocationTrace { polls, switches, reads, read_bytes, since_begun_ns, since_first_poll_ns, .. } = trace;
    let total_ns = now_ns.saturating_sub(task.received_ns());
    let did = SlowCall {
        extension: extension.name.to_string(),
        version: extension.version,
        log_call: trace.log_call,
        cold_waits: trace.cold_waits,
        cold_ns: trace.disk_ns + trace.backing_ns,
        outcome: match outcome {
            PollOutcome::Pending | PollOutcome::Preempted | PollOutcome::Done => "ok",
            PollOutcome::Failed { .. } => "failed",
            PollOutcome::Killed(cause) => KILL_CAUSES[cause_index(*cause)],
        },
        cpu_ns: invocation.cpu_ns(),
        polls,
        switches,
        reads,
        read_bytes,
        retries: invocation.transactions().map_or(0, |counts| counts.retries),
        nested_calls: trace.nested_calls,
        nested_cpu_ns: trace.nested_cpu_ns,
        queue_ns: total_ns.saturating_sub(since_begun_ns),
        first_turn_ns: total_ns.saturating_sub(since_first_poll_ns),
        pauses: trace.pauses,
        arguments: if may_be_slow { invocation.kept_arguments() } else { Vec::new() },
    };
    Some(EndedCall {
        tenant: view.tenant.id,
        extension: Arc::clone(extension),
        received_ns: task.received_ns(),
        ended_ns: now_ns,
        cpu_ns: invocation.cpu_ns(),
        waits: RequestWaits { disk_ns: trace.disk_ns, backing_ns: trace.backing_ns, ..RequestWaits::default() },
        did,
    })
}

/// Counts a call whose reply has waited for a position of the log, or for a backing, until `now_ns`, and keeps it if
/// it was slow.
#[cold]
pub(super) fn count_ended(context: &WorkerContext, mut ended: EndedCall, (position, now_ns): (u64, u64)) {
    ended.note_reply_wait(position, now_ns);
    let answer = ended.answer(now_ns);
    // The tenant may have been deleted since.
    if let Some(view) = context.snapshot.tenant(ended.tenant) {
        let latency = view.tenant.usage.latency(context.index);
        latency.of(RequestClass::Call).record(answer.waiting_ns, answer.service_ns, 1);
    }
    ended.extension.latency.record(context.index, answer.waiting_ns, answer.service_ns);
    if answer.waiting_ns + answer.service_ns >= context.shared.properties.metrics.slow.ns() {
        keep_slow(context, ended, now_ns);
    }
}

/// Notes calls whose replies leave now, after `position`: how long they are sent, where that is measured, and those
/// that are counted only now.
pub(super) fn note_leaving(
    context: &mut WorkerContext,
    calls: impl IntoIterator<Item = ReadyCall>,
    (position, now_ns): (u64, u64),
) {
    for ReadyCall { tenant, extension, is_sampled, ended, .. } in calls {
        if is_sampled {
            context.answered.note_ready_call(SampledCall { tenant, extension: &extension }, now_ns);
        }
        if let Some(ended) = ended {
            count_ended(context, *ended, (position, now_ns));
        }
    }
}

/// Keeps what a slow call did, and whose turns there were meanwhile.
#[cold]
fn keep_slow(context: &WorkerContext, ended: EndedCall, now_ns: u64) {
    let Some(view) = context.snapshot.tenant(ended.tenant) else { return };
    let slow = &view.tenant.usage.slow_requests;
    if slow.admit(now_ns, 1) {
        slow.keep(context.slow_request(&ended.answer(now_ns), now_ns, Some(ended.did)));
    }
}

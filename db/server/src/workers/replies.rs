//! Answers the ended invocations, each through the port or the connection of its request.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;
use sandstorm_api::abi;
use sandstorm_dialects::InvocationResult;
use sandstorm_log::PositionState;
use sandstorm_metrics::SlowThreshold;
use sandstorm_net::rpc::{CallCost, MAX_VALUE_LEN, OP_FLAG_COST, OpKind, Operation, RpcStatus, encode_operation};
use sandstorm_runtime::{InvocationHandle, InvocationTrace, PollOutcome};

use super::call_latency::{ended_call, note_leaving};
use super::connections::connection_id::ConnectionId;
use super::connections::inbox::InboxMessage;
use super::connections::worker_connections::WorkerConnections;
use super::context::{WorkerContext, count};
use super::executor::RequestExecutor;
use super::latency_ledger::{IS_OBSERVED, ReadyCall};
use super::local_calls::{LocalCallEnd, LocalCallResult};
use super::port::WorkerPortState;
use super::tasks::{FinishedTask, InvocationTask, ReplyTarget};

/// Answers the invocations that ended, and takes their memory back.
pub(super) fn send_replies(executor: &mut RequestExecutor, mut connections: Option<&mut WorkerConnections>) {
    let RequestExecutor { context, invocations } = executor;
    let mut finished = mem::take(&mut invocations.finished);
    // The turn's clock stood still while they ran.
    let ended_ns = if finished.is_empty() { 0 } else { context.clock.read_ns() };
    let is_measured = !finished.is_empty() && context.answered.begin_replies();
    let shared = Arc::clone(&context.shared);
    let may_be_slow = shared.properties.metrics.slow.ns() != SlowThreshold::OFF;
    let mut open: Option<(u32, MutexGuard<'_, WorkerPortState>)> = None;
    let mut leaving = 0;
    let mut calls = mem::take(&mut invocations.ready_calls);
    let mut all = finished.drain(..).peekable();
    while let Some(ended) = all.next() {
        let result = invocation_result(&ended.task.invocation, &ended.outcome);
        count(&context.counters.responses, result.status as usize);
        let (target, shown) = (ended.task.reply_target(), ended.task.invocation.shown_position());
        // A caller in this process waits by itself.
        let is_later = IS_OBSERVED
            && !matches!(target, ReplyTarget::Local { .. })
            && context.position_state(shown) == PositionState::Waits;
        let ready = (is_measured || is_later)
            .then(|| ready_call(&ended, (ended_ns, may_be_slow), (is_measured, is_later)))
            .flatten();
        match target {
            ReplyTarget::Datagram { port, operation, with_cost, response } => {
                if open.as_ref().is_none_or(|(opened, _)| *opened != port) {
                    if let Some((_, mut done)) = open.take() {
                        done.transmit();
                    }
                    open = Some((port, shared.ports[port as usize].open()));
                }
                if let Some((_, state)) = &mut open {
                    let cost = with_cost.then(|| call_cost(&ended.task, ended_ns));
                    let write = |bytes: &mut Vec<u8>| encode_invocation_result(&result, cost.as_ref(), bytes);
                    calls.extend(ready);
                    state.context.deliver(context, (response, operation as usize), shown, &mut calls, write);
                    note_leaving(context, calls.drain(..), (shown, ended_ns));
                }
            }
            ReplyTarget::Stream { worker, connection, with_cost } => {
                let result = InvocationResult { cost: with_cost.then(|| call_cost(&ended.task, ended_ns)), ..result };
                let reply = (&result, shown, ready.map(Box::new));
                reply_to_connection(context, connections.as_deref_mut(), (worker, connection), reply);
            }
            ReplyTarget::Local { call } => {
                let InvocationResult { status, number, value, cost: _ } = result;
                let (cost, value) = (Some(call_cost(&ended.task, ended_ns)), value.to_vec());
                let at = shared.epoch + Duration::from_nanos(ended_ns);
                let ran = ended.task.invocation.extension();
                let end = ran.map(|ran| LocalCallEnd { at, extension: Arc::clone(ran) });
                let result = LocalCallResult { status, number, value, shown, cost, ended: end };
                shared.local_calls.finish(call, result);
            }
        }
        // Those of one tenant whose answers leave together are subtracted from its count together, before they leave:
        // all workers share that word.
        if let Some(view) = ended.task.invocation.view() {
            leaving += 1;
            if !all.peek().is_some_and(|next| next.task.is_sent_with(&ended.task, view)) {
                view.tenant.end_invocations(mem::take(&mut leaving));
            }
        }
        invocations.release(context, ended, (ended_ns, is_later));
    }
    drop(all);
    if let Some((_, mut done)) = open {
        done.transmit();
    }
    (invocations.finished, invocations.ready_calls) = (finished, calls);
}

/// Tells a connection, here or at another worker, the result of the invocation that it waits for.
fn reply_to_connection(
    context: &WorkerContext,
    connections: Option<&mut WorkerConnections>,
    (worker, connection): (u32, ConnectionId),
    (result, shown, ready): (&InvocationResult<'_>, u64, Option<Box<ReadyCall>>),
) {
    if worker as usize == context.index {
        if let Some(connections) = connections {
            connections.deliver_result(connection, (result, shown), ready, context);
        }
        return;
    }
    let InvocationResult { status, number, value, cost } = *result;
    let (value, cost) = (value.to_vec(), cost.map(Box::new));
    let message = InboxMessage::InvocationResult { connection, status, number, value, shown, cost, ready };
    context.shared.send_to_inbox(worker as usize, message);
}

/// The call of an invocation that ended: to measure how long its reply is sent, or to count it when that may leave.
#[cold]
fn ready_call(
    ended: &FinishedTask,
    (ready_ns, may_be_slow): (u64, bool),
    (is_sampled, is_later): (bool, bool),
) -> Option<ReadyCall> {
    let FinishedTask { task, outcome } = ended;
    let (view, extension) = (task.invocation.view()?, task.invocation.extension()?);
    let ended = if is_later { ended_call(task, outcome, (ready_ns, may_be_slow)).map(Box::new) } else { None };
    let (tenant, extension) = (view.tenant.id, Arc::clone(extension));
    Some(ReadyCall { tenant, extension, ready_ns, is_sampled, ended })
}

/// The result of an invocation that ended, as its caller gets it.
fn invocation_result<'i>(invocation: &'i InvocationHandle, outcome: &PollOutcome) -> InvocationResult<'i> {
    let (status, number, value) = match outcome {
        PollOutcome::Done | PollOutcome::Pending | PollOutcome::Preempted => {
            (RpcStatus::Ok, invocation.extension().map_or(0, |extension| extension.version), invocation.reply())
        }
        PollOutcome::Failed { code: abi::STATUS_CONTENDED } => (RpcStatus::Conflict, 0, invocation.text()),
        PollOutcome::Failed { code } => (RpcStatus::Failed, u64::from(*code), invocation.text()),
        PollOutcome::Killed(cause) => (RpcStatus::Killed, *cause as u64, invocation.text()),
    };
    // A reply's budget is at most what a message can carry, so `reply` is never longer.
    InvocationResult { status, number, value: &value[..value.len().min(MAX_VALUE_LEN)], cost: None }
}

/// Appends the answer of an invocation that ended, with what it cost if its caller asked.
fn encode_invocation_result(result: &InvocationResult<'_>, cost: Option<&CallCost>, response: &mut Vec<u8>) {
    let InvocationResult { status, number, value, cost: _ } = *result;
    let answer = Operation { status, number, value, ..Operation::new(OpKind::Invoke) };
    match cost {
        None => encode_operation(&answer, response),
        Some(cost) => {
            encode_operation(&Operation { flags: OP_FLAG_COST, key: &cost.encode(), ..answer }, response);
        }
    }
}

/// What an invocation that ended at `ended_ns` of the workers' clock cost.
#[cold]
fn call_cost(task: &InvocationTask, ended_ns: u64) -> CallCost {
    let invocation = &task.invocation;
    let InvocationTrace { polls, switches, reads, read_bytes, since_first_poll_ns, .. } = invocation.trace();
    let wall_ns = ended_ns.saturating_sub(task.received_ns());
    CallCost {
        cpu_ns: invocation.cpu_ns(),
        wall_ns,
        first_turn_ns: wall_ns.saturating_sub(since_first_poll_ns),
        turns: polls,
        switches,
        reads,
        read_bytes,
        commit_tries: invocation
            .transactions()
            .map_or(0, |counts| counts.retries + counts.commits.max(counts.conflicts)),
    }
}

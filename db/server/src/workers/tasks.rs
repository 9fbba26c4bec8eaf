//! Tasks: invocations on their way through the run queue, from the request that asks for one to the answer.

use std::borrow::Cow;
use std::mem;
use std::sync::Arc;

use parking_lot::MutexGuard;
use sandstorm_api::abi;
use sandstorm_net::rpc::{MAX_VALUE_LEN, OpKind, Operation, RpcStatus, encode_operation};

use super::Worker;
use super::admission::count;
use super::connections::ConnectionId;
use super::port::WorkerPortState;
use super::record_operations;
use super::response_assembly::ResponseId;
use super::run_queue::ScheduledTask;
use crate::limits::{DYNAMIC_THRESHOLD_ALPHA, INVOCATIONS_PER_WORKER};
use sandstorm_accounts::KillRecord;
use sandstorm_catalog::TenantView;
use sandstorm_dialects::InvocationResult;
use sandstorm_extension::{LoadedExtension, TransactionCounts};
use sandstorm_metrics::cause_index;
use sandstorm_runtime::{BeginError, InvocationHandle, PollOutcome};

/// Where the answer of an invocation is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyTarget {
    /// By who sent a datagram.
    Datagram {
        /// The port that the request came to, and its answer leaves by.
        port: u32,
        /// Which operation of the request.
        part: u32,
        /// The response that waits.
        ticket: ResponseId,
    },
    /// At a connection.
    Stream {
        /// The worker that has it.
        worker: u32,
        /// Which.
        name: ConnectionId,
    },
}

/// An invocation and who waits for it, which its label says: a task is moved with every poll, so it is one word.
pub(super) struct InvocationTask {
    pub(super) invocation: InvocationHandle,
}

/// A mark in the first word of a label: a connection waits.
const STREAM_FLAG: u64 = 1 << 63;

fn pack_u32s(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn unpack_u32s(pair: u64) -> (u32, u32) {
    ((pair >> 32) as u32, pair as u32)
}

impl ReplyTarget {
    fn words(self) -> [u64; 2] {
        match self {
            ReplyTarget::Datagram { port, part, ticket } => [pack_u32s(port, part), ticket.word()],
            ReplyTarget::Stream { worker, name } => [STREAM_FLAG | pack_u32s(worker, 0), name.word()],
        }
    }

    /// The inverse of [`ReplyTarget::words`].
    fn from_words([first, second]: [u64; 2]) -> ReplyTarget {
        let (of, part) = unpack_u32s(first & !STREAM_FLAG);
        if first & STREAM_FLAG == 0 {
            ReplyTarget::Datagram { port: of, part, ticket: ResponseId::from_u64(second) }
        } else {
            ReplyTarget::Stream { worker: of, name: ConnectionId::from_u64(second) }
        }
    }
}

impl InvocationTask {
    fn new(mut invocation: InvocationHandle, caller: ReplyTarget, begun_us: u64) -> InvocationTask {
        let [first, second] = caller.words();
        invocation.set_user_data([first, second, begun_us]);
        InvocationTask { invocation }
    }

    /// Who waits for it.
    pub(super) fn caller(&self) -> ReplyTarget {
        let [first, second, _] = self.invocation.label();
        ReplyTarget::from_words([first, second])
    }

    /// When it was asked for, in the workers' microseconds.
    fn begun_us(&self) -> u64 {
        let [_, _, begun_us] = self.invocation.label();
        begun_us
    }

    /// Whether its answer leaves in the same burst as that of `other`, which has this view.
    fn is_sent_with(&self, other: &InvocationTask, view: &Arc<TenantView>) -> bool {
        let port = |task: &InvocationTask| match task.caller() {
            ReplyTarget::Datagram { port, .. } => Some(port),
            ReplyTarget::Stream { .. } => None,
        };
        self.invocation.view().is_some_and(|own| Arc::ptr_eq(own, view))
            && port(self).is_some_and(|own| port(other) == Some(own))
    }

    /// Its tenant's id and weight.
    fn share(&self) -> (u32, u32) {
        self.invocation.view().map_or((0, 1), |view| (view.tenant.id, view.tenant.quotas.weight))
    }

    /// Counts the places that its tenant holds on a worker; for that worker.
    pub(super) fn count_live(&self, worker: usize, change: i64) {
        if let Some(view) = self.invocation.view() {
            let places = &view.tenant.usage.worker(worker).invocations_live;
            places.set(places.get().wrapping_add_signed(change));
        }
    }
}

/// Whether a tenant that holds `held` of the `live` places of a worker may take one more: it may hold so many times
/// what is free. So one tenant alone gets two thirds of the places, two get two fifths each, and however many want all
/// they can get, something is left for one that holds little.
fn check_invocation_limit(live: usize, held: usize) -> Result<(), &'static str> {
    let free = INVOCATIONS_PER_WORKER.saturating_sub(live);
    if free == 0 {
        Err("the worker has all the invocations that it can hold; try again later")
    } else if held >= free * DYNAMIC_THRESHOLD_ALPHA {
        Err("the tenant has its share of the invocations that the worker can hold; try again later")
    } else {
        Ok(())
    }
}

/// A task that ended and is not answered yet.
pub(super) struct FinishedTask {
    task: InvocationTask,
    polled: PollOutcome,
}

impl Worker {
    /// Makes a task of an invocation. When it cannot, writes the answer that says why and gives its status.
    pub(super) fn begin_task(
        &mut self,
        view: &Arc<TenantView>,
        operation: &Operation<'_>,
        caller: ReplyTarget,
        answer: &mut Vec<u8>,
    ) -> Option<RpcStatus> {
        let (status, text) = self.try_begin(view, operation, caller).err()?;
        Some(record_operations::encode_refusal(operation, status, &text, answer))
    }

    /// Makes a task of an invocation.
    ///
    /// # Errors
    /// Why it cannot: a status, and a text that says more.
    pub(super) fn try_begin<'v>(
        &mut self,
        view: &'v Arc<TenantView>,
        operation: &Operation<'_>,
        caller: ReplyTarget,
    ) -> Result<(), (RpcStatus, Cow<'v, str>)> {
        let extension = find_extension(view, operation).map_err(|(status, text)| (status, text.into()))?;
        let tenant = &view.tenant;
        if !extension.throttle.admits(self.now_us.saturating_mul(1000)) {
            tenant.usage.worker(self.index).over_quota.add(1);
            return Err((RpcStatus::OverQuota, THROTTLED_TEXT.into()));
        }
        let places = &tenant.usage.worker(self.index).invocations_live;
        check_invocation_limit(self.live, places.get() as usize)
            .map_err(|text| (RpcStatus::Overloaded, text.into()))?;
        if !self.engine.has_stack_for(&tenant.usage) {
            return Err((RpcStatus::Overloaded, NO_STACK_TEXT.into()));
        }
        if let Err(text) = tenant.begin_invocation() {
            tenant.usage.worker(self.index).over_quota.add(1);
            return Err((RpcStatus::OverQuota, text.into()));
        }
        let budget = view.budget(extension);
        let begun = self.engine.begin(view, extension, operation.value, budget);
        match begun {
            Ok(invocation) => {
                self.counters.invocations_started.add(1);
                self.live += 1;
                places.set(places.get() + 1);
                let task = InvocationTask::new(invocation, caller, self.now_us);
                self.queue.push(tenant.id, tenant.quotas.weight, task);
                Ok(())
            }
            Err(error) => {
                tenant.end_invocations(1);
                let status = match error {
                    BeginError::OverQuota => {
                        tenant.usage.worker(self.index).over_quota.add(1);
                        RpcStatus::OverQuota
                    }
                    BeginError::TooLarge { .. } => RpcStatus::TooLarge,
                    BeginError::Memory(_) => RpcStatus::Overloaded,
                };
                Err((status, error.to_string().into()))
            }
        }
    }

    /// The task to poll next. Those that were offered and nobody took come back when there is room for them.
    pub(super) fn next_task(&mut self) -> Option<ScheduledTask<InvocationTask>> {
        while self.steal_offer.should_reclaim(&self.queue) {
            let Some(task) = self.offered.pop() else { break };
            self.enqueue_task(task);
        }
        self.queue.next()
    }

    /// Puts a task into the run queue that was offered, by this worker or another.
    pub(super) fn enqueue_task(&mut self, task: InvocationTask) {
        let (tenant, weight) = task.share();
        task.count_live(self.index, 1);
        self.live += 1;
        self.queue.push(tenant, weight, task);
    }

    /// Puts a polled task where it belongs now: back into the queue, or among those that ended.
    pub(super) fn after_poll(&mut self, turn: ScheduledTask<InvocationTask>, polled: PollOutcome) {
        match polled {
            PollOutcome::Pending => self.queue.again(turn),
            PollOutcome::Preempted => {
                self.counters.preemptions.add(1);
                if let Some(view) = turn.task.invocation.view() {
                    view.tenant.usage.worker(self.index).preemptions.add(1);
                }
                self.queue.switched_out(turn);
            }
            PollOutcome::Done | PollOutcome::Failed { .. } | PollOutcome::Killed(_) => {
                let task = self.queue.done(turn);
                task.count_live(self.index, -1);
                self.live -= 1;
                self.ended.push(FinishedTask { task, polled });
            }
        }
    }

    /// Answers the invocations that ended, each through the port it came from, and takes their memory back.
    pub(super) fn send_finished(&mut self) {
        let mut ended = mem::take(&mut self.ended);
        let shared = Arc::clone(&self.shared);
        let mut open: Option<(u32, MutexGuard<'_, WorkerPortState>)> = None;
        let mut leaving = 0;
        let mut all = ended.drain(..).peekable();
        while let Some(FinishedTask { task, polled }) = all.next() {
            let answer = invocation_result(&task.invocation, &polled);
            count(&self.counters.responses, answer.status as usize);
            match task.caller() {
                ReplyTarget::Datagram { port, part, ticket } => {
                    if open.as_ref().is_none_or(|(opened, _)| *opened != port) {
                        if let Some((_, mut done)) = open.take() {
                            done.transmit();
                        }
                        open = shared.ports[port as usize].open(true).map(|state| (port, state));
                    }
                    if let Some((_, state)) = &mut open {
                        let write = |response: &mut Vec<u8>| encode_invocation_result(&answer, response);
                        state.context.deliver(self.now_us, ticket, part as usize, write);
                    }
                }
                ReplyTarget::Stream { worker, name } => self.reply_to_connection(worker, name, &answer),
            }
            self.count_finished(&task, &polled);
            // Those of one tenant whose answers leave together give their places back together, before: the word is
            // common to all workers.
            if let Some(view) = task.invocation.view() {
                leaving += 1;
                if !all.peek().is_some_and(|next| next.task.is_sent_with(&task, view)) {
                    view.tenant.end_invocations(mem::take(&mut leaving));
                }
            }
            self.engine.finish(&self.participant, task.invocation);
        }
        drop(all);
        if let Some((_, mut done)) = open {
            done.transmit();
        }
        self.ended = ended;
    }

    fn count_finished(&self, task: &InvocationTask, polled: &PollOutcome) {
        let invocation = &task.invocation;
        let (Some(view), Some(extension)) = (invocation.view(), invocation.extension()) else { return };
        let tenant = view.tenant.usage.worker(self.index);
        tenant.invocation_cpu_ns.add(invocation.cpu_ns());
        if let Some(TransactionCounts { commits, retries, conflicts }) = invocation.transactions() {
            tenant.transactions_committed.add(commits);
            tenant.transaction_retries.add(retries);
            tenant.transaction_conflicts.add(conflicts);
        }
        match polled {
            PollOutcome::Pending | PollOutcome::Preempted => {}
            PollOutcome::Done => {
                self.counters.invocations_done.add(1);
                tenant.invocations_done.add(1);
            }
            PollOutcome::Failed { .. } => {
                self.counters.invocations_failed.add(1);
                tenant.invocations_failed.add(1);
            }
            PollOutcome::Killed(cause) => {
                count(&self.counters.invocations_killed, cause_index(*cause));
                count(&tenant.invocations_killed, cause_index(*cause));
                // The turn's clock stood still while this one ran.
                let now_us = self.shared.epoch.elapsed().as_micros() as u64;
                view.tenant.usage.record_kill(KillRecord {
                    worker: self.index as u32,
                    extension: extension.name.to_string(),
                    version: extension.version,
                    cause: *cause,
                    cpu_us: invocation.cpu_ns() / 1000,
                    wall_us: now_us.saturating_sub(task.begun_us()),
                    at_ms: self.now_ms,
                    text: String::from_utf8_lossy(invocation.text()).into_owned(),
                });
            }
        }
    }
}

/// What a call of an extension that is slowed down is told.
const THROTTLED_TEXT: &str = "quota slow_after_kills: the extension's calls keep being killed, so only some are admitted each \
                           second; `sandstorm kills` shows why";

/// What a call is told whose tenant has as many switched-out invocations as it may.
const NO_STACK_TEXT: &str =
    "the tenant's computations that are switched out hold its share of the side stacks; try again later";

/// The extension that an operation names, or why it cannot be called.
fn find_extension<'v>(
    view: &'v TenantView,
    operation: &Operation<'_>,
) -> Result<&'v Arc<LoadedExtension>, (RpcStatus, &'v str)> {
    let extension = std::str::from_utf8(operation.key).ok().and_then(|name| view.extension(name));
    let Some(extension) = extension else {
        let text = "the tenant has no extension of this name; `sandstorm ext list` shows those there are";
        return Err((RpcStatus::UnknownExtension, text));
    };
    if operation.number != 0 && operation.number != extension.version {
        return Err((
            RpcStatus::UnknownExtension,
            "this version of the extension is not loaded; ask for 0 to get the newest",
        ));
    }
    if let Some(suspension) = view.suspension(&extension.name) {
        return Err((RpcStatus::Suspended, &suspension.text));
    }
    Ok(extension)
}

/// How an invocation ended, for who asked for it.
fn invocation_result<'i>(invocation: &'i InvocationHandle, polled: &PollOutcome) -> InvocationResult<'i> {
    let (status, number, value) = match polled {
        PollOutcome::Done | PollOutcome::Pending | PollOutcome::Preempted => {
            (RpcStatus::Ok, invocation.extension().map_or(0, |extension| extension.version), invocation.reply())
        }
        PollOutcome::Failed { code: abi::STATUS_CONTENDED } => (RpcStatus::Conflict, 0, invocation.text()),
        PollOutcome::Failed { code } => (RpcStatus::Failed, u64::from(*code), invocation.text()),
        PollOutcome::Killed(cause) => (RpcStatus::Killed, *cause as u64, invocation.text()),
    };
    // The reply's budget is at most what a message can carry; a longer one cannot come from `reply`.
    InvocationResult { status, number, value: &value[..value.len().min(MAX_VALUE_LEN)] }
}

/// Appends the answer of an invocation that ended.
fn encode_invocation_result(answer: &InvocationResult<'_>, response: &mut Vec<u8>) {
    let InvocationResult { status, number, value } = *answer;
    encode_operation(&Operation { status, number, value, ..Operation::new(OpKind::Invoke) }, response);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tenants that take all the places they can get, in turns, until none can take more.
    fn filled(tenants: usize) -> (usize, Vec<usize>) {
        let mut held = vec![0; tenants];
        loop {
            let before = held.clone();
            for tenant in 0..tenants {
                let live = held.iter().sum();
                held[tenant] += usize::from(check_invocation_limit(live, held[tenant]).is_ok());
            }
            if held == before {
                return (held.iter().sum(), held);
            }
        }
    }

    #[test]
    fn whoever_waits_is_found_again_by_the_label() {
        for (one, two, three) in [(0, 0, 0), (1, 2, 3), (63, u32::MAX, 7), (5, 1 << 31, u32::MAX)] {
            let word = pack_u32s(two, three);
            let stream = ReplyTarget::Stream { worker: one, name: ConnectionId::from_u64(word) };
            for caller in [ReplyTarget::Datagram { port: one, part: two, ticket: ResponseId::from_u64(word) }, stream] {
                assert_eq!(ReplyTarget::from_words(caller.words()), caller);
            }
            assert_eq!((ResponseId::from_u64(word).word(), ConnectionId::from_u64(word).word()), (word, word));
        }
    }

    #[test]
    fn however_many_take_all_they_can_get_another_one_still_gets_in() {
        for tenants in [1, 2, 3, 10, 100, 500] {
            let (live, held) = filled(tenants);
            assert!(check_invocation_limit(live, 0).is_ok(), "{tenants} tenants hold {live}");
            let (least, most) = (held.iter().min(), held.iter().max());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "and share alike: {held:?}");
        }
        assert_eq!(filled(1).0, 1024, "what the limit's documentation says");
        assert!(check_invocation_limit(INVOCATIONS_PER_WORKER, 0).is_err());
    }
}

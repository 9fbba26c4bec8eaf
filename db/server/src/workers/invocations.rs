//! The invocations of a worker: their admission, the order of their polls, and the offers to neighbours.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_deque::{Steal, Worker as Deque};
use sandstorm_accounts::KillRecord;
use sandstorm_api::redis::Call as RedisCall;
use sandstorm_catalog::{TenantView, VersionRefusal};
use sandstorm_extension::limits::CONTENDED_SLICE_US;
use sandstorm_extension::{LoadedExtension, TransactionCounts};
use sandstorm_metrics::cause_index;
use sandstorm_net::call_key::call_key;
use sandstorm_net::dynamic_threshold::DynamicThreshold;
use sandstorm_net::rpc::{Operation, RpcStatus};
use sandstorm_runtime::limits::RECLAIM_PRESSURE_LIFE_US;
use sandstorm_runtime::{BeginError, Engine, PollOutcome};
use sandstorm_store::spill::{ColdMiss, ColdTicket, SpillReadError};

use super::call_latency::measure_finished;
use super::context::{WorkerContext, count};
use super::latency_ledger::{IS_OBSERVED, ReadyCall};
use super::run_queue::{RunQueue, ScheduledTask};
use super::steal::StealOffer;
use super::tasks::{FinishedTask, InvocationCaller, InvocationTask, ReplyTarget, UNKNOWN_PEER};
use crate::limits::{BURST, INVOCATIONS_PER_WORKER, POLLS_PER_TURN, SHORT_POLL_NS, TURN_CPU_NS};

/// The reason that an invocation cannot begin: a status, and a text with details.
pub(super) type InvocationRejection<'v> = (RpcStatus, Cow<'v, str>);

/// The invocations of a worker: see the head of this file.
pub(super) struct InvocationScheduler {
    pub(super) engine: Engine,
    pub(super) queue: RunQueue<InvocationTask>,
    offer: StealOffer,
    /// Invocations that ended and are not answered yet.
    pub(super) finished: Vec<FinishedTask>,
    /// Room for the calls of a response that leaves, which are counted then; empty in between.
    pub(super) ready_calls: Vec<ReadyCall>,
    /// Invocations in the run queue or being interleaved.
    live: usize,
    last_turn_was_long: bool,
    /// Whether the polls of the last turn with any were short.
    has_short_polls: bool,
    /// Invocations that wait for cold records; they count as live.
    pub(super) cold: Vec<ColdTask>,
}

/// An invocation that waits for cold records.
pub(super) struct ColdTask {
    pub(super) ticket: Arc<ColdTicket>,
    pub(super) task: InvocationTask,
    /// Since when, in the workers' nanoseconds.
    pub(super) since_ns: u64,
}

impl ColdTask {
    /// Whether it is to be polled again: its records are there, its tenant is deleted, or it has held the memory up for
    /// long that others have replaced; these end it at the poll.
    fn is_over(&self, is_crowded: bool, now_ns: u64) -> bool {
        let is_deleted = || self.task.invocation.view().is_some_and(|view| view.tenant.usage.is_deleted());
        self.ticket.is_done() || is_deleted() || self.holds_memory_up(is_crowded, now_ns)
    }

    fn holds_memory_up(&self, is_crowded: bool, now_ns: u64) -> bool {
        is_crowded && now_ns.saturating_sub(self.since_ns) >= RECLAIM_PRESSURE_LIFE_US * 1_000
    }
}

/// Checks whether a tenant with `own` of the `live` invocations of a worker may begin one more. One tenant alone gets
/// two thirds, two get two fifths each. However many tenants want all they can get, something is left for the next one.
fn check_invocation_limit(live: usize, own: usize) -> Result<(), &'static str> {
    let invocations = DynamicThreshold::of(INVOCATIONS_PER_WORKER);
    if invocations.free(live) == 0 {
        Err("the worker has all the invocations that it can hold; try again later")
    } else if !invocations.admits(live, own) {
        Err("the tenant has its share of the invocations that the worker can hold; try again later")
    } else {
        Ok(())
    }
}

impl InvocationScheduler {
    pub(super) fn new(engine: Engine, offered: Deque<InvocationTask>) -> InvocationScheduler {
        InvocationScheduler {
            engine,
            queue: RunQueue::new(),
            offer: StealOffer::new(offered),
            finished: Vec::new(),
            ready_calls: Vec::new(),
            live: 0,
            last_turn_was_long: false,
            has_short_polls: false,
            cold: Vec::new(),
        }
    }

    /// Invocations in the run queue or being interleaved.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// The same with those on offer.
    pub(super) fn live_or_offered(&self) -> usize {
        self.live + self.offer.len()
    }

    /// Whether there is nothing to run or to take back.
    pub(super) fn is_idle(&self) -> bool {
        self.live == 0 && self.offer.is_empty()
    }

    /// Whether the polls of the last turn that had some were short.
    pub(super) fn has_short_polls(&self) -> bool {
        self.has_short_polls
    }

    /// Begins an invocation.
    ///
    /// # Errors
    /// The reason that it cannot begin.
    pub(super) fn begin<'v>(
        &mut self,
        context: &WorkerContext,
        view: &'v Arc<TenantView>,
        operation: &Operation<'_>,
        caller: &InvocationCaller,
    ) -> Result<(), InvocationRejection<'v>> {
        let extension = find_extension(view, operation, caller).map_err(|(status, text)| (status, text.into()))?;
        let (tenant, now_us) = (&view.tenant, context.clock.now_us);
        let usage = tenant.usage.worker(context.index);
        if !extension.throttle.admits(now_us.saturating_mul(1000)) {
            usage.over_quota.add(1);
            return Err((RpcStatus::OverQuota, THROTTLED_TEXT.into()));
        }
        let live = &usage.invocations_live;
        check_invocation_limit(self.live, live.get() as usize).map_err(|text| (RpcStatus::Overloaded, text.into()))?;
        if !self.engine.has_stack_for(&tenant.usage) {
            return Err((RpcStatus::Overloaded, NO_STACK_TEXT.into()));
        }
        if let Err(text) = tenant.begin_invocation() {
            usage.over_quota.add(1);
            return Err((RpcStatus::OverQuota, text.into()));
        }
        let budget = view.budget(extension);
        match self.engine.begin(view, extension, operation.value, budget) {
            Ok(invocation) => {
                context.counters.invocations_started.add(1);
                self.live += 1;
                live.set(live.get() + 1);
                let task = InvocationTask::new(invocation, caller.target, caller.received_ns);
                self.queue.push(tenant.id, tenant.quotas.weight, caller.peer, task);
                Ok(())
            }
            Err(error) => {
                tenant.end_invocations(1);
                let status = match error {
                    BeginError::OverQuota => {
                        usage.over_quota.add(1);
                        RpcStatus::OverQuota
                    }
                    BeginError::TooLarge { .. } => RpcStatus::TooLarge,
                    BeginError::Memory(_) | BeginError::NoMemoryLeft => RpcStatus::Overloaded,
                };
                Err((status, error.to_string().into()))
            }
        }
    }

    /// Polls ready invocations for one turn, round robin over tenants. Ended invocations are put among the finished.
    /// Returns the number of polls.
    pub(super) fn poll(&mut self, context: &WorkerContext) -> usize {
        let (mut polls, mut cpu_ns) = (0, 0);
        let in_guest_code = &context.shared.in_guest_code[context.index];
        in_guest_code.store(true, Relaxed);
        self.offer.wake_neighbour(context);
        self.engine.turn();
        context.turns.borrow_mut().begin(context.clock.now_ns);
        if self.offer.is_over(context) {
            while let Some(task) = self.offer.pop() {
                self.enqueue(context, task);
            }
        }
        self.take_back_cold(context);
        if context.participant.shown().has_lock_waits() {
            // They were those of requests before, which are not told of it.
            context.participant.shown().take_lock_waits();
        }
        // A part of the answers is worth sending alone, if it is not too small: their callers go on meanwhile.
        let enough = (self.live / 4).max(BURST);
        while polls < POLLS_PER_TURN && cpu_ns < TURN_CPU_NS && self.finished.len() < enough {
            let Some(mut next) = self.next_task(context) else { break };
            // It will probably take its whole slice: neither ready answers nor received packets are to wait for that.
            if polls > 0 && next.task.invocation.is_preempted() {
                self.queue.put_back(next);
                break;
            }
            let is_contended = context.recent_tenants.beside(self.queue.tenant(&next), context.clock.now_us);
            self.engine.limit_slices(is_contended.then_some(CONTENDED_SLICE_US));
            let interleave = self.queue.has_interleaved() && context.shared.interleave;
            if interleave {
                let engine = &mut self.engine;
                cpu_ns += self.queue.prefetch_ahead(|task, is_last| {
                    engine.prefetch_awaited(&mut task.invocation, &next.task.invocation, is_last)
                });
            }
            let before_ns = next.task.invocation.cpu_ns();
            let outcome =
                self.engine.poll(&context.participant, &mut next.task.invocation, context.clock.now_ms, interleave);
            let used_ns = next.task.invocation.cpu_ns() - before_ns;
            self.queue.charge(&next, used_ns);
            context.turns.borrow_mut().note(self.queue.tenant(&next), used_ns);
            cpu_ns += used_ns;
            polls += 1;
            self.after_poll(context, next, outcome);
        }
        in_guest_code.store(false, Relaxed);
        self.last_turn_was_long = cpu_ns >= TURN_CPU_NS;
        self.has_short_polls = cpu_ns <= polls as u64 * SHORT_POLL_NS;
        // Where no neighbour can take them, those that have begun stay the next ones, and in the caches.
        if self.last_turn_was_long && self.offer.has_idle_neighbour(context) {
            self.queue.requeue();
        }
        context.counters.polls.add(polls as u64);
        context.counters.invocation_cpu_ns.add(cpu_ns);
        polls
    }

    /// Ends the invocations that are under way, with their next polls; those that wait for cold records do not wait on.
    pub(super) fn stop_calls(&mut self) {
        self.engine.stop_calls();
        for ColdTask { mut task, .. } in std::mem::take(&mut self.cold) {
            task.invocation.set_cold_failed(SpillReadError::Device);
            let (tenant, weight) = task.tenant_and_weight();
            self.queue.push(tenant, weight, UNKNOWN_PEER, task);
        }
    }

    /// Microseconds for which a worker may sleep: what waits for cold records is looked after meanwhile.
    pub(super) fn longest_sleep_us(&self) -> Option<u64> {
        (!self.cold.is_empty()).then_some(RECLAIM_PRESSURE_LIFE_US)
    }

    /// Puts those into the run queue that need not wait for cold records any more, or must not.
    fn take_back_cold(&mut self, context: &WorkerContext) {
        let (is_crowded, now_ns) = (context.participant.epochs().is_crowded(), context.clock.now_ns);
        if !self.cold.iter().any(|waiting| waiting.is_over(is_crowded, now_ns)) {
            return;
        }
        for waiting in std::mem::take(&mut self.cold) {
            if !waiting.is_over(is_crowded, now_ns) {
                self.cold.push(waiting);
                continue;
            }
            let holds_memory_up = waiting.holds_memory_up(is_crowded, now_ns);
            let ColdTask { ticket, mut task, since_ns } = waiting;
            if holds_memory_up && !ticket.is_done() {
                task.invocation.give_no_late_polls();
            }
            task.invocation.note_cold_wait(now_ns.saturating_sub(since_ns), ticket.has_backing());
            if let Some(why) = ticket.error() {
                task.invocation.set_cold_failed(why);
            }
            let (tenant, weight) = task.tenant_and_weight();
            self.queue.push(tenant, weight, UNKNOWN_PEER, task);
        }
    }

    /// Sets an invocation aside until the cold records that it has met are in memory.
    #[cold]
    fn set_aside(&mut self, context: &WorkerContext, mut task: InvocationTask, misses: Vec<ColdMiss>) {
        let (shared, worker) = (Arc::clone(&context.shared), context.index);
        let (reader, _) = task.tenant_and_weight();
        let ticket = ColdMiss::fetch(misses, reader, move || shared.note_arrival(worker));
        if let Some(why) = ticket.error() {
            task.invocation.set_cold_failed(why);
        }
        // Its poll is no part of the wait.
        self.cold.push(ColdTask { ticket, task, since_ns: context.clock.read_ns() });
    }

    /// The task to poll next. Offered tasks that were not taken come back when the run queue has room for them.
    fn next_task(&mut self, context: &WorkerContext) -> Option<ScheduledTask<InvocationTask>> {
        while let Some(task) = self.offer.reclaim_one(&self.queue) {
            self.enqueue(context, task);
        }
        self.queue.next()
    }

    /// Puts a task into the run queue that was on offer, here or at a neighbour.
    fn enqueue(&mut self, context: &WorkerContext, task: InvocationTask) {
        let (tenant, weight) = task.tenant_and_weight();
        task.count_live(context.index, 1);
        self.live += 1;
        self.queue.push(tenant, weight, UNKNOWN_PEER, task);
    }

    /// Puts a polled task back into the queue, or among the finished.
    fn after_poll(&mut self, context: &WorkerContext, mut turn: ScheduledTask<InvocationTask>, outcome: PollOutcome) {
        match outcome {
            PollOutcome::Pending => {
                let misses = turn.task.invocation.take_cold();
                if misses.is_empty() {
                    self.queue.again(turn);
                } else {
                    let task = self.queue.done(turn);
                    self.set_aside(context, task, misses);
                }
            }
            PollOutcome::Preempted => {
                context.counters.preemptions.add(1);
                if let Some(view) = turn.task.invocation.view() {
                    view.tenant.usage.worker(context.index).preemptions.add(1);
                }
                if let Some(extension) = turn.task.invocation.extension() {
                    extension.stats.switched_out(context.index);
                }
                self.queue.switched_out(turn);
            }
            PollOutcome::Done | PollOutcome::Failed { .. } | PollOutcome::Killed(_) => {
                let task = self.queue.done(turn);
                task.count_live(context.index, -1);
                self.live -= 1;
                self.finished.push(FinishedTask { task, outcome });
            }
        }
    }

    /// Offers a neighbour the tasks that this worker will not poll soon.
    pub(super) fn offer_surplus(&mut self, context: &WorkerContext) {
        self.live -= self.offer.begin(context, &mut self.queue, self.last_turn_was_long);
    }

    /// Takes over an invocation that a neighbour offers. Returns whether there was one.
    pub(super) fn steal(&mut self, context: &WorkerContext) -> bool {
        let stealers = &context.shared.stealers;
        for step in 1..stealers.len() {
            let victim = (context.index + step) % stealers.len();
            match stealers[victim].steal() {
                Steal::Success(task) => {
                    self.enqueue(context, task);
                    context.counters.steals.add(1);
                    return true;
                }
                Steal::Empty | Steal::Retry => {}
            }
        }
        false
    }

    /// Counts a task that ended, by `now_ns` of the workers' clock, and takes its memory back. `is_later`: its time
    /// goes on until its reply may leave, and is counted then.
    pub(super) fn release(&mut self, context: &WorkerContext, ended: FinishedTask, (now_ns, is_later): (u64, bool)) {
        let FinishedTask { task, outcome } = ended;
        if IS_OBSERVED {
            task.invocation.count_for_watched_key();
            if !is_later {
                measure_finished(context, &task, &outcome, now_ns);
            }
        }
        count_finished(context, &task, &outcome, now_ns);
        self.engine.finish(&context.participant, task.invocation);
    }
}

fn count_finished(context: &WorkerContext, task: &InvocationTask, outcome: &PollOutcome, now_ns: u64) {
    let invocation = &task.invocation;
    let (Some(view), Some(extension)) = (invocation.view(), invocation.extension()) else { return };
    let tenant = view.tenant.usage.worker(context.index);
    tenant.invocation_cpu_ns.add(invocation.cpu_ns());
    if let Some(TransactionCounts { commits, retries, conflicts }) = invocation.transactions() {
        tenant.transactions_committed.add(commits);
        tenant.transaction_retries.add(retries);
        tenant.transaction_conflicts.add(conflicts);
    }
    match outcome {
        PollOutcome::Pending | PollOutcome::Preempted => {}
        PollOutcome::Done => {
            context.counters.invocations_done.add(1);
            tenant.invocations_done.add(1);
        }
        PollOutcome::Failed { .. } => {
            context.counters.invocations_failed.add(1);
            tenant.invocations_failed.add(1);
        }
        PollOutcome::Killed(cause) => {
            count(&context.counters.invocations_killed, cause_index(*cause));
            count(&tenant.invocations_killed, cause_index(*cause));
            view.tenant.usage.record_kill(KillRecord {
                worker: context.index as u32,
                extension: extension.name.to_string(),
                version: extension.version,
                cause: *cause,
                cpu_us: invocation.cpu_ns() / 1000,
                wall_us: now_ns.saturating_sub(task.received_ns()) / 1000,
                at_ms: context.clock.now_ms,
                text: String::from_utf8_lossy(invocation.text()).into_owned(),
                places: invocation.places().to_vec(),
                arguments: invocation.kept_arguments(),
            });
        }
    }
}

/// The text for a call of an extension that is throttled.
const THROTTLED_TEXT: &str = "quota slow_after_kills: the extension's calls keep being killed, so only some are admitted each \
                           second; `sandstorm kills` shows why";

/// The text for a call whose tenant has as many switched-out invocations as it may.
const NO_STACK_TEXT: &str =
    "the tenant's computations that are switched out hold its share of the side stacks; try again later";

/// The extension that an operation names.
fn find_extension<'v>(
    view: &'v TenantView,
    operation: &Operation<'_>,
    caller: &InvocationCaller,
) -> Result<&'v Arc<LoadedExtension>, (RpcStatus, &'v str)> {
    // Before the name is looked up: a tenant that may have no code may have nothing loaded.
    if let Some(refusal) = view.tenant.code.refusal() {
        return Err((RpcStatus::Suspended, &refusal.text));
    }
    let extension = std::str::from_utf8(operation.key).ok().and_then(|name| view.extension(name));
    let Some(extension) = extension else {
        let text = "the tenant has no extension of this name; `sandstorm ext list` shows those there are";
        return Err((RpcStatus::UnknownExtension, text));
    };
    let extension = match operation.number {
        0 => deployed_version(view, extension, operation.value, caller),
        version => view.callable_version(&extension.name, version).map_err(refused_version)?,
    };
    if let Some(suspension) = view.suspension(&extension.name) {
        return Err((RpcStatus::Suspended, &suspension.text));
    }
    Ok(extension)
}

/// The version that a call goes to which names none: the one that is tried, if the call's key is in its share.
#[inline]
fn deployed_version<'v>(
    view: &'v TenantView,
    current: &'v Arc<LoadedExtension>,
    args: &[u8],
    caller: &InvocationCaller,
) -> &'v Arc<LoadedExtension> {
    let Some(deployment) = view.deployment(&current.name) else { return current };
    // Connections carry calls of Redis clients, whose arguments begin with the keys.
    let first = || match caller.target {
        ReplyTarget::Stream { .. } => RedisCall::parse(args).and_then(|call| call.keys().next()).map(call_key),
        ReplyTarget::Datagram { .. } | ReplyTarget::Local { .. } => None,
    };
    let key = caller.key.or_else(first).unwrap_or_else(|| call_key(&caller.peer.to_le_bytes()));
    let tried = || view.callable_version(&current.name, deployment.version).unwrap_or(current);
    if deployment.has_key(key) { tried() } else { current }
}

/// The status and text for a caller that names a version which is not called.
fn refused_version(refusal: VersionRefusal<'_>) -> (RpcStatus, &str) {
    match refusal {
        VersionRefusal::NotLoaded => {
            (RpcStatus::UnknownExtension, "this version of the extension is not loaded; ask for 0 to get the newest")
        }
        VersionRefusal::OtherTier => (
            RpcStatus::UnknownExtension,
            "this version of the extension was built for another tier; `sandstorm ext rollback` builds it again",
        ),
        VersionRefusal::Rule(why) => (RpcStatus::Suspended, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tenants that begin as many invocations as they can, in turns, until none can begin more.
    fn filled(tenants: usize) -> (usize, Vec<usize>) {
        let mut running = vec![0; tenants];
        loop {
            let before = running.clone();
            for tenant in 0..tenants {
                let live = running.iter().sum();
                running[tenant] += usize::from(check_invocation_limit(live, running[tenant]).is_ok());
            }
            if running == before {
                return (running.iter().sum(), running);
            }
        }
    }

    #[test]
    fn however_many_take_all_they_can_get_another_one_still_gets_in() {
        for tenants in [1, 2, 3, 10, 100, 500] {
            let (live, running) = filled(tenants);
            assert!(check_invocation_limit(live, 0).is_ok(), "{tenants} tenants hold {live}");
            let (least, most) = (running.iter().min(), running.iter().max());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "and share alike: {running:?}");
        }
        assert_eq!(filled(1).0, 1024, "what the limit's documentation says");
        assert!(check_invocation_limit(INVOCATIONS_PER_WORKER, 0).is_err());
    }
}

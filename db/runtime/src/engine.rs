//! A worker's engine, which runs invocations: begin, poll, finish.
//!
//! Guarantees: a library's function is only called with the slot and the invocation that it was made for, on a side
//! stack. The engine holds the invocation alone meanwhile. A switched-out function is resumed at most once, on the
//! stack that it is on.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use super::Watchdog;
use super::cpu_meter::{CpuMeter, OverdueRule};
use super::crowd_trust::CrowdTrust;
use super::guest_memory_pool::GuestMemoryPool;
use super::guest_runner::{GuestEntry, GuestExit, GuestRunner, PollLimits};
use super::guest_stacks::stack_owner;
use super::host::HOST_CALLS;
use super::idle_lists::IdleLists;
use super::invocation::{BeginError, InvocationHandle, InvocationStage, InvocationState, NextPoll, PreemptedStack};
use super::preemption_policy::max_charge_ns;
use super::sandbox_calls::host_function;
use super::stack_switch::SavedContext;
use crate::limits::{IDLE_FOR_OWNERS, IDLE_INVOCATIONS, MAX_DIRTY_INVOCATIONS, RECLAIM_BYTES_PER_TURN};
use sandstorm_accounts::TenantUsage;
use sandstorm_api::abi;
use sandstorm_catalog::TenantView;
use sandstorm_extension::{Budget, CallTrust, InvocationOutcome, KillCause, LoadedExtension};
use sandstorm_store::Participant;

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// The invocation yielded: poll it again.
    Pending,
    /// It exceeded its slice and was switched out: poll it again, on any worker, after others had their turn.
    Preempted,
    /// It returned `Ok(())`; see [`InvocationHandle::reply`].
    Done,
    /// It returned an error; see [`InvocationHandle::text`].
    Failed {
        /// The number of the error's kind.
        code: u32,
    },
    /// The server ended it; see [`InvocationHandle::text`].
    Killed(KillCause),
}

/// A worker's engine; one per thread, and it stays on its thread.
#[derive(Debug)]
pub struct Engine {
    side: GuestRunner,
    memories: GuestMemoryPool,
    worker: usize,
    idle: IdleLists<InvocationHandle>,
    /// [`IDLE_FOR_OWNERS`], but for tests.
    idle_for_owners: usize,
    /// Ended invocations whose memory has yet to go back to the kernel.
    soiled: Vec<InvocationHandle>,
    /// The state of the directory that the worker sees; `None`: the worker has not set it.
    generation: Option<u64>,
    meter: CpuMeter,
    crowd: CrowdTrust,
    /// See [`Engine::limit_slices`].
    longest_slice_ns: u64,
}

impl Engine {
    /// Arms the calling thread: side stack, signal stack, gs base, signal mask (only the watchdog's signal and faults
    /// stay unblocked), registration with the watchdog. Dropping the engine restores all of it. `worker` must differ
    /// from the number of every other engine that runs the same extensions.
    ///
    /// # Errors
    /// `AlreadyExists` if the thread has an engine; otherwise the operating system's error.
    pub fn new(watchdog: &Watchdog, worker: usize) -> io::Result<Engine> {
        let side = GuestRunner::new(watchdog, host_function)?;
        let meter = CpuMeter::new(side.cpu_clock());
        let memories = GuestMemoryPool::new(Arc::clone(&side.watchdog().permits.memories));
        let (idle, soiled) = (IdleLists::new(), Vec::with_capacity(MAX_DIRTY_INVOCATIONS));
        Ok(Engine {
            side,
            memories,
            worker,
            idle,
            idle_for_owners: IDLE_FOR_OWNERS,
            soiled,
            generation: None,
            meter,
            crowd: CrowdTrust::of_worker(worker),
            longest_slice_ns: u64::MAX,
        })
    }

    /// Makes an invocation ready for its first poll; nothing of it runs yet. In the steady state this allocates
    /// nothing.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn begin(
        &mut self,
        view: &Arc<TenantView>,
        extension: &Arc<LoadedExtension>,
        args: &[u8],
        budget: Budget,
    ) -> Result<InvocationHandle, BeginError> {
        self.meter.interrupted();
        let mut invocation = match self.take_idle(view.tenant.serial) {
            Some(idle) => idle,
            None => match InvocationHandle::idle(&HOST_CALLS) {
                Ok(new) => new,
                Err(error) => self.idle.take_any().ok_or(error)?,
            },
        };
        let begun = match extension.library.module() {
            None => invocation.begin(view, extension, args, budget),
            Some(module) => invocation.begin_in(&mut self.memories, module, view, extension, args, budget),
        };
        if let Err(error) = begun {
            self.keep_idle(invocation);
            return Err(error);
        }
        // SAFETY: held alone.
        let body = unsafe { invocation.0.as_mut() };
        body.generation = self.generation;
        body.trust = extension.begun(self.worker);
        body.trust_epoch = self.crowd.epoch();
        self.crowd.begun(body.trust);
        Ok(invocation)
    }

    /// Polls an invocation once: until it yields, ends, is ended, or is switched out because its slice is over.
    /// `interleave`: other invocations are ready, so an awaited read should prefetch and yield. An ended invocation
    /// returns the same result again and does not run.
    pub fn poll(
        &mut self,
        participant: &Participant,
        invocation: &mut InvocationHandle,
        now_ms: u64,
        interleave: bool,
    ) -> PollOutcome {
        let body = invocation.0.as_ptr();
        // SAFETY: `&mut Invocation` holds the body alone; no reference into it is kept across the run.
        let prepared = unsafe {
            match self.meter.overdue(&*body, participant) {
                Some(overdue) if (*body).count_late_poll(overdue.late_polls) => Err(kill_overdue(&mut *body, &overdue)),
                _ => next_poll(&mut *body, participant, now_ms, interleave),
            }
        };
        let next = match prepared {
            Ok(next) => next,
            Err(ended) => return ended,
        };
        let mut step = match next {
            NextPoll::Call(function, slot) => GuestEntry::Call(function, slot),
            NextPoll::Resume(parked) => {
                // SAFETY: as above.
                unsafe { (*body).uncharge(parked.bytes) };
                self.side.adopt(parked.stack);
                GuestEntry::Resume(parked.context)
            }
        };
        loop {
            let started = self.meter.start();
            // SAFETY: as above.
            let terms = unsafe {
                let trust = self.crowd.now((*body).trust_on(self.worker, self.crowd.epoch()));
                poll_limits(&*body, trust, self.longest_slice_ns, participant, body.cast(), started)
            };
            // SAFETY: the slot is this invocation's, made for the library's future, and holds it if the function is
            // `poll`; the body lives on; a half-run future is forgotten with its memory. A resumed function was
            // switched out of this invocation, once, on the stack that was just adopted or is still the current one.
            let ended = unsafe { self.side.run(&terms, step) };
            let (charge_ns, long) = self.meter.stop();
            // SAFETY: the run is over; the body is held alone again.
            let body = unsafe { &mut *body };
            body.polls = body.polls.wrapping_add(1);
            body.shown.raise(participant.shown().take());
            if long {
                self.note_long_poll(body, charge_ns);
            }
            if body.stage == InvocationStage::Begun {
                body.first_poll_ticks = self.meter.ticks;
            }
            let polled = finish_poll(body, ended, charge_ns);
            if matches!(polled, PollOutcome::Pending | PollOutcome::Preempted) && !body.charge_deep_stack() {
                return refuse_stack(body);
            }
            let (PollOutcome::Preempted, GuestExit::Preempted(context)) = (polled, ended) else { return polled };
            if let Some(end) = self.save_preempted(body, context) {
                return end;
            }
            // There is no other stack to continue on: this one has to be used up.
            step = GuestEntry::Resume(context);
        }
    }

    /// Prefetches what the next poll of an invocation touches first, and the record that it awaits, if it has asked for
    /// its bucket and yielded. Call it halfway between its polls, when the bucket has come. `next` is the invocation
    /// that is polled next. The time is charged to its tenant together with that poll, or else to the tenant of `ahead`
    /// here. Returns the latter charge, in nanoseconds, and whether the record may lie in another bucket, which is on
    /// its way now. In that case call this once more, as the last time, when that bucket has come.
    #[inline]
    pub fn prefetch_awaited(
        &mut self,
        ahead: &mut InvocationHandle,
        next: &InvocationHandle,
        last: bool,
    ) -> (u64, bool) {
        // SAFETY: held alone, between two polls.
        let body = unsafe { ahead.0.as_mut() };
        if !last {
            body.prefetch_guest();
        }
        let (table, hash) = body.asked;
        if hash == 0 || body.pin.is_none() {
            return (0, false);
        }
        let others = body.owner != next.owner();
        if others {
            self.meter.start();
        }
        // SAFETY: the invocation's pin is the protection that the buckets need.
        let is_further = body.table(table).is_ok_and(|table| unsafe { table.prefetch_pinned(hash, last) });
        if !is_further {
            body.asked.1 = 0;
        }
        if !others {
            return (0, is_further);
        }
        let (charge_ns, _) = self.meter.stop();
        body.spent_ns += charge_ns;
        (charge_ns, is_further)
    }

    /// Notes a poll that took tens of microseconds.
    #[cold]
    fn note_long_poll(&mut self, body: &mut InvocationState, charge_ns: u64) {
        self.side.note_long_poll();
        let slice_ns = body.slice_ns.min(self.longest_slice_ns);
        if charge_ns > slice_ns {
            self.crowd.note_long_poll(charge_ns - slice_ns);
            if let Some(refs) = &body.refs {
                refs.extension.note_long_poll(self.worker);
            }
        }
    }

    /// Parks the stack of an invocation that was just switched out, or ends the invocation where its tenant may park no
    /// more; `None` if no other stack can be had.
    #[cold]
    fn save_preempted(&mut self, body: &mut InvocationState, context: SavedContext) -> Option<PollOutcome> {
        if body.place.is_none() {
            body.place = body.refs.as_ref().and_then(|refs| self.side.place(&refs.view.tenant.usage));
            if body.place.is_none() {
                return Some(kill(body, KillCause::OutOfMemory, STACK_QUOTA_TEXT.as_bytes()));
            }
        }
        let bytes = self.side.preempted_stack_bytes(context);
        if !body.charge_stack(bytes) {
            return Some(refuse_stack(body));
        }
        let Some(stack) = self.side.park(bytes) else {
            body.uncharge(bytes);
            return None;
        };
        body.parked = Some(PreemptedStack { stack, context, bytes });
        Some(PollOutcome::Preempted)
    }

    /// Returns whether a computation of the tenant with this usage could be switched out: its parked side stacks are
    /// below its limit.
    pub fn has_stack_for(&self, usage: &TenantUsage) -> bool {
        self.side.watchdog().permits.stacks.has_permit_for(usage)
    }

    /// Limits every slice to so much CPU time from now on, whatever the budgets say.
    pub fn limit_slices(&mut self, max_sleep_us: Option<u64>) {
        self.longest_slice_ns = max_sleep_us.map_or(u64::MAX, |us| us * 1000);
    }

    /// Takes an invocation back, ended or not: unpins, counts, forgets its memory.
    pub fn finish(&mut self, participant: &Participant, mut invocation: InvocationHandle) {
        self.meter.interrupted();
        // SAFETY: held alone.
        let body = unsafe { invocation.0.as_mut() };
        if let Some(parked) = body.parked.take() {
            self.side.discard(parked.stack);
        }
        if let Some(pin) = body.pin.take() {
            participant.unpin(pin);
        }
        let outcome = match body.stage {
            InvocationStage::Ended(outcome) => outcome,
            InvocationStage::Begun
            | InvocationStage::Pending
            | InvocationStage::Preempted
            | InvocationStage::Retrying => InvocationOutcome::Killed(KillCause::Unloaded),
        };
        body.log_kill(outcome);
        if let Some(refs) = &body.refs {
            refs.extension.stats.ended(self.worker, outcome, body.spent_ns);
            if let Some(transactions) = body.transaction.counted() {
                refs.extension.stats.transaction(self.worker, transactions);
            }
        }
        if let Some(mut memory) = body.guest_memory.take() {
            self.side.forget_guest_memory();
            memory.ended_well = matches!(outcome, InvocationOutcome::Done | InvocationOutcome::Failed);
            self.memories.keep(memory, body.guest_hot_len(), |bytes| body.move_charge(bytes));
        }
        let outdated = self.generation.is_none() || body.generation != self.generation;
        invocation.end();
        if outdated {
            invocation.release();
        }
        if invocation.unreclaimed_bytes() > RECLAIM_BYTES_PER_TURN {
            if self.soiled.len() >= MAX_DIRTY_INVOCATIONS {
                self.reclaim_last(usize::MAX);
            }
            self.soiled.push(invocation);
        } else {
            invocation.tidy(usize::MAX);
            self.keep_idle(invocation);
        }
    }

    /// Gives a part of the ended invocations' memory back to the kernel: megabytes at a time would delay the worker.
    /// Returns whether there was any. Call it once a loop turn.
    pub fn tidy(&mut self) -> bool {
        self.meter.interrupted();
        self.memories.reclaim(RECLAIM_BYTES_PER_TURN) || self.reclaim_last(RECLAIM_BYTES_PER_TURN)
    }

    /// Gives up to so many bytes of the invocation that was put aside last back; returns whether there is one.
    fn reclaim_last(&mut self, bytes: usize) -> bool {
        let Some(mut invocation) = self.soiled.pop() else { return false };
        invocation.tidy(bytes);
        if invocation.unreclaimed_bytes() > 0 {
            self.soiled.push(invocation);
        } else {
            self.keep_idle(invocation);
        }
        true
    }

    /// Sets the state of the directory that its worker sees. From then on idle invocations keep their view and
    /// extension for the next call of the same; with another state they release them.
    pub fn sees(&mut self, generation: u64) {
        if self.generation != Some(generation) {
            self.generation = Some(generation);
            self.idle.for_each(InvocationHandle::release);
            self.soiled.iter_mut().for_each(InvocationHandle::release);
        }
    }

    /// Notes that the worker has done other work since the last poll, so that no tenant is charged for it. `begin` and
    /// `finish` imply it; call it where polls follow other work, such as once a loop turn.
    pub fn turn(&mut self) {
        self.meter.interrupted();
    }

    /// Returns the worker's number.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// As [`GuestRunner::announce_only`].
    #[cfg(test)]
    pub(super) fn announce_only(&self, first: impl FnOnce()) {
        let terms = PollLimits {
            participant: std::ptr::null(),
            invocation: std::ptr::null_mut(),
            guest_memory: std::ptr::null_mut(),
            guest_invocation: std::ptr::null_mut(),
            stack_owner: 0,
            trust: CallTrust::Unknown,
            limit_ns: 0,
            left_ns: 0,
            started: super::clock::ticks(),
        };
        self.side.announce_only(&terms, first);
    }

    /// Makes no new side stacks from now on.
    #[cfg(test)]
    pub(super) fn stop_making_stacks(&mut self) {
        self.side.stacks().stop_making_stacks();
    }

    /// Gives tenants one another's idle invocations from now on, rather than new ones.
    #[cfg(test)]
    pub(super) fn stop_making_invocations(&mut self) {
        self.idle_for_owners = 0;
    }

    /// Returns an idle invocation, preferably one that this tenant used before: it needs no clearing. `None`: a new one
    /// is to be made.
    fn take_idle(&mut self, tenant: u64) -> Option<InvocationHandle> {
        // A body of the same tenant needs no clearing, and giving megabytes back would delay the worker.
        if let Some(own) = self.soiled.iter().rposition(|ended| ended.owner() == tenant) {
            return Some(self.soiled.swap_remove(own));
        }
        if let Some((own, next)) = self.idle.take_own(tenant) {
            // The bodies that are taken next, if more are begun: after hundreds they were used long ago.
            if let [.., after, next] = next {
                after.prefetch();
                next.prefetch_arena();
            }
            return Some(own);
        }
        if self.idle.len() == 0 {
            let mut spare = Vec::new();
            self.side.watchdog().take_spare(&mut spare, IDLE_INVOCATIONS / 2);
            let is_any = !spare.is_empty();
            spare.into_iter().for_each(|idle| self.idle.keep(idle.owner(), idle));
            return if is_any { self.idle.take_any() } else { None };
        }
        if self.idle.len() >= self.idle_for_owners { self.idle.take_any() } else { None }
    }

    /// Keeps an idle invocation; where many gather, as on a worker that steals, half of them go to engines that have
    /// none.
    fn keep_idle(&mut self, invocation: InvocationHandle) {
        if self.idle.len() >= IDLE_INVOCATIONS {
            let surplus = std::iter::from_fn(|| self.idle.take_any()).take(IDLE_INVOCATIONS / 2);
            let spare = surplus.map(|mut idle| {
                idle.release();
                idle
            });
            self.side.watchdog().give_spare(spare);
        }
        self.idle.keep(invocation.owner(), invocation);
    }
}

/// Returns the next poll's action, or how the invocation has ended.
fn next_poll(
    body: &mut InvocationState,
    participant: &Participant,
    now_ms: u64,
    interleave: bool,
) -> Result<NextPoll, PollOutcome> {
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
fn kill_overdue(body: &mut InvocationState, overdue: &OverdueRule) -> PollOutcome {
    kill(body, overdue.cause, overdue.text.as_bytes())
}

/// Ends an invocation from outside of its code.
fn kill(body: &mut InvocationState, cause: KillCause, text: &[u8]) -> PollOutcome {
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
fn finish_committed(body: &mut InvocationState) -> PollOutcome {
    body.stage = InvocationStage::Ended(InvocationOutcome::Done);
    PollOutcome::Done
}

/// Returns the limits of the next run.
fn poll_limits(
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
pub(super) fn finish_poll(body: &mut InvocationState, ended: GuestExit, charge_ns: u64) -> PollOutcome {
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
fn refuse_stack(body: &mut InvocationState) -> PollOutcome {
    let killed = kill(body, KillCause::OutOfMemory, NO_STACK_MEMORY_TEXT.as_bytes());
    body.append_quota_name();
    killed
}

/// The text of an invocation that is ended instead of being switched out.
const NO_STACK_MEMORY_TEXT: &str =
    "it computed past its slice, and there is no memory to keep its stack while others have their turn";

/// The same where its tenant's invocations have reached their limit of side stacks.
const STACK_QUOTA_TEXT: &str = "it computed past its slice, and too many invocations of the tenant are switched out already: they hold its \
                          share of the side stacks";

fn outcome_of(outcome: InvocationOutcome, code: u32) -> PollOutcome {
    match outcome {
        InvocationOutcome::Done => PollOutcome::Done,
        InvocationOutcome::Failed => PollOutcome::Failed { code },
        InvocationOutcome::Killed(cause) => PollOutcome::Killed(cause),
    }
}

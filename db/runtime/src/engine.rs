//! A worker's engine, which runs invocations: begin, poll, finish.
//!
//! Guarantees: a library's function is only called with the slot and the invocation that it was made for, on a side
//! stack. The engine holds the invocation alone meanwhile. A switched-out function is resumed at most once, on the
//! stack that it is on.
#![allow(unsafe_code)]

mod calls;
mod poll_steps;
mod positions;

use std::io;
use std::sync::Arc;

use super::Watchdog;
use super::begin_error::BeginError;
use super::cpu_meter::CpuMeter;
use super::guest_memory_pool::GuestMemoryPool;
#[cfg(test)]
use super::guest_runner::PollLimits;
use super::guest_runner::{GuestEntry, GuestExit, GuestRunner};
use super::host::HOST_CALLS;
use super::idle_lists::IdleLists;
use super::invocation::{InvocationHandle, InvocationStage, InvocationState, NextPoll, PreemptedStack};
use super::kill_trace::note_killed;
use super::sandbox_calls::host_function;
use super::shared_trust::SharedTrust;
use super::stack_switch::SavedContext;
use crate::limits::{IDLE_FOR_OWNERS, IDLE_INVOCATIONS, MAX_DIRTY_INVOCATIONS, RECLAIM_BYTES_PER_TURN};
pub(super) use poll_steps::finish_poll;
use poll_steps::{STACK_QUOTA_TEXT, kill, kill_overdue, next_poll, poll_limits, refuse_stack};
pub use positions::{CallActivity, CallLevel, PositionQuery};
use sandstorm_accounts::TenantUsage;
use sandstorm_catalog::TenantView;
#[cfg(test)]
use sandstorm_extension::CallTrust;
use sandstorm_extension::{Budget, InvocationOutcome, KillCause, LoadedExtension};
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
    crowd: SharedTrust,
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
            crowd: SharedTrust::of_worker(worker),
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
        // SAFETY: held alone.
        if unsafe { invocation.0.as_ref() }.calls.is_some() {
            return self.poll_in_call(participant, invocation, now_ms, interleave);
        }
        let polled = self.poll_own(participant, invocation, now_ms, interleave);
        if polled == PollOutcome::Pending {
            self.begin_requested(invocation);
        }
        polled
    }

    /// Polls the invocation itself, whatever it has called.
    fn poll_own(
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
                (*body).end_pause(started);
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
            body.end_cold_calls(participant);
            body.take_lock_waits(participant);
            if long {
                self.note_long_poll(body, charge_ns);
            }
            if body.stage == InvocationStage::Begun {
                body.first_poll_ticks = self.meter.ticks;
            }
            let polled = finish_poll(body, ended, charge_ns);
            if matches!(polled, PollOutcome::Pending | PollOutcome::Preempted) {
                body.begin_pause(self.meter.ticks);
                if !body.charge_deep_stack() {
                    let refused = refuse_stack(body);
                    return self.ended(body, refused, ended);
                }
            }
            let (PollOutcome::Preempted, GuestExit::Preempted(context)) = (polled, ended) else {
                return self.ended(body, polled, ended);
            };
            if let Some(end) = self.save_preempted(body, context) {
                return self.ended(body, end, ended);
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
        if hash == 0 || body.pin.is_none() || body.calls.is_some() {
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

    /// Returns an outcome; of a kill it notes first where the code was.
    #[inline]
    fn ended(&self, body: &mut InvocationState, outcome: PollOutcome, exit: GuestExit) -> PollOutcome {
        if let PollOutcome::Killed(cause) = outcome {
            note_killed(&self.side, body, cause, exit);
        }
        outcome
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

    /// From now on, each poll of an invocation that is under way for 50 ms ends it: the server stops.
    pub fn stop_calls(&mut self) {
        self.meter.stop_calls();
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
        let calls = body.calls.take();
        let callee_ns = calls.as_ref().map_or(0, |calls| calls.callee_ns);
        if let Some(callee) = calls.and_then(|calls| calls.callee) {
            self.finish(participant, callee);
        }
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
            refs.extension.stats.ended(self.worker, outcome, body.spent_ns - callee_ns);
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

    /// Keeps no more than so many side stacks from now on; others are handed on.
    #[cfg(test)]
    pub(super) fn keep_no_more_stacks_than(&mut self, room: usize) {
        self.side.stacks().keep_no_more_than(room);
    }

    /// Gives tenants one another's idle invocations from now on, rather than new ones.
    #[cfg(test)]
    pub(super) fn stop_making_invocations(&mut self) {
        self.idle_for_owners = 0;
    }

    /// The memories of sandboxed invocations.
    #[cfg(test)]
    pub(super) fn memories(&mut self) -> &mut GuestMemoryPool {
        &mut self.memories
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
            if is_any {
                return self.idle.take_any();
            }
        }
        if self.idle.len() >= self.idle_for_owners {
            return self.idle.take_for_another();
        }
        self.idle.note_room();
        None
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

//! A worker's side stacks, armed: runs a library's function until it returns, is landed, or is switched out.
//!
//! Guarantees: while a [`GuestRunner`] lives, its thread's gs base is its block whenever native code runs, and the base
//! of a module's memory whenever its code runs; its handlers' stack is its own, and the watchdog knows the thread. It
//! stays on the thread that made it.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use sandstorm_api::abi;

use super::guest_memory::GuestMemory;
use super::guest_registers::GuestRegisters;
use super::guest_stacks::{GuestStack, GuestStackPool};
use super::guest_walk::OpenStack;
use super::sandbox_switch::{enter_sandboxed, resume_sandboxed, set_gs_base};
use super::signals::SignalGuard;
use super::stack_switch::{self, GuestFunction, SWITCHED_OUT, SavedContext, TRAPPED};
use super::tenant_permits::TenantPermit;
use super::watchdog::{Watchdog, WatchdogState};
use super::worker_block::{HostFunctionEntry, WorkerBlock};
use crate::limits::SUSPENDED_STACK_BYTES;
use sandstorm_accounts::TenantUsage;
use sandstorm_accounts::limits::MEMORY_UNIT_BYTES;
use sandstorm_extension::{CallTrust, KillCause};
use sandstorm_store::Participant;

/// The result of a call on the side stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestExit {
    /// The function returned this.
    Returned(u32),
    /// The function was landed.
    Trapped(KillCause),
    /// The function was switched out, and is to be resumed here.
    Preempted(SavedContext),
}

/// The code to run.
#[derive(Clone, Copy, Debug)]
pub(super) enum GuestEntry {
    /// A library's function, with its slot.
    Call(GuestFunction, *mut u8),
    /// The function that was switched out on the current stack.
    Resume(SavedContext),
}

/// The tenant and the limits of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollLimits {
    pub(super) participant: *const Participant,
    pub(super) invocation: *mut abi::InvocationHeader,
    /// The memory of sandboxed code; null: the code is native.
    pub(super) guest_memory: *mut GuestMemory,
    /// What sandboxed code is given as its invocation.
    pub(super) guest_invocation: *mut abi::InvocationHeader,
    /// Whose stacks it runs on: see [`super::guest_stacks::stack_owner`].
    pub(super) stack_owner: u64,
    /// The trust in the code that runs.
    pub(super) trust: CallTrust,
    /// CPU time until the run is switched out, and its invocation's total CPU time left.
    pub(super) limit_ns: u64,
    pub(super) left_ns: u64,
    /// The processor's counter now.
    pub(super) started: u64,
}

#[derive(Debug)]
pub(super) struct GuestRunner {
    block: Arc<WorkerBlock>,
    watchdog: Arc<WatchdogState>,
    _signal_guard: SignalGuard,
    stacks: GuestStackPool,
    /// The thread's gs base: the block, or the base of the memory of the sandboxed code that ran last.
    gs_base: usize,
    /// Binds the value to its thread.
    _thread: PhantomData<*mut ()>,
}

impl GuestRunner {
    /// Arms the calling thread. `host_function` serves the calls of sandboxed code.
    pub(super) fn new(watchdog: &Watchdog, host_function: HostFunctionEntry) -> io::Result<GuestRunner> {
        let stacks = GuestStackPool::new()?;
        let block = WorkerBlock::new(host_function)?;
        block.set_stack(stacks.current());
        // SAFETY: dropped with the side, which stays on this thread (`_thread`).
        let armour = unsafe { SignalGuard::install(Arc::clone(&block))? };
        let watchdog = Arc::clone(watchdog.shared());
        watchdog.register(&block);
        let gs_base = Arc::as_ptr(&block).expose_provenance();
        Ok(GuestRunner { block, watchdog, _signal_guard: armour, stacks, gs_base, _thread: PhantomData })
    }

    /// Calls `function(slot, invocation)` on a side stack of the tenant's, or resumes such a call. Where another
    /// tenant's code ran before, no trace of it is left in the stack or in a register.
    ///
    /// # Safety
    /// The function takes these arguments; the invocation is live; nothing is lost if the function is ended halfway. A
    /// context is one that [`GuestRunner::run`] gave for the invocation, on this side or another, and that has not been
    /// resumed; the stack that it lies on is the current one.
    #[inline]
    pub(super) unsafe fn run(&mut self, terms: &PollLimits, step: GuestEntry) -> GuestExit {
        let changes = self.stacks.owner() != terms.stack_owner;
        if changes {
            self.choose(terms.stack_owner);
        }
        let block = Arc::as_ptr(&self.block);
        // Set anew each time: the memory may have run on another worker since, which its control page names.
        if !terms.guest_memory.is_null() || self.gs_base != block.addr() {
            self.set_guest_memory(terms.guest_memory);
        }
        self.announce(terms);
        // SAFETY: this function's contract; this thread is armed and in host state, since `&mut self` excludes that
        // this is called from a host call of a call under way. A switched-out function's registers are all its own.
        let answer = unsafe {
            match step {
                GuestEntry::Call(function, slot) if !terms.guest_memory.is_null() => {
                    enter_sandboxed(function, slot, terms.guest_invocation, block)
                }
                GuestEntry::Call(function, slot) if changes => {
                    stack_switch::enter_clean(function, slot, terms.invocation)
                }
                GuestEntry::Call(function, slot) => stack_switch::enter(function, slot, terms.invocation),
                GuestEntry::Resume(context) if !terms.guest_memory.is_null() => resume_sandboxed(context.at, block),
                GuestEntry::Resume(context) => stack_switch::resume(context.at),
            }
        };
        self.over();
        match answer.checked_sub(TRAPPED) {
            None => GuestExit::Returned(answer),
            Some(number) => self.left(number),
        }
    }

    /// Names the memory of the code that runs next, and this worker in it. Null: native code runs next.
    fn set_guest_memory(&mut self, memory: *mut GuestMemory) {
        let own = Arc::as_ptr(&self.block).expose_provenance();
        // SAFETY: null, or the memory of the invocation that is about to run, which its engine holds alone.
        let base = unsafe { memory.as_ref() }.map_or(0, |memory| {
            memory.set_worker(own);
            memory.base()
        });
        let gs_base = if memory.is_null() { own } else { base };
        if self.gs_base != gs_base {
            self.gs_base = gs_base;
            // SAFETY: in host state; it is what the code that is entered next relies on; a module is or was loaded.
            unsafe { set_gs_base(gs_base) };
        }
        self.block.guest_base.store(base, Ordering::Relaxed);
        self.block.guest_memory.store(memory, Ordering::Relaxed);
    }

    /// Forgets the memory of code that ran here: it may go, or run elsewhere. gs stays what it is: its base is an
    /// address that nothing uses until the next run, which knows that it is not the block.
    #[inline]
    pub(super) fn forget_guest_memory(&self) {
        self.block.guest_base.store(0, Ordering::Relaxed);
        self.block.guest_memory.store(std::ptr::null_mut(), Ordering::Relaxed);
    }

    /// Tells the watchdog of a poll that is about to begin.
    #[inline(always)]
    fn announce(&self, terms: &PollLimits) {
        let block = &*self.block;
        block.current.store(terms.invocation, Ordering::Relaxed);
        block.participant.store(terms.participant.cast_mut(), Ordering::Relaxed);
        block.limit_ns.store(terms.limit_ns, Ordering::Relaxed);
        block.left_ns.store(terms.left_ns, Ordering::Relaxed);
        block.started.store(terms.started, Ordering::Release);
        let sequence = block.sequence.load(Ordering::Relaxed).wrapping_add(1);
        if terms.trust < CallTrust::Proven {
            block.unproven.store(sequence, Ordering::Release);
            if terms.trust < CallTrust::Known {
                block.unknown.store(sequence, Ordering::Release);
            }
        }
        block.sequence.store(sequence, Ordering::Release);
        self.watchdog.ensure_awake(terms.trust);
        compiler_fence(Ordering::SeqCst);
    }

    /// Tells the watchdog that the poll is over.
    #[inline(always)]
    fn over(&self) {
        compiler_fence(Ordering::SeqCst);
        let block = &*self.block;
        block.ended.store(block.sequence.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Tells the watchdog of a poll, spends the poll's time on something else, and runs no poll after all: as if the
    /// processor had been taken away just before it.
    #[cfg(test)]
    pub(super) fn announce_only<T>(&self, terms: &PollLimits, first: impl FnOnce() -> T) -> T {
        self.announce(terms);
        let done = first();
        self.over();
        done
    }

    /// Returns the meaning of a call that did not return.
    #[cold]
    fn left(&self, number: u32) -> GuestExit {
        if std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has the instruction. A landed memcpy may have left upper halves dirty, which would
            // slow all later SSE code down; no code keeps values there across a call.
            unsafe { std::arch::asm!("vzeroupper", options(nomem, nostack, preserves_flags), clobber_abi("C")) };
        }
        let context = self.block.context.swap(0, Ordering::Relaxed);
        if number == SWITCHED_OUT - TRAPPED && context != 0 {
            let at = std::ptr::with_exposed_provenance_mut(context);
            return GuestExit::Preempted(SavedContext { at });
        }
        let cause = u8::try_from(number).ok().and_then(KillCause::from_byte);
        GuestExit::Trapped(cause.unwrap_or(KillCause::IllegalInstruction))
    }

    /// Returns where the code was that was landed last; `None`: that is not known.
    pub(super) fn take_trapped(&self) -> Option<GuestRegisters> {
        let block = &*self.block;
        let take = |word: &std::sync::atomic::AtomicUsize| word.swap(0, Ordering::Relaxed);
        let (instruction, frame) = (take(&block.trap_instruction), take(&block.trap_frame));
        let stack = take(&block.trap_stack);
        (stack != 0).then_some(GuestRegisters { instruction, stack, frame })
    }

    /// The current stack, to be read.
    ///
    /// # Safety
    /// No code runs until the value is not used any more.
    pub(super) unsafe fn open_stack<'a>(&self) -> OpenStack<'a> {
        // SAFETY: this function's contract; a runner stays on its thread.
        unsafe { OpenStack::of_block(&self.block) }
    }

    /// Makes the current stack one of this owner's.
    #[cold]
    fn choose(&mut self, owner: u64) {
        self.note_opened();
        self.stacks.choose(owner);
        self.block.set_stack(self.stacks.current());
    }

    /// Tells the pool if code has opened the current stack.
    fn note_opened(&mut self) {
        if self.block.closed_end.load(Ordering::Relaxed) == 0 {
            self.stacks.note_opened();
        }
    }

    /// Returns a permit to park a stack of the tenant with this usage; `None` if it has reached its limit.
    pub(super) fn place(&self, usage: &Arc<TenantUsage>) -> Option<TenantPermit> {
        self.watchdog.permits.stacks.take(usage)
    }

    /// Returns the bytes of the current stack that stay in memory if it is parked with a switched-out function, whole
    /// pages.
    pub(super) fn preempted_stack_bytes(&self, context: SavedContext) -> usize {
        let used = self.block.stack_top.load(Ordering::Relaxed).saturating_sub(context.at.addr());
        used.max(SUSPENDED_STACK_BYTES).next_multiple_of(MEMORY_UNIT_BYTES)
    }

    /// Parks the current stack with the function that was switched out on it, and so many bytes of it; `None`, and
    /// nothing changes, if no other can be had.
    pub(super) fn park(&mut self, bytes: usize) -> Option<GuestStack> {
        self.note_opened();
        let parked = self.stacks.park(bytes);
        self.block.set_stack(self.stacks.current());
        parked
    }

    /// Makes a stack that was parked here or elsewhere the current one.
    pub(super) fn adopt(&mut self, stack: GuestStack) {
        self.note_opened();
        self.stacks.adopt(stack);
        self.block.set_stack(self.stacks.current());
    }

    /// Takes a stack whose invocation is not resumed.
    pub(super) fn discard(&mut self, stack: GuestStack) {
        self.stacks.keep(stack);
    }

    /// Notes that a poll took long: it may have used much of the stack.
    pub(super) fn note_long_poll(&mut self) {
        self.stacks.note_long_poll();
    }

    /// The side stacks.
    #[cfg(test)]
    pub(super) fn stacks(&mut self) -> &mut GuestStackPool {
        &mut self.stacks
    }

    /// Returns the state that the engines of this watchdog share.
    pub(super) fn watchdog(&self) -> &WatchdogState {
        &self.watchdog
    }

    /// Returns the thread's block.
    pub(super) fn block(&self) -> Arc<WorkerBlock> {
        Arc::clone(&self.block)
    }

    /// Returns the clock of this thread's CPU time.
    pub(super) fn cpu_clock(&self) -> libc::clockid_t {
        self.block.cpu_clock
    }
}

impl Drop for GuestRunner {
    fn drop(&mut self) {
        self.watchdog.unregister(&self.block);
    }
}

//! A worker's side stacks, armed: runs a library's function until it returns, is landed, or is switched out.
//!
//! Guarantees: while a [`Side`] lives, its thread's gs base is its block, its handlers' stack is its own, and the watchdog
//! knows the thread. It stays on the thread that made it.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use sandstorm_api::abi;

use super::block::Block;
use super::parking::Place;
use super::signals::Armour;
use super::stacks::{Stack, Stacks};
use super::switch::{self, Entry, LANDED, SWITCHED_OUT};
use super::watchdog::{Shared, Watchdog};
use crate::limits::PARKED_STACK_BYTES;
use sandstorm_accounts::Usage;
use sandstorm_accounts::limits::MEMORY_UNIT_BYTES;
use sandstorm_extension::KillCause;
use sandstorm_store::Participant;

/// How a call on the side stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It returned this.
    Returned(u32),
    /// It was landed.
    Landed(KillCause),
    /// It was switched out, and is to be resumed here.
    SwitchedOut(Context),
}

/// Where a function that was switched out goes on: an address on the stack that it ran on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context(*mut u8);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A library's function, with its slot.
    Call(Entry, *mut u8),
    /// What was switched out on the stack that is the current one now.
    Resume(Context),
}

/// For whom, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) participant: *const Participant,
    pub(super) invocation: *mut abi::Invocation,
    /// The tenant's serial number.
    pub(super) tenant: u64,
    /// The extension has had no long poll for thousands of calls.
    pub(super) proven: bool,
    /// CPU time until it is switched out, and what its invocation has left in all.
    pub(super) limit_ns: u64,
    pub(super) left_ns: u64,
    /// The processor's counter now.
    pub(super) started: u64,
}

#[derive(Debug)]
pub(super) struct Side {
    block: Arc<Block>,
    watchdog: Arc<Shared>,
    _armour: Armour,
    stacks: Stacks,
    /// Bound to its thread.
    _thread: PhantomData<*mut ()>,
}

impl Side {
    /// Arms the calling thread.
    pub(super) fn new(watchdog: &Watchdog) -> io::Result<Side> {
        let stacks = Stacks::new()?;
        let block = Block::new()?;
        block.set_stack(stacks.current().mapping());
        // SAFETY: dropped with the side, which stays on this thread (`_thread`).
        let armour = unsafe { Armour::put_on(Arc::clone(&block))? };
        let watchdog = Arc::clone(watchdog.shared());
        watchdog.register(&block);
        Ok(Side { block, watchdog, _armour: armour, stacks, _thread: PhantomData })
    }

    /// Calls `function(slot, invocation)` on a side stack of the tenant's, or resumes such a call. Where another tenant's
    /// code ran before, nothing of that is left in the stack or in a register.
    ///
    /// # Safety
    /// The function takes these arguments; the invocation is live; nothing is lost if the function is ended halfway. A
    /// context is one that [`Side::run`] gave for the invocation, on this side or another, and that has not been resumed;
    /// the stack that it lies on is the current one.
    #[inline]
    pub(super) unsafe fn run(&mut self, terms: &Terms, step: Step) -> Ended {
        let changes = self.stacks.owner() != terms.tenant;
        if changes {
            self.choose(terms.tenant);
        }
        self.announce(terms);
        // SAFETY: this function's contract; this thread is armed and in host state, since `&mut self` excludes that this
        // is called from a host call of a call under way. A switched-out function's registers are all its own.
        let answer = unsafe {
            match step {
                Step::Call(function, slot) if changes => switch::enter_clean(function, slot, terms.invocation),
                Step::Call(function, slot) => switch::enter(function, slot, terms.invocation),
                Step::Resume(context) => switch::resume(context.0),
            }
        };
        self.over();
        match answer.checked_sub(LANDED) {
            None => Ended::Returned(answer),
            Some(number) => self.left(number),
        }
    }

    /// Tells the watchdog of a poll that is about to begin.
    #[inline(always)]
    fn announce(&self, terms: &Terms) {
        let block = &*self.block;
        block.current.store(terms.invocation, Ordering::Relaxed);
        block.participant.store(terms.participant.cast_mut(), Ordering::Relaxed);
        block.limit_ns.store(terms.limit_ns, Ordering::Relaxed);
        block.left_ns.store(terms.left_ns, Ordering::Relaxed);
        block.started.store(terms.started, Ordering::Release);
        let sequence = block.sequence.load(Ordering::Relaxed).wrapping_add(1);
        if !terms.proven {
            block.wary.store(sequence, Ordering::Release);
        }
        block.sequence.store(sequence, Ordering::Release);
        self.watchdog.ensure_awake(terms.proven);
        compiler_fence(Ordering::SeqCst);
    }

    /// Tells it that the poll is over.
    #[inline(always)]
    fn over(&self) {
        compiler_fence(Ordering::SeqCst);
        let block = &*self.block;
        block.ended.store(block.sequence.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Tells the watchdog of a poll, does something else first for as long as that takes, and runs no poll after all: as if the
    /// processor had been taken away just before it.
    #[cfg(test)]
    pub(super) fn announce_only<T>(&self, terms: &Terms, first: impl FnOnce() -> T) -> T {
        self.announce(terms);
        let done = first();
        self.over();
        done
    }

    /// What it means that a call did not return.
    #[cold]
    fn left(&self, number: u32) -> Ended {
        if std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has the instruction. A landed memcpy may have left upper halves dirty, which would
            // slow all later SSE code down; nobody keeps values there across a call.
            unsafe { std::arch::asm!("vzeroupper", options(nomem, nostack, preserves_flags), clobber_abi("C")) };
        }
        let context = self.block.context.swap(0, Ordering::Relaxed);
        if number == SWITCHED_OUT - LANDED && context != 0 {
            return Ended::SwitchedOut(Context(std::ptr::with_exposed_provenance_mut(context)));
        }
        let cause = u8::try_from(number).ok().and_then(KillCause::from_byte);
        Ended::Landed(cause.unwrap_or(KillCause::IllegalInstruction))
    }

    /// Makes the current stack one of this tenant's.
    #[cold]
    fn choose(&mut self, tenant: u64) {
        self.stacks.choose(tenant);
        self.block.set_stack(self.stacks.current().mapping());
    }

    /// A place to keep a stack of the tenant with this usage; `None` if it has its share of them.
    pub(super) fn place(&self, usage: &Arc<Usage>) -> Option<Place> {
        self.watchdog.lot.take(usage)
    }

    /// Bytes of the current stack that stay in memory if what was switched out on it is parked, whole pages.
    pub(super) fn bytes_to_keep(&self, context: Context) -> usize {
        let used = self.block.stack_top.load(Ordering::Relaxed).saturating_sub(context.0.addr());
        used.max(PARKED_STACK_BYTES).next_multiple_of(MEMORY_UNIT_BYTES)
    }

    /// Takes the current stack away with what was switched out on it, and so many bytes of it; `None`, and nothing changes, if no
    /// other can be had.
    pub(super) fn park(&mut self, bytes: usize) -> Option<Stack> {
        let parked = self.stacks.park(bytes);
        self.block.set_stack(self.stacks.current().mapping());
        parked
    }

    /// Makes a stack the current one that was taken away here or elsewhere.
    pub(super) fn adopt(&mut self, stack: Stack) {
        self.stacks.adopt(stack);
        self.block.set_stack(self.stacks.current().mapping());
    }

    /// Takes a stack whose invocation is not resumed.
    pub(super) fn discard(&mut self, stack: Stack) {
        self.stacks.keep(stack);
    }

    /// Notes that a poll took long: it may have used much of the stack.
    pub(super) fn ran_long(&mut self) {
        self.stacks.ran_long();
    }

    /// The side stacks.
    #[cfg(test)]
    pub(super) fn stacks(&mut self) -> &mut Stacks {
        &mut self.stacks
    }

    /// What the engines of this watchdog share.
    pub(super) fn watchdog(&self) -> &Shared {
        &self.watchdog
    }

    /// The clock of this thread's CPU time.
    pub(super) fn cpu_clock(&self) -> libc::clockid_t {
        self.block.cpu_clock
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.watchdog.unregister(&self.block);
    }
}

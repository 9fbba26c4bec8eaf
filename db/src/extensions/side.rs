//! A worker's side stack, armed: runs a library's function with a limit on its CPU time.
//!
//! Guarantees: while a [`Side`] lives, its thread's gs base is its block, its handlers' stack is its own, and the watchdog
//! knows the thread. It stays on the thread that made it.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use sandstorm_api::abi;

use super::KillCause;
use super::block::Block;
use super::signals::Armour;
use super::stack::Mapping;
use super::switch::{self, Entry, LANDED};
use super::watchdog::{Shared, Watchdog};
use crate::limits::{HOST_CALL_STACK_BYTES, SIDE_STACK_BYTES, STACK_GUARD_BYTES};
use crate::store::Participant;

/// How a call on the side stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It returned this.
    Returned(u32),
    /// It was landed.
    Landed(KillCause),
}

#[derive(Debug)]
pub(super) struct Side {
    block: Arc<Block>,
    watchdog: Arc<Shared>,
    _armour: Armour,
    _stack: Mapping,
    /// Bound to its thread.
    _thread: PhantomData<*mut ()>,
}

impl Side {
    /// Arms the calling thread.
    pub(super) fn new(watchdog: &Watchdog) -> io::Result<Side> {
        let mut stack = Mapping::new(SIDE_STACK_BYTES, STACK_GUARD_BYTES)?;
        // A deep recursion is to end at the stack's end, not on the time that page faults take.
        stack.touch();
        let floor = stack.low().addr() + HOST_CALL_STACK_BYTES;
        let block = Block::new(stack.top().addr(), floor, stack.guard())?;
        // SAFETY: dropped with the side, which stays on this thread (`_thread`).
        let armour = unsafe { Armour::put_on(Arc::clone(&block))? };
        let watchdog = Arc::clone(watchdog.shared());
        watchdog.register(&block);
        Ok(Side { block, watchdog, _armour: armour, _stack: stack, _thread: PhantomData })
    }

    /// Calls `function(slot, invocation)` on the side stack; ends it when it takes more CPU time than `limit_ns`.
    ///
    /// # Safety
    /// `function` takes these arguments; `invocation` is live; nothing is lost if the function is ended halfway.
    #[inline]
    pub(super) unsafe fn run(
        &mut self,
        participant: *const Participant,
        function: Entry,
        slot: *mut u8,
        invocation: *mut abi::Invocation,
        limit_ns: u64,
    ) -> Ended {
        let block = &*self.block;
        block.current.store(invocation, Ordering::Relaxed);
        block.participant.store(participant.cast_mut(), Ordering::Relaxed);
        block.limit_ns.store(limit_ns, Ordering::Release);
        block.sequence.store(block.sequence.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.watchdog.ensure_awake();
        compiler_fence(Ordering::SeqCst);
        // SAFETY: this function's contract; this thread is armed and in host state, since `&mut self` excludes that this
        // is called from a host call of a call under way.
        let answer = unsafe { switch::enter(function, slot, invocation) };
        compiler_fence(Ordering::SeqCst);
        match answer.checked_sub(LANDED) {
            None => Ended::Returned(answer),
            Some(number) => landed(number),
        }
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

#[cold]
fn landed(number: u32) -> Ended {
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has the instruction. A landed memcpy may have left upper halves dirty, which would slow
        // all later SSE code down; nobody keeps values there across a call.
        unsafe { std::arch::asm!("vzeroupper", options(nomem, nostack, preserves_flags), clobber_abi("C")) };
    }
    let cause = u8::try_from(number).ok().and_then(KillCause::from_byte);
    Ended::Landed(cause.unwrap_or(KillCause::IllegalInstruction))
}

impl Drop for Side {
    fn drop(&mut self) {
        self.watchdog.unregister(&self.block);
    }
}

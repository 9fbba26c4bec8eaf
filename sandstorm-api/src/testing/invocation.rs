//! An invocation of a [`TestStore`] while it runs.
//!
//! Guarantees: an invocation is live from its start until it is dropped, which is after its future.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Poll;

use super::call_state::TestCalls;
use super::{TestInvocation, TestStore};
use crate::Error;
use crate::abi::{ARENA_CLASSES, HostCalls, InvocationArena, InvocationHeader};
use crate::running::RunningNow;

/// A running invocation: holds the store's state and gives it back when dropped, after a panic too.
pub(super) struct RunningInvocation<'s> {
    pub(super) at: *mut TestInvocation,
    /// Makes it the one that this thread runs.
    _now: RunningNow,
    home: &'s mut TestStore,
}

impl Drop for RunningInvocation<'_> {
    fn drop(&mut self) {
        // SAFETY: `at` came from `Box::into_raw` in `start`, and the future that used it is gone, with all that it was
        // shown.
        let behind = unsafe {
            crate::rt::forget_transaction(self.at.cast::<InvocationHeader>());
            Box::from_raw(self.at)
        };
        *self.home = behind.store;
    }
}

impl<'s> RunningInvocation<'s> {
    pub(super) fn start(
        home: &'s mut TestStore,
        args: &[u8],
        calls: TestCalls,
        host: *const HostCalls,
    ) -> RunningInvocation<'s> {
        let store = core::mem::take(home);
        let arena = InvocationArena {
            next: core::ptr::null_mut(),
            end: core::ptr::null_mut(),
            limit: core::ptr::null_mut(),
            free: [core::ptr::null_mut(); ARENA_CLASSES],
        };
        let invocation = InvocationHeader {
            host,
            args: args.as_ptr(),
            args_len: args.len(),
            now_ms: store.now_ms,
            interleave: u32::from(store.interleave),
            transaction: 0,
            arena,
            notes: core::ptr::null_mut(),
            log_level: store.log.level_number(),
            nested: u32::from(calls.depth > 0),
        };
        let behind = TestInvocation { invocation, store, held: Vec::new(), reply: Vec::new(), calls };
        let at = Box::into_raw(Box::new(behind));
        RunningInvocation { at, _now: RunningNow::begin(at.cast()), home }
    }

    /// Polls until the extension is ready or has been polled too often.
    pub(super) fn drive(&self, mut poll: impl FnMut() -> Poll<Result<(), Error>>) -> Result<(), Error> {
        loop {
            // SAFETY: `at` is live, and nothing else looks at the store between two polls.
            let store = unsafe { &mut (*self.at).store };
            if store.polls == store.max_polls {
                return Err(Error::new("polled more often than the test allows: the server would have ended this"));
            }
            store.polls += 1;
            let polled = poll();
            // SAFETY: as above.
            if unsafe { (*self.at).calls.has_conflict } {
                return Err(Error::new("a called extension has met the writes of others"));
            }
            if let Poll::Ready(outcome) = polled {
                return outcome;
            }
            self.between();
        }
    }

    pub(super) fn between(&self) {
        // SAFETY: as in `drive`: between two polls, what is behind the invocation is ours alone. Records that were
        // handed out lie in allocations of their own.
        let behind = unsafe { &mut *self.at };
        if let Some(mut hook) = behind.store.hook.take() {
            hook(&mut behind.store);
            behind.store.hook.get_or_insert(hook);
        }
        behind.invocation.now_ms = behind.store.now_ms;
        // As in the server, an invocation that is run again does not yield.
        behind.invocation.interleave = u32::from(behind.store.interleave && behind.store.tries == 0);
    }

    /// Ends the transaction, if there is one; `None`: the extension is to be run again.
    ///
    /// # Safety
    /// The extension's future has ended and is gone.
    pub(super) unsafe fn end(&self, outcome: Result<(), Error>) -> Option<Result<(), Error>> {
        let invocation = self.at.cast::<InvocationHeader>();
        // SAFETY: the invocation is live; the caller's promise.
        unsafe {
            // An invocation that was polled too often has ended as if killed: it commits nothing.
            let killed = (*self.at).store.polls == (*self.at).store.max_polls && outcome.is_err();
            let has_conflict = core::mem::take(&mut (*self.at).calls.has_conflict);
            let outcome = match (killed, has_conflict) {
                (true, _) => Some(outcome),
                (false, true) => (*self.at).store.conflict_of_callee(),
                (false, false) => crate::rt::finish_transaction(invocation, outcome),
            };
            crate::rt::forget_transaction(invocation);
            if outcome.is_none() {
                (*self.at).reply.clear();
                (*self.at).calls.forget();
            }
            outcome
        }
    }

    pub(super) fn take_reply(&self) -> Vec<u8> {
        // SAFETY: `at` is live, and the extension has ended.
        core::mem::take(unsafe { &mut (*self.at).reply })
    }
}

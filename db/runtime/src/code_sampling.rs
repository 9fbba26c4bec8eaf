//! The part of the signal's handler that looks where the interrupted code is.
//!
//! Guarantees: it reads the worker's own block, which extension the invocation under way runs, and the open part of the
//! stack that its thread runs on; and it writes to the block's slot for samples alone.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use super::guest_registers::GuestRegisters;
use super::invocation::InvocationState;
use super::worker_block::{STATE_HOST, STATE_HOST_CALL, WorkerBlock};

/// Takes the sample that is wanted of the code that was interrupted with these registers.
///
/// # Safety
/// Called by the handler on the block's own thread.
pub(super) unsafe fn take_sample(block: &WorkerBlock, mut at: GuestRegisters) {
    let state = block.state.load(Ordering::Relaxed);
    let body = block.current.load(Ordering::Relaxed).cast::<InvocationState>();
    if state == STATE_HOST || body.is_null() {
        block.sample.give_nothing();
        return;
    }
    let in_call = state == STATE_HOST_CALL;
    if in_call {
        at.instruction = 0;
        if block.guest_base.load(Ordering::Relaxed) != 0 {
            // It runs on the worker's own stack.
            at.stack = block.guest_rsp.load(Ordering::Relaxed);
        }
    }
    // SAFETY: not in host state, so this thread polls the body, whose references stay what they are meanwhile.
    let extension = unsafe { (*body).refs.as_ref() }.map_or(0, |held| held.extension.number());
    let low = block.stack_low.load(Ordering::Relaxed).max(block.closed_end.load(Ordering::Relaxed));
    let top = block.stack_top.load(Ordering::Relaxed);
    let from = at.stack.next_multiple_of(8);
    let words = if (low..top).contains(&from) { from..top } else { 0..0 };
    let stack = words.step_by(8).map(|at| {
        let word = std::ptr::with_exposed_provenance::<usize>(at);
        // SAFETY: within the open part of this thread's side stack, whose end is aligned as the address is.
        unsafe { word.read_volatile() }
    });
    block.sample.give(extension, in_call, GuestRegisters { stack: from, ..at }, stack);
}

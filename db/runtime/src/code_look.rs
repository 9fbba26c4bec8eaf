//! A look at where a call waits, when an operator asks: what its stack holds at the host's function in which it learns
//! that it has to wait. Nothing is copied otherwise.
//!
//! Guarantees: it reads the block of the worker that polls, and words of the open part of the stack that this names,
//! from its thread's stack pointer up; no more than [`SAMPLE_STACK_BYTES`]. They are walked when the poll is over.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sandstorm_accounts::CodePlace;
use sandstorm_extension::LibraryCode;

use super::guest_registers::GuestRegisters;
use super::guest_walk::OpenStack;
use super::worker_block::{STATE_HOST_CALL, WorkerBlock};
use crate::limits::{KILL_PLACES, SAMPLE_STACK_BYTES};

/// See the head of this file.
#[derive(Debug)]
pub(super) struct CodeLook {
    /// The block of the worker that polls, for as long as it polls.
    block: Arc<WorkerBlock>,
    /// The address of the first word, and the words; none: there was no look.
    low: Cell<usize>,
    words: RefCell<Vec<u8>>,
}

impl CodeLook {
    /// A look in a poll on this worker.
    pub(super) fn new(block: Arc<WorkerBlock>) -> CodeLook {
        // All of it now: a host's function must not allocate here.
        let words = RefCell::new(Vec::with_capacity(SAMPLE_STACK_BYTES));
        CodeLook { block, low: Cell::new(0), words }
    }

    /// Copies the stack of the code that has called the host's function from which this is called. Of several in one
    /// poll the last one counts.
    #[cold]
    #[inline(never)]
    pub(super) fn note(&self) {
        let block = &*self.block;
        if block.state.load(Relaxed) != STATE_HOST_CALL {
            return;
        }
        let here = 0_u64;
        // Sandboxed code's host functions run on the worker's own stack.
        let is_native = block.guest_base.load(Relaxed) == 0;
        let at = if is_native { (&raw const here).expose_provenance() } else { block.guest_rsp.load(Relaxed) };
        let low = block.stack_low.load(Relaxed).max(block.closed_end.load(Relaxed));
        let top = block.stack_top.load(Relaxed);
        let from = at.next_multiple_of(8);
        let mut words = self.words.borrow_mut();
        words.clear();
        self.low.set(from);
        if !(low..top).contains(&from) {
            return;
        }
        for at in (from..top).step_by(8).take(SAMPLE_STACK_BYTES / 8) {
            let word = std::ptr::with_exposed_provenance::<usize>(at);
            // SAFETY: within the open part of the side stack of this thread, which is in a host call of the invocation
            // that has this look; its end is aligned as the address is. What is the host's own there is some bytes.
            let word = unsafe { word.read_volatile() };
            words.extend_from_slice(&word.to_ne_bytes());
        }
    }

    /// The places of the library's code that were under way, the innermost first; none: they are not known.
    pub(super) fn places(&self, code: &LibraryCode) -> Vec<CodePlace> {
        let (words, mut places) = (self.words.borrow(), Vec::new());
        if words.is_empty() || code.map().is_none() {
            return places;
        }
        let start = GuestRegisters { stack: self.low.get(), ..GuestRegisters::default() };
        OpenStack::new(self.low.get(), &words).walk(code, start, |offset| {
            if places.len() < KILL_PLACES {
                places.extend(code.places_at(offset));
            }
        });
        places.truncate(KILL_PLACES);
        places
    }
}

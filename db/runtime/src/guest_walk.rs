//! Finds where an extension's code is, when a call has been ended or is looked at, and never before.
//!
//! Code keeps no record of where it is, so this costs nothing while it runs. The input is the registers that a signal's
//! handler or a switch has saved, and the side stack. A library's map says for each of its instructions how far up the
//! return address lies. Where the code is not the library's own (one of the host's functions, `memcpy`), the stack is
//! searched upwards for an address behind one of the library's calls.
//!
//! Guarantees: bytes are only taken from the open part of a stack that nothing runs on meanwhile; a walk reads no
//! others, only goes upwards, and ends after [`WALK_FRAMES`] steps. Any content of stack and registers is answered with
//! some places of the library, or none.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use sandstorm_extension::LibraryCode;

use super::guest_registers::GuestRegisters;
use super::guest_stacks::GuestStack;
use super::sandbox_switch::VECTORS_BYTES;
use super::stack_switch::{RED_ZONE_BYTES, SavedContext};
use super::worker_block::WorkerBlock;
use crate::limits::{WALK_FRAMES, WALK_SEARCH_BYTES};

/// The open part of a side stack, or a copy of its upper end.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenStack<'a> {
    low: usize,
    bytes: &'a [u8],
}

impl<'a> OpenStack<'a> {
    /// The bytes of a stack from that address on.
    pub(super) fn new(low: usize, bytes: &'a [u8]) -> OpenStack<'a> {
        OpenStack { low, bytes }
    }

    /// Of the stack that a block names.
    ///
    /// # Safety
    /// The calling thread is the block's own, in `STATE_HOST` state, and enters no code during `'a`.
    pub(super) unsafe fn of_block(block: &WorkerBlock) -> OpenStack<'a> {
        let (low, closed_end) = (block.stack_low.load(Ordering::Relaxed), block.closed_end.load(Ordering::Relaxed));
        // SAFETY: this function's contract.
        unsafe { OpenStack::of_memory(low.max(closed_end), block.stack_top.load(Ordering::Relaxed)) }
    }

    /// Of a parked stack, which nothing runs on.
    pub(super) fn of_stack(stack: &'a GuestStack) -> OpenStack<'a> {
        let low = stack.mapping().low().expose_provenance();
        // SAFETY: all but the closed part is readable; it is borrowed, and a parked stack is not written to.
        unsafe { OpenStack::of_memory(low + stack.closed_bytes(), low + stack.mapping().len()) }
    }

    /// # Safety
    /// The bytes between the addresses are readable, and are not written to during `'a`.
    unsafe fn of_memory(low: usize, top: usize) -> OpenStack<'a> {
        let first = std::ptr::with_exposed_provenance(low);
        // SAFETY: this function's contract; all bytes are values.
        OpenStack { low, bytes: unsafe { std::slice::from_raw_parts(first, top.saturating_sub(low)) } }
    }

    /// The word at an address; `None`: it is outside.
    fn word(&self, at: usize) -> Option<usize> {
        let from = at.checked_sub(self.low)?;
        let bytes = self.bytes.get(from..from.checked_add(8)?)?;
        Some(usize::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// The address behind its last byte.
    fn top(&self) -> usize {
        self.low.saturating_add(self.bytes.len())
    }

    /// The registers of code that was switched out on this stack.
    pub(super) fn registers_of(&self, context: SavedContext, is_native: bool) -> Option<GuestRegisters> {
        const FRAME: usize = 10;
        const FLAGS: usize = 15;
        const INSTRUCTION: usize = FLAGS + 1;
        let at = context.at.addr();
        // Native code's extended registers lie between, aligned.
        let first = if is_native { self.word(at)? } else { at + VECTORS_BYTES };
        Some(GuestRegisters {
            instruction: self.word(first.checked_add(8 * INSTRUCTION)?)?,
            stack: first.checked_add(8 * (INSTRUCTION + 1) + RED_ZONE_BYTES)?,
            frame: self.word(first.checked_add(8 * FRAME)?)?,
        })
    }

    /// Gives each place of the library's code that is under way on this stack, the innermost first, as addresses of the
    /// library. A caller's is that of its call.
    pub(super) fn walk(&self, code: &LibraryCode, start: GuestRegisters, mut each: impl FnMut(u32)) {
        let mut at = match code.offset_of(start.instruction) {
            Some(offset) => Some((offset, start.stack, Some(start.frame))),
            None => self.search(code, start.stack),
        };
        for _ in 0..WALK_FRAMES {
            let Some((offset, stack, frame)) = at else { return };
            each(offset);
            at = match self.caller(code, offset, stack, frame) {
                Some((_, end, _)) if end >= self.top() => None,
                Some((Some(offset), end, frame)) => Some((offset, end, frame)),
                Some((None, end, _)) => self.search(code, end),
                None => self.search(code, stack),
            };
        }
    }

    /// The caller's place by the library's map, the end of the frame, and the caller's frame pointer.
    #[allow(clippy::type_complexity)]
    fn caller(
        &self,
        code: &LibraryCode,
        offset: u32,
        stack: usize,
        frame: Option<usize>,
    ) -> Option<(Option<u32>, usize, Option<usize>)> {
        let rule = code.map()?.caller_rule(offset)?;
        let base = if rule.by_rbp { frame? } else { stack };
        let end = base.checked_add(rule.frame_bytes as usize).filter(|end| *end > stack)?;
        let behind = self.word(end.checked_sub(8)?)?;
        let frame = match rule.rbp_words {
            0 => frame,
            words => self.word(end.checked_sub(8 * usize::from(words))?),
        };
        Some((behind.checked_sub(1).and_then(|call| code.offset_of(call)), end, frame))
    }

    /// The next address above that one of the library's calls has left, and where it lies.
    fn search(&self, code: &LibraryCode, from: usize) -> Option<(u32, usize, Option<usize>)> {
        let first = from.max(self.low).checked_next_multiple_of(8)?;
        let last = first.saturating_add(WALK_SEARCH_BYTES).min(self.top());
        (first..last).step_by(8).find_map(|at| {
            let behind = self.word(at)?;
            let call = code.offset_of(behind.checked_sub(1)?)?;
            code.is_behind_call(behind).then_some((call, at + 8, None))
        })
    }
}

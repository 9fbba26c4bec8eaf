//! Copies into a module's memory that one call of the host has not made, because they are long: they are made a piece
//! at a time, and a switch to another invocation may come between two pieces.
//!
//! Guarantees: a copy's source is a record that the invocation's pin keeps, or lies in the module's own memory, which
//! no code of it changes before all copies are made.
#![allow(unsafe_code)]

use sandstorm_sandbox::MEMORY_PIECE_BYTES;

use super::guest_memory::GuestMemory;
use super::guest_value::GuestAddress;

/// A copy under way.
#[derive(Clone, Copy, Debug)]
struct PendingCopy {
    to: GuestAddress,
    from: *const u8,
    len: usize,
}

/// The copies that a call has yet to make, and what it answers then.
#[derive(Debug, Default)]
pub(super) struct PendingCopies {
    list: Vec<PendingCopy>,
    /// The call's result.
    result: u64,
}

// SAFETY: the sources stay where they are, whichever thread copies them.
unsafe impl Send for PendingCopies {}

impl PendingCopies {
    /// Adds a copy.
    pub(super) fn push(&mut self, to: GuestAddress, from: &[u8]) {
        self.list.push(PendingCopy { to, from: from.as_ptr(), len: from.len() });
    }

    /// Forgets all.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    /// Returns whether there are any.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Keeps what the call answers when all copies are made.
    pub(super) fn set_result(&mut self, result: u64) {
        self.result = result;
    }

    /// Makes the next copies, a piece of memory in all; returns the call's result if these were the last.
    ///
    /// # Safety
    /// The sources are still there, and no code of the module has run since they were added.
    pub(super) unsafe fn make_some(&mut self, memory: &GuestMemory) -> Option<u64> {
        let mut left = MEMORY_PIECE_BYTES as usize;
        while left > 0
            && let Some(copy) = self.list.last_mut()
        {
            let piece = copy.len.min(left);
            // SAFETY: this function's contract. The addresses were granted when the copy was added, and stay so.
            let _written = unsafe { memory.copy_in(copy.to, copy.from, piece) };
            (copy.to, copy.from, copy.len) = (copy.to + piece as u32, copy.from.wrapping_add(piece), copy.len - piece);
            left -= piece;
            if copy.len == 0 {
                self.list.pop();
            }
        }
        self.list.is_empty().then_some(self.result)
    }
}

//! What waits to be freed, and the freeing of it.
//!
//! What this module guarantees: a [`Garbage`] owns what it names, and frees it when it is dropped or step by step.
//! Making one is the unsafe part: from then on nobody new may reach the thing, and those who still can are the ones
//! that `epochs` waits for.
#![allow(unsafe_code)]

use super::super::record::RecordPtr;

/// Something that frees itself in bounded steps, such as the records of a dropped table.
pub(in crate::store) trait Piecemeal: Send {
    /// Frees up to about `units` records' worth; answers what it used, 0 when there is nothing left.
    fn free_some(&mut self, units: usize) -> usize;
    /// Bytes held at first.
    fn bytes(&self) -> usize;
}

/// Something that was unlinked.
pub(in crate::store) enum Garbage {
    /// A record.
    Record(OwnedRecord),
    /// Anything that takes more than a moment to free.
    Piecemeal(Box<dyn Piecemeal>),
}

/// A record that nobody new can reach.
pub(in crate::store) struct OwnedRecord(RecordPtr);

impl OwnedRecord {
    /// # Safety
    /// The record is not freed by anyone else, and nobody reads it once the grace period that its owner waits for is over.
    pub(in crate::store) unsafe fn new(record: RecordPtr) -> OwnedRecord {
        OwnedRecord(record)
    }
}

impl Drop for OwnedRecord {
    fn drop(&mut self) {
        // SAFETY: the promise of `new`.
        unsafe { self.0.free() }
    }
}

impl Garbage {
    /// Bytes that freeing gives back.
    pub(super) fn bytes(&self) -> usize {
        match self {
            // SAFETY: the record is freed by the drop of its owner, not before.
            Garbage::Record(record) => unsafe { record.0.bytes() },
            Garbage::Piecemeal(garbage) => garbage.bytes(),
        }
    }
}

//! What waits to be freed, and the freeing of it.
//!
//! What this module guarantees: a [`Garbage`] owns what it names, and frees it when it is dropped or step by step.
//! Making one is the unsafe part: from then on nobody new may reach the thing, and those who still can are the ones
//! that `epochs` waits for. The count behind a [`GarbageAccount`] lives as long as it or any [`GarbageCharge`] of it.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::super::record::RecordPtr;

/// Something that frees itself in bounded steps, such as the records of a dropped table.
pub(crate) trait IncrementalDrop: Send {
    /// Frees up to about `units` records' worth; answers what it used, 0 when there is nothing left.
    fn free_some(&mut self, units: usize) -> usize;
    /// Bytes held at first.
    fn bytes(&self) -> usize;
}

/// Something that was unlinked.
pub(crate) enum Garbage {
    /// A record.
    Record(OwnedRecord),
    /// Anything that takes more than a moment to free.
    Incremental(Box<dyn IncrementalDrop>),
}

/// A record that nobody new can reach.
pub(crate) struct OwnedRecord(RecordPtr);

impl OwnedRecord {
    /// # Safety
    /// The record is not freed by anyone else, and nobody reads it once the grace period that its owner waits for is
    /// over.
    pub(crate) unsafe fn new(record: RecordPtr) -> OwnedRecord {
        OwnedRecord(record)
    }
}

impl Drop for OwnedRecord {
    fn drop(&mut self) {
        // SAFETY: the promise of `new`.
        unsafe { self.0.free() }
    }
}

/// The bytes that wait to be freed on somebody's account: a table's, which may be gone before they are. The bytes count
/// the references too: who gives the last of them back frees the count, so that charging takes one atomic step and no
/// more.
#[derive(Debug)]
pub(crate) struct GarbageAccount(NonNull<AccountCell>);

type AccountCell = CachePadded<AtomicU64>;

/// What the tally itself holds of its count, beside the bytes: far more than there is memory.
const ACCOUNT_REFERENCE: u64 = 1 << 63;

// SAFETY: shared access to an atomic; whoever frees it is the last that has a share in it.
unsafe impl Send for GarbageAccount {}
// SAFETY: as above.
unsafe impl Sync for GarbageAccount {}

impl GarbageAccount {
    /// A count of nothing.
    pub(crate) fn new() -> GarbageAccount {
        GarbageAccount(NonNull::from(Box::leak(Box::new(CachePadded::new(AtomicU64::new(ACCOUNT_REFERENCE))))))
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        // SAFETY: the tally holds its part of the count until it is dropped.
        unsafe { self.0.as_ref() }.load(Ordering::Relaxed) - ACCOUNT_REFERENCE
    }

    /// Charges for garbage of so many bytes, which are some.
    pub(crate) fn charge(&self, bytes: u64) -> GarbageCharge {
        if bytes == 0 {
            return GarbageCharge::NONE;
        }
        // SAFETY: as above. Relaxed, as for any further reference where there is one.
        unsafe { self.0.as_ref() }.fetch_add(bytes, Ordering::Relaxed);
        GarbageCharge { count: Some(self.0), bytes }
    }
}

impl Drop for GarbageAccount {
    fn drop(&mut self) {
        // SAFETY: its own part, given back once.
        unsafe { release_charge(self.0, ACCOUNT_REFERENCE) };
    }
}

/// Takes `part` from a count; frees it with the last.
///
/// # Safety
/// The caller holds that much of it, more than nothing, and lets go of it.
unsafe fn release_charge(count: NonNull<AccountCell>, part: u64) {
    // SAFETY: the count is there as long as anything is held of it, which is up to this step.
    let before = unsafe { count.as_ref() }.fetch_sub(part, Ordering::AcqRel);
    debug_assert!(before >= part, "more was given back than was charged");
    if before == part {
        // SAFETY: nothing is held of it any more, so nobody else reaches it; it came from a box.
        drop(unsafe { Box::from_raw(count.as_ptr()) });
    }
}

/// Bytes that somebody's [`GarbageAccount`] counts until this is dropped; `count` is none where there are no bytes.
#[derive(Debug)]
pub(crate) struct GarbageCharge {
    count: Option<NonNull<AccountCell>>,
    bytes: u64,
}

// SAFETY: as for `GarbageAccount`.
unsafe impl Send for GarbageCharge {}

impl GarbageCharge {
    /// On nobody's account.
    pub(crate) const NONE: GarbageCharge = GarbageCharge { count: None, bytes: 0 };

    /// The bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds another one: of the same tally, and they are given back in one step; otherwise this one is given back, and
    /// becomes the other.
    pub(super) fn join(&mut self, mut other: GarbageCharge) {
        if self.count == other.count {
            self.bytes += other.bytes;
            other.count = None;
        } else {
            *self = other;
        }
    }
}

impl Drop for GarbageCharge {
    fn drop(&mut self) {
        if let Some(count) = self.count {
            // SAFETY: what this holds, given back once: `join` takes the count away from what it has added.
            unsafe { release_charge(count, self.bytes) };
        }
    }
}

impl Garbage {
    /// Bytes that freeing gives back.
    pub(super) fn bytes(&self) -> usize {
        match self {
            // SAFETY: the record is freed by the drop of its owner, not before.
            Garbage::Record(record) => unsafe { record.0.bytes() },
            Garbage::Incremental(garbage) => garbage.bytes(),
        }
    }
}

//! Garbage: unlinked memory that waits to be freed, and the freeing of it.
//!
//! What this module guarantees: a [`Garbage`] owns what it names, and frees it when it is dropped or step by step.
//! Making one is the unsafe part: from then on no new reader may reach the memory. `epochs` waits for the readers that
//! still can. The count behind a [`GarbageAccount`] lives as long as it or any [`GarbageCharge`] of it.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::super::record::RecordPtr;

/// An object that frees itself in bounded steps, such as the records of a dropped table.
pub(crate) trait IncrementalDrop: Send {
    /// Frees up to about `units` records' worth; returns the units that it used, 0 when nothing is left.
    fn free_some(&mut self, units: usize) -> usize;
    /// The bytes that it owns at first.
    fn bytes(&self) -> usize;
}

/// Unlinked memory.
pub(crate) enum Garbage {
    /// A record.
    Record(OwnedRecord),
    /// Any object that takes more than a moment to free.
    Incremental(Box<dyn IncrementalDrop>),
}

/// A record that no new reader can reach.
pub(crate) struct OwnedRecord(RecordPtr);

impl OwnedRecord {
    /// # Safety
    /// The record is not freed by any other owner, and no thread reads it once the grace period that its owner waits
    /// for is over.
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

/// The bytes of one account, such as a table's, that wait to be freed; the table may be gone before they are. The bytes
/// count the references too: the holder that releases the last of them frees the count. So charging takes a single
/// atomic step.
#[derive(Debug)]
pub(crate) struct GarbageAccount(NonNull<AccountCell>);

type AccountCell = CachePadded<AtomicU64>;

/// The account's own part of its count, beside the bytes: far more than there is memory.
const ACCOUNT_REFERENCE: u64 = 1 << 63;

// SAFETY: shared access to an atomic; the count is freed by the last holder of a part of it.
unsafe impl Send for GarbageAccount {}
// SAFETY: as above.
unsafe impl Sync for GarbageAccount {}

impl GarbageAccount {
    /// Makes an account with no bytes.
    pub(crate) fn new() -> GarbageAccount {
        GarbageAccount(NonNull::from(Box::leak(Box::new(CachePadded::new(AtomicU64::new(ACCOUNT_REFERENCE))))))
    }

    /// Returns the bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        // SAFETY: the account holds its part of the count until it is dropped.
        unsafe { self.0.as_ref() }.load(Ordering::Relaxed) - ACCOUNT_REFERENCE
    }

    /// Charges for garbage of that number of bytes, at least one.
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

/// Releases `part` of a count; frees the count with the last part.
///
/// # Safety
/// The caller holds that part of the count, which is more than nothing, and gives it up.
unsafe fn release_charge(count: NonNull<AccountCell>, part: u64) {
    // SAFETY: the count is there as long as anything is held of it, which is up to this step.
    let before = unsafe { count.as_ref() }.fetch_sub(part, Ordering::AcqRel);
    debug_assert!(before >= part, "more was given back than was charged");
    if before == part {
        // SAFETY: nothing is held of it any more, so no other thread reaches it; it came from a box.
        drop(unsafe { Box::from_raw(count.as_ptr()) });
    }
}

/// Bytes that a [`GarbageAccount`] counts until this is dropped; `count` is none where there are no bytes.
#[derive(Debug)]
pub(crate) struct GarbageCharge {
    count: Option<NonNull<AccountCell>>,
    bytes: u64,
}

// SAFETY: as for `GarbageAccount`.
unsafe impl Send for GarbageCharge {}

impl GarbageCharge {
    /// Makes a charge on no account.
    pub(crate) const NONE: GarbageCharge = GarbageCharge { count: None, bytes: 0 };

    /// Returns the bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds another charge. With one of the same account, both are given back in one step. Otherwise this one is given
    /// back, and becomes the other.
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
            // SAFETY: the part that this holds, given back once: `join` takes the count away from the charge that it
            // has added.
            unsafe { release_charge(count, self.bytes) };
        }
    }
}

impl Garbage {
    /// Returns the bytes that freeing gives back.
    pub(super) fn bytes(&self) -> usize {
        match self {
            // SAFETY: the record is freed by the drop of its owner, not before.
            Garbage::Record(record) => unsafe { record.0.bytes() },
            Garbage::Incremental(garbage) => garbage.bytes(),
        }
    }
}

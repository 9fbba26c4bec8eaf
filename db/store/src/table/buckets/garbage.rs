//! The garbage of a table's buckets: arrays, parts of them, overflow buckets. Each is freed in bounded steps.
//!
//! What this module guarantees: each of these is the only owner of what it names, and frees it once, when it is dropped
//! or step by step. Garbage waits until no thread reads it. Making one is the unsafe part, or moves the owned memory
//! out of its former owner.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{BUCKET_BYTES, Bucket, BucketArray, SlotPointer};
use crate::epochs::IncrementalDrop;
use crate::slabs;
use crate::table::zeroed_pages::{RELEASE_UNIT_BYTES, ZeroedPages};

/// An overflow bucket that was unlinked, or memory for one that is not linked yet; freed when it is dropped.
pub(in crate::table) struct OwnedBucket(pub(super) NonNull<Bucket>);

// SAFETY: the only owner of a bucket that no new reader can reach.
unsafe impl Send for OwnedBucket {}

impl Drop for OwnedBucket {
    fn drop(&mut self) {
        // SAFETY: it was allocated for `insert`, and unlinked once or never linked.
        unsafe { slabs::free(self.0.cast(), BUCKET_BYTES) };
    }
}

impl IncrementalDrop for OwnedBucket {
    fn free_some(&mut self, _units: usize) -> usize {
        0
    }

    fn bytes(&self) -> usize {
        BUCKET_BYTES
    }
}

/// An owned array that no new reader can reach. A pointer, not a box: readers may still be in it, until it is freed as
/// garbage. Its memory goes back piece by piece.
pub(in crate::table) struct RetiredArray(pub(super) NonNull<BucketArray>);

// SAFETY: an owner of an array, which is Send and Sync.
unsafe impl Send for RetiredArray {}

impl RetiredArray {
    /// # Safety
    /// `buckets` came from `Box::into_raw`, was replaced in its table, and is handed out once.
    pub(in crate::table) unsafe fn new(buckets: NonNull<BucketArray>) -> RetiredArray {
        RetiredArray(buckets)
    }

    fn buckets(&self) -> &BucketArray {
        // SAFETY: owned, and only shared references exist before it is freed as garbage.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for RetiredArray {
    fn drop(&mut self) {
        // SAFETY: garbage is dropped when no thread reads it any more; it came from Box::into_raw and is owned once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl IncrementalDrop for RetiredArray {
    fn free_some(&mut self, _units: usize) -> usize {
        let buckets = self.buckets();
        let from = buckets.released.load(Ordering::Acquire);
        let end = buckets.pages.releasable_end(from + RELEASE_UNIT_BYTES);
        if end <= from {
            // Less than a piece is left, which goes with the array.
            return 0;
        }
        buckets.released.store(end, Ordering::Release);
        // SAFETY: garbage is freed when no thread reads it any more; pieces begin and end at pages.
        unsafe { buckets.pages.release(from, end) };
        usize::MAX
    }

    fn bytes(&self) -> usize {
        self.buckets().pages.bytes()
    }
}

/// The front of an array whose records have moved; its memory goes back when this is dropped.
pub(super) struct ReleasedRange {
    pages: Arc<ZeroedPages>,
    from: usize,
    end: usize,
}

impl ReleasedRange {
    /// # Safety
    /// The part is of whole pieces (or begins with the array), and of stripes that have been moved, and it is given
    /// back once.
    pub(super) unsafe fn new(pages: Arc<ZeroedPages>, from: usize, end: usize) -> ReleasedRange {
        ReleasedRange { pages, from, end }
    }
}

impl Drop for ReleasedRange {
    fn drop(&mut self) {
        // SAFETY: dropped when no thread looks at the moved part any more: readers that began later see that it has
        // been moved. No thread writes there either: a stripe is moved once. The part is of whole pieces.
        unsafe { self.pages.release(self.from, self.end) };
    }
}

impl IncrementalDrop for ReleasedRange {
    fn free_some(&mut self, _units: usize) -> usize {
        let end = self.end.min(self.from + RELEASE_UNIT_BYTES);
        // A part that is not larger than a piece goes when this is dropped.
        if end == self.end {
            return 0;
        }
        // SAFETY: as for `drop`.
        unsafe { self.pages.release(self.from, end) };
        self.from = end;
        usize::MAX
    }

    fn bytes(&self) -> usize {
        0
    }
}

/// An array with all its records, which are freed with it.
pub(in crate::table) struct DiscardedArray {
    array: RetiredArray,
    next: usize,
    bytes: usize,
}

impl DiscardedArray {
    /// `bytes` is the size of the records. The array is counted as well, with the one from which they were being moved.
    pub(in crate::table) fn new(array: RetiredArray, bytes: usize) -> DiscardedArray {
        // SAFETY: the array is owned, and with it that one.
        let previous = unsafe { array.buckets().previous() }.map_or(0, |previous| previous.pages.bytes());
        let bytes = bytes + array.bytes() + previous;
        DiscardedArray { array, next: 0, bytes }
    }

    fn free_bucket(bucket: &Bucket) -> usize {
        let mut freed = 0;
        for slot in &bucket.slots {
            match slot.pointer() {
                SlotPointer::Empty => {}
                SlotPointer::Record(record) => {
                    slot.empty();
                    freed += 1;
                    // SAFETY: garbage: no thread reads it any more, and the slot was its only owner.
                    unsafe { record.free() };
                }
                SlotPointer::Link(overflow) => {
                    slot.empty();
                    let overflow = OwnedBucket(overflow);
                    // SAFETY: freed at the end of this block, after its records.
                    freed += 1 + DiscardedArray::free_bucket(unsafe { overflow.0.as_ref() });
                }
            }
        }
        freed
    }

    fn free_records(&mut self, units: usize) -> usize {
        let (mut used, buckets) = (0, self.array.buckets());
        while used < units && self.next < buckets.count {
            used += 1 + DiscardedArray::free_bucket(buckets.bucket(self.next));
            self.next += 1;
        }
        used
    }
}

impl IncrementalDrop for DiscardedArray {
    fn free_some(&mut self, units: usize) -> usize {
        let used = self.free_records(units);
        if used != 0 {
            return used;
        }
        if let Some(previous) = self.array.buckets().take_previous() {
            // Records that have not moved yet lie in the previous array, which comes next.
            self.array = previous;
            self.next = 0;
            return units.max(1);
        }
        self.array.free_some(units)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DiscardedArray {
    fn drop(&mut self) {
        while self.free_some(usize::MAX) != 0 {}
    }
}

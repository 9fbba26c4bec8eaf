//! What leaves a table with its buckets: arrays, parts of them, overflow buckets. Each is freed as garbage, in bounded steps.
//!
//! What this module guarantees: each of these is the only owner of what it names, and frees it once, when it is dropped or step by
//! step; that nobody reads it then is what garbage waits for. Making one is the unsafe part, or takes what it owns from where it was.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{BUCKET_BYTES, Bucket, Buckets, Pointer};
use crate::epochs::Piecemeal;
use crate::slabs;
use crate::table::pages::{PIECE_BYTES, Pages};

/// An overflow bucket that was unlinked, or memory for one that is not linked yet; freed when it is dropped.
pub(in crate::table) struct Unlinked(pub(super) NonNull<Bucket>);

// SAFETY: the only owner of a bucket that nobody new can reach.
unsafe impl Send for Unlinked {}

impl Drop for Unlinked {
    fn drop(&mut self) {
        // SAFETY: it was allocated for `insert`, and unlinked once or never linked.
        unsafe { slabs::free(self.0.cast(), BUCKET_BYTES) };
    }
}

impl Piecemeal for Unlinked {
    fn free_some(&mut self, _units: usize) -> usize {
        0
    }

    fn bytes(&self) -> usize {
        BUCKET_BYTES
    }
}

/// An array that nobody new can reach, owned. A pointer, not a box: readers may still be in it, until it is freed as
/// garbage. Its memory goes back piece by piece.
pub(in crate::table) struct Retired(pub(super) NonNull<Buckets>);

// SAFETY: an owner of an array, which is Send and Sync.
unsafe impl Send for Retired {}

impl Retired {
    /// # Safety
    /// `buckets` came from `Box::into_raw`, was replaced in its table, and is handed out once.
    pub(in crate::table) unsafe fn new(buckets: NonNull<Buckets>) -> Retired {
        Retired(buckets)
    }

    fn buckets(&self) -> &Buckets {
        // SAFETY: owned, and only shared references exist before it is freed as garbage.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: garbage is dropped when nobody reads it any more; it came from Box::into_raw and is owned once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Piecemeal for Retired {
    fn free_some(&mut self, _units: usize) -> usize {
        let buckets = self.buckets();
        let from = buckets.released.load(Ordering::Acquire);
        let end = buckets.pages.pieces_before(from + PIECE_BYTES);
        if end <= from {
            // Less than a piece is left, which goes with the array.
            return 0;
        }
        buckets.released.store(end, Ordering::Release);
        // SAFETY: garbage is freed when nobody reads it any more; pieces begin and end at pages.
        unsafe { buckets.pages.release(from, end) };
        usize::MAX
    }

    fn bytes(&self) -> usize {
        self.buckets().pages.bytes()
    }
}

/// The front of an array whose records have moved; its memory goes back when this is dropped.
pub(super) struct Part {
    pages: Arc<Pages>,
    from: usize,
    end: usize,
}

impl Part {
    /// # Safety
    /// The part is of whole pieces (or begins with the array), and of stripes that have been moved, and it is given back once.
    pub(super) unsafe fn new(pages: Arc<Pages>, from: usize, end: usize) -> Part {
        Part { pages, from, end }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: dropped when nobody looks at what has been moved any more: whoever began later sees that it has been. Nobody
        // writes there either: a stripe is moved once. The part is of whole pieces.
        unsafe { self.pages.release(self.from, self.end) };
    }
}

impl Piecemeal for Part {
    fn free_some(&mut self, _units: usize) -> usize {
        let end = self.end.min(self.from + PIECE_BYTES);
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

/// An array with all its records, which go with it.
pub(in crate::table) struct Discarded {
    array: Retired,
    next: usize,
    bytes: usize,
}

impl Discarded {
    /// `bytes` is what the records hold. The array is counted as well, with the one from which they were being moved.
    pub(in crate::table) fn new(array: Retired, bytes: usize) -> Discarded {
        // SAFETY: the array is owned, and with it that one.
        let previous = unsafe { array.buckets().previous() }.map_or(0, |previous| previous.pages.bytes());
        let bytes = bytes + array.bytes() + previous;
        Discarded { array, next: 0, bytes }
    }

    fn free_bucket(bucket: &Bucket) -> usize {
        let mut freed = 0;
        for slot in &bucket.slots {
            match slot.pointer() {
                Pointer::Empty => {}
                Pointer::Record(record) => {
                    slot.empty();
                    freed += 1;
                    // SAFETY: garbage: nobody reads it any more, and the slot was its only owner.
                    unsafe { record.free() };
                }
                Pointer::Link(overflow) => {
                    slot.empty();
                    let overflow = Unlinked(overflow);
                    // SAFETY: freed at the end of this block, after its records.
                    freed += 1 + Discarded::free_bucket(unsafe { overflow.0.as_ref() });
                }
            }
        }
        freed
    }

    fn free_records(&mut self, units: usize) -> usize {
        let (mut used, buckets) = (0, self.array.buckets());
        while used < units && self.next < buckets.count {
            used += 1 + Discarded::free_bucket(buckets.bucket(self.next));
            self.next += 1;
        }
        used
    }
}

impl Piecemeal for Discarded {
    fn free_some(&mut self, units: usize) -> usize {
        let used = self.free_records(units);
        if used != 0 {
            return used;
        }
        if let Some(previous) = self.array.buckets().take_previous() {
            // What has not moved yet lies in the previous array: its turn now.
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

impl Drop for Discarded {
    fn drop(&mut self) {
        while self.free_some(usize::MAX) != 0 {}
    }
}

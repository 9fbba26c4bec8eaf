//! The limits on the length of chains, whatever keys a tenant chooses.
//!
//! An insert finds at most [`MAX_CHAIN_BUCKETS`] in a row, which hold [`CHAIN_RECORDS`]. A move may not be refused, or
//! chosen keys could keep a table from growing: a bucket of the larger array takes over the records of a part of two
//! buckets. So that chains do not grow with every growth of the table, the following rule covers both arrays together:
//!
//! > As many hashes in a row as the current array's buckets have hold at most [`MAX_CHAIN_GROUP_RECORDS`] = 4 *
//! > [`CHAIN_RECORDS`] records.
//!
//! - In a stripe in which no chain ever was longer than an insert allows, the rule holds by itself. That many hashes
//!   meet at most two buckets of the array and two of the previous one, whose buckets are larger.
//! - Once a chain is longer, the stripe is called *crowded*, for good, and each insert there checks: its bucket and the
//!   two beside it, which contain all such ranges of the new hash, must hold fewer than that.
//! - A move changes nothing, and a larger array has smaller buckets.
//!
//! So a chain has [`MAX_MOVED_CHAIN_BUCKETS`] at most. Without chosen keys, no stripe is ever crowded.
//!
//! What this module guarantees: spares are the only owners of memory for a bucket each, and free it once. The unsafe
//! functions require what `buckets` calls *locked*.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::garbage::OwnedBucket;
use super::{BUCKET_BYTES, Bucket, BucketArray, BucketSlot, InsertError, SLOTS_PER_BUCKET, stripe_of};
use crate::limits::{CHAIN_RECORDS, MAX_CHAIN_BUCKETS, MAX_CHAIN_GROUP_RECORDS, MAX_MOVED_CHAIN_BUCKETS};
use crate::record::RecordPtr;
use crate::slabs;

// Each bucket but the last has a link in place of a record.
const _: () = assert!(CHAIN_RECORDS == MAX_CHAIN_BUCKETS * (SLOTS_PER_BUCKET - 1) + 1);
const _: () = assert!(MAX_MOVED_CHAIN_BUCKETS * (SLOTS_PER_BUCKET - 1) + 1 >= MAX_CHAIN_GROUP_RECORDS);

/// Memory for overflow buckets: a commit takes its own before its first change.
#[derive(Default)]
pub(in crate::table) struct SpareBuckets(Vec<OwnedBucket>);

impl SpareBuckets {
    /// Takes memory for one more; `false` when it is out.
    pub(in crate::table) fn add(&mut self) -> bool {
        let bucket = slabs::allocate(BUCKET_BYTES).map(|bucket| OwnedBucket(bucket.cast()));
        bucket.map(|bucket| self.0.push(bucket)).is_some()
    }

    /// Returns how many are left.
    pub(in crate::table) fn left(&self) -> usize {
        self.0.len()
    }

    /// Returns memory for a bucket, a spare or new memory.
    pub(super) fn take(&mut self) -> Option<NonNull<Bucket>> {
        match self.0.pop() {
            Some(spare) => Some(std::mem::ManuallyDrop::new(spare).0),
            None => slabs::allocate(BUCKET_BYTES).map(NonNull::cast),
        }
    }
}

/// The number of records that a chain can take.
#[derive(Clone, Copy)]
pub(in crate::table) struct ChainCapacity {
    /// The chain: whether it is one of the previous array, and the bucket's index.
    pub(in crate::table) chain: (bool, usize),
    /// Records that find a slot.
    pub(in crate::table) empty: usize,
    /// Records for which buckets have to be added, beside those.
    growable: usize,
}

impl ChainCapacity {
    /// Returns whether `inserts` records fit.
    pub(in crate::table) fn takes(&self, inserts: usize) -> bool {
        inserts <= self.empty + self.growable
    }

    /// Returns whether the last of `inserts` records needs another bucket.
    pub(in crate::table) fn adds_bucket_for(&self, inserts: usize) -> bool {
        // Each further bucket takes over the record whose slot becomes the link to it.
        inserts > self.empty && (inserts - self.empty - 1).is_multiple_of(SLOTS_PER_BUCKET - 1)
    }
}

impl BucketArray {
    /// Inserts a record that is not in the table; returns whether a bucket was added for it. `moved` as for
    /// [`BucketArray::target`], `before_publication` as for `insert`.
    ///
    /// # Safety
    /// Locked.
    pub(in crate::table) unsafe fn insert_new(
        &self,
        hash: u64,
        record: RecordPtr,
        moved: usize,
        spares: &mut SpareBuckets,
        before_publication: impl FnOnce(),
    ) -> Result<bool, InsertError> {
        // SAFETY: locked (caller).
        let target = unsafe { self.target(hash, moved) };
        // SAFETY: as above.
        unsafe { target.insert(hash, record, MAX_CHAIN_BUCKETS, spares, before_publication) }.map(|to| to.added)
    }

    /// Returns the room of the chain that a new record of `hash` would join. `moved` as for [`BucketArray::target`].
    ///
    /// # Safety
    /// Locked.
    pub(in crate::table) unsafe fn room(&self, hash: u64, moved: usize) -> ChainCapacity {
        // SAFETY: locked (caller).
        let target = unsafe { self.target(hash, moved) };
        let (mut slots, mut empty) = (0, 0);
        let count = |slot: &BucketSlot| -> Option<()> {
            // Inserts do not search beyond the longest chain that they may make.
            empty += usize::from(slots < MAX_CHAIN_BUCKETS * SLOTS_PER_BUCKET && slot.is_empty());
            slots += 1;
            None
        };
        // SAFETY: locked (caller).
        let _ = unsafe { target.walk(hash, count) };
        let growable = MAX_CHAIN_BUCKETS.saturating_sub(slots / SLOTS_PER_BUCKET) * (SLOTS_PER_BUCKET - 1);
        ChainCapacity { chain: (!std::ptr::eq(self, target), target.index_of(hash)), empty, growable }
    }

    /// Returns the number of records in the bucket of `hash` and the two beside it, in this array and the previous one.
    /// It counts the records of the hash's stripe only.
    ///
    /// # Safety
    /// Locked.
    pub(in crate::table) unsafe fn count_neighbourhood(&self, hash: u64) -> usize {
        let (stripe, index) = (stripe_of(hash), self.index_of(hash));
        let mut records = 0;
        for index in index.saturating_sub(1)..=index + 1 {
            let Ok(first) = u64::try_from(self.first_hash(index)) else { break };
            if stripe_of(first) == stripe {
                // SAFETY: locked (caller): a stripe's buckets hold nothing of another stripe.
                unsafe { self.collect(first, self.first_hash(index + 1), &mut |_, _| records += 1) };
            }
        }
        records
    }

    /// Returns the buckets of the longest chain of this array and the previous one.
    ///
    /// # Safety
    /// Protected.
    #[cfg(test)]
    pub(in crate::table) unsafe fn longest_chain(&self) -> usize {
        let mut longest = 0;
        for index in 0..self.count {
            let mut length = 0;
            // SAFETY: protected (caller).
            let _ = unsafe {
                self.walk(self.first_hash(index) as u64, |_| -> Option<()> {
                    length += 1;
                    None
                })
            };
            longest = longest.max(length / SLOTS_PER_BUCKET);
        }
        // SAFETY: protected (caller).
        longest.max(unsafe { self.previous() }.map_or(0, |previous| unsafe { previous.longest_chain() }))
    }

    /// Returns the overflow buckets of this array and the previous one.
    ///
    /// # Safety
    /// Protected.
    #[cfg(test)]
    pub(in crate::table) unsafe fn overflow_buckets(&self) -> usize {
        let mut slots = 0;
        for index in 0..self.count {
            // SAFETY: protected (caller).
            let _ = unsafe {
                self.walk(self.first_hash(index) as u64, |_| -> Option<()> {
                    slots += 1;
                    None
                })
            };
        }
        // SAFETY: protected (caller).
        let previous = unsafe { self.previous() };
        // SAFETY: as above.
        slots / SLOTS_PER_BUCKET - self.count + previous.map_or(0, |previous| unsafe { previous.overflow_buckets() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::RehashStats;
    use super::*;
    use crate::limits::STRIPES;
    use crate::record::{RecordPtr, ValueSource};
    use crate::slabs::scarce;

    /// Records whose hashes are these, in an array of their own.
    fn insert_all(buckets: &BucketArray, hashes: impl Iterator<Item = u64>, records: &mut Vec<RecordPtr>) {
        for hash in hashes {
            let record =
                RecordPtr::allocate(1, &hash.to_le_bytes(), ValueSource::Parts([b"", b"", b""]), 0, 0).expect("memory");
            records.push(record);
            // SAFETY: no other thread knows the array.
            let inserted = unsafe { buckets.insert_new(hash, record, 0, &mut SpareBuckets::default(), || ()) };
            assert!(inserted.is_ok());
        }
    }

    #[test]
    fn a_move_that_runs_out_of_memory_tells_of_the_chains_that_it_made() {
        // Two buckets a stripe become three: the second takes over half of the first, and half of the second.
        let previous = BucketArray::new(2 * STRIPES, 1, std::ptr::null_mut()).expect("memory");
        let borders = [1, 2].map(|index| ((index as u128) << 64).div_ceil(3 * STRIPES as u128) as u64);
        let mut records = Vec::new();
        insert_all(&previous, (0..CHAIN_RECORDS as u64).map(|n| borders[0] + n), &mut records);
        insert_all(&previous, [borders[1] - 1].into_iter(), &mut records);
        insert_all(&previous, (0..5).map(|n| borders[1] + n), &mut records);
        let larger = BucketArray::new(3 * STRIPES, 2, Box::into_raw(previous)).expect("memory");
        let move_bucket = |index, memory| {
            let (mut moved, mut unlinked) = (RehashStats::default(), Vec::new());
            // SAFETY: no other thread knows the arrays.
            let done = scarce::with(memory, || unsafe {
                larger.rehash_bucket(0, index, &mut moved, |bucket| unlinked.push(bucket))
            });
            (done.map_err(|_| ()), moved.longest, moved.added, unlinked.len())
        };
        assert_eq!(move_bucket(0, usize::MAX), (Ok(false), MAX_CHAIN_BUCKETS, 6, 6));
        // The one bucket that there is memory for makes the chain too long; the other chain, for which none is left, is
        // short.
        assert_eq!(move_bucket(1, 1), (Err(()), MAX_CHAIN_BUCKETS + 1, 1, 0));
        assert_eq!(move_bucket(1, 1), (Ok(true), 2, 1, 1));
        for record in records {
            // SAFETY: no other thread knows it, and it is freed once; arrays free no records.
            unsafe { record.free() };
        }
        drop(larger);
    }
}

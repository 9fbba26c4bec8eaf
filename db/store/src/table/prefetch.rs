//! Prefetching: a read's cache lines are requested in time, so that the misses of many reads overlap.
//!
//! A read misses its bucket, then its record. One in six to one in fifteen (by how full the table is) lies in an
//! overflow bucket, which is a miss of its own between the two. So there are three steps, each to be taken when the
//! lines of the one before have arrived. They are [`RecordTable::prefetch_bucket`], [`RecordTable::prefetch_record`],
//! and [`RecordTable::prefetch_chained`] where that one says so.
//!
//! What this module guarantees: nothing but what `buckets` guarantees; prefetches change nothing that a program could
//! see.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::RecordTable;
use super::buckets::{BUCKET_BYTES, bucket_offset, prefetch};
use crate::EpochGuard;
use crate::limits::RECORD_CHARGE_BYTES;

/// Lines of a record that are requested at most: longer ones are read from front to back, which the processor foresees.
const MAX_PREFETCH_LINES: u64 = 4;

/// Lines of a record that are prefetched before anything is known of the table's records.
pub(super) const INITIAL_RECORD_LINES: usize = 2;

/// Records of a batch whose second look is remembered, a bit each.
pub const PREFETCH_BATCH: usize = u64::BITS as usize;

impl RecordTable {
    /// Asks the processor for the bucket of `hash`; returns at once.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        // The two may be of different arrays for a moment: then another line is fetched, to no harm.
        let count = self.count.load(Ordering::Relaxed);
        prefetch(self.base.load(Ordering::Relaxed), bucket_offset(hash, count), 1);
    }

    /// Asks the processor for the record of `hash`, if its bucket names it. It reads the bucket, so call it once that
    /// has arrived. `true`: the record may lie in another bucket, which was requested instead; then call
    /// [`RecordTable::prefetch_chained`] once that one has arrived.
    #[inline]
    pub fn prefetch_record(&self, guard: &EpochGuard<'_>, hash: u64) -> bool {
        self.check(guard.epochs());
        // SAFETY: protected by the guard.
        unsafe { self.prefetch_record_pinned(hash) }
    }

    /// Asks the processor for the record of `hash`, in whichever bucket it lies.
    #[inline]
    pub fn prefetch_chained(&self, guard: &EpochGuard<'_>, hash: u64) {
        self.check(guard.epochs());
        // SAFETY: protected by the guard.
        unsafe { self.prefetch_chained_pinned(hash) }
    }

    /// Asks for the records of a batch of up to [`PREFETCH_BATCH`] hashes whose buckets have come. Beyond that number,
    /// it asks only for those that their own buckets name.
    #[inline]
    pub fn prefetch_records(&self, guard: &EpochGuard<'_>, hashes: impl Iterator<Item = u64> + Clone) {
        self.check(guard.epochs());
        // SAFETY: protected by the guard.
        unsafe { self.prefetch_records_pinned(hashes) }
    }

    /// Asks for the buckets of up to [`PREFETCH_BATCH`] keys, then for their records.
    #[inline]
    pub fn prefetch_keys(&self, guard: &EpochGuard<'_>, keys: &[&[u8]]) {
        let mut hashes = ArrayVec::<u64, PREFETCH_BATCH>::new();
        for key in keys.iter().take(PREFETCH_BATCH) {
            let hash = self.hash(key);
            self.prefetch_bucket(hash);
            hashes.push(hash);
        }
        self.prefetch_records(guard, hashes.iter().copied());
    }

    /// As [`RecordTable::prefetch_record`] for an invocation, without a guard.
    ///
    /// # Safety
    /// The caller holds a [`crate::EpochPin`] of the table's epochs.
    #[inline]
    pub unsafe fn prefetch_record_pinned(&self, hash: u64) -> bool {
        let lines = self.record_lines.load(Ordering::Relaxed);
        // SAFETY: protected by the pin (caller).
        unsafe { self.current().prefetch_record(hash, lines) }
    }

    /// As [`RecordTable::prefetch_chained`] for an invocation, without a guard.
    ///
    /// # Safety
    /// As for [`RecordTable::prefetch_record_pinned`].
    #[inline]
    pub unsafe fn prefetch_chained_pinned(&self, hash: u64) {
        #[cfg(test)]
        lookups::note(hash);
        let lines = self.record_lines.load(Ordering::Relaxed);
        // SAFETY: protected by the pin (caller).
        unsafe { self.current().prefetch_chained(hash, lines) }
    }

    /// [`RecordTable::prefetch_record_pinned`] or, as the `last` look, [`RecordTable::prefetch_chained_pinned`], after
    /// which there is nothing further.
    ///
    /// # Safety
    /// As for [`RecordTable::prefetch_record_pinned`].
    #[inline]
    pub unsafe fn prefetch_pinned(&self, hash: u64, last: bool) -> bool {
        // SAFETY: protected by the pin (caller).
        unsafe {
            if last {
                self.prefetch_chained_pinned(hash);
                return false;
            }
            self.prefetch_record_pinned(hash)
        }
    }

    /// As [`RecordTable::prefetch_records`] for an invocation, without a guard.
    ///
    /// # Safety
    /// As for [`RecordTable::prefetch_record_pinned`].
    #[inline]
    pub unsafe fn prefetch_records_pinned(&self, hashes: impl Iterator<Item = u64> + Clone) {
        let mut further = 0_u64;
        for (at, hash) in hashes.clone().enumerate() {
            // SAFETY: protected by the pin (caller).
            let is_further = unsafe { self.prefetch_record_pinned(hash) };
            if at < PREFETCH_BATCH {
                further |= u64::from(is_further) << at;
            }
        }
        let (mut rest, mut passed) = (hashes, 0);
        while further != 0 {
            let at = further.trailing_zeros() as usize;
            if let Some(hash) = rest.nth(at - passed) {
                // SAFETY: as above.
                unsafe { self.prefetch_chained_pinned(hash) }
            }
            passed = at + 1;
            further &= further - 1;
        }
    }

    /// Notes how many lines of a record to prefetch, from the records' average size. The caller counts `records` of
    /// them.
    pub(super) fn note_record_lines(&self, records: u64) {
        let bytes = self.bytes.load(Ordering::Relaxed) / records.max(1);
        self.record_lines.store(average_lines(bytes.saturating_sub(RECORD_CHARGE_BYTES)), Ordering::Relaxed);
    }
}

/// Returns the lines that a record of so many bytes touches on average: records begin at any multiple of eight bytes.
fn average_lines(bytes: u64) -> usize {
    let line = BUCKET_BYTES as u64;
    ((bytes.saturating_sub(8) + line + line / 2) / line).clamp(1, MAX_PREFETCH_LINES) as usize
}

/// The hashes of this thread's second looks.
#[cfg(test)]
pub(super) mod lookups {
    use std::cell::RefCell;

    thread_local! {
        static HASHES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }

    pub(in crate::table) fn note(hash: u64) {
        HASHES.with_borrow_mut(|hashes| hashes.push(hash));
    }

    pub(in crate::table) fn take() -> Vec<u64> {
        HASHES.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epochs, TableConfig, WriteOptions};

    #[test]
    fn a_first_look_tells_which_records_lie_further_on() {
        const RECORDS: u64 = 10_000;
        let epochs = Epochs::new();
        let table = RecordTable::with_seed(TableConfig::default(), std::sync::Arc::clone(&epochs), 1);
        let mut participant = epochs.register();
        for n in 0..RECORDS {
            let key = n.to_le_bytes();
            table.put(&participant, table.hash(&key), &key, &[7; 100], &WriteOptions::default(), 0).expect("room");
            participant.quiescent();
        }
        while table.is_growing(&participant.guard()) {
            table.sweep(&participant, 0, 10_000);
        }
        let guard = participant.guard();
        let further = (0..RECORDS).filter(|n| table.prefetch_record(&guard, table.hash(&n.to_le_bytes()))).count();
        // By the load, which is between 1/2 and 3/4, one in 16 to one in 6 lies in an overflow bucket.
        assert!((RECORDS as usize / 40..RECORDS as usize / 4).contains(&further), "{further} of {RECORDS}");
        // The ones that came last.
        let last = RECORDS - 2 * PREFETCH_BATCH as u64..RECORDS;
        let hashes: Vec<u64> = last.map(|n| table.hash(&n.to_le_bytes())).collect();
        lookups::take();
        table.prefetch_records(&guard, hashes.iter().copied());
        // SAFETY: protected by the guard.
        let has_overflow = |hash: &u64| unsafe { table.current().prefetch_record(*hash, 1) };
        let further: Vec<u64> = hashes[..PREFETCH_BATCH].iter().copied().filter(has_overflow).collect();
        assert!(!further.is_empty(), "of so many, some lie further on");
        assert_eq!(lookups::take(), further, "all of those, and no other, were asked for in a second look");
        for hash in further {
            // SAFETY: protected by the guard.
            assert!(unsafe { table.current().find(hash, |_| true) }.is_some(), "a second look finds it");
        }
        assert_eq!(table.record_lines.load(Ordering::Relaxed), 3, "16 + 8 + 100 bytes lie on two lines, or three");
    }

    #[test]
    fn lines_are_those_of_a_record_wherever_it_begins() {
        for (bytes, lines) in [(0, 1), (24, 1), (48, 2), (64, 2), (128, 3), (152, 3), (200, 4), (8 << 20, 4)] {
            assert_eq!(average_lines(bytes), lines, "{bytes} bytes");
        }
    }
}

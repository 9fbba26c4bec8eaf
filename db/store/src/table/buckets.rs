//! The bucket array: readers walk it without a lock, and writers change it under the lock of a stripe.
//!
//! A bucket is a cache line of four 16-byte slots (the key's whole hash, and a pointer). Bucket i of n holds the hashes
//! from `i * 2^64 / n` on: position and hash have the same order in arrays of any size, which gives scans, stripes and
//! tablets their ranges. A bucket that is full turns its last slot into a link to an overflow bucket (pointer with its
//! lowest bit set): at most [`MAX_CHAIN_BUCKETS`](crate::limits::MAX_CHAIN_BUCKETS) in a row for an insert,
//! [`MAX_MOVED_CHAIN_BUCKETS`] after moves (`chain_limits`).
//!
//! # A stripe while it grows
//! The stripe's hashes from left to right, in the array that is left (`previous`) and in the larger one; each box is a
//! bucket and what is linked behind it, `r` a record:
//!
//! ```text
//!             moved, and empty                 not moved yet: here are all of them, new ones too
//! previous   |            |            |      |    r r     |   r r r    |            |     r      |
//! current    |  r   |     | r r |    r |  r   |      |     |      |     |     |      |     |      |
//!             where they went, new ones too    nothing yet
//! ```
//!
//! The stripe's lock guards the progress of the move. A record that moves is in both for a moment. When all are moved,
//! the stripe's bit is set in `rehashed_stripes`, and its part of `previous` is neither searched nor kept; when all
//! stripes are, `previous` is null.
//!
//! # What readers rely on
//! - A reader meets every record that stays in the table while it walks. Within an array, records move only forward in
//!   the order of the walk (last slot to overflow bucket), and are written at the new slot before they leave the old
//!   one. From array to array they move from `previous` to the array itself, and readers walk in that order. A reader
//!   that finds nothing looks again if the table's array was replaced meanwhile.
//! - A reader does not search the previous array for a stripe that has been moved wholly, so that its memory goes back
//!   before the rest: a growing table takes little more than a grown one. Memory that went back reads as empty buckets.
//! - A slot's pointer is null, a record or a link, whatever its hash says; the pointer alone tells which, and a record
//!   counts only if its key is equal. So hash and pointer need not change together.
//! - A pointer's target was initialised before it was stored (release) and loaded (acquire), and stays until the
//!   reader's epoch has passed.
//!
//! What this module guarantees: its safe functions never touch memory out of bounds. The unsafe ones require one or
//! both of two conditions. *Protected*: the caller's thread is under a guard or a pin of the table's epochs, since
//! before it loaded the array's address. *Locked*: the caller holds the lock of the stripe of `hash`.
#![allow(unsafe_code)]

mod chain_limits;
mod garbage;
mod position;

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

pub(super) use self::chain_limits::{ChainCapacity, SpareBuckets};
use self::garbage::ReleasedRange;
pub(super) use self::garbage::{DiscardedArray, OwnedBucket, RetiredArray};
use self::position::bucket_index;
pub(super) use self::position::stripe_of;
use super::zeroed_pages::ZeroedPages;
use crate::epochs::IncrementalDrop;
use crate::limits::{MAX_MOVED_CHAIN_BUCKETS, STRIPES};
use crate::record::{RecordPtr, RecordRef};

const SLOTS_PER_BUCKET: usize = 4;
const LINK_SLOT: usize = SLOTS_PER_BUCKET - 1;
pub(super) const BUCKET_BYTES: usize = size_of::<Bucket>();
const _: () = assert!(BUCKET_BYTES == 64 && STRIPES.is_power_of_two());

/// 16 bytes: which hash, and where. Empty: pointer null.
#[repr(C)]
#[derive(Default)]
pub(super) struct BucketSlot {
    hash: AtomicU64,
    pointer: AtomicPtr<u8>,
}

#[repr(C, align(64))]
struct Bucket {
    slots: [BucketSlot; SLOTS_PER_BUCKET],
}

/// The meaning of a slot's pointer.
enum SlotPointer {
    Empty,
    Record(RecordPtr),
    Link(NonNull<Bucket>),
}

impl BucketSlot {
    #[inline(always)]
    fn pointer(&self) -> SlotPointer {
        let raw = self.pointer.load(Ordering::Acquire);
        if raw.addr() & 1 == 1 {
            let bucket = raw.map_addr(|addr| addr & !1).cast();
            return NonNull::new(bucket).map_or(SlotPointer::Empty, SlotPointer::Link);
        }
        // SAFETY: slots hold nothing but null, links (odd) and records; making the handle reads nothing.
        unsafe { RecordPtr::from_ptr(raw) }.map_or(SlotPointer::Empty, SlotPointer::Record)
    }

    fn is_empty(&self) -> bool {
        matches!(self.pointer(), SlotPointer::Empty)
    }

    /// Returns the record, if the slot holds one.
    #[inline(always)]
    pub(super) fn record(&self) -> Option<RecordPtr> {
        match self.pointer() {
            SlotPointer::Record(record) => Some(record),
            _ => None,
        }
    }

    /// Puts a record of the same key in place of the one there. Locked.
    pub(super) fn replace(&self, record: RecordPtr) {
        self.pointer.store(record.as_ptr(), Ordering::Release);
    }

    fn fill(&self, hash: u64, record: RecordPtr) {
        self.pointer.store(record.as_ptr(), Ordering::Release);
        self.hash.store(hash, Ordering::Release);
    }

    fn empty(&self) {
        self.hash.store(0, Ordering::Release);
        self.pointer.store(ptr::null_mut(), Ordering::Release);
    }
}

impl Bucket {
    fn link(&self) -> Option<NonNull<Bucket>> {
        match self.slots[LINK_SLOT].pointer() {
            SlotPointer::Link(bucket) => Some(bucket),
            _ => None,
        }
    }

    /// Returns the bucket after this one.
    ///
    /// # Safety
    /// Protected or locked; 'a lasts no longer than that.
    unsafe fn next<'a>(&self) -> Option<&'a Bucket> {
        // SAFETY: links name initialised overflow buckets, which are retired after they are unlinked.
        self.link().map(|bucket| unsafe { bucket.as_ref() })
    }

    /// Unlinks all buckets after this one, which hold nothing any more. The buckets given to `unlinked` must be
    /// retired.
    ///
    /// # Safety
    /// Locked.
    unsafe fn unlink_following(&self, unlinked: &mut impl FnMut(OwnedBucket)) {
        let mut link = self.link();
        if link.is_some() {
            self.slots[LINK_SLOT].empty();
        }
        while let Some(bucket) = link {
            // SAFETY: it was linked up to here, and is freed when `unlinked` drops it, after this read.
            link = unsafe { bucket.as_ref() }.link();
            unlinked(OwnedBucket(bucket));
        }
    }
}

/// The reason why a record could not be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertError {
    /// Its chain is already as long as inserts make one.
    ChainFull,
    /// There is no memory for a bucket.
    OutOfMemory,
}

/// The position of an inserted record.
struct InsertPosition {
    /// Buckets in its chain up to it.
    length: usize,
    /// The last of them was added for it.
    added: bool,
}

/// The effect of a bucket's move on the chains of its records, also if memory ran out on the way.
#[derive(Default)]
pub(super) struct RehashStats {
    /// Buckets in the longest of them.
    pub(super) longest: usize,
    /// Overflow buckets that were added.
    pub(super) added: usize,
}

/// A bucket array and, while records move, the one they come from.
pub(super) struct BucketArray {
    /// The first bucket: of `pages`, and there as long as they are.
    first: NonNull<Bucket>,
    /// Shared with the garbage that waits to give a part of them back.
    pages: Arc<ZeroedPages>,
    count: usize,
    /// Bytes at the front of the pages that went back, or wait to, before the rest.
    released: AtomicUsize,
    /// Distinguishes a table's arrays, also when an address is used again.
    pub(super) generation: u64,
    /// The array that records still move from; null when all have moved. Owned: freed with this one, unless taken.
    previous: AtomicPtr<BucketArray>,
    /// A bit for each stripe whose buckets have all been moved from `previous`.
    rehashed_stripes: AtomicU64,
}

impl BucketArray {
    /// Makes an array of `count` empty buckets, rounded up to a multiple of the stripes. Records will move in from
    /// `previous` (which the new array then owns), if that is not null. `None` when memory is out.
    pub(super) fn new(count: usize, generation: u64, previous: *mut BucketArray) -> Option<Box<BucketArray>> {
        let count = count.max(STRIPES).checked_next_multiple_of(STRIPES)?;
        // All-zero bytes are empty buckets: null pointers, hash 0.
        let pages = ZeroedPages::new(count.checked_mul(BUCKET_BYTES)?)?;
        Some(Box::new(BucketArray {
            first: pages.base().cast(),
            pages: Arc::new(pages),
            count,
            released: AtomicUsize::new(0),
            generation,
            previous: AtomicPtr::new(previous),
            rehashed_stripes: AtomicU64::new(0),
        }))
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn slots(&self) -> usize {
        self.count * SLOTS_PER_BUCKET
    }

    pub(super) fn is_growing(&self) -> bool {
        !self.previous.load(Ordering::Acquire).is_null()
    }

    /// Returns the address of the first bucket, for prefetching.
    pub(super) fn base(&self) -> *mut u8 {
        self.first.as_ptr().cast()
    }

    fn bucket(&self, index: usize) -> &Bucket {
        debug_assert!(index < self.count);
        // SAFETY: callers pass `scale(_, count)` or an index below count; the pages hold `count` buckets, all-zero or
        // written through their atomics, and live as long as self.
        unsafe { self.first.add(index).as_ref() }
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> &Bucket {
        self.bucket(bucket_index(hash, self.count))
    }

    /// Returns the array that records still move from.
    ///
    /// # Safety
    /// Protected.
    unsafe fn previous<'a>(&self) -> Option<&'a BucketArray> {
        // SAFETY: it is retired after `previous` was cleared.
        unsafe { self.previous.load(Ordering::Acquire).as_ref() }
    }

    /// As above, but only if records of `hash` may still lie there: those of its stripe have not all been moved. Moved
    /// parts may be given back, and are not searched: after the bit (acquire) their records are seen here.
    ///
    /// # Safety
    /// Protected.
    unsafe fn previous_for<'a>(&self, hash: u64) -> Option<&'a BucketArray> {
        // SAFETY: protected (caller).
        let previous = unsafe { self.previous() }?;
        (self.rehashed_stripes.load(Ordering::Acquire) >> stripe_of(hash) & 1 == 0).then_some(previous)
    }

    /// Calls `f` for every slot of the chain of `hash` in this array, until it answers `Some`.
    ///
    /// # Safety
    /// Protected.
    unsafe fn walk<'a, T>(&'a self, hash: u64, mut f: impl FnMut(&'a BucketSlot) -> Option<T>) -> Option<T> {
        let mut bucket = self.home(hash);
        loop {
            for slot in &bucket.slots {
                if let Some(found) = f(slot) {
                    return Some(found);
                }
            }
            // SAFETY: protected (caller).
            bucket = unsafe { bucket.next() }?;
        }
    }

    /// Returns the slot of the record that `matches`, among those of `hash`, here or in the previous array.
    ///
    /// # Safety
    /// Protected.
    pub(super) unsafe fn find<'a>(
        &'a self,
        hash: u64,
        mut matches: impl FnMut(RecordRef<'a>) -> bool,
    ) -> Option<(&'a BucketSlot, RecordPtr)> {
        let mut check = |slot: &'a BucketSlot| {
            if slot.hash.load(Ordering::Acquire) != hash {
                return None;
            }
            let record = slot.record()?;
            // SAFETY: a record in a slot is kept while we are protected (caller).
            matches(unsafe { record.as_ref() }).then_some((slot, record))
        };
        // SAFETY: protected (caller).
        unsafe {
            if let Some(previous) = self.previous_for(hash)
                && let Some(found) = previous.walk(hash, &mut check)
            {
                return Some(found);
            }
            self.walk(hash, check)
        }
    }

    /// Prefetches `lines` of the record of `hash` if its bucket names it; else `true` where it may lie in another
    /// bucket, which is prefetched instead.
    ///
    /// # Safety
    /// Protected.
    #[inline]
    pub(super) unsafe fn prefetch_record(&self, hash: u64, lines: usize) -> bool {
        let bucket = self.home(hash);
        for slot in &bucket.slots {
            if slot.hash.load(Ordering::Acquire) == hash
                && let Some(record) = slot.record()
            {
                prefetch(record.as_ptr(), 0, lines);
                return false;
            }
        }
        // SAFETY: protected (caller).
        let previous = unsafe { self.previous_for(hash) };
        if let Some(previous) = previous {
            prefetch(previous.base(), bucket_offset(hash, previous.count), 1);
        }
        let link = bucket.link();
        if let Some(link) = link {
            prefetch(link.as_ptr().cast(), 0, 1);
        }
        previous.is_some() || link.is_some()
    }

    /// Prefetches `lines` of the record of `hash`, in whichever bucket it lies.
    ///
    /// # Safety
    /// Protected.
    pub(super) unsafe fn prefetch_chained(&self, hash: u64, lines: usize) {
        // SAFETY: protected (caller).
        let found = unsafe { self.find(hash, |_| true) };
        if let Some((_, record)) = found {
            prefetch(record.as_ptr(), 0, lines);
        }
    }

    /// Inserts a record into this array, in a chain of at most `most` buckets. `before_publication` is called once
    /// nothing can fail any more, before readers can find the record.
    ///
    /// # Safety
    /// Locked.
    unsafe fn insert(
        &self,
        hash: u64,
        record: RecordPtr,
        most: usize,
        spares: &mut SpareBuckets,
        before_publication: impl FnOnce(),
    ) -> Result<InsertPosition, InsertError> {
        let (mut bucket, mut length) = (self.home(hash), 1);
        let last = loop {
            if let Some(slot) = bucket.slots.iter().find(|slot| slot.is_empty()) {
                before_publication();
                slot.fill(hash, record);
                return Ok(InsertPosition { length, added: false });
            }
            if length >= most {
                return Err(InsertError::ChainFull);
            }
            // SAFETY: locked (caller).
            match unsafe { bucket.next() } {
                Some(next) => (bucket, length) = (next, length + 1),
                None => break &bucket.slots[LINK_SLOT],
            }
        };
        let overflow_slot: NonNull<Bucket> = spares.take().ok_or(InsertError::OutOfMemory)?;
        before_publication();
        let overflow = Bucket { slots: std::array::from_fn(|_| BucketSlot::default()) };
        // Neither empty nor a link: a record, which makes way for the link.
        if let Some(moved) = last.record() {
            overflow.slots[0].fill(last.hash.load(Ordering::Relaxed), moved);
        }
        overflow.slots[1].fill(hash, record);
        // SAFETY: memory of a bucket, aligned to a cache line, which belongs to no other owner.
        unsafe { overflow_slot.write(overflow) };
        // The pointer first: a reader that sees the hash gone then sees the link.
        last.pointer.store(overflow_slot.as_ptr().map_addr(|addr| addr | 1).cast(), Ordering::Release);
        last.hash.store(0, Ordering::Release);
        Ok(InsertPosition { length: length + 1, added: true })
    }

    /// Returns the array that takes new records of `hash`; of a growing stripe the first `moved` buckets have been
    /// moved. It is the previous array while their bucket is still there, so that new records do not touch the whole
    /// new array at once.
    ///
    /// # Safety
    /// Locked.
    unsafe fn target(&self, hash: u64, moved: usize) -> &BucketArray {
        // SAFETY: locked (caller).
        match unsafe { self.previous_for(hash) } {
            Some(previous) if previous.index_of(hash) >= stripe_of(hash) * (previous.count / STRIPES) + moved => {
                previous
            }
            _ => self,
        }
    }

    /// Empties a slot that `find` returned for `hash`. The buckets given to `unlinked` must be retired.
    ///
    /// # Safety
    /// Locked, since before the `find`.
    pub(super) unsafe fn remove(&self, hash: u64, slot: &BucketSlot, mut unlinked: impl FnMut(OwnedBucket)) {
        slot.empty();
        // SAFETY: locked (caller).
        unsafe {
            self.unlink_empty(hash, &mut unlinked);
            if let Some(previous) = self.previous_for(hash) {
                previous.unlink_empty(hash, &mut unlinked);
            }
        }
    }

    /// Unlinks the empty overflow buckets at the end of a chain, in whatever order they became empty.
    unsafe fn unlink_empty(&self, hash: u64, unlinked: &mut impl FnMut(OwnedBucket)) {
        let (mut bucket, mut last_used) = (self.home(hash), self.home(hash));
        // SAFETY: the callers of this private function hold the lock.
        while let Some(next) = unsafe { bucket.next() } {
            if next.slots.iter().any(|slot| slot.record().is_some()) {
                last_used = next;
            }
            bucket = next;
        }
        // SAFETY: as above; nothing is left behind it.
        unsafe { last_used.unlink_following(unlinked) };
    }

    /// Moves bucket `index` of this stripe's part of the previous array here, however long that makes chains; `moved`
    /// reports their length. Returns whether it was the stripe's last. The buckets given to `unlinked` must be retired.
    /// Fails only where memory is out: unmoved records are found where they were.
    ///
    /// # Safety
    /// The lock of the stripe is held.
    pub(super) unsafe fn rehash_bucket(
        &self,
        stripe: usize,
        index: usize,
        moved: &mut RehashStats,
        mut unlinked: impl FnMut(OwnedBucket),
    ) -> Result<bool, InsertError> {
        // SAFETY: the array is retired after the last stripe is done, which this one is not: we hold its lock.
        let Some(previous) = (unsafe { self.previous() }) else { return Ok(true) };
        let part = previous.count / STRIPES;
        let home = previous.bucket(stripe * part + index.min(part - 1));
        let mut next = Some(home);
        while let Some(bucket) = next {
            for slot in &bucket.slots {
                if let Some(record) = slot.record() {
                    let hash = slot.hash.load(Ordering::Relaxed);
                    // SAFETY: a bucket of the stripe holds hashes of the stripe only, whose lock the caller holds.
                    let InsertPosition { length, added } =
                        unsafe { self.insert(hash, record, usize::MAX, &mut SpareBuckets::default(), || ())? };
                    debug_assert!(length <= MAX_MOVED_CHAIN_BUCKETS, "{length} buckets: see `crowds`");
                    moved.longest = moved.longest.max(length);
                    moved.added += usize::from(added);
                    slot.empty();
                }
            }
            // SAFETY: locked (caller).
            next = unsafe { bucket.next() };
        }
        // SAFETY: locked (caller).
        unsafe { home.unlink_following(&mut unlinked) };
        Ok(index + 1 >= part)
    }

    /// Notes that a stripe has been moved; returns the part of the previous array that can go back, to be retired.
    ///
    /// # Safety
    /// The lock of the stripe is held.
    pub(super) unsafe fn finish_stripe(&self, stripe: usize) -> Option<Box<dyn IncrementalDrop>> {
        let before = self.rehashed_stripes.fetch_or(1 << stripe, Ordering::AcqRel);
        let moved = before | 1 << stripe;
        if before == moved {
            return None;
        }
        if moved == u64::MAX {
            return self.take_previous().map(|emptied| Box::new(emptied) as Box<dyn IncrementalDrop>);
        }
        // SAFETY: locked (caller).
        let previous = unsafe { self.previous() }?;
        let first = moved.trailing_ones() as usize * (previous.count / STRIPES) * BUCKET_BYTES;
        let end = previous.pages.releasable_end(first);
        let from = previous.released.fetch_max(end, Ordering::AcqRel);
        // SAFETY: the stripes up to here have been moved, and only this call has got from here to there.
        let part = || unsafe { ReleasedRange::new(Arc::clone(&previous.pages), from, end) };
        (from < end).then(|| Box::new(part()) as Box<dyn IncrementalDrop>)
    }

    /// Returns the bytes of the previous array that went back, or wait to.
    ///
    /// # Safety
    /// Protected.
    #[cfg(test)]
    pub(super) unsafe fn released_bytes(&self) -> usize {
        // SAFETY: protected (caller).
        unsafe { self.previous() }.map_or(0, |previous| previous.released.load(Ordering::Acquire))
    }

    fn take_previous(&self) -> Option<RetiredArray> {
        NonNull::new(self.previous.swap(ptr::null_mut(), Ordering::AcqRel)).map(RetiredArray)
    }

    /// Returns the first hash of bucket `index`; 2^64 for the one after the last.
    pub(super) fn first_hash(&self, index: usize) -> u128 {
        ((index as u128) << 64).div_ceil(self.count as u128)
    }

    /// Returns the index of the bucket of a hash.
    pub(super) fn index_of(&self, hash: u64) -> usize {
        bucket_index(hash, self.count)
    }

    /// Shows every record with a hash in `first..end`, the range of one bucket of this array or a part of it. Records
    /// that stay in the table meanwhile are shown at least once, provided that the table's array is still this one
    /// when the call returns.
    ///
    /// # Safety
    /// Protected.
    pub(super) unsafe fn collect(&self, first: u64, end: u128, f: &mut dyn FnMut(u64, RecordPtr)) {
        let mut show = |slot: &BucketSlot| -> Option<()> {
            let hash = slot.hash.load(Ordering::Acquire);
            if hash >= first && u128::from(hash) < end {
                slot.record().into_iter().for_each(|record| f(hash, record));
            }
            None
        };
        // SAFETY: protected (caller).
        unsafe {
            if let Some(previous) = self.previous_for(first) {
                let mut from = first;
                loop {
                    previous.walk(from, &mut show);
                    match u64::try_from(previous.first_hash(previous.index_of(from) + 1)) {
                        Ok(next) if u128::from(next) < end => from = next,
                        _ => break,
                    }
                }
            }
            self.walk(first, show);
        }
    }
}

impl Drop for BucketArray {
    fn drop(&mut self) {
        drop(self.take_previous());
    }
}

/// Asks the processor for `lines` cache lines from `base + offset` on. Never faults, whatever the address.
#[inline(always)]
pub(super) fn prefetch(base: *mut u8, offset: usize, lines: usize) {
    for line in 0..lines {
        let at = base.wrapping_add(offset + line * BUCKET_BYTES);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: SSE is part of x86-64; a prefetch reads nothing as far as the language goes and cannot fault.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast_const().cast());
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = at;
    }
}

/// Returns the offset of the bucket of `hash` in an array of `count` buckets.
#[inline(always)]
pub(super) fn bucket_offset(hash: u64, count: usize) -> usize {
    bucket_index(hash, count) * BUCKET_BYTES
}

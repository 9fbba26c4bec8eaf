//! Records too large for slabs: pieces of extents, which a device that reads tables by itself was told of.
//!
//! The system's allocator knows nothing of devices, and keeps memory that was freed. A piece is taken from the shortest
//! free run that is long enough, the lowest of these, and joins its free neighbours when it comes back. An extent whose
//! bytes are all free is given back, unless little else is free.
//!
//! What this module guarantees: [`SpanAllocator::take`] returns as much memory as was asked for, aligned to
//! [`SPAN_STEP_BYTES`]. No other owner has it until it is given to [`SpanAllocator::give`].
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

use super::extents::Extent;
use crate::limits::{EXTENT_BYTES, LONGEST_SPAN_BYTES, SPAN_STEP_BYTES, SPARE_SPAN_BYTES};

/// Free bytes, as runs that never touch each other within an extent.
#[derive(Default)]
struct FreeRuns {
    /// Length by address.
    by_start: BTreeMap<usize, usize>,
    /// Length and address.
    by_length: BTreeSet<(usize, usize)>,
}

impl FreeRuns {
    const fn new() -> FreeRuns {
        FreeRuns { by_start: BTreeMap::new(), by_length: BTreeSet::new() }
    }

    fn insert(&mut self, start: usize, length: usize) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: usize) -> Option<usize> {
        let length = self.by_start.remove(&start)?;
        self.by_length.remove(&(length, start));
        Some(length)
    }

    /// Takes so many bytes; none if no run is as long.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let (length, start) = *self.by_length.range((bytes, 0)..).next()?;
        self.remove(start);
        if length > bytes {
            self.insert(start + bytes, length - bytes);
        }
        Some(start)
    }

    /// Gives bytes of the extent at `base` back. Returns whether all of it is free now.
    fn give(&mut self, base: usize, start: usize, bytes: usize) -> bool {
        let (mut from, mut to) = (start, start + bytes);
        if to < base + EXTENT_BYTES
            && let Some(length) = self.remove(to)
        {
            to += length;
        }
        let before = self.by_start.range(base..start).next_back().map(|(start, length)| (*start, *length));
        if let Some((start, _)) = before.filter(|(start, length)| start + length == from) {
            self.remove(start);
            from = start;
        }
        self.insert(from, to - from);
        to - from == EXTENT_BYTES
    }
}

/// All extents that are cut into pieces.
pub(super) struct SpanAllocator {
    runs: FreeRuns,
    extents: BTreeMap<usize, Extent>,
    free_bytes: usize,
    /// Free bytes that are always allowed, whatever the used bytes.
    waste_bytes: usize,
}

impl SpanAllocator {
    /// Makes an allocator without extents. `waste_bytes`: see [`SpanAllocator::may_grow`].
    pub(super) const fn new(waste_bytes: usize) -> SpanAllocator {
        SpanAllocator { runs: FreeRuns::new(), extents: BTreeMap::new(), free_bytes: 0, waste_bytes }
    }

    /// Returns the bytes of the extents.
    pub(super) fn bytes(&self) -> usize {
        self.extents.len() * EXTENT_BYTES
    }

    /// Returns the bytes that belong to no piece.
    pub(super) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Returns whether an address lies in one of the extents.
    pub(super) fn has(&self, at: NonNull<u8>) -> bool {
        self.extents.contains_key(&(at.as_ptr().addr() & !(EXTENT_BYTES - 1)))
    }

    /// Returns a piece of so many bytes ([`LONGEST_SPAN_BYTES`] at most); none where no run is as long.
    pub(super) fn take(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = rounded(bytes).filter(|bytes| *bytes <= LONGEST_SPAN_BYTES)?;
        let start = self.runs.take(bytes)?;
        self.free_bytes -= bytes;
        let base = start & !(EXTENT_BYTES - 1);
        let extent = self.extents.get(&base)?;
        // SAFETY: runs lie within their extents, and so does a piece of one.
        Some(unsafe { extent.base().add(start - base) })
    }

    /// Returns whether a piece of so many bytes may have a further extent. It may not while more than `waste_bytes` is
    /// free, and more than half as much as is used. A tenant that takes many pieces and gives back all but one of each
    /// extent is charged for that one only.
    pub(super) fn may_grow(&self, bytes: usize) -> bool {
        let used = self.bytes() - self.free_bytes;
        bytes <= LONGEST_SPAN_BYTES && self.free_bytes <= self.waste_bytes.max(used / 2)
    }

    /// Adds an extent.
    pub(super) fn add(&mut self, extent: Extent) {
        let base = extent.base().as_ptr().addr();
        self.extents.insert(base, extent);
        self.runs.insert(base, EXTENT_BYTES);
        self.free_bytes += EXTENT_BYTES;
    }

    /// Takes a piece back. The returned extent goes back to the device's memory when it is dropped: best without the
    /// lock.
    ///
    /// # Safety
    /// `at` came from `take` of as many bytes, is given back once, and no thread uses it any more.
    pub(super) unsafe fn give(&mut self, at: NonNull<u8>, bytes: usize) -> Option<Extent> {
        let (start, bytes) = (at.as_ptr().addr(), rounded(bytes)?);
        let base = start & !(EXTENT_BYTES - 1);
        self.free_bytes += bytes;
        // Some stay, so that records that come and go do not take their extents with them each time.
        if !self.runs.give(base, start, bytes) || self.free_bytes < SPARE_SPAN_BYTES + EXTENT_BYTES {
            return None;
        }
        self.runs.remove(base);
        self.free_bytes -= EXTENT_BYTES;
        self.extents.remove(&base)
    }
}

fn rounded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(SPAN_STEP_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    fn take(spans: &mut SpanAllocator, bytes: usize) -> Option<NonNull<u8>> {
        if let Some(at) = spans.take(bytes) {
            return Some(at);
        }
        if !spans.may_grow(bytes) {
            return None;
        }
        spans.add(Extent::map()?);
        spans.take(bytes)
    }

    /// Writes, compares and gives back at random, against what each piece should hold.
    #[test]
    fn pieces_do_not_overlap_and_extents_go_back() {
        let mut random = SmallRng::seed_from_u64(7);
        let (mut spans, mut has) = (SpanAllocator::new(64 << 20), Vec::<(NonNull<u8>, usize, u8)>::new());
        let rounds = if cfg!(miri) { 60 } else { 6000 };
        for round in 0..rounds {
            if has.len() < 40 && random.random_bool(0.55) {
                let bytes = [8185, 9000, 16_500, 70_000, 150_000, LONGEST_SPAN_BYTES][random.random_range(0..6)];
                let at = take(&mut spans, bytes).expect("memory");
                assert!(at.as_ptr().addr().is_multiple_of(SPAN_STEP_BYTES));
                // SAFETY: just taken. Its ends are looked at.
                unsafe {
                    at.as_ptr().write_bytes(round as u8, 64);
                    at.add(bytes - 64).as_ptr().write_bytes(round as u8, 64);
                }
                has.push((at, bytes, round as u8));
            } else if !has.is_empty() {
                let (at, bytes, mark) = has.swap_remove(random.random_range(0..has.len()));
                // SAFETY: it is the test's until it is given back.
                unsafe {
                    assert_eq!((*at.as_ptr(), *at.add(bytes - 1).as_ptr()), (mark, mark));
                    drop(spans.give(at, bytes));
                }
            }
            let used: usize = has.iter().map(|(_, bytes, _)| bytes.next_multiple_of(SPAN_STEP_BYTES)).sum();
            assert_eq!(spans.free_bytes, spans.bytes() - used);
            assert_eq!(spans.free_bytes, spans.runs.by_start.values().sum::<usize>());
            assert_eq!(spans.runs.by_start.len(), spans.runs.by_length.len());
        }
        for (at, bytes, _) in has {
            // SAFETY: as above.
            drop(unsafe { spans.give(at, bytes) });
        }
        let left = spans.bytes();
        assert!(left <= SPARE_SPAN_BYTES, "{left} bytes stay");
        assert_eq!((spans.free_bytes, spans.runs.by_start.len()), (left, left / EXTENT_BYTES), "whole");
    }

    #[test]
    fn who_empties_all_but_one_piece_of_each_extent_gets_no_further_ones() {
        let mut spans = SpanAllocator::new(EXTENT_BYTES);
        let length = LONGEST_SPAN_BYTES / 2;
        let pieces: Vec<_> = (0..128).map(|_| take(&mut spans, length).expect("memory")).collect();
        for at in pieces.iter().step_by(2) {
            // SAFETY: it came from there, and no thread uses it.
            assert!(unsafe { spans.give(*at, length) }.is_none());
        }
        assert_eq!(spans.bytes(), 8 * EXTENT_BYTES);
        assert!(take(&mut spans, length + 1).is_none(), "half of it is free, and in no piece as long");
        let again = take(&mut spans, length).expect("what is free is handed out");
        for at in pieces.iter().skip(1).step_by(2).chain([&again]) {
            // SAFETY: as above.
            drop(unsafe { spans.give(*at, length) });
        }
        assert!(take(&mut spans, LONGEST_SPAN_BYTES).is_some());
    }

    #[test]
    fn where_there_is_no_extent_there_is_no_piece() {
        let mut spans = SpanAllocator::new(1 << 30);
        assert!(spans.take(9000).is_none() && spans.may_grow(9000));
        let at = take(&mut spans, 9000).expect("memory");
        assert!(take(&mut spans, usize::MAX).is_none() && take(&mut spans, LONGEST_SPAN_BYTES + 1).is_none());
        assert!(spans.take(EXTENT_BYTES).is_none() && spans.take(9000).is_some());
        // SAFETY: it came from there, and no thread uses it.
        assert!(unsafe { spans.give(at, 9000) }.is_none());
    }
}

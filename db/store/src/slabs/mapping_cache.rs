//! The largest records: each in a mapping of its own, which is reused for the next or goes back to the kernel.
//!
//! The system's allocator keeps the memory of such records, and does not tell how much that is. Here a returned mapping
//! waits for a record of about its size. The janitor unmaps the mappings beyond [`SPARE_MAPPED_BYTES`]: that takes a
//! tenth of a millisecond for each, which a worker cannot spare.
//!
//! What this module guarantees: [`MappingCache::take`] and [`map`] return as much memory as was asked for, aligned to a
//! page. No other owner has it until it is given to [`MappingCache::give`].
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ptr::NonNull;

use super::extents;
use crate::limits::{MAPPED_STEP_BYTES, SPARE_MAPPED_BYTES};

/// Whole pages of one mapping, given back to the kernel when dropped.
pub(super) struct PageMapping {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory, which belongs to the value's owner.
unsafe impl Send for PageMapping {}

impl Drop for PageMapping {
    fn drop(&mut self) {
        // SAFETY: whole pages of a mapping of `map`, of which no part is used or handed out.
        unsafe { extents::unmap(self.at, self.bytes) }
    }
}

/// Returns the length of a mapping for so many bytes.
pub(super) const fn mapped_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(MAPPED_STEP_BYTES)
}

/// Makes a new mapping for so many bytes; none when memory is out.
pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = mapped_bytes(bytes);
    let at = extents::map_bytes(bytes)?;
    super::advise_huge(at, bytes);
    Some(at)
}

/// The unused mappings, and the number of bytes of these and the used ones together.
pub(super) struct MappingCache {
    /// By length and address.
    free: BTreeMap<(usize, usize), PageMapping>,
    free_bytes: usize,
    used_bytes: usize,
}

impl MappingCache {
    pub(super) const fn new() -> MappingCache {
        MappingCache { free: BTreeMap::new(), free_bytes: 0, used_bytes: 0 }
    }

    /// Returns the bytes that are mapped, and those of them that are unused.
    pub(super) fn bytes(&self) -> (usize, usize) {
        (self.used_bytes + self.free_bytes, self.free_bytes)
    }

    /// Returns an unused mapping that is not much too long, and the surplus of it, which is to be dropped without the
    /// lock.
    pub(super) fn take(&mut self, bytes: usize) -> Option<(NonNull<u8>, Option<PageMapping>)> {
        let wanted = mapped_bytes(bytes);
        let (&key, _) = self.free.range((wanted, 0)..).next().filter(|((length, _), _)| *length / 2 <= wanted)?;
        let piece = std::mem::ManuallyDrop::new(self.free.remove(&key)?);
        self.free_bytes -= piece.bytes;
        self.used_bytes += wanted;
        // SAFETY: it lies within the piece, or at its end, and then there is no rest.
        let behind = unsafe { piece.at.add(wanted) };
        let rest = (piece.bytes > wanted).then(|| PageMapping { at: behind, bytes: piece.bytes - wanted });
        Some((piece.at, rest))
    }

    /// Counts a mapping of [`map`] that is handed out.
    pub(super) fn count(&mut self, bytes: usize) {
        self.used_bytes += mapped_bytes(bytes);
    }

    /// Takes a mapping back.
    ///
    /// # Safety
    /// `at` was handed out for as many bytes, is given back once, and no thread uses it any more.
    pub(super) unsafe fn give(&mut self, at: NonNull<u8>, bytes: usize) {
        let bytes = mapped_bytes(bytes);
        self.used_bytes -= bytes;
        self.free_bytes += bytes;
        self.free.insert((bytes, at.as_ptr().addr()), PageMapping { at, bytes });
    }

    /// Returns mappings to unmap: the longest unused ones, as long as there are more bytes than are to be kept. They
    /// are to be dropped without the lock.
    pub(super) fn take_surplus(&mut self) -> Option<PageMapping> {
        if self.free_bytes <= SPARE_MAPPED_BYTES {
            return None;
        }
        let (_, piece) = self.free.pop_last()?;
        self.free_bytes -= piece.bytes;
        Some(piece)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    fn take(mapped: &mut MappingCache, bytes: usize) -> NonNull<u8> {
        if let Some((at, rest)) = mapped.take(bytes) {
            drop(rest);
            return at;
        }
        mapped.count(bytes);
        map(bytes).expect("memory")
    }

    #[test]
    fn mappings_do_not_overlap_are_used_again_and_go_back() {
        let mut random = SmallRng::seed_from_u64(7);
        let (mut mapped, mut has) = (MappingCache::new(), Vec::<(NonNull<u8>, usize, u8)>::new());
        let mut again = 0;
        for round in 0..2_000 {
            if has.len() < 20 && random.random_bool(0.55) {
                let bytes = random.random_range(300_000..2_000_000);
                let before = mapped.free_bytes;
                let at = take(&mut mapped, bytes);
                again += usize::from(mapped.free_bytes < before);
                assert!(at.as_ptr().addr().is_multiple_of(MAPPED_STEP_BYTES));
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
                    mapped.give(at, bytes);
                }
            }
            let used: usize = has.iter().map(|(_, bytes, _)| mapped_bytes(*bytes)).sum();
            let free: usize = mapped.free.values().map(|piece| piece.bytes).sum();
            assert_eq!((used, free), (mapped.used_bytes, mapped.free_bytes));
            while let Some(piece) = mapped.take_surplus() {
                drop(piece);
            }
            assert!(mapped.free_bytes <= SPARE_MAPPED_BYTES);
        }
        assert!(again > 100, "{again} were used again");
        for (at, bytes, _) in has {
            // SAFETY: as above.
            unsafe { mapped.give(at, bytes) };
        }
        assert_eq!(mapped.bytes(), (mapped.free_bytes, mapped.free_bytes));
    }
}

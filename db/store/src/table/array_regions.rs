//! Memory for small bucket arrays: whole pages of regions that are a huge page each.
//!
//! A bucket is looked up at random, so each page of an array needs an address translation of its own. Where hundreds
//! of tables have small arrays, these are more pages than the processor remembers, and a translation costs as much as
//! a miss of the caches; on a virtual machine, more. Prefetching does not hide it, for a prefetch waits for its
//! translation. Packed into huge pages, the arrays of a hundred tables need a handful.
//!
//! What this module guarantees: memory of [`allocate`] is zero and aligned to a page, and belongs to the caller alone
//! until it is given to [`free`].
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::limits::EXTENT_BYTES;
use crate::slabs::{map_extent, unmap_extent};

/// The unit of the memory, bytes: the smallest array takes one.
const PAGE_BYTES: usize = 4096;
const PAGES: usize = EXTENT_BYTES / PAGE_BYTES;
const WORDS: usize = PAGES / 64;

/// All regions of the process, by address.
static REGIONS: Mutex<ArrayRegions> = Mutex::new(ArrayRegions::new());

/// Returns zeroed memory for an array; `None` when there is none. It is for arrays of much less than a region.
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    let pages = bytes.div_ceil(PAGE_BYTES);
    let taken = REGIONS.lock().take(pages);
    let (at, was_used) = match taken {
        Some(taken) => taken,
        None => {
            // Not under the lock: the kernel takes a while. Another thread may do the same, which is no harm.
            let base = map_extent()?;
            REGIONS.lock().add(base).take(pages)?
        }
    };
    if was_used {
        // SAFETY: whole pages of a region, which were just taken for the caller.
        unsafe { at.write_bytes(0, pages * PAGE_BYTES) };
    }
    Some(at)
}

/// Gives memory back.
///
/// # Safety
/// `at` came from [`allocate`] of as many bytes. No thread uses it any more, and it is given back once.
pub(super) unsafe fn free(at: NonNull<u8>, bytes: usize) {
    let unused = REGIONS.lock().give(at, bytes.div_ceil(PAGE_BYTES));
    if let Some(base) = unused {
        // SAFETY: no page of the region is in use, and the regions do not name it any more.
        unsafe { unmap_extent(base) };
    }
}

/// A huge page's worth of memory.
struct ArrayRegion {
    base: NonNull<u8>,
    /// A bit for each page: in use; and used before, so that it may not be zero.
    used: [u64; WORDS],
    was_used: [u64; WORDS],
    free_pages: usize,
}

// SAFETY: plain memory, whose pages belong to the arrays that took them.
unsafe impl Send for ArrayRegion {}

impl ArrayRegion {
    fn new(base: NonNull<u8>) -> ArrayRegion {
        ArrayRegion { base, used: [0; WORDS], was_used: [0; WORDS], free_pages: PAGES }
    }

    /// Takes the first so many pages that lie together, and tells whether they may not be zero.
    fn take(&mut self, pages: usize) -> Option<(NonNull<u8>, bool)> {
        if self.free_pages < pages {
            return None;
        }
        let mut first = 0;
        for page in 0..PAGES {
            if has(&self.used, page) {
                first = page + 1;
            } else if page + 1 - first == pages {
                let was_used = (first..=page).any(|page| has(&self.was_used, page));
                for page in first..=page {
                    self.used[page / 64] |= 1 << (page % 64);
                    self.was_used[page / 64] |= 1 << (page % 64);
                }
                self.free_pages -= pages;
                // SAFETY: within the region.
                return Some((unsafe { self.base.add(first * PAGE_BYTES) }, was_used));
            }
        }
        None
    }

    fn give(&mut self, first: usize, pages: usize) {
        (first..first + pages).for_each(|page| self.used[page / 64] &= !(1 << (page % 64)));
        self.free_pages += pages;
    }
}

fn has(bits: &[u64; WORDS], page: usize) -> bool {
    bits[page / 64] & 1 << (page % 64) != 0
}

/// Regions, by the addresses where they begin. At most one of them is empty.
struct ArrayRegions(BTreeMap<usize, ArrayRegion>);

impl ArrayRegions {
    const fn new() -> ArrayRegions {
        ArrayRegions(BTreeMap::new())
    }

    fn add(&mut self, base: NonNull<u8>) -> &mut ArrayRegions {
        self.0.insert(base.addr().get(), ArrayRegion::new(base));
        self
    }

    /// Takes so many pages that lie together, in the first region that has them: so the others empty.
    fn take(&mut self, pages: usize) -> Option<(NonNull<u8>, bool)> {
        self.0.values_mut().find_map(|region| region.take(pages))
    }

    /// Takes pages back. Returns a region to be unmapped, if one is empty beside another empty one.
    fn give(&mut self, at: NonNull<u8>, pages: usize) -> Option<NonNull<u8>> {
        let address = at.addr().get();
        let (&begin, region) = self.0.range_mut(..=address).next_back()?;
        region.give((address - begin) / PAGE_BYTES, pages);
        if region.free_pages < PAGES || self.0.values().filter(|region| region.free_pages == PAGES).count() < 2 {
            return None;
        }
        self.0.remove(&begin).map(|region| region.base)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Regions of memory that a test leaks.
    fn leaked() -> NonNull<u8> {
        map_extent().expect("memory")
    }

    #[test]
    fn arrays_are_zero_apart_from_each_other_and_leave_no_region_behind() {
        let (mut regions, mut live, mut state) = (ArrayRegions::new(), Vec::new(), 5_u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..20_000 {
            // Now more arrays, now fewer.
            let grows = random(100) < if step / 2_000 % 2 == 0 { 60 } else { 40 };
            if grows {
                let most = if random(10) == 0 { 255 } else { 20 };
                let pages = 1 + random(most) as usize;
                let (at, was_used) = match regions.take(pages) {
                    Some(taken) => taken,
                    None => regions.add(leaked()).take(pages).expect("a new region has room"),
                };
                // SAFETY: the pages were just taken.
                let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), pages * PAGE_BYTES) };
                assert!(was_used || bytes.iter().step_by(PAGE_BYTES).all(|byte| *byte == 0), "fresh pages are zero");
                bytes.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
                live.push((at.addr().get(), at, pages));
            } else if !live.is_empty() {
                let (_, at, pages) = live.swap_remove(random(live.len() as u64) as usize);
                let unused = regions.give(at, pages);
                assert!(unused.is_none_or(|base| !regions.0.contains_key(&base.addr().get())));
            }
            let used: usize = live.iter().map(|(.., pages)| pages).sum();
            let free: usize = regions.0.values().map(|region| region.free_pages).sum();
            assert_eq!(used + free, regions.0.len() * PAGES);
            assert!(regions.0.values().filter(|region| region.free_pages == PAGES).count() <= 1);
        }
        live.sort_unstable();
        for pair in live.windows(2) {
            assert!(pair[0].0 + pair[0].2 * PAGE_BYTES <= pair[1].0, "two arrays share pages");
        }
        for (_, at, pages) in live {
            regions.give(at, pages);
        }
        assert!(regions.0.len() <= 1);
    }

    #[test]
    fn what_was_used_before_is_zero_again() {
        for _ in 0..100 {
            let at = allocate(3 * PAGE_BYTES).expect("memory");
            // SAFETY: the pages are this test's until it gives them back.
            unsafe {
                let bytes = std::slice::from_raw_parts_mut(at.as_ptr(), 3 * PAGE_BYTES);
                assert!(bytes.iter().all(|byte| *byte == 0));
                bytes.fill(7);
                free(at, 3 * PAGE_BYTES);
            }
        }
    }
}

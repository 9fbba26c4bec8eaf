//! Memory for slabs: extents, each a huge page cut into slabs, given back when all of it is free. They come from the
//! kernel, or from the memory that a network device reads by itself, if it was told of such.
//!
//! The lowest extent with a free slab is used first, so that the highest ones empty. A few free slabs are kept in
//! reserve: a table that is emptied and filled again does not go to the kernel each time.
//!
//! What this module guarantees: [`ExtentPool::take`] returns [`SLAB_BYTES`] of readable and writable memory, aligned to
//! that. No other owner has it until it is given to [`ExtentPool::give`]; a pointer to it may be used for all of it.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use sandstorm_net::extents::ExtentSource;

use crate::limits::{EXTENT_BYTES, SLAB_BYTES, SPARE_SLABS};

const SLABS_PER_EXTENT: usize = EXTENT_BYTES / SLAB_BYTES;
const ALL_FREE: u32 = u32::MAX >> (u32::BITS as usize - SLABS_PER_EXTENT);
const _: () = assert!(EXTENT_BYTES.is_power_of_two() && SLAB_BYTES.is_power_of_two());

/// One piece of memory, given back when dropped.
pub(super) struct Extent {
    base: NonNull<u8>,
    /// One bit for each slab that is free.
    free: u32,
}

// SAFETY: plain memory, which belongs to the value's owner.
unsafe impl Send for Extent {}

impl Drop for Extent {
    fn drop(&mut self) {
        // SAFETY: it came from `of_source` or `map`, and no part of it is used, or was handed out.
        unsafe {
            match EXTENT_SOURCE.get().filter(|source| source.has(self.base.as_ptr().addr())) {
                Some(source) => source.give(self.base),
                None => unmap(self.base, EXTENT_BYTES),
            }
        }
    }
}

impl Extent {
    /// Makes an extent of the memory that a device reads; none if there is no such device, or no more of its memory.
    pub(super) fn from_source() -> Option<Extent> {
        Some(Extent { base: EXTENT_SOURCE.get()?.take()?, free: ALL_FREE })
    }

    /// Makes a new extent; none when memory is out. It takes a while: the kernel may have to make a huge page, and to
    /// tell a device of it.
    pub(super) fn make() -> Option<Extent> {
        Extent::from_source().or_else(Extent::map)
    }

    /// Makes an extent of the kernel's memory.
    pub(super) fn map() -> Option<Extent> {
        Some(Extent { base: map()?, free: ALL_FREE })
    }

    /// Returns its first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

/// The source that extents come from before the kernel is asked.
static EXTENT_SOURCE: OnceLock<Arc<dyn ExtentSource>> = OnceLock::new();

/// Takes extents from this source from now on, as long as it has some. Of several sources the first counts.
pub(super) fn set_source(source: Arc<dyn ExtentSource>) {
    let _another_is_there = EXTENT_SOURCE.set(source);
}

/// Returns whether a source is set.
#[inline]
pub(super) fn has_source() -> bool {
    EXTENT_SOURCE.get().is_some()
}

/// All extents, by address.
#[derive(Default)]
pub(super) struct ExtentPool {
    all: BTreeMap<usize, Extent>,
    /// Addresses of the extents with a free slab.
    with_free: BTreeSet<usize>,
    free_slabs: usize,
}

impl ExtentPool {
    pub(super) const fn new() -> ExtentPool {
        ExtentPool { all: BTreeMap::new(), with_free: BTreeSet::new(), free_slabs: 0 }
    }

    /// Returns the bytes of all extents.
    pub(super) fn bytes(&self) -> usize {
        self.all.len() * EXTENT_BYTES
    }

    /// Returns a slab; `None` when all are taken.
    pub(super) fn take(&mut self) -> Option<NonNull<u8>> {
        let lowest = *self.with_free.first()?;
        let extent = self.all.get_mut(&lowest)?;
        let index = extent.free.trailing_zeros() as usize;
        extent.free &= !(1 << index);
        if extent.free == 0 {
            self.with_free.remove(&lowest);
        }
        self.free_slabs -= 1;
        // SAFETY: a set bit is below SLABS, so this lies in the extent.
        Some(unsafe { extent.base.add(index * SLAB_BYTES) })
    }

    /// Adds an extent.
    pub(super) fn add(&mut self, extent: Extent) {
        let address = extent.base.as_ptr().addr();
        self.all.insert(address, extent);
        self.with_free.insert(address);
        self.free_slabs += SLABS_PER_EXTENT;
    }

    /// Takes a slab back. The returned extent, if any, goes back to the kernel when it is dropped: best without the
    /// lock.
    ///
    /// # Safety
    /// `slab` came from `take`, is given back once, and no thread uses it any more.
    pub(super) unsafe fn give(&mut self, slab: NonNull<u8>) -> Option<Extent> {
        let address = slab.as_ptr().addr();
        let base = address & !(EXTENT_BYTES - 1);
        let extent = self.all.get_mut(&base)?;
        extent.free |= 1 << ((address - base) / SLAB_BYTES);
        self.with_free.insert(base);
        self.free_slabs += 1;
        if extent.free != ALL_FREE || self.free_slabs < SLABS_PER_EXTENT + SPARE_SLABS {
            return None;
        }
        self.with_free.remove(&base);
        self.free_slabs -= SLABS_PER_EXTENT;
        self.all.remove(&base)
    }
}

/// Returns memory aligned to its size, of huge pages where the kernel has some.
#[cfg(not(miri))]
pub(super) fn map() -> Option<NonNull<u8>> {
    let aligned = |at: NonNull<u8>| at.as_ptr().addr().is_multiple_of(EXTENT_BYTES);
    // Newer kernels align a mapping as large as a huge page by themselves.
    let mut base = map_bytes(EXTENT_BYTES)?;
    if !aligned(base) {
        // SAFETY: it was just mapped, and is not used.
        unsafe { unmap(base, EXTENT_BYTES) };
        let twice = map_bytes(2 * EXTENT_BYTES)?;
        let before = twice.as_ptr().align_offset(EXTENT_BYTES);
        // SAFETY: the aligned extent lies inside of twice its size; the memory before and behind it is not used.
        unsafe {
            base = twice.add(before);
            if before != 0 {
                unmap(twice, before);
            }
            unmap(base.add(EXTENT_BYTES), EXTENT_BYTES - before);
        }
    }
    super::advise_huge(base, EXTENT_BYTES);
    Some(base)
}

#[cfg(not(miri))]
pub(super) fn map_bytes(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: a fresh private mapping at an address of the kernel's choice touches no memory of ours.
    let base = unsafe {
        mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?
    };
    NonNull::new(base.cast())
}

#[cfg(not(miri))]
pub(super) unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller gives back whole pages of a mapping of `map_bytes` that no thread uses. Where there are too
    // many mappings to cut one more, the addresses are lost, but not the memory.
    unsafe {
        if rustix::mm::munmap(at.as_ptr().cast(), bytes).is_err() {
            let _stays_resident = rustix::mm::madvise(at.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxDontNeed);
        }
    }
}

#[cfg(miri)]
pub(super) fn map() -> Option<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(EXTENT_BYTES, EXTENT_BYTES).ok()?;
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { std::alloc::alloc(layout) })
}

#[cfg(miri)]
pub(super) unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: it came from `map`, whole.
    unsafe { std::alloc::dealloc(at.as_ptr(), std::alloc::Layout::from_size_align_unchecked(bytes, EXTENT_BYTES)) };
}

/// Under miri nothing is mapped but extents: larger records come from the system's allocator.
#[cfg(miri)]
pub(super) fn map_bytes(_: usize) -> Option<NonNull<u8>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_apart_and_what_is_free_is_used_again_before_the_kernel_is_asked() {
        let mut extents = ExtentPool::new();
        let take = |extents: &mut ExtentPool| {
            extents.take().unwrap_or_else(|| {
                extents.add(Extent::map().expect("memory"));
                extents.take().expect("a slab")
            })
        };
        let mut slabs: Vec<_> = (0..2 * SLABS_PER_EXTENT + 1).map(|_| take(&mut extents)).collect();
        slabs.sort_unstable();
        assert!(slabs.windows(2).all(|two| two[1].as_ptr().addr() - two[0].as_ptr().addr() >= SLAB_BYTES));
        assert!(slabs.iter().all(|slab| slab.as_ptr().addr().is_multiple_of(SLAB_BYTES)));
        assert_eq!(extents.bytes(), 3 * EXTENT_BYTES);
        let again = slabs.remove(0);
        // SAFETY: no thread uses it, and it is given back once.
        assert!(unsafe { extents.give(again) }.is_none());
        assert_eq!(extents.take(), Some(again), "the lowest free one");
        slabs.push(again);
        // SAFETY: as above.
        slabs.into_iter().for_each(|slab| drop(unsafe { extents.give(slab) }));
        assert!(extents.bytes() <= EXTENT_BYTES + SPARE_SLABS * SLAB_BYTES, "all but the reserve went back");
        assert_eq!(extents.free_slabs * SLAB_BYTES, extents.bytes());
    }
}

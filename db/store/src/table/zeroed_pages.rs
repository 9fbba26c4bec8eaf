//! Zeroed memory for bucket arrays, given back piece by piece.
//!
//! Large arrays come straight from the kernel: fresh pages are zero without being touched, so making a large array
//! takes microseconds. Their memory goes back a piece at a time, so that freeing an array stalls no thread. (The
//! allocator would clear recycled memory at once, and unmap everything at once.) They ask for huge pages. Small ones
//! share huge pages (`array_regions`). All come from the allocator under miri and the sanitizers.
//!
//! What this module guarantees: a [`ZeroedPages`] owns `bytes` readable and writable bytes that were zero when it was
//! made, aligned to 64, until it is dropped. Released parts read as zero again, or as before.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::array_regions;
use crate::limits::EXTENT_BYTES;
use crate::slabs::advise_huge;

/// Bytes given back to the kernel at a time: a huge page, or 512 small ones, which takes about 50 us.
pub(super) const RELEASE_UNIT_BYTES: usize = EXTENT_BYTES;

/// Arrays from here on come from the kernel, bytes.
const MIN_MAPPED_BYTES: usize = 1 << 20;

/// Bytes of all arrays that came from the kernel and have not gone back.
static MAPPED_TOTAL_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns the bytes of the tables' larger bucket arrays, which come from the kernel. Of a growing one, the bytes that
/// have gone back are included.
#[inline]
pub fn bucket_array_bytes() -> usize {
    MAPPED_TOTAL_BYTES.load(Relaxed)
}

/// Alignment of a bucket array: a cache line.
const ALIGN: usize = 64;

pub(super) struct ZeroedPages {
    base: NonNull<u8>,
    bytes: usize,
    mapped: bool,
}

/// Whether small arrays share huge pages, rather than to come from the allocator.
const SHARES_HUGE_PAGES: bool = cfg!(not(any(miri, sanitized)));

// SAFETY: plain owned memory.
unsafe impl Send for ZeroedPages {}
// SAFETY: as above; `&Pages` only gives out the address.
unsafe impl Sync for ZeroedPages {}

impl ZeroedPages {
    /// Makes zeroed memory; `None` when there is none.
    pub(super) fn new(bytes: usize) -> Option<ZeroedPages> {
        let mapped = bytes >= MIN_MAPPED_BYTES && cfg!(not(miri));
        let base = if mapped { map(bytes)? } else { allocate_small(bytes)? };
        if mapped {
            MAPPED_TOTAL_BYTES.fetch_add(bytes, Relaxed);
        }
        if mapped && bytes >= EXTENT_BYTES {
            advise_huge(base, bytes);
        }
        Some(ZeroedPages { base, bytes, mapped })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the end of the last whole piece before `end`, in bytes from the base: pieces begin where huge pages do.
    /// None where nothing can be given back before all is.
    pub(super) fn releasable_end(&self, end: usize) -> usize {
        let address = self.base.as_ptr().addr();
        let end = (address + end.min(self.bytes)) & !(RELEASE_UNIT_BYTES - 1);
        if self.mapped { end.saturating_sub(address) } else { 0 }
    }

    /// Gives the memory of a part back to the kernel.
    ///
    /// # Safety
    /// The part lies within the memory, begins and ends at pages (or at the end of all), and no thread needs its
    /// content any more.
    pub(super) unsafe fn release(&self, from: usize, end: usize) {
        if self.mapped && from < end {
            // SAFETY: the caller's promise.
            unsafe { release(self.base.add(from), end - from) };
        }
    }
}

impl Drop for ZeroedPages {
    fn drop(&mut self) {
        // SAFETY: the owner is gone, so no thread uses the memory; it is given back as it was taken.
        unsafe {
            if self.mapped {
                MAPPED_TOTAL_BYTES.fetch_sub(self.bytes, Relaxed);
                unmap(self.base, self.bytes);
            } else if SHARES_HUGE_PAGES {
                array_regions::free(self.base, self.bytes);
            } else {
                dealloc(self.base.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGN));
            }
        }
    }
}

fn allocate_small(bytes: usize) -> Option<NonNull<u8>> {
    if SHARES_HUGE_PAGES && bytes != 0 { array_regions::allocate(bytes) } else { allocate(bytes) }
}

fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    let layout = Layout::from_size_align(bytes, ALIGN).ok().filter(|layout| layout.size() != 0)?;
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc_zeroed(layout) })
}

#[cfg(not(miri))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: a fresh private mapping at an address of the kernel's choice touches no memory of ours.
    let base = unsafe {
        mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?
    };
    NonNull::new(base.cast())
}

#[cfg(not(miri))]
unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller gives back a mapping of `map` that no thread uses. A failure would leak it.
    let _ = unsafe { rustix::mm::munmap(at.as_ptr().cast(), bytes) };
}

#[cfg(not(miri))]
unsafe fn release(at: NonNull<u8>, bytes: usize) {
    // SAFETY: a part of a mapping of `map` whose contents are of no use. A failure would keep the memory until it is
    // unmapped.
    let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxDontNeed) };
}

#[cfg(miri)]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    allocate(bytes)
}

#[cfg(miri)]
unsafe fn unmap(_at: NonNull<u8>, _bytes: usize) {}

#[cfg(miri)]
unsafe fn release(_at: NonNull<u8>, _bytes: usize) {}

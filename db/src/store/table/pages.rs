//! Zeroed memory for bucket arrays, given back piece by piece.
//!
//! Large arrays come straight from the kernel: fresh pages are zero without being touched, so that making a large array
//! takes microseconds, and they go back a piece at a time, so that freeing one stalls nobody. (The allocator would clear
//! recycled memory at once, and unmap everything at once.) Small ones, and all under miri, come from the allocator.
//!
//! What this module guarantees: a [`Pages`] owns `bytes` readable and writable bytes that were zero when it was made,
//! aligned to 64, until [`Pages::release_some`] has answered 0 or it is dropped.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Bytes given back to the kernel at a time: 256 pages, about 25 us.
const PIECE_BYTES: usize = 1 << 20;

/// Alignment of a bucket array: a cache line.
const ALIGN: usize = 64;

pub(super) struct Pages {
    base: NonNull<u8>,
    bytes: usize,
    released: usize,
    mapped: bool,
}

// SAFETY: plain owned memory.
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` only gives out the address.
unsafe impl Sync for Pages {}

impl Pages {
    /// Zeroed memory; `None` when there is none.
    pub(super) fn new(bytes: usize) -> Option<Pages> {
        let mapped = bytes >= PIECE_BYTES && cfg!(not(miri));
        let base = if mapped { map(bytes)? } else { allocate(bytes)? };
        Some(Pages { base, bytes, released: 0, mapped })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives one piece back; answers its bytes, 0 when all is given back.
    ///
    /// # Safety
    /// Nobody uses the memory any more.
    pub(super) unsafe fn release_some(&mut self) -> usize {
        let piece = if self.mapped { PIECE_BYTES.min(self.bytes - self.released) } else { self.bytes - self.released };
        if piece != 0 {
            // SAFETY: the caller's promise; [released, released + piece) lies inside and was not given back yet. Unmapped
            // memory is given back whole, so that it is freed as it was allocated.
            unsafe {
                if self.mapped {
                    unmap(self.base.add(self.released), piece);
                } else {
                    dealloc(self.base.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGN));
                }
            }
            self.released += piece;
        }
        piece
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the owner is gone, so nobody uses the memory.
        while unsafe { self.release_some() } != 0 {}
    }
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
    // SAFETY: the caller gives back a piece of a mapping of `map` that nobody uses. A failure would leak the piece.
    let _ = unsafe { rustix::mm::munmap(at.as_ptr().cast(), bytes) };
}

#[cfg(miri)]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    allocate(bytes)
}

#[cfg(miri)]
unsafe fn unmap(_at: NonNull<u8>, _bytes: usize) {}

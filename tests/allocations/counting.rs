//! The system's allocator, with counters for the tests of this program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize};

struct Counting;

/// The kernel's number of the thread whose allocations are counted; 0: none.
pub(crate) static WATCHED: AtomicI32 = AtomicI32::new(0);
/// Number of that thread's allocations.
pub(crate) static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Bytes that the process has allocated.
pub(crate) static BYTES: AtomicUsize = AtomicUsize::new(0);

fn count() {
    let watched = WATCHED.load(Relaxed);
    if watched != 0 && watched == rustix::thread::gettid().as_raw_nonzero().get() {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with its arguments unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        BYTES.fetch_add(size, Relaxed);
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

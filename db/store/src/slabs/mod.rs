//! Memory of records: slabs of objects of one size, so that a record takes its own length, rounded up to eight bytes,
//! and no more.
//!
//! The system's allocator adds a word to each object and rounds up to sixteen, which was a tenth of a record of 130
//! bytes. It knows nothing of huge pages, and keeps memory that was freed. Here memory comes in extents of a huge page
//! each ([`extents`]), cut into slabs ([`depot`]). Every thread caches a few free objects of each size, so that it
//! seldom takes a lock. Any thread may free objects that another one has allocated. Larger records come from [`spans`],
//! and the largest from [`mapping_cache`].
//!
//! Under miri and the sanitizers all memory comes from the system's allocator (`--cfg sanitized`), so that they see
//! each record's end; `depot` and `extents` have tests of their own for them.
//!
//! What this module guarantees: [`allocate`] returns as much memory as was asked for, aligned to 8 (64 bytes: to 64).
//! No other owner has it until it is given to [`free`].
#![allow(unsafe_code)]

mod depot;
mod extents;
mod mapping_cache;
mod spans;

use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use sandstorm_net::extents::ExtentSource;

use self::depot::{Depot, FreeList, MAX_SLAB_OBJECT_BYTES, SIZE_CLASSES, SIZE_STEP_BYTES, class_bytes, size_class_for};
use self::extents::Extent;
use self::mapping_cache::{MappingCache, mapped_bytes};
use self::spans::SpanAllocator;
use crate::limits::{CACHED_BYTES_PER_SIZE, EXTENT_BYTES, LONGEST_SPAN_BYTES, SLAB_WASTE_BYTES, SPAN_STEP_BYTES};

/// Whether everything comes from the system's allocator.
const SYSTEM_ALLOCATOR_ONLY: bool = cfg!(any(miri, sanitized));

/// The overhead of the system's allocator, as far as is known: a word before each object, and rounding up to this.
const SYSTEM_ROUNDING_BYTES: usize = 16;

static DEPOT: Depot = Depot::new(SLAB_WASTE_BYTES);

/// Larger records.
static SPANS: Mutex<SpanAllocator> = Mutex::new(SpanAllocator::new(SLAB_WASTE_BYTES));

/// Empty extents of larger records. The next such record uses them, or the janitor gives them to the kernel. A device's
/// go back at once.
static EMPTY_EXTENTS: Mutex<Vec<Extent>> = Mutex::new(Vec::new());

/// The largest records.
static LARGE_MAPPINGS: Mutex<MappingCache> = Mutex::new(MappingCache::new());

thread_local! {
    static CACHE: RefCell<ThreadCache> = const { RefCell::new(ThreadCache([const { FreeList::EMPTY }; SIZE_CLASSES])) };
}

/// Free objects that a thread caches.
struct ThreadCache([FreeList; SIZE_CLASSES]);

impl ThreadCache {
    fn give_back(&mut self) {
        for (size, chain) in self.0.iter_mut().enumerate().filter(|(_, chain)| chain.len() != 0) {
            // SAFETY: free objects of this size, all from the depot.
            unsafe { DEPOT.give(size, chain, 0) };
        }
    }
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Returns the number of objects of a size that are fetched at once; a thread keeps up to twice as many.
fn refill_count(size: usize) -> usize {
    (CACHED_BYTES_PER_SIZE / 2 / class_bytes(size)).clamp(2, 64)
}

/// Returns the bytes that an allocation takes, with all rounding losses.
pub(super) const fn allocation_size(bytes: usize) -> usize {
    if bytes <= MAX_SLAB_OBJECT_BYTES {
        return class_bytes(size_class_for(bytes));
    }
    // Bytes of the system's allocator, and of a span or a mapping.
    let system = (bytes + SIZE_STEP_BYTES).next_multiple_of(SYSTEM_ROUNDING_BYTES);
    let ours = if bytes > LONGEST_SPAN_BYTES { mapped_bytes(bytes) } else { bytes.next_multiple_of(SPAN_STEP_BYTES) };
    if system > ours { system } else { ours }
}

/// Returns the bytes of memory for the records of all tables, in slabs and, larger ones, beside them; free ones
/// included.
#[inline]
pub fn slab_bytes() -> usize {
    memory_totals().0
}

/// Returns those of them that are free.
#[inline]
pub fn slab_free_bytes() -> usize {
    memory_totals().1
}

fn memory_totals() -> (usize, usize) {
    let slabs = DEPOT.bytes();
    let spans = { SPANS.lock() };
    let spans = (spans.bytes(), spans.free_bytes());
    let (empty, mapped) = (EMPTY_EXTENTS.lock().len() * EXTENT_BYTES, LARGE_MAPPINGS.lock().bytes());
    (slabs.0 + spans.0 + empty + mapped.0, slabs.1 + spans.1 + empty + mapped.1)
}

/// Gives free memory to the kernel, except for a reserve: in pieces, and not by a thread that others wait for.
#[inline]
pub fn release_free_memory() {
    let empty = std::mem::take(&mut *EMPTY_EXTENTS.lock());
    drop(empty);
    while let Some(piece) = { LARGE_MAPPINGS.lock().take_surplus() } {
        drop(piece);
    }
}

/// Makes records lie in memory of this source, as long as it has some: a device reads it by itself. Call it before
/// there are any records; of several sources in one process the first counts.
#[inline]
pub fn set_extent_source(source: Arc<dyn ExtentSource>) {
    if !SYSTEM_ALLOCATOR_ONLY {
        extents::set_source(source);
    }
}

/// Returns memory of some length, for [`free`]; `None` when there is none. Not inlined, as [`free`] is not. A function
/// in which tenant code runs must not compute the address of a thread's variable: another thread may go on with it.
#[inline(never)]
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    #[cfg(test)]
    if !scarce::take() {
        return None;
    }
    if SYSTEM_ALLOCATOR_ONLY || bytes > MAX_SLAB_OBJECT_BYTES {
        allocate_unslabbed(bytes)
    } else {
        from_slab(bytes, true)
    }
}

/// As above, and tells whether it is for [`free_unslabbed`]: while slabs are mostly empty, no record gets a new slab.
#[inline(never)]
pub(super) fn allocate_record(bytes: usize) -> Option<(NonNull<u8>, bool)> {
    if SYSTEM_ALLOCATOR_ONLY || bytes > MAX_SLAB_OBJECT_BYTES {
        return allocate_unslabbed(bytes).map(|at| (at, false));
    }
    let from_slab = from_slab(bytes, false).map(|at| (at, false));
    from_slab.or_else(|| allocate_unslabbed(bytes).map(|at| (at, true)))
}

fn from_slab(bytes: usize, is_must: bool) -> Option<NonNull<u8>> {
    let size = size_class_for(bytes);
    let cached = CACHE.try_with(|cache| {
        let chain = &mut cache.borrow_mut().0[size];
        if chain.len() == 0 {
            *chain = DEPOT.take(size, refill_count(size), is_must);
        }
        chain.pop()
    });
    // A thread that is ending has no cache any more.
    cached.unwrap_or_else(|_| DEPOT.take(size, 1, is_must).pop())
}

#[cold]
fn from_span(bytes: usize) -> Option<NonNull<u8>> {
    let may_grow = {
        let mut spans = SPANS.lock();
        if let Some(at) = spans.take(bytes) {
            return Some(at);
        }
        spans.may_grow(bytes)
    };
    if !may_grow {
        return None;
    }
    // Not under the lock: the kernel may have to make a huge page, or to tell a device of it. Another thread may do the
    // same meanwhile; then this extent is not needed.
    let extent = match extents::has_source() {
        true => Extent::from_source()?,
        false => { EMPTY_EXTENTS.lock().pop() }.or_else(Extent::map)?,
    };
    let mut spans = SPANS.lock();
    if let Some(at) = spans.take(bytes) {
        drop(spans);
        drop(extent);
        return Some(at);
    }
    spans.add(extent);
    spans.take(bytes)
}

fn allocate_unslabbed(bytes: usize) -> Option<NonNull<u8>> {
    if !SYSTEM_ALLOCATOR_ONLY && bytes > LONGEST_SPAN_BYTES {
        return from_mapped(bytes);
    }
    if !SYSTEM_ALLOCATOR_ONLY
        && bytes > MAX_SLAB_OBJECT_BYTES
        && let Some(at) = from_span(bytes)
    {
        return Some(at);
    }
    let layout = Layout::from_size_align(bytes, align(bytes)).ok().filter(|layout| layout.size() != 0)?;
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc(layout) })
}

#[cold]
fn from_mapped(bytes: usize) -> Option<NonNull<u8>> {
    if let Some((at, rest)) = { LARGE_MAPPINGS.lock().take(bytes) } {
        // The kernel takes it back: not under the lock.
        drop(rest);
        return Some(at);
    }
    let at = mapping_cache::map(bytes)?;
    LARGE_MAPPINGS.lock().count(bytes);
    Some(at)
}

/// Gives memory back that came from the system's allocator, although it is small, or that is too large for a slab.
///
/// # Safety
/// `at` came from [`allocate_record`] of as many bytes, which answered true; no thread uses it any more, and it is
/// given back once.
pub(super) unsafe fn free_unslabbed(at: NonNull<u8>, bytes: usize) {
    if !SYSTEM_ALLOCATOR_ONLY && bytes > LONGEST_SPAN_BYTES {
        // SAFETY: the caller's promise; allocations of this length all come from there.
        return unsafe { LARGE_MAPPINGS.lock().give(at, bytes) };
    }
    if !SYSTEM_ALLOCATOR_ONLY && bytes > MAX_SLAB_OBJECT_BYTES {
        let mut spans = SPANS.lock();
        if spans.has(at) {
            // SAFETY: the caller's promise; memory in one of these extents came from there.
            let empty = unsafe { spans.give(at, bytes) };
            drop(spans);
            match empty {
                Some(empty) if !extents::has_source() => EMPTY_EXTENTS.lock().push(empty),
                // Without the lock: the device has to forget it.
                empty => drop(empty),
            }
            return;
        }
    }
    // SAFETY: the caller's promise; the layout is the one of `allocate_unslabbed`.
    unsafe { dealloc(at.as_ptr(), Layout::from_size_align_unchecked(bytes, align(bytes))) }
}

/// Gives this thread's cached objects to the depot: a few objects of many slabs would keep these while it sleeps.
#[inline(never)]
pub(super) fn flush_thread_cache() {
    let _a_thread_that_ends_has_none = CACHE.try_with(|cache| cache.borrow_mut().give_back());
}

/// As above for one size, which any number selects.
#[inline(never)]
pub(super) fn flush_size_class(number: usize) {
    let size = number % SIZE_CLASSES;
    let _a_thread_that_ends_has_none = CACHE.try_with(|cache| {
        let chain = &mut cache.borrow_mut().0[size];
        if chain.len() != 0 {
            // SAFETY: free objects of this size, all from the depot.
            unsafe { DEPOT.give(size, chain, 0) };
        }
    });
}

/// Returns the objects that this thread caches.
#[cfg(test)]
pub(super) fn cached_objects() -> usize {
    CACHE.with(|cache| cache.borrow().0.iter().map(FreeList::len).sum())
}

/// Gives memory back.
///
/// # Safety
/// `at` came from [`allocate`] of as many bytes, or from [`allocate_record`] that answered false. No thread uses it any
/// more, and it is given back once.
#[inline(never)]
pub(super) unsafe fn free(at: NonNull<u8>, bytes: usize) {
    if SYSTEM_ALLOCATOR_ONLY || bytes > MAX_SLAB_OBJECT_BYTES {
        // SAFETY: the caller's promise, and it did not come from a slab.
        return unsafe { free_unslabbed(at, bytes) };
    }
    let size = size_class_for(bytes);
    let give = |chain: &mut FreeList, most: usize, left: usize| {
        // SAFETY: an object of this size of the depot (caller), as are all of the chain.
        unsafe {
            chain.push(at);
            if chain.len() > most {
                DEPOT.give(size, chain, left);
            }
        }
    };
    let batch = refill_count(size);
    let cached = CACHE.try_with(|cache| give(&mut cache.borrow_mut().0[size], 2 * batch, batch));
    if cached.is_err() {
        let mut alone = FreeList::EMPTY;
        give(&mut alone, 0, 0);
    }
}

fn align(bytes: usize) -> usize {
    if bytes == 64 { 64 } else { SIZE_STEP_BYTES }
}

/// Returns zeroed memory of [`EXTENT_BYTES`], aligned to as many: a huge page, where the kernel has one.
pub(super) fn map_extent() -> Option<NonNull<u8>> {
    extents::map()
}

/// Gives an extent back to the kernel.
///
/// # Safety
/// It came from [`map_extent`], and no thread uses it any more.
pub(super) unsafe fn unmap_extent(base: NonNull<u8>) {
    // SAFETY: the caller's promise.
    unsafe { extents::unmap(base, EXTENT_BYTES) }
}

/// Asks the kernel for huge pages, which save most address translations; it may decline.
pub(super) fn advise_huge(at: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: advice about a mapping of the caller's changes none of its contents.
    unsafe {
        let _ = rustix::mm::madvise(at.as_ptr().cast(), bytes, rustix::mm::Advice::LinuxHugepage);
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (at, bytes);
}

/// Makes [`allocate`] fail on this thread after so many calls, for tests.
#[cfg(test)]
pub(super) mod scarce {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    pub(super) fn take() -> bool {
        LEFT.with(|left| {
            let had = left.get();
            left.set(had.saturating_sub(usize::from(had != usize::MAX)));
            had != 0
        })
    }

    /// Does `f` with memory for so many more objects.
    pub(crate) fn with<T>(objects: usize, f: impl FnOnce() -> T) -> T {
        LEFT.with(|left| left.set(objects));
        let answer = f();
        LEFT.with(|left| left.set(usize::MAX));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that allocate, give half of it to the others, and free what they received.
    #[test]
    fn what_one_thread_allocates_another_one_frees() {
        let (rounds, lengths) = (if cfg!(miri) { 50 } else { 20_000 }, [1usize, 16, 64, 146, 500, 1500, 8184, 9000]);
        let (sender, receiver) = std::sync::mpsc::channel::<(usize, usize, u8)>();
        let receiver = std::sync::Mutex::new(receiver);
        // SAFETY: each piece is written by the thread that allocated it, handed over once, and freed by the thread that
        // received it.
        let check_and_free = |(address, bytes, mark): (usize, usize, u8)| unsafe {
            let at = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address)).expect("not null");
            let all = std::slice::from_raw_parts(at.as_ptr(), bytes);
            assert!(all.iter().all(|byte| *byte == mark), "somebody else has written to it");
            free(at, bytes);
        };
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (sender, receiver) = (sender.clone(), &receiver);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let bytes = lengths[(round + usize::from(thread)) % lengths.len()];
                        let at = allocate(bytes).expect("memory");
                        assert!(at.as_ptr().addr().is_multiple_of(align(bytes)));
                        let mark = thread ^ round as u8;
                        // SAFETY: just allocated.
                        unsafe { at.as_ptr().write_bytes(mark, bytes) };
                        sender.send((at.as_ptr().expose_provenance(), bytes, mark)).expect("the test still runs");
                        if round % 2 == 0 {
                            let handed = receiver.lock().expect("no panic").try_recv();
                            handed.into_iter().for_each(check_and_free);
                        }
                    }
                });
            }
        });
        drop(sender);
        receiver.into_inner().expect("no panic").into_iter().for_each(check_and_free);
    }
}

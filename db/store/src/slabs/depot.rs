//! Slabs, each cut into objects of one size: common to all threads, under one lock for each size.
//!
//! A slab begins with a header of a cache line; an object's slab is found by its address. Each size has a list of its
//! slabs with both free and used objects, and of its new, unused slabs. Objects are taken from the first slab of that
//! list. A slab whose last object comes back leaves its size, and may serve another one.
//!
//! What this module guarantees: an object that [`Depot::take`] hands out belongs to its caller alone until it comes
//! back by [`Depot::give`]. It has [`class_bytes`] bytes and is aligned to [`SIZE_STEP_BYTES`], and to a cache line if
//! that divides its size.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};

use super::extents::{Extent, ExtentPool};
use crate::limits::SLAB_BYTES;

/// Sizes are multiples of this.
pub(super) const SIZE_STEP_BYTES: usize = 8;
/// Up to here there is a size for each multiple of [`SIZE_STEP_BYTES`].
const LINEAR_CLASSES_MAX_BYTES: usize = 1024;
const HEADER_BYTES: usize = size_of::<SlabHeader>();
const SLAB_PAYLOAD_BYTES: usize = SLAB_BYTES - HEADER_BYTES;
/// Objects of the largest size in a slab. Sizes above [`LINEAR_CLASSES_MAX_BYTES`] are such that a slab has no room
/// left over.
const MIN_OBJECTS_PER_SLAB: usize = 8;
/// Objects of the smallest of those sizes in a slab.
const MAX_LARGE_CLASS_OBJECTS: usize = SLAB_PAYLOAD_BYTES / (LINEAR_CLASSES_MAX_BYTES + SIZE_STEP_BYTES);
/// The largest size.
pub(super) const MAX_SLAB_OBJECT_BYTES: usize =
    SLAB_PAYLOAD_BYTES / MIN_OBJECTS_PER_SLAB / SIZE_STEP_BYTES * SIZE_STEP_BYTES;
/// The number of sizes.
pub(super) const SIZE_CLASSES: usize =
    LINEAR_CLASSES_MAX_BYTES / SIZE_STEP_BYTES + 1 + MAX_LARGE_CLASS_OBJECTS - MIN_OBJECTS_PER_SLAB + 1;
const _: () = assert!(HEADER_BYTES == 64);

/// Returns the size that has room for so many bytes (at most [`MAX_SLAB_OBJECT_BYTES`]).
pub(super) const fn size_class_for(bytes: usize) -> usize {
    let steps = if bytes <= 2 * SIZE_STEP_BYTES { 2 } else { bytes.div_ceil(SIZE_STEP_BYTES) };
    if steps <= LINEAR_CLASSES_MAX_BYTES / SIZE_STEP_BYTES {
        return steps;
    }
    LINEAR_CLASSES_MAX_BYTES / SIZE_STEP_BYTES + 1 + MAX_LARGE_CLASS_OBJECTS
        - SLAB_PAYLOAD_BYTES / (steps * SIZE_STEP_BYTES)
}

/// Returns the bytes of an object of a size.
pub(super) const fn class_bytes(size: usize) -> usize {
    if size <= LINEAR_CLASSES_MAX_BYTES / SIZE_STEP_BYTES {
        return size * SIZE_STEP_BYTES;
    }
    let objects = MAX_LARGE_CLASS_OBJECTS + LINEAR_CLASSES_MAX_BYTES / SIZE_STEP_BYTES + 1 - size;
    SLAB_PAYLOAD_BYTES / objects / SIZE_STEP_BYTES * SIZE_STEP_BYTES
}

const fn objects_per_slab(size: usize) -> u32 {
    (SLAB_PAYLOAD_BYTES / class_bytes(size)) as u32
}

/// A free object: it contains the address of the next one.
struct FreeObject {
    next: *mut FreeObject,
}

/// A chain of free objects of one size. Dropping a chain leaks them.
pub(super) struct FreeList {
    first: *mut FreeObject,
    len: usize,
}

// SAFETY: the only owner of its objects.
unsafe impl Send for FreeList {}

impl FreeList {
    pub(super) const EMPTY: FreeList = FreeList { first: ptr::null_mut(), len: 0 };

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn pop(&mut self) -> Option<NonNull<u8>> {
        let first = NonNull::new(self.first)?;
        // SAFETY: a free object of the chain, which `push` has written.
        self.first = unsafe { first.as_ref() }.next;
        self.len -= 1;
        Some(first.cast())
    }

    /// # Safety
    /// `object` is one of a depot, of the chain's size, and the caller owns it.
    pub(super) unsafe fn push(&mut self, object: NonNull<u8>) {
        let object: NonNull<FreeObject> = object.cast();
        // SAFETY: the caller's promise: at least 16 bytes, aligned to 8, and in no other owner's hands.
        unsafe { object.write(FreeObject { next: self.first }) };
        self.first = object.as_ptr();
        self.len += 1;
    }
}

/// The header of a slab. Read and written under the lock of its size.
#[repr(C, align(64))]
struct SlabHeader {
    /// Objects that came back.
    free: *mut FreeObject,
    /// Neighbours in the list of the size.
    before: *mut SlabHeader,
    behind: *mut SlabHeader,
    /// The number of objects that are handed out.
    used: u32,
    /// The number of objects that were handed out at least once: the first ones.
    begun: u32,
}

/// The slabs of one size that have free objects and used ones.
struct SizeClass {
    first: *mut SlabHeader,
    last: *mut SlabHeader,
}

// SAFETY: the list and its slabs belong to the holder of the lock.
unsafe impl Send for SizeClass {}

impl SizeClass {
    /// # Safety
    /// `slab` is alive, and of this size, and in no list. The same for `remove`, but that it is in this list.
    unsafe fn append(&mut self, slab: NonNull<SlabHeader>) {
        // SAFETY: the caller's promise; all slabs in the list are alive.
        unsafe {
            (*slab.as_ptr()).before = self.last;
            (*slab.as_ptr()).behind = ptr::null_mut();
            match NonNull::new(self.last) {
                Some(last) => (*last.as_ptr()).behind = slab.as_ptr(),
                None => self.first = slab.as_ptr(),
            }
        }
        self.last = slab.as_ptr();
    }

    unsafe fn remove(&mut self, slab: NonNull<SlabHeader>) {
        // SAFETY: as for `append`.
        unsafe {
            let (before, behind) = ((*slab.as_ptr()).before, (*slab.as_ptr()).behind);
            match NonNull::new(before) {
                Some(before) => (*before.as_ptr()).behind = behind,
                None => self.first = behind,
            }
            match NonNull::new(behind) {
                Some(behind) => (*behind.as_ptr()).before = before,
                None => self.last = before,
            }
        }
    }
}

/// All slabs.
pub(super) struct Depot {
    sizes: [CachePadded<Mutex<SizeClass>>; SIZE_CLASSES],
    /// Locked within the lock of a size, never the other way round.
    extents: Mutex<ExtentPool>,
    /// Bytes of the slabs that have a size.
    slabs_bytes: AtomicUsize,
    /// Bytes of the objects that are handed out.
    used_bytes: AtomicUsize,
    /// Free bytes of slabs that are always allowed, whatever the used bytes.
    waste_bytes: usize,
}

impl Depot {
    /// Makes a depot without slabs. While more than `waste_bytes` of its slabs is free, and more than half as much as
    /// is used, only callers that must have memory get new slabs.
    pub(super) const fn new(waste_bytes: usize) -> Depot {
        Depot {
            sizes: [const { CachePadded::new(Mutex::new(SizeClass { first: ptr::null_mut(), last: ptr::null_mut() })) };
                SIZE_CLASSES],
            extents: Mutex::new(ExtentPool::new()),
            slabs_bytes: AtomicUsize::new(0),
            used_bytes: AtomicUsize::new(0),
            waste_bytes,
        }
    }

    /// Returns whether so much of the slabs is free, and of use to one size only, that only callers that must have
    /// memory get further slabs. Otherwise a tenant that fills slabs and empties all but one object of each could keep
    /// many times its charged memory, size by size.
    fn is_fragmented(&self) -> bool {
        let used = self.used_bytes.load(Relaxed);
        self.slabs_bytes.load(Relaxed).saturating_sub(used) > self.waste_bytes.max(used / 2)
    }

    /// Returns the bytes of the slabs, and the bytes of their objects that are not handed out.
    pub(super) fn bytes(&self) -> (usize, usize) {
        let (bytes, used) = (self.extents.lock().bytes(), self.used_bytes.load(Relaxed));
        (bytes, bytes.saturating_sub(used))
    }

    /// Returns up to `count` objects of a size. It returns fewer, or none, when memory is out, or when slabs are mostly
    /// empty and the caller can do without.
    pub(super) fn take(&self, size: usize, count: usize, is_must: bool) -> FreeList {
        let mut list = self.sizes[size].lock();
        let mut taken = FreeList::EMPTY;
        while taken.len < count {
            let Some(slab) = NonNull::new(list.first) else {
                if taken.len != 0 || !is_must && self.is_fragmented() {
                    break;
                }
                // Not under the lock: the kernel may have to make and zero a huge page. Other threads may do the same
                // meanwhile.
                let Some(slab) = MutexGuard::unlocked(&mut list, || self.new_slab()) else { break };
                // SAFETY: it belongs to no other thread, and is in no list.
                unsafe { list.append(slab) };
                continue;
            };
            // SAFETY: a slab in the list is alive, has free objects, and is ours while the list is locked.
            unsafe {
                take_from_slab(slab, size, count, &mut taken);
                if (*slab.as_ptr()).used == objects_per_slab(size) {
                    list.remove(slab);
                }
            }
        }
        self.used_bytes.fetch_add(taken.len * class_bytes(size), Relaxed);
        taken
    }

    /// Returns the memory of a slab; of a new extent if no other is free.
    fn obtain_slab(&self) -> Option<NonNull<u8>> {
        if let Some(slab) = { self.extents.lock().take() } {
            return Some(slab);
        }
        // Not under this lock, either. Another thread may do the same meanwhile; then this extent is not needed.
        let extent = Extent::make()?;
        let mut extents = self.extents.lock();
        if let Some(slab) = extents.take() {
            drop(extents);
            drop(extent);
            return Some(slab);
        }
        extents.add(extent);
        extents.take()
    }

    /// Makes a slab without an object handed out, which is in no list.
    fn new_slab(&self) -> Option<NonNull<SlabHeader>> {
        let slab: NonNull<SlabHeader> = self.obtain_slab()?.cast();
        self.slabs_bytes.fetch_add(SLAB_BYTES, Relaxed);
        let nothing = ptr::null_mut();
        // SAFETY: memory of a slab, aligned to its size, which belongs to no other owner.
        unsafe {
            slab.write(SlabHeader { free: ptr::null_mut(), before: nothing, behind: nothing, used: 0, begun: 0 })
        };
        Some(slab)
    }

    /// Takes objects back until `left` of the chain are left.
    ///
    /// # Safety
    /// The objects of the chain are of this size, came from this depot, and no thread uses them.
    pub(super) unsafe fn give(&self, size: usize, chain: &mut FreeList, left: usize) {
        self.used_bytes.fetch_sub(chain.len.saturating_sub(left) * class_bytes(size), Relaxed);
        let mut list = self.sizes[size].lock();
        while chain.len > left {
            let Some(object) = chain.pop() else { break };
            // The header lies in the same extent, whose pointer `take` derived the object from.
            let slab = object.as_ptr().map_addr(|address| address & !(SLAB_BYTES - 1)).cast();
            let Some(slab) = NonNull::<SlabHeader>::new(slab) else { break };
            // SAFETY: the slab is alive as long as one of its objects is handed out, and ours while the list is locked.
            let emptied = unsafe {
                let header = &mut *slab.as_ptr();
                let object: NonNull<FreeObject> = object.cast();
                object.write(FreeObject { next: header.free });
                header.free = object.as_ptr();
                header.used -= 1;
                let (used, was_full) = (header.used, header.used + 1 == objects_per_slab(size));
                if was_full && used != 0 {
                    list.append(slab);
                } else if used == 0 && !was_full {
                    list.remove(slab);
                }
                used == 0
            };
            if emptied {
                // SAFETY: all its objects are free, it is in no list, and it came from `ExtentPool::take`.
                let extent = unsafe { self.extents.lock().give(slab.cast()) };
                self.slabs_bytes.fetch_sub(SLAB_BYTES, Relaxed);
                if extent.is_some() {
                    // The kernel takes it back: not under the lock.
                    MutexGuard::unlocked(&mut list, || drop(extent));
                }
            }
        }
    }
}

/// Moves objects of a slab to a chain, until the chain has `count` or the slab has no more.
///
/// # Safety
/// The slab is alive and of this size, and the caller holds its lock.
unsafe fn take_from_slab(slab: NonNull<SlabHeader>, size: usize, count: usize, taken: &mut FreeList) {
    // SAFETY: the caller's promise.
    let header = unsafe { &mut *slab.as_ptr() };
    while taken.len < count {
        let object: NonNull<u8> = if let Some(free) = NonNull::new(header.free) {
            // SAFETY: an object that came back holds the next one.
            header.free = unsafe { free.as_ref() }.next;
            free.cast()
        } else if header.begun < objects_per_slab(size) {
            let offset = HEADER_BYTES + header.begun as usize * class_bytes(size);
            header.begun += 1;
            // SAFETY: it lies in the slab, as far as there are objects.
            unsafe { slab.cast::<u8>().add(offset) }
        } else {
            return;
        };
        header.used += 1;
        // SAFETY: an object of this size that belonged to no owner.
        unsafe { taken.push(object) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_length_fits_its_size_and_none_is_much_larger() {
        for bytes in 0..=MAX_SLAB_OBJECT_BYTES {
            let size = size_class_for(bytes);
            let taken = class_bytes(size);
            assert!(
                size < SIZE_CLASSES && taken >= bytes && taken.is_multiple_of(SIZE_STEP_BYTES),
                "{bytes}: {size}, {taken}"
            );
            let lost = taken - bytes;
            assert!(
                lost < SIZE_STEP_BYTES
                    || bytes <= SIZE_STEP_BYTES
                    || (bytes > LINEAR_CLASSES_MAX_BYTES && lost * 7 < bytes),
                "{bytes}: {taken}"
            );
            assert!(size == 2 || class_bytes(size - 1) < bytes, "{bytes}: a smaller one does");
            let unused = SLAB_PAYLOAD_BYTES - objects_per_slab(size) as usize * taken;
            assert!(unused * 64 <= SLAB_BYTES, "{taken}: {unused} bytes of a slab are of no use");
        }
        assert_eq!((size_class_for(MAX_SLAB_OBJECT_BYTES), class_bytes(size_class_for(146))), (SIZE_CLASSES - 1, 152));
    }

    #[test]
    fn objects_do_not_overlap_and_slabs_serve_other_sizes_when_they_are_empty() {
        let depot = Depot::new(usize::MAX);
        let (mut out, mut most) = (Vec::new(), 0);
        for round in 0..if cfg!(miri) { 2 } else { 20 } {
            for size in [2, 8, 19, 128, 129, 150, SIZE_CLASSES - 1] {
                let mut chain = depot.take(size, if size > 128 { 20 } else { 300 }, true);
                while let Some(object) = chain.pop() {
                    // SAFETY: an object of this size that is ours.
                    unsafe { object.as_ptr().write_bytes(round, class_bytes(size)) };
                    out.push((object, size));
                }
            }
            let mut ends = BTreeSet::new();
            for (object, size) in &out {
                let first = object.as_ptr().addr();
                assert!(
                    first.is_multiple_of(SIZE_STEP_BYTES)
                        && (!size.is_multiple_of(8) || *size > 128 || first.is_multiple_of(64))
                );
                ends.insert((first, first + class_bytes(*size)));
            }
            let ends: Vec<_> = ends.into_iter().collect();
            assert!(ends.len() == out.len() && ends.windows(2).all(|two| two[0].1 <= two[1].0), "they overlap");
            for (object, size) in out.drain(..) {
                give_one(&depot, size, object);
            }
            most = most.max(depot.bytes().0);
            assert_eq!(depot.bytes().0, most, "what was free is used again");
        }
        assert!(depot.sizes.iter().all(|size| size.lock().first.is_null()), "every slab went back");
    }

    #[test]
    fn who_empties_all_but_one_object_of_each_slab_does_not_get_slabs_of_other_sizes_without_end() {
        let depot = Depot::new(16 * SLAB_BYTES);
        let (mut left, mut most) = (Vec::new(), 0);
        for size in [4, 8, 16, 32, 64, 128] {
            let mut out = Vec::new();
            while let Some(object) = depot.take(size, 1, false).pop() {
                out.push(object);
                if out.len() * class_bytes(size) >= 64 * SLAB_BYTES {
                    break;
                }
            }
            most = most.max(depot.slabs_bytes.load(Relaxed));
            for (number, object) in out.into_iter().enumerate() {
                if number % objects_per_slab(size) as usize == 0 {
                    left.push((object, size));
                } else {
                    give_one(&depot, size, object);
                }
            }
        }
        assert!(most <= (64 + 2) * SLAB_BYTES, "what was filled once, and no more: {} slabs", most / SLAB_BYTES);
        assert!(depot.take(100, 1, false).pop().is_none(), "slabs are mostly empty");
        let object = depot.take(100, 1, true).pop().expect("who must gets it all the same");
        give_one(&depot, 100, object);
        left.into_iter().for_each(|(object, size)| give_one(&depot, size, object));
        assert_eq!((depot.slabs_bytes.load(Relaxed), depot.used_bytes.load(Relaxed)), (0, 0));
        let object = depot.take(100, 1, false).pop().expect("there is nothing that is wasted");
        give_one(&depot, 100, object);
    }

    fn give_one(depot: &Depot, size: usize, object: NonNull<u8>) {
        let mut chain = FreeList::EMPTY;
        // SAFETY: an object of this size of this depot, which no thread uses any more.
        unsafe {
            chain.push(object);
            depot.give(size, &mut chain, 0);
        }
    }
}

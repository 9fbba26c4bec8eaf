//! Memory that a device reads by itself: one address range, in which extents are made on demand.
//!
//! A device reads memory that was mapped for it beforehand (`rte_extmem_register`, `rte_dev_dma_map`). DPDK has room
//! for 128 registrations and, on vfio, for 256 mappings, of which those that lie side by side are one. So all addresses
//! are reserved at once, and extents are taken from the lowest on. If unmapping an extent would leave more than 256
//! pieces, DPDK refuses it. Such a slot keeps its memory, is handed out first, and is tried again when another has been
//! unmapped. The addresses are low where such are free ([`DMA_ADDRESS_HINTS`]): an IOMMU may translate no more.
//!
//! Guarantees: [`DmaArena::take`] returns [`DMA_EXTENT_BYTES`] of readable and writable memory, aligned to that. No
//! other caller has it until it is passed to [`DmaArena::give`], and the device reads it meanwhile. Memory leaves this
//! process only after it has been unmapped for the device.
#![allow(unsafe_code)]

use super::error::DpdkErrno;
use crate::limits::{DMA_ADDRESS_HINTS, DMA_EXTENT_BYTES};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maps memory for a device.
pub(super) trait DmaMapper: Send + Sync {
    /// Maps these bytes, which are there, so that the device reads them. Returns why it does not.
    fn map(&self, at: NonNull<u8>, bytes: usize) -> Result<(), DpdkErrno>;
    /// Unmaps them.
    fn unmap(&self, at: NonNull<u8>, bytes: usize) -> UnmapOutcome;
}

/// The result of unmapping memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnmapOutcome {
    /// The device does not read the memory any more.
    Released,
    /// The device still reads it.
    StillMapped,
    /// Unknown.
    Unknown,
}

/// Slots of extents: numbers from the base on.
#[derive(Debug, Default)]
struct ExtentSlots {
    /// The first slot that was never used.
    next: usize,
    /// Slots without memory.
    bare: BTreeSet<usize>,
    /// Free slots that the device still reads, since unmapping them was refused.
    read: BTreeSet<usize>,
    /// The slot to retry next, and the time of the last failed retry.
    retry_from: usize,
    retry_failed_at: Option<Instant>,
    /// The time of the last refused mapping, and the reason.
    refused: Option<(Instant, DpdkErrno)>,
}

/// The address range, and the extents that the device reads.
pub(super) struct DmaArena<M> {
    base: NonNull<u8>,
    count: usize,
    slots: Mutex<ExtentSlots>,
    /// One bit for each extent that is in use.
    out: Box<[AtomicU64]>,
    mapper: M,
    /// The time until the next attempt after a refusal: each costs some calls, and a line of DPDK's log.
    retry: Duration,
}

// SAFETY: the addresses are this one's alone; what is handed out belongs to its receiver.
unsafe impl<M: DmaMapper> Send for DmaArena<M> {}
// SAFETY: as above; places are handed out under a lock.
unsafe impl<M: DmaMapper> Sync for DmaArena<M> {}

impl<M> std::fmt::Debug for DmaArena<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("base", &self.base).field("count", &self.count).finish_non_exhaustive()
    }
}

impl<M> Drop for DmaArena<M> {
    fn drop(&mut self) {
        // SAFETY: the reservation is this one's. What is handed out holds on to this (see `DmaMemory`), so nothing is.
        let _stays_reserved = unsafe { munmap(self.base.as_ptr().cast(), self.count * DMA_EXTENT_BYTES) };
    }
}

impl<M: DmaMapper> DmaArena<M> {
    /// Reserves addresses for so many extents. None if there are none.
    pub(super) fn reserve(count: usize, retry: Duration, mapper: M) -> Option<DmaArena<M>> {
        let bytes = count.checked_mul(DMA_EXTENT_BYTES).filter(|bytes| *bytes != 0)?;
        let base = DMA_ADDRESS_HINTS.iter().find_map(|hint| reserve_at(*hint, bytes)).or_else(|| reserve(bytes))?;
        let out = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Some(DmaArena { base, count, slots: Mutex::default(), out, mapper, retry })
    }

    /// Returns the first address, and the number of bytes.
    pub(super) fn range(&self) -> (NonNull<u8>, usize) {
        (self.base, self.count * DMA_EXTENT_BYTES)
    }

    fn lock(&self) -> MutexGuard<'_, ExtentSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, slot: usize) -> NonNull<u8> {
        debug_assert!(slot < self.count);
        // SAFETY: places are below `count`, so this lies in the reservation.
        unsafe { self.base.add(slot * DMA_EXTENT_BYTES) }
    }

    /// Returns the slot that an address lies in; none if it is not of this arena.
    fn slot(&self, at: usize) -> Option<usize> {
        let slot = at.checked_sub(self.base.as_ptr().addr())? / DMA_EXTENT_BYTES;
        (slot < self.count).then_some(slot)
    }

    /// Returns whether an address is of this arena.
    #[inline]
    pub(super) fn has(&self, at: usize) -> bool {
        self.slot(at).is_some()
    }

    /// Returns whether the device reads all of these bytes.
    #[inline]
    pub(super) fn reads(&self, bytes: &[u8]) -> bool {
        let first = bytes.as_ptr().addr();
        let last = first + bytes.len().saturating_sub(1);
        let (Some(first), Some(last)) = (self.slot(first), self.slot(last)) else { return false };
        (first..=last).all(|slot| {
            // The owner of the bytes has taken the extent before, and has not given it back.
            self.out.get(slot / 64).is_some_and(|word| word.load(Relaxed) >> (slot % 64) & 1 == 1)
        })
    }

    /// Returns the bytes that the device reads: extents in use, and those whose unmapping was refused.
    pub(super) fn bytes(&self) -> usize {
        let out: usize = self.out.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum();
        (out + self.lock().read.len()) * DMA_EXTENT_BYTES
    }

    /// Returns why the last mapping was refused; none if it was not.
    pub(super) fn refused(&self) -> Option<DpdkErrno> {
        self.lock().refused.map(|(_, why)| why)
    }

    /// Returns an extent; none if there is no memory, no slot, or the device reads no more.
    pub(super) fn take(&self) -> Option<NonNull<u8>> {
        let mut slots = self.lock();
        if let Some(slot) = slots.read.pop_first() {
            slots.refused = None;
            return Some(self.mark_allocated(slot));
        }
        if slots.refused.is_some_and(|(when, _)| when.elapsed() < self.retry) {
            return None;
        }
        let refuse = |slots: &mut ExtentSlots, why| slots.refused = Some((Instant::now(), why));
        let slot = match slots.bare.pop_first() {
            Some(slot) => slot,
            None if slots.next < self.count => {
                slots.next += 1;
                slots.next - 1
            }
            None => {
                refuse(&mut slots, DpdkErrno(libc::ENOSPC));
                return None;
            }
        };
        // Other threads need not wait for the kernel, which may have to clear all of it.
        drop(slots);
        let at = self.at(slot);
        if !commit_memory(at) {
            let mut slots = self.lock();
            slots.bare.insert(slot);
            refuse(&mut slots, DpdkErrno(libc::ENOMEM));
            return None;
        }
        let mapped = self.mapper.map(at, DMA_EXTENT_BYTES);
        let is_bare = mapped.is_err() && decommit_memory(at);
        let mut slots = self.lock();
        let Err(why) = mapped else {
            slots.refused = None;
            return Some(self.mark_allocated(slot));
        };
        refuse(&mut slots, why);
        if is_bare {
            slots.bare.insert(slot);
        }
        None
    }

    fn mark_allocated(&self, slot: usize) -> NonNull<u8> {
        if let Some(word) = self.out.get(slot / 64) {
            word.fetch_or(1 << (slot % 64), Relaxed);
        }
        self.at(slot)
    }

    /// Takes an extent back.
    ///
    /// # Safety
    /// It came from [`DmaArena::take`], is given back once, and no thread uses it any more, nor does anything that is
    /// to be sent.
    pub(super) unsafe fn give(&self, at: NonNull<u8>) {
        let Some(slot) = self.slot(at.as_ptr().addr()) else { return };
        if let Some(word) = self.out.get(slot / 64) {
            word.fetch_and(!(1 << (slot % 64)), Relaxed);
        }
        // Unmapping an earlier slot may succeed now, as its neighbours are gone. Tries two slots for each, by turns,
        // until one fails.
        if self.forget(slot) {
            let _until_in_vain = (0..2).all(|_| self.next_unmap_retry().is_some_and(|earlier| self.forget(earlier)));
        }
    }

    /// Returns the next slot to retry among those that the device would not unmap; none for a while after a failed
    /// retry.
    fn next_unmap_retry(&self) -> Option<usize> {
        let mut slots = self.lock();
        if slots.retry_failed_at.is_some_and(|when| when.elapsed() < self.retry) {
            return None;
        }
        let next = slots.read.range(slots.retry_from..).next().or_else(|| slots.read.first()).copied()?;
        slots.retry_from = next + 1;
        slots.read.remove(&next);
        Some(next)
    }

    /// Unmaps a free slot. Returns false if that was refused.
    fn forget(&self, slot: usize) -> bool {
        let at = self.at(slot);
        let unmapped = self.mapper.unmap(at, DMA_EXTENT_BYTES);
        // Otherwise the device would go on reading the memory that is there now: the address must not get another.
        let is_bare = unmapped == UnmapOutcome::Released && decommit_memory(at);
        let mut slots = self.lock();
        if unmapped == UnmapOutcome::StillMapped {
            slots.read.insert(slot);
            slots.retry_failed_at = Some(Instant::now());
        }
        if is_bare {
            slots.bare.insert(slot);
        }
        // In all other cases the state is unknown: the slot is not used again.
        unmapped == UnmapOutcome::Released
    }
}

/// Reserves these addresses, if they are free.
fn reserve_at(hint: usize, bytes: usize) -> Option<NonNull<u8>> {
    let (hint, flags) = (std::ptr::without_provenance_mut(hint), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping that replaces none.
    let base = unsafe { mmap_anonymous(hint, bytes, ProtFlags::empty(), flags) }.ok()?;
    if base == hint {
        return NonNull::new(base.cast());
    }
    // SAFETY: it was just mapped, and is not used.
    let _stays_reserved = unsafe { munmap(base, bytes) };
    None
}

/// Reserves addresses, aligned to an extent.
fn reserve(bytes: usize) -> Option<NonNull<u8>> {
    let (more, flags) = (bytes.checked_add(DMA_EXTENT_BYTES)?, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let all = unsafe { mmap_anonymous(std::ptr::null_mut(), more, ProtFlags::empty(), flags) }.ok()?;
    let all: NonNull<u8> = NonNull::new(all.cast())?;
    let before = all.as_ptr().align_offset(DMA_EXTENT_BYTES);
    // SAFETY: the aligned piece lies inside of what was mapped; what is before and behind it is not used.
    unsafe {
        let base = all.add(before);
        if before != 0 {
            let _stays_reserved = munmap(all.as_ptr().cast(), before);
        }
        let _stays_reserved = munmap(base.add(bytes).as_ptr().cast(), DMA_EXTENT_BYTES - before);
        Some(base)
    }
}

/// Commits memory there, of huge pages where the kernel has some. All of it is populated now, because it is mapped for
/// a device under a lock of DPDK's.
fn commit_memory(at: NonNull<u8>) -> bool {
    let start = at.as_ptr().cast();
    // SAFETY: a slot of the arena's that has no owner.
    unsafe {
        if mprotect(start, DMA_EXTENT_BYTES, MprotectFlags::READ | MprotectFlags::WRITE).is_err() {
            return false;
        }
        let _declined = madvise(start, DMA_EXTENT_BYTES, Advice::LinuxHugepage);
        // With a child process that shared these pages, the kernel would copy the next written ones, and the device
        // would read the old ones.
        let is_ours = madvise(start, DMA_EXTENT_BYTES, Advice::LinuxDontFork).is_ok();
        let is_there = match madvise(start, DMA_EXTENT_BYTES, Advice::LinuxPopulateWrite) {
            // Linux before 5.14 does not know this advice; mapping the memory for the device commits it, too.
            Ok(()) | Err(Errno::INVAL) => true,
            Err(_) => false,
        };
        if is_ours && is_there {
            return true;
        }
    }
    let _decommitted = decommit_memory(at);
    false
}

/// Gives the memory there back to the kernel, and keeps the addresses. Returns false if it is still there: then the
/// slot is not to be used again.
fn decommit_memory(at: NonNull<u8>) -> bool {
    let start = at.as_ptr().cast();
    // SAFETY: a slot of the arena's that has no owner.
    unsafe {
        madvise(start, DMA_EXTENT_BYTES, Advice::LinuxDontNeed).is_ok()
            && mprotect(start, DMA_EXTENT_BYTES, MprotectFlags::empty()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A device that reads so many extents at once, and unmaps none while it is stubborn.
    #[derive(Default)]
    struct Fake {
        most: usize,
        stubborn: std::sync::atomic::AtomicBool,
        mapped: Mutex<BTreeSet<usize>>,
    }

    impl DmaMapper for Fake {
        fn map(&self, at: NonNull<u8>, bytes: usize) -> Result<(), DpdkErrno> {
            let mut mapped = self.mapped.lock().unwrap();
            assert_eq!(bytes, DMA_EXTENT_BYTES);
            // SAFETY: it is to be readable and writable now, and has no other owner.
            let memory = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), bytes) };
            assert!(memory.iter().all(|byte| *byte == 0), "fresh memory");
            memory.fill(1);
            if mapped.len() == self.most {
                return Err(DpdkErrno(libc::ENOMEM));
            }
            assert!(mapped.insert(at.as_ptr().addr()), "it reads that already");
            Ok(())
        }

        fn unmap(&self, at: NonNull<u8>, bytes: usize) -> UnmapOutcome {
            // SAFETY: what the device reads is there.
            let memory = unsafe { std::slice::from_raw_parts(at.as_ptr(), bytes) };
            assert!(memory.iter().all(|byte| *byte != 0), "as it was handed out");
            if self.stubborn.load(Relaxed) {
                return UnmapOutcome::StillMapped;
            }
            assert!(self.mapped.lock().unwrap().remove(&at.as_ptr().addr()), "it does not read that");
            UnmapOutcome::Released
        }
    }

    fn arena(count: usize, most: usize) -> DmaArena<Fake> {
        DmaArena::reserve(count, Duration::ZERO, Fake { most, ..Fake::default() }).expect("addresses")
    }

    fn bytes(at: NonNull<u8>) -> &'static mut [u8] {
        // SAFETY: the test has the extent, and uses this before it gives it back.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), DMA_EXTENT_BYTES) }
    }

    #[test]
    fn what_is_handed_out_is_read_by_the_device_and_nothing_else() {
        let arena = arena(5, 5);
        let (base, all) = arena.range();
        assert_eq!((base.as_ptr().addr() % DMA_EXTENT_BYTES, all), (0, 5 * DMA_EXTENT_BYTES));
        let mut has: Vec<_> = (0..5).map(|_| arena.take().expect("an extent")).collect();
        assert!(has.windows(2).all(|two| two[1].as_ptr().addr() == two[0].as_ptr().addr() + DMA_EXTENT_BYTES));
        assert_eq!((arena.take(), arena.bytes()), (None, 5 * DMA_EXTENT_BYTES));
        // SAFETY: neighbours of one mapping.
        let across = unsafe { std::slice::from_raw_parts(bytes(has[1]).as_ptr().add(4096), DMA_EXTENT_BYTES) };
        assert!(arena.reads(across) && arena.reads(&across[..1]));
        let second = has.remove(2);
        // SAFETY: no thread uses it.
        unsafe { arena.give(second) };
        assert!(!arena.reads(across) && arena.reads(&across[..100]) && arena.has(second.as_ptr().addr()));
        let local = [0; 8];
        assert!(!arena.reads(&local) && !arena.has(local.as_ptr().addr()));
        assert_eq!(arena.take(), Some(second), "the lowest place");
        assert!(bytes(second).iter().all(|byte| *byte == 1), "written by the fake");
    }

    #[test]
    fn a_device_that_refuses_is_asked_again_only_after_a_while() {
        let mut arena = arena(8, 2);
        arena.retry = Duration::from_hours(1);
        let has = [arena.take(), arena.take()].map(|at| at.expect("an extent"));
        assert_eq!((arena.refused(), arena.take()), (None, None));
        assert_eq!(arena.refused(), Some(DpdkErrno(libc::ENOMEM)));
        // SAFETY: no thread uses it.
        unsafe { arena.give(has[0]) };
        assert_eq!(arena.take(), None, "not yet");
        arena.retry = Duration::ZERO;
        assert_eq!((arena.take(), arena.refused()), (Some(has[0]), None));
        assert_eq!((arena.take(), arena.mapper.mapped.lock().unwrap().len()), (None, 2));
    }

    #[test]
    fn what_a_device_would_not_forget_keeps_its_memory_and_is_handed_out_first() {
        let arena = arena(8, 8);
        let has = [arena.take(), arena.take(), arena.take()].map(|at| at.expect("an extent"));
        bytes(has[1])[7] = 77;
        arena.mapper.stubborn.store(true, Relaxed);
        // SAFETY: no thread uses it.
        unsafe { arena.give(has[1]) };
        assert!(!arena.reads(bytes(has[1])), "nobody has it");
        assert_eq!(arena.take(), Some(has[1]));
        assert_eq!(bytes(has[1])[7], 77, "the memory that the device reads");
        arena.mapper.stubborn.store(false, Relaxed);
        // SAFETY: no thread uses it.
        unsafe { arena.give(has[0]) };
        assert_eq!(arena.take(), Some(has[0]));
        assert_eq!(bytes(has[0])[7], 1);
    }

    #[test]
    fn what_a_device_would_not_forget_goes_when_others_do() {
        let arena = arena(8, 8);
        let has: Vec<_> = (0..6).map(|_| arena.take().expect("an extent")).collect();
        arena.mapper.stubborn.store(true, Relaxed);
        for at in &has[..3] {
            // SAFETY: no thread uses it.
            unsafe { arena.give(*at) };
        }
        assert_eq!((arena.bytes(), arena.lock().read.len()), (6 * DMA_EXTENT_BYTES, 3));
        arena.mapper.stubborn.store(false, Relaxed);
        for at in &has[3..] {
            // SAFETY: as above.
            unsafe { arena.give(*at) };
        }
        assert_eq!((arena.bytes(), arena.mapper.mapped.lock().unwrap().len()), (0, 0));
        assert_eq!(arena.lock().bare.len(), 6);
    }

    /// Threads take, write, look, and give back; each checks the extents that it has.
    #[test]
    fn threads_never_have_the_same_extent() {
        let arena = arena(24, 14);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let arena = &arena;
                scope.spawn(move || {
                    let mut has = BTreeMap::new();
                    for round in 0..400u32 {
                        if round % 3 != 2
                            && let Some(at) = arena.take()
                        {
                            bytes(at)[64..128].fill(thread + 1);
                            assert!(arena.reads(bytes(at)));
                            assert!(has.insert(at.as_ptr().addr(), at).is_none());
                        } else if let Some((_, at)) = has.pop_first() {
                            assert!(bytes(at)[64..128].iter().all(|byte| *byte == thread + 1));
                            // SAFETY: no thread uses it.
                            unsafe { arena.give(at) };
                        }
                        if has.len() > 4 {
                            let (_, at) = has.pop_last().expect("more than four");
                            // SAFETY: as above.
                            unsafe { arena.give(at) };
                        }
                    }
                    // SAFETY: as above.
                    has.into_values().for_each(|at| unsafe { arena.give(at) });
                });
            }
        });
        assert_eq!((arena.bytes(), arena.mapper.mapped.lock().unwrap().len()), (0, 0));
    }
}

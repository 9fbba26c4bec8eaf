//! The memory of one sandboxed invocation: the addresses that its code can reach, of which it may use what it was
//! granted.
//!
//! Guarantees: all addresses that verified code can name lie within one reservation of this process that holds nothing
//! else. Parts that were not granted are inaccessible. Memory that one tenant's code may have written is zero before
//! another tenant's runs in it. Slices and copies are only made of granted memory.
#![allow(unsafe_code)]

mod list;
mod records;

use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use sandstorm_api::abi;
use sandstorm_sandbox::layout::{
    CONTROL_AT, MAX_VARIABLES, PAGE_BYTES, RECORDS_AT, RECORDS_END, RESERVED_BELOW_BYTES, RESERVED_BYTES,
    VARIABLE_BYTES, VARIABLES_AT,
};
use sandstorm_sandbox::{HostFunction, ModuleLayout};

use super::guest_layout::{first_len, first_of_stack, stack_high};
use super::guest_value::{GuestAddress, GuestValue};
use super::prefetch::{LINE_BYTES, prefetch};
use super::tenant_permits::TenantPermit;
use crate::limits::{
    GUEST_FIRST_BYTES, GUEST_RECORDS_HOT_BYTES, GUEST_SHADOW_STACK_HOT_BYTES, GUEST_SLACK_BYTES, WIPE_BY_WRITING_BYTES,
};

/// Where the address of the worker's block lies in the control page, relative to the base. Only the host's own code
/// reads it.
pub(super) const BLOCK_AT: i32 = VARIABLES_AT - 8;

/// Bytes that one table of pages covers. What an invocation usually touches lies below one: its control page, the top
/// of its stack, its data, and the beginning of its arena.
const TABLE_BYTES: usize = 2 << 20;
/// Where the base lies above a multiple of that.
const BASE_OFFSET_BYTES: usize = 512 << 10;
/// Bytes of a reservation: as many more as it takes to put the base there.
const MAPPED_BYTES: usize = RESERVED_BELOW_BYTES + RESERVED_BYTES + TABLE_BYTES;
/// Where the record window begins in a memory that is never longer: near what else is used, so that the processor finds
/// it by tables that it has at hand.
const NEAR_RECORDS_AT: usize = 64 << 20;

/// Where the address of the module's function lies that is entered next. Only the host's own code uses it.
pub(super) const ENTRY_AT: i32 = BLOCK_AT - 8;
const _: () = assert!(CONTROL_AT + (HostFunction::ALL.len() as i32) * 8 <= ENTRY_AT);

/// How far before the near records the header lies, about: on the same page, mostly.
const PREFETCHED_HEADER_BYTES: usize = 384;

/// Near records of no bytes, not even of none: an empty record has an address in the window.
const NO_NEAR_RECORDS: (usize, usize) = (1, 0);

/// One reservation, and what of it is granted.
#[derive(Debug)]
pub(super) struct GuestMemory {
    reservation: NonNull<u8>,
    base: NonNull<u8>,
    /// The tenant that may have left content in it, by its serial number; 0: none.
    pub(super) owner: u64,
    /// The module whose data it holds, by its number; 0: none.
    module: u64,
    /// Whether that module was made by the server's own builder, whose allocator expects no zeroes.
    is_ours: bool,
    /// The kernel refused to take a part of it back: nothing of it may be used any more.
    is_lost: bool,
    /// Its last invocation ended as its code wanted: constants are as they were.
    pub(super) ended_well: bool,
    /// Where the granted part of the stack begins: it grows down when it is touched.
    stack_low: AtomicUsize,
    /// Where the part of the stack begins that an idle memory may keep.
    stack_high: usize,
    /// Bytes of the module's memory that are granted at first.
    first_len: usize,
    /// The end of the granted part of the module's memory: it grows when what follows is touched. Few pages are
    /// granted, so that few have to be cleared for the next tenant.
    granted_len: AtomicUsize,
    /// How far it may grow.
    memory_len: usize,
    /// Bytes of the module's memory for the first records: those in use end at the first, all of them at the second.
    near_records: (usize, usize),
    /// Where the record window begins, its granted bytes, and those in use.
    records_at: usize,
    records_len: usize,
    records_used: usize,
    /// Where in its first pages the use of the stack and of the record window begins. Memories that all begin at a
    /// page's start would compete for the few cache lines that the processor has for such addresses.
    cache_colour: usize,
    /// Its owner's permit to have it.
    pub(super) permit: Option<TenantPermit>,
}

// SAFETY: plain memory that the value owns alone.
unsafe impl Send for GuestMemory {}

impl GuestMemory {
    /// Reserves the addresses; nothing is granted but the variables. `host_stub` gives the address that code calls for
    /// the host's function of a number.
    pub(super) fn new(host_stub: fn(usize) -> usize) -> io::Result<GuestMemory> {
        /// Five lines of the cache from one colour to the next: odd, so that all lines get their turn.
        const COLOUR_BYTES: usize = 5 * 64;
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping where the kernel chooses.
        let start = unsafe { libc::mmap(null_mut(), MAPPED_BYTES, libc::PROT_NONE, flags, -1, 0) };
        let reservation = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED);
        let Some(reservation) = reservation else { return Err(io::Error::last_os_error()) };
        // Pages are granted one by one, and each is zeroed when it is touched: a huge one would take as long as 512.
        // SAFETY: our own reservation; a kernel without huge pages refuses, and needs no advice.
        unsafe { libc::madvise(start, MAPPED_BYTES, libc::MADV_NOHUGEPAGE) };
        let first = reservation.addr().get() + RESERVED_BELOW_BYTES;
        let base = (first - BASE_OFFSET_BYTES).next_multiple_of(TABLE_BYTES) + BASE_OFFSET_BYTES;
        // SAFETY: within the reservation, which is longer by what a table of pages covers.
        let base = unsafe { reservation.add(base - reservation.addr().get()) };
        let memory = GuestMemory {
            reservation,
            base,
            owner: 0,
            module: 0,
            is_ours: false,
            is_lost: false,
            ended_well: false,
            stack_low: AtomicUsize::new(0),
            stack_high: 0,
            first_len: 0,
            granted_len: AtomicUsize::new(0),
            memory_len: 0,
            near_records: NO_NEAR_RECORDS,
            records_at: RECORDS_AT,
            records_len: 0,
            records_used: 0,
            cache_colour: MADE.fetch_add(COLOUR_BYTES, Ordering::Relaxed) % PAGE_BYTES,
            permit: None,
        };
        memory.protect(CONTROL_AT as isize, RESERVED_BELOW_BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
        for (number, function) in HostFunction::ALL.iter().enumerate() {
            // SAFETY: in the control page, which is granted now; aligned.
            unsafe { memory.at(function.address_at() as isize).cast::<usize>().write(host_stub(number)) };
        }
        Ok(memory)
    }

    /// The base of all of its addresses.
    #[inline]
    pub(super) fn base(&self) -> usize {
        self.base.addr().get()
    }

    /// Prefetches the value itself.
    #[inline]
    pub(super) fn prefetch(&self) {
        let first: *const u8 = (&raw const *self).cast();
        for line in 0..size_of::<GuestMemory>().div_ceil(LINE_BYTES) {
            prefetch(first.wrapping_add(line * LINE_BYTES));
        }
    }

    /// Prefetches lines of the pages that a call of the module that ran here last touches first. It reads the value, so
    /// call it once that has come.
    #[inline]
    pub(super) fn prefetch_first_lines(&self) {
        let base: *const u8 = self.base.as_ptr();
        for at in [ENTRY_AT, VARIABLES_AT] {
            prefetch(base.wrapping_offset(at as isize));
        }
        for at in [self.near_records.0, self.near_records.0.wrapping_sub(PREFETCHED_HEADER_BYTES)] {
            prefetch(base.wrapping_add(at));
        }
    }

    fn at(&self, offset: isize) -> NonNull<u8> {
        // SAFETY: callers name offsets within the reservation.
        unsafe { self.base.offset(offset) }
    }

    /// Names the worker that is about to run its code.
    #[inline]
    pub(super) fn set_worker(&self, block: usize) {
        // SAFETY: a word between the functions' addresses and the variables.
        unsafe { self.at(BLOCK_AT as isize).cast::<usize>().write(block) };
    }

    fn protect(&self, from: isize, len: usize, access: libc::c_int) -> io::Result<()> {
        // SAFETY: whole pages of our own reservation.
        match unsafe { libc::mprotect(self.at(from).as_ptr().cast(), len, access) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Grants bytes, which are zero.
    fn grant(&self, from: usize, to: usize) -> io::Result<()> {
        if from < to { self.protect(from as isize, to - from, libc::PROT_READ | libc::PROT_WRITE) } else { Ok(()) }
    }

    /// Takes bytes back: their pages go to the kernel, and nothing can reach them.
    fn revoke(&self, from: usize, to: usize) -> io::Result<()> {
        if from >= to {
            return Ok(());
        }
        self.protect(from as isize, to - from, libc::PROT_NONE)?;
        self.discard(from, to)
    }

    /// Gives granted pages to the kernel: they read as zero afterwards.
    fn discard(&self, from: usize, to: usize) -> io::Result<()> {
        // SAFETY: whole pages of our own reservation, of which no slice is alive.
        match unsafe { libc::madvise(self.at(from as isize).as_ptr().cast(), to - from, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes everything that a tenant may have written zero: all that is granted.
    pub(super) fn wipe(&mut self) -> io::Result<()> {
        if self.is_lost {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.owner == 0 {
            return Ok(());
        }
        let (low, end) = (self.stack_low.load(Ordering::Relaxed), self.granted_len.load(Ordering::Relaxed));
        if end - low + self.records_len <= WIPE_BY_WRITING_BYTES {
            // SAFETY: granted, as whole pages; no slice of them is alive.
            unsafe {
                self.at(low as isize).write_bytes(0, end - low);
                self.at(self.records_at as isize).write_bytes(0, self.records_len);
            }
        } else {
            // First the numbers: where the kernel refuses, the host touches nothing of it.
            self.is_lost = true;
            self.stack_low.store(0, Ordering::Relaxed);
            self.granted_len.store(0, Ordering::Relaxed);
            let records_len = std::mem::take(&mut self.records_len);
            self.memory_len = 0;
            self.revoke(low, end)?;
            self.revoke(self.records_at, self.records_at + records_len)?;
            self.is_lost = false;
        }
        // SAFETY: the part of the variables, which ends at the base.
        unsafe { self.at(VARIABLES_AT as isize).write_bytes(0, -VARIABLES_AT as usize) };
        (self.owner, self.module) = (0, 0);
        Ok(())
    }

    /// Makes the memory as the module's is at the start, with `len` bytes of it granted, of `limit` that there may ever
    /// be.
    pub(super) fn prepare(
        &mut self,
        tenant: u64,
        number: u64,
        layout: &ModuleLayout,
        len: usize,
        limit: usize,
    ) -> io::Result<()> {
        let is_ours = layout.is_ours();
        if self.owner != tenant || !is_ours || (self.module != number && !self.is_ours) {
            self.wipe()?;
        }
        let is_same = self.module == number;
        let is_restored = is_same && self.ended_well;
        // If the kernel refuses something below, it holds no module.
        (self.owner, self.module, self.is_ours, self.ended_well) = (tenant, 0, is_ours, false);
        self.move_records(if is_ours && limit <= NEAR_RECORDS_AT { NEAR_RECORDS_AT } else { RECORDS_AT })?;
        self.records_used = if is_ours { self.cache_colour.min(self.records_len) } else { 0 };
        self.near_records = NO_NEAR_RECORDS;
        if !is_same {
            self.shape(layout)?;
        }
        self.set_memory_len(len)?;
        self.grant_up_to(self.first_len.min(self.memory_len))?;
        self.module = number;
        for segment in layout.segments.iter().filter(|segment| segment.writable || !is_restored) {
            // SAFETY: the layout was checked: segments lie above the stack, and before the heap's base or within a
            // foreign module's first memory; `len` is no less than either, and `first_len` is granted.
            unsafe {
                let to = self.at(segment.address as isize).as_ptr();
                to.copy_from_nonoverlapping(segment.bytes.as_ptr(), segment.bytes.len());
            }
        }
        let zeroed = layout.zeroed.start as usize..layout.zeroed.end as usize;
        // SAFETY: as above.
        unsafe { self.at(zeroed.start as isize).write_bytes(0, zeroed.len()) };
        let colour = self.stack_colour();
        for (index, value) in layout.variables.iter().enumerate().take(MAX_VARIABLES) {
            let value = if index == 0 { value - colour } else { *value };
            // SAFETY: in the part of the variables.
            unsafe { self.at(VARIABLES_AT as isize).cast::<u64>().add(index).write(value) };
        }
        Ok(())
    }

    /// Bytes by which the first variable is less than its module says: it is the pointer to a stack that begins below
    /// all data.
    fn stack_colour(&self) -> u64 {
        if self.stack_high > 0 { self.cache_colour as u64 } else { 0 }
    }

    /// The stack pointer that a module of the server's builder begins with.
    pub(super) fn first_stack_pointer(&self, layout: &ModuleLayout) -> GuestAddress {
        layout.variables.first().map_or(0, |first| (first - self.stack_colour()) as GuestAddress)
    }

    /// Puts the record window elsewhere.
    fn move_records(&mut self, to: usize) -> io::Result<()> {
        if self.records_at != to {
            self.revoke(self.records_at, self.records_at + self.records_len)?;
            (self.records_at, self.records_len) = (to, 0);
        }
        Ok(())
    }

    /// Grants the beginning of a module's stack, where another one was.
    fn shape(&mut self, layout: &ModuleLayout) -> io::Result<()> {
        let (high, first) = (stack_high(layout), first_of_stack(layout));
        let (low, end) = (self.stack_low.load(Ordering::Relaxed), self.granted_len.load(Ordering::Relaxed));
        // What was granted to another module may end below the beginning of this one's stack.
        if end < first || !(high..=first).contains(&low) {
            self.revoke(low, first.min(end))?;
            self.grant(first, low.min(end))?;
            self.stack_low.store(first, Ordering::Relaxed);
        }
        self.granted_len.store(end.max(first), Ordering::Relaxed);
        self.memory_len = self.memory_len.max(first);
        (self.stack_high, self.first_len) = (high, first_len(layout));
        Ok(())
    }

    /// Lets the granted part grow to `len` bytes, and takes what is far beyond.
    pub(super) fn set_memory_len(&mut self, len: usize) -> io::Result<()> {
        let len = len.next_multiple_of(PAGE_BYTES);
        // Modules that were made elsewhere may rely on a fault behind their last page.
        let slack = if self.is_ours { GUEST_SLACK_BYTES } else { 0 };
        let granted = self.granted_len.load(Ordering::Relaxed);
        if granted > len + slack {
            self.revoke(len, granted)?;
            self.granted_len.store(len, Ordering::Relaxed);
        }
        self.memory_len = len.max(self.granted_len.load(Ordering::Relaxed));
        Ok(())
    }

    /// Grants the module's memory up to `end`, which is a whole page's and not beyond how far it may grow.
    fn grant_up_to(&self, end: usize) -> io::Result<()> {
        let granted = self.granted_len.load(Ordering::Relaxed);
        self.grant(granted, end)?;
        self.granted_len.store(end.max(granted), Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of the module's memory that are granted, or will be when they are touched.
    pub(super) fn memory_len(&self) -> usize {
        self.memory_len
    }

    /// Grants more if an address lies in a part that is not granted yet, of the stack or of the memory; returns whether
    /// it does. Called by the handler of faults too.
    pub(super) fn grow(&self, address: usize) -> bool {
        let Some(offset) = address.checked_sub(self.base()) else { return false };
        let granted = self.granted_len.load(Ordering::Relaxed);
        if offset < granted || offset >= self.memory_len {
            return self.grow_stack(address);
        }
        // As much again, so that a long memory takes few faults.
        let more = GUEST_FIRST_BYTES.max(granted - self.stack_low.load(Ordering::Relaxed));
        let end = (offset + 1).next_multiple_of(PAGE_BYTES).max(granted + more);
        self.grant_up_to(end.min(self.memory_len)).is_ok()
    }

    /// Grants more of the stack if an address lies in its part that is not granted yet; returns whether it does.
    fn grow_stack(&self, address: usize) -> bool {
        let low = self.stack_low.load(Ordering::Relaxed);
        let Some(offset) = address.checked_sub(self.base()).filter(|offset| *offset < low) else { return false };
        let from = (offset / GUEST_SHADOW_STACK_HOT_BYTES) * GUEST_SHADOW_STACK_HOT_BYTES;
        if self.grant(from, low).is_err() {
            return false;
        }
        self.stack_low.store(from, Ordering::Relaxed);
        true
    }

    /// Returns whether an address is one that a module's stack pointer reaches below 0: above everything that there is.
    pub(super) fn is_stack_overflow(&self, address: usize) -> bool {
        (self.base() + RECORDS_END..self.base() + RESERVED_BYTES).contains(&address)
    }

    /// Bytes of the stack in use beyond what every memory has.
    pub(super) fn deep_stack_bytes(&self) -> usize {
        self.stack_high.saturating_sub(self.stack_low.load(Ordering::Relaxed))
    }

    /// Bytes that have to go back to the kernel before the memory is used again.
    pub(super) fn unreclaimed_bytes(&self, hot_len: usize) -> usize {
        let records = self.records_len.saturating_sub(GUEST_RECORDS_HOT_BYTES);
        let memory = self.granted_len.load(Ordering::Relaxed).saturating_sub(hot_len + GUEST_SLACK_BYTES);
        self.deep_stack_bytes() + records + memory
    }

    /// Returns whether another invocation may have it.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_lost
    }

    /// Returns whether its record window is all that is longer than in an idle memory: then its tenant's next
    /// invocation can run in it as it is.
    pub(super) fn is_ready(&self, hot_len: usize) -> bool {
        let granted = self.granted_len.load(Ordering::Relaxed);
        self.deep_stack_bytes() == 0 && granted <= hot_len + GUEST_SLACK_BYTES
    }

    /// Gives up to `bytes` of them back.
    pub(super) fn reclaim(&mut self, hot_len: usize, bytes: usize) -> io::Result<()> {
        let pages = bytes.max(PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
        let (low, granted) = (self.stack_low.load(Ordering::Relaxed), self.granted_len.load(Ordering::Relaxed));
        if low < self.stack_high {
            let to = low.saturating_add(pages).min(self.stack_high);
            self.revoke(low, to)?;
            self.stack_low.store(to, Ordering::Relaxed);
        } else if self.records_len > GUEST_RECORDS_HOT_BYTES {
            let from = self.records_len.saturating_sub(pages).max(GUEST_RECORDS_HOT_BYTES);
            self.revoke(self.records_at + from, self.records_at + self.records_len)?;
            self.records_len = from;
        } else if granted > hot_len + GUEST_SLACK_BYTES {
            let from = granted.saturating_sub(pages).max(hot_len.next_multiple_of(PAGE_BYTES));
            self.revoke(from, granted)?;
            self.granted_len.store(from, Ordering::Relaxed);
            self.memory_len = from;
        }
        Ok(())
    }

    /// Returns where `len` bytes at an address lie, if all of them are granted.
    #[inline]
    fn granted(&self, address: GuestAddress, len: usize) -> Result<NonNull<u8>, u32> {
        let (first, end) = (address as usize, address as usize + len);
        if len == 0 {
            // Nothing is accessed, so nothing has to be there.
            return Ok(self.at(first as isize));
        }
        let granted = self.granted_len.load(Ordering::Relaxed);
        let in_memory = end <= granted && first >= self.stack_low.load(Ordering::Relaxed);
        if in_memory
            || (first >= self.records_at && end <= self.records_at + self.records_len)
            || self.reaches(first, end)
        {
            return Ok(self.at(first as isize));
        }
        Err(abi::STATUS_INVALID)
    }

    /// Returns whether `len` bytes at an address are granted.
    pub(super) fn is_granted(&self, address: GuestAddress, len: u32) -> Result<(), u32> {
        self.granted(address, len as usize).map(|_| ())
    }

    /// Grants what the module names before it has touched it; returns whether that may be.
    #[cold]
    fn reaches(&self, first: usize, end: usize) -> bool {
        let is_granted = || {
            let (low, granted) = (self.stack_low.load(Ordering::Relaxed), self.granted_len.load(Ordering::Relaxed));
            first >= low && end <= granted
        };
        end <= self.memory_len
            && (end <= self.granted_len.load(Ordering::Relaxed) || self.grow(self.base() + end - 1))
            && { is_granted() || (self.grow_stack(self.base() + first) && is_granted()) }
    }

    /// The bytes at an address.
    ///
    /// # Safety
    /// Nothing writes there while the slice is used: no code of the module runs, and the host writes no result.
    #[inline]
    pub(super) unsafe fn bytes<'a>(&self, address: GuestAddress, len: u32) -> Result<&'a [u8], u32> {
        let first = self.granted(address, len as usize)?;
        // SAFETY: granted; this function's contract.
        Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), len as usize) })
    }

    /// Reads a value.
    #[inline]
    pub(super) fn read<T: GuestValue>(&self, address: GuestAddress) -> Result<T, u32> {
        let first = self.granted(address, size_of::<T>())?;
        // SAFETY: granted; any bytes are a value.
        Ok(unsafe { first.cast::<T>().read_unaligned() })
    }

    /// Writes a value.
    #[inline]
    pub(super) fn write<T: GuestValue>(&self, address: GuestAddress, value: T) -> Result<(), u32> {
        let first = self.granted(address, size_of::<T>())?;
        // SAFETY: granted; no slice of these bytes is used any more.
        unsafe { first.cast::<T>().write_unaligned(value) };
        Ok(())
    }

    /// Copies bytes to an address, from anywhere.
    ///
    /// # Safety
    /// `len` bytes lie at `from`.
    pub(super) unsafe fn copy_in(&self, to: GuestAddress, from: *const u8, len: usize) -> Result<(), u32> {
        let to = self.granted(to, len)?;
        // SAFETY: granted; this function's contract; the ranges may overlap.
        unsafe { to.as_ptr().copy_from(from, len) };
        Ok(())
    }

    /// Copies the host's bytes to an address.
    pub(super) fn write_bytes(&self, address: GuestAddress, bytes: &[u8]) -> Result<(), u32> {
        let first = self.granted(address, bytes.len())?;
        // SAFETY: granted; the bytes are the host's, so they lie elsewhere.
        unsafe { first.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies within the memory; the ranges may overlap.
    pub(super) fn copy_within(&self, to: GuestAddress, from: GuestAddress, len: u32) -> Result<(), u32> {
        let (from, to) = (self.granted(from, len as usize)?, self.granted(to, len as usize)?);
        // SAFETY: both granted.
        unsafe { to.as_ptr().copy_from(from.as_ptr(), len as usize) };
        Ok(())
    }

    /// What its code can read and write, but for the variables.
    #[cfg(test)]
    pub(super) fn granted_parts(&self) -> [std::ops::Range<usize>; 2] {
        let (low, end) = (self.stack_low.load(Ordering::Relaxed), self.granted_len.load(Ordering::Relaxed));
        [low..end, self.records_at..self.records_at + self.records_len]
    }

    /// Fills bytes.
    pub(super) fn fill(&self, to: GuestAddress, byte: u8, len: u32) -> Result<(), u32> {
        let to = self.granted(to, len as usize)?;
        // SAFETY: granted.
        unsafe { to.as_ptr().write_bytes(byte, len as usize) };
        Ok(())
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: our own reservation, in which no thread runs code any more.
        unsafe { libc::munmap(self.reservation.as_ptr().cast(), MAPPED_BYTES) };
    }
}

const _: () = assert!(VARIABLE_BYTES * MAX_VARIABLES <= -VARIABLES_AT as usize);
// A window that begins near ends before the other place of one.
const _: () = assert!(NEAR_RECORDS_AT + RECORDS_END - RECORDS_AT <= RECORDS_AT);

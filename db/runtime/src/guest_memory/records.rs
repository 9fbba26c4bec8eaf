//! The copies of records in a memory: first beside the module's arguments, then in the record window.
//!
//! Guarantees: records are copied where the memory was granted, each to a place of its own.
#![allow(unsafe_code)]

use std::io;

use sandstorm_sandbox::layout::{PAGE_BYTES, RECORDS_AT, RECORDS_END};

use super::{GuestAddress, GuestMemory, LINE_BYTES, NO_NEAR_RECORDS, prefetch};
use crate::limits::{GUEST_FIRST_BYTES, GUEST_RECORDS_HOT_BYTES};

/// Bytes that the record window may have.
const RECORDS_MAX_BYTES: usize = RECORDS_END - RECORDS_AT;
/// Lines of the next record's place that are prefetched, at most.
const PREFETCHED_RECORD_LINES: usize = 4;

impl GuestMemory {
    /// Lets the first records be copied to a part of the module's memory beside its arguments: that is in the
    /// processor's caches, and its address in the tables that translate it, where the record window is not.
    pub(in super::super) fn set_near_records(&mut self, (from, to): (GuestAddress, GuestAddress)) -> io::Result<()> {
        self.grant_up_to((to as usize).next_multiple_of(PAGE_BYTES).min(self.memory_len))?;
        self.near_records = if from < to { (from as usize, to as usize) } else { NO_NEAR_RECORDS };
        Ok(())
    }

    /// Returns whether so many more bytes of records can be copied without growing the record window.
    #[inline]
    pub(in super::super) fn has_record_bytes(&self, more: usize) -> bool {
        self.near_records.0 + more <= self.near_records.1 || self.records_used + more <= self.records_len
    }

    /// Bytes by which the window has to grow for so many more; `None`: it cannot.
    pub(in super::super) fn record_growth(&self, more: usize) -> Option<usize> {
        let used = self.records_used.checked_add(more)?;
        let wanted = if used <= GUEST_RECORDS_HOT_BYTES {
            used.next_power_of_two().max(GUEST_FIRST_BYTES)
        } else {
            used.checked_next_multiple_of(GUEST_RECORDS_HOT_BYTES)?
        };
        (wanted <= RECORDS_MAX_BYTES).then(|| wanted.saturating_sub(self.records_len))
    }

    /// Grants so many more bytes of the record window.
    pub(in super::super) fn grow_records(&mut self, more: usize) -> io::Result<()> {
        let from = self.records_at + self.records_len;
        self.grant(from, from + more)?;
        self.records_len += more;
        Ok(())
    }

    /// Takes the first bytes of the record window, before any record is copied there.
    pub(in super::super) fn reserve_records(&mut self, bytes: usize) -> io::Result<()> {
        let more = self.record_growth(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        if more > 0 {
            self.grow_records(more)?;
        }
        self.records_used += bytes;
        Ok(())
    }

    /// Copies bytes into the record window, where [`GuestMemory::has_record_bytes`] is true of them.
    #[inline]
    pub(in super::super) fn copy_to_records(&mut self, bytes: &[u8]) -> GuestAddress {
        let at = self.take_records(bytes.len());
        // SAFETY: the caller has seen that so many bytes are granted there; they come from elsewhere.
        unsafe { self.at(at as isize).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        at
    }

    /// Takes bytes of the record window, to be filled later, where [`GuestMemory::has_record_bytes`] is true of them.
    #[inline]
    pub(in super::super) fn take_records(&mut self, bytes: usize) -> GuestAddress {
        if self.near_records.0 + bytes <= self.near_records.1 {
            let at = self.near_records.0;
            self.near_records.0 += bytes;
            return at as GuestAddress;
        }
        let at = self.records_at + self.records_used;
        self.records_used += bytes;
        at as GuestAddress
    }

    /// Prefetches where the record after one of `bytes` will be copied: stores to memory that is not at hand wait for
    /// one another.
    #[inline]
    pub(in super::super) fn prefetch_next_record(&self, bytes: usize) {
        let (near, near_end) = self.near_records;
        let next = if near + bytes <= near_end { near } else { self.records_at + self.records_used } + bytes;
        let next: *const u8 = self.base.as_ptr().wrapping_add(next);
        for line in 1..=bytes.div_ceil(LINE_BYTES).min(PREFETCHED_RECORD_LINES) {
            prefetch(next.wrapping_add(line * LINE_BYTES));
        }
    }

    /// Aligns what is copied next.
    #[inline]
    pub(in super::super) fn align_records(&mut self) {
        let (near, near_end) = self.near_records;
        self.near_records.0 = near.next_multiple_of(16).min(near_end.max(near));
        self.records_used = self.records_used.next_multiple_of(16).min(self.records_len);
    }
}

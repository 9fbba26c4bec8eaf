//! What a record notes for eviction, and for memcached's clients, in the two bytes of its header that change; and
//! what it says of itself while its key and value are on the disk.

use std::sync::atomic::Ordering;

use super::{ARRIVED, COLD, COLD_CLASS_SHIFT, FETCHED, HEADER_BYTES, IN_MAIN_QUEUE, RecordRef, SENT, STALE, TOUCHED};
use crate::spill::SpillAddress;
use crate::{RecordMarks, slabs};

/// Returns the bytes of what stays in memory of a cold record.
pub(super) fn cold_record_bytes(expires_at_ms: u64) -> usize {
    HEADER_BYTES + if expires_at_ms != 0 { 8 } else { 0 }
}

/// As above, with the allocation's rounding.
pub(in super::super) fn cold_allocation_bytes(expires_at_ms: u64) -> usize {
    slabs::allocation_size(cold_record_bytes(expires_at_ms))
}

/// Returns what a cold record keeps of its key beside the table's hash.
pub(in super::super) fn key_fingerprint(key: &[u8]) -> u16 {
    let sum = crc32c::crc32c(key);
    (sum >> 16) as u16 ^ sum as u16
}

impl RecordRef<'_> {
    /// Returns whether key and value are on the disk. Both read as empty then, and the flags as 0.
    #[inline]
    pub(in super::super) fn is_cold(&self) -> bool {
        self.header().touched.load(Ordering::Relaxed) & COLD != 0
    }

    /// Returns the address of a cold record.
    pub(in super::super) fn cold_address(&self) -> Option<SpillAddress> {
        let touched = self.header().touched.load(Ordering::Relaxed);
        let length_class = (touched & !COLD) >> COLD_CLASS_SHIFT;
        (touched & COLD != 0).then_some(SpillAddress { block: self.header().value_len, length_class })
    }

    /// Returns whether the record is cold, and its key has the fingerprint of `key`.
    pub(in super::super) fn is_cold_of(&self, key: &[u8]) -> bool {
        self.is_cold() && self.header().key_len == key_fingerprint(key)
    }

    /// Returns whether the record is the same in memory as another one.
    pub(in super::super) fn is_same(&self, other: RecordRef<'_>) -> bool {
        self.record == other.record
    }

    /// Notes that the record was read from the disk for a read that is about to come.
    pub(in super::super) fn set_arrived(&self) {
        self.header().touched.store(ARRIVED, Ordering::Relaxed);
    }

    /// Notes for eviction that the record was read: one store, and only if the note is not there yet.
    pub(in super::super) fn touch(&self) {
        let touched = &self.header().touched;
        match touched.load(Ordering::Relaxed) {
            0 => touched.store(TOUCHED, Ordering::Relaxed),
            ARRIVED => touched.store(0, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Notes a read by a client that may be asked about it: one store, and only if the note is not there yet.
    #[inline]
    pub fn note_fetched(&self) {
        let touched = &self.header().touched;
        if touched.load(Ordering::Relaxed) & FETCHED == 0 {
            touched.store(TOUCHED | FETCHED, Ordering::Relaxed);
        }
    }

    /// Returns the marks that the record keeps beside its value.
    #[inline]
    pub fn marks(&self) -> RecordMarks {
        let bits = self.bits();
        let fetched = self.header().touched.load(Ordering::Relaxed) & FETCHED != 0;
        RecordMarks { stale: bits & STALE != 0, sent: bits & SENT != 0, fetched }
    }

    /// Changes the marks; the note that the record was read is only set, never cleared. Under the lock of the stripe:
    /// within [`crate::RecordTable::update_marked`].
    pub fn set_marks(&self, marks: RecordMarks) {
        let set = |bit, on| if on { bit } else { 0 };
        let other_bits = self.bits() & !(STALE | SENT);
        self.header().bits.store(other_bits | set(STALE, marks.stale) | set(SENT, marks.sent), Ordering::Relaxed);
        if marks.fetched {
            self.note_fetched();
        }
    }

    /// Returns whether the record was read since the last call; clears the note.
    pub(in super::super) fn take_touched(&self) -> bool {
        let touched = &self.header().touched;
        let was = touched.load(Ordering::Relaxed) != 0;
        if was {
            touched.store(0, Ordering::Relaxed);
        }
        was
    }

    /// Returns whether eviction has the record in its main queue (else: in the small one). Under the lock of the
    /// stripe.
    pub(in super::super) fn in_main_queue(&self) -> bool {
        self.bits() & IN_MAIN_QUEUE != 0
    }

    /// Notes that eviction has the record in its main queue. Under the lock of the stripe: the only writer of `bits`.
    pub(in super::super) fn set_in_main_queue(&self) {
        self.header().bits.store(self.bits() | IN_MAIN_QUEUE, Ordering::Relaxed);
    }

    /// Copies eviction's notes from the record that this one replaces.
    pub(in super::super) fn inherit(&self, replaced: RecordRef<'_>) {
        if replaced.in_main_queue() {
            self.set_in_main_queue();
        }
        self.touch();
    }
}

//! The number of holds on a record: one of its table or of the garbage, and one of each share of it. No `unsafe`;
//! `model.rs` compiles it a second time over loom's atomics and explores it together with the epochs.
//!
//! A share is made by a thread that reads the record under a guard or pin. So the hold of the table, or of the garbage,
//! still exists then: the garbage releases it after the last such reader. The count never comes back from 0.

use super::sync::{AtomicU64, Ordering};

/// The count of holds.
#[derive(Debug)]
pub(crate) struct RecordRefCount(AtomicU64);

impl RecordRefCount {
    /// Makes the table's own hold.
    pub(crate) fn one() -> RecordRefCount {
        RecordRefCount(AtomicU64::new(1))
    }

    /// Adds a hold, where at least one exists.
    #[inline]
    pub(crate) fn add_ref(&self) {
        // Relaxed, as for any further reference where there is one.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases a hold. True: no hold is left, and all that other threads did while they had one has happened before.
    #[inline]
    #[must_use]
    pub(crate) fn let_go(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

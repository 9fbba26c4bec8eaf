//! How many hold on to a record: whoever has it in a table or among the garbage, once, and each share of it. No
//! `unsafe`; it is compiled a second time over loom's atomics by `model.rs`, which explores it together with the
//! epochs.
//!
//! A share is made by somebody who reads the record under a guard or pin. So the hold of the table, or of the garbage,
//! is there at that moment: the garbage lets go of it after the last such reader. The count never comes back from 0.

use super::sync::{AtomicU64, Ordering};

/// The count of holds.
#[derive(Debug)]
pub(crate) struct RecordRefCount(AtomicU64);

impl RecordRefCount {
    /// The table's own hold.
    pub(crate) fn one() -> RecordRefCount {
        RecordRefCount(AtomicU64::new(1))
    }

    /// Holds once more, where a hold is there.
    #[inline]
    pub(crate) fn hold(&self) {
        // Relaxed, as for any further reference where there is one.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets go. True: nothing holds any more, and all that others did while they held has been.
    #[inline]
    #[must_use]
    pub(crate) fn let_go(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

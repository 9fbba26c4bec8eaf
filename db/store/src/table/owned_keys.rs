//! The keys that this server owns of a table: all, or in a cluster those of its slots.

use std::sync::Arc;

use sandstorm_net::slots::slot_of;

use super::RecordTable;
use crate::slots::SlotOwnership;

impl RecordTable {
    /// Makes the table a part of a cluster's: it has the keys of the slots that are owned here. Once, before its use.
    pub fn set_slots(&self, slots: &Arc<SlotOwnership>) {
        let _already = self.slots.set(Arc::clone(slots));
    }

    /// The slots, in a cluster.
    #[inline]
    pub fn slots(&self) -> Option<&Arc<SlotOwnership>> {
        self.slots.get()
    }

    /// Returns whether this server owns a key: always, without a cluster.
    #[inline]
    pub fn owns(&self, key: &[u8]) -> bool {
        self.slots.get().is_none_or(|slots| slots.owns(key))
    }

    /// Returns whether the record of a key is a copy of another server's: what becomes of it is no change of the table.
    /// While this server gives the slot away, it is not a copy.
    pub(super) fn is_copy(&self, key: &[u8]) -> bool {
        self.slots
            .get()
            .is_some_and(|slots| !slots.owns(key) && !slots.copied().is_some_and(|span| span.contains(slot_of(key))))
    }

    /// Returns whether this server owns every key, so that it can answer for a range of them.
    #[inline]
    pub fn owns_all(&self) -> bool {
        self.slots.get().is_none_or(|slots| slots.owns_all())
    }
}

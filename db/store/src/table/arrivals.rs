//! A table's part in a move of slots from one server of a cluster to another.
//!
//! The server that gives slots away copies their records while it serves them. Each key of these slots that changes
//! meanwhile is noted under the lock of its stripe, before the change can be seen, and copied again. All changes come
//! through `publish`, `unlink` and `clear_locked`, which is where they are noted; where a record that goes is cold, and
//! so has no key, its caller says the key (`delete_found`, `install`). Once the server serves the slots no
//! more, [`RecordTable::settle_writers`] waits for the writers that had begun; the keys noted until then are the last.
//!
//! The server that takes slots makes their records again, with their versions. They are logged as *arrivals*, and what
//! leaves a table as *leavings*: a start makes them again, and followers of the table's changes are not shown them.

use sandstorm_log::{ChangeKind, LoggedChange};
use sandstorm_net::slots::slot_of;

use super::buckets::stripe_of;
use super::locked_stripe::LockedStripe;
use super::stripe::StripeState;
use super::{RecordTable, RestoredRecord};
use crate::broken_rules::{LogRule, is_broken};
use crate::limits::NOTED_KEY_BYTES;
use crate::slots::SlotOwnership;
use crate::{Participant, RecordRef, StoreError, StripeSet};

impl LockedStripe<'_> {
    /// Notes that a record is about to come or go, if its slot is being copied to another server. A cold one has no
    /// key: the code that removes it calls [`LockedStripe::note_copied_removal`].
    #[inline]
    pub(super) fn note_copied(&mut self, record: RecordRef<'_>) {
        if !record.is_cold() {
            self.note_copied_key(record.key());
        }
    }

    /// As above for a record that goes and may be cold.
    #[inline]
    pub(super) fn note_copied_removal(&mut self, key: &[u8], record: RecordRef<'_>) {
        if record.is_cold() && !is_broken(LogRule::ColdRemovalsAreCopied) {
            self.note_copied_key(key);
        }
    }

    /// Notes that the record of a key is about to come or go, if its slot is being copied to another server. Tables
    /// with a backing are not copied: the other server reads what it needs there.
    #[inline]
    fn note_copied_key(&mut self, key: &[u8]) {
        if let Some(slots) = self.table.slots.get()
            && let Some(copied) = slots.copied()
            && copied.contains(slot_of(key))
            && !self.table.has_backing()
        {
            self.note_key(slots, key);
        }
    }

    #[cold]
    fn note_key(&mut self, slots: &SlotOwnership, key: &[u8]) {
        // The copy is thrown away: what else changes needs no memory.
        if !slots.is_copy_spoilt() && self.state.copied_keys.insert(key.into()) {
            slots.count_noted(key.len() + NOTED_KEY_BYTES);
        }
    }
}

impl RecordTable {
    /// Waits until every writer that has begun is done. A writer that begins later sees what the caller has set before.
    pub fn settle_writers(&self, participant: &Participant) {
        drop(self.exclusive(participant, StripeSet::ALL));
    }

    /// Takes keys that have changed since their slots are copied: of so many stripes that they are `most` or more, or
    /// all.
    pub fn take_copied_keys(&self, most: usize) -> Vec<Box<[u8]>> {
        let mut taken: Vec<Box<[u8]>> = Vec::new();
        for stripe in &self.stripes {
            if taken.len() >= most {
                break;
            }
            taken.extend(std::mem::take(&mut stripe.state.lock().copied_keys));
        }
        if let Some(slots) = self.slots.get() {
            taken.iter().for_each(|key| slots.uncount_noted(key.len() + NOTED_KEY_BYTES));
        }
        taken
    }

    /// Whether the table was emptied since it is copied, or since this was asked. To be asked behind
    /// [`RecordTable::take_copied_keys`]: what was written after it was emptied is noted again then.
    pub fn take_emptied(&self) -> bool {
        let take = |state: &mut StripeState| std::mem::take(&mut state.was_emptied);
        self.stripes.iter().fold(false, |emptied, stripe| emptied | take(&mut stripe.state.lock()))
    }

    /// Gives keys back that [`RecordTable::take_copied_keys`] has taken.
    pub fn return_copied_keys(&self, participant: &Participant, keys: impl Iterator<Item = Box<[u8]>>) {
        for key in keys {
            let mut locked = self.lock_stripe(participant, stripe_of(self.hash(&key)));
            if let Some(slots) = self.slots.get() {
                locked.note_key(slots, &key);
            }
        }
    }

    /// Forgets which keys have changed.
    pub fn forget_copied_keys(&self) {
        drop(self.take_copied_keys(usize::MAX));
        self.take_emptied();
    }

    /// The highest version that was given so far.
    pub fn highest_version(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.state.lock().last_version).max().unwrap_or(0)
    }

    /// Makes a record of another server again, with its version, in place of the present one. The quota is not checked.
    ///
    /// # Errors
    /// `KeyTooLarge`, `ValueTooLarge`, `NoMemory`, `NotLogged`; `OutOfMemory`: too many records surround its place.
    pub fn take_arrival(
        &self,
        participant: &Participant,
        record: &RestoredRecord<'_>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let RestoredRecord { version, key, value, flags, expires_at_ms } = *record;
        if value.len() > self.config.max_value_len {
            return Err(StoreError::ValueTooLarge);
        }
        let hash = self.hash(key);
        self.write_any(participant, hash, key, |locked| {
            locked.begin_arrival(version);
            let found = locked.find(hash, key);
            locked.replace_found(found, hash, key, value.into(), (flags, expires_at_ms), now_ms).map(drop)
        })
    }

    /// Removes the record of a key that the other server has removed, or that this one has no more.
    ///
    /// # Errors
    /// `KeyTooLarge`, `NotLogged`: it stays.
    pub fn take_leaving(&self, participant: &Participant, key: &[u8]) -> Result<(), StoreError> {
        let hash = self.hash(key);
        self.write_any(participant, hash, key, |locked| {
            let Some(found) = locked.find(hash, key) else { return Ok(()) };
            locked.begin_arrival(locked.state.last_version);
            let permit = locked.admit_change(key.len(), 0)?;
            locked.log_delete(hash, key);
            locked.end_change(permit);
            locked.remove(hash, found);
            Ok(())
        })
    }

    /// Has versions go on behind `version`, also after a start: the log, if there is one, is told of it, with the
    /// table's name.
    ///
    /// # Errors
    /// `NotLogged`; versions go on behind it all the same.
    pub fn take_versions(&self, participant: &Participant, version: u64, name: &str) -> Result<(), StoreError> {
        self.raise_versions(participant, version);
        if let Some(log) = self.active_log() {
            let permit = log.admit(name.len(), 0)?;
            let made = LoggedChange::of_table(ChangeKind::MakeTable, log.number(), version, name.as_bytes());
            log.log.append(&made, false);
            drop(permit);
        }
        Ok(())
    }
}

//! A table's part in a move of slots from one server of a cluster to another.
//!
//! The server that gives slots away copies their records while it serves them. Each key of these slots that changes
//! meanwhile is noted under the lock of its stripe, before the change can be seen, and copied again. All changes come
//! through `publish`, `unlink` and `clear_locked`, which is where they are noted. Once the server serves the slots no
//! more, [`RecordTable::settle_writers`] waits for the writers that had begun; the keys noted until then are the last.
//!
//! The server that takes slots makes their records again, with their versions. They are logged as *arrivals*, and what
//! leaves a table as *leavings*: a start makes them again, and whoever follows the table's changes is not shown them.

use sandstorm_log::{ChangeKind, LoggedChange};
use sandstorm_net::slots::slot_of;

use super::buckets::stripe_of;
use super::locked_stripe::LockedStripe;
use super::{RecordTable, RestoredRecord};
use crate::limits::NOTED_KEY_BYTES;
use crate::slots::{SlotOwnership, SlotSpan};
use crate::{EpochGuard, Participant, RecordRef, StoreError, StripeSet};

impl LockedStripe<'_> {
    /// Notes that a record is about to come or go, if its slot is being copied to another server. Tables whose records
    /// are not all in memory are not copied.
    #[inline]
    pub(super) fn note_copied(&mut self, record: RecordRef<'_>) {
        if let Some(slots) = self.table.slots.get()
            && let Some(copied) = slots.copied()
            && !record.is_cold()
            && copied.contains(slot_of(record.key()))
        {
            self.note_key(slots, record.key());
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
    /// Waits until every writer that has begun is done. Who begins later sees what the caller has set before.
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
    }

    /// The record of a key, also where its time is over.
    pub fn copy_source<'g>(&'g self, guard: &'g EpochGuard<'_>, key: &[u8]) -> Option<RecordRef<'g>> {
        self.get(guard, self.hash(key), key, 0)
    }

    /// The highest version that was given so far.
    pub fn highest_version(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.state.lock().last_version).max().unwrap_or(0)
    }

    /// Makes a record of another server again, with its version, in place of what is there. The quota is not checked.
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

    /// Removes the records of some slots from `cursor` on (0: the start), of so many records that it looks at; returns
    /// where to go on. For slots that this server does not serve.
    ///
    /// # Errors
    /// As [`RecordTable::take_leaving`].
    pub fn remove_slots(
        &self,
        participant: &Participant,
        (cursor, limit): (u64, usize),
        span: SlotSpan,
    ) -> Result<Option<u64>, StoreError> {
        let mut keys = Vec::new();
        let next = {
            let guard = participant.guard();
            self.scan(&guard, cursor, limit, 0, &mut |record| {
                if span.contains(slot_of(record.key())) {
                    keys.push(record.key().to_vec());
                }
            })
        };
        keys.iter().try_for_each(|key| self.take_leaving(participant, key))?;
        Ok(next)
    }
}

//! Makes changes of a log again, with their versions. The higher version of a key wins, so it does no harm to make a
//! change twice, or one that a checkpoint has already. The quota is not checked, and nothing is evicted: the records
//! were admitted once. But of a table larger than memory records leave it meanwhile. No other thread has the table yet,
//! so garbage refuses nothing either: the caller announces quiescent points.

use super::RecordTable;
use crate::broken_rules::{LogRule, is_broken};
use crate::limits::{RECORD_CHARGE_BYTES, RESTART_VERSIONS, STRIPES};
use crate::{Participant, StoreError, StripeSet};

/// A record as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredRecord<'a> {
    /// Its version.
    pub version: u64,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// The caller's flags.
    pub flags: u32,
    /// Milliseconds since the Unix epoch from which on it counts as absent; 0: never.
    pub expires_at_ms: u64,
}

impl RecordTable {
    /// Puts a record, unless there is one of a higher version.
    ///
    /// # Errors
    /// `KeyTooLarge`, `ValueTooLarge`, `NoMemory`; `OutOfMemory`: too many records surround the key's place;
    /// `NotSpilled`: the records of a table larger than memory do not fit on the disk.
    pub fn restore_record(
        &self,
        participant: &Participant,
        record: &RestoredRecord<'_>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let RestoredRecord { version, key, value, flags, expires_at_ms } = *record;
        if value.len() > self.config.max_value_len {
            return Err(StoreError::ValueTooLarge);
        }
        if expires_at_ms != 0 && expires_at_ms <= now_ms && !self.logs_expiry() {
            // It goes at once, and so does what it had replaced.
            return self.restore_delete(participant, key, version);
        }
        if self.is_larger_than_memory() {
            self.make_room_to_restore(participant)?;
        }
        let hash = self.hash(key);
        self.write(participant, hash, key, |locked| {
            let found = locked.find(hash, key);
            if found.is_some_and(|found| found.record.version() >= version) && !is_broken(LogRule::HigherVersionWins) {
                return Ok(());
            }
            locked.restored_version = Some(version);
            locked.replace_found(found, hash, key, value.into(), (flags, expires_at_ms), now_ms).map(drop)
        })
    }

    /// Removes the record of a key, unless its version is higher.
    ///
    /// # Errors
    /// `KeyTooLarge`.
    pub fn restore_delete(&self, participant: &Participant, key: &[u8], version: u64) -> Result<(), StoreError> {
        let hash = self.hash(key);
        self.write(participant, hash, key, |locked| {
            locked.state.last_version = locked.state.last_version.max(version);
            if let Some(found) = locked.find(hash, key)
                && (found.record.version() <= version || is_broken(LogRule::HigherVersionWins))
            {
                locked.remove(hash, found);
            }
            Ok(())
        })
    }

    /// Removes all records of `version` and lower ones. At once if no version is higher; only a checkpoint has records
    /// that came later.
    ///
    /// # Errors
    /// As [`RecordTable::restore_delete`].
    pub fn restore_clear(&self, participant: &mut Participant, version: u64) -> Result<(), StoreError> {
        {
            let mut locked = self.exclusive(participant, StripeSet::ALL);
            if locked.locked.iter().all(|stripe| stripe.state.last_version <= version) {
                locked.remove_all();
                locked.locked.iter_mut().for_each(|stripe| stripe.state.last_version = version);
                return Ok(());
            }
        }
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let mut keys = Vec::new();
            let guard = participant.guard();
            cursor = self.scan(&guard, at, RESTORE_BATCH, 0, &mut |record| {
                if record.version() <= version || is_broken(LogRule::HigherVersionWins) {
                    keys.push(record.key().to_vec());
                }
            });
            for key in &keys {
                self.restore_delete(participant, key, version)?;
                // The memory of a large table goes back while it is emptied.
                participant.quiescent();
            }
        }
        let mut cursor = self.is_larger_than_memory().then_some(0);
        while let Some(at) = cursor {
            let cold;
            (cold, cursor) = self.cold_up_to(&participant.guard(), (at, RESTORE_BATCH), version);
            cold.iter().for_each(|record| self.remove_cold(participant, record));
            participant.quiescent();
        }
        self.raise_versions(participant, version);
        Ok(())
    }

    /// Gives a table that is restored room for so many records at once, and a quarter more for those behind the
    /// checkpoint: it does not grow step by step.
    pub fn expect_records(&self, participant: &Participant, records: u64) {
        // What says it may be wrong: a table has no more than its quota has room for.
        let records = records.min(self.quota_bytes() / RECORD_CHARGE_BYTES);
        let _growth = self.growth.lock();
        self.grow_to(participant, records + records / 4);
    }

    /// Ends the restoring: versions go on behind the highest one, with a gap for those that a crash has taken. Another
    /// hash than before decides the stripe of a key. Returns the highest version now; it has to be on the disk before
    /// the table is used.
    pub fn end_restoring(&self, participant: &Participant) -> u64 {
        let highest = (0..STRIPES).map(|stripe| self.lock_stripe(participant, stripe).state.last_version).max();
        let gap = if is_broken(LogRule::VersionsLeaveAGap) { 0 } else { RESTART_VERSIONS };
        let version = highest.unwrap_or(0) + gap;
        self.raise_versions(participant, version);
        version
    }

    /// Sets the garbage beyond which puts are refused, bytes.
    #[cfg(test)]
    pub(crate) fn limit_garbage(&mut self, bytes: u64) {
        self.room.limit_garbage(bytes);
    }

    /// Makes versions go on behind one that was given to a record or a deletion.
    pub fn raise_versions(&self, participant: &Participant, version: u64) {
        for stripe in 0..STRIPES {
            let mut locked = self.lock_stripe(participant, stripe);
            locked.state.last_version = locked.state.last_version.max(version);
        }
    }
}

/// Keys that are looked at before some are removed.
const RESTORE_BATCH: usize = 1024;

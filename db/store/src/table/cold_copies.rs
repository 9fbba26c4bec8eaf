//! Cold records for whoever copies a whole table: a checkpoint of the log. They are read from the disk, and stay there.

use std::thread;
use std::time::Duration;

use super::RecordTable;
use super::buckets::stripe_of;
use crate::limits::{SPILL_OVERDRAFT_ONE_IN, SPILL_RESTORE_WAITS};
use crate::spill::{BlockRange, SpillAddress, SpillReadError, SpillRecord, SpillRefusal, near_runs};
use crate::{EpochGuard, Participant, RecordRef, RestoredRecord, StoreError};

/// A cold record that a scan has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdRecord {
    pub(super) hash: u64,
    pub(super) version: u64,
    pub(super) address: SpillAddress,
}

/// Where a record is that was cold.
enum ColdPlace {
    Moved(SpillAddress),
    InMemory { key: Vec<u8>, value: Vec<u8>, flags: u32, expires_at_ms: u64 },
}

/// A record of the disk.
fn restored<'r>(record: &SpillRecord<'r>) -> RestoredRecord<'r> {
    let SpillRecord { version, key, value, flags, expires_at_ms, .. } = *record;
    RestoredRecord { version, key, value, flags, expires_at_ms }
}

/// Times that a record is looked for which moves on the disk: it does with its segment, seldom.
const MOVES: usize = 64;

impl RecordTable {
    /// As [`RecordTable::scan`], and adds the cold records to `cold`, which count as well. To be read by
    /// [`RecordTable::read_cold`], when nobody's memory waits for it.
    pub fn scan_all<'g>(
        &'g self,
        guard: &'g EpochGuard<'_>,
        (cursor, limit): (u64, usize),
        now_ms: u64,
        f: &mut dyn FnMut(RecordRef<'g>),
        cold: &mut Vec<ColdRecord>,
    ) -> Option<u64> {
        self.scan_with(guard, cursor, limit, now_ms, f, &mut |hash, record| {
            if let Some(address) = record.cold_address() {
                cold.push(ColdRecord { hash, version: record.version(), address });
            }
            true
        })
    }

    /// Shows a cold record as it was when it was met, wherever it is now. It stays on the disk. Returns false if it has
    /// been replaced or removed since, which the log has. The participant is offline while the disk reads.
    ///
    /// # Errors
    /// The disk does not read it, or has damaged it.
    pub fn read_cold(
        &self,
        participant: &mut Participant,
        cold: &ColdRecord,
        f: &mut dyn FnMut(&RestoredRecord<'_>),
    ) -> Result<bool, SpillReadError> {
        let Some(spill) = self.spill.get() else { return Ok(false) };
        let ColdRecord { hash, version, mut address } = *cold;
        let mut read = Err(SpillReadError::Missing);
        for _ in 0..MOVES {
            participant.offline();
            read = spill.file.read(address, hash, version).map(|read| f(&restored(&read.record())));
            if read.is_ok() {
                return Ok(true);
            }
            match self.locate(participant, (hash, version)) {
                None => return Ok(false),
                Some(ColdPlace::Moved(now)) if now == address => break,
                Some(ColdPlace::Moved(now)) => address = now,
                Some(ColdPlace::InMemory { key, value, flags, expires_at_ms }) => {
                    participant.offline();
                    f(&RestoredRecord { version, key: &key, value: &value, flags, expires_at_ms });
                    return Ok(true);
                }
            }
        }
        participant.offline();
        read.map(|()| true)
    }

    /// As [`RecordTable::read_cold`] for many, in the order in which they lie on the disk, those that lie near each
    /// other by one read. Ends early when `goes_on` says so. Returns how many were shown.
    ///
    /// # Errors
    /// As above, of the first that cannot be read.
    pub fn read_cold_together(
        &self,
        participant: &mut Participant,
        cold: &mut [ColdRecord],
        goes_on: &dyn Fn() -> bool,
        f: &mut dyn FnMut(&RestoredRecord<'_>),
    ) -> Result<u64, SpillReadError> {
        let Some(spill) = self.spill.get() else { return Ok(0) };
        cold.sort_unstable_by_key(|record| record.address.block);
        let (mut shown, mut rest) = (0, &*cold);
        while !rest.is_empty() && goes_on() {
            let (count, blocks) = near_runs(rest.iter().map(|record| record.address));
            let (near, further) = rest.split_at(count.clamp(1, rest.len()));
            participant.offline();
            let read = if near.len() > 1 { BlockRange::read(&spill.file, blocks) } else { None };
            for record in near {
                let ColdRecord { hash, version, address } = *record;
                let found = read.as_ref().and_then(|read| read.record(address, hash, version));
                shown += u64::from(match found {
                    Some(found) => {
                        f(&restored(&found));
                        true
                    }
                    // It has moved, waits for the disk, or is damaged.
                    None => self.read_cold(participant, record, f)?,
                });
            }
            rest = further;
        }
        participant.offline();
        Ok(shown)
    }

    /// Returns where the record of a hash and a version is now.
    fn locate(&self, participant: &Participant, (hash, version): (u64, u64)) -> Option<ColdPlace> {
        let locked = self.lock_stripe(participant, stripe_of(hash));
        let record = locked.find_where(hash, |record| record.version() == version)?.record;
        // Copied: who is shown it may wait for another disk, and nobody waits for the lock meanwhile.
        Some(record.cold_address().map_or_else(
            || ColdPlace::InMemory {
                key: record.key().to_vec(),
                value: record.value().to_vec(),
                flags: record.flags(),
                expires_at_ms: record.expires_at_ms(),
            },
            ColdPlace::Moved,
        ))
    }

    /// Moves records to the disk until a table that is restored is about within its quota. Waits for a disk that is
    /// slower than the restoring.
    ///
    /// # Errors
    /// `NotSpilled`: the disk is full, fails, or does nothing for long.
    pub(super) fn make_room_to_restore(&self, participant: &Participant) -> Result<(), StoreError> {
        let is_full = || {
            let quota = self.quota_bytes();
            self.stats().bytes > quota.saturating_add(quota / SPILL_OVERDRAFT_ONE_IN)
        };
        let mut waits = 0;
        while is_full() {
            let before = self.stats().bytes;
            self.make_room(participant, 0);
            if self.stats().bytes < before {
                waits = 0;
                continue;
            }
            match self.why_full() {
                StoreError::NotSpilled(SpillRefusal::Slow) if waits < SPILL_RESTORE_WAITS => {
                    waits += 1;
                    thread::sleep(Duration::from_millis(1));
                }
                // Nothing that is there can leave: all of it is cold, or was touched just now.
                StoreError::OutOfMemory if waits < SPILL_RESTORE_WAITS => waits += SPILL_RESTORE_WAITS / 8,
                StoreError::OutOfMemory => return Ok(()),
                error => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the cold records of `version` and lower ones from a place in the table on, and where they end.
    pub(super) fn cold_up_to(
        &self,
        guard: &EpochGuard<'_>,
        from: (u64, usize),
        version: u64,
    ) -> (Vec<ColdRecord>, Option<u64>) {
        let mut cold = Vec::new();
        let next = self.scan_all(guard, from, 0, &mut |_| {}, &mut cold);
        cold.retain(|record| record.version <= version);
        (cold, next)
    }

    /// Removes a cold record, if it is as it was met.
    pub(super) fn remove_cold(&self, participant: &Participant, cold: &ColdRecord) {
        let mut locked = self.lock_stripe(participant, stripe_of(cold.hash));
        if let Some(found) = locked.find_where(cold.hash, |record| record.version() == cold.version) {
            locked.remove(cold.hash, found);
        }
    }
}

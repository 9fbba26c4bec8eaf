//! Cold records for copies of a whole table: a checkpoint of the log, or pages of records for an export. They are read
//! from the disk, and stay there.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use super::RecordTable;
use super::buckets::stripe_of;
use crate::limits::{AWAITED_MEMORY_ONE_IN, SPILL_OVERDRAFT_ONE_IN, SPILL_RESTORE_WAITS};
use crate::spill::{BlockRange, SpillAddress, SpillReadError, SpillRecord, SpillRefusal, near_runs};
use crate::{EpochGuard, Participant, RecordRef, RestoredRecord, ShownPosition, StoreError};

/// A cold record that a scan has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdRecord {
    pub(super) hash: u64,
    pub(super) version: u64,
    pub(super) address: SpillAddress,
}

impl ColdRecord {
    /// Returns the hash of its key, where a scan can go on.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the bytes of the disk that are read for it: at least those that its key and value have.
    pub fn read_bytes(&self) -> usize {
        self.address.bytes() as usize
    }
}

/// A record that a scan shows, wherever its value is.
#[derive(Clone, Copy, Debug)]
pub enum ScannedRecord<'g> {
    /// Its value is in memory.
    InMemory(RecordRef<'g>),
    /// Its key and value are on the disk: [`RecordTable::read_cold_now`] reads them.
    Cold(ColdRecord),
}

/// Where a record is that was cold.
enum ColdPlace {
    Moved(SpillAddress),
    InMemory { key: Vec<u8>, value: Vec<u8>, flags: u32, expires_at_ms: u64 },
}

impl ColdPlace {
    /// Shows what is in memory.
    fn show(&self, version: u64, f: &mut dyn FnMut(&RestoredRecord<'_>)) {
        if let ColdPlace::InMemory { key, value, flags, expires_at_ms } = self {
            f(&RestoredRecord { version, key, value, flags: *flags, expires_at_ms: *expires_at_ms });
        }
    }
}

/// A record of the disk.
fn restored<'r>(record: &SpillRecord<'r>) -> RestoredRecord<'r> {
    let SpillRecord { version, key, value, flags, expires_at_ms, .. } = *record;
    RestoredRecord { version, key, value, flags, expires_at_ms }
}

/// What a scan that may wait has met.
#[derive(Debug, Default)]
struct AwaitedPage {
    is_any_shown: bool,
    /// Bytes of the disk that the noted records have.
    noted_bytes: u64,
    /// Where the next step begins, if not behind all records that were met.
    end: Option<u64>,
}

/// Times that a record is looked for which moves on the disk: it does with its segment, seldom.
const MOVES: usize = 64;

impl RecordTable {
    /// As [`RecordTable::scan`], and adds the cold records to `cold`, which count as well. To be read by
    /// [`RecordTable::read_cold`], when no freeing of memory waits for it.
    pub fn scan_all<'g>(
        &'g self,
        guard: &'g EpochGuard<'_>,
        (cursor, limit): (u64, usize),
        now_ms: u64,
        f: &mut dyn FnMut(RecordRef<'g>),
        cold: &mut Vec<ColdRecord>,
    ) -> Option<u64> {
        self.scan_each(guard, (cursor, limit), now_ms, &mut |record| match record {
            ScannedRecord::InMemory(record) => f(record),
            ScannedRecord::Cold(met) => cold.push(met),
        })
    }

    /// As [`RecordTable::scan`], with the cold records in their order between the others.
    pub fn scan_each<'g>(
        &'g self,
        guard: &'g EpochGuard<'_>,
        (cursor, limit): (u64, usize),
        now_ms: u64,
        f: &mut dyn FnMut(ScannedRecord<'g>),
    ) -> Option<u64> {
        let f = RefCell::new(f);
        let in_memory = &mut |record| (f.borrow_mut())(ScannedRecord::InMemory(record));
        let cold = &mut |hash, record: RecordRef<'g>| {
            if let Some(address) = record.cold_address() {
                (f.borrow_mut())(ScannedRecord::Cold(ColdRecord { hash, version: record.version(), address }));
            }
            true
        };
        self.scan_with(guard, cursor, limit, now_ms, in_memory, cold)
    }

    /// As [`RecordTable::scan`], for an operation that may wait. It ends before the first cold record. If it begins
    /// with one, it shows nothing that counts, and notes in `shown` this one and those that follow: as many of the
    /// next `limit` records as fit into a part of the table's memory together. It is made again from the same cursor
    /// once they are in memory; the first is enough for it to get on.
    pub fn scan_awaited<'g>(
        &'g self,
        (guard, shown): (&'g EpochGuard<'_>, &ShownPosition),
        (cursor, limit): (u64, usize),
        now_ms: u64,
        f: &mut dyn FnMut(RecordRef<'g>),
    ) -> Option<u64> {
        let page = RefCell::new(AwaitedPage::default());
        let most = self.quota_bytes() / AWAITED_MEMORY_ONE_IN;
        let in_memory = &mut |record: RecordRef<'g>| {
            let mut page = page.borrow_mut();
            if page.end.is_none() && page.noted_bytes == 0 {
                page.is_any_shown = true;
                f(record);
            }
        };
        let cold = &mut |hash, record: RecordRef<'g>| {
            let mut page = page.borrow_mut();
            let bytes = record.cold_address().map_or(0, SpillAddress::bytes);
            if page.end.is_some() {
                return true;
            }
            // One of the cursor's own hash cannot be the next step's first.
            if hash != cursor && (page.is_any_shown || page.noted_bytes != 0 && page.noted_bytes + bytes > most) {
                page.end = Some(hash);
            } else {
                page.noted_bytes += bytes;
                self.note_cold(hash, record, shown);
            }
            true
        };
        let next = self.scan_with(guard, cursor, limit, now_ms, in_memory, cold);
        self.note_all_read(shown);
        let end = page.borrow().end;
        end.or(next)
    }

    /// Takes the read of a cold record out of the quota of the tenant that reads: a table may be granted to it. Waits
    /// while that is used up; returns false if it still is at `until`.
    pub fn may_read_cold(&self, cold: &ColdRecord, reader: u32, until: Instant) -> bool {
        self.spill.get().is_none_or(|spill| spill.take_quota(cold.address, reader, until))
    }

    /// As [`RecordTable::read_cold`]; of a record that was replaced since it was met, shows what it has become. Returns
    /// false if it was removed.
    ///
    /// # Errors
    /// As there.
    pub fn read_cold_now(
        &self,
        participant: &mut Participant,
        cold: &ColdRecord,
        f: &mut dyn FnMut(&RestoredRecord<'_>),
    ) -> Result<bool, SpillReadError> {
        let mut met = *cold;
        for _ in 0..MOVES {
            if self.read_cold(participant, &met, f)? {
                return Ok(true);
            }
            match self.locate_where(participant, met.hash, |_| true) {
                None => return Ok(false),
                Some((version, ColdPlace::Moved(address))) => met = ColdRecord { version, address, ..met },
                Some((version, in_memory)) => {
                    participant.offline();
                    in_memory.show(version, f);
                    return Ok(true);
                }
            }
        }
        Err(SpillReadError::Missing)
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
                Some(in_memory) => {
                    participant.offline();
                    in_memory.show(version, f);
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
        self.locate_where(participant, hash, |record| record.version() == version).map(|(_, place)| place)
    }

    /// Returns the version of a record of a hash that is as `wanted`, and where it is now.
    fn locate_where(
        &self,
        participant: &Participant,
        hash: u64,
        wanted: impl Fn(RecordRef<'_>) -> bool,
    ) -> Option<(u64, ColdPlace)> {
        let locked = self.lock_stripe(participant, stripe_of(hash));
        let record = locked.find_where(hash, wanted)?.record;
        // Copied: the reader of the copy may wait for another disk, and must not have the lock meanwhile.
        let place = record.cold_address().map_or_else(
            || ColdPlace::InMemory {
                key: record.key().to_vec(),
                value: record.value().to_vec(),
                flags: record.flags(),
                expires_at_ms: record.expires_at_ms(),
            },
            ColdPlace::Moved,
        );
        Some((record.version(), place))
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

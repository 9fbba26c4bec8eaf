//! Cold records: what stays in memory of them, how records leave memory and come back.
//!
//! A cold record's slot has the key's whole hash, as any slot. In place of the record it points at 16 bytes:
//! version, 16 bits of a second hash of the key, and the address of the run on the disk (24 with an expiry). So
//! writes, deletes and validations of transactions need no read, nor does an absent key. Two keys are taken for one
//! while cold if 80 bits of two hashes are equal, one of them keyed.
//!
//! What this module guarantees: records are replaced in their slot and retired under the lock of the stripe, as in
//! `locked_stripe`.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::RecordTable;
use super::buckets::stripe_of;
use super::eviction::EvictionQueue;
use super::locked_stripe::{FoundRecord, LockedStripe, record_charge};
use super::stripe::CleanCopy;
use crate::limits::{CLEAN_CHARGE_BYTES, RECORD_CHARGE_BYTES, SPILL_OVERDRAFT_ONE_IN, STRIPES};
use crate::record::{RecordPtr, ValueSource, allocation_bytes, cold_allocation_bytes, key_fingerprint};
use crate::spill::{
    AppendCause, ColdMiss, ColdSource, ColdTable, SpillAddress, SpillDevice, SpillPool, SpillReadError, SpillRecord,
    SpillRefusal, SpillStats, TableSpill,
};
use crate::{EpochGuard, Participant, RecordMarks, RecordRef, ShownPosition, StorageMode, StoreError};

/// No key's hash, so that no record is spared.
const NO_HASH: u64 = 0;

impl RecordTable {
    /// Gives a table of mode `spill` its file, which takes `limit_bytes` of the disk at most. Once a table; before its
    /// first write. `owner`: what owns the table.
    pub fn attach_spill(
        &self,
        owner: Weak<dyn SpilledTable>,
        device: Box<dyn SpillDevice>,
        limit_bytes: u64,
        pool_and_tenant: (&Arc<SpillPool>, u32),
    ) {
        debug_assert!(self.config.mode == StorageMode::Spill && self.index.is_none());
        let with_table = move |visit: &mut dyn FnMut(&dyn ColdTable)| {
            let owner = owner.upgrade();
            owner.as_ref().into_iter().for_each(|owner| visit(owner.records()));
            owner.is_some()
        };
        let _once = self.spill.set(TableSpill::new(Box::new(with_table), device, limit_bytes, pool_and_tenant));
    }

    /// Sets the bytes of the disk that its spill file takes at most from now on, if it has one.
    pub fn set_spill_limit(&self, limit_bytes: u64) {
        if let Some(spill) = self.spill.get() {
            spill.file.set_limit(limit_bytes);
        }
    }

    /// Locks the stripe of a key's hash.
    pub(crate) fn lock_stripe_of<'t>(&'t self, participant: &'t Participant, hash: u64) -> LockedStripe<'t> {
        self.lock_stripe(participant, stripe_of(hash))
    }

    /// Returns whether records may be cold.
    pub fn is_larger_than_memory(&self) -> bool {
        self.config.mode == StorageMode::Spill
    }

    /// Returns whether records may be elsewhere, on the disk or in a backing: then scans do not show all.
    pub fn is_partial(&self) -> bool {
        self.is_larger_than_memory() || self.has_backing()
    }

    /// Returns whether there is a cold record of this hash; notes it then.
    pub(crate) fn note_if_cold(&self, guard: &EpochGuard<'_>, hash: u64) -> bool {
        if !self.is_larger_than_memory() {
            return false;
        }
        self.check(guard.epochs());
        // SAFETY: protected by the guard; the record is not kept.
        let found = unsafe { self.current().find(hash, |record| record.is_cold()).map(|(_, record)| record.as_ref()) };
        found.map(|record| self.note_cold(hash, record, guard.shown())).is_some()
    }

    /// Moves records to the disk until so many bytes more are within the quota, or for as long as one write does. The
    /// caller holds no stripe.
    pub fn make_room(&self, participant: &Participant, bytes: u64) {
        let is_full = || self.bytes.load(Ordering::Relaxed).saturating_add(bytes) > self.quota_bytes();
        let mut left = self.evictions_per_write();
        for stripe in 0..STRIPES {
            if !is_full() {
                return;
            }
            let mut locked = self.lock_stripe(participant, stripe);
            while is_full() && left != 0 && locked.evict_one(NO_HASH) {
                left -= 1;
            }
        }
    }

    /// Returns the counters of cold records; `None` for a table without a spill file.
    pub fn spill_stats(&self) -> Option<SpillStats> {
        self.spill.get().map(|spill| spill.stats())
    }

    /// Notes that an operation has met a cold record.
    #[cold]
    #[inline(never)]
    pub(super) fn note_cold(&self, hash: u64, record: RecordRef<'_>, shown: &ShownPosition) {
        if let Some((spill, address)) = self.spill.get().zip(record.cold_address()) {
            let source = Arc::clone(spill) as Arc<dyn ColdSource>;
            shown.note_cold(ColdMiss::new(source, hash, record.version(), address));
        }
    }

    /// Returns why there is no room.
    #[cold]
    pub(super) fn why_full(&self) -> StoreError {
        match (self.config.mode, self.spill.get()) {
            (StorageMode::Spill, None) => StoreError::NotSpilled(SpillRefusal::NoFile),
            (StorageMode::Spill, Some(spill)) => {
                spill.refusal().map_or(StoreError::OutOfMemory, StoreError::NotSpilled)
            }
            (StorageMode::Store | StorageMode::Cache, _) => StoreError::OutOfMemory,
        }
    }

    /// Forgets the file's records with the table's.
    pub(super) fn clear_spill(&self) {
        if let Some(spill) = self.spill.get() {
            spill.file.clear();
            spill.counters.cold_records.store(0, Ordering::Relaxed);
        }
    }
}

/// What owns a table of mode `spill`, and may go while its records are read.
pub trait SpilledTable: Send + Sync {
    /// Returns the table.
    fn records(&self) -> &RecordTable;
}

impl SpilledTable for RecordTable {
    fn records(&self) -> &RecordTable {
        self
    }
}

impl ColdTable for RecordTable {
    fn is_cold_at(&self, participant: &Participant, hash: u64, version: u64, address: SpillAddress) -> bool {
        self.lock_stripe(participant, stripe_of(hash)).find_cold(hash, version, address).is_some()
    }

    /// It makes room; while no record can leave, the table may exceed its quota a little.
    ///
    /// # Errors
    /// `NoMemory`: it would exceed it by more, or the system gives none.
    fn promote(
        &self,
        participant: &Participant,
        hash: u64,
        address: SpillAddress,
        record: &SpillRecord<'_>,
    ) -> Result<(), SpillReadError> {
        self.lock_stripe(participant, stripe_of(hash)).promote(hash, address, record)
    }

    fn relocate(&self, participant: &Participant, from: SpillAddress, record: &SpillRecord<'_>) -> bool {
        self.lock_stripe(participant, stripe_of(record.hash)).relocate(from, record)
    }
}

impl<'t> LockedStripe<'t> {
    /// Refuses to show a cold record to a function that decides by its value.
    #[inline]
    pub(super) fn check_in_memory(&self, hash: u64, live: Option<RecordRef<'_>>) -> Result<(), StoreError> {
        match live {
            Some(record) if self.table.config.mode == StorageMode::Spill && record.is_cold() => {
                self.table.note_cold(hash, record, self.participant.shown());
                Err(StoreError::Cold)
            }
            _ => Ok(()),
        }
    }

    /// Drops entries of deleted records when they are about to outnumber the others: two checks per insert.
    pub(super) fn drop_stale_entries(&mut self) {
        if self.state.queues.len() as u64 <= 2 * self.stripe.records.get() + 64 {
            return;
        }
        for _ in 0..2 {
            let Some((hash, queue)) = self.state.queues.pop_longer() else { return };
            let in_main = queue == EvictionQueue::Main;
            if self.find_where(hash, |record| record.in_main_queue() == in_main && !record.is_cold()).is_some() {
                self.state.queues.push(queue, hash);
            }
        }
    }

    fn find_cold(&self, hash: u64, version: u64, address: SpillAddress) -> Option<FoundRecord<'t>> {
        self.find_where(hash, |record| record.version() == version && record.cold_address() == Some(address))
    }

    /// Moves a record's key and value to the disk; returns whether it did.
    pub(super) fn make_cold(&mut self, hash: u64, found: FoundRecord<'t>) -> bool {
        let Some(spill) = self.table.spill.get() else { return false };
        let record = found.record;
        // Marks would be lost; clients set them for a moment.
        let RecordMarks { stale, sent, .. } = record.marks();
        let after = cold_allocation_bytes(record.expires_at_ms()) as u64 + RECORD_CHARGE_BYTES;
        if stale || sent || after >= record.charged_bytes() {
            return false;
        }
        let copy = self.state.clean.get(&hash).filter(|copy| copy.version == record.version()).copied();
        let (key, value) = record.key_and_value();
        let (version, expires_at_ms, flags) = (record.version(), record.expires_at_ms(), record.flags());
        let appended = match copy {
            Some(copy) => Ok(copy.address),
            None => {
                let leaving = SpillRecord { hash, version, expires_at_ms, flags, key, value };
                spill.append(&leaving, AppendCause::Leaves)
            }
        };
        let Ok(address) = appended.inspect_err(|refusal| spill.note_refusal(*refusal)) else { return false };
        let Some(cold) = RecordPtr::allocate_cold(version, key_fingerprint(key), expires_at_ms, address) else {
            if copy.is_none() {
                spill.file.release(address);
            }
            spill.note_refusal(SpillRefusal::NoMemory);
            return false;
        };
        let mut freed = record.charged_bytes() - after;
        if copy.is_some() {
            self.state.clean.remove(&hash);
            freed += CLEAN_CHARGE_BYTES;
        }
        found.slot.replace(cold);
        self.retire(found.owned);
        self.table.bytes.fetch_sub(freed, Ordering::Relaxed);
        spill.note_spilled(copy.is_some());
        true
    }

    /// Gives the disk's room of a record back that leaves the table.
    pub(super) fn release_spilled(&mut self, hash: u64, record: RecordRef<'_>) {
        let Some(spill) = self.table.spill.get() else { return };
        if let Some(address) = record.cold_address() {
            spill.counters.cold_records.fetch_sub(1, Ordering::Relaxed);
            spill.file.release(address);
        } else if self.state.clean.get(&hash).is_some_and(|copy| copy.version == record.version())
            && let Some(copy) = self.state.clean.remove(&hash)
        {
            self.table.bytes.fetch_sub(CLEAN_CHARGE_BYTES, Ordering::Relaxed);
            spill.file.release(copy.address);
        }
    }

    /// Moves records to the disk that need no write, in no order, until the table is within its quota; returns whether
    /// it is. While the disk takes nothing, the others cannot leave.
    #[cold]
    fn evict_clean(&mut self) -> bool {
        let table = self.table;
        let fits = || table.bytes.load(Ordering::Relaxed) <= table.quota_bytes();
        let mut left = table.evictions_per_write();
        let mut evict = |locked: &mut LockedStripe<'_>| {
            while !fits() && left != 0 && locked.evict_one_clean() {
                left -= 1;
            }
        };
        evict(self);
        for offset in 1..STRIPES {
            // Never waits for a second lock, so that no two writers wait for each other.
            let other = (self.index + offset) % STRIPES;
            if !fits()
                && let Some(mut other) = table.try_lock_stripe(self.participant, other)
            {
                evict(&mut other);
            }
        }
        fits()
    }

    fn evict_one_clean(&mut self) -> bool {
        let Some((hash, CleanCopy { version, .. })) = self.state.clean.iter().next().map(|(hash, copy)| (*hash, *copy))
        else {
            return false;
        };
        let found = self.find_where(hash, |record| record.version() == version && !record.is_cold());
        found.is_some_and(|found| self.make_cold(hash, found))
    }

    fn promote(&mut self, hash: u64, address: SpillAddress, record: &SpillRecord<'_>) -> Result<(), SpillReadError> {
        let Some(found) = self.find_cold(hash, record.version, address) else { return Ok(()) };
        let Some(spill) = self.table.spill.get() else { return Ok(()) };
        let SpillRecord { version, expires_at_ms, flags, key, value, .. } = *record;
        // Whatever the checksum says: the key is what tells.
        if !found.record.is_cold_of(key) || found.record.expires_at_ms() != expires_at_ms {
            return Err(SpillReadError::Missing);
        }
        let new = record_charge(key.len(), value.len(), flags, expires_at_ms) + CLEAN_CHARGE_BYTES;
        let growth = new.saturating_sub(found.record.charged_bytes());
        let quota = self.table.quota_bytes();
        let after = self.table.bytes.fetch_add(growth, Ordering::Relaxed).wrapping_add(growth);
        // From another stripe each time: an operation waits for several records, and in a stripe with few others each
        // would make room for the next one. Then they would never be in memory together.
        let first = 1 + spill.counters.reads.load(Ordering::Relaxed) as usize % (STRIPES - 1);
        if after > quota && !self.evict_for(first, hash) && !self.evict_clean() {
            let most = quota.saturating_add(quota / SPILL_OVERDRAFT_ONE_IN);
            if self.table.bytes.load(Ordering::Relaxed) > most {
                self.table.bytes.fetch_sub(growth, Ordering::Relaxed);
                return Err(SpillReadError::NoMemory);
            }
        }
        let Some(written) = RecordPtr::allocate(version, key, ValueSource::from(value), flags, expires_at_ms) else {
            self.table.bytes.fetch_sub(growth, Ordering::Relaxed);
            return Err(SpillReadError::NoMemory);
        };
        debug_assert_eq!(allocation_bytes(key.len(), value.len(), flags, expires_at_ms), {
            // SAFETY: just allocated.
            unsafe { written.bytes() }
        });
        // SAFETY: allocated above, and kept at least for this call: the lock keeps others from removing it.
        let arrived: RecordRef<'_> = unsafe { written.as_ref() };
        arrived.set_arrived();
        self.enter_queue(hash, arrived);
        self.drop_stale_entries();
        // Another key of the same hash may be clean: one of the two is written when it leaves.
        if self.state.clean.contains_key(&hash) {
            self.table.bytes.fetch_sub(CLEAN_CHARGE_BYTES, Ordering::Relaxed);
            spill.file.release(address);
        } else {
            self.state.clean.insert(hash, CleanCopy { version, address });
        }
        found.slot.replace(written);
        self.retire(found.owned);
        spill.counters.cold_records.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn relocate(&mut self, from: SpillAddress, record: &SpillRecord<'_>) -> bool {
        let Some(spill) = self.table.spill.get() else { return false };
        let (hash, version) = (record.hash, record.version);
        let is_copy = |copy: &CleanCopy| copy.version == version && copy.address == from;
        if let Some(copy) = self.state.clean.get(&hash).filter(|copy| is_copy(copy)).copied() {
            // It is in memory: the copy would only save a write.
            self.state.clean.remove(&hash);
            self.table.bytes.fetch_sub(CLEAN_CHARGE_BYTES, Ordering::Relaxed);
            spill.file.release(copy.address);
            return true;
        }
        let Some(found) = self.find_cold(hash, version, from) else { return true };
        let Ok(address) = spill.append(record, AppendCause::Copied).inspect_err(|refusal| spill.note_refusal(*refusal))
        else {
            return false;
        };
        let expires_at_ms = record.expires_at_ms;
        let Some(cold) = RecordPtr::allocate_cold(version, key_fingerprint(record.key), expires_at_ms, address) else {
            spill.file.release(address);
            return false;
        };
        found.slot.replace(cold);
        self.retire(found.owned);
        spill.file.release(from);
        spill.counters.copied.fetch_add(1, Ordering::Relaxed);
        true
    }
}

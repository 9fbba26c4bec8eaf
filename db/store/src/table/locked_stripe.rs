//! The writer's operations under the lock of a stripe.
//!
//! What this module guarantees: its functions are safe to call, since a [`LockedStripe`] proves what the unsafe
//! functions of `buckets` require. The stripe's lock is held, and the participant is online and stays so. Records are
//! retired once, by the thread that took them out of their slot under the lock.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::buckets::{
    BUCKET_BYTES, BucketArray, BucketSlot, ChainCapacity, InsertError, RehashStats, SpareBuckets, stripe_of,
};
use super::eviction::EvictionQueue;
use super::key_range::IndexKey;
use super::stripe::{StripeState, TableStripe};
use super::table_log::TableLog;
use super::{RecordTable, index};
use crate::epochs::{Garbage, GarbageCharge, OwnedRecord, PENDING_OVERHEAD_BYTES};
use crate::limits::{EVICTION_VISITS, MAX_CHAIN_BUCKETS, MAX_CHAIN_GROUP_RECORDS, RECORD_CHARGE_BYTES, STRIPES};
use crate::record::{RecordPtr, RecordRef, ValueSource, allocation_bytes};
use crate::{Participant, RecordMarks, StoreCondition, StoreError, WriteOptions};

/// The lock of one stripe, held by a thread whose participant is online and stays so: everything that the unsafe
/// functions of `buckets` call *protected* and *locked* holds for hashes of the stripe while this lives.
pub(crate) struct LockedStripe<'t> {
    pub(crate) table: &'t RecordTable,
    pub(crate) participant: &'t Participant,
    pub(super) buckets: &'t BucketArray,
    pub(super) index: usize,
    pub(super) stripe: &'t TableStripe,
    pub(super) state: MutexGuard<'t, StripeState>,
    /// The properties of the records that are written now.
    pub(super) marks: RecordMarks,
    /// Whether changes are a part of a unit, which is logged when the stripes are unlocked.
    pub(super) is_grouped: bool,
    /// Whether its records stay in memory while this lives.
    pub(crate) is_pinned: bool,
    /// The log of the table's changes, if they were logged when this was locked.
    pub(super) log: Option<&'t TableLog>,
    /// The version of the record that is written now, which a log has given back. Nothing is logged then.
    pub(crate) restored_version: Option<u64>,
    /// Whether that record comes from another server of the cluster: then it is logged, and is no change of the table.
    pub(super) is_arrival: bool,
    /// Whether the record that is written now comes from the table's backing: it is no change then.
    pub(crate) is_fill: bool,
}

/// A record that was found, and its slot.
#[derive(Clone, Copy)]
pub(crate) struct FoundRecord<'t> {
    pub(super) slot: &'t BucketSlot,
    pub(super) owned: RecordPtr,
    pub(crate) record: RecordRef<'t>,
}

/// A record that is not in the table; freed if it never gets there.
pub(super) struct UnpublishedRecord {
    record: RecordPtr,
    /// The copy of its key for the index of an ordered table, while it is not there yet.
    entry: Option<IndexKey>,
}

impl Drop for UnpublishedRecord {
    fn drop(&mut self) {
        // SAFETY: it never was in the table; `publish_fresh` does not drop it.
        unsafe { self.record.free() }
    }
}

/// Returns the bytes that a record counts against the quota.
pub(super) fn record_charge(key_len: usize, value_len: usize, flags: u32, expires_at_ms: u64) -> u64 {
    allocation_bytes(key_len, value_len, flags, expires_at_ms) as u64 + RECORD_CHARGE_BYTES
}

impl RecordTable {
    /// Returns the charge of an overflow bucket if a new record of that hash would need one; else 0.
    #[cfg(test)]
    pub(crate) fn bucket_charge(&self, participant: &Participant, hash: u64) -> u64 {
        self.lock_stripe(participant, stripe_of(hash)).bucket_charge(hash)
    }

    /// Charges added overflow buckets against the quota, and discharges unlinked ones.
    pub(super) fn account_buckets(&self, added: usize, unlinked: usize) {
        if added != unlinked {
            let growth = added.wrapping_sub(unlinked).wrapping_mul(BUCKET_BYTES);
            self.bytes.fetch_add(growth as u64, Ordering::Relaxed);
        }
    }
}

impl<'t> LockedStripe<'t> {
    pub(super) fn find_where(&self, hash: u64, matches: impl FnMut(RecordRef<'t>) -> bool) -> Option<FoundRecord<'t>> {
        debug_assert_eq!(stripe_of(hash), self.index);
        // SAFETY: protected: see `LockedStripe`; what is found stays for 't, during which the participant is borrowed
        // and so announces no quiescent point.
        unsafe {
            let (slot, owned) = self.buckets.find(hash, matches)?;
            Some(FoundRecord { slot, owned, record: owned.as_ref() })
        }
    }

    /// Returns whether the array is three quarters full, judged by this stripe.
    pub(super) fn is_full(&self) -> bool {
        self.stripe.records.get() * STRIPES as u64 * 4 > self.buckets.slots() as u64 * 3
    }

    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<FoundRecord<'t>> {
        self.find_where(hash, |record| record.key() == key || record.is_cold_of(key))
    }

    /// Returns a record that was found without this lock, if it is still there.
    pub(super) fn find_same(&self, hash: u64, record: RecordRef<'_>) -> Option<FoundRecord<'t>> {
        self.find_where(hash, |found| found.is_same(record))
    }

    /// Returns whether there is a record of this hash, expired or not.
    pub(super) fn has(&self, hash: u64) -> bool {
        self.find_where(hash, |_| true).is_some()
    }

    pub(super) fn retire(&self, record: RecordPtr) {
        // SAFETY: it stays at least until this thread's next quiescent point.
        let charge = self.table.garbage.charge(unsafe { record.bytes() } as u64 + PENDING_OVERHEAD_BYTES);
        // SAFETY: callers have just taken the record out of its slot, under the lock, so no other thread retires it.
        self.participant.retire(Garbage::Record(unsafe { OwnedRecord::new(record) }), charge);
    }

    /// Takes a record out of the table.
    pub(crate) fn remove(&mut self, hash: u64, found: FoundRecord<'t>) {
        let bytes = found.record.charged_bytes() + self.table.key_charge(found.record.key().len());
        self.table.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.unlink(hash, found);
    }

    /// As above for a caller that has done the accounting.
    pub(super) fn unlink(&mut self, hash: u64, found: FoundRecord<'t>) {
        self.note_copied(found.record);
        self.stripe.records.sub(1);
        self.stripe.expiring.sub(u64::from(found.record.expires_at_ms() != 0));
        if let Some(absences) = self.table.absences.get() {
            absences.note_removal(hash);
        }
        self.release_spilled(hash, found.record);
        self.table.note_gone(hash);
        let mut unlinked = 0;
        let retire = |bucket| {
            self.participant.retire(Garbage::Incremental(Box::new(bucket)), GarbageCharge::NONE);
            unlinked += 1;
        };
        // SAFETY: locked: see `LockedStripe`; the slot was found under this lock.
        unsafe { self.buckets.remove(hash, found.slot, retire) };
        self.table.account_buckets(0, unlinked);
        if let Some(index) = &self.table.index {
            index.remove(found.record.key());
        }
        self.retire(found.owned);
    }

    /// Removes the live record of a key, and logs it. A cold one has no key.
    pub(super) fn delete_found(&mut self, hash: u64, key: &[u8], found: FoundRecord<'t>) -> Result<(), StoreError> {
        let permit = self.admit_change(key.len(), 0)?;
        self.admit_backed(hash, key, None, 0)?;
        self.log_delete(hash, key);
        self.note_backed(hash, key, self.state.last_version, key.len());
        self.end_change(permit);
        self.note_copied_removal(key, found.record);
        self.remove(hash, found);
        Ok(())
    }

    /// Writes a record if the condition holds and there is room; returns its version.
    pub(super) fn put(
        &mut self,
        hash: u64,
        key: &[u8],
        value: ValueSource<'_>,
        write: &WriteOptions,
        now_ms: u64,
    ) -> Result<u64, StoreError> {
        let found = self.find(hash, key);
        let live = found.filter(|found| !found.record.is_expired(now_ms));
        if write.condition != StoreCondition::Always {
            self.check_loaded(hash, key, live.map(|found| found.record), now_ms)?;
        }
        if !write.condition.is_met(live.map(|found| found.record.version())) {
            return Err(StoreError::Conflict);
        }
        self.replace_found(found, hash, key, value, (write.flags, write.expires_at_ms), now_ms)
    }

    /// Writes a record in place of what [`LockedStripe::find`] found, if there is room; returns its version.
    pub(crate) fn replace_found(
        &mut self,
        found: Option<FoundRecord<'t>>,
        hash: u64,
        key: &[u8],
        value: ValueSource<'_>,
        (flags, expires_at_ms): (u32, u64),
        now_ms: u64,
    ) -> Result<u64, StoreError> {
        if self.restored_version.is_none() {
            self.check_garbage_limit()?;
        }
        let found = self.expire_replaced(hash, key, found, now_ms)?;
        let permit = self.admit_change(key.len(), value.len())?;
        self.admit_backed(hash, key, Some(value.len()), expires_at_ms)?;
        let old = found.map_or(0, |found| found.record.charged_bytes());
        let mut new = record_charge(key.len(), value.len(), flags, expires_at_ms);
        let mut bucket = 0;
        if found.is_none() {
            new += self.table.key_charge(key.len());
            bucket = self.bucket_charge(hash);
        }
        self.reserve(hash, old, new + bucket)?;
        let version = self.restored_version.unwrap_or(self.state.last_version + 1);
        let written = RecordPtr::allocate(version, key, value, flags, expires_at_ms)
            .ok_or_else(|| self.no_memory())
            // Searched again: making room may have moved slots about, though never this key.
            .and_then(|record| {
                let replaced = self.find(hash, key);
                self.publish(hash, record, replaced, (None, &mut SpareBuckets::default()))
            });
        let added = match written {
            Ok(added) => added,
            Err(error) => {
                self.table.bytes.fetch_sub((new + bucket).saturating_sub(old), Ordering::Relaxed);
                return Err(error);
            }
        };
        if old > new {
            self.table.bytes.fetch_sub(old - new, Ordering::Relaxed);
        }
        // Eviction may have freed a slot.
        if bucket != 0 && !added {
            self.table.bytes.fetch_sub(bucket, Ordering::Relaxed);
        }
        self.state.last_version = self.state.last_version.max(version);
        self.end_change(permit);
        if found.is_some_and(|found| found.record.is_expired(now_ms)) {
            self.stripe.expirations.add(1);
        }
        Ok(version)
    }

    /// Refuses every put while too much of the table's garbage waits for its readers.
    pub(super) fn check_garbage_limit(&mut self) -> Result<(), StoreError> {
        if self.table.garbage.bytes() > self.table.garbage_limit() { self.reclaim_garbage() } else { Ok(()) }
    }

    /// Frees the table's replaced and deleted records if they are too many, as far as no thread reads them any more.
    /// Only writes that put something are refused: deletes alone are bounded by the table's content.
    #[cold]
    fn reclaim_garbage(&mut self) -> Result<(), StoreError> {
        self.participant.reclaim_early();
        if self.table.garbage.bytes() <= self.table.garbage_limit() {
            return Ok(());
        }
        self.stripe.held_back.add(1);
        Err(StoreError::ReclaimPressure)
    }

    /// Allocates a record to be published under this lock, whose key `is_new` or not; `None` when memory is out.
    pub(super) fn new_record(
        &mut self,
        (key, is_new): (&[u8], bool),
        value: &[u8],
        flags: u32,
        expires_at_ms: u64,
    ) -> Option<UnpublishedRecord> {
        let is_indexed = is_new && self.table.index.is_some();
        let entry = if is_indexed { Some(index::copy_key(key)?) } else { None };
        let version = self.state.last_version + 1;
        let record = RecordPtr::allocate(version, key, ValueSource::Parts([value, b"", b""]), flags, expires_at_ms)?;
        self.state.last_version = version;
        Some(UnpublishedRecord { record, entry })
    }

    /// Returns the bytes that a new record of `hash` is charged beside its own: those of an overflow bucket, if it
    /// needs one more. Evictions from its chain only leave room.
    pub(super) fn bucket_charge(&self, hash: u64) -> u64 {
        if self.room(hash).adds_bucket_for(1) { BUCKET_BYTES as u64 } else { 0 }
    }

    /// Returns the room of the chain that a new record of `hash` would join.
    pub(super) fn room(&self, hash: u64) -> ChainCapacity {
        debug_assert_eq!(stripe_of(hash), self.index);
        // SAFETY: locked: see `LockedStripe`.
        unsafe { self.buckets.room(hash, self.moved()) }
    }

    /// Returns whether too many records surround `hash` for `inserts` more; checked in a crowded stripe only.
    pub(super) fn exceeds_chain_limit(&self, hash: u64, inserts: usize) -> bool {
        // SAFETY: locked: see `LockedStripe`.
        self.state.long_chains && unsafe { self.buckets.count_neighbourhood(hash) } + inserts > MAX_CHAIN_GROUP_RECORDS
    }

    /// Returns the buckets of this stripe that have been moved from the previous array.
    fn moved(&self) -> usize {
        if self.state.generation == self.buckets.generation { self.state.moved } else { 0 }
    }

    /// Publishes a record that was accounted for, and for which there is room and, in `spares`, memory; returns whether
    /// a bucket was added.
    pub(super) fn publish_prepared(
        &mut self,
        hash: u64,
        new_record: UnpublishedRecord,
        replaced: Option<FoundRecord<'t>>,
        spares: &mut SpareBuckets,
    ) -> bool {
        let mut new_record = std::mem::ManuallyDrop::new(new_record);
        let entry = new_record.entry.take();
        let published = self.publish(hash, new_record.record, replaced, (entry, spares));
        debug_assert!(published.is_ok(), "the caller made sure that there is room");
        published == Ok(true)
    }

    /// Puts an allocated record into its slot, in place of `replaced`. Memory for its key in the index, and for further
    /// buckets, was taken before, or is taken now. Returns whether a bucket was added, for which the caller accounts.
    fn publish(
        &mut self,
        hash: u64,
        record: RecordPtr,
        replaced: Option<FoundRecord<'t>>,
        (entry, spares): (Option<IndexKey>, &mut SpareBuckets),
    ) -> Result<bool, StoreError> {
        // SAFETY: allocated by the caller, and kept at least for this call: the lock keeps others from removing it.
        let new: RecordRef<'_> = unsafe { record.as_ref() };
        self.note_copied(new);
        self.stripe.expiring.add(u64::from(new.expires_at_ms() != 0));
        if self.marks != RecordMarks::default() {
            new.set_marks(self.marks);
        }
        if let Some(old) = replaced {
            if old.record.is_cold() {
                self.enter_queue(hash, new);
            } else if self.table.makes_room() {
                new.inherit(old.record);
            }
            self.release_spilled(hash, old.record);
            self.stripe.expiring.sub(u64::from(old.record.expires_at_ms() != 0));
            self.log_put(hash, new);
            old.slot.replace(record);
            self.retire(old.owned);
            return Ok(false);
        }
        // A commit has made sure of this for all of its records.
        let inserted = if self.exceeds_chain_limit(hash, 1) {
            Err(StoreError::OutOfMemory)
        } else if !self.insert_index(new.key(), entry) {
            Err(self.no_memory())
        } else {
            let before_publication = || self.log_put(hash, new);
            // SAFETY: locked: see `LockedStripe`; `put` found no record of this key.
            unsafe { self.buckets.insert_new(hash, record, self.moved(), spares, before_publication) }.map_err(|why| {
                match why {
                    InsertError::ChainFull => StoreError::OutOfMemory,
                    InsertError::OutOfMemory => self.no_memory(),
                }
            })
        };
        let Ok(added) = inserted else {
            self.stripe.expiring.sub(u64::from(new.expires_at_ms() != 0));
            if let Some(index) = &self.table.index {
                index.remove(new.key());
            }
            // SAFETY: it never was in the table.
            unsafe { record.free() };
            return inserted.map(|_| false);
        };
        self.stripe.records.add(1);
        if self.table.makes_room() {
            self.enter_queue(hash, new);
            self.drop_stale_entries();
        }
        Ok(added)
    }

    /// Enters a record that has come into memory into the order of eviction.
    pub(super) fn enter_queue(&mut self, hash: u64, record: RecordRef<'_>) {
        if self.state.queues.admit(hash) == EvictionQueue::Main {
            record.set_in_main_queue();
        }
    }

    /// Notes that the system gave no memory.
    #[cold]
    pub(super) fn no_memory(&self) -> StoreError {
        self.stripe.no_memory_refusals.add(1);
        StoreError::NoMemory
    }

    /// Enters a key into the index, if there is one; `false` when memory is out.
    fn insert_index(&self, key: &[u8], entry: Option<IndexKey>) -> bool {
        let Some(index) = &self.table.index else { return true };
        let entry = entry.or_else(|| index::copy_key(key));
        entry.map(|entry| index.insert(entry)).is_some()
    }

    /// Accounts for a record that takes `new` bytes in place of one that takes `old`, making room in a cache.
    fn reserve(&mut self, hash: u64, old: u64, new: u64) -> Result<(), StoreError> {
        if new <= old {
            return Ok(());
        }
        if self.restored_version.is_some() {
            self.table.bytes.fetch_add(new - old, Ordering::Relaxed);
            return Ok(());
        }
        let quota = self.table.quota_bytes();
        let after = self.table.bytes.fetch_add(new - old, Ordering::Relaxed).wrapping_add(new - old);
        if after <= quota || (self.table.makes_room() && new <= quota && self.evict_for(0, hash)) {
            return Ok(());
        }
        self.table.bytes.fetch_sub(new - old, Ordering::Relaxed);
        self.stripe.refusals.add(1);
        Err(self.table.why_full())
    }

    /// Evicts until the table is within its quota, once around the stripes; `false` if that would take too long. The
    /// first stripe is so many further than this one.
    pub(super) fn evict_for(&mut self, first: usize, spared: u64) -> bool {
        let fits = |table: &RecordTable| table.bytes.load(Ordering::Relaxed) <= table.quota_bytes();
        let mut left = self.table.evictions_per_write();
        let mut evict = |locked: &mut LockedStripe<'_>| {
            while !fits(locked.table) && left != 0 && locked.evict_one(spared) {
                left -= 1;
            }
            fits(locked.table) || left == 0
        };
        for offset in first..first + STRIPES {
            let index = (self.index + offset) % STRIPES;
            // Never waits for a second lock, so that no two writers wait for each other.
            let other = || self.table.try_lock_stripe(self.participant, index);
            let is_over = match index == self.index {
                true => evict(self),
                false => other().is_some_and(|mut other| evict(&mut other)),
            };
            if is_over {
                break;
            }
        }
        fits(self.table)
    }

    /// Evicts one record of this stripe. It examines a bounded number of entries; those of the second half have no
    /// second chance.
    pub(super) fn evict_one(&mut self, spared: u64) -> bool {
        if self.is_pinned {
            return false;
        }
        for visit in 0..EVICTION_VISITS {
            let Some((hash, queue)) = self.state.queues.pop() else { return false };
            if hash == spared {
                self.state.queues.push(queue, hash);
                continue;
            }
            let in_main = queue == EvictionQueue::Main;
            let is_queued = |record: RecordRef<'_>| record.in_main_queue() == in_main && !record.is_cold();
            let Some(found) = self.find_where(hash, is_queued) else { continue };
            if self.table.keeps(hash, found.record.key()) {
                self.state.queues.push(queue, hash);
                continue;
            }
            if found.record.take_touched() && visit < EVICTION_VISITS / 2 {
                found.record.set_in_main_queue();
                self.state.queues.push(EvictionQueue::Main, hash);
                continue;
            }
            if self.table.is_larger_than_memory() {
                if self.make_cold(hash, found) {
                    if !in_main {
                        self.state.queues.remember(hash);
                    }
                    return true;
                }
                // Another one may need no write.
                self.state.queues.push(queue, hash);
                continue;
            }
            // Without room in the log the record would come back after a restart.
            let Ok(permit) = self.admit_change(found.record.key().len(), 0) else {
                self.state.queues.push(queue, hash);
                return false;
            };
            if !in_main {
                self.state.queues.remember(hash);
            }
            self.log_eviction(hash, found.record);
            self.end_change(permit);
            self.remove(hash, found);
            self.stripe.evictions.add(1);
            return true;
        }
        false
    }

    pub(super) fn delete(
        &mut self,
        hash: u64,
        key: &[u8],
        condition: StoreCondition,
        now_ms: u64,
    ) -> Result<bool, StoreError> {
        let found = self.find(hash, key);
        let live = found.filter(|found| !found.record.is_expired(now_ms));
        self.check_loaded(hash, key, live.map(|found| found.record), now_ms)?;
        if !condition.is_met(live.map(|found| found.record.version())) {
            return Err(StoreError::Conflict);
        }
        match (live, found) {
            (Some(live), _) => self.delete_found(hash, key, live)?,
            (None, Some(expired)) => self.expire(hash, key, expired)?,
            (None, None) => {}
        }
        Ok(live.is_some())
    }

    pub(super) fn increment(
        &mut self,
        hash: u64,
        key: &[u8],
        delta: i64,
        now_ms: u64,
    ) -> Result<(i64, u64), StoreError> {
        let live = self.find(hash, key).map(|found| found.record).filter(|record| !record.is_expired(now_ms));
        self.check_in_memory(hash, live)?;
        self.check_loaded(hash, key, live, now_ms)?;
        let old = match live {
            None => 0,
            Some(record) => decimal(record.value()).ok_or(StoreError::NotANumber)?,
        };
        let sum = old.checked_add(delta).ok_or(StoreError::NotANumber)?;
        let write = WriteOptions {
            condition: StoreCondition::Always,
            flags: live.map_or(0, |record| record.flags()),
            expires_at_ms: live.map_or(0, |record| record.expires_at_ms()),
        };
        let mut digits = [0; 20];
        let version = self.put(hash, key, format_decimal(sum, &mut digits).into(), &write, now_ms)?;
        Ok((sum, version))
    }

    /// Moves up to `buckets` buckets of this stripe from the previous array; `false` when nothing is left to move here.
    pub(super) fn rehash_some(&mut self, buckets: usize) -> bool {
        if !self.buckets.is_growing() {
            return false;
        }
        let generation = self.buckets.generation;
        if self.state.generation != generation {
            (self.state.generation, self.state.moved, self.state.all_moved) = (generation, 0, false);
        }
        for _ in 0..buckets {
            if self.state.all_moved {
                return false;
            }
            let (mut moved, mut unlinked) = (RehashStats::default(), 0);
            let retire = |bucket| {
                self.participant.retire(Garbage::Incremental(Box::new(bucket)), GarbageCharge::NONE);
                unlinked += 1;
            };
            // SAFETY: the lock of the stripe is held: see `LockedStripe`.
            let done = unsafe { self.buckets.rehash_bucket(self.index, self.state.moved, &mut moved, retire) };
            // In both cases the moved records lie there.
            self.state.long_chains |= moved.longest > MAX_CHAIN_BUCKETS;
            self.table.account_buckets(moved.added, unlinked);
            // Memory is out: the rest of the bucket stays where it is, and is found there as well.
            let Ok(was_last) = done else { return false };
            self.state.moved += usize::from(!was_last);
            self.state.all_moved = was_last;
            if self.state.all_moved {
                // SAFETY: as above.
                let emptied = unsafe { self.buckets.finish_stripe(self.index) };
                let retire = |emptied| self.participant.retire(Garbage::Incremental(emptied), GarbageCharge::NONE);
                emptied.into_iter().for_each(retire);
            }
        }
        true
    }
}

/// A decimal number in ASCII, as `increment` reads it: an optional minus and digits, nothing else.
fn decimal(text: &[u8]) -> Option<i64> {
    if text.first() == Some(&b'+') {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Writes a number in decimal, without an allocation.
fn format_decimal(number: i64, digits: &mut [u8; 20]) -> &[u8] {
    use std::io::Write as _;
    let mut rest = &mut digits[..];
    // The longest, i64::MIN, has 20 characters: the write always fits.
    let fits = write!(rest, "{number}").is_ok();
    let left = rest.len();
    debug_assert!(fits);
    &digits[..20 - left]
}

//! The table: one tenant's named map from keys to records.
//!
//! Reads take no lock and write nothing (but, in a cache, one bit of a record, when it is not set yet). Writes take the
//! lock of one of 64 stripes. The bucket array grows without a stall: a larger one is put in place, and every write
//! moves a few buckets; meanwhile reads look in both. `buckets` says why that is right; `locked_stripe` writes.
//!
//! What this module guarantees: its safe functions are sound for every caller. A [`EpochGuard`] or a borrowed
//! [`Participant`] of the table's own epochs (checked) is what *protected* means in `buckets`. No quiescent point
//! happens while it is borrowed, so the arrays and records that are reached stay. Everything that leaves the table is
//! retired, never freed at once.
#![allow(unsafe_code)]

mod access_sample;
mod access_watch;
mod array_regions;
mod arrivals;
mod bucket_records;
mod buckets;
mod by_head;
mod cold_copies;
mod cold_records;
mod commit;
mod eviction;
mod expiry;
mod heat;
mod index;
mod key_range;
mod key_tree;
mod key_watch;
mod locked_stripe;
mod logged_changes;
mod owned_keys;
mod prefetch;
mod range;
mod record_head;
mod rehash;
mod restore;
mod room;
mod slot_walk;
mod stripe;
mod table_log;
mod table_stats;
mod unique_version;
mod update;
mod zeroed_pages;

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use self::access_watch::AccessWatch;
pub use self::access_watch::{AccessReport, AccessedKey, HotKey, SampledAccess};
use self::bucket_records::BucketRecords;
use self::buckets::{BucketArray, DiscardedArray, RetiredArray, stripe_of};
pub use self::by_head::NewValue;
pub use self::cold_copies::{ColdRecord, ScannedRecord};
pub use self::cold_records::SpilledTable;
pub(crate) use self::commit::{CommitAnnouncement, PreparedWrites};
use self::expiry::ColdExpiries;
pub use self::heat::{HeatRange, HeatReport};
use self::index::KeyIndex;
pub use self::key_range::KeyRange;
pub use self::key_watch::WatchedState;
pub(crate) use self::locked_stripe::LockedStripe;
use self::prefetch::INITIAL_RECORD_LINES;
pub use self::prefetch::PREFETCH_BATCH;
pub(crate) use self::range::ExpiryBudget;
pub use self::range::{NotOrdered, RangeProgress, ScanBudget};
pub use self::record_head::RecordHead;
pub use self::restore::RestoredRecord;
use self::room::TableRoom;
pub use self::slot_walk::{SlotWalk, SlotWalkError, WalkBudget};
use self::stripe::{StripeState, TableStripe};
use self::table_log::TableLog;
pub use self::table_log::TableLogging;
pub use self::update::{ExclusiveStripes, RecordUpdate, StripeSet, UpdateValue};
pub use self::zeroed_pages::bucket_array_bytes;
use super::backed::TableBackend;
use super::epochs::{Garbage, GarbageAccount, GarbageCharge, IncrementalDrop};
use super::noted_locks::lock_noted;
use super::record::RecordRef;
use super::slots::SlotOwnership;
use super::spill::TableSpill;
use super::transactions::protocol::CommitMask;
use super::{EpochGuard, Epochs, Participant, RecordMarks, ShownPosition, StoreError, TableConfig};
use crate::broken_rules::{LogRule, is_broken};
use crate::limits::{
    BUCKETS_MOVED_PER_WRITE, BUCKETS_MOVED_WHEN_FULL, DOUBLING_BUCKETS, SCAN_BUCKETS_PER_CALL, STRIPES,
};

/// One tenant's named map from keys to records.
///
/// Calls take the key's hash, [`RecordTable::hash`], which callers compute once. A wrong one finds nothing and harms no
/// other key.
pub struct RecordTable {
    config: TableConfig,
    /// The mode and the quota, which may change while the table is used.
    room: TableRoom,
    secrets: RapidSecrets,
    epochs: Arc<Epochs>,
    /// What this server owns of the keys, in a cluster.
    slots: OnceLock<Arc<SlotOwnership>>,
    current: AtomicPtr<BucketArray>,
    /// Stripes that a transaction is writing to: a set as in [`StripeSet`]. Readers of their keys wait, so that they
    /// see all of the transaction's writes or none. Beside `current`, so that reading it costs no cache line.
    commit_mask: CommitMask,
    watch: AccessWatch,
    /// The log of its changes, if they are logged.
    log: OnceLock<TableLog>,
    /// Whether it is told of records whose time is over.
    logs_expiry: AtomicBool,
    /// Address and size of the current array, for `prefetch_bucket`: read without protection, never followed.
    base: AtomicPtr<u8>,
    count: AtomicUsize,
    /// Lines of a record to prefetch ahead of a read; see `prefetch`.
    record_lines: AtomicUsize,
    stripes: Box<[TableStripe]>,
    growth: Mutex<()>,
    growths: AtomicU64,
    /// The hash at which the next sweep continues.
    sweep_cursor: AtomicU64,
    /// The hash from which on the next sweep reads expired records from the disk.
    cold_sweep_cursor: AtomicU64,
    /// The stripe whose buckets writers move while the table grows.
    rehash_stripe: AtomicUsize,
    bytes: CachePadded<AtomicU64>,
    /// The keys in order, of an ordered table.
    index: Option<KeyIndex>,
    /// Bytes of garbage that left the table and is not freed yet.
    garbage: GarbageAccount,
    /// Absent keys that are watched; made by the first watch.
    absences: OnceLock<Arc<key_watch::KeyWatches>>,
    /// The file of cold records, of a table of mode `spill`.
    spill: OnceLock<Arc<TableSpill>>,
    /// What the table is a cache of, if it is one.
    pub(crate) backing: OnceLock<Arc<dyn TableBackend>>,
}

impl std::fmt::Debug for RecordTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("config", &self.config).finish_non_exhaustive()
    }
}

impl RecordTable {
    /// Makes an empty table with a random hash seed. Takes 12 KiB.
    pub fn new(config: TableConfig, epochs: Arc<Epochs>) -> RecordTable {
        RecordTable::with_seed(config, epochs, rand::random())
    }

    /// Makes an empty table with a given hash seed, for tests and figures that must repeat.
    pub fn with_seed(config: TableConfig, epochs: Arc<Epochs>, seed: u64) -> RecordTable {
        let buckets = RecordTable::initial_buckets(1);
        RecordTable {
            config,
            room: TableRoom::new(&config),
            secrets: RapidSecrets::seed(seed),
            epochs,
            slots: OnceLock::new(),
            base: AtomicPtr::new(buckets.base()),
            count: AtomicUsize::new(buckets.count()),
            record_lines: AtomicUsize::new(INITIAL_RECORD_LINES),
            current: AtomicPtr::new(Box::into_raw(buckets)),
            commit_mask: CommitMask::new(),
            watch: AccessWatch::default(),
            log: OnceLock::new(),
            logs_expiry: AtomicBool::new(false),
            stripes: (0..STRIPES).map(|_| TableStripe::default()).collect(),
            growth: Mutex::new(()),
            growths: AtomicU64::new(0),
            sweep_cursor: AtomicU64::new(0),
            cold_sweep_cursor: AtomicU64::new(0),
            rehash_stripe: AtomicUsize::new(0),
            bytes: CachePadded::new(AtomicU64::new(0)),
            index: config.ordered.then(KeyIndex::new),
            garbage: GarbageAccount::new(),
            absences: OnceLock::new(),
            spill: OnceLock::new(),
            backing: OnceLock::new(),
        }
    }

    fn initial_buckets(generation: u64) -> Box<BucketArray> {
        match BucketArray::new(STRIPES, generation, ptr::null_mut()) {
            Some(buckets) => buckets,
            // Fails like any other small allocation.
            None => std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u8; 64 * STRIPES]>()),
        }
    }

    /// Returns the table's keyed hash of a key; never 0.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        rapidhash_v3_seeded(key, &self.secrets).max(1)
    }

    /// Returns the live record of `key`. `hash` is [`RecordTable::hash`] of the key. `None` also for a cold record,
    /// which is noted for [`ShownPosition::take_cold`].
    #[inline]
    pub fn get<'g>(&'g self, guard: &'g EpochGuard<'_>, hash: u64, key: &[u8], now_ms: u64) -> Option<RecordRef<'g>> {
        self.check(guard.epochs());
        // SAFETY: protected by the guard, which is borrowed during 'g.
        unsafe { self.get_pinned(hash, key, now_ms, guard.shown()) }
    }

    /// As above for an invocation, without a guard: `shown` is its own.
    ///
    /// # Safety
    /// The caller holds a [`super::EpochPin`] of the table's epochs, and keeps it during 'a.
    pub unsafe fn get_pinned<'a>(
        &self,
        hash: u64,
        key: &[u8],
        now_ms: u64,
        shown: &ShownPosition,
    ) -> Option<RecordRef<'a>> {
        if self.commit_mask.any() {
            self.wait_for_commit(hash, shown);
        }
        // SAFETY: the caller's promise.
        let record: Option<RecordRef<'a>> = unsafe { self.find_live(hash, key, now_ms) };
        if self.watch.is_on() {
            self.watch.note((hash, key), record.as_ref().map_or(0, |record| record.value().len()), false);
        }
        self.note_read(hash, shown);
        let version = record.as_ref().map(|record| record.version());
        if (version.is_none() || self.makes_room()) && !self.shows((hash, key), version, now_ms, shown) {
            return None;
        }
        let record = record?;
        if self.makes_room() {
            if record.is_cold() {
                self.note_cold(hash, record, shown);
                return None;
            }
            record.touch();
        }
        Some(record)
    }

    /// Returns the live record of `key` as it is at this moment, also in the middle of a commit.
    ///
    /// # Safety
    /// As for [`RecordTable::get_pinned`].
    #[inline(always)]
    unsafe fn find_live<'a>(&self, hash: u64, key: &[u8], now_ms: u64) -> Option<RecordRef<'a>> {
        // SAFETY: the caller's promise.
        unsafe { self.find_any(hash, key) }.filter(|record| !record.is_expired(now_ms))
    }

    /// As above, expired or not.
    ///
    /// # Safety
    /// As for [`RecordTable::get_pinned`].
    #[inline(always)]
    unsafe fn find_any<'a>(&self, hash: u64, key: &[u8]) -> Option<RecordRef<'a>> {
        loop {
            // SAFETY: protected by the pin (caller), and the table lives during the call.
            let (found, buckets) = unsafe {
                let buckets = self.current();
                let is_wanted = |record: RecordRef<'_>| record.key() == key || record.is_cold_of(key);
                (buckets.find(hash, is_wanted), ptr::from_ref(buckets))
            };
            if let Some((_, record)) = found {
                // SAFETY: a record that was found stays while the pin is held, which is during 'a (caller).
                return Some(unsafe { record.as_ref() });
            }
            // Had the record been moved to another array while we looked, then `current` would have changed before it.
            if ptr::eq(self.current.load(Ordering::Acquire), buckets) {
                return None;
            }
        }
    }

    /// The common part of all writes: checks, the stripe's lock, and the growth of the table.
    pub(crate) fn write<'t, T>(
        &'t self,
        participant: &'t Participant,
        hash: u64,
        key: &[u8],
        f: impl FnOnce(&mut LockedStripe<'t>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // Under the lock: a server that gives the key's slot away waits for it.
        let own = |locked: &mut LockedStripe<'t>| if self.owns(key) { f(locked) } else { Err(StoreError::WrongServer) };
        self.write_any(participant, hash, key, own)
    }

    /// As above for a key of any slot.
    fn write_any<'t, T>(
        &'t self,
        participant: &'t Participant,
        hash: u64,
        key: &[u8],
        f: impl FnOnce(&mut LockedStripe<'t>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.check_key(key)?;
        let mut locked = self.lock_stripe(participant, stripe_of(hash));
        let result = f(&mut locked);
        if result.is_ok() || !is_broken(LogRule::RefusalsAreNoted) {
            locked.note_seen(hash);
        }
        let is_full = locked.is_full();
        if locked.buckets.is_growing() {
            let buckets = if is_full { BUCKETS_MOVED_WHEN_FULL } else { BUCKETS_MOVED_PER_WRITE };
            let own = locked.index;
            if !self.help(participant, buckets, |stripe| stripe == own) && !locked.rehash_some(buckets) {
                self.pass_on(own);
            }
        } else if is_full {
            drop(locked);
            self.grow(participant);
        }
        result
    }

    fn check_key(&self, key: &[u8]) -> Result<(), StoreError> {
        if key.len() > self.config.max_key_len {
            return Err(StoreError::KeyTooLarge);
        }
        Ok(())
    }

    /// Puts a larger array in place if the table is three quarters full, and not growing already.
    fn grow(&self, participant: &Participant) {
        if let Some(_growth) = self.growth.try_lock() {
            self.grow_locked(participant);
        }
    }

    /// As above for a caller that holds the lock of growth.
    fn grow_locked(&self, participant: &Participant) {
        self.grow_to(participant, 0);
    }

    /// As above, for so many records at least.
    fn grow_to(&self, participant: &Participant, expected: u64) {
        let guard = participant.guard();
        // SAFETY: protected by the guard.
        let buckets = unsafe { self.current() };
        let records: u64 = self.stripes.iter().map(|stripe| stripe.records.get()).sum();
        let records = records.max(expected);
        if buckets.is_growing() || records * 4 <= buckets.slots() as u64 * 3 {
            return;
        }
        self.note_record_lines(records);
        let count = buckets.count();
        let larger = if count < DOUBLING_BUCKETS { count * 2 } else { count + count / 2 };
        // At most three quarters full, as otherwise.
        let needed = usize::try_from(expected).unwrap_or(0) / 3 * 4 * count / buckets.slots().max(1) + 1;
        let larger = larger.max(needed);
        let previous = self.current.load(Ordering::Relaxed);
        // Without memory for a larger array, chains grow instead, up to their bound.
        let Some(larger) = BucketArray::new(larger, buckets.generation + 1, previous) else { return };
        self.rehash_stripe.store(0, Ordering::Relaxed);
        self.install(larger);
        self.growths.fetch_add(1, Ordering::Relaxed);
        let _ = guard;
    }

    fn install(&self, buckets: Box<BucketArray>) {
        self.count.store(buckets.count(), Ordering::Relaxed);
        self.base.store(buckets.base(), Ordering::Relaxed);
        self.current.store(Box::into_raw(buckets), Ordering::Release);
    }

    /// As [`RecordTable::scan`]. `cold` is shown each cold record with its hash, and returns whether it counts.
    fn scan_with<'g>(
        &'g self,
        guard: &'g EpochGuard<'_>,
        cursor: u64,
        limit: usize,
        now_ms: u64,
        f: &mut dyn FnMut(RecordRef<'g>),
        cold: &mut dyn FnMut(u64, RecordRef<'g>) -> bool,
    ) -> Option<u64> {
        self.check(guard.epochs());
        let (mut at, mut shown) = (cursor, 0);
        let mut page = BucketRecords::default();
        for _ in 0..SCAN_BUCKETS_PER_CALL {
            let end = self.fill_page(guard, at, &mut page);
            for (hash, record) in page.in_order() {
                // SAFETY: a record of the table stays while the guard is borrowed, which is during 'g.
                let record: RecordRef<'g> = unsafe { record.as_ref() };
                if record.is_expired(now_ms) {
                    continue;
                }
                if shown >= limit.max(1) {
                    // A cursor that stood still would never end: more than `limit` equal hashes do not occur.
                    return Some(if hash == cursor { hash.saturating_add(1) } else { hash });
                }
                if record.is_cold() {
                    shown += usize::from(cold(hash, record));
                    continue;
                }
                shown += 1;
                f(record);
            }
            at = u64::try_from(end).ok()?;
            if shown >= limit.max(1) {
                break;
            }
        }
        Some(at)
    }

    /// Collects the records from `first` to the end of its bucket; returns the end.
    fn fill_page(&self, _guard: &EpochGuard<'_>, first: u64, page: &mut BucketRecords) -> u128 {
        loop {
            // SAFETY: protected by the guard.
            let buckets = unsafe { self.current() };
            let end = buckets.first_hash(buckets.index_of(first) + 1);
            page.clear();
            // SAFETY: as above.
            unsafe { buckets.collect(first, end, &mut |hash, record| page.push(hash, record)) };
            if ptr::eq(self.current.load(Ordering::Acquire), buckets) {
                return end;
            }
        }
    }

    fn sweep_bucket(
        &self,
        participant: &Participant,
        at: u64,
        now_ms: u64,
        (removed, cold): (&mut usize, &mut ColdExpiries),
    ) -> u128 {
        let mut locked = self.lock_stripe(participant, stripe_of(at));
        let mut page = BucketRecords::default();
        let end = locked.buckets.first_hash(locked.buckets.index_of(at) + 1);
        // SAFETY: protected, as all of `LockedStripe` is.
        unsafe { locked.buckets.collect(at, end, &mut |hash, record| page.push(hash, record)) };
        for (hash, record) in page.in_order() {
            // SAFETY: no other thread removes records while the stripe is locked.
            let record: RecordRef<'_> = unsafe { record.as_ref() };
            if record.is_expired(now_ms)
                && let Some(found) = locked.find_same(hash, record)
            {
                *removed += usize::from(locked.expire_swept(hash, found, cold));
            }
        }
        end
    }

    /// Returns whether records are being moved to a larger bucket array.
    pub fn is_growing(&self, guard: &EpochGuard<'_>) -> bool {
        self.check(guard.epochs());
        // SAFETY: protected by the guard.
        unsafe { self.current() }.is_growing()
    }

    /// Returns the bytes of the previous array that went back, or wait to, before the rest of it.
    #[cfg(test)]
    pub(super) fn released_bytes(&self, _guard: &EpochGuard<'_>) -> usize {
        // SAFETY: protected by the guard.
        unsafe { self.current().released_bytes() }
    }

    /// Returns the buckets of the longest chain.
    #[cfg(test)]
    pub(super) fn longest_chain(&self, _guard: &EpochGuard<'_>) -> usize {
        // SAFETY: protected by the guard.
        unsafe { self.current().longest_chain() }
    }

    /// Returns the number of overflow buckets.
    #[cfg(test)]
    pub(super) fn overflow_buckets(&self, _guard: &EpochGuard<'_>) -> usize {
        // SAFETY: protected by the guard.
        unsafe { self.current().overflow_buckets() }
    }

    /// Removes every record, at once for every reader; the memory is given back piece by piece.
    ///
    /// # Errors
    /// `NotLogged`; nothing has changed then.
    pub fn clear(&self, participant: &Participant) -> Result<(), StoreError> {
        self.exclusive(participant, StripeSet::ALL).clear().map(drop)
    }

    /// As above for a caller that holds the locks of growth and of all stripes.
    fn clear_locked<'s>(&self, participant: &Participant, states: impl Iterator<Item = &'s mut StripeState>) {
        let guard = participant.guard();
        self.check(guard.epochs());
        let old = self.current.load(Ordering::Relaxed);
        // SAFETY: protected by the guard.
        let now = unsafe { &*old };
        // All stripes are locked, so no write is between its accounting and its slot.
        if self.bytes.load(Ordering::Relaxed) == 0 && now.count() == STRIPES && !now.is_growing() {
            return;
        }
        let is_copied = self.slots.get().is_some_and(|slots| slots.copied().is_some());
        let generation = now.generation + 1;
        self.install(RecordTable::initial_buckets(generation));
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        for (stripe, state) in self.stripes.iter().zip(states) {
            stripe.records.set(0);
            stripe.expiring.set(0);
            state.queues = Default::default();
            state.clean = Default::default();
            state.long_chains = false;
            state.was_emptied |= is_copied;
        }
        self.clear_spill();
        // First, so that it is freed before the records, with which the charge goes back.
        if let Some(index) = &self.index {
            participant.retire(Garbage::Incremental(index.clear()), GarbageCharge::NONE);
        }
        if let Some(old) = NonNull::new(old) {
            // SAFETY: it came from Box::into_raw (`install`, `with_seed`), and was replaced, under the lock of growth.
            let discarded = DiscardedArray::new(unsafe { RetiredArray::new(old) }, bytes as usize);
            // In part: a client that empties a full table fills it again at once. One that does so over and over is
            // stopped.
            let charge = self.garbage.charge((discarded.bytes() as u64).min(self.garbage_limit() / 4));
            participant.retire(Garbage::Incremental(Box::new(discarded)), charge);
        }
    }

    /// Returns the current array.
    ///
    /// # Safety
    /// The caller's thread is protected (a guard or a pin of the table's epochs) during 'a.
    #[inline(always)]
    unsafe fn current<'a>(&self) -> &'a BucketArray {
        // SAFETY: never null; it is retired after it was replaced.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    fn lock_stripe<'t>(&'t self, participant: &'t Participant, index: usize) -> LockedStripe<'t> {
        let stripe = &self.stripes[index % STRIPES];
        self.locked(participant, index % STRIPES, lock_noted(&stripe.state, participant.shown()))
    }

    fn try_lock_stripe<'t>(&'t self, participant: &'t Participant, index: usize) -> Option<LockedStripe<'t>> {
        let stripe = &self.stripes[index % STRIPES];
        Some(self.locked(participant, index % STRIPES, stripe.state.try_lock()?))
    }

    fn locked<'t>(
        &'t self,
        participant: &'t Participant,
        index: usize,
        state: MutexGuard<'t, StripeState>,
    ) -> LockedStripe<'t> {
        self.check(participant.guard().epochs());
        // SAFETY: the participant came online above and stays so for 't: its quiescent points take `&mut`. Loaded under
        // the lock, so that a write never goes to an array from which this stripe has already been moved.
        let buckets = unsafe { self.current() };
        LockedStripe {
            table: self,
            participant,
            buckets,
            index,
            stripe: &self.stripes[index],
            state,
            marks: RecordMarks::default(),
            is_grouped: false,
            is_pinned: false,
            log: self.active_log(),
            restored_version: None,
            is_arrival: false,
            is_fill: false,
        }
    }

    /// Updates a lock that is held for long to the current array: another thread may have put a larger one in place.
    fn refresh<'t>(&'t self, locked: &mut LockedStripe<'t>) {
        debug_assert!(ptr::eq(self, locked.table));
        // SAFETY: protected by the participant that `locked_stripe` borrows during 't; a lock taken now would see this
        // array, too.
        locked.buckets = unsafe { self.current() };
    }

    /// A guard of other epochs protects nothing here: a mistake in the program, not in its input.
    fn check(&self, epochs: &Arc<Epochs>) {
        assert!(Arc::ptr_eq(epochs, &self.epochs), "the participant belongs to other epochs than the table");
    }
}

impl Drop for RecordTable {
    fn drop(&mut self) {
        // They count for all tables.
        self.forget_copied_keys();
        let buckets = std::mem::replace(self.current.get_mut(), ptr::null_mut());
        let bytes = *self.bytes.get_mut() as usize;
        if let Some(buckets) = NonNull::new(buckets) {
            // SAFETY: it came from Box::into_raw (`install`, `with_seed`); the table is gone, so no new reader can
            // reach it.
            let discarded = DiscardedArray::new(unsafe { RetiredArray::new(buckets) }, bytes);
            self.epochs.retire_unregistered(Garbage::Incremental(Box::new(discarded)));
        }
        if let Some(index) = &self.index {
            self.epochs.retire_unregistered(Garbage::Incremental(index.clear()));
        }
    }
}

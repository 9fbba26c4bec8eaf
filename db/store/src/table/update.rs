//! Read-modify-write: a function sees the record under the lock of its stripe and returns the change. Append, add,
//! expire, compare-and-set and the other single-key operations of caches' protocols use [`RecordTable::update`].
//! Operations on several keys at once use [`RecordTable::exclusive`].
//!
//! Locks are taken in one order: growth, then stripes by number; callers order the tables (the redis half: by address).
//! A write that makes room in a cache only tries further locks, so it never waits for one that it would deadlock with.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use parking_lot::MutexGuard;
use sandstorm_net::shared_bytes::SharedBytes;

use super::RecordTable;
use super::buckets::{BUCKET_BYTES, stripe_of};
use super::locked_stripe::{FoundRecord, LockedStripe, record_charge};
use super::record_head::{RecordHead, live_record};
use crate::limits::{
    BUCKETS_MOVED_PER_WRITE, BUCKETS_MOVED_WHEN_FULL, RETAINED_VALUE_BYTES, RETAINED_VALUE_PER_KEY, STRIPES,
};
use crate::noted_locks::lock_noted;
use crate::record::{VALUE_PARTS, ValueSource, parts_len};
use crate::{Participant, RecordMarks, RecordRef, StoreCondition, StoreError, WriteOptions};

const _: () = assert!(STRIPES == u64::BITS as usize, "a set of stripes is one word");

/// The change to a record, and the result for the caller.
#[derive(Clone, Debug)]
pub enum RecordUpdate<'a, R> {
    /// The record stays as it is.
    Keep(R),
    /// The record is replaced, or made.
    Put {
        /// The new value.
        value: UpdateValue<'a>,
        /// The new flags.
        flags: u32,
        /// Milliseconds since the Unix epoch from which on the record counts as absent; 0: never.
        expires_at_ms: u64,
        /// The result for the caller if there was room.
        answer: R,
    },
    /// The record is removed, if it is there.
    Delete(R),
}

/// A value to be written.
#[derive(Clone, Debug)]
pub enum UpdateValue<'a> {
    /// These bytes, one part after the other: parts of the old value and new ones need no buffer.
    Parts([&'a [u8]; VALUE_PARTS]),
    /// A number's digits.
    Short(ArrayVec<u8, 32>),
    /// A buffer.
    Owned(Vec<u8>),
    /// A value that stays where it lies.
    InPlace(SharedBytes),
}

impl<'a> From<&'a [u8]> for UpdateValue<'a> {
    fn from(value: &'a [u8]) -> Self {
        UpdateValue::Parts([value, b"", b""])
    }
}

impl<'a> UpdateValue<'a> {
    /// Returns the record's present value, for a new record that differs in something else. A large value is not
    /// copied: the new record holds the old one's memory, and is charged as much.
    #[inline]
    pub fn unchanged(record: &RecordRef<'a>) -> UpdateValue<'a> {
        let value = record.value();
        // The old record's memory beside its value is kept, too, and is not charged: so it must be little.
        let is_worth_it =
            value.len() >= RETAINED_VALUE_BYTES.max(record.key().len().saturating_mul(RETAINED_VALUE_PER_KEY));
        let shared = if is_worth_it { record.share() } else { None };
        shared.map_or_else(|| value.into(), UpdateValue::InPlace)
    }
}

impl UpdateValue<'_> {
    /// Returns the bytes that are copied when the value is written.
    #[inline]
    pub fn copied_bytes(&self) -> usize {
        match self {
            UpdateValue::InPlace(_) => 0,
            UpdateValue::Parts(_) | UpdateValue::Short(_) | UpdateValue::Owned(_) => parts_len(self.parts()),
        }
    }

    pub(super) fn source(&self) -> ValueSource<'_> {
        match self {
            UpdateValue::InPlace(shared) => ValueSource::External(shared),
            UpdateValue::Parts(_) | UpdateValue::Short(_) | UpdateValue::Owned(_) => ValueSource::Parts(self.parts()),
        }
    }

    /// Returns the value's bytes, in parts.
    #[inline]
    pub fn parts(&self) -> [&[u8]; VALUE_PARTS] {
        match self {
            UpdateValue::Parts(parts) => *parts,
            UpdateValue::Short(bytes) => [bytes, b"", b""],
            UpdateValue::Owned(bytes) => [bytes, b"", b""],
            UpdateValue::InPlace(shared) => [shared, b"", b""],
        }
    }
}

/// The stripes whose writers are to be locked out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StripeSet(pub(crate) u64);

impl StripeSet {
    /// Returns all stripes of a table.
    pub const ALL: StripeSet = StripeSet(u64::MAX);

    /// Adds the stripe of a key's hash.
    #[inline]
    pub fn add(&mut self, hash: u64) {
        self.0 |= 1 << stripe_of(hash);
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn contains(self, stripe: usize) -> bool {
        self.0 >> stripe & 1 == 1
    }

    /// Returns whether the stripe of a key's hash is among them.
    pub(crate) fn has(self, hash: u64) -> bool {
        self.contains(stripe_of(hash))
    }
}

impl RecordTable {
    /// Writes a record; returns its version.
    ///
    /// # Errors
    /// `KeyTooLarge`, `ValueTooLarge`, `WrongServer`; `Conflict` if the condition does not hold; `OutOfMemory` at the
    /// quota of a store, or when a cache cannot make room within its bound of work; `StillRead`.
    pub fn put(
        &self,
        participant: &Participant,
        hash: u64,
        key: &[u8],
        value: &[u8],
        write: &WriteOptions,
        now_ms: u64,
    ) -> Result<u64, StoreError> {
        if value.len() > self.config.max_value_len {
            return Err(StoreError::ValueTooLarge);
        }
        self.note_value(hash, key, value.len());
        self.write(participant, hash, key, |locked| locked.put(hash, key, value.into(), write, now_ms))
    }

    /// Deletes the record of `key`; returns whether there was a live one.
    ///
    /// # Errors
    /// `Conflict` if the condition does not hold (`Always` holds without a record, too); `WrongServer`.
    pub fn delete(
        &self,
        participant: &Participant,
        hash: u64,
        key: &[u8],
        condition: StoreCondition,
        now_ms: u64,
    ) -> Result<bool, StoreError> {
        self.note_value(hash, key, 0);
        self.write(participant, hash, key, |locked| locked.delete(hash, key, condition, now_ms))
    }

    /// As [`RecordTable::put`] for a value that stays at its address, which the record holds as long as it exists. It
    /// is charged as if it were copied.
    ///
    /// # Errors
    /// As [`RecordTable::put`].
    #[inline]
    pub fn put_shared(
        &self,
        participant: &Participant,
        hash: u64,
        key: &[u8],
        value: &SharedBytes,
        write: &WriteOptions,
        now_ms: u64,
    ) -> Result<u64, StoreError> {
        if value.len() > self.config.max_value_len {
            return Err(StoreError::ValueTooLarge);
        }
        self.note_value(hash, key, value.len());
        self.write(participant, hash, key, |locked| locked.put(hash, key, ValueSource::External(value), write, now_ms))
    }

    /// Adds to a decimal ASCII value (absent: 0), which keeps its flags and expiry; returns the sum and the new
    /// version.
    ///
    /// # Errors
    /// `NotANumber` if the value is none or the sum does not fit; otherwise as [`RecordTable::put`].
    pub fn increment(
        &self,
        participant: &Participant,
        hash: u64,
        key: &[u8],
        delta: i64,
        now_ms: u64,
    ) -> Result<(i64, u64), StoreError> {
        self.note_value(hash, key, 0);
        self.write(participant, hash, key, |locked| locked.increment(hash, key, delta, now_ms))
    }

    /// Shows `f` the live record of `key`, under the lock of its stripe, and makes the change that it returns. Returns
    /// the result, and the version of the record that is there now (0: none). `f` must not call this table's writing
    /// functions.
    ///
    /// # Errors
    /// `KeyTooLarge`, `ValueTooLarge`, `WrongServer`, `OutOfMemory`, `StillRead`; nothing has changed then.
    #[inline]
    pub fn update<'a, R>(
        &'a self,
        participant: &'a Participant,
        hash: u64,
        key: &[u8],
        now_ms: u64,
        f: impl FnOnce(Option<RecordRef<'a>>) -> RecordUpdate<'a, R>,
    ) -> Result<(R, u64), StoreError> {
        self.update_marked(participant, hash, key, now_ms, |found| (f(found), RecordMarks::default()))
    }

    /// As above for a write with marks. `f` may also change those of the record that it is shown, and keep it.
    ///
    /// # Errors
    /// As [`RecordTable::update`].
    #[inline]
    pub fn update_marked<'a, R>(
        &'a self,
        participant: &'a Participant,
        hash: u64,
        key: &[u8],
        now_ms: u64,
        f: impl FnOnce(Option<RecordRef<'a>>) -> (RecordUpdate<'a, R>, RecordMarks),
    ) -> Result<(R, u64), StoreError> {
        self.write(participant, hash, key, |locked| {
            let found = locked.find(hash, key);
            locked.check_in_memory(hash, live_record(found, now_ms))?;
            locked.check_loaded(hash, key, live_record(found, now_ms), now_ms)?;
            let (change, marks) = f(live_record(found, now_ms));
            self.note_value(hash, key, change.written_bytes());
            locked.marks = marks;
            locked.change(found, hash, key, now_ms, &change).map(|version| (change.answer(), version))
        })
    }

    /// As [`RecordTable::update`] for a change that depends neither on the old value nor on its flags: a cold record is
    /// replaced or deleted without being read.
    ///
    /// # Errors
    /// As [`RecordTable::update`], but for `Cold`.
    #[inline]
    pub fn update_by_head<'a, R>(
        &'a self,
        participant: &'a Participant,
        hash: u64,
        key: &[u8],
        now_ms: u64,
        f: impl FnOnce(Option<RecordHead>) -> RecordUpdate<'a, R>,
    ) -> Result<(R, u64), StoreError> {
        self.write(participant, hash, key, |locked| {
            let found = locked.find(hash, key);
            locked.check_loaded(hash, key, live_record(found, now_ms), now_ms)?;
            let change = f(RecordHead::of_live(found, now_ms));
            self.note_value(hash, key, change.written_bytes());
            locked.marks = RecordMarks::default();
            locked.change(found, hash, key, now_ms, &change).map(|version| (change.answer(), version))
        })
    }

    /// Locks out all writers of some stripes while the returned value lives. Readers go on, and see each change when it
    /// is made. A caller that locks several tables locks them in one order everywhere, and waits for nothing else
    /// meanwhile.
    #[must_use = "writers are held off only as long as this lives"]
    #[inline]
    pub fn exclusive<'t>(&'t self, participant: &'t Participant, stripes: StripeSet) -> ExclusiveStripes<'t> {
        let growth = (stripes == StripeSet::ALL).then(|| lock_noted(&self.growth, participant.shown()));
        let chosen = (0..STRIPES).filter(|stripe| stripes.contains(*stripe));
        participant.shown().begin_holding();
        let grouped = |stripe| LockedStripe { is_grouped: true, ..self.lock_stripe(participant, stripe) };
        let locked = chosen.map(grouped).collect();
        ExclusiveStripes { table: self, participant, stripes, locked, growth }
    }
}

impl<R> RecordUpdate<'_, R> {
    /// Bytes of the value that it writes.
    fn written_bytes(&self) -> usize {
        match self {
            RecordUpdate::Put { value, .. } => parts_len(value.parts()),
            RecordUpdate::Keep(_) | RecordUpdate::Delete(_) => 0,
        }
    }

    fn answer(self) -> R {
        match self {
            RecordUpdate::Keep(answer) | RecordUpdate::Delete(answer) | RecordUpdate::Put { answer, .. } => answer,
        }
    }
}

impl<'t> LockedStripe<'t> {
    /// Makes a change to the record that was found under this lock; returns the version that is there then.
    fn change<R>(
        &mut self,
        found: Option<FoundRecord<'t>>,
        hash: u64,
        key: &[u8],
        now_ms: u64,
        change: &RecordUpdate<'_, R>,
    ) -> Result<u64, StoreError> {
        match change {
            RecordUpdate::Keep(_) => Ok(live_record(found, now_ms).map_or(0, |record| {
                if self.table.makes_room() && !record.is_cold() {
                    record.touch();
                }
                record.version()
            })),
            RecordUpdate::Delete(_) => {
                match found {
                    Some(found) if found.record.is_expired(now_ms) => self.expire(hash, key, found)?,
                    Some(found) => self.delete_found(hash, key, found)?,
                    None => {}
                }
                Ok(0)
            }
            RecordUpdate::Put { value, flags, expires_at_ms, .. } => {
                if parts_len(value.parts()) > self.table.config.max_value_len {
                    return Err(StoreError::ValueTooLarge);
                }
                self.replace_found(found, hash, key, value.source(), (*flags, *expires_at_ms), now_ms)
            }
        }
    }
}

/// The right to change the records of some stripes while no other thread writes them.
pub struct ExclusiveStripes<'t> {
    pub(super) table: &'t RecordTable,
    pub(super) participant: &'t Participant,
    pub(super) stripes: StripeSet,
    /// The locked stripes of `stripes`, by number.
    pub(super) locked: Vec<LockedStripe<'t>>,
    /// Locked if `stripes` are all.
    growth: Option<MutexGuard<'t, ()>>,
}

impl std::fmt::Debug for ExclusiveStripes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exclusive").field("table", self.table).field("stripes", &self.stripes).finish_non_exhaustive()
    }
}

impl Drop for ExclusiveStripes<'_> {
    /// Logs what was changed under these and the thread's other locks, before any of them is released.
    fn drop(&mut self) {
        self.append_unit();
    }
}

impl<'t> ExclusiveStripes<'t> {
    /// Returns the table.
    #[inline]
    pub fn table(&self) -> &'t RecordTable {
        self.table
    }

    /// Returns whose changes these are.
    pub(crate) fn participant(&self) -> &'t Participant {
        self.participant
    }

    /// As [`RecordTable::update`], for a key of the locked stripes.
    ///
    /// # Errors
    /// As [`RecordTable::update`]; `Conflict` for a key of another stripe, which is a mistake in the program.
    pub fn update<'a, R>(
        &mut self,
        hash: u64,
        key: &[u8],
        now_ms: u64,
        f: impl FnOnce(Option<RecordRef<'a>>) -> RecordUpdate<'a, R>,
    ) -> Result<(R, u64), StoreError>
    where
        't: 'a,
    {
        self.decide(
            hash,
            key,
            |locked| {
                let found = locked.find(hash, key);
                locked.check_in_memory(hash, live_record(found, now_ms))?;
                locked.check_loaded(hash, key, live_record(found, now_ms), now_ms)?;
                Ok((found, f(live_record(found, now_ms))))
            },
            now_ms,
        )
    }

    /// As [`RecordTable::update_by_head`], for a key of the locked stripes.
    ///
    /// # Errors
    /// As [`ExclusiveStripes::update`], but for `Cold`.
    pub fn update_by_head<'a, R>(
        &mut self,
        hash: u64,
        key: &[u8],
        now_ms: u64,
        f: impl FnOnce(Option<RecordHead>) -> RecordUpdate<'a, R>,
    ) -> Result<(R, u64), StoreError>
    where
        't: 'a,
    {
        self.decide(
            hash,
            key,
            |locked| {
                let found = locked.find(hash, key);
                locked.check_loaded(hash, key, live_record(found, now_ms), now_ms)?;
                Ok((found, f(RecordHead::of_live(found, now_ms))))
            },
            now_ms,
        )
    }

    /// Keeps the records of the locked stripes in memory while this lives, in a table that does not have all there. The
    /// caller has found out that all which it decides by are there ([`RecordTable::note_if_missing`]).
    pub fn keep_in_memory(&mut self) {
        self.locked.iter_mut().for_each(|locked| locked.is_pinned = true);
    }

    /// Returns the length of the value that a key of the locked stripes has in memory; 0 without one.
    pub fn value_bytes(&self, hash: u64, key: &[u8]) -> usize {
        let found = self.index_of(hash).and_then(|index| self.locked.get(index)?.find(hash, key));
        found.filter(|found| !found.record.is_cold()).map_or(0, |found| found.record.value().len())
    }

    /// Makes the change that a function decides under the lock.
    pub(super) fn decide<'a, R>(
        &mut self,
        hash: u64,
        key: &[u8],
        f: impl FnOnce(&mut LockedStripe<'t>) -> Result<(Option<FoundRecord<'t>>, RecordUpdate<'a, R>), StoreError>,
        now_ms: u64,
    ) -> Result<(R, u64), StoreError> {
        self.table.check_key(key)?;
        let Some(index) = self.index_of(hash) else { return Err(StoreError::Conflict) };
        let locked = &mut self.locked[index];
        self.table.refresh(locked);
        let (found, change) = f(locked)?;
        self.table.note_value(hash, key, change.written_bytes());
        let mut result = locked.change(found, hash, key, now_ms, &change);
        if matches!(result, Err(StoreError::OutOfMemory | StoreError::NotSpilled(_)))
            && self.evict_for(&change, hash, key.len())
        {
            let locked = &mut self.locked[index];
            let found = locked.find(hash, key);
            result = locked.change(found, hash, key, now_ms, &change);
        }
        self.locked[index].note_seen(hash);
        self.grow_after_write(index);
        result.map(|version| (change.answer(), version))
    }

    /// Returns the index in `locked` of a hash's stripe; `None` for one that is not locked, a mistake in the program.
    pub(super) fn index_of(&self, hash: u64) -> Option<usize> {
        let stripe = stripe_of(hash);
        let is_locked = self.stripes.contains(stripe);
        debug_assert!(is_locked, "a key of a stripe that was not asked for");
        let before = self.stripes.0 & ((1 << stripe) - 1);
        let index = before.count_ones() as usize;
        (is_locked && index < self.locked.len()).then_some(index)
    }

    /// Unlocks all stripes but those of `kept`.
    pub(crate) fn keep_only(&mut self, kept: StripeSet) {
        self.stripes.0 &= kept.0;
        self.locked.retain(|locked| kept.contains(locked.index));
        if self.stripes != StripeSet::ALL {
            self.growth = None;
        }
    }

    /// Removes every record, if all stripes are locked; returns whether they are. Nothing is logged if there is none:
    /// a start does not make it again as often as a client has asked for it.
    ///
    /// # Errors
    /// `NotLogged`; nothing has changed then.
    #[inline]
    pub fn clear(&mut self) -> Result<bool, StoreError> {
        self.table.check_clear()?;
        if self.growth.is_some() {
            let is_empty = self.locked.iter().all(|locked| locked.stripe.records.get() == 0);
            if let Some(log) = self.locked.first().and_then(|locked| locked.log).filter(|_| !is_empty) {
                if !self.participant.unit_of_changes().take_reserved(0, 0) {
                    let permit = log.admit(0, 0)?;
                    self.participant.unit_of_changes().keep(permit);
                }
                // What is written later has a higher version, whatever its stripe.
                let version = self.locked.iter().map(|locked| locked.state.last_version).max().unwrap_or(0) + 1;
                self.locked.iter_mut().for_each(|locked| locked.state.last_version = version);
                self.table.log_clear(log, self.participant, version);
            }
            self.remove_all();
        }
        Ok(self.growth.is_some())
    }

    /// Removes every record. All stripes are locked.
    pub(super) fn remove_all(&mut self) {
        for locked in &mut self.locked {
            self.table.refresh(locked);
        }
        self.notify_watchers();
        self.table.clear_locked(self.participant, self.locked.iter_mut().map(|locked| &mut *locked.state));
    }

    /// Evicts from the stripes locked here, which the write itself could not: it only tries locks, and these are taken.
    fn evict_for<R>(&mut self, change: &RecordUpdate<'_, R>, spared: u64, key_len: usize) -> bool {
        let RecordUpdate::Put { value, flags, expires_at_ms, .. } = change else { return false };
        // Without the bytes that the old record gives back, and with the bucket that it may need.
        let record = record_charge(key_len, parts_len(value.parts()), *flags, *expires_at_ms);
        let needed = record + self.table.key_charge(key_len) + BUCKET_BYTES as u64;
        if !self.table.makes_room() || needed > self.table.quota_bytes() {
            return false;
        }
        let most = self.table.evictions_per_write();
        let mut left = most;
        for locked in &mut self.locked {
            self.table.refresh(locked);
            while left != 0 && self.table.bytes.load(Ordering::Relaxed) + needed > self.table.quota_bytes() {
                if !locked.evict_one(spared) {
                    break;
                }
                left -= 1;
            }
        }
        left != most
    }

    /// Does a write's part of the growth of the table, with the locks that are held.
    pub(super) fn grow_after_write(&mut self, index: usize) {
        let locked = &mut self.locked[index];
        let is_full = locked.is_full();
        let buckets = if is_full { BUCKETS_MOVED_WHEN_FULL } else { BUCKETS_MOVED_PER_WRITE };
        if locked.buckets.is_growing() {
            // Never waits for a further lock, so that no two wait for each other.
            if self.table.help(self.participant, buckets, |stripe| self.stripes.contains(stripe)) {
                return;
            }
            for locked in &mut self.locked {
                self.table.refresh(locked);
                if locked.rehash_some(buckets) {
                    return;
                }
                self.table.pass_on(locked.index);
            }
            let others = (0..STRIPES).filter(|stripe| !self.stripes.contains(*stripe));
            let mut others = others.filter_map(|stripe| self.table.try_lock_stripe(self.participant, stripe));
            others.any(|mut other| other.rehash_some(buckets));
        } else if is_full {
            match &self.growth {
                Some(_) => self.table.grow_locked(self.participant),
                None => self.table.grow(self.participant),
            }
        }
    }
}

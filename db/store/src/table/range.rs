//! Ranges of an ordered table: the keys come from the index, each record from the hash table.
//!
//! What this module guarantees: as `mod.rs`; the caller's guard or pin protects the records that are looked up.
#![allow(unsafe_code)]

use arrayvec::ArrayVec;

use super::index::{KeyBatch, KeyIndex};
use super::key_range::KeyRange;
use super::{ExclusiveStripes, RecordTable};
use crate::limits::{
    EVICTIONS_PER_WRITE, ORDERED_EVICTIONS_PER_WRITE, RANGE_CALL_KEY_BYTES, RANGE_EXPIRED_KEY_BYTES_LOCKED,
    RANGE_EXPIRED_KEY_BYTES_PER_COMMIT, RANGE_EXPIRED_LOCKED, RANGE_EXPIRED_PER_COMMIT, RANGE_GROUP,
    RANGE_KEY_BYTES_BEYOND, RANGE_KEY_BYTES_PER_MESSAGE, RANGE_KEY_BYTES_PER_REQUEST, RANGE_KEYS_PER_CALL,
    RANGE_KEYS_PER_MESSAGE, RANGE_MIN_KEYS,
};
use crate::{EpochGuard, Participant, RecordRef, ShownPosition};

/// The table was not made as an ordered one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table is not ordered: ranges need one that was made with --ordered, and whose keys are all on one server")]
pub struct NotOrdered;

/// The progress of a look at a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeProgress {
    /// There may be more in the rest of the span.
    More,
    /// There is nothing left.
    Finished,
}

/// The limits on the keys that ranges may look at, expired and vanished ones included, and the keys looked at so far.
#[derive(Clone, Copy, Debug)]
pub struct ScanBudget {
    max_keys: usize,
    max_bytes: usize,
    keys: usize,
    bytes: usize,
}

impl ScanBudget {
    /// The limits of one call.
    pub const CALL: ScanBudget =
        ScanBudget { max_keys: RANGE_KEYS_PER_CALL, max_bytes: RANGE_CALL_KEY_BYTES, keys: 0, bytes: 0 };
    /// The limits of all ranges of one message.
    pub const MESSAGE: ScanBudget =
        ScanBudget { max_keys: RANGE_KEYS_PER_MESSAGE, max_bytes: RANGE_KEY_BYTES_PER_MESSAGE, keys: 0, bytes: 0 };

    /// Returns the number of keys that were looked at.
    #[inline]
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Returns whether the limits are used up.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.keys >= self.max_keys || self.bytes >= self.max_bytes
    }

    /// Returns whether the limits are so far exceeded that the rest of the message is refused.
    #[inline]
    pub fn is_exceeded(&self) -> bool {
        self.bytes >= self.max_bytes + RANGE_KEY_BYTES_BEYOND
    }

    /// Returns the limits of the next call: some keys, however many were looked at before.
    #[inline]
    pub fn for_next_call(&self) -> ScanBudget {
        let keys = self.max_keys.saturating_sub(self.keys).clamp(RANGE_MIN_KEYS, RANGE_KEYS_PER_CALL);
        let bytes = self.max_bytes.saturating_sub(self.bytes).clamp(1, RANGE_CALL_KEY_BYTES);
        ScanBudget { max_keys: keys, max_bytes: bytes, keys: 0, bytes: 0 }
    }

    /// Counts the keys of a call.
    #[inline]
    pub fn add(&mut self, call: &ScanBudget) {
        (self.keys, self.bytes) = (self.keys + call.keys, self.bytes + call.bytes);
    }

    /// Returns the number of requests that all of it equals in work.
    #[inline]
    pub fn requests(&self) -> usize {
        self.keys + self.bytes / RANGE_KEY_BYTES_PER_REQUEST
    }
}

impl RecordTable {
    /// Returns whether the table is ordered.
    #[inline]
    pub fn is_ordered(&self) -> bool {
        self.index.is_some()
    }

    /// Returns the bytes that a key is charged in the table beside its record.
    pub(super) fn key_charge(&self, key_len: usize) -> u64 {
        if self.index.is_some() { super::index::index_charge(key_len) } else { 0 }
    }

    /// Returns how many records one write evicts at most.
    pub(super) fn evictions_per_write(&self) -> usize {
        if self.index.is_some() { ORDERED_EVICTIONS_PER_WRITE } else { EVICTIONS_PER_WRITE }
    }

    /// Shows up to `limit` live records of a span in its order, and removes the part that it has looked at from the
    /// span. It looks at a bounded number of keys and of their bytes, so a call may show fewer records, or none, though
    /// there are more.
    ///
    /// # Errors
    /// [`NotOrdered`].
    #[inline]
    pub fn range<'g>(
        &'g self,
        guard: &'g EpochGuard<'_>,
        span: &mut KeyRange<'g>,
        limit: usize,
        now_ms: u64,
        f: &mut dyn FnMut(RecordRef<'g>),
    ) -> Result<RangeProgress, NotOrdered> {
        self.range_within(guard, span, limit, now_ms, &mut { ScanBudget::CALL }, f)
    }

    /// As above within given limits, to which it adds what it has looked at.
    ///
    /// # Errors
    /// [`NotOrdered`].
    #[inline]
    pub fn range_within<'g>(
        &'g self,
        guard: &'g EpochGuard<'_>,
        span: &mut KeyRange<'g>,
        limit: usize,
        now_ms: u64,
        budget: &mut ScanBudget,
        f: &mut dyn FnMut(RecordRef<'g>),
    ) -> Result<RangeProgress, NotOrdered> {
        self.check(guard.epochs());
        // SAFETY: protected by the guard, which is borrowed during 'g.
        unsafe { self.range_pinned(span, limit, now_ms, budget, guard.shown(), f) }
    }

    /// As above for an invocation, without a guard: `shown` is its own.
    ///
    /// # Safety
    /// The caller holds a [`crate::EpochPin`] of the table's epochs, and keeps it during 'a.
    pub unsafe fn range_pinned<'a>(
        &self,
        span: &mut KeyRange<'a>,
        limit: usize,
        now_ms: u64,
        budget: &mut ScanBudget,
        shown: &ShownPosition,
        f: &mut dyn FnMut(RecordRef<'a>),
    ) -> Result<RangeProgress, NotOrdered> {
        let index = self.order()?;
        let (mut left, mut met, mut walk) = (limit, None, IndexCursor::along(*span));
        while left != 0 && !budget.is_spent() {
            let (keys, bytes) = (left.min(budget.max_keys - budget.keys), budget.max_bytes - budget.bytes);
            let Some(batch) = walk.next(index, keys, bytes) else { break };
            budget.add(&ScanBudget { keys: batch.keys().count(), bytes: batch.bytes(), ..*budget });
            // SAFETY: protected by the pin (caller).
            unsafe {
                self.visit_prefetched(batch, |hash, key| {
                    if let Some(record) = self.find_settled(hash, key, shown) {
                        met = Some(record.key());
                        if !record.is_expired(now_ms) {
                            left -= 1;
                            f(record);
                        }
                    }
                    true
                })
            };
        }
        if let Some(met) = met {
            span.advance(met);
        }
        self.note_all_read(shown);
        Ok(if walk.is_finished() { RangeProgress::Finished } else { RangeProgress::More })
    }

    /// Shows the first keys of a span in its order, within `limit` and the bytes of one call, until `f` returns
    /// `false`; then `f` has not taken its key. It does not look for records: some keys may have none.
    ///
    /// # Errors
    /// [`NotOrdered`].
    #[inline]
    pub fn range_keys(
        &self,
        span: &KeyRange<'_>,
        limit: usize,
        shown: &ShownPosition,
        f: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<RangeProgress, NotOrdered> {
        let index = self.order()?;
        let mut batch = KeyBatch::default();
        index.read(span, limit, RANGE_CALL_KEY_BYTES, &mut batch);
        self.note_all_read(shown);
        // Not under the index's lock: the receiver of the keys may be held up.
        let took_all = batch.keys().all(f);
        Ok(if took_all && batch.is_last { RangeProgress::Finished } else { RangeProgress::More })
    }

    /// The order of the keys. Of a table whose other keys are on other servers a range would be a part only.
    fn order(&self) -> Result<&KeyIndex, NotOrdered> {
        self.index.as_ref().filter(|_| self.owns_all()).ok_or(NotOrdered)
    }

    /// Returns the number of keys of a span, in logarithmic time. No record is looked for: it counts keys whose record
    /// has expired and is not removed yet, or is being written or deleted at this moment.
    ///
    /// # Errors
    /// [`NotOrdered`].
    #[inline]
    pub fn count_keys(&self, span: &KeyRange<'_>) -> Result<u64, NotOrdered> {
        Ok(self.order()?.count(span))
    }

    /// Returns the key before which there are `position` others, counted as in [`RecordTable::count_keys`]; `None`
    /// beyond the last.
    ///
    /// # Errors
    /// [`NotOrdered`].
    #[inline]
    pub fn key_at(&self, position: u64) -> Result<Option<Vec<u8>>, NotOrdered> {
        let (index, mut key) = (self.order()?, Vec::new());
        Ok(index.copy_at(position, &mut key).then_some(key))
    }

    /// Shows the keys of a batch and their hashes until `f` returns `false`; returns whether it saw them all. The
    /// records are prefetched in groups, so that their cache misses overlap.
    ///
    /// # Safety
    /// As for [`RecordTable::get_pinned`].
    unsafe fn visit_prefetched<'b>(&self, batch: &'b KeyBatch, mut f: impl FnMut(u64, &'b [u8]) -> bool) -> bool {
        let mut keys = batch.keys();
        loop {
            let mut group = ArrayVec::<_, RANGE_GROUP>::new();
            for key in keys.by_ref().take(RANGE_GROUP) {
                let hash = self.hash(key);
                self.prefetch_bucket(hash);
                group.push((hash, key));
            }
            if group.is_empty() {
                return true;
            }
            // SAFETY: the caller's promise.
            unsafe { self.prefetch_records_pinned(group.iter().map(|(hash, _)| *hash)) };
            if !group.into_iter().all(|(hash, key)| f(hash, key)) {
                return false;
            }
        }
    }

    /// Returns the record of `key`, expired or not, after a commit that is writing to it.
    ///
    /// # Safety
    /// As for [`RecordTable::get_pinned`].
    unsafe fn find_settled<'a>(&self, hash: u64, key: &[u8], shown: &ShownPosition) -> Option<RecordRef<'a>> {
        if self.commit_mask.any() {
            self.wait_for_commit(hash, shown);
        }
        // SAFETY: the caller's promise.
        unsafe { self.find_any(hash, key) }
    }
}

impl RecordTable {
    /// Removes expired records of a span, a stripe at a time, as any writer would. It stops at the allowed number, or
    /// once it has met more than `live` others.
    pub(crate) fn remove_expired(
        &self,
        participant: &Participant,
        span: &KeyRange<'_>,
        now_ms: u64,
        mut live: usize,
        left: &mut ExpiryBudget,
    ) {
        self.check(participant.epochs());
        let Some(index) = &self.index else { return };
        let mut walk = IndexCursor::along(*span);
        let mut meet = |hash, key: &[u8]| {
            // SAFETY: protected by the participant, which is borrowed; the record is not kept.
            let Some(record) = (unsafe { self.find_any(hash, key) }) else { return true };
            if !record.is_expired(now_ms) {
                live = live.wrapping_sub(1);
                return live != usize::MAX;
            }
            let removed = self.write(participant, hash, key, |locked| {
                let found = locked.find(hash, key).filter(|found| found.record.is_expired(now_ms));
                found.map_or(Ok(()), |found| locked.expire(hash, key, found))
            });
            removed.is_ok() && left.take(key.len()).is_some()
        };
        while let Some(batch) = walk.next(index, usize::MAX, RANGE_CALL_KEY_BYTES) {
            // SAFETY: as above.
            if !unsafe { self.visit_prefetched(batch, &mut meet) } {
                return;
            }
        }
    }

    /// Returns whether an exclusive writer is at work.
    #[cfg(test)]
    pub(crate) fn is_all_locked(&self) -> bool {
        self.growth.is_locked()
    }
}

impl ExclusiveStripes<'_> {
    /// Returns whether a span holds exactly some records: `is_next` is shown key and version of each live one, in the
    /// span's order, until it returns `false`. All stripes are locked. It removes the expired records that it meets;
    /// beyond the allowed number of them, or of their keys' bytes, it returns `None`.
    pub(crate) fn contains_exactly(
        &mut self,
        span: &KeyRange<'_>,
        now_ms: u64,
        expired: &mut ExpiryBudget,
        mut is_next: impl FnMut(&[u8], u64) -> bool,
    ) -> Option<bool> {
        let table = self.table;
        let Some(index) = &table.index else { return Some(true) };
        let (mut unchanged, mut walk) = (Some(true), IndexCursor::along(*span));
        while let Some(batch) = walk.next(index, usize::MAX, RANGE_CALL_KEY_BYTES) {
            let meet = |hash, key: &[u8]| {
                unchanged = self.meets(hash, key, now_ms, expired, &mut is_next);
                unchanged == Some(true)
            };
            // SAFETY: protected by the participant, which is borrowed as long as the stripes are held.
            if !unsafe { table.visit_prefetched(batch, meet) } {
                return unchanged;
            }
        }
        unchanged
    }

    /// Returns whether one key of a span matches the expected records.
    fn meets(
        &mut self,
        hash: u64,
        key: &[u8],
        now_ms: u64,
        expired: &mut ExpiryBudget,
        is_next: &mut impl FnMut(&[u8], u64) -> bool,
    ) -> Option<bool> {
        let locked = self.index_of(hash).and_then(|index| self.locked.get_mut(index))?;
        self.table.refresh(locked);
        // Every key has its record while all stripes are locked.
        let Some(found) = locked.find(hash, key) else { return Some(true) };
        if found.record.is_expired(now_ms) {
            expired.take(key.len())?;
            locked.expire(hash, key, found).ok()?;
            return Some(true);
        }
        Some(is_next(key, found.record.version()))
    }
}

/// A walk along a span, whose keys the index copies out in batches.
struct IndexCursor<'s> {
    span: KeyRange<'s>,
    batch: KeyBatch,
    /// The last key of the batches so far. One walk skips keys without a record, which other threads are entering or
    /// removing at this moment. After the walk they are no progress, as nothing keeps their bytes.
    passed: Option<Vec<u8>>,
}

impl<'s> IndexCursor<'s> {
    fn along(span: KeyRange<'s>) -> IndexCursor<'s> {
        IndexCursor { span, batch: KeyBatch::default(), passed: None }
    }

    /// Returns the next keys, within the bounds of [`KeyIndex::read`]; `None` beyond the last.
    fn next(&mut self, index: &KeyIndex, keys: usize, bytes: usize) -> Option<&KeyBatch> {
        if self.batch.is_last {
            return None;
        }
        let mut rest: KeyRange<'_> = self.span;
        if let Some(passed) = &self.passed {
            rest.advance(passed);
        }
        index.read(&rest, keys, bytes, &mut self.batch);
        if let Some(last) = self.batch.keys().last() {
            let passed = self.passed.get_or_insert_default();
            passed.clear();
            passed.extend_from_slice(last);
        }
        Some(&self.batch)
    }

    /// Returns whether nothing comes after the keys so far.
    fn is_finished(&self) -> bool {
        self.batch.is_last
    }
}

/// The limits on the expired records that a commit may still remove.
pub(crate) struct ExpiryBudget {
    records: usize,
    key_bytes: usize,
}

impl ExpiryBudget {
    /// The limits while all stripes of a table are locked.
    pub(crate) const WHILE_LOCKED: ExpiryBudget =
        ExpiryBudget { records: RANGE_EXPIRED_LOCKED, key_bytes: RANGE_EXPIRED_KEY_BYTES_LOCKED };
    /// The limits while none is.
    pub(crate) const AFTER_COMMIT: ExpiryBudget =
        ExpiryBudget { records: RANGE_EXPIRED_PER_COMMIT, key_bytes: RANGE_EXPIRED_KEY_BYTES_PER_COMMIT };

    fn take(&mut self, key_len: usize) -> Option<()> {
        self.records = self.records.checked_sub(1)?;
        self.key_bytes = self.key_bytes.checked_sub(key_len)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epochs, StripeSet, TableConfig, WriteOptions};

    /// Shows the result of one call: records, and how it ended.
    fn one_call(table: &RecordTable, guard: &EpochGuard<'_>, backward: bool) -> (usize, RangeProgress) {
        let (mut span, mut shown) = (KeyRange::new(b"", b"", backward), 0);
        let progress = table.range(guard, &mut span, 100, 0, &mut |_| shown += 1).expect("the table is ordered");
        (shown, progress)
    }

    #[test]
    fn keys_without_a_record_are_passed_by_a_bounded_number_at_a_time() {
        let epochs = Epochs::new();
        let config = TableConfig { ordered: true, ..TableConfig::default() };
        let table = RecordTable::with_seed(config, std::sync::Arc::clone(&epochs), 1);
        let participant = epochs.register();
        let middle = [128; 4];
        table.put(&participant, table.hash(&middle), &middle, b"", &WriteOptions::default(), 0).expect("room");
        let index = table.index.as_ref().expect("the table is ordered");
        let insert = |key: &[u8]| index.insert(super::super::index::copy_key(key).expect("memory"));
        // As many as may be passed by, on either side.
        for number in 1..RANGE_KEYS_PER_CALL as u8 {
            insert(&[number; 4]);
            insert(&[128 + number; 4]);
        }
        let guard = participant.guard();
        for backward in [false, true] {
            assert_eq!(one_call(&table, &guard, backward), (1, RangeProgress::More), "the record was met");
        }
        // One more, and the call ends before it comes to the record; as it does after a number of bytes.
        insert(&[0; 4]);
        assert_eq!(one_call(&table, &guard, false), (0, RangeProgress::More));
        for number in 200..=204 {
            insert(&vec![number; RANGE_CALL_KEY_BYTES]);
        }
        let mut batch = KeyBatch::default();
        index.read(&KeyRange::new(&[204], b"", true), usize::MAX, RANGE_CALL_KEY_BYTES, &mut batch);
        assert_eq!((batch.keys().count(), batch.is_last), (1, false));
        // A range that met a clear continues in the table's new content.
        drop(index.clear());
        insert(&middle);
        assert_eq!(one_call(&table, &guard, true), (1, RangeProgress::Finished));
    }
    /// Makes an ordered table with so many records, under their numbers.
    fn filled(epochs: &std::sync::Arc<Epochs>, records: u32, write: &WriteOptions) -> (RecordTable, Participant) {
        let config = TableConfig { ordered: true, ..TableConfig::default() };
        let (table, mut participant) = (RecordTable::with_seed(config, epochs.clone(), 1), epochs.register());
        for number in 0..records {
            let key = number.to_be_bytes();
            table.put(&participant, table.hash(&key), &key, &[7; 100], write, 0).expect("room");
            participant.quiescent();
        }
        while table.is_growing(&participant.guard()) {
            table.sweep(&participant, 0, 10_000);
        }
        (table, participant)
    }

    /// A scaled-down table where each access is interpreted.
    const RECORDS: u32 = if cfg!(miri) { 600 } else { 10_000 };
    const ALL: KeyRange<'_> = KeyRange { from: b"", past: false, to: None, included: false, backward: false };

    #[test]
    fn all_that_go_along_a_range_ask_for_its_records_ahead() {
        let (table, participant) = filled(&Epochs::new(), RECORDS, &WriteOptions::default());
        let guard = participant.guard();
        let hashes = (0..RECORDS).map(|number| table.hash(&number.to_be_bytes()));
        // Those that need a second look, in which it is noted.
        let further: Vec<u64> = hashes.filter(|hash| table.prefetch_record(&guard, *hash)).collect();
        assert!(!further.is_empty());
        let lookups = crate::table::prefetch::lookups::take;
        lookups();
        let mut locked = table.exclusive(&participant, StripeSet::ALL);
        let mut rows = 0;
        let mut is_next = |key: &[u8], _| {
            rows += 1;
            key == (rows - 1_u32).to_be_bytes()
        };
        assert_eq!(locked.contains_exactly(&ALL, 0, &mut { ExpiryBudget::WHILE_LOCKED }, &mut is_next), Some(true));
        assert_eq!((rows, lookups() == further), (RECORDS, true), "of a commit");
        drop(locked);
        let mut span = ALL;
        while table.range(&guard, &mut span, 1000, 0, &mut |_| {}).expect("ordered") == RangeProgress::More {}
        assert!(lookups() == further, "of a reader");
    }

    #[test]
    fn while_all_writers_wait_few_expired_records_are_removed_and_the_others_later() {
        let expired = WriteOptions { expires_at_ms: 5, ..WriteOptions::default() };
        let (table, participant) = filled(&Epochs::new(), RECORDS, &expired);
        let records = || table.stats().records as usize;
        let mut locked = table.exclusive(&participant, StripeSet::ALL);
        assert_eq!(locked.contains_exactly(&ALL, 10, &mut { ExpiryBudget::WHILE_LOCKED }, |_, _| true), None);
        drop(locked);
        let mut left = RECORDS as usize - RANGE_EXPIRED_LOCKED;
        assert_eq!(records(), left);
        // Beyond more live ones than the range is said to have, none are looked for.
        for number in [500_u32, 510, 520] {
            let key = number.to_be_bytes();
            table.put(&participant, table.hash(&key), &key, b"", &WriteOptions::default(), 0).expect("room");
        }
        table.remove_expired(&participant, &ALL, 10, 2, &mut { ExpiryBudget::AFTER_COMMIT });
        left -= 520 - RANGE_EXPIRED_LOCKED - 2;
        assert_eq!(records(), left);
        // A bounded number at a time, until only those are left.
        while left > 3 {
            table.remove_expired(&participant, &ALL, 10, 3, &mut { ExpiryBudget::AFTER_COMMIT });
            assert!(records() < left && left - records() <= RANGE_EXPIRED_PER_COMMIT + 1, "{} of {left}", records());
            left = records();
        }
        assert_eq!((left, table.stats().expirations), (3, u64::from(RECORDS) - 3));
    }
}

//! Ranges of an ordered table: the keys come from the index, each record from the hash table.
//!
//! What this module guarantees: as `mod.rs`; what is looked up is protected by the caller's guard or pin.
#![allow(unsafe_code)]

use arrayvec::ArrayVec;

use super::index::{Batch, Span};
use super::{Exclusive, Table};
use crate::limits::{
    EVICTIONS_PER_WRITE, ORDERED_EVICTIONS_PER_WRITE, RANGE_CALL_KEY_BYTES, RANGE_EXPIRED_KEY_BYTES_PER_COMMIT,
    RANGE_EXPIRED_PER_COMMIT, RANGE_GROUP, RANGE_KEY_BYTES_PER_MESSAGE, RANGE_KEY_BYTES_PER_REQUEST,
    RANGE_LOOKS_AT_LEAST, RANGE_LOOKS_PER_CALL, RANGE_LOOKS_PER_MESSAGE,
};
use crate::store::{Guard, RecordRef};

/// The table was not made as an ordered one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table is not ordered: ranges need one that was made with --ordered")]
pub struct NotOrdered;

/// How far a look at a range has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There may be more in what is left of the span.
    More,
    /// There is nothing left.
    Finished,
}

/// The keys that ranges may look at, expired and vanished ones included, and those that they have.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    most_keys: usize,
    most_bytes: usize,
    keys: usize,
    bytes: usize,
}

impl Looks {
    /// Of one call.
    pub const CALL: Looks =
        Looks { most_keys: RANGE_LOOKS_PER_CALL, most_bytes: RANGE_CALL_KEY_BYTES, keys: 0, bytes: 0 };
    /// Of all ranges of one message.
    pub const MESSAGE: Looks =
        Looks { most_keys: RANGE_LOOKS_PER_MESSAGE, most_bytes: RANGE_KEY_BYTES_PER_MESSAGE, keys: 0, bytes: 0 };

    /// Keys that were looked at.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Whether there are none left.
    pub fn are_spent(&self) -> bool {
        self.keys >= self.most_keys || self.bytes >= self.most_bytes
    }

    /// What the next call may look at: some, however much was looked at before.
    pub fn next_call(&self) -> Looks {
        let keys = self.most_keys.saturating_sub(self.keys).clamp(RANGE_LOOKS_AT_LEAST, RANGE_LOOKS_PER_CALL);
        let bytes = self.most_bytes.saturating_sub(self.bytes).clamp(1, RANGE_CALL_KEY_BYTES);
        Looks { most_keys: keys, most_bytes: bytes, keys: 0, bytes: 0 }
    }

    /// Counts what a call has looked at.
    pub fn add(&mut self, call: &Looks) {
        (self.keys, self.bytes) = (self.keys + call.keys, self.bytes + call.bytes);
    }

    /// How many requests all of it is as much work as.
    pub fn requests(&self) -> usize {
        self.keys + self.bytes / RANGE_KEY_BYTES_PER_REQUEST
    }
}

impl Table {
    /// Whether the table is ordered.
    pub fn is_ordered(&self) -> bool {
        self.index.is_some()
    }

    /// Bytes that a key counts in the table beside its record.
    pub(super) fn key_charge(&self, key_len: usize) -> u64 {
        if self.index.is_some() { super::index::charge(key_len) } else { 0 }
    }

    /// Records that one write evicts at most.
    pub(super) fn evictions_per_write(&self) -> usize {
        if self.index.is_some() { ORDERED_EVICTIONS_PER_WRITE } else { EVICTIONS_PER_WRITE }
    }

    /// Shows up to `limit` live records of a span in its order, and takes what it has looked at away from the span. Looks at a bounded
    /// number of keys and bytes of them, so a call may show fewer records, or none, though there are more.
    ///
    /// # Errors
    /// [`NotOrdered`].
    pub fn range<'g>(
        &'g self,
        guard: &'g Guard<'_>,
        span: &mut Span<'g>,
        limit: usize,
        now_ms: u64,
        f: &mut dyn FnMut(RecordRef<'g>),
    ) -> Result<Progress, NotOrdered> {
        self.range_within(guard, span, limit, now_ms, &mut { Looks::CALL }, f)
    }

    /// The same within what may be looked at, to which what was is added.
    ///
    /// # Errors
    /// [`NotOrdered`].
    pub fn range_within<'g>(
        &'g self,
        guard: &'g Guard<'_>,
        span: &mut Span<'g>,
        limit: usize,
        now_ms: u64,
        looks: &mut Looks,
        f: &mut dyn FnMut(RecordRef<'g>),
    ) -> Result<Progress, NotOrdered> {
        self.check(guard.epochs());
        // SAFETY: protected by the guard, which is borrowed during 'g.
        unsafe { self.range_pinned(span, limit, now_ms, looks, f) }
    }

    /// The same for an invocation, without a guard.
    ///
    /// # Safety
    /// The caller holds a [`crate::store::Pin`] of the table's epochs, and keeps it during 'a.
    pub unsafe fn range_pinned<'a>(
        &self,
        span: &mut Span<'a>,
        limit: usize,
        now_ms: u64,
        looks: &mut Looks,
        f: &mut dyn FnMut(RecordRef<'a>),
    ) -> Result<Progress, NotOrdered> {
        let index = self.index.as_ref().ok_or(NotOrdered)?;
        let (mut left, mut batch, mut passed, mut met) = (limit, Batch::default(), Vec::new(), None);
        let (mut progress, mut is_first) = (Progress::More, true);
        while left != 0 && !looks.are_spent() && progress == Progress::More {
            let mut rest: Span<'_> = *span;
            if !is_first {
                rest.advance(&passed);
            }
            is_first = false;
            index.read(&rest, left.min(looks.most_keys - looks.keys), looks.most_bytes - looks.bytes, &mut batch);
            looks.add(&Looks { keys: batch.keys().count(), bytes: batch.bytes(), ..*looks });
            // SAFETY: protected by the pin (caller).
            unsafe {
                self.look_up(&batch, |record| {
                    met = Some(record.key());
                    if !record.is_expired(now_ms) {
                        left -= 1;
                        f(record);
                    }
                })
            };
            if batch.is_last {
                progress = Progress::Finished;
            }
            // Keys without a record, which others are entering or removing at this moment, are passed by within the call. After it
            // they are no step forward: nothing keeps their bytes.
            if let Some(last) = batch.keys().last() {
                passed.clear();
                passed.extend_from_slice(last);
            }
        }
        if let Some(met) = met {
            span.advance(met);
        }
        Ok(progress)
    }

    /// Shows the records of a batch's keys, expired or not. They are looked up in groups, whose cache misses overlap.
    ///
    /// # Safety
    /// As for [`Table::get_pinned`].
    unsafe fn look_up<'a>(&self, batch: &Batch, mut f: impl FnMut(RecordRef<'a>)) {
        let mut keys = batch.keys();
        loop {
            let mut group = ArrayVec::<_, RANGE_GROUP>::new();
            for key in keys.by_ref().take(RANGE_GROUP) {
                let hash = self.hash(key);
                self.prefetch_bucket(hash);
                group.push((key, hash));
            }
            if group.is_empty() {
                return;
            }
            // SAFETY: the caller's promise.
            unsafe { self.prefetch_records_pinned(group.iter().map(|(_, hash)| *hash)) };
            for (key, hash) in group {
                // SAFETY: as above.
                if let Some(record) = unsafe { self.find_settled(hash, key) } {
                    f(record);
                }
            }
        }
    }

    /// The record of `key`, expired or not, after a commit that is writing to it.
    ///
    /// # Safety
    /// As for [`Table::get_pinned`].
    unsafe fn find_settled<'a>(&self, hash: u64, key: &[u8]) -> Option<RecordRef<'a>> {
        if self.installing.any() {
            self.wait_for_commit(hash);
        }
        // SAFETY: the caller's promise.
        unsafe { self.find_now(hash, key) }
    }
}

#[cfg(test)]
impl Table {
    /// Whether somebody has the right to write, alone.
    pub(in crate::store) fn is_all_locked(&self) -> bool {
        self.growth.is_locked()
    }
}

impl Exclusive<'_> {
    /// Whether a span holds exactly some records: `is_next` is shown key and version of each live one, in the span's order, until it
    /// answers `false`. All stripes are held. Expired records that are met go; after so many of them, and of their keys' bytes, as may
    /// still be, it answers `None`.
    pub(in crate::store) fn holds_exactly(
        &mut self,
        span: &Span<'_>,
        now_ms: u64,
        expired: &mut ExpiredLeft,
        mut is_next: impl FnMut(&[u8], u64) -> bool,
    ) -> Option<bool> {
        let table = self.table;
        let Some(index) = &table.index else { return Some(true) };
        let (mut batch, mut passed, mut is_first) = (Batch::default(), Vec::new(), true);
        while !batch.is_last {
            let mut rest: Span<'_> = *span;
            if !is_first {
                rest.advance(&passed);
            }
            is_first = false;
            index.read(&rest, usize::MAX, RANGE_CALL_KEY_BYTES, &mut batch);
            for key in batch.keys() {
                let hash = table.hash(key);
                let locked = self.index_of(hash).and_then(|index| self.locked.get_mut(index))?;
                table.refresh(locked);
                // Every key has its record while all stripes are locked.
                let Some(found) = locked.find(hash, key) else { continue };
                if found.record.is_expired(now_ms) {
                    expired.take(key.len())?;
                    locked.expire(hash, found);
                } else if !is_next(key, found.record.version()) {
                    return Some(false);
                }
            }
            if let Some(last) = batch.keys().last() {
                passed.clear();
                passed.extend_from_slice(last);
            }
        }
        Some(true)
    }
}

/// What a commit may still remove because its time is over.
pub(in crate::store) struct ExpiredLeft {
    records: usize,
    key_bytes: usize,
}

impl ExpiredLeft {
    /// Of one commit.
    pub(in crate::store) const ALL: ExpiredLeft =
        ExpiredLeft { records: RANGE_EXPIRED_PER_COMMIT, key_bytes: RANGE_EXPIRED_KEY_BYTES_PER_COMMIT };

    fn take(&mut self, key_len: usize) -> Option<()> {
        self.records = self.records.checked_sub(1)?;
        self.key_bytes = self.key_bytes.checked_sub(key_len)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Epochs, TableConfig, Write};

    /// Shows what one call does: records, and how it ended.
    fn one_call(table: &Table, guard: &Guard<'_>, backward: bool) -> (usize, Progress) {
        let (mut span, mut shown) = (Span::new(b"", b"", backward), 0);
        let progress = table.range(guard, &mut span, 100, 0, &mut |_| shown += 1).expect("the table is ordered");
        (shown, progress)
    }

    #[test]
    fn keys_without_a_record_are_passed_by_a_bounded_number_at_a_time() {
        let epochs = Epochs::new();
        let config = TableConfig { ordered: true, ..TableConfig::default() };
        let table = Table::with_seed(config, std::sync::Arc::clone(&epochs), 1);
        let participant = epochs.register();
        let middle = [128; 4];
        table.put(&participant, table.hash(&middle), &middle, b"", &Write::default(), 0).expect("room");
        let index = table.index.as_ref().expect("the table is ordered");
        let enter = |key: &[u8]| index.insert(super::super::index::copy_of(key).expect("memory"));
        // As many as may be passed by, on either side.
        for number in 1..RANGE_LOOKS_PER_CALL as u8 {
            enter(&[number; 4]);
            enter(&[128 + number; 4]);
        }
        let guard = participant.guard();
        for backward in [false, true] {
            assert_eq!(one_call(&table, &guard, backward), (1, Progress::More), "the record was met");
        }
        // One more, and the call ends before it comes to the record; as it does after a number of bytes.
        enter(&[0; 4]);
        assert_eq!(one_call(&table, &guard, false), (0, Progress::More));
        for number in 200..=204 {
            enter(&vec![number; RANGE_CALL_KEY_BYTES]);
        }
        let mut batch = Batch::default();
        index.read(&Span::new(&[204], b"", true), usize::MAX, RANGE_CALL_KEY_BYTES, &mut batch);
        assert_eq!((batch.keys().count(), batch.is_last), (1, false));
        // A range that met a clear goes on in what is there now.
        drop(index.clear());
        enter(&middle);
        assert_eq!(one_call(&table, &guard, true), (1, Progress::Finished));
    }
}

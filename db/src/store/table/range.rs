//! Ranges of an ordered table: the keys come from the index, each record from the hash table.
//!
//! What this module guarantees: as `mod.rs`; what is looked up is protected by the caller's guard or pin.
#![allow(unsafe_code)]

use arrayvec::ArrayVec;

use super::index::Span;
use super::{Exclusive, Table};
use crate::limits::{RANGE_CALL_KEY_BYTES, RANGE_GROUP, RANGE_LOOKS_PER_CALL};
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

impl Table {
    /// Whether the table is ordered.
    pub fn is_ordered(&self) -> bool {
        self.index.is_some()
    }

    /// Bytes that a key counts in the table beside its record.
    pub(super) fn key_charge(&self, key_len: usize) -> u64 {
        if self.index.is_some() { super::index::charge(key_len) } else { 0 }
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
        self.check(guard.epochs());
        // SAFETY: protected by the guard, which is borrowed during 'g.
        unsafe { self.range_pinned(span, limit, now_ms, f) }
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
        f: &mut dyn FnMut(RecordRef<'a>),
    ) -> Result<Progress, NotOrdered> {
        let index = self.index.as_ref().ok_or(NotOrdered)?;
        if span.is_empty() {
            return Ok(Progress::Finished);
        }
        let keys = index.keys();
        let mut keys = keys.range::<[u8], _>(span.ends());
        let mut next = || if span.backward { keys.next_back() } else { keys.next() };
        let (mut left, mut looks, mut bytes, mut met) = (limit, RANGE_LOOKS_PER_CALL, 0, None);
        let mut progress = Progress::More;
        // Keys without a record, which others are entering or removing at this moment, are no step forward.
        while left != 0 && looks != 0 && progress == Progress::More && (met.is_none() || bytes < RANGE_CALL_KEY_BYTES) {
            let mut group = ArrayVec::<_, RANGE_GROUP>::new();
            while group.len() < left.min(looks).min(RANGE_GROUP) && (group.is_empty() || bytes < RANGE_CALL_KEY_BYTES) {
                let Some(key) = next() else {
                    progress = Progress::Finished;
                    break;
                };
                bytes += key.len();
                let hash = self.hash(&key);
                self.prefetch_bucket(hash);
                group.push((key, hash));
            }
            // SAFETY: protected by the pin (caller).
            unsafe { self.prefetch_records_pinned(group.iter().map(|(_, hash)| *hash)) };
            for (key, hash) in &group {
                // SAFETY: as above.
                let Some(record) = (unsafe { self.find_settled(*hash, key) }) else { continue };
                (looks, met) = (looks - 1, Some(record.key()));
                if !record.is_expired(now_ms) {
                    left -= 1;
                    f(record);
                }
            }
        }
        if let Some(met) = met {
            span.advance(met);
        }
        Ok(progress)
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

impl Exclusive<'_> {
    /// Whether a span holds exactly some records: `is_next` is shown key and version of each live one, in the span's order, until it
    /// answers `false`. All stripes are held. Expired records that are met go; after so many of them as may still be, it answers `None`.
    pub(in crate::store) fn holds_exactly(
        &mut self,
        span: &Span<'_>,
        now_ms: u64,
        expired: &mut usize,
        mut is_next: impl FnMut(&[u8], u64) -> bool,
    ) -> Option<bool> {
        let table = self.table;
        let Some(index) = table.index.as_ref().filter(|_| !span.is_empty()) else { return Some(true) };
        let keys = index.keys();
        let mut keys = keys.range::<[u8], _>(span.ends());
        while let Some(key) = if span.backward { keys.next_back() } else { keys.next() } {
            let hash = table.hash(&key);
            let locked = self.index_of(hash).and_then(|index| self.locked.get_mut(index))?;
            table.refresh(locked);
            // Every key has its record while all stripes are locked.
            let Some(found) = locked.find(hash, &key) else { continue };
            if found.record.is_expired(now_ms) {
                *expired = expired.checked_sub(1)?;
                locked.expire(hash, found);
            } else if !is_next(&key, found.record.version()) {
                return Some(false);
            }
        }
        Some(true)
    }
}

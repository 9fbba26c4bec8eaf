//! What is done without looking at a record's value: decided by its head, or by nothing. So it needs neither a read of
//! the disk nor, where nothing is looked at, one of what is behind the table.

use super::RecordTable;
use super::locked_stripe::LockedStripe;
use super::record_head::RecordHead;
use super::update::{ExclusiveStripes, RecordUpdate, UpdateValue};
use crate::record::parts_len;
use crate::{EpochGuard, Participant, RecordMarks, StoreError};

/// A record that is put whatever is there.
#[derive(Clone, Debug)]
pub struct NewValue<'a> {
    /// Its value.
    pub value: UpdateValue<'a>,
    /// Its flags.
    pub flags: u32,
    /// Milliseconds since the Unix epoch from which on it counts as absent; 0: never.
    pub expires_at_ms: u64,
}

impl RecordTable {
    /// Puts a record whatever is there, which is not looked for: neither a cold record nor one behind the table is
    /// fetched. Returns its version.
    ///
    /// # Errors
    /// As [`RecordTable::update`], but for `Cold`.
    #[inline]
    pub fn replace(
        &self,
        participant: &Participant,
        hash: u64,
        key: &[u8],
        now_ms: u64,
        put: &NewValue<'_>,
    ) -> Result<u64, StoreError> {
        self.write(participant, hash, key, |locked| locked.replace(hash, key, now_ms, put))
    }

    /// Returns what is known of the live record of a key without its value, which may be cold. `None` also where the
    /// backing has to be asked first, which is noted.
    pub fn head(&self, guard: &EpochGuard<'_>, hash: u64, key: &[u8], now_ms: u64) -> Option<RecordHead> {
        self.check(guard.epochs());
        if self.commit_mask.any() {
            self.wait_for_commit(hash, guard.shown());
        }
        // SAFETY: protected by the guard; the record is not kept.
        let head = unsafe { self.find_live(hash, key, now_ms) }.map(|record| RecordHead::of(&record));
        self.note_read(hash, guard.shown());
        let version = head.map(|head| head.version);
        if (version.is_none() || self.makes_room()) && !self.shows((hash, key), version, now_ms, guard.shown()) {
            return None;
        }
        head
    }
}

impl LockedStripe<'_> {
    fn replace(&mut self, hash: u64, key: &[u8], now_ms: u64, put: &NewValue<'_>) -> Result<u64, StoreError> {
        let (table, len) = (self.table, parts_len(put.value.parts()));
        table.note_value(hash, key, len);
        if len > table.config.max_value_len {
            return Err(StoreError::ValueTooLarge);
        }
        self.marks = RecordMarks::default();
        let found = self.find(hash, key);
        self.replace_found(found, hash, key, put.value.source(), (put.flags, put.expires_at_ms), now_ms)
    }
}

impl ExclusiveStripes<'_> {
    /// As [`RecordTable::replace`], for a key of the locked stripes.
    ///
    /// # Errors
    /// As [`ExclusiveStripes::update`], but for `Cold`.
    pub fn replace(&mut self, hash: u64, key: &[u8], now_ms: u64, put: &NewValue<'_>) -> Result<u64, StoreError> {
        let NewValue { value, flags, expires_at_ms } = put.clone();
        let put = RecordUpdate::Put { value, flags, expires_at_ms, answer: () };
        self.decide(hash, key, |locked| Ok((locked.find(hash, key), put)), now_ms).map(|((), version)| version)
    }
}

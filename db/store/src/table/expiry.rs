//! Records whose time is over: how they leave a table, and how the log gets to know it.
//!
//! Such a record counts as absent, and leaves the table when a write, a commit, a watch or a sweep meets it. In most
//! tables that is no change: a restart or a replica that makes the log's changes again finds the record's time over as
//! well. Where a subscriber asks ([`RecordTable::set_expiry_logging`]), it is a change of its own kind, with a version
//! above the record's. It is appended before the record leaves, and a record for which the log has no room stays. A
//! restart restores such records, for a sweep to meet. So each is logged once its time has come, whatever met it, and a
//! second time only if a crash has taken the first one.

use std::sync::atomic::Ordering;

use sandstorm_log::LoggedChange;

use super::RecordTable;
use super::buckets::stripe_of;
use super::cold_copies::ColdRecord;
use super::locked_stripe::{FoundRecord, LockedStripe};
use super::table_log::TableLog;
use crate::clock::clock_ms;
use crate::limits::{STRIPES, SWEEP_SLOTS_PER_MOVED_BUCKET, SWEEP_STEP_SLOTS};
use crate::{Participant, RecordRef, StoreError};

/// Expired records whose keys one round of sweeps reads from the disk.
pub(super) struct ColdExpiries {
    /// The hash from which on they are taken: those before it were read by the rounds before.
    from: u64,
    /// How many are taken.
    most: usize,
    records: Vec<ColdRecord>,
}

impl ColdExpiries {
    fn new(from: u64, most: usize) -> ColdExpiries {
        ColdExpiries { from, most, records: Vec::new() }
    }

    fn add(&mut self, record: ColdRecord) {
        if record.hash >= self.from && self.records.len() < self.most {
            self.records.push(record);
        }
    }

    /// Where the next round goes on, if there may be more than were taken. Sweeps meet records in the order of their
    /// hashes.
    fn left_off_at(&self) -> Option<u64> {
        let last = if self.records.len() < self.most { return None } else { self.records.last() };
        Some(last.map_or(self.from, |last| last.hash.wrapping_add(1)))
    }
}

impl RecordTable {
    /// Says whether a record that leaves because its time is over is a change in the log, if changes are logged. Set
    /// before a log is restored, it keeps those whose time came while no server ran.
    pub fn set_expiry_logging(&self, on: bool) {
        self.logs_expiry.store(on, Ordering::Relaxed);
    }

    /// Returns what [`RecordTable::set_expiry_logging`] has set.
    pub fn logs_expiry(&self) -> bool {
        self.logs_expiry.load(Ordering::Relaxed)
    }

    /// Removes expired records among the next `slots` slots, continuing where the last call ended and stopping at the
    /// end of the table; returns how many. It skips parts of the table in which nothing will expire. It also moves a
    /// growing table's buckets.
    pub fn sweep(&self, participant: &Participant, now_ms: u64, slots: usize) -> usize {
        self.sweep_with(participant, now_ms, slots, &mut ColdExpiries::new(0, 0))
    }

    /// As [`RecordTable::sweep`], of a table whose log is told of what expires: `slots` slots in several steps, between
    /// which others have their turn. Of the expired records whose keys have to be read from the disk for that, it reads
    /// `cold_reads` at most, the next ones at the next call: those that cannot be read hold none up behind them.
    /// Returns how many could not be read, which stay. The participant is offline while the disk reads.
    pub fn sweep_logged(
        &self,
        participant: &mut Participant,
        now_ms: u64,
        (slots, cold_reads): (usize, usize),
    ) -> usize {
        let (begin, from) = (self.sweep_cursor.load(Ordering::Relaxed), self.cold_sweep_cursor.load(Ordering::Relaxed));
        let mut cold = ColdExpiries::new(from, cold_reads);
        for _ in 0..slots.div_ceil(SWEEP_STEP_SLOTS).max(1) {
            self.sweep_with(participant, now_ms, SWEEP_STEP_SLOTS, &mut cold);
            participant.quiescent();
            if self.is_swept() {
                break;
            }
        }
        // Where this round began behind that place, what lies between has not been looked at.
        if begin <= from {
            let next = cold.left_off_at().unwrap_or_else(|| self.sweep_cursor.load(Ordering::Relaxed));
            self.cold_sweep_cursor.store(next, Ordering::Relaxed);
        }
        self.expire_cold(participant, &cold.records, now_ms)
    }

    fn sweep_with(&self, participant: &Participant, now_ms: u64, slots: usize, cold: &mut ColdExpiries) -> usize {
        if self.is_growing(&participant.guard()) {
            self.rehash_idle(participant, slots / SWEEP_SLOTS_PER_MOVED_BUCKET);
        }
        let mut at = self.sweep_cursor.load(Ordering::Relaxed);
        let mut removed = 0;
        for _ in 0..slots.div_ceil(4) {
            let stripe = stripe_of(at);
            let end = if self.stripes.get(stripe).is_none_or(|stripe| stripe.expiring.get() == 0) {
                (stripe as u128 + 1) << (64 - STRIPES.trailing_zeros())
            } else {
                self.sweep_bucket(participant, at, now_ms, (&mut removed, cold))
            };
            let Ok(next) = u64::try_from(end) else {
                at = 0;
                break;
            };
            at = next;
        }
        self.sweep_cursor.store(at, Ordering::Relaxed);
        removed
    }

    /// Returns whether the last sweep has come to the end of the table.
    pub fn is_swept(&self) -> bool {
        self.sweep_cursor.load(Ordering::Relaxed) == 0
    }

    /// Removes cold records that a sweep has met after their time: their keys, which the log wants, are on the disk.
    /// Returns how many could not be read.
    fn expire_cold(&self, participant: &mut Participant, cold: &[ColdRecord], now_ms: u64) -> usize {
        let mut unreadable = 0;
        for record in cold {
            let mut key = Vec::new();
            match self.read_cold(participant, record, &mut |read| key = read.key.to_vec()) {
                Ok(true) => {
                    let mut locked = self.lock_stripe_of(participant, record.hash);
                    let found = locked.find(record.hash, &key).filter(|found| found.record.is_expired(now_ms));
                    // Without room in the log it stays, and a later round meets it.
                    let _stays = found.map(|found| locked.expire(record.hash, &key, found));
                }
                Ok(false) => {}
                Err(_) => unreadable += 1,
            }
        }
        unreadable
    }
}

impl<'t> LockedStripe<'t> {
    /// The log, if it is told of records whose time is over.
    #[inline]
    fn expiry_log(&self) -> Option<&'t TableLog> {
        self.log.filter(|_| self.restored_version.is_none() && self.table.logs_expiry())
    }

    /// Removes a record whose time is over.
    ///
    /// # Errors
    /// `NotLogged`: the log, which is to know it, has no room; the record stays then.
    pub(super) fn expire(&mut self, hash: u64, key: &[u8], found: FoundRecord<'t>) -> Result<(), StoreError> {
        if self.expiry_log().is_some() {
            let permit = self.admit_change(key.len(), 0)?;
            self.log_expiry(hash, key, found.record.expires_at_ms());
            self.end_change(permit);
        }
        self.remove(hash, found);
        self.stripe.expirations.add(1);
        Ok(())
    }

    /// Has a record whose time is over leave before another one takes its place, if the log is told of it. Returns the
    /// record that is there then.
    pub(crate) fn expire_replaced(
        &mut self,
        hash: u64,
        key: &[u8],
        found: Option<FoundRecord<'t>>,
        now_ms: u64,
    ) -> Result<Option<FoundRecord<'t>>, StoreError> {
        match found.filter(|found| self.expiry_log().is_some() && found.record.is_expired(now_ms)) {
            Some(expired) => self.expire(hash, key, expired).map(|()| None),
            None => Ok(found),
        }
    }

    /// Removes a record that a sweep has met after its time; returns whether it did. The key of a cold one has to be
    /// read first, without this lock.
    pub(super) fn expire_swept(&mut self, hash: u64, found: FoundRecord<'t>, cold: &mut ColdExpiries) -> bool {
        if let Some(address) = found.record.cold_address().filter(|_| self.expiry_log().is_some()) {
            cold.add(ColdRecord { hash, version: found.record.version(), address });
            return false;
        }
        self.expire(hash, found.record.key(), found).is_ok()
    }

    /// Logs that a record is evicted: whose time was over already did not leave by that.
    pub(super) fn log_eviction(&mut self, hash: u64, record: RecordRef<'_>) {
        if self.table.is_copy(record.key()) {
            self.log_leaving(hash, record.key());
        } else if self.expiry_log().is_some() && record.is_expired(clock_ms(0)) {
            self.log_expiry(hash, record.key(), record.expires_at_ms());
        } else {
            self.log_delete(hash, record.key());
        }
    }

    fn log_expiry(&mut self, hash: u64, key: &[u8], expires_at_ms: u64) {
        if self.table.is_copy(key) {
            self.log_leaving(hash, key);
        } else if let Some(log) = self.log {
            self.state.last_version += 1;
            self.log_change(
                log,
                hash,
                &LoggedChange::expire(log.number(), self.state.last_version, key, expires_at_ms),
            );
        }
    }
}

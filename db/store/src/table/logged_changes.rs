//! A table's side of the log of changes. A change that is certain is appended under the lock of its stripe, and
//! published then. So the log has the changes of a key in their order, and a change that depends on another one comes
//! behind it.
//!
//! Changes that happen at once, while stripes are held ([`super::ExclusiveStripes`]), are gathered by the thread's
//! participant and appended as one unit before the first of these stripes is unlocked. Readers of such a change wait
//! until then ([`crate::change_positions`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use sandstorm_log::{ChangeKind, ChangeLog, LogPermit, LoggedChange};

use super::RecordTable;
use super::buckets::stripe_of;
use super::locked_stripe::LockedStripe;
use super::table_log::{TableLog, TableLogging};
use crate::broken_rules::{LogRule, is_broken};
use crate::change_positions::{ChangePositions, HashPart, UNKNOWN_POSITION};
use crate::limits::STRIPES;
use crate::{EpochGuard, Participant, RecordRef, RestoredRecord, ShownPosition, StoreError};

impl LockedStripe<'_> {
    /// Makes what follows an arrival from another server, of that version.
    pub(super) fn begin_arrival(&mut self, version: u64) {
        (self.restored_version, self.is_arrival) = (Some(version), true);
    }

    /// Whether what is done under this lock is logged: not what a log has given back.
    #[inline]
    fn is_logged(&self) -> bool {
        self.restored_version.is_none() || self.is_arrival
    }

    /// Makes what follows no change: it comes from the table's backing.
    pub(crate) fn begin_fill(&mut self) {
        (self.is_fill, self.log) = (true, None);
    }

    /// Reserves room in the log for a change that is about to be made under this lock. The result is kept until it is.
    #[inline]
    pub(super) fn admit_change(&self, key_bytes: usize, value_bytes: usize) -> Result<Option<LogPermit>, StoreError> {
        match self.log {
            Some(log) if self.is_logged() => {
                if self.is_grouped && self.participant.unit_of_changes().take_reserved(key_bytes, value_bytes) {
                    return Ok(None);
                }
                log.admit(key_bytes, value_bytes).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Logs that a record is put, just before it is published.
    #[inline]
    pub(super) fn log_put(&self, hash: u64, record: RecordRef<'_>) {
        let (key, value) = record.key_and_value();
        self.note_backed(hash, key, record.version(), key.len() + value.len());
        if let Some(log) = self.log
            && self.is_logged()
        {
            let put = log.put(record);
            let kind = if self.is_arrival { ChangeKind::Arrive } else { put.kind };
            self.log_change(log, hash, &LoggedChange { kind, ..put });
        }
    }

    /// Logs that the record of a key is removed, which takes a version. Just before it is.
    #[inline]
    pub(super) fn log_delete(&mut self, hash: u64, key: &[u8]) {
        if let Some(log) = self.log
            && self.is_logged()
        {
            self.state.last_version += 1;
            let delete = LoggedChange::delete(log.number(), self.state.last_version, key);
            let kind = if self.is_arrival { ChangeKind::Leave } else { delete.kind };
            self.log_change(log, hash, &LoggedChange { kind, ..delete });
        }
    }

    /// Logs that a copy of another server's record is removed: a start makes it so again, and it is no change.
    pub(super) fn log_leaving(&mut self, hash: u64, key: &[u8]) {
        if let Some(log) = self.log
            && self.is_logged()
        {
            self.state.last_version += 1;
            let delete = LoggedChange::delete(log.number(), self.state.last_version, key);
            self.log_change(log, hash, &LoggedChange { kind: ChangeKind::Leave, ..delete });
        }
    }

    pub(super) fn log_change(&self, log: &TableLog, hash: u64, change: &LoggedChange<'_>) {
        let part = HashPart::of(hash);
        if self.is_grouped {
            log.positions.begin_unknown(part);
            let waits = log.is_awaited().then(|| log.is_copied());
            self.participant.unit_of_changes().push(&log.log, change, (&log.positions, part), waits);
            return;
        }
        // The writer notes it before it unlocks the stripe; a thread that only makes room notes nothing.
        log.positions.set(part, log.log.append(change, false));
    }

    /// Notes that a writer has seen what is under a key, or has changed it.
    #[inline]
    pub(super) fn note_seen(&self, hash: u64) {
        if let Some(log) = self.log
            && log.is_awaited()
        {
            let position = log.positions.of(hash);
            // The thread's own unit gets its position when it is appended.
            if position != UNKNOWN_POSITION && !is_broken(LogRule::WritesAreNoted) {
                self.participant.shown().raise(log.waited(position));
            }
        }
    }

    /// Keeps the room for a change for as long as the change is not appended.
    pub(super) fn end_change(&self, permit: Option<LogPermit>) {
        if let Some(permit) = permit.filter(|_| self.is_grouped) {
            self.participant.unit_of_changes().keep(permit);
        }
    }
}

impl RecordTable {
    /// The log, if changes are logged.
    #[inline(always)]
    pub(super) fn active_log(&self) -> Option<&TableLog> {
        self.log.get().filter(|log| log.is_on())
    }

    /// Has all further changes logged, under a number that is no other table's, not even a dropped one's; or no longer,
    /// with [`TableLogging::Off`]. A table has one log for its life. A change that is under way may be missing until
    /// [`RecordTable::settle`] returns.
    pub fn set_logging(&self, log: &Arc<ChangeLog>, number: u64, logging: TableLogging) {
        let own = self.log.get_or_init(|| TableLog {
            log: Arc::clone(log),
            number: AtomicU64::new(number),
            logging: AtomicU8::new(TableLogging::Off as u8),
            positions: Arc::new(ChangePositions::new()),
        });
        own.number.store(number, Ordering::Relaxed);
        own.logging.store(logging as u8, Ordering::Release);
    }

    /// Returns whether changes are logged.
    pub fn is_logged(&self) -> bool {
        self.active_log().is_some()
    }

    /// Returns the number that the table has in the log; `None`: its changes are not logged.
    pub fn log_number(&self) -> Option<u64> {
        self.active_log().map(TableLog::number)
    }

    /// Notes that the record of a key, or its absence, was read. A change that is not in the log yet is waited for: its
    /// writer holds the stripe's lock, and waits for nothing itself.
    #[inline(always)]
    pub(super) fn note_read(&self, hash: u64, shown: &ShownPosition) {
        if let Some(log) = self.active_log() {
            self.note_logged(log, hash, shown);
        }
    }

    #[inline]
    fn note_logged(&self, log: &TableLog, hash: u64, shown: &ShownPosition) {
        let mut position = log.positions.of(hash);
        if position == UNKNOWN_POSITION && !is_broken(LogRule::UnitsAreWaitedFor) {
            if shown.is_holding() {
                // Its own unit.
                return;
            }
            drop(self.stripes[stripe_of(hash)].state.lock());
            position = log.positions.of(hash);
            if position == UNKNOWN_POSITION {
                // The next unit under this lock; the one whose change was read has its position.
                position = log.positions.last();
            }
        }
        if log.is_awaited() && !is_broken(LogRule::ReadsAreNoted) {
            shown.raise(log.waited(position));
        }
    }

    /// As [`RecordTable::note_read`] for many records, or none.
    pub fn note_all_read(&self, shown: &ShownPosition) {
        let Some(log) = self.active_log() else { return };
        if log.positions.has_unknown() && !shown.is_holding() {
            self.stripes.iter().for_each(|stripe| drop(stripe.state.lock()));
        }
        if log.is_awaited() && !is_broken(LogRule::WholeReadsAreNoted) {
            shown.raise(log.waited(log.positions.last()));
        }
    }

    /// Shows up to `limit` live records (at least one) from `cursor` on (0: the start); returns the next cursor, `None`
    /// at the end. Records that stay unchanged during a whole scan are shown at least once, in the order of their
    /// hashes, while other threads write and the table grows. It visits a bounded number of buckets, so a call may show
    /// fewer records than `limit`, or none, without being at the end.
    pub fn scan<'g>(
        &'g self,
        guard: &'g EpochGuard<'_>,
        cursor: u64,
        limit: usize,
        now_ms: u64,
        f: &mut dyn FnMut(RecordRef<'g>),
    ) -> Option<u64> {
        let cursor = self.scan_with(guard, cursor, limit, now_ms, f, &mut |_, _| false);
        self.note_all_read(guard.shown());
        cursor
    }

    /// Logs that all records are removed, those of `version` and lower ones.
    pub(super) fn log_clear(&self, log: &TableLog, participant: &Participant, version: u64) {
        let change = LoggedChange::of_table(ChangeKind::Clear, log.number(), version, b"");
        log.positions.begin_unknown(HashPart::ALL);
        let of = (&log.positions, HashPart::ALL);
        participant.unit_of_changes().push(&log.log, &change, of, log.is_awaited().then(|| log.is_copied()));
    }

    /// Returns a record as a change, for a checkpoint of the log; `None` for a table without a log.
    pub fn as_change<'r>(&self, record: RecordRef<'r>) -> Option<LoggedChange<'r>> {
        self.active_log().map(|log| log.put(record))
    }

    /// As above for a cold record that was read.
    pub fn cold_as_change<'r>(&self, record: &RestoredRecord<'r>) -> Option<LoggedChange<'r>> {
        let RestoredRecord { version, key, value, flags, expires_at_ms } = *record;
        let (kind, table) = (ChangeKind::Put, self.active_log()?.number());
        Some(LoggedChange { kind, table, version, expires_at_ms, flags, key, value })
    }

    /// Waits until each stripe was unlocked once: what was logged before this call is in the table afterwards. Returns
    /// the beginning of the table's part of a checkpoint, which has the table's name, its highest version so far and
    /// about how many records it has; `None` for a table without a log.
    pub fn settle<'n>(&self, participant: &Participant, name: &'n [u8]) -> Option<LoggedChange<'n>> {
        let version = (0..STRIPES).map(|stripe| self.lock_stripe(participant, stripe).state.last_version).max();
        let log = self.active_log()?;
        let records = u32::try_from(self.stats().records).unwrap_or(u32::MAX);
        let made = LoggedChange::of_table(ChangeKind::MakeTable, log.number(), version.unwrap_or(0), name);
        Some(LoggedChange { flags: records, ..made })
    }
}

impl super::ExclusiveStripes<'_> {
    /// Reserves room in the log for changes of so many keys, before the first one is made: `bytes` are those of the
    /// keys and values together. So they are not refused in their middle.
    ///
    /// # Errors
    /// `NotLogged`; nothing has changed then.
    pub fn reserve_log(&self, changes: usize, bytes: usize) -> Result<(), StoreError> {
        let Some(log) = self.locked.first().and_then(|locked| locked.log) else { return Ok(()) };
        log.check_copies()?;
        let mut bytes = sandstorm_log::single_unit_bytes(0, 0) * changes as u64 + bytes as u64;
        if self.table.logs_expiry() {
            // Each may replace a record whose time is over, which is a change as well.
            let key_bytes = self.table.config.max_key_len;
            bytes += (sandstorm_log::single_unit_bytes(key_bytes, 0) * changes as u64).min(bytes);
        }
        self.participant.unit_of_changes().reserve(&log.log, bytes).map_err(StoreError::NotLogged)
    }

    pub(super) fn append_unit(&self) {
        if self.table.log.get().is_some() {
            self.participant.unit_of_changes().append(self.participant.shown());
        }
        self.participant.shown().end_holding();
    }
}

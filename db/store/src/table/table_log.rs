//! A table's side of the log of changes. A change is appended under the lock of its stripe, once it is certain: so the
//! log has the changes of a key in their order, and a change that depends on another one comes behind it.
//!
//! Changes that happen at once, while stripes are held ([`super::ExclusiveStripes`]), are gathered by the thread's
//! participant and appended as one unit before the first of these stripes is unlocked.

use std::sync::Arc;

use sandstorm_log::{ChangeKind, ChangeLog, LogPermit, LoggedChange};

use super::RecordTable;
use super::locked_stripe::LockedStripe;
use crate::limits::STRIPES;
use crate::{Participant, RecordRef, StoreError};

/// The log of a table's changes, and the number that the table has there.
#[derive(Clone, Debug)]
pub struct TableLog {
    log: Arc<ChangeLog>,
    number: u64,
}

impl TableLog {
    /// The log for a table. The number is no other table's, not even a dropped one's.
    pub fn new(log: Arc<ChangeLog>, number: u64) -> TableLog {
        TableLog { log, number }
    }

    /// Reserves room for a change.
    pub(super) fn admit(&self, key_bytes: usize, value_bytes: usize) -> Result<LogPermit, StoreError> {
        self.log.admit(key_bytes, value_bytes).map_err(StoreError::NotLogged)
    }

    /// Returns a put of a record.
    fn put<'r>(&self, record: RecordRef<'r>) -> LoggedChange<'r> {
        let (key, value) = record.key_and_value();
        let (version, expires_at_ms, flags) = (record.version(), record.expires_at_ms(), record.flags());
        LoggedChange { kind: ChangeKind::Put, table: self.number, version, expires_at_ms, flags, key, value }
    }
}

impl LockedStripe<'_> {
    /// Reserves room in the log for a change that is about to be made under this lock. The result is kept until it is.
    #[inline]
    pub(super) fn admit_change(&self, key_bytes: usize, value_bytes: usize) -> Result<Option<LogPermit>, StoreError> {
        match self.table.log.get() {
            Some(log) if self.restored_version.is_none() => log.admit(key_bytes, value_bytes).map(Some),
            _ => Ok(None),
        }
    }

    /// Logs that a record was put.
    #[inline]
    pub(super) fn log_put(&self, record: RecordRef<'_>) {
        if let Some(log) = self.table.log.get()
            && self.restored_version.is_none()
        {
            self.log_change(log, &log.put(record));
        }
    }

    /// Logs that the record of a key is removed, which takes a version.
    #[inline]
    pub(super) fn log_delete(&mut self, key: &[u8]) {
        if let Some(log) = self.table.log.get()
            && self.restored_version.is_none()
        {
            self.state.last_version += 1;
            self.log_change(log, &LoggedChange::delete(log.number, self.state.last_version, key));
        }
    }

    fn log_change(&self, log: &TableLog, change: &LoggedChange<'_>) {
        if self.is_grouped {
            self.participant.unit_of_changes().push(&log.log, change);
        } else {
            log.log.append(change, false);
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
    /// Has all further changes logged. Once, before other threads have the table.
    pub fn start_logging(&self, log: TableLog) {
        let _only_once = self.log.set(log);
    }

    /// Logs that all records are removed, those of `version` and lower ones.
    pub(super) fn log_clear(&self, participant: &Participant, version: u64) {
        if let Some(log) = self.log.get() {
            let change = LoggedChange::of_table(ChangeKind::Clear, log.number, version, b"");
            participant.unit_of_changes().push(&log.log, &change);
        }
    }

    /// Returns a record as a change, for a checkpoint of the log; `None` for a table without a log.
    pub fn as_change<'r>(&self, record: RecordRef<'r>) -> Option<LoggedChange<'r>> {
        self.log.get().map(|log| log.put(record))
    }

    /// Waits until each stripe was unlocked once: what was logged before this call is in the table afterwards. Returns
    /// the beginning of the table's part of a checkpoint, which has the table's name and its highest version so far;
    /// `None` for a table without a log.
    pub fn settle<'n>(&self, participant: &Participant, name: &'n [u8]) -> Option<LoggedChange<'n>> {
        let version = (0..STRIPES).map(|stripe| self.lock_stripe(participant, stripe).state.last_version).max();
        let log = self.log.get()?;
        Some(LoggedChange::of_table(ChangeKind::MakeTable, log.number, version.unwrap_or(0), name))
    }
}

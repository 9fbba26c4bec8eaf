//! The log of changes as one table uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use sandstorm_log::{ChangeKind, ChangeLog, LogPermit, LogRefusal, LoggedChange};

use crate::change_positions::ChangePositions;
use crate::{RecordRef, StoreError};

/// How a table's changes are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableLogging {
    /// They are not logged.
    Off = 0,
    /// They are logged, and shown at once.
    AtOnce = 1,
    /// They are logged; a caller that has seen one has a [`ShownPosition`](crate::ShownPosition) that waits for it.
    Awaited = 2,
    /// As above, and it waits for the copies on other servers, too.
    Copied = 3,
}

/// The log of a table's changes, and the number that the table has there.
#[derive(Debug)]
pub(super) struct TableLog {
    pub(super) log: Arc<ChangeLog>,
    pub(super) number: AtomicU64,
    /// A [`TableLogging`].
    pub(super) logging: AtomicU8,
    pub(super) positions: Arc<ChangePositions>,
}

impl TableLog {
    /// Reserves room for a change.
    pub(super) fn admit(&self, key_bytes: usize, value_bytes: usize) -> Result<LogPermit, StoreError> {
        self.check_copies()?;
        self.log.admit(key_bytes, value_bytes).map_err(StoreError::NotLogged)
    }

    /// Refuses changes that would wait for copies which have been missing for too long.
    pub(super) fn check_copies(&self) -> Result<(), StoreError> {
        let is_missing = self.is_copied() && self.log.are_copies_missing();
        if is_missing { Err(StoreError::NotLogged(LogRefusal::NotCopied)) } else { Ok(()) }
    }

    pub(super) fn is_on(&self) -> bool {
        self.logging.load(Ordering::Acquire) != TableLogging::Off as u8
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.logging.load(Ordering::Acquire) >= TableLogging::Awaited as u8
    }

    /// What is waited for besides a position: the copies on other servers.
    pub(super) fn is_copied(&self) -> bool {
        self.logging.load(Ordering::Acquire) == TableLogging::Copied as u8
    }

    /// A position as what shows the table waits for it.
    pub(super) fn waited(&self, position: u64) -> u64 {
        if self.is_copied() { self.log.copied_position(position) } else { position }
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Returns a put of a record.
    pub(super) fn put<'r>(&self, record: RecordRef<'r>) -> LoggedChange<'r> {
        let (key, value) = record.key_and_value();
        let (version, expires_at_ms, flags) = (record.version(), record.expires_at_ms(), record.flags());
        LoggedChange { kind: ChangeKind::Put, table: self.number(), version, expires_at_ms, flags, key, value }
    }
}

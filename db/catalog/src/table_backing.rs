//! The settings of a table's backing, and how they may change.

use std::sync::Arc;

use sandstorm_backing::{BackedTable, BackingPolicy, BackingSettings};
use sandstorm_log::ChangeLog;
use sandstorm_store::TableLogging;
use serde::{Deserialize, Serialize};

use super::TableEntry;
use super::error::DirectoryError;
use super::table_durability::TableDurability;

/// What is kept of a table with a backing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableBacking {
    /// What is behind it, and how it is used.
    pub settings: BackingSettings,
    /// The number by which it knows objects that it has written.
    pub writer: u64,
    /// The number in the log of the marks of changed records.
    pub marks: u64,
}

/// The backing of an existing table.
#[derive(Debug)]
pub(crate) struct EntryBacking {
    pub(super) table: Arc<BackedTable>,
    pub(super) marks: u64,
}

impl TableBacking {
    /// That of a new table.
    pub(super) fn new(settings: BackingSettings) -> TableBacking {
        TableBacking { settings, writer: sandstorm_log::new_table_number(), marks: sandstorm_log::new_table_number() }
    }
}

impl EntryBacking {
    pub(super) fn definition(&self) -> TableBacking {
        TableBacking { settings: self.table.settings(), writer: self.table.writer(), marks: self.marks }
    }
}

/// A change of how a table uses its backing; what is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackingAlteration {
    /// The policy for writes.
    pub policy: Option<BackingPolicy>,
    /// The name of the secret with the credentials, which are read anew.
    pub secret: Option<String>,
    /// See [`BackingSettings`].
    pub fresh_ms: Option<u64>,
    /// As above.
    pub stale_ms: Option<u64>,
    /// As above.
    pub absent_ms: Option<u64>,
    /// As above.
    pub flush_after_ms: Option<u64>,
    /// As above.
    pub dirty_limit_bytes: Option<u64>,
}

impl BackingAlteration {
    /// Returns whether nothing is to change.
    pub fn is_empty(&self) -> bool {
        *self == BackingAlteration::default()
    }
}

impl TableEntry {
    /// What it is a cache of, if it is one.
    pub fn backing(&self) -> Option<&Arc<BackedTable>> {
        self.backing.get().map(|backing| &backing.table)
    }

    /// Has the changes of the table, and the marks of those that its backing does not have, logged.
    pub(super) fn set_logging(&self, log: &Arc<ChangeLog>, number: u64, logging: TableLogging) {
        if let Some(backing) = self.backing.get() {
            backing.table.marks().set_logging(log, backing.marks, logging);
        }
        self.table.set_logging(log, number, logging);
    }
}

pub(super) fn refused(table: &str, why: impl ToString) -> DirectoryError {
    DirectoryError::CannotBack { table: table.to_owned(), why: why.to_string() }
}

/// Refuses a policy that loses acknowledged writes with a crash.
pub(super) fn check_policy(
    table: &str,
    policy: BackingPolicy,
    durability: TableDurability,
) -> Result<(), DirectoryError> {
    if policy == BackingPolicy::WriteBack && durability.is_none() {
        let why = "with write-back the log has what the backing has not yet: its durability is interval or disk";
        return Err(refused(table, why));
    }
    Ok(())
}

/// Refuses to drop a table with records that its backing does not have.
pub(super) fn check_drop(entry: &TableEntry) -> Result<(), DirectoryError> {
    let changed = entry.backing().map_or(0, |backing| backing.stats().dirty_keys);
    if changed > 0 {
        let why = format!("its backing does not have {changed} changed records yet: `sandstorm table flush` before");
        return Err(refused(&entry.name(), why));
    }
    Ok(())
}

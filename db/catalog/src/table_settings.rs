//! What may change of a table while it is used: its name, its mode and its quota (and its durability: see
//! [`super::durability`]).
//!
//! A change holds for all users of the table, with older snapshots as well, because they share the entry. A table keeps
//! its id, so clients that have it notice nothing of a new name; grants of it get the new name, too. Whether the keys
//! are in order is fixed when a table is made.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::RwLock;
use sandstorm_store::{Participant, StorageMode};

use super::TableEntry;
use super::expiry_watchers::ExpiryWatchers;
use super::table_backing::{EntryBacking, TableBacking};
use super::table_durability::TableDurability;

/// A name that may change while it is used.
#[derive(Debug)]
pub(crate) struct CurrentName(RwLock<Arc<str>>);

impl CurrentName {
    pub(super) fn new(name: &str) -> CurrentName {
        CurrentName(RwLock::new(name.into()))
    }

    pub(super) fn get(&self) -> Arc<str> {
        self.0.read().clone()
    }

    pub(super) fn set(&self, name: Arc<str>) {
        *self.0.write() = name;
    }
}

/// See the head of this file: as the journal has it, before the entry does.
#[derive(Clone, Debug)]
pub(crate) struct TableDefinition {
    pub(super) name: Arc<str>,
    pub(super) mode: StorageMode,
    pub(super) quota_bytes: u64,
    pub(super) durability: TableDurability,
    /// Its number in the log; 0: none.
    pub(super) log: u64,
    /// What it is a cache of.
    pub(super) backing: Option<TableBacking>,
    /// The watchers that are told when its records expire.
    pub(super) expiry: ExpiryWatchers,
}

impl TableDefinition {
    /// Those of a table now.
    pub(super) fn of(entry: &TableEntry) -> TableDefinition {
        TableDefinition {
            name: entry.name(),
            mode: entry.mode(),
            quota_bytes: entry.quota_bytes(),
            durability: entry.durability(),
            log: entry.durability.number(),
            backing: entry.backing.get().map(EntryBacking::definition),
            // Of a table that has no settings yet.
            expiry: ExpiryWatchers::default(),
        }
    }

    /// Gives a table its name, mode and quota. Under the directory's lock for changes.
    pub(super) fn apply(&self, entry: &TableEntry, participant: &Participant) {
        entry.name.set(Arc::clone(&self.name));
        entry.table.set_quota_bytes(self.quota_bytes);
        let tells_triggers = entry.tells_triggers_of_expiry.load(Relaxed);
        entry.table.set_expiry_logging(tells_triggers || !self.expiry.is_empty());
        if let (Some(entry), Some(backing)) = (entry.backing(), &self.backing) {
            entry.apply(&backing.settings);
        }
        if entry.mode() != self.mode {
            entry.table.set_mode(participant, self.mode);
        }
    }
}

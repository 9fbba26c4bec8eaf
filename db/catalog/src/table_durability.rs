//! The durability of a table: what a crash may take of its records.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

use sandstorm_store::{StorageMode, TableLogging};
use serde::{Deserialize, Serialize};

/// What a crash may take of a table's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableDurability {
    /// All of them: they are in memory only.
    #[default]
    None,
    /// The writes of the last 100 ms: they are acknowledged at once.
    Interval,
    /// Nothing that was acknowledged or shown: answers wait for the disk.
    Disk,
    /// As above, also if the server's disk is lost: answers wait for the disks of other servers, too.
    Copies,
}

impl TableDurability {
    const ALL: [TableDurability; 4] =
        [TableDurability::None, TableDurability::Interval, TableDurability::Disk, TableDurability::Copies];

    /// Its name, as the control API has it.
    pub fn name(self) -> &'static str {
        match self {
            TableDurability::None => "none",
            TableDurability::Interval => "interval",
            TableDurability::Disk => "disk",
            TableDurability::Copies => "copies",
        }
    }

    /// Whether this is the default.
    pub fn is_none(&self) -> bool {
        *self == TableDurability::None
    }

    /// What it means for the table's changes.
    pub(super) fn logging(self) -> TableLogging {
        match self {
            TableDurability::None => TableLogging::Off,
            TableDurability::Interval => TableLogging::AtOnce,
            TableDurability::Disk => TableLogging::Awaited,
            TableDurability::Copies => TableLogging::Copied,
        }
    }
}

/// The durability of new tables that are created without one, by their mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultDurability {
    /// Of tables in store mode, and of those larger than memory.
    pub store: TableDurability,
    /// Of tables in cache mode.
    pub cache: TableDurability,
}

impl Default for DefaultDurability {
    fn default() -> DefaultDurability {
        DefaultDurability { store: TableDurability::Interval, cache: TableDurability::None }
    }
}

impl DefaultDurability {
    /// Of a server that keeps nothing: every table is in memory only.
    pub const MEMORY_ONLY: DefaultDurability =
        DefaultDurability { store: TableDurability::None, cache: TableDurability::None };

    /// That of a new table in this mode.
    pub fn of(self, mode: StorageMode) -> TableDurability {
        match mode {
            StorageMode::Store | StorageMode::Spill => self.store,
            StorageMode::Cache => self.cache,
        }
    }
}

/// The durability of a table, and its number in the log (0: none); both may change while it is used.
#[derive(Debug)]
pub(super) struct CurrentDurability {
    durability: AtomicU8,
    number: AtomicU64,
}

impl CurrentDurability {
    pub(super) fn new(durability: TableDurability, number: u64) -> CurrentDurability {
        CurrentDurability { durability: AtomicU8::new(durability as u8), number: AtomicU64::new(number) }
    }

    pub(super) fn get(&self) -> TableDurability {
        let index = usize::from(self.durability.load(Relaxed));
        TableDurability::ALL.get(index).copied().unwrap_or_default()
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Relaxed)
    }

    /// Under the directory's lock for changes.
    pub(super) fn set(&self, durability: TableDurability, number: u64) {
        self.number.store(number, Relaxed);
        self.durability.store(durability as u8, Relaxed);
    }
}

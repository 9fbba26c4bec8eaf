//! The settings of a table with a backing.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{DEFAULT_ABSENT_MS, DEFAULT_DIRTY_BYTES, DEFAULT_FLUSH_AFTER_MS};

/// The policy for writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackingPolicy {
    /// A write is answered when the backing has it.
    #[default]
    WriteThrough = 0,
    /// A write is answered at once, and written to the backing later.
    WriteBack = 1,
    /// Clients read only; a delete makes the table forget what it has in memory.
    ReadThrough = 2,
}

impl BackingPolicy {
    /// All of them.
    pub const ALL: [BackingPolicy; 3] =
        [BackingPolicy::WriteThrough, BackingPolicy::WriteBack, BackingPolicy::ReadThrough];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            BackingPolicy::WriteThrough => "write-through",
            BackingPolicy::WriteBack => "write-back",
            BackingPolicy::ReadThrough => "read-through",
        }
    }
}

/// What lies behind a table, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackingSettings {
    /// Where it is: see [`crate::open_objects`].
    pub url: String,
    /// The name of the tenant's secret with the credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The policy for writes.
    #[serde(default)]
    pub policy: BackingPolicy,
    /// Milliseconds for which a loaded record is not looked for again; 0: until it is evicted.
    #[serde(default)]
    pub fresh_ms: u64,
    /// Milliseconds after these for which it is still shown while it is loaded anew.
    #[serde(default)]
    pub stale_ms: u64,
    /// Milliseconds for which an absent key is remembered.
    #[serde(default = "default_absent_ms")]
    pub absent_ms: u64,
    /// Milliseconds for which a changed record gathers further changes, with write-back.
    #[serde(default = "default_flush_after_ms")]
    pub flush_after_ms: u64,
    /// Bytes that may wait to be written.
    #[serde(default = "default_dirty_bytes")]
    pub dirty_limit_bytes: u64,
}

fn default_absent_ms() -> u64 {
    DEFAULT_ABSENT_MS
}

fn default_flush_after_ms() -> u64 {
    DEFAULT_FLUSH_AFTER_MS
}

fn default_dirty_bytes() -> u64 {
    DEFAULT_DIRTY_BYTES
}

impl BackingSettings {
    /// Returns those of a URL, with defaults for the rest.
    pub fn of(url: &str) -> BackingSettings {
        BackingSettings {
            url: url.to_owned(),
            secret: None,
            policy: BackingPolicy::default(),
            fresh_ms: 0,
            stale_ms: 0,
            absent_ms: DEFAULT_ABSENT_MS,
            flush_after_ms: DEFAULT_FLUSH_AFTER_MS,
            dirty_limit_bytes: DEFAULT_DIRTY_BYTES,
        }
    }
}

/// Counters of a table with a backing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackingStats {
    /// Keys that the backing does not have as they are.
    pub dirty_keys: u64,
    /// Their bytes.
    pub dirty_bytes: u64,
    /// Milliseconds since the oldest of them was changed.
    pub oldest_dirty_ms: u64,
    /// Of them, those that another writer has changed in the backing as well.
    pub conflicted_keys: u64,
    /// Records that were asked for there, and absent ones, since the table was made.
    pub loads: u64,
    /// Of them, those that failed.
    pub load_errors: u64,
    /// Objects that were written or deleted there.
    pub flushes: u64,
    /// Attempts that failed.
    pub flush_errors: u64,
    /// Conflicts with other writers.
    pub conflicts: u64,
    /// Changes that were refused.
    pub backing_refusals: u64,
    /// Whether it counts as down.
    pub is_down: bool,
    /// The last error, if the last request failed.
    pub last_error: Option<String>,
}

/// What a flush does with keys that another writer has changed as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictChoice {
    /// It leaves them dirty, and fails.
    #[default]
    Keep,
    /// This table's records replace the other's.
    Ours,
    /// The other's records replace this table's.
    Theirs,
}

/// The reason why a flush has not written everything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlushError {
    /// Not all was written in time.
    #[error("after {} s there are still {left} changed records that the backing does not have{}", .waited.as_secs(), .error.as_ref().map(|error| format!("; {error}")).unwrap_or_default())]
    NotInTime {
        /// The time.
        waited: Duration,
        /// Keys that are left.
        left: u64,
        /// The backing's last error.
        error: Option<String>,
    },
    /// Other writers have changed objects as well.
    #[error("{0} records were changed by another writer as well, and stay as they are here")]
    Conflicts(u64),
}

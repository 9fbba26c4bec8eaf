//! The types of the store's interface: configuration, writes, errors, counters.

use sandstorm_log::LogRefusal;

use crate::backed::refusal::BackingRefusal;
use crate::limits;
use crate::spill::SpillRefusal;

/// The behaviour of a table when a write would take it over its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageMode {
    /// Refuses the write with [`StoreError::OutOfMemory`].
    Store,
    /// Evicts other records: those that were read only once leave first.
    Cache,
    /// Moves the values of other records to the disk: those that were read only once leave first. Keys stay.
    Spill,
}

impl StorageMode {
    /// Returns the mode's name.
    pub fn name(self) -> &'static str {
        match self {
            StorageMode::Store => "store",
            StorageMode::Cache => "cache",
            StorageMode::Spill => "spill",
        }
    }

    /// Returns whether records leave memory when there is no room.
    #[inline]
    pub fn makes_room(self) -> bool {
        self != StorageMode::Store
    }
}

/// The configuration of a table; fixed for its life.
#[derive(Clone, Copy, Debug)]
pub struct TableConfig {
    /// The behaviour at the quota.
    pub mode: StorageMode,
    /// Bytes of records, each counted with its overhead (see [`limits::RECORD_CHARGE_BYTES`]).
    pub quota_bytes: u64,
    /// Longest key in bytes; at most [`limits::MAX_KEY_BYTES`].
    pub max_key_len: usize,
    /// Longest value in bytes; at most [`limits::MAX_VALUE_BYTES`].
    pub max_value_len: usize,
    /// Whether the keys are kept in order as well, for ranges.
    pub ordered: bool,
}

impl Default for TableConfig {
    fn default() -> Self {
        TableConfig {
            mode: StorageMode::Store,
            quota_bytes: limits::DEFAULT_TABLE_QUOTA_BYTES,
            max_key_len: limits::MAX_KEY_BYTES,
            max_value_len: limits::MAX_VALUE_BYTES,
            ordered: false,
        }
    }
}

/// The condition of a write or delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreCondition {
    /// Always.
    #[default]
    Always,
    /// Only if there is no record (an expired one is none).
    Absent,
    /// Only if there is a record.
    Present,
    /// Only if there is a record of exactly this version.
    Version(u64),
}

impl StoreCondition {
    /// Returns whether the condition holds where `found` is the version of the live record, if there is one.
    #[inline]
    pub fn is_met(self, found: Option<u64>) -> bool {
        match self {
            StoreCondition::Always => true,
            StoreCondition::Absent => found.is_none(),
            StoreCondition::Present => found.is_some(),
            StoreCondition::Version(version) => found == Some(version),
        }
    }
}

/// The properties of a write. The default: always, no flags, never expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The condition of the write.
    pub condition: StoreCondition,
    /// The caller's flags, kept with the record.
    pub flags: u32,
    /// Milliseconds since the Unix epoch from which on the record counts as absent; 0: never.
    pub expires_at_ms: u64,
}

/// The marks that a record keeps beside its value, for memcached's meta commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordMarks {
    /// The record was invalidated, but may still be shown.
    pub stale: bool,
    /// A client was told to renew the record.
    pub sent: bool,
    /// The record was read. In a cache, since eviction last checked.
    pub fetched: bool,
}

/// The reason why an operation did not happen; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The condition did not hold.
    #[error("the condition of the write does not hold: read the record again")]
    Conflict,
    /// The quota is reached (or the bound on one bucket's chain).
    #[error("the table's memory quota is reached: delete records or raise the quota")]
    OutOfMemory,
    /// The quota is not reached, but the system gives the server no memory.
    #[error(
        "the server's machine has no memory left, though the table's quota is not reached: the operator has to free some, or add \
         some; write again later"
    )]
    NoMemory,
    /// Too many replaced or deleted records cannot be freed, since readers that began earlier may still read them.
    #[error("too many replaced records of the table are still being read by earlier calls: write again in a moment")]
    ReclaimPressure,
    /// The key is longer than the table allows.
    #[error("the key is longer than the table allows")]
    KeyTooLarge,
    /// The value is longer than the table allows.
    #[error("the value is longer than the table allows")]
    ValueTooLarge,
    /// An increment met a value that is no decimal number, or the sum does not fit in 64 bits.
    #[error("the value is not a decimal number, or the sum does not fit in 64 bits")]
    NotANumber,
    /// The change cannot be logged, and the table's changes have to be.
    #[error("the table's records are kept on disk, and the change cannot be: {0}; reads go on")]
    NotLogged(LogRefusal),
    /// The table's memory is full, and no record can move to the disk.
    #[error("the table's memory is full, and its records cannot move to the disk: {0}; reads go on")]
    NotSpilled(SpillRefusal),
    /// The table is in front of a backing, which does not take the change.
    #[error("the table's backing does not take the change: {0}; reads of what is in memory go on")]
    NotBacked(BackingRefusal),
    /// The record's value is on the disk, and was not read: nothing was done. A caller that meets this waits for the
    /// record and asks again, so that clients never see it.
    #[error("the record's value is on the disk: ask again")]
    Cold,
    /// The key lies in a slot that another server of the cluster owns.
    #[error("another server owns the key's slot: `{{tag}}` in keys brings them together")]
    WrongServer,
}

/// Counters of one table. Read without a lock: each is right at some moment of the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Records in the table; expired ones count until a read, a write or a sweep finds them.
    pub records: u64,
    /// Bytes charged against the quota.
    pub bytes: u64,
    /// The quota in bytes.
    pub quota_bytes: u64,
    /// Slots of the bucket array; while the table grows, of the new one.
    pub capacity: u64,
    /// Records evicted to make room, since the table was made.
    pub evictions: u64,
    /// Records removed because they had expired, since the table was made.
    pub expirations: u64,
    /// Writes refused because of the quota, since the table was made.
    pub refusals: u64,
    /// Writes refused because too many replaced records could not be freed yet, since the table was made.
    pub held_back: u64,
    /// Writes refused because the system gave no memory, since the table was made.
    pub no_memory_refusals: u64,
    /// Bytes of records that were replaced, deleted, evicted or expired, and are not freed yet.
    pub garbage_bytes: u64,
    /// Times the bucket array grew, since the table was made.
    pub growths: u64,
}

//! The changes of a transaction.

use super::super::RecordTable;

/// One change of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct KeyChange<'k> {
    /// The table.
    pub table: &'k RecordTable,
    /// [`RecordTable::hash`] of the key.
    pub hash: u64,
    /// The key.
    pub key: &'k [u8],
    /// The record to write; `None`: the record is removed.
    pub becomes: Option<NewRecord<'k>>,
}

/// A record to write.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'k> {
    /// The record's value.
    pub value: &'k [u8],
    /// The record's flags.
    pub flags: u32,
    /// The time from which on it counts as absent, in milliseconds since the Unix epoch; 0: never.
    pub expires_at_ms: u64,
}

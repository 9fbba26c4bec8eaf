//! What a transaction changes.

use super::super::RecordTable;

/// What a transaction changes.
#[derive(Clone, Copy, Debug)]
pub struct KeyChange<'k> {
    /// Where.
    pub table: &'k RecordTable,
    /// [`RecordTable::hash`] of the key.
    pub hash: u64,
    /// The key.
    pub key: &'k [u8],
    /// The record that is to be there; `None`: there is to be none.
    pub becomes: Option<NewRecord<'k>>,
}

/// A record to be.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'k> {
    /// Its value.
    pub value: &'k [u8],
    /// Its flags.
    pub flags: u32,
    /// Milliseconds since the Unix epoch from which on it counts as absent; 0: never.
    pub expires_at_ms: u64,
}

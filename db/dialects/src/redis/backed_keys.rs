//! Keys of tables with a backing, and their changes.

use sandstorm_store::RecordTable;
use sandstorm_store::backed::{BackedChange, BackedKeyChange};

/// A key with a new value of so many bytes.
pub(super) fn put<'k>(
    table: &RecordTable,
    key: &'k [u8],
    value_bytes: usize,
    expires_at_ms: u64,
) -> BackedKeyChange<'k> {
    let change = BackedChange { put_bytes: Some(key.len() + value_bytes), expires_at_ms };
    BackedKeyChange { hash: crate::hash_key(table, key), key, change }
}

/// A key that is deleted.
pub(super) fn delete<'k>(table: &RecordTable, key: &'k [u8]) -> BackedKeyChange<'k> {
    let change = BackedChange { put_bytes: None, expires_at_ms: 0 };
    BackedKeyChange { hash: crate::hash_key(table, key), key, change }
}

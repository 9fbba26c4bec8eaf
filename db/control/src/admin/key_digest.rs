//! Digests of keys, shown to roles that may not see keys.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::OnceLock;

use sandstorm_catalog::TableEntry;

/// A digest of a key by its table's hash of all its bytes, by a secret of this process: it can be compared, and not be
/// guessed from.
pub(super) fn key_digest(hash: u64, key_len: usize) -> String {
    digest_of((hash, key_len))
}

/// The digest of a slow request's key: that of [`key_digest`] while the request keeps all of the key, and of a longer
/// one a digest of its beginning.
pub(super) fn slow_key_digest((prefix, key_len): (&[u8], usize), table: Option<&TableEntry>) -> String {
    match table.filter(|_| prefix.len() == key_len) {
        Some(entry) => key_digest(entry.table.hash(prefix), key_len),
        None => digest_of((prefix, key_len)),
    }
}

fn digest_of(what: impl Hash) -> String {
    static SECRET: OnceLock<RandomState> = OnceLock::new();
    format!("{:016x}", SECRET.get_or_init(RandomState::new).hash_one(what))
}

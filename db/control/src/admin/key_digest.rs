//! Digests of keys, for roles that may not see keys.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// Bytes of a key that its digest is made of: as many as a slow request has.
const DIGEST_BYTES: usize = sandstorm_accounts::limits::SLOW_KEY_BYTES;

/// A digest of the beginning of a key and its length, by a secret of this process: it can be compared, and not be
/// guessed from.
pub(super) fn key_digest(prefix: &[u8], key_len: usize) -> String {
    static SECRET: OnceLock<RandomState> = OnceLock::new();
    let prefix = &prefix[..prefix.len().min(DIGEST_BYTES)];
    format!("{:016x}", SECRET.get_or_init(RandomState::new).hash_one((prefix, key_len)))
}

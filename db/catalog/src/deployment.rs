//! Trying a version on a share of an extension's calls.
//!
//! A deployment names a kept version and a share. Calls that name no version are divided by their key: the same key
//! always goes to the same version, and a larger share only adds keys to the new one. The key of a call is the one that
//! the caller names (the first of an `FCALL`, the one that a client's call is near), else the caller's connection.

use serde::{Deserialize, Serialize};

/// A version that gets a share of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// The kept version.
    pub version: u64,
    /// Its share, 1 to 99 of a hundred keys.
    pub percent: u32,
    /// Its beginning, or the last change of its share, in milliseconds since 1970.
    pub since_ms: u64,
}

impl Deployment {
    /// Whether calls with that key go to it.
    #[inline]
    pub fn has_key(&self, key: u64) -> bool {
        key % 100 < u64::from(self.percent)
    }
}

//! Sources that travel inside the binary: the extension API and the vetted libraries (see `db/build.rs`).

use sha2::{Digest, Sha256};

/// One vetted library as published.
pub(super) struct Embedded {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) edition: &'static str,
    /// Path under the crate's `src/`, text.
    pub(super) files: &'static [(&'static str, &'static str)],
}

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Fingerprint of the extension API: the first 8 bytes, little-endian, of the SHA-256 over its embedded sources. What an
/// extension was built against and what the server was built with must be the same. The stand-in for tests is no part
/// of it.
pub fn api_fingerprint() -> u64 {
    let mut hasher = Sha256::new();
    let built_in = API.iter().filter(|(path, _)| *path != "testing.rs" && !path.starts_with("testing/"));
    for (path, text) in built_in {
        for part in [path, text] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
    }
    let digest: [u8; 32] = hasher.finalize().into();
    digest.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first))
}

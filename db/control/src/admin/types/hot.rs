//! The JSON bodies about hot keys.

use serde::Serialize;

/// `GET /v1/tenants/{tenant}/tables/{name}/hot`.
#[derive(Clone, Debug, Serialize)]
pub struct HotResponse {
    /// Seconds for which was counted.
    pub seconds: u64,
    /// Reads and writes of keys of the table.
    pub requests: u64,
    /// Bytes of the values that they read or wrote.
    pub bytes: u64,
    /// Requests that were not counted, because two were at the same time.
    pub missed: u64,
    /// The keys with most requests, the first first.
    pub by_requests: Vec<HotKeyResponse>,
    /// The keys with most bytes.
    pub by_bytes: Vec<HotKeyResponse>,
    /// CPU time of calls that read a key of the table and ended meanwhile, nanoseconds.
    pub cpu_ns: u64,
    /// The keys that calls with most of it read first.
    pub by_cpu: Vec<HotKeyResponse>,
}

/// `GET /v1/hot`.
#[derive(Clone, Debug, Serialize)]
pub struct HotSpotsResponse {
    /// When it was read, in milliseconds since 1970.
    pub at_ms: u64,
    /// Keys that take much of their table's accesses now, those with most a second first.
    pub keys: Vec<HotSpotResponse>,
}

/// A key that takes much of its table's accesses now.
#[derive(Clone, Debug, Serialize)]
pub struct HotSpotResponse {
    /// The tenant whose table it is.
    pub tenant: String,
    /// The table.
    pub table: String,
    /// The key's first 64 bytes, for its tenant alone. Bytes that are no text are replaced.
    pub key: Option<String>,
    /// A digest of the key, as slow requests have it.
    pub key_digest: String,
    /// Bytes of the key.
    pub key_bytes: u64,
    /// Its part of the table's accesses, at least.
    pub share: f64,
    /// Accesses of the key a second, about.
    pub per_s: f64,
    /// Drawn accesses of the table by which that is known.
    pub samples: u64,
}

/// A key that is used much.
#[derive(Clone, Debug, Serialize)]
pub struct HotKeyResponse {
    /// Its first 64 bytes, for its tenant alone. Bytes that are no text are replaced.
    pub key: Option<String>,
    /// A digest of the beginning of the key and its length, as slow requests have it.
    pub key_digest: String,
    /// Bytes of the key.
    pub key_bytes: u64,
    /// Its requests, or their bytes.
    pub count: u64,
    /// How much of that may be other keys'.
    pub error: u64,
    /// Its part of all requests, or bytes.
    pub share: f64,
}

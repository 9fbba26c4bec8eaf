//! The JSON bodies about large records.

use serde::Serialize;

/// `GET /v1/tenants/{tenant}/tables/{name}/big`.
#[derive(Clone, Debug, Serialize)]
pub struct BigResponse {
    /// Records of the table.
    pub records: u64,
    /// Those of them that were looked at.
    pub looked_at: u64,
    /// Bytes of key and value that half of these have at most.
    pub p50_bytes: u64,
    /// The same of 99 in 100.
    pub p99_bytes: u64,
    /// The largest of these.
    pub max_bytes: u64,
    /// Their sum.
    pub sum_bytes: u64,
    /// The largest ones, the first first.
    pub largest: Vec<BigRecordResponse>,
}

/// A large record.
#[derive(Clone, Debug, Serialize)]
pub struct BigRecordResponse {
    /// The beginning of its key, for its tenant alone. Bytes that are no text are replaced.
    pub key: Option<String>,
    /// A digest of the beginning of the key and its length, as slow requests have it.
    pub key_digest: String,
    /// Bytes of the key.
    pub key_bytes: u64,
    /// Bytes of the value.
    pub value_bytes: u64,
}

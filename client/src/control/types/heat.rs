//! Heat maps of tables, and their large records.

use serde::{Deserialize, Serialize};

/// `GET /v1/tenants/{tenant}/tables/{name}/heat`: accesses of a table over key ranges and time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatMapReport {
    /// Seconds for which was counted, one after the other in all lists here.
    pub seconds: u64,
    /// All accesses in each second.
    pub accesses: Vec<u64>,
    /// Keys that were drawn in each: the estimates' exactness.
    pub sampled: Vec<u64>,
    /// Accesses that were not counted, because two were at the same time.
    pub missed: u64,
    /// The ranges, in the order of the keys.
    pub ranges: Vec<HeatMapRange>,
}

/// A range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatMapRange {
    /// The beginnings of the least and the largest key that were seen in it, for their tenant alone.
    pub first: Option<String>,
    /// See `first`.
    pub last: Option<String>,
    /// Accesses in each second, estimated.
    pub accesses: Vec<u64>,
}

/// `GET /v1/tenants/{tenant}/tables/{name}/big`: the largest records of a table, of those that were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BigReport {
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
    pub largest: Vec<BigRecordReport>,
}

/// A large record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BigRecordReport {
    /// The beginning of its key, for its tenant alone.
    pub key: Option<String>,
    /// A digest of the beginning of the key and its length, as slow requests have it.
    pub key_digest: String,
    /// Bytes of the key.
    pub key_bytes: u64,
    /// Bytes of the value.
    pub value_bytes: u64,
}

//! The JSON bodies about heat maps.

use serde::Serialize;

/// `GET /v1/tenants/{tenant}/tables/{name}/heat`.
#[derive(Clone, Debug, Serialize)]
pub struct HeatResponse {
    /// Seconds for which was counted, one after the other in all lists here.
    pub seconds: u64,
    /// All accesses in each second.
    pub accesses: Vec<u64>,
    /// Keys that were drawn in each: the estimates' exactness.
    pub sampled: Vec<u64>,
    /// Accesses that were not counted, because two were at the same time.
    pub missed: u64,
    /// The ranges, in the order of the keys.
    pub ranges: Vec<HeatRangeResponse>,
}

/// A range of keys.
#[derive(Clone, Debug, Serialize)]
pub struct HeatRangeResponse {
    /// The beginnings of the least and the largest key that were seen in it, for their tenant alone.
    pub first: Option<String>,
    /// See `first`.
    pub last: Option<String>,
    /// Accesses in each second, estimated.
    pub accesses: Vec<u64>,
}

//! The JSON bodies about latencies.

use sandstorm_metrics::histogram::{DurationCounts, LatencyCounts};
use serde::Serialize;

/// `GET /v1/latency`.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyResponse {
    /// When it was read, in milliseconds since 1970.
    pub at_ms: u64,
    /// A row for each kind of request of each tenant, and for each extension, where there were any.
    pub rows: Vec<LatencyRowResponse>,
}

/// The latency of one kind of a tenant's requests, or of the calls of one of its extensions.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyRowResponse {
    /// The tenant.
    pub tenant: String,
    /// The kind of request: `get`, `put`, `range`, `call`, `redis` or `memcached`.
    pub class: &'static str,
    /// The extension, if the row is about one; `null`: all requests of the kind.
    pub extension: Option<String>,
    /// The extension's version, since whose load its calls are counted; 0 without an extension.
    pub version: u64,
    /// From arrival to answer.
    pub total: DurationResponse,
    /// The part of it in which nothing was done for the request.
    pub waiting: DurationResponse,
    /// The other part; for calls their CPU time.
    pub service: DurationResponse,
    /// The time from an answer's being ready until it has left, of one turn in 16 that answers: the end of `service`;
    /// for calls it comes after `total`.
    pub sending: DurationResponse,
}

impl LatencyRowResponse {
    /// The row for these counts; with the buckets, if they are asked for.
    pub fn of(
        tenant: &str,
        class: &'static str,
        extension: Option<(&str, u64)>,
        counts: &LatencyCounts,
        buckets: bool,
    ) -> LatencyRowResponse {
        let part = |counts| DurationResponse::of(counts, buckets);
        LatencyRowResponse {
            tenant: tenant.to_owned(),
            class,
            extension: extension.map(|(name, _)| name.to_owned()),
            version: extension.map_or(0, |(_, version)| version),
            total: part(&counts.total),
            waiting: part(&counts.waiting),
            service: part(&counts.service),
            sending: part(&counts.sending),
        }
    }
}

/// How long something took.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DurationResponse {
    /// How often.
    pub count: u64,
    /// Nanoseconds together.
    pub sum_ns: u64,
    /// Half of them took at most so many nanoseconds; this and the others within 1.6 %, or 16 ns.
    pub p50_ns: u64,
    /// Nine in ten.
    pub p90_ns: u64,
    /// 99 of a hundred.
    pub p99_ns: u64,
    /// 999 of a thousand.
    pub p999_ns: u64,
    /// If they are asked for: pairs of a bound in nanoseconds and the number of durations below it and not below the
    /// bound before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<(u64, u64)>,
}

impl DurationResponse {
    /// The durations of these counts; with the buckets, if they are asked for.
    pub fn of(counts: &DurationCounts, buckets: bool) -> DurationResponse {
        let [p50_ns, p90_ns, p99_ns, p999_ns] =
            [500_000, 900_000, 990_000, 999_000].map(|per_million| counts.quantile_ns(per_million));
        let buckets = if buckets { counts.filled_buckets().collect() } else { Vec::new() };
        DurationResponse { count: counts.count(), sum_ns: counts.sum_ns, p50_ns, p90_ns, p99_ns, p999_ns, buckets }
    }
}

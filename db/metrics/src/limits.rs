//! Limits of this crate: name, default, unit, reason.

/// Workers, at most: their idle marks are the bits of one word.
pub const MAX_WORKERS: usize = 64;
/// Buckets of a histogram in each power of two: durations are known to 1.6 %, in 7 KiB.
pub const HISTOGRAM_STEPS: usize = 32;
/// Durations from here on count in a histogram's last bucket, nanoseconds: 69 s, far above any budget of CPU time.
pub const HISTOGRAM_MAX_NS: u64 = 1 << 36;
/// Tenants whose latency Prometheus is told, those with most requests: at most 20 series for each kind of request of
/// each.
pub const LATENCY_TENANTS: usize = 50;

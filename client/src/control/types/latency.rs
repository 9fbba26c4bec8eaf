//! The JSON bodies about latencies.

use serde::{Deserialize, Serialize};

/// `GET /v1/latency`: how long requests took at the server, since each tenant was created or extension loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyReport {
    /// Time at which it was read, in milliseconds since 1970.
    pub at_ms: u64,
    /// A row for each kind of request of each tenant, and for each extension, where there were any.
    pub rows: Vec<LatencyRow>,
}

/// The latency of one kind of a tenant's requests, or of the calls of one of its extensions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyRow {
    /// The tenant.
    pub tenant: String,
    /// The kind of request: `get`, `put`, `range`, `call`, `redis` or `memcached`.
    pub class: String,
    /// The extension, if the row is about one; `None`: all requests of the kind.
    pub extension: Option<String>,
    /// The extension's version, since whose load its calls are counted; 0 without an extension.
    pub version: u64,
    /// From arrival to answer.
    pub total: DurationStats,
    /// The part of it in which nothing was done for the request.
    pub waiting: DurationStats,
    /// The other part; for calls their CPU time.
    pub service: DurationStats,
    /// The time from an answer's being ready until it has left, of one turn in 16 that answers: the end of `service`;
    /// for calls it comes after `total`.
    pub sending: DurationStats,
}

/// How long something took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DurationStats {
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
    /// If they were asked for: pairs of a bound in nanoseconds and the number of durations below it and not below the
    /// bound before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<(u64, u64)>,
}

impl LatencyReport {
    /// What was counted since an earlier report. Both need their buckets.
    pub fn since(&self, earlier: &LatencyReport) -> LatencyReport {
        let rows = self.rows.iter().map(|row| match earlier.rows.iter().find(|before| row.continues(before)) {
            Some(before) => LatencyRow {
                total: row.total.since(&before.total),
                waiting: row.waiting.since(&before.waiting),
                service: row.service.since(&before.service),
                sending: row.sending.since(&before.sending),
                ..row.clone()
            },
            None => row.clone(),
        });
        LatencyReport { at_ms: self.at_ms, rows: rows.filter(|row| row.total.count > 0).collect() }
    }
}

impl LatencyRow {
    /// Whether it counts the same requests, later. A tenant that was deleted and made again begins anew.
    fn continues(&self, before: &LatencyRow) -> bool {
        let key = |row: &LatencyRow| (row.tenant.clone(), row.class.clone(), row.extension.clone(), row.version);
        key(self) == key(before) && self.total.count >= before.total.count
    }
}

impl DurationStats {
    /// What was counted since an earlier reading. Both need their buckets.
    pub fn since(&self, earlier: &DurationStats) -> DurationStats {
        let mut before = earlier.buckets.iter().peekable();
        let mut buckets = Vec::with_capacity(self.buckets.len());
        for (bound_ns, count) in &self.buckets {
            while before.next_if(|(bound, _)| bound < bound_ns).is_some() {}
            let gone = before.next_if(|(bound, _)| bound == bound_ns).map_or(0, |(_, count)| *count);
            if *count > gone {
                buckets.push((*bound_ns, count - gone));
            }
        }
        let count = buckets.iter().map(|(_, count)| count).sum();
        let [p50_ns, p90_ns, p99_ns, p999_ns] =
            [500, 900, 990, 999].map(|per_mille| quantile_ns(&buckets, count, per_mille));
        let sum_ns = self.sum_ns.wrapping_sub(earlier.sum_ns);
        DurationStats { count, sum_ns, p50_ns, p90_ns, p99_ns, p999_ns, buckets }
    }
}

/// The middle of the bucket that holds the quantile. A bucket is a 32nd of its beginning wide, and 32 ns at least: so
/// the server makes them.
fn quantile_ns(buckets: &[(u64, u64)], count: u64, per_mille: u64) -> u64 {
    let rank = (u128::from(count) * u128::from(per_mille)).div_ceil(1000).max(1);
    let mut seen = 0;
    for (bound_ns, here) in buckets {
        seen += u128::from(*here);
        if seen >= rank {
            return bound_ns.saturating_sub((bound_ns / 66).max(16));
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(buckets: &[(u64, u64)]) -> DurationStats {
        let (count, sum_ns) = buckets.iter().fold((0, 0), |(n, sum), (bound, count)| (n + count, sum + bound * count));
        DurationStats { count, sum_ns, buckets: buckets.to_vec(), ..DurationStats::default() }
    }

    fn report(row: LatencyRow) -> LatencyReport {
        LatencyReport { at_ms: 1, rows: vec![row] }
    }

    #[test]
    fn the_difference_of_two_reports_is_what_came_between() {
        let row = |total: &[(u64, u64)]| LatencyRow {
            tenant: "a".into(),
            class: "get".into(),
            total: stats(total),
            ..LatencyRow::default()
        };
        let before = report(row(&[(1_024, 5), (4_096, 1)]));
        let now = report(row(&[(1_024, 5), (2_112, 98), (4_096, 1), (1 << 20, 2)]));
        let between = now.since(&before);
        let total = &between.rows[0].total;
        assert_eq!((total.count, total.buckets.as_slice()), (100, [(2_112, 98), (1 << 20, 2)].as_slice()));
        assert_eq!(total.sum_ns, 98 * 2_112 + 2 * (1 << 20));
        let is_near = |found: u64, exact: u64| found.abs_diff(exact) <= exact / 32;
        assert!(is_near(total.p50_ns, 2_080) && is_near(total.p99_ns, (1 << 20) - (1 << 14)), "{total:?}");
        assert!(now.since(&now).rows.is_empty(), "nothing came");
        // Fewer than before: the tenant was made again.
        assert_eq!(before.since(&now).rows[0].total.count, 6);
    }

    #[test]
    fn another_version_of_an_extension_begins_anew() {
        let row = |version: u64| LatencyRow {
            extension: Some("x".into()),
            version,
            total: stats(&[(1_024, 3)]),
            ..LatencyRow::default()
        };
        assert_eq!(report(row(2)).since(&report(row(1))).rows[0].total.count, 3);
        assert!(report(row(2)).since(&report(row(2))).rows.is_empty());
    }
}

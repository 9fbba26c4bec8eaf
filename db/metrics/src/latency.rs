//! Latencies as Prometheus reads them: a histogram of all tenants, and quantiles of those with most requests.

use std::cmp::Reverse;
use std::fmt::Write;

use super::MetricSpec;
use super::histogram::{DurationCounts, LATENCY_METRICS, LatencyCounts, REQUEST_CLASSES};
use super::limits::LATENCY_TENANTS;
use super::text::{PREFIX, label};

/// The latency of each kind of request, in the order of [`REQUEST_CLASSES`].
pub type LatencyByClass = [LatencyCounts; REQUEST_CLASSES.len()];

/// Bounds of Prometheus' buckets, nanoseconds: powers of four, at which buckets of a histogram begin.
pub const BOUNDS_NS: [u64; 12] =
    [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30, 1 << 32];

/// Quantiles of the summaries, of a million.
pub const QUANTILES: [(u32, &str); 3] = [(500_000, "0.5"), (990_000, "0.99"), (999_000, "0.999")];

/// What each metric of a tenant shows, in the order of [`LATENCY_METRICS`] without the first.
pub const TENANT_PARTS: [fn(&LatencyCounts) -> &DurationCounts; 3] =
    [|counts| &counts.total, |counts| &counts.waiting, |counts| &counts.sending];
const _: () = assert!(TENANT_PARTS.len() + 1 == LATENCY_METRICS.len());

fn seconds(duration_ns: u64) -> f64 {
    duration_ns as f64 / 1e9
}

/// What others read of latencies: the sum of all tenants, and those with most requests.
#[derive(Clone, Debug, Default)]
pub struct LatencyReading {
    /// All tenants together.
    pub all: LatencyByClass,
    /// The [`LATENCY_TENANTS`] with most requests, the busiest first, by their names.
    pub busiest: Vec<(String, LatencyByClass)>,
}

impl LatencyReading {
    /// Of the latencies of each tenant.
    pub fn of(mut tenants: Vec<(String, LatencyByClass)>) -> LatencyReading {
        let mut all = LatencyByClass::default();
        for (_, classes) in &tenants {
            all.iter_mut().zip(classes).for_each(|(sum, counts)| sum.add(counts));
        }
        let requests = |classes: &LatencyByClass| classes.iter().map(|counts| counts.total.count()).sum::<u64>();
        tenants.sort_by_cached_key(|(name, classes)| (Reverse(requests(classes)), name.clone()));
        tenants.truncate(LATENCY_TENANTS);
        LatencyReading { all, busiest: tenants }
    }
}

/// The text that Prometheus reads.
pub fn prometheus(reading: &LatencyReading) -> String {
    let LatencyReading { all, busiest: tenants } = reading;
    let mut text = String::new();
    let Some((whole, of_tenants)) = LATENCY_METRICS.split_first() else { return text };
    head(&mut text, whole);
    for (class, counts) in REQUEST_CLASSES.iter().zip(all) {
        histogram(&mut text, whole.name, class, counts);
    }
    for (metric, part_of) in of_tenants.iter().zip(TENANT_PARTS) {
        head(&mut text, metric);
        for (tenant, classes) in tenants {
            for (class, counts) in REQUEST_CLASSES.iter().zip(classes) {
                let part = part_of(counts);
                if part.count() > 0 {
                    let labels = format!("{},{}", label("tenant", tenant), label("class", class));
                    for (per_million, name) in QUANTILES {
                        let value = seconds(part.quantile_ns(per_million));
                        // Writing to a String does not fail.
                        let _ = writeln!(text, "{PREFIX}{}{{{labels},quantile=\"{name}\"}} {value}", metric.name);
                    }
                    sum_and_count(&mut text, metric.name, &labels, (part.sum_ns, part.count()));
                }
            }
        }
    }
    text
}

fn head(text: &mut String, metric: &MetricSpec) {
    let _ = writeln!(text, "# HELP {PREFIX}{} {}", metric.name, metric.meaning);
    let _ = writeln!(text, "# TYPE {PREFIX}{} {}", metric.name, metric.kind.name());
}

fn histogram(text: &mut String, name: &str, class: &str, counts: &LatencyCounts) {
    let (labels, total) = (label("class", class), &counts.total);
    for bound_ns in BOUNDS_NS {
        let (bound, below) = (seconds(bound_ns), total.below(bound_ns));
        let _ = writeln!(text, "{PREFIX}{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
    }
    let _ = writeln!(text, "{PREFIX}{name}_bucket{{{labels},le=\"+Inf\"}} {}", total.count());
    sum_and_count(text, name, &labels, (total.sum_ns, total.count()));
}

fn sum_and_count(text: &mut String, name: &str, labels: &str, (sum_ns, count): (u64, u64)) {
    let _ = writeln!(text, "{PREFIX}{name}_sum{{{labels}}} {}", seconds(sum_ns));
    let _ = writeln!(text, "{PREFIX}{name}_count{{{labels}}} {count}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::{ClassLatencies, RequestClass};

    fn latencies(gets: u64) -> LatencyByClass {
        let worker = ClassLatencies::default();
        worker.of(RequestClass::Get).record(0, 2_000, gets);
        worker.of(RequestClass::Get).record_sending(500, gets);
        worker.of(RequestClass::Call).record(3_000_000, 1_000_000, 1);
        let mut counts = LatencyByClass::default();
        worker.read_into(&mut counts);
        counts
    }

    #[test]
    fn prometheus_gets_a_histogram_of_all_and_the_quantiles_of_the_busiest() {
        let tenants = (0..LATENCY_TENANTS as u64 + 7).map(|tenant| (format!("t{tenant}"), latencies(1 + tenant)));
        let text = prometheus(&LatencyReading::of(tenants.collect()));
        let gets: u64 = (1..=57).sum();
        for line in [
            "# TYPE sandstorm_request_duration_seconds histogram".to_owned(),
            "sandstorm_request_duration_seconds_bucket{class=\"get\",le=\"0.000001024\"} 0".to_owned(),
            format!("sandstorm_request_duration_seconds_bucket{{class=\"get\",le=\"0.000004096\"}} {gets}"),
            format!("sandstorm_request_duration_seconds_bucket{{class=\"get\",le=\"+Inf\"}} {gets}"),
            format!("sandstorm_request_duration_seconds_count{{class=\"get\"}} {gets}"),
            "sandstorm_request_duration_seconds_sum{class=\"call\"} 0.228".to_owned(),
            "# TYPE sandstorm_tenant_request_duration_seconds summary".to_owned(),
            "sandstorm_tenant_request_duration_seconds_count{tenant=\"t56\",class=\"get\"} 57".to_owned(),
            "sandstorm_tenant_request_waiting_seconds_sum{tenant=\"t7\",class=\"call\"} 0.003".to_owned(),
            "sandstorm_tenant_request_sending_seconds_count{tenant=\"t56\",class=\"get\"} 57".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
        assert!(!text.contains("tenant=\"t6\""), "no more than the busiest");
        let quantile = "sandstorm_tenant_request_duration_seconds{tenant=\"t9\",class=\"call\",quantile=\"0.99\"} ";
        let value = text.lines().find_map(|line| line.strip_prefix(quantile)).and_then(|value| value.parse().ok());
        assert!(value.is_some_and(|value: f64| (value - 0.004).abs() < 0.004 * 0.016), "{value:?}");
    }
}

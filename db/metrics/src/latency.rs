//! Durations as Prometheus and receivers of OTLP read them: latencies of all tenants as a histogram, quantiles of the
//! tenants with most requests and of extensions, and how long pushes waited and took.

use std::cmp::Reverse;
use std::fmt::Write;

use super::histogram::{DurationCounts, LATENCY_METRICS, LatencyCounts, REQUEST_CLASSES};
use super::limits::LATENCY_TENANTS;
use super::series::{EXTENSION_LATENCY_METRICS, PUSH_LATENCY_METRICS};
use super::text::{PREFIX, label};
use super::{MetricKind, MetricSpec};

/// The latency of each kind of request, in the order of [`REQUEST_CLASSES`].
pub type LatencyByClass = [LatencyCounts; REQUEST_CLASSES.len()];

/// Bounds of Prometheus' buckets of requests, nanoseconds: powers of four, at which buckets of a histogram begin.
const REQUEST_BOUNDS_NS: [u64; 12] =
    [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30, 1 << 32];

/// The same of pushes, from 67 ms to 34 s: powers of two, as a push takes a thousand times as long as a request.
const PUSH_BOUNDS_NS: [u64; 10] =
    [1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30, 1 << 31, 1 << 32, 1 << 33, 1 << 34, 1 << 35];

/// Quantiles of the summaries, of a million.
pub const QUANTILES: [(u32, &str); 3] = [(500_000, "0.5"), (990_000, "0.99"), (999_000, "0.999")];

/// Chooses a part of latencies.
type LatencyPart = fn(&LatencyCounts) -> &DurationCounts;

/// What each metric of a tenant shows, in the order of [`LATENCY_METRICS`] without the first.
const TENANT_PARTS: [LatencyPart; 4] =
    [|counts| &counts.total, |counts| &counts.waiting, |counts| &counts.service, |counts| &counts.sending];
const _: () = assert!(TENANT_PARTS.len() + 1 == LATENCY_METRICS.len());

/// What each metric of an extension shows, in the order of [`EXTENSION_LATENCY_METRICS`].
const EXTENSION_PARTS: [LatencyPart; 3] = [|counts| &counts.total, |counts| &counts.waiting, |counts| &counts.service];
const _: () = assert!(EXTENSION_PARTS.len() == EXTENSION_LATENCY_METRICS.len());

/// The latency of an extension's calls.
#[derive(Clone, Debug, Default)]
pub struct ExtensionLatency {
    /// The name of its tenant.
    pub tenant: String,
    /// Its name.
    pub extension: String,
    /// The latency of the calls of the version that runs.
    pub calls: LatencyCounts,
}

/// How long pushes took.
#[derive(Clone, Debug, Default)]
pub struct PushDurations {
    /// Until it was their turn.
    pub waiting: DurationCounts,
    /// From then on.
    pub building: DurationCounts,
}

/// What others read of durations.
#[derive(Clone, Debug, Default)]
pub struct LatencyReading {
    /// All tenants together.
    pub all: LatencyByClass,
    /// The [`LATENCY_TENANTS`] with most requests, the busiest first, by their names.
    pub busiest: Vec<(String, LatencyByClass)>,
    /// The extensions that have series.
    pub extensions: Vec<ExtensionLatency>,
    /// Pushes.
    pub pushes: PushDurations,
}

/// A metric of durations, with all that was counted of it.
#[derive(Debug)]
pub struct DurationFamily<'a> {
    /// The metric.
    pub metric: &'static MetricSpec,
    /// Bounds of its buckets, if it is a histogram, nanoseconds.
    pub bounds_ns: &'static [u64],
    /// By labels.
    pub points: Vec<DurationPoint<'a>>,
}

/// What was counted of a metric under the same labels.
#[derive(Debug)]
pub struct DurationPoint<'a> {
    /// Names and values of the labels.
    pub labels: Vec<(&'static str, &'a str)>,
    /// What was counted.
    pub counts: &'a DurationCounts,
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
        LatencyReading { all, busiest: tenants, ..LatencyReading::default() }
    }

    /// All metrics of durations.
    pub fn families(&self) -> Vec<DurationFamily<'_>> {
        let Some((whole, of_tenants)) = LATENCY_METRICS.split_first() else { return Vec::new() };
        let by_class = REQUEST_CLASSES.iter().zip(&self.all);
        let all =
            by_class.map(|(class, counts)| DurationPoint { labels: vec![("class", class)], counts: &counts.total });
        let mut families = vec![DurationFamily { metric: whole, bounds_ns: &REQUEST_BOUNDS_NS, points: all.collect() }];
        for (metric, part_of) in of_tenants.iter().zip(TENANT_PARTS) {
            let tenants = self.busiest.iter().flat_map(|(tenant, classes)| {
                let by_class = REQUEST_CLASSES.iter().zip(classes);
                by_class.map(move |(class, counts)| DurationPoint {
                    labels: vec![("tenant", tenant.as_str()), ("class", class)],
                    counts: part_of(counts),
                })
            });
            families.push(summaries(metric, tenants));
        }
        for (metric, part_of) in EXTENSION_LATENCY_METRICS.iter().zip(EXTENSION_PARTS) {
            let extensions = self.extensions.iter().map(|one| DurationPoint {
                labels: vec![("tenant", one.tenant.as_str()), ("extension", one.extension.as_str())],
                counts: part_of(&one.calls),
            });
            families.push(summaries(metric, extensions));
        }
        for (metric, counts) in PUSH_LATENCY_METRICS.iter().zip([&self.pushes.waiting, &self.pushes.building]) {
            let points = vec![DurationPoint { labels: Vec::new(), counts }];
            families.push(DurationFamily { metric, bounds_ns: &PUSH_BOUNDS_NS, points });
        }
        families
    }
}

/// A metric with quantiles of all of which there is anything.
fn summaries<'a>(metric: &'static MetricSpec, points: impl Iterator<Item = DurationPoint<'a>>) -> DurationFamily<'a> {
    let points = points.filter(|point| point.counts.count() > 0).collect();
    DurationFamily { metric, bounds_ns: &[], points }
}

fn seconds(duration_ns: u64) -> f64 {
    duration_ns as f64 / 1e9
}

/// The text that Prometheus reads.
pub fn prometheus(reading: &LatencyReading) -> String {
    let mut text = String::new();
    for family in reading.families() {
        let metric = family.metric;
        // Writing to a String does not fail.
        let _ = writeln!(text, "# HELP {PREFIX}{} {}", metric.name, metric.meaning);
        let _ = writeln!(text, "# TYPE {PREFIX}{} {}", metric.name, metric.kind.name());
        for point in &family.points {
            write_point(&mut text, &family, point);
        }
    }
    text
}

/// Writes the series of a point.
fn write_point(text: &mut String, family: &DurationFamily<'_>, point: &DurationPoint<'_>) {
    let (name, counts) = (family.metric.name, point.counts);
    let labels: Vec<String> = point.labels.iter().map(|(name, value)| label(name, value)).collect();
    let with = |last: Option<String>| {
        let labels: Vec<String> = labels.iter().cloned().chain(last).collect();
        if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
    };
    if family.metric.kind == MetricKind::Histogram {
        for bound_ns in family.bounds_ns {
            let labels = with(Some(format!("le=\"{}\"", seconds(*bound_ns))));
            let _ = writeln!(text, "{PREFIX}{name}_bucket{labels} {}", counts.below(*bound_ns));
        }
        let _ = writeln!(text, "{PREFIX}{name}_bucket{} {}", with(Some("le=\"+Inf\"".to_owned())), counts.count());
    } else {
        for (per_million, quantile) in QUANTILES {
            let labels = with(Some(format!("quantile=\"{quantile}\"")));
            let _ = writeln!(text, "{PREFIX}{name}{labels} {}", seconds(counts.quantile_ns(per_million)));
        }
    }
    let _ = writeln!(text, "{PREFIX}{name}_sum{} {}", with(None), seconds(counts.sum_ns));
    let _ = writeln!(text, "{PREFIX}{name}_count{} {}", with(None), counts.count());
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
            "sandstorm_tenant_request_service_seconds_sum{tenant=\"t7\",class=\"call\"} 0.001".to_owned(),
            "sandstorm_tenant_request_sending_seconds_count{tenant=\"t56\",class=\"get\"} 57".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
        assert!(!text.contains("tenant=\"t6\""), "no more than the busiest");
        let quantile = "sandstorm_tenant_request_duration_seconds{tenant=\"t9\",class=\"call\",quantile=\"0.99\"} ";
        let value = text.lines().find_map(|line| line.strip_prefix(quantile)).and_then(|value| value.parse().ok());
        assert!(value.is_some_and(|value: f64| (value - 0.004).abs() < 0.004 * 0.016), "{value:?}");
    }

    #[test]
    fn extensions_have_quantiles_and_pushes_histograms_with_bounds_of_their_own() {
        let [.., calls, _, _] = latencies(1);
        let (tenant, idle) = ("shop".to_owned(), "idle".to_owned());
        let named = |extension: String, calls| ExtensionLatency { tenant: tenant.clone(), extension, calls };
        let mut pushes = PushDurations::default();
        for took_ns in [80_000_000, 3_000_000_000, 600_000_000_000] {
            pushes.building.note(took_ns);
        }
        let extensions = vec![named("count".to_owned(), calls), named(idle, LatencyCounts::default())];
        let text = prometheus(&LatencyReading { extensions, pushes, ..LatencyReading::default() });
        for line in [
            "# TYPE sandstorm_extension_call_duration_seconds summary",
            "sandstorm_extension_call_duration_seconds_sum{tenant=\"shop\",extension=\"count\"} 0.004",
            "sandstorm_extension_call_waiting_seconds_sum{tenant=\"shop\",extension=\"count\"} 0.003",
            "sandstorm_extension_call_cpu_seconds_count{tenant=\"shop\",extension=\"count\"} 1",
            "# TYPE sandstorm_push_duration_seconds histogram",
            "sandstorm_push_duration_seconds_bucket{le=\"0.067108864\"} 0",
            "sandstorm_push_duration_seconds_bucket{le=\"0.134217728\"} 1",
            "sandstorm_push_duration_seconds_bucket{le=\"34.359738368\"} 2",
            "sandstorm_push_duration_seconds_bucket{le=\"+Inf\"} 3",
            "sandstorm_push_duration_seconds_sum 603.08",
            "sandstorm_push_waiting_seconds_count 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
        assert!(!text.contains("idle"), "what was never called has no quantiles");
    }
}

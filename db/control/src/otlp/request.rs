//! The bodies of the requests: `ExportMetricsServiceRequest` of OTLP 1, in its JSON form.
//!
//! Names are those that Prometheus sees, without `_total`, which its own import of OTLP adds again: rules and boards
//! hold for both.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::limits::OTLP_POINTS;
use sandstorm_metrics::histogram::DurationCounts;
use sandstorm_metrics::latency::{DurationFamily, DurationPoint, LatencyReading, QUANTILES};
use sandstorm_metrics::text::{LabelledReadings, PREFIX};
use sandstorm_metrics::{ConventionalName, MetricKind, MetricSpec};

/// All metrics at a moment.
pub(crate) struct MetricsReading {
    /// Counters and gauges, by what they are of.
    pub(crate) groups: Vec<LabelledReadings>,
    /// Latencies.
    pub(crate) latencies: LatencyReading,
}

/// A number of 64 bits, which JSON has as text: its readers may have no others than floating ones.
#[derive(Clone, Copy, Debug)]
struct DecimalNumber(u64);

impl Serialize for DecimalNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[derive(Debug, Serialize)]
struct OtlpAttribute<'a> {
    key: &'a str,
    value: AttributeText<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AttributeText<'a> {
    string_value: &'a str,
}

fn attribute<'a>(key: &'a str, value: &'a str) -> OtlpAttribute<'a> {
    OtlpAttribute { key, value: AttributeText { string_value: value } }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpPoint<'a> {
    attributes: Vec<OtlpAttribute<'a>>,
    start_time_unix_nano: DecimalNumber,
    time_unix_nano: DecimalNumber,
    #[serde(flatten)]
    value: PointValue,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum PointValue {
    #[serde(rename_all = "camelCase")]
    Whole { as_int: DecimalNumber },
    #[serde(rename_all = "camelCase")]
    Real { as_double: f64 },
    #[serde(rename_all = "camelCase")]
    Histogram { count: DecimalNumber, sum: f64, bucket_counts: Vec<DecimalNumber>, explicit_bounds: Vec<f64> },
    #[serde(rename_all = "camelCase")]
    Summary { count: DecimalNumber, sum: f64, quantile_values: Vec<QuantileValue> },
}

#[derive(Debug, Serialize)]
struct QuantileValue {
    quantile: f64,
    value: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpPoints<'p, 'a> {
    data_points: &'p [OtlpPoint<'a>],
    /// 2: sums since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregation_temporality: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_monotonic: Option<bool>,
}

#[derive(Debug, Serialize)]
struct OtlpMetric<'p, 'a> {
    name: &'p str,
    description: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    unit: &'static str,
    /// By the word that OTLP has for the kind.
    #[serde(flatten)]
    points: BTreeMap<&'static str, OtlpPoints<'p, 'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpRequest<'p, 'a> {
    resource_metrics: [ResourceMetrics<'p, 'a>; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceMetrics<'p, 'a> {
    resource: OtlpResource<'p>,
    scope_metrics: [ScopeMetrics<'p, 'a>; 1],
}

#[derive(Debug, Serialize)]
struct OtlpResource<'p> {
    attributes: Vec<OtlpAttribute<'p>>,
}

#[derive(Debug, Serialize)]
struct ScopeMetrics<'p, 'a> {
    scope: OtlpScope,
    metrics: Vec<OtlpMetric<'p, 'a>>,
}

#[derive(Debug, Serialize)]
struct OtlpScope {
    name: &'static str,
    version: &'static str,
}

/// A metric with all its points.
struct MetricFamily<'a> {
    metric: &'static MetricSpec,
    name: String,
    points: Vec<OtlpPoint<'a>>,
}

impl MetricFamily<'_> {
    /// A request's part of it.
    fn part<'p>(&'p self, points: std::ops::Range<usize>) -> OtlpMetric<'p, 'p> {
        let (kind, sums, grows) = match self.metric.kind {
            MetricKind::Counter => ("sum", true, true),
            MetricKind::Gauge => ("gauge", false, false),
            MetricKind::Histogram => ("histogram", true, false),
            MetricKind::Summary => ("summary", false, false),
        };
        let points = OtlpPoints {
            data_points: &self.points[points],
            aggregation_temporality: sums.then_some(2),
            is_monotonic: grows.then_some(true),
        };
        let (description, unit) = (self.metric.meaning.trim(), unit_of(&self.name));
        OtlpMetric { name: &self.name, description, unit, points: BTreeMap::from([(kind, points)]) }
    }
}

/// The unit that a name ends with, as UCUM writes it; empty: it counts something.
fn unit_of(name: &str) -> &'static str {
    let units = [("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1")];
    units.iter().find(|(ending, _)| name.ends_with(ending)).map_or("", |(_, unit)| unit)
}

/// What all points of a reading say of time.
#[derive(Clone, Copy)]
struct ReadingTimes {
    start: DecimalNumber,
    now: DecimalNumber,
}

impl ReadingTimes {
    fn point<'a>(self, attributes: Vec<OtlpAttribute<'a>>, value: PointValue) -> OtlpPoint<'a> {
        OtlpPoint { attributes, start_time_unix_nano: self.start, time_unix_nano: self.now, value }
    }
}

fn unix_ns(at: SystemTime) -> DecimalNumber {
    DecimalNumber(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64)
}

/// The bodies of the requests that say all of a reading, each of at most [`OTLP_POINTS`] points. `resource` has the
/// machine's name and the server's.
pub(super) fn bodies(
    reading: &MetricsReading,
    resource: &[String; 2],
    started: SystemTime,
) -> Result<Vec<Vec<u8>>, serde_json::Error> {
    let times = ReadingTimes { start: unix_ns(started), now: unix_ns(SystemTime::now()) };
    let mut families = counted(&reading.groups, times);
    families.extend(latencies(&reading.latencies, times));
    let (mut all, mut parts, mut room) = (Vec::new(), Vec::new(), OTLP_POINTS);
    for family in &families {
        let mut from = 0;
        while from < family.points.len() {
            let to = family.points.len().min(from + room);
            parts.push(family.part(from..to));
            room -= to - from;
            from = to;
            if room == 0 {
                all.push(body(std::mem::take(&mut parts), resource)?);
                room = OTLP_POINTS;
            }
        }
    }
    if !parts.is_empty() {
        all.push(body(parts, resource)?);
    }
    Ok(all)
}

fn body(metrics: Vec<OtlpMetric<'_, '_>>, [host, instance]: &[String; 2]) -> Result<Vec<u8>, serde_json::Error> {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    let attributes = vec![
        attribute("service.name", "sandstorm"),
        attribute("service.version", VERSION),
        attribute("service.instance.id", instance),
        attribute("host.name", host),
    ];
    let scope_metrics = [ScopeMetrics { scope: OtlpScope { name: "sandstorm", version: VERSION }, metrics }];
    let resource_metrics = [ResourceMetrics { resource: OtlpResource { attributes }, scope_metrics }];
    serde_json::to_vec(&OtlpRequest { resource_metrics })
}

/// Counters and gauges, each metric with the points of all that have it.
fn counted(groups: &[LabelledReadings], times: ReadingTimes) -> Vec<MetricFamily<'_>> {
    let mut families: Vec<MetricFamily<'_>> = Vec::new();
    let mut places: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for group in groups {
        for reading in &group.readings {
            let (place, divisor) = *places.entry(reading.metric.name).or_insert_with(|| {
                let ConventionalName { name, divisor } = ConventionalName::of(reading.metric);
                let name = format!("{PREFIX}{}", name.trim_end_matches("_total"));
                families.push(MetricFamily { metric: reading.metric, name, points: Vec::new() });
                (families.len() - 1, divisor)
            });
            for (index, value) in reading.values.iter().enumerate() {
                let mut attributes: Vec<_> = group.labels.iter().map(|(name, text)| attribute(name, text)).collect();
                if let Some((name, values)) = reading.metric.label {
                    attributes.push(attribute(name, values.get(index).copied().unwrap_or("unknown")));
                }
                let value = match divisor {
                    1 => PointValue::Whole { as_int: DecimalNumber(*value) },
                    by => PointValue::Real { as_double: *value as f64 / by as f64 },
                };
                families[place].points.push(times.point(attributes, value));
            }
        }
    }
    families
}

fn seconds(duration_ns: u64) -> f64 {
    duration_ns as f64 / 1e9
}

/// The durations, as Prometheus reads them.
fn latencies(reading: &LatencyReading, times: ReadingTimes) -> Vec<MetricFamily<'_>> {
    let family = |DurationFamily { metric, bounds_ns, points }| {
        let point = |DurationPoint { labels, counts }| {
            let attributes = labels.into_iter().map(|(name, value)| attribute(name, value)).collect();
            let is_histogram = metric.kind == MetricKind::Histogram;
            times.point(attributes, if is_histogram { histogram(counts, bounds_ns) } else { summary(counts) })
        };
        let points = points.into_iter().map(point).collect();
        MetricFamily { metric, name: format!("{PREFIX}{}", metric.name), points }
    };
    reading.families().into_iter().map(family).collect()
}

fn histogram(counts: &DurationCounts, bounds_ns: &[u64]) -> PointValue {
    let mut before = 0;
    let mut bucket_counts: Vec<DecimalNumber> = bounds_ns
        .iter()
        .map(|bound_ns| {
            let below = counts.below(*bound_ns);
            let here = below - before;
            before = below;
            DecimalNumber(here)
        })
        .collect();
    let count = counts.count();
    bucket_counts.push(DecimalNumber(count - before));
    let explicit_bounds = bounds_ns.iter().map(|bound_ns| seconds(*bound_ns)).collect();
    PointValue::Histogram { count: DecimalNumber(count), sum: seconds(counts.sum_ns), bucket_counts, explicit_bounds }
}

fn summary(counts: &DurationCounts) -> PointValue {
    let value = |(per_million, _): &(u32, &str)| QuantileValue {
        quantile: f64::from(*per_million) / 1e6,
        value: seconds(counts.quantile_ns(*per_million)),
    };
    let quantile_values = QUANTILES.iter().map(value).collect();
    PointValue::Summary { count: DecimalNumber(counts.count()), sum: seconds(counts.sum_ns), quantile_values }
}

#[cfg(test)]
mod tests;

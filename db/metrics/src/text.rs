//! The metrics as text: for Prometheus, and as the page `docs/metrics.md`.

use std::fmt::Write;

use super::histogram::LATENCY_METRICS;
use super::{
    CONTROL_METRICS, DEVICE_METRICS, MEMORY_METRICS, MetricReading, MetricSpec, SERVER_METRICS, TenantCounters,
    WorkerCounters,
};

/// Prefix of every name that Prometheus sees.
pub(crate) const PREFIX: &str = "sandstorm_";

/// Metrics by new and old name. The old name is a second reading of the same value until the next release.
const RENAMED_METRICS: [(&str, &str); 3] = [
    ("control_connections_limited", "control_crowded"),
    ("device_rx_copied", "device_not_kept"),
    ("tenant_rx_copied", "tenant_not_kept"),
];
/// A label's value by metric, new and old name, for `GET /v1/stat`. Prometheus sees the new one alone: a second series
/// of the same family would count twice in sums.
const RENAMED_VALUES: [(&str, &str, &str); 1] = [("connections_refused", "unauthenticated", "stranger")];

/// The name that a metric had in the release before.
fn old_name(name: &str) -> Option<&'static str> {
    RENAMED_METRICS.iter().find(|(new, _)| *new == name).map(|(_, old)| *old)
}

/// The name that a label's value had in the release before.
fn old_value(metric: &str, value: &str) -> Option<&'static str> {
    RENAMED_VALUES.iter().find(|(of, new, _)| *of == metric && *new == value).map(|(.., old)| *old)
}

/// Readings that share labels, such as those of one worker.
#[derive(Clone, Debug)]
pub struct LabelledReadings {
    /// Label and value, such as `("worker", "0")`; none for the server as a whole.
    pub labels: Vec<(&'static str, String)>,
    /// The readings.
    pub readings: Vec<MetricReading>,
}

/// The text that Prometheus scrapes: each metric's meaning and type once, then its values.
pub fn prometheus(groups: &[LabelledReadings]) -> String {
    let mut text = String::new();
    let mut seen: Vec<&str> = Vec::new();
    for first in groups.iter().flat_map(|group| &group.readings) {
        let name = first.metric.name;
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        // Writing to a String does not fail.
        let _ = writeln!(text, "# HELP {PREFIX}{name} {}", first.metric.meaning.trim());
        let _ = writeln!(text, "# TYPE {PREFIX}{name} {}", first.metric.kind.name());
        family(&mut text, groups, name, name);
        if let Some(old) = old_name(name) {
            let _ = writeln!(text, "# HELP {PREFIX}{old} Old name of {PREFIX}{name}, until the next release.");
            let _ = writeln!(text, "# TYPE {PREFIX}{old} {}", first.metric.kind.name());
            family(&mut text, groups, name, old);
        }
    }
    text
}

/// The samples of one metric, under the name `shown`.
fn family(text: &mut String, groups: &[LabelledReadings], name: &str, shown: &str) {
    for group in groups {
        for reading in group.readings.iter().filter(|reading| reading.metric.name == name) {
            samples(text, group, reading, shown);
        }
    }
}

fn samples(text: &mut String, group: &LabelledReadings, reading: &MetricReading, shown: &str) {
    let family = reading.metric.label;
    for (index, value) in reading.values.iter().enumerate() {
        let mut labels: Vec<String> = group.labels.iter().map(|(name, value)| label(name, value)).collect();
        if let Some((name, values)) = family {
            labels.push(label(name, values.get(index).copied().unwrap_or("unknown")));
        }
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(text, "{PREFIX}{shown}{labels} {value}");
    }
}

pub(crate) fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// Names and values as `GET /v1/stat` gives them: `name`, or `name.value` for each value of a label; renamed ones under
/// their old names, too.
pub fn flat(readings: &[MetricReading]) -> impl Iterator<Item = (String, u64)> {
    readings.iter().flat_map(|reading| {
        let MetricSpec { name, label, .. } = *reading.metric;
        reading.values.iter().enumerate().flat_map(move |(index, value)| {
            let (new, old) = match label {
                None => (name.to_owned(), old_name(name).map(str::to_owned)),
                Some((_, names)) => {
                    let of = names.get(index).unwrap_or(&"unknown");
                    (format!("{name}.{of}"), old_value(name, of).map(|old| format!("{name}.{old}")))
                }
            };
            [Some(new), old].into_iter().flatten().map(move |name| (name, *value))
        })
    })
}

/// The page `docs/metrics.md`.
pub fn markdown_page() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         Made from `db/metrics/src/`; a test keeps this page current (`UPDATE_DOCS=1 cargo test -p sandstorm-metrics` \
         rewrites it).\n\n\
         `GET /metrics` (operator's token) gives them to Prometheus with the prefix `sandstorm_`; `GET /v1/stat` gives \
         them as JSON, with the values of a label behind a dot (`requests.get`), and a tenant's token its own counters; `sandstorm stat` shows \
         their growth. A [configuration of Prometheus](operations.md#as-a-service).\n",
    );
    text.push_str("\nOld names, until the next release:");
    for (at, (new, old)) in RENAMED_METRICS.iter().enumerate() {
        let _ = write!(text, "{} `{old}` is `{new}`", if at == 0 { "" } else { "," });
    }
    for (metric, new, old) in RENAMED_VALUES {
        let _ = write!(text, "; of `{metric}` the value `{old}` is `{new}` (in `GET /v1/stat` under both)");
    }
    text.push_str(".\n");
    let sections: [(&str, &[MetricSpec]); 7] = [
        ("The server", SERVER_METRICS),
        ("Its memory", MEMORY_METRICS),
        ("The control port", CONTROL_METRICS),
        ("A kernel-bypass device, on servers with one", DEVICE_METRICS),
        ("Each worker (label `worker`)", WorkerCounters::METRICS),
        ("Each tenant (label `tenant`)", TenantCounters::METRICS),
        ("Latency (in `/metrics` alone; `GET /v1/latency` has all of it)", LATENCY_METRICS),
    ];
    for (title, metrics) in sections {
        let _ = write!(text, "\n## {title}\n\n| name | type | label | meaning |\n|---|---|---|---|\n");
        for metric in metrics {
            let label = match metric.label {
                None => String::new(),
                Some((name, values)) => format!("`{name}`: {}", values.join(", ")),
            };
            let _ = writeln!(
                text,
                "| `{}` | {} | {label} | {} |",
                metric.name,
                metric.kind.name(),
                metric.meaning.trim().replace('|', "\\|")
            );
        }
    }
    text
}

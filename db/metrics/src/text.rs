//! The metrics as text: for Prometheus, and as the page `docs/metrics.md`.

use std::fmt::Write;

use super::{
    CONTROL_METRICS, DEVICE_METRICS, MEMORY_METRICS, MetricReading, MetricSpec, SERVER_METRICS, TenantCounters,
    WorkerCounters,
};

/// Prefix of every name that Prometheus sees.
const PREFIX: &str = "sandstorm_";

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
    let mut said: Vec<&str> = Vec::new();
    for first in groups.iter().flat_map(|group| &group.readings) {
        let name = first.metric.name;
        if said.contains(&name) {
            continue;
        }
        said.push(name);
        // Writing to a String does not fail.
        let _ = writeln!(text, "# HELP {PREFIX}{name} {}", first.metric.meaning.trim());
        let _ = writeln!(text, "# TYPE {PREFIX}{name} {}", first.metric.kind.name());
        for group in groups {
            for reading in group.readings.iter().filter(|reading| reading.metric.name == name) {
                samples(&mut text, group, reading);
            }
        }
    }
    text
}

fn samples(text: &mut String, group: &LabelledReadings, reading: &MetricReading) {
    let family = reading.metric.label;
    for (index, value) in reading.values.iter().enumerate() {
        let mut labels: Vec<String> = group.labels.iter().map(|(name, value)| label(name, value)).collect();
        if let Some((name, values)) = family {
            labels.push(label(name, values.get(index).copied().unwrap_or("unknown")));
        }
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(text, "{PREFIX}{}{labels} {value}", reading.metric.name);
    }
}

fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// Names and values as `GET /v1/stat` gives them: `name`, or `name.value` for each value of a label.
pub fn flat(readings: &[MetricReading]) -> impl Iterator<Item = (String, u64)> {
    readings.iter().flat_map(|reading| {
        reading.values.iter().enumerate().map(|(index, value)| match reading.metric.label {
            None => (reading.metric.name.to_owned(), *value),
            Some((_, names)) => (format!("{}.{}", reading.metric.name, names.get(index).unwrap_or(&"unknown")), *value),
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
    let sections: [(&str, &[MetricSpec]); 6] = [
        ("The server", SERVER_METRICS),
        ("Its memory", MEMORY_METRICS),
        ("The control port", CONTROL_METRICS),
        ("A device beside the kernel, on servers with one", DEVICE_METRICS),
        ("Each worker (label `worker`)", WorkerCounters::METRICS),
        ("Each tenant (label `tenant`)", TenantCounters::METRICS),
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

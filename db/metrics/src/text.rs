//! The metrics as text: for Prometheus, and as the page `docs/metrics.md`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::histogram::LATENCY_METRICS;
use super::series::{EXTENSION_LATENCY_METRICS, ISOLATION_NOTE, PUSH_LATENCY_METRICS};
use super::{
    BUILD_METRICS, CONTROL_METRICS, ConventionalName, DEVICE_METRICS, EXTENSION_METRICS, HOT_KEY_METRICS,
    ISOLATION_METRICS, MEMORY_METRICS, MetricKind, MetricReading, MetricSpec, PERSISTENCE_METRICS, QUOTA_METRICS,
    SERVER_METRICS, SPILL_METRICS, TABLE_METRICS, TENANT_USE_METRICS, TenantCounters, WATCHDOG_METRICS, WorkerCounters,
};

/// Prefix of every name that Prometheus sees.
pub const PREFIX: &str = "sandstorm_";

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

/// Whether metrics that were renamed appear under their old names, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldNames {
    /// They do: the values under a name of the release before, in the units of that release.
    Shown,
    /// They do not.
    Hidden,
}

/// The text that Prometheus scrapes: each metric's meaning and type once, then its values.
pub fn prometheus(groups: &[LabelledReadings], old_names: OldNames) -> String {
    let mut families: Vec<(&MetricSpec, Vec<(&LabelledReadings, &MetricReading)>)> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for group in groups {
        for reading in &group.readings {
            let place = *places.entry(reading.metric.name).or_insert_with(|| {
                families.push((reading.metric, Vec::new()));
                families.len() - 1
            });
            if let Some((_, samples)) = families.get_mut(place) {
                samples.push((group, reading));
            }
        }
    }
    let mut text = String::new();
    for (metric, readings) in &families {
        let named = ConventionalName::of(metric);
        head(&mut text, &named.name, metric.kind, metric.meaning.trim());
        readings.iter().for_each(|(group, reading)| samples(&mut text, group, reading, &named));
        if old_names == OldNames::Hidden {
            continue;
        }
        for old in [Some(metric.name), old_name(metric.name)].into_iter().flatten().filter(|old| *old != named.name) {
            let meaning = format!("Old name of {PREFIX}{}, until the next release.", named.name);
            head(&mut text, old, metric.kind, &meaning);
            let old = ConventionalName { name: old.to_owned(), divisor: 1 };
            readings.iter().for_each(|(group, reading)| samples(&mut text, group, reading, &old));
        }
    }
    text
}

/// What is the same for as long as the server runs, as labels of a metric whose value is 1.
pub fn build_info(version: &str) -> String {
    let mut text = String::new();
    head(&mut text, "build_info", MetricKind::Gauge, "1; the labels say what runs.");
    // Writing to a String does not fail.
    let _ = writeln!(text, "{PREFIX}build_info{{{}}} 1", label("version", version));
    text
}

fn head(text: &mut String, name: &str, kind: MetricKind, meaning: &str) {
    let _ = writeln!(text, "# HELP {PREFIX}{name} {}", meaning.replace('\\', "\\\\").replace('\n', "\\n"));
    let _ = writeln!(text, "# TYPE {PREFIX}{name} {}", kind.name());
}

fn samples(text: &mut String, group: &LabelledReadings, reading: &MetricReading, named: &ConventionalName) {
    let family = reading.metric.label;
    for (index, value) in reading.values.iter().enumerate() {
        let mut labels: Vec<String> = group.labels.iter().map(|(name, value)| label(name, value)).collect();
        if let Some((name, values)) = family {
            labels.push(label(name, values.get(index).copied().unwrap_or("unknown")));
        }
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(text, "{PREFIX}{}{labels} {}", named.name, named.value(*value));
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

/// The section of what neighbours cost a tenant.
pub(crate) const ISOLATION_SECTION: &str =
    "Tenants beside their neighbours (labels `tenant` and `class`, the kind of requests; in `/metrics` alone)";

/// The sections of the page, and their metrics: all that there are.
pub const SECTIONS: [(&str, &[MetricSpec]); 19] = [
    ("The server", SERVER_METRICS),
    ("Its memory", MEMORY_METRICS),
    ("What is kept on the disk", PERSISTENCE_METRICS),
    ("Tables larger than memory", SPILL_METRICS),
    ("The builder", BUILD_METRICS),
    ("Pushes, how long they waited and took (in `/metrics` alone)", PUSH_LATENCY_METRICS),
    ("The watchdog", WATCHDOG_METRICS),
    ("The control port", CONTROL_METRICS),
    ("A kernel-bypass device, on servers with one", DEVICE_METRICS),
    ("Each worker (label `worker`)", WorkerCounters::METRICS),
    ("Each tenant (label `tenant`)", TenantCounters::METRICS),
    ("Each tenant's part of the workers' time (label `tenant`; in `/metrics` alone)", TENANT_USE_METRICS),
    (
        "Quotas of tenants: of those that have used nine tenths of one, and of those that are nearest to one (label \
         `tenant`; in `/metrics` alone)",
        QUOTA_METRICS,
    ),
    (
        "Extensions that are suspended or slowed down, and those with most CPU time (labels `tenant` and \
         `extension`; in `/metrics` alone)",
        EXTENSION_METRICS,
    ),
    (
        "Calls of these extensions, how long they took (labels `tenant` and `extension`; in `/metrics` alone)",
        EXTENSION_LATENCY_METRICS,
    ),
    (
        "Tables that are nearly full, and those with most bytes (labels `tenant` and `table`; in `/metrics` alone)",
        TABLE_METRICS,
    ),
    (
        "Tables of which one key takes a large part of the accesses (labels `tenant` and `table`, at most as many as \
         `top` says; in `/metrics` alone)",
        HOT_KEY_METRICS,
    ),
    (ISOLATION_SECTION, ISOLATION_METRICS),
    ("Latency (in `/metrics` alone; `GET /v1/latency` has all of it)", LATENCY_METRICS),
];

/// The page `docs/metrics.md`.
pub fn markdown_page() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         Made from `db/metrics/src/`; a test keeps this page current (`UPDATE_DOCS=1 cargo test -p sandstorm-metrics` \
         rewrites it).\n\n\
         `GET /metrics` (a viewer's token) gives them to Prometheus with the prefix `sandstorm_`, by its \
         conventions: counters end in \
         `_total`, times are seconds, parts of a thousand are ratios. `GET /v1/stat` gives \
         them as JSON under the names on the left, with the values of a label behind a dot (`requests.get`), and a \
         tenant's token its own counters; `sandstorm stat` shows \
         their growth. `sandstorm_build_info` has the version. A [configuration of Prometheus, alerts and a \
         board](operations.md#prometheus).\n",
    );
    text.push_str(
        "\nUntil the next release `/metrics` has the names on the left as well, in their units, unless it is asked for \
         `/metrics?old_names=false`.\n",
    );
    text.push_str("\nOld names, until the next release:");
    for (at, (new, old)) in RENAMED_METRICS.iter().enumerate() {
        let _ = write!(text, "{} `{old}` is `{new}`", if at == 0 { "" } else { "," });
    }
    for (metric, new, old) in RENAMED_VALUES {
        let _ = write!(text, "; of `{metric}` the value `{old}` is `{new}` (in `GET /v1/stat` under both)");
    }
    text.push_str(".\n");
    for (title, metrics) in SECTIONS {
        let _ =
            write!(text, "\n## {title}\n\n| name | in Prometheus | type | label | meaning |\n|---|---|---|---|---|\n");
        for metric in metrics {
            let label = match metric.label {
                None => String::new(),
                Some((name, values)) => format!("`{name}`: {}", values.join(", ")),
            };
            let _ = writeln!(
                text,
                "| `{}` | `{}` | {} | {label} | {} |",
                metric.name,
                ConventionalName::of(metric).name,
                metric.kind.name(),
                metric.meaning.trim().replace('|', "\\|")
            );
        }
        if title == ISOLATION_SECTION {
            let _ = writeln!(text, "\n{ISOLATION_NOTE}");
        }
    }
    text
}

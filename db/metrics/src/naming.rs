//! Names by Prometheus' conventions: counters end in `_total`, times are in seconds and sizes in bytes, parts of a
//! thousand are parts of one.

use super::{MetricKind, MetricSpec};

/// Names whose unit would stand in the middle, or be missed: by the declaration's name, and the one for Prometheus
/// without `_total`.
const EXCEPTIONS: [(&str, &str); 7] = [
    ("bytes_in", "received_bytes"),
    ("bytes_out", "sent_bytes"),
    ("connection_bytes_in", "connection_received_bytes"),
    ("connection_bytes_out", "connection_sent_bytes"),
    ("packets_in", "packets_received"),
    ("packets_out", "packets_sent"),
    ("throttled", "throttled_flows"),
];

/// Units of declarations: the ending, the ending for Prometheus, and what a value is divided by.
const UNITS: [(&str, &str, u64); 4] = [
    ("_us", "_seconds", 1_000_000),
    ("_ns", "_seconds", 1_000_000_000),
    ("_s", "_seconds", 1),
    ("_per_mille", "_ratio", 1_000),
];

/// The name of a metric for Prometheus, without the prefix, and its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConventionalName {
    /// The name.
    pub name: String,
    /// What the counted value is divided by.
    pub divisor: u64,
}

impl ConventionalName {
    /// The name of that metric.
    pub fn of(metric: &MetricSpec) -> ConventionalName {
        let (mut name, mut divisor) = (metric.name.to_owned(), 1);
        if let Some((_, better)) = EXCEPTIONS.iter().find(|(found, _)| *found == metric.name) {
            (*better).clone_into(&mut name);
        }
        let unit = UNITS.iter().find_map(|(ending, better, by)| Some((name.strip_suffix(ending)?, better, by)));
        if let Some((stem, better, by)) = unit {
            (name, divisor) = (format!("{stem}{better}"), *by);
        }
        if metric.kind == MetricKind::Counter {
            name.push_str("_total");
        }
        ConventionalName { name, divisor }
    }

    /// The text of a value.
    pub(crate) fn value(&self, counted: u64) -> String {
        if self.divisor == 1 { counted.to_string() } else { (counted as f64 / self.divisor as f64).to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_base_units_and_counters_end_in_total() {
        let of = |name: &'static str, kind| {
            let named = ConventionalName::of(&MetricSpec { name, kind, label: None, meaning: "" });
            (named.name.clone(), named.value(1_500))
        };
        let (counter, gauge) = (MetricKind::Counter, MetricKind::Gauge);
        for (name, kind, expected, value) in [
            ("messages", counter, "messages_total", "1500"),
            ("busy_us", counter, "busy_seconds_total", "0.0015"),
            ("tenant_invocation_cpu_ns", counter, "tenant_invocation_cpu_seconds_total", "0.0000015"),
            ("bytes_in", counter, "received_bytes_total", "1500"),
            ("tenant_dropped_early_per_mille", gauge, "tenant_dropped_early_ratio", "1.5"),
            ("scrub_age_s", gauge, "scrub_age_seconds", "1500"),
            ("heap_bytes", gauge, "heap_bytes", "1500"),
        ] {
            assert_eq!(of(name, kind), (expected.to_owned(), value.to_owned()));
        }
    }
}

//! A board for Grafana, made from the declarations: a row for each section, a panel for each metric that says something
//! by itself.

use std::fmt::Write;

use super::text::{PREFIX, SECTIONS};
use super::{ConventionalName, MetricKind, MetricSpec};

/// Columns of Grafana's grid, and of a panel in it.
const GRID_COLUMNS: usize = 24;
const PANEL_COLUMNS: usize = 8;
const PANEL_ROWS: usize = 7;

/// A panel: its title, its expression, its legend, its unit.
struct BoardPanel {
    title: String,
    expression: String,
    legend: String,
    unit: &'static str,
}

/// The panel of a metric whose readings have these labels beside its own.
fn panel(metric: &MetricSpec, by: &[&str]) -> BoardPanel {
    let named = ConventionalName::of(metric);
    let name = format!("{PREFIX}{}", named.name);
    let selected = format!("{name}{{instance=~\"$instance\"}}");
    let labels: Vec<&str> = by.iter().copied().chain(metric.label.map(|(label, _)| label)).collect();
    let unit = match (named.name.trim_end_matches("_total"), metric.kind) {
        (name, MetricKind::Gauge) if name.ends_with("_bytes") => "bytes",
        (name, MetricKind::Gauge) if name.ends_with("_seconds") => "s",
        (name, MetricKind::Counter) if name.ends_with("_bytes") => "Bps",
        (name, MetricKind::Counter) if name.ends_with("_seconds") => "percentunit",
        (name, _) if name.ends_with("_ratio") => "percentunit",
        (_, MetricKind::Counter) => "cps",
        _ => "short",
    };
    let grouping = if labels.is_empty() { "instance".to_owned() } else { format!("instance, {}", labels.join(", ")) };
    let value = match metric.kind {
        MetricKind::Counter => format!("sum by ({grouping}) (rate({selected}[$__rate_interval]))"),
        MetricKind::Histogram => format!(
            "histogram_quantile(0.99, sum by ({grouping}, le) \
             (rate({name}_bucket{{instance=~\"$instance\"}}[$__rate_interval])))"
        ),
        MetricKind::Summary => format!("{name}{{instance=~\"$instance\",quantile=\"0.99\"}}"),
        MetricKind::Gauge => format!("sum by ({grouping}) ({selected})"),
    };
    let unit = if matches!(metric.kind, MetricKind::Histogram | MetricKind::Summary) { "s" } else { unit };
    let legend: Vec<String> = labels.iter().map(|label| format!("{{{{{label}}}}}")).collect();
    let legend = if legend.is_empty() { "{{instance}}".to_owned() } else { legend.join(" ") };
    // What many tenants or extensions have is drawn for the largest.
    let expression = if by.is_empty() { value } else { format!("topk(10, {value})") };
    BoardPanel { title: named.name, expression, legend, unit }
}

/// The labels that a section's metrics have beside their own.
fn section_labels(title: &str) -> &'static [&'static str] {
    match title.split(' ').next() {
        Some("Each") if title.contains("`worker`") => &["worker"],
        Some("Each" | "Quotas") => &["tenant"],
        Some("Extensions" | "Calls") => &["tenant", "extension"],
        Some("Tables") if title.contains("`table`") => &["tenant", "table"],
        Some("Tenants") => &["tenant", "class"],
        _ => &[],
    }
}

/// The board as JSON.
pub fn dashboard_file() -> String {
    let (mut panels, mut row, mut id): (Vec<String>, usize, usize) = (Vec::new(), 0, 0);
    let latency = SECTIONS.iter().filter(|(title, _)| title.starts_with("Latency"));
    let others = SECTIONS.iter().filter(|(title, _)| !title.starts_with("Latency") && !title.starts_with("A kernel"));
    for (title, metrics) in latency.chain(others) {
        id += 1;
        let heading = title.split(" (").next().unwrap_or(title);
        panels.push(format!(
            "{{\"type\":\"row\",\"id\":{id},\"title\":{},\"collapsed\":false,\"panels\":[],\"gridPos\":{{\"x\":0,\
             \"y\":{row},\"w\":{GRID_COLUMNS},\"h\":1}}}}",
            json(heading)
        ));
        row += 1;
        let per_row = GRID_COLUMNS / PANEL_COLUMNS;
        for (at, metric) in metrics.iter().enumerate() {
            id += 1;
            let by = if title.starts_with("Latency") && metric.kind == MetricKind::Summary {
                &["tenant"]
            } else {
                section_labels(title)
            };
            let BoardPanel { title, expression, legend, unit } = panel(metric, by);
            let (x, y) = (at % per_row * PANEL_COLUMNS, row + at / per_row * PANEL_ROWS);
            let mut text = String::new();
            // Writing to a String does not fail.
            let _ = write!(
                text,
                "{{\"type\":\"timeseries\",\"id\":{id},\"title\":{},\"description\":{},\
                 \"datasource\":{{\"type\":\"prometheus\",\"uid\":\"${{datasource}}\"}},\
                 \"gridPos\":{{\"x\":{x},\"y\":{y},\"w\":{PANEL_COLUMNS},\"h\":{PANEL_ROWS}}},\
                 \"fieldConfig\":{{\"defaults\":{{\"unit\":{},\"min\":0}},\"overrides\":[]}},\
                 \"targets\":[{{\"refId\":\"A\",\"expr\":{},\"legendFormat\":{}}}]}}",
                json(&title),
                json(metric.meaning.trim()),
                json(unit),
                json(&expression),
                json(&legend)
            );
            panels.push(text);
        }
        row += metrics.len().div_ceil(per_row) * PANEL_ROWS;
    }
    format!(
        "{{\"title\":\"Sandstorm\",\"uid\":\"sandstorm\",\"tags\":[\"sandstorm\"],\"timezone\":\"utc\",\
         \"editable\":true,\"schemaVersion\":38,\"version\":1,\
         \"refresh\":\"10s\",\"time\":{{\"from\":\"now-1h\",\"to\":\"now\"}},\"templating\":{{\"list\":[\
         {{\"name\":\"datasource\",\"type\":\"datasource\",\"query\":\"prometheus\"}},\
         {{\"name\":\"instance\",\"type\":\"query\",\"datasource\":{{\"type\":\"prometheus\",\
         \"uid\":\"${{datasource}}\"}},\"query\":\"label_values({PREFIX}uptime_seconds, instance)\",\
         \"includeAll\":true,\"multi\":true,\"current\":{{\"text\":\"All\",\"value\":\"$__all\"}},\"refresh\":2}}]}},\
         \n\"panels\":[\n{}\n]}}\n",
        panels.join(",\n")
    )
}

/// A text in JSON.
fn json(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " "))
}

//! The text that Prometheus reads.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use serde::Deserialize;

use super::error::ApiError;
use super::response::off_thread;
use super::{ControlState, series, stat};
use crate::limits::{METRIC_SERIES, METRIC_SERIES_MAX};
use crate::otlp::MetricsReading;
use sandstorm_metrics::latency::{self, LatencyReading};
use sandstorm_metrics::text::{LabelledReadings, OldNames, build_info, prometheus};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetricsQuery {
    /// Whether metrics appear under their names of the release before, too; they do unless this says otherwise.
    #[serde(default = "is_default")]
    old_names: bool,
    /// Of how many extensions, tables and tenants' quotas there are series.
    top: Option<usize>,
}

fn is_default() -> bool {
    true
}

/// `GET /metrics`
pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    Query(MetricsQuery { old_names, top }): Query<MetricsQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let old_names = if old_names { OldNames::Shown } else { OldNames::Hidden };
    let top = top.unwrap_or(METRIC_SERIES).min(METRIC_SERIES_MAX);
    let text = off_thread(move || metrics_text(&control, old_names, top)).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text))
}

fn metrics_text(control: &ControlState, old_names: OldNames, top: usize) -> String {
    let MetricsReading { groups, latencies } = read_metrics(control, top);
    build_info(env!("CARGO_PKG_VERSION")) + &prometheus(&groups, old_names) + &latency::prometheus(&latencies)
}

/// All metrics of the server, with series of so many extensions, tables and tenants' quotas.
pub(super) fn read_metrics(control: &ControlState, top: usize) -> MetricsReading {
    let mut groups = vec![LabelledReadings { labels: Vec::new(), readings: stat::server_gauges(control) }];
    for worker in 0..control.metrics.workers() {
        let readings = control.metrics.read_worker(worker);
        groups.push(LabelledReadings { labels: vec![("worker", worker.to_string())], readings });
    }
    let snapshot = control.directory.snapshot();
    for view in snapshot.sorted() {
        let mut readings = view.tenant.usage.read();
        readings.extend(series::tenant_use_readings(control, view));
        groups.push(LabelledReadings { labels: vec![("tenant", view.tenant.name.clone())], readings });
    }
    groups.extend(series::quota_readings(control, top));
    let extensions = series::shown_extensions(control, top);
    groups.extend(extensions.iter().map(|(view, extension)| series::extension_readings(control, view, extension)));
    groups.extend(series::table_readings(control, top));
    groups.extend(series::hot_key_readings(control, top));
    groups.extend(series::isolation_readings(control, top));
    let latencies = snapshot.iter().map(|view| (view.tenant.name.clone(), view.tenant.usage.latencies())).collect();
    let latencies = LatencyReading {
        extensions: extensions.iter().map(|(view, extension)| series::extension_latency(view, extension)).collect(),
        pushes: control.builds.durations(),
        ..LatencyReading::of(latencies)
    };
    MetricsReading { groups, latencies }
}

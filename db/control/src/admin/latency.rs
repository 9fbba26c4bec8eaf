//! The latencies of tenants' requests and of extensions' calls, as the control port shows them.

use std::sync::Arc;

use axum::extract::{Query, State};
use serde::Deserialize;

use super::caller::RequestCaller;
use super::response::ApiResult;
use super::types::{LatencyResponse, LatencyRowResponse};
use super::{ControlState, now_ms};
use sandstorm_catalog::TenantView;
use sandstorm_extension::LoadedExtension;
use sandstorm_metrics::histogram::{REQUEST_CLASSES, RequestClass};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LatencyQuery {
    tenant: Option<String>,
    #[serde(default)]
    buckets: bool,
}

pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Query(query): Query<LatencyQuery>,
) -> ApiResult<LatencyResponse> {
    let views = caller.views(&control, query.tenant.as_deref())?;
    let rows = views.iter().flat_map(|view| rows(view, query.buckets)).collect();
    Ok(axum::Json(LatencyResponse { at_ms: now_ms(), rows }))
}

/// A tenant's rows: by the kind of request, then by extension.
pub(super) fn rows(view: &TenantView, buckets: bool) -> Vec<LatencyRowResponse> {
    let name = &view.tenant.name;
    let classes = view.tenant.usage.latencies();
    let by_class = REQUEST_CLASSES.iter().zip(&classes).filter(|(_, counts)| counts.total.count() > 0);
    let mut rows: Vec<LatencyRowResponse> =
        by_class.map(|(class, counts)| LatencyRowResponse::of(name, class, None, counts, buckets)).collect();
    rows.extend(view.sorted_extensions().into_iter().filter_map(|extension| extension_row(view, extension, buckets)));
    rows
}

/// The row of an extension; `None`: it was not called.
pub(super) fn extension_row(
    view: &TenantView,
    extension: &LoadedExtension,
    buckets: bool,
) -> Option<LatencyRowResponse> {
    let counts = extension.latency.read();
    let (class, about) = (REQUEST_CLASSES[RequestClass::Call as usize], (&*extension.name, extension.version));
    let is_called = counts.total.count() > 0;
    is_called.then(|| LatencyRowResponse::of(&view.tenant.name, class, Some(about), &counts, buckets))
}

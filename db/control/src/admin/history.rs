//! The route of the history.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::ControlState;
use super::caller::RequestCaller;
use super::response::ApiResult;
use super::types::HistoryResponse;
use crate::history::{HistoryPeriod, HistoryResolution, HistoryRow};
use crate::limits::HISTORY_PER_PAGE;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryParameters {
    tenant: Option<String>,
    #[serde(default)]
    by: HistoryResolution,
    #[serde(default)]
    since_ms: u64,
    limit: Option<usize>,
}

pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Query(query): Query<HistoryParameters>,
) -> ApiResult<HistoryResponse> {
    let HistoryParameters { tenant, by, since_ms, limit } = query;
    // Server viewers may ask for a tenant that is gone; a tenant sees itself, and no earlier one of its name.
    let own = match (caller.own(), &tenant) {
        (None, _) => None,
        (Some(own), None) => Some(own.clone()),
        (Some(_), Some(tenant)) => Some(caller.reach(&control, tenant)?),
    };
    let is_shown = |row: &HistoryRow| match &own {
        Some(own) => row.tenant_id == own.tenant.id && row.tenant.as_ref() == Some(&own.tenant.name),
        None => tenant.is_none() || row.tenant == tenant,
    };
    let limit = limit.unwrap_or(HISTORY_PER_PAGE).min(HISTORY_PER_PAGE);
    let mut periods = control.usage_history.since(by, since_ms, limit);
    periods.iter_mut().for_each(|period: &mut HistoryPeriod| period.rows.retain(is_shown));
    Ok(Json(HistoryResponse { periods }))
}

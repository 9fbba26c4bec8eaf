//! What tenants, extensions and tables use now, in one answer: two of them make rates.

use std::sync::Arc;

use axum::extract::{Query, State};
use serde::Deserialize;

use super::caller::RequestCaller;
use super::response::ApiResult;
use super::types::{ExtensionUseResponse, TableUseResponse, TenantUseResponse, TopResponse};
use super::{ControlState, now_ms};
use crate::limits::HOT_KEYS_MAX;
use sandstorm_catalog::TableEntry;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopParameters {
    tenant: Option<String>,
    rows: Option<RequestedRows>,
}

/// Which rows are asked for.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum RequestedRows {
    /// Tenants.
    Tenants,
    /// Extensions.
    Extensions,
    /// Tables.
    Tables,
}

pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Query(query): Query<TopParameters>,
) -> ApiResult<TopResponse> {
    let views = caller.views(&control, query.tenant.as_deref())?;
    let is_wanted = |rows: RequestedRows| query.rows.is_none_or(|wanted| wanted == rows);
    let now_ms = now_ms();
    let mut top = TopResponse {
        at_ms: now_ms,
        uptime_us: (control.metrics.uptime_s() * 1e6) as u64,
        workers: control.metrics.workers() as u32,
        tenants: Vec::new(),
        extensions: Vec::new(),
        tables: Vec::new(),
    };
    let hottest = match is_wanted(RequestedRows::Tables) {
        true => control.hot_keys.hottest(|tenant| views.iter().any(|view| view.tenant.id == tenant), HOT_KEYS_MAX),
        false => Vec::new(),
    };
    for view in &views {
        if is_wanted(RequestedRows::Tenants) {
            let isolation = control.isolation.worst_of(view.tenant.id);
            top.tenants.push(TenantUseResponse::of(view, isolation.as_ref(), now_ms));
        }
        if is_wanted(RequestedRows::Extensions) {
            let extensions = view.sorted_extensions();
            top.extensions.extend(extensions.into_iter().map(|extension| ExtensionUseResponse::of(view, extension)));
        }
        if is_wanted(RequestedRows::Tables) {
            let tables = view.sorted_tables();
            let of = |table: &Arc<TableEntry>| {
                let hottest = hottest.iter().find(|spot| (spot.tenant, spot.table) == (view.tenant.id, table.id));
                let per_mille = hottest.map_or(0, |spot| (spot.share * 1_000.0).round() as u64);
                TableUseResponse::of(&view.tenant.name, table, per_mille)
            };
            top.tables.extend(tables.into_iter().map(of));
        }
    }
    Ok(axum::Json(top))
}

//! What tenants, extensions and tables use now, in one answer: two of them make rates.

use std::sync::Arc;

use axum::extract::{Query, State};
use hashbrown::{HashMap, HashSet};
use serde::Deserialize;

use super::caller::RequestCaller;
use super::extension_memory::extension_memory_bytes;
use super::response::ApiResult;
use super::types::{ExtensionUseResponse, TableUseResponse, TenantUseResponse, TopResponse};
use super::{ControlState, now_ms};
use crate::limits::HOT_KEYS_MAX;
use sandstorm_catalog::{TableEntry, TenantView};
use sandstorm_extension::LoadedExtension;

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
    let (hottest, rates) = match is_wanted(RequestedRows::Tables) {
        true => (hottest_per_mille(&control, &views), control.hot_keys.rates()),
        false => (HashMap::new(), HashMap::new()),
    };
    for view in &views {
        if is_wanted(RequestedRows::Tenants) {
            let (isolation, used) = (control.isolation.worst_of(view.tenant.id), control.tenant_use.of(view));
            top.tenants.push(TenantUseResponse::of(view, isolation.as_ref(), &used, now_ms));
        }
        if is_wanted(RequestedRows::Extensions) {
            let extensions = view.sorted_extensions();
            let of = |extension: &Arc<LoadedExtension>| {
                ExtensionUseResponse::of(view, extension, extension_memory_bytes(extension))
            };
            top.extensions.extend(extensions.into_iter().map(of));
        }
        if is_wanted(RequestedRows::Tables) {
            let tables = view.sorted_tables();
            let of = |table: &Arc<TableEntry>| {
                let ids = (view.tenant.id, table.id);
                let per_mille = hottest.get(&ids).copied().unwrap_or(0);
                let rates = rates.get(&ids).copied().unwrap_or_default();
                TableUseResponse::of(&view.tenant.name, table, per_mille, rates)
            };
            top.tables.extend(tables.into_iter().map(of));
        }
    }
    Ok(axum::Json(top))
}

/// The thousandths of its accesses that a table's hottest key takes, by the ids of tenant and table.
fn hottest_per_mille(control: &ControlState, views: &[Arc<TenantView>]) -> HashMap<(u32, u64), u64> {
    let tenants: HashSet<u32> = views.iter().map(|view| view.tenant.id).collect();
    let mut hottest = HashMap::new();
    for spot in control.hot_keys.hottest(|tenant| tenants.contains(&tenant), HOT_KEYS_MAX) {
        // The first one of a table is its hottest.
        hottest.entry((spot.tenant, spot.table)).or_insert(spot.per_mille());
    }
    hottest
}

//! What the page shows: one reading of the server, or of a tenant, that all its readers share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use serde::Deserialize;

use super::caller::RequestCaller;
use super::error::ApiError;
use super::hot::hot_spots;
use super::overview_cache::OverviewPart;
use super::quota_use::quota_uses_and_rates;
use super::response::off_thread;
use super::role::AccessRole;
use super::stat::{KillFilter, recent_kills, server_counters, tenant_counters};
use super::types::{
    EventsResponse, ExtensionSummaryResponse, IsolationResponse, KillResponse, OverviewResponse, TableResponse,
    TenantResponse, TenantRowResponse, nearest_quota,
};
use super::{ControlState, now_ms};
use super::{findings, latency};
use crate::events::EventFilter;
use crate::limits::{HOT_KEYS, PAGE_EXTENSIONS, PAGE_KILLS, PAGE_TENANTS};
use sandstorm_catalog::TenantView;
use sandstorm_metrics::limits::LATENCY_TENANTS;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverviewQuery {
    tenant: Option<String>,
    #[serde(default)]
    show: OverviewPart,
}

/// `GET /v1/overview`
pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Query(query): Query<OverviewQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let withholds = caller.sees_server();
    let view = match (&query.tenant, caller.own()) {
        (Some(tenant), _) => Some(caller.reach(&control, tenant)?),
        (None, own) => own.cloned(),
    };
    let key = (view.as_ref().map(|view| view.tenant.serial), withholds);
    let read = move || {
        control.overviews.get((key, query.show), Instant::now(), || match &view {
            Some(view) => tenant_overview(&control, view, withholds),
            None => server_overview(&control),
        })
    };
    let bytes = off_thread(read).await??;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes))
}

fn server_overview(control: &ControlState) -> OverviewResponse {
    let snapshot = control.directory.snapshot();
    let views: Vec<Arc<TenantView>> = snapshot.sorted().into_iter().cloned().collect();
    let mut rows: Vec<(u64, TenantRowResponse)> = views.iter().map(|view| tenant_row(control, view)).collect();
    rows.sort_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.name.cmp(&other.name)));
    rows.truncate(PAGE_TENANTS);
    for (_, row) in rows.iter_mut().take(LATENCY_TENANTS) {
        if let Some(view) = snapshot.by_name(&row.name) {
            row.p99_ns = all_kinds_p99_ns(view);
            row.isolation = isolation_of(control, view);
        }
    }
    OverviewResponse {
        counters: server_counters(control),
        workers: super::stat::worker_counters(&control.metrics).iter().map(busy_us).collect(),
        findings: Some(findings::current(control)),
        tenants_in_all: views.len() as u64,
        tenants: rows.into_iter().map(|(_, row)| row).collect(),
        ..common_overview(control, &views, None, true)
    }
}

fn tenant_overview(control: &ControlState, view: &Arc<TenantView>, withholds: bool) -> OverviewResponse {
    let own = (view.tenant.name.clone(), view.tenant.id);
    OverviewResponse {
        counters: tenant_counters(view),
        tenants_in_all: 1,
        tenants: vec![TenantRowResponse {
            p99_ns: all_kinds_p99_ns(view),
            isolation: isolation_of(control, view),
            ..tenant_row(control, view).1
        }],
        tenant: Some(TenantResponse::of(view)),
        quotas: quota_uses_and_rates(control, view),
        // The page shows what a viewer may see, also to a tenant.
        tables: view
            .sorted_tables()
            .into_iter()
            .map(|entry| TableResponse::own(view, entry, false).withheld_from(AccessRole::Viewer))
            .collect(),
        latency: latency::rows(view, false),
        ..common_overview(control, std::slice::from_ref(view), Some(own), withholds)
    }
}

/// What overviews of the server and of tenants have in common: extensions, kills and events.
fn common_overview(
    control: &ControlState,
    views: &[Arc<TenantView>],
    visible_to: Option<(String, u32)>,
    withholds: bool,
) -> OverviewResponse {
    let mut loaded: Vec<_> = views
        .iter()
        .flat_map(|view| view.sorted_extensions().into_iter().map(move |extension| (view, extension)))
        .map(|(view, extension)| (extension.stats.read().cpu_us, view, extension))
        .collect();
    let extensions_in_all = loaded.len() as u64;
    loaded.sort_by_key(|(cpu_us, ..)| std::cmp::Reverse(*cpu_us));
    loaded.truncate(PAGE_EXTENSIONS);
    let summary = |(_, view, extension): (u64, &Arc<TenantView>, &Arc<sandstorm_extension::LoadedExtension>)| {
        let shown = control.history.show(view, extension);
        ExtensionSummaryResponse::of(&view.tenant.name, shown, &extension.latency.read().total)
    };
    let filter = KillFilter { extension: None, cause: None, notices: None, since_ms: 0 };
    let mut kills = recent_kills(control, views.iter(), &filter, PAGE_KILLS);
    // The page is a viewer's, whatever the role.
    kills.iter_mut().for_each(KillResponse::withhold_arguments);
    if withholds {
        kills.iter_mut().for_each(KillResponse::withhold_text);
    }
    let withholds_texts = withholds;
    let filter = EventFilter { visible_to, withholds_texts, ..EventFilter::default() };
    let events: EventsResponse = control.events.read(&filter, PAGE_KILLS).into();
    OverviewResponse {
        at_ms: now_ms(),
        version: env!("CARGO_PKG_VERSION"),
        uptime_s: control.metrics.uptime_s() as u64,
        extensions_in_all,
        extensions: loaded.into_iter().map(summary).collect(),
        kills,
        // The page shows no keys to any role.
        hot: hot_spots(control, views, HOT_KEYS, false),
        events: events.events,
        ..OverviewResponse::default()
    }
}

/// A tenant's row, and how busy it is.
fn tenant_row(control: &ControlState, view: &TenantView) -> (u64, TenantRowResponse) {
    // Not all counters by their names: they are read of each of hundreds of tenants.
    let totals = view.tenant.usage.totals();
    let fullest = Some(nearest_quota(view, &control.tenant_use.of(view), now_ms())).filter(|quota| quota.limit > 0);
    let requests = totals.requests + totals.connection_records;
    let stats = |bytes, table: &Arc<sandstorm_catalog::TableEntry>| bytes + table.table.stats().bytes;
    let row = TenantRowResponse {
        name: view.tenant.name.clone(),
        home_worker: view.tenant.home_worker,
        requests,
        calls: totals.calls,
        killed: totals.killed,
        cpu_ns: totals.cpu_ns,
        over_quota: totals.over_quota,
        dropped_early_per_mille: view.tenant.usage.dropped_early_per_mille(),
        record_bytes: view.tables.values().fold(0, stats),
        extensions: view.extensions.len() as u64,
        suspended: view.suspended_extensions() as u64,
        p99_ns: 0,
        fullest,
        isolation: None,
    };
    (requests + row.cpu_ns / 1_000, row)
}

/// What neighbours cost a tenant.
pub(super) fn isolation_of(control: &ControlState, view: &TenantView) -> Option<IsolationResponse> {
    control.isolation.worst_of(view.tenant.id).as_ref().map(IsolationResponse::of)
}

/// The 99th percentile of all requests of a tenant.
fn all_kinds_p99_ns(view: &TenantView) -> u64 {
    let mut all = sandstorm_metrics::histogram::DurationCounts::default();
    view.tenant.usage.latencies().iter().for_each(|counts| all.add(&counts.total));
    if all.count() == 0 { 0 } else { all.quantile_ns(990_000) }
}

fn busy_us(worker: &BTreeMap<String, u64>) -> u64 {
    worker.get("busy_us").copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use crate::admin::role::AccessRole;

    #[test]
    fn roles_of_browsers_change_nothing() {
        for role in AccessRole::ALL {
            assert!(matches!(role.as_viewer(), AccessRole::Viewer | AccessRole::TenantViewer), "{role:?}");
        }
    }
}

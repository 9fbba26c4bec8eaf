//! The operator's view of all tenants at once: their extensions, and their kills.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use serde::Deserialize;

use super::ControlState;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::response::ApiResult;
use super::stat::{KillFilter, recent_kills};
use super::types::{ExtensionSummaryResponse, KillResponse};
use crate::limits::{EXTENSIONS_PER_PAGE, EXTENSIONS_PER_PAGE_MAX, KILLS_PER_PAGE};
use sandstorm_metrics::KILL_CAUSES;

/// The word that stands for the server's measures among the causes of kills.
const NOTICE_CAUSE: &str = "notice";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KillsQuery {
    tenant: Option<String>,
    extension: Option<String>,
    cause: Option<String>,
    #[serde(default)]
    since_ms: u64,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtensionsQuery {
    tenant: Option<String>,
    #[serde(default)]
    sort: ExtensionOrder,
    limit: Option<usize>,
}

/// The order of extensions, largest first.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ExtensionOrder {
    /// By tenant and name.
    #[default]
    Name,
    /// By CPU time.
    Cpu,
    /// By the number of calls.
    Calls,
    /// By the number of kills.
    Kills,
    /// By the median of how long calls took.
    P50,
    /// By the 99th percentile.
    P99,
}

fn kills(
    control: &ControlState,
    caller: &RequestCaller,
    tenant: Option<&str>,
    query: KillsQuery,
) -> ApiResult<Vec<KillResponse>> {
    let KillsQuery { extension, cause, since_ms, limit, .. } = query;
    if let Some(cause) = &cause
        && cause != NOTICE_CAUSE
        && !KILL_CAUSES.contains(&cause.as_str())
    {
        let known = KILL_CAUSES.join(", ");
        return Err(ApiError::invalid(format!("there is no cause {cause:?} of kills"))
            .hint(format!("the causes are {known}; {NOTICE_CAUSE:?} stands for measures of the server")));
    }
    let notices = cause.as_ref().map(|cause| cause == NOTICE_CAUSE);
    let filter = KillFilter { extension, cause: cause.filter(|cause| cause != NOTICE_CAUSE), notices, since_ms };
    let views = caller.views(control, tenant)?;
    let mut found = recent_kills(control, views.iter(), &filter, limit.unwrap_or(KILLS_PER_PAGE));
    found.iter_mut().for_each(|kill| kill.withhold_from(caller.role()));
    Ok(axum::Json(found))
}

pub(super) async fn tenant_kills(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
    Query(query): Query<KillsQuery>,
) -> ApiResult<Vec<KillResponse>> {
    kills(&control, &caller, Some(&tenant), query)
}

pub(super) async fn all_kills(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Query(query): Query<KillsQuery>,
) -> ApiResult<Vec<KillResponse>> {
    let tenant = query.tenant.clone();
    kills(&control, &caller, tenant.as_deref(), query)
}

pub(super) async fn extensions(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Query(query): Query<ExtensionsQuery>,
) -> ApiResult<Vec<ExtensionSummaryResponse>> {
    let ExtensionsQuery { tenant, sort, limit } = query;
    let mut all: Vec<ExtensionSummaryResponse> = Vec::new();
    for view in caller.views(&control, tenant.as_deref())? {
        for extension in view.sorted_extensions() {
            let shown = control.history.show(&view, extension);
            all.push(ExtensionSummaryResponse::of(&view.tenant.name, shown, &extension.latency.read().total));
        }
    }
    match sort {
        ExtensionOrder::Name => {}
        ExtensionOrder::Cpu => all.sort_by_key(|one| Reverse(one.stats.cpu_us)),
        ExtensionOrder::Calls => all.sort_by_key(|one| Reverse(one.stats.invocations)),
        ExtensionOrder::Kills => all.sort_by_key(|one| Reverse(one.stats.killed)),
        ExtensionOrder::P50 => all.sort_by_key(|one| Reverse(one.p50_ns)),
        ExtensionOrder::P99 => all.sort_by_key(|one| Reverse(one.p99_ns)),
    }
    all.truncate(limit.unwrap_or(EXTENSIONS_PER_PAGE).min(EXTENSIONS_PER_PAGE_MAX));
    Ok(axum::Json(all))
}

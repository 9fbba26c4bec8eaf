//! The route of a table's hottest keys: it counts for as long as it is asked to, and answers then.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use hashbrown::HashMap;
use parking_lot::Mutex;
use serde::Deserialize;

use super::caller::RequestCaller;
use super::error::ApiError;
use super::key_digest::key_digest;
use super::response::ApiResult;
use super::types::{HotKeyResponse, HotResponse, HotSpotResponse, HotSpotsResponse};
use super::{ControlState, now_ms};
use crate::hot_keys::HotSpot;
use crate::limits::{HOT_KEYS, HOT_KEYS_MAX, HOT_SECONDS, HOT_SECONDS_MAX, HOT_WATCHES};
use sandstorm_catalog::{DirectoryError, TenantView};
use sandstorm_store::{AccessReport, HotKey, RecordTable};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HotParameters {
    seconds: Option<u64>,
    limit: Option<usize>,
}

/// Watches under way, of all tables.
#[derive(Debug, Default)]
pub(super) struct HotWatches(Mutex<usize>);

#[cfg(test)]
impl HotWatches {
    pub(super) fn count(&self) -> usize {
        *self.0.lock()
    }
}

/// A watch of a table, until it is dropped: a caller that goes away ends it.
pub(super) struct TableWatch<'c> {
    watches: &'c HotWatches,
    view: Arc<TenantView>,
    table: u64,
    is_over: bool,
}

impl<'c> TableWatch<'c> {
    /// Begins one with `start`, which says whether the table was free.
    pub(super) fn start(
        watches: &'c HotWatches,
        view: Arc<TenantView>,
        table: u64,
        start: impl FnOnce(&RecordTable) -> bool,
    ) -> Result<TableWatch<'c>, ApiError> {
        let busy = |message: String| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message);
        let mut under_way = watches.0.lock();
        if *under_way >= HOT_WATCHES {
            return Err(busy(format!("{HOT_WATCHES} tables are watched already")).hint("try again when one has ended"));
        }
        let is_started = view.tables.get(&table).is_some_and(|entry| start(&entry.table));
        if !is_started {
            return Err(busy("the table is watched already".to_owned()).hint("try again when that has ended"));
        }
        *under_way += 1;
        drop(under_way);
        Ok(TableWatch { watches, view, table, is_over: false })
    }

    /// The table, while its tenant has it.
    pub(super) fn table(&self) -> Option<&RecordTable> {
        self.view.tables.get(&self.table).map(|entry| &entry.table)
    }

    /// Ends it with `end`.
    pub(super) fn end<R: Default>(&mut self, end: impl FnOnce(&RecordTable) -> R) -> R {
        self.is_over = true;
        *self.watches.0.lock() -= 1;
        self.table().map(end).unwrap_or_default()
    }
}

impl Drop for TableWatch<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(|table| drop(table.end_watch(0)));
        }
    }
}

pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(HotParameters { seconds, limit }): Query<HotParameters>,
) -> ApiResult<HotResponse> {
    let view = caller.reach(&control, &tenant)?;
    let seconds = seconds.unwrap_or(HOT_SECONDS);
    if !(1..=HOT_SECONDS_MAX).contains(&seconds) {
        return Err(ApiError::invalid(format!("seconds = {seconds} is outside of 1 to {HOT_SECONDS_MAX}"))
            .hint("ask again to go on"));
    }
    let unknown = || DirectoryError::UnknownTable { tenant: view.tenant.name.clone(), table: name.clone() };
    let table = view.table_by_name(&name).map(|entry| entry.id).ok_or_else(unknown)?;
    let mut watch = TableWatch::start(&control.hot_watches, view.clone(), table, RecordTable::start_watch)?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    caller.check_current(&control)?;
    let AccessReport { requests, bytes, missed, by_requests, by_bytes, cpu_ns, by_cpu } =
        watch.end(|table| table.end_watch(limit.unwrap_or(HOT_KEYS).min(HOT_KEYS_MAX)));
    let shown = |keys: Vec<HotKey>, whole: u64| keys.into_iter().map(|key| shown(key, whole, &caller)).collect();
    let (by_requests, by_bytes) = (shown(by_requests, requests), shown(by_bytes, bytes));
    let by_cpu = shown(by_cpu, cpu_ns);
    Ok(Json(HotResponse { seconds, requests, bytes, missed, by_requests, by_bytes, cpu_ns, by_cpu }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HotSpotsQuery {
    tenant: Option<String>,
    limit: Option<usize>,
}

/// `GET /v1/hot`: what is known without a watch.
pub(super) async fn everywhere(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Query(HotSpotsQuery { tenant, limit }): Query<HotSpotsQuery>,
) -> ApiResult<HotSpotsResponse> {
    let views = caller.views(&control, tenant.as_deref())?;
    let most = limit.unwrap_or(HOT_KEYS).min(HOT_KEYS_MAX);
    let keys = hot_spots(&control, &views, most, caller.sees_keys());
    Ok(Json(HotSpotsResponse { at_ms: now_ms(), keys }))
}

/// The keys of these tenants' tables that take most accesses now.
pub(super) fn hot_spots(
    control: &ControlState,
    views: &[Arc<TenantView>],
    most: usize,
    sees_keys: bool,
) -> Vec<HotSpotResponse> {
    let by_id: HashMap<u32, &Arc<TenantView>> = views.iter().map(|view| (view.tenant.id, view)).collect();
    let of = |spot: HotSpot| {
        let view = by_id.get(&spot.tenant)?;
        Some(HotSpotResponse {
            tenant: view.tenant.name.clone(),
            table: view.tables.get(&spot.table)?.name().to_string(),
            key: sees_keys.then(|| String::from_utf8_lossy(&spot.prefix).into_owned()),
            key_digest: key_digest(spot.hash, spot.key_len),
            key_bytes: spot.key_len as u64,
            share: spot.share,
            per_s: spot.per_s(),
            samples: spot.samples,
        })
    };
    control.hot_keys.hottest(|tenant| by_id.contains_key(&tenant), most).into_iter().filter_map(of).collect()
}

/// A key as the caller may see it: its bytes are shown to their tenant alone.
fn shown(key: HotKey, whole: u64, caller: &RequestCaller) -> HotKeyResponse {
    let HotKey { hash, prefix, key_len, count, error } = key;
    let key_digest = key_digest(hash, key_len);
    HotKeyResponse {
        key: (!caller.is_operator()).then(|| String::from_utf8_lossy(&prefix).into_owned()),
        key_digest,
        key_bytes: key_len as u64,
        count,
        error,
        share: if whole == 0 { 0.0 } else { count as f64 / whole as f64 },
    }
}

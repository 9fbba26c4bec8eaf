//! The route of a table's heat map: it counts for as long as it is asked to, and answers then.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;

use super::ControlState;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::hot::TableWatch;
use super::response::ApiResult;
use super::types::{HeatRangeResponse, HeatResponse};
use crate::limits::{HEAT_COLUMNS, HEAT_RANGES, HEAT_RANGES_MAX};
use sandstorm_catalog::DirectoryError;
use sandstorm_store::HeatRange;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeatParameters {
    seconds: Option<usize>,
    ranges: Option<usize>,
}

/// Seconds if the request gives no number.
const HEAT_SECONDS: usize = 30;

pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(HeatParameters { seconds, ranges }): Query<HeatParameters>,
) -> ApiResult<HeatResponse> {
    let view = caller.reach(&control, &tenant)?;
    let (seconds, ranges) = (seconds.unwrap_or(HEAT_SECONDS), ranges.unwrap_or(HEAT_RANGES));
    for (what, value, most) in [("seconds", seconds, HEAT_COLUMNS), ("ranges", ranges, HEAT_RANGES_MAX)] {
        if !(1..=most).contains(&value) {
            return Err(ApiError::invalid(format!("{what} = {value} is outside of 1 to {most}")));
        }
    }
    let unknown = || DirectoryError::UnknownTable { tenant: view.tenant.name.clone(), table: name.clone() };
    let table = view.table_by_name(&name).map(|entry| entry.id).ok_or_else(unknown)?;
    let begin = |table: &sandstorm_store::RecordTable| table.start_heat_watch(seconds);
    let mut watch = TableWatch::start(&control.hot_watches, view.clone(), table, begin)?;
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    // The first one is at once.
    ticks.tick().await;
    for second in 1..=seconds {
        ticks.tick().await;
        watch.table().inspect(|table| table.set_heat_column(second));
    }
    caller.check_current(&control)?;
    let report = watch.end(|table| table.end_heat_watch(ranges));
    let shown = |key: &[u8]| caller.sees_keys().then(|| String::from_utf8_lossy(key).into_owned());
    let range = |range: HeatRange| HeatRangeResponse {
        first: shown(&range.first),
        last: shown(&range.last),
        accesses: range.accesses,
    };
    Ok(Json(HeatResponse {
        seconds: seconds as u64,
        accesses: report.accesses,
        sampled: report.sampled,
        missed: report.missed,
        ranges: report.ranges.into_iter().map(range).collect(),
    }))
}

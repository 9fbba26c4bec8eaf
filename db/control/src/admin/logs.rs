//! The route of a tenant's log. Its lines may tell of records: they are the tenant's own, and the operator reads them
//! only where the configuration says so.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;

use super::ControlState;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::response::ApiResult;
use super::types::{LogLineResponse, LogResponse};
use crate::limits::{EVENT_WAIT_MAX_S, LOG_LINES_PER_PAGE, LOG_LINES_PER_PAGE_MAX, LOG_LOOK_INTERVAL};
use sandstorm_accounts::{LineLevel, LogFilter, LogLine, LogPage};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogParameters {
    after: Option<u64>,
    extension: Option<String>,
    level: Option<String>,
    call: Option<u64>,
    limit: Option<usize>,
    #[serde(default)]
    wait_s: u64,
}

pub(super) async fn read(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
    Query(parameters): Query<LogParameters>,
) -> ApiResult<LogResponse> {
    if caller.sees_server() && !control.directory.options().operator_reads_logs {
        return Err(ApiError::forbidden("what tenants' code writes to the log is shown to the tenant alone")
            .hint("use the tenant's token; or set operator_reads_logs = true in the server's configuration"));
    }
    let view = caller.reach(&control, &tenant)?;
    let log = &view.tenant.usage.log;
    let LogParameters { after, extension, level, call, limit, wait_s } = parameters;
    let level = match level.as_deref() {
        None => LineLevel::Info,
        Some(name) => LineLevel::by_name(name).ok_or_else(|| {
            ApiError::invalid(format!("there is no level {name:?}")).hint("write error, warn, info or debug")
        })?,
    };
    let limit = limit.unwrap_or(LOG_LINES_PER_PAGE).min(LOG_LINES_PER_PAGE_MAX);
    let filter = LogFilter { after, extension, level, call, limit };
    let permit = if wait_s > 0 { control.events.wait(view.tenant.id) } else { None };
    let wait_s = permit.as_ref().map_or(0, |_| wait_s);
    let until = tokio::time::Instant::now() + Duration::from_secs(wait_s.min(EVENT_WAIT_MAX_S));
    if level == LineLevel::Debug {
        log.keep_debug_lines();
    }
    loop {
        caller.check_current(&control)?;
        let page = log.read(&filter);
        // Workers wake no reader for a line.
        if !page.lines.is_empty() || tokio::time::Instant::now() >= until {
            return Ok(Json(response_of(page, log.left_out())));
        }
        tokio::time::sleep(LOG_LOOK_INTERVAL).await;
    }
}

fn response_of(page: LogPage, left_out: u64) -> LogResponse {
    let line = |LogLine { id, at_us, level, extension, version, call, text }: LogLine| LogLineResponse {
        id,
        at_us,
        level: level.name(),
        extension: extension.to_string(),
        version,
        call,
        text: text.to_string(),
    };
    let LogPage { lines, next, missed } = page;
    LogResponse { lines: lines.into_iter().map(line).collect(), next, missed, left_out }
}

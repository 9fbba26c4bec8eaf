//! The feed of a table's changes: what the log has of a table with durability, from a position on. It reads the log's
//! files, so writers pay nothing for it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::ControlState;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::records::begin_page;
use super::request_limiter::RequestPermit;
use super::response::{ApiResult, off_thread};
use super::types::{ChangePageResponse, ChangeResponse};
use crate::limits::{
    CHANGE_LATE_LOOK, CHANGE_PAGE_BYTES, CHANGE_PAGE_CHANGES, CHANGE_PAGE_SCAN_BYTES, CHANGE_POLL, CHANGE_WAIT_MAX_S,
};
use sandstorm_catalog::{DirectoryError, TenantView};
use sandstorm_log::{ChangeKind, ChangeLog, LogTail, TailError};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangesQuery {
    /// The position behind which changes are wanted; without it the answer has the end of the log and no change.
    after: Option<u64>,
    /// Seconds to wait for a change.
    #[serde(default)]
    wait_s: u64,
}

pub(super) async fn page(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(ChangesQuery { after, wait_s }): Query<ChangesQuery>,
) -> ApiResult<ChangePageResponse> {
    let view = caller.reach(&control, &tenant)?;
    let (log, _) = logged_table(&control, &view, &name)?;
    let Some(after) = after else {
        // What the caller reads of the table from now on may show changes up to the end of the log.
        let next = log.durable();
        return Ok(axum::Json(ChangePageResponse { changes: Vec::new(), next: next.to_string(), at_end: true }));
    };
    // Waiting requests have a limit of their own, and take nothing from others that read.
    let permit = if wait_s > 0 { control.change_waits.begin(view.tenant.id) } else { None };
    let (most, pause) = match &permit {
        Some(_) => (Duration::from_secs(CHANGE_WAIT_MAX_S), CHANGE_POLL),
        None => (CHANGE_LATE_LOOK, CHANGE_LATE_LOOK),
    };
    let until = tokio::time::Instant::now() + Duration::from_secs(wait_s).min(most);
    let (mut after, mut last) = (after, None);
    loop {
        // A token, a grant or a table may have ended while the request waited.
        caller.check_current(&control)?;
        let (log, number) = logged_table(&control, &control.directory.snapshot().find(&*tenant)?.clone(), &name)?;
        let is_over = tokio::time::Instant::now() >= until;
        // Without anything new there is nothing to read but the first time.
        let has_news = last.is_none() || log.durable() > after;
        let page = match has_news.then(|| begin_page(&control, &view)) {
            Some(Ok(permit)) => Some(read_off_thread(permit, &log, (number, after)).await?),
            // Others read at present: a request that may wait waits for them as well.
            Some(Err(busy)) if is_over && last.is_none() => return Err(busy),
            _ => None,
        };
        let goes_on = page.as_ref().is_some_and(|page| !page.at_end);
        match page.or(last) {
            Some(page) if !page.changes.is_empty() || is_over => return Ok(axum::Json(page)),
            // Changes of other tables are not looked at again.
            page => {
                after = page.as_ref().and_then(|page| page.next.parse().ok()).unwrap_or(after);
                last = page;
            }
        }
        if !goes_on {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Reads a page of a table's changes behind a position, as one of the pages that `permit` counts: it takes as much
/// memory as a page of records, and a thread for as long.
async fn read_off_thread(
    permit: RequestPermit,
    log: &Arc<ChangeLog>,
    (table, after): (u64, u64),
) -> Result<ChangePageResponse, ApiError> {
    let log = Arc::clone(log);
    let read = off_thread(move || {
        let _permit = permit;
        read_page(&log, table, after)
    });
    read.await?.map_err(refused)
}

/// The log, and the number that an own table of the tenant, or one granted to it, has there.
fn logged_table(control: &ControlState, view: &TenantView, name: &str) -> Result<(Arc<ChangeLog>, u64), ApiError> {
    let unknown = || DirectoryError::UnknownTable { tenant: view.tenant.name.clone(), table: name.to_owned() };
    let number = match view.table_by_name(name) {
        Some(entry) => entry.table.log_number(),
        None => {
            let grant = view.granted_by_name(name).ok_or_else(unknown)?;
            grant.reach(false).map_err(|_| unknown())?.table.log_number()
        }
    };
    control.directory.change_log().zip(number).ok_or_else(|| not_logged(name))
}

/// The refusal of what needs a table's changes in the log.
pub(super) fn not_logged(table: &str) -> ApiError {
    let message = format!("table {table:?} has durability none: its changes are in no log");
    ApiError::new(StatusCode::CONFLICT, "not_logged", message)
        .hint(format!("`sandstorm table set {table} --durability interval` changes that while it is used"))
}

/// The changes of a table behind a position, up to the size of a page.
fn read_page(log: &Arc<ChangeLog>, table: u64, after: u64) -> Result<ChangePageResponse, TailError> {
    let mut tail = LogTail::at(log, after)?;
    let (mut changes, mut bytes) = (Vec::new(), 0);
    tail.read(CHANGE_PAGE_SCAN_BYTES, &mut |position, change| {
        let is_shown = !matches!(
            change.kind,
            ChangeKind::MakeTable | ChangeKind::DropTable | ChangeKind::Arrive | ChangeKind::Leave
        );
        if change.table == table && is_shown {
            bytes += change.key.len() + change.value.len() + ChangeResponse::FRAME_BYTES;
            changes.push(ChangeResponse::of(position, change));
        }
        bytes < CHANGE_PAGE_BYTES && changes.len() < CHANGE_PAGE_CHANGES
    })?;
    Ok(ChangePageResponse { changes, next: tail.position().to_string(), at_end: tail.is_at_end() })
}

fn refused(error: TailError) -> ApiError {
    match error {
        TailError::TooOld { oldest } => {
            let message = format!("the log begins at position {oldest}: what was before is not kept as changes");
            ApiError::new(StatusCode::GONE, "too_old", message)
                .hint("take the end of the log (without `after`), read the table, and follow from there")
        }
        TailError::NoPosition(position) => ApiError::invalid(format!("{position} is no position that was handed out"))
            .hint("use `next` of the last answer, or the `position` of a change"),
        TailError::Log(error) => ApiError::internal(error.to_string()),
    }
}

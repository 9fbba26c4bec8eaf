//! The route of events.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use serde::Deserialize;

use super::ControlState;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::response::ApiResult;
use super::role::AccessRole;
use super::types::EventsResponse;
use crate::events::{EventCode, EventFilter};
use crate::limits::{EVENT_WAIT_MAX_S, EVENTS_PER_PAGE, EVENTS_PER_PAGE_MAX};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    after: Option<u64>,
    #[serde(default)]
    since_ms: u64,
    tenant: Option<String>,
    code: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    wait_s: u64,
}

pub(super) async fn list(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Query(query): Query<EventsQuery>,
) -> ApiResult<EventsResponse> {
    let EventsQuery { after, since_ms, tenant, code, limit, wait_s } = query;
    if let Some(tenant) = &tenant {
        caller.check_tenant(tenant)?;
    }
    let visible_to = caller.own().map(|own| (own.tenant.name.clone(), own.tenant.id));
    let withholds_texts = caller.role() == AccessRole::Viewer;
    if let Some(code) = &code
        && !EventCode::ALL.iter().any(|known| known.name() == code || known.name().split('.').next() == Some(code))
    {
        return Err(ApiError::invalid(format!("there are no events of code {code:?}"))
            .hint("docs/operations.md lists the codes; the word before the dot stands for all that begin with it"));
    }
    let filter = EventFilter { after, since_ms, tenant, visible_to, withholds_texts, code };
    let limit = limit.unwrap_or(EVENTS_PER_PAGE).min(EVENTS_PER_PAGE_MAX);
    let waits_as = filter.visible_to.as_ref().map_or(0, |(_, id)| *id);
    let permit = if wait_s > 0 { control.events.wait(waits_as) } else { None };
    let wait_s = permit.as_ref().map_or(0, |_| wait_s);
    let until = tokio::time::Instant::now() + Duration::from_secs(wait_s.min(EVENT_WAIT_MAX_S));
    loop {
        // Before the log is read: what comes in between must not be missed.
        let added = control.events.added();
        caller.check_current(&control)?;
        let page = control.events.read(&filter, limit);
        if !page.events.is_empty() || tokio::time::timeout_at(until, added).await.is_err() {
            return Ok(axum::Json(page.into()));
        }
    }
}

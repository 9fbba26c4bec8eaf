//! The routes of slow requests.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Deserialize;

use super::ControlState;
use super::body::JsonBody;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::kept_slow_request::KeptSlowRequest;
use super::key_digest::slow_key_digest;
use super::response::{ApiResult, EMPTY_RESPONSE};
use super::role::AccessRole;
use super::types::{ChangeSlowRequest, SlowCallResponse, SlowRequestResponse, SlowResponse, TurnShareResponse};
use crate::limits::SLOW_PER_PAGE;
use sandstorm_accounts::{SlowRequest, TurnShare};
use sandstorm_catalog::{DirectorySnapshot, TenantView};
use sandstorm_metrics::histogram::REQUEST_CLASSES;
use sandstorm_server::limits::SLOW_MAX_US;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SlowParameters {
    tenant: Option<String>,
    #[serde(default)]
    since_ms: u64,
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
}

pub(super) async fn list(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Query(query): Query<SlowParameters>,
) -> ApiResult<SlowResponse> {
    let SlowParameters { tenant, since_ms, after, limit } = query;
    let snapshot = control.directory.snapshot();
    let views = caller.views(&control, tenant.as_deref())?;
    let mut found: Vec<(&Arc<TenantView>, SlowRequest)> = Vec::new();
    for view in &views {
        let recent = view.tenant.usage.slow_requests.recent().into_iter();
        found.extend(recent.filter(|one| one.at_ms >= since_ms && one.id > after).map(|one| (view, one)));
    }
    let limit = limit.unwrap_or(SLOW_PER_PAGE);
    found.sort_by_key(|(_, one)| std::cmp::Reverse(one.id));
    found.truncate(limit);
    let mut requests: Vec<SlowRequestResponse> =
        found.into_iter().map(|(view, one)| response_of(&snapshot, view, one, &caller)).collect();
    for view in &views {
        let earlier = control.incidents.slow_of(view).into_iter();
        let earlier = earlier.filter(|one| one.shown.at_ms >= since_ms && one.shown.id > after);
        requests.extend(earlier.map(|one| earlier_to(&caller, view, one)));
    }
    requests.sort_by_key(|one| std::cmp::Reverse(one.id));
    requests.truncate(limit);
    let left_out = views.iter().map(|view| view.tenant.usage.slow_requests.left_out()).sum();
    Ok(Json(SlowResponse { threshold_us: control.metrics.slow.us(), left_out, requests }))
}

pub(super) async fn explain(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(id): Path<u64>,
) -> ApiResult<SlowRequestResponse> {
    let snapshot = control.directory.snapshot();
    for view in &caller.views(&control, None)? {
        if let Some(request) = view.tenant.usage.slow_requests.find(id) {
            return Ok(Json(response_of(&snapshot, view, request, &caller)));
        }
        if let Some(earlier) = control.incidents.slow_of(view).into_iter().find(|one| one.shown.id == id) {
            return Ok(Json(earlier_to(&caller, view, earlier)));
        }
    }
    Err(ApiError::not_found(format!("there is no slow request {id}"))
        .hint("the latest 64 of each tenant are kept, and some of them over a restart; `GET /v1/slow` lists them"))
}

pub(super) async fn change(
    State(control): State<Arc<ControlState>>,
    JsonBody(ChangeSlowRequest { threshold_us }): JsonBody<ChangeSlowRequest>,
) -> Result<impl IntoResponse, ApiError> {
    if threshold_us > SLOW_MAX_US {
        return Err(ApiError::invalid(format!("threshold_us = {threshold_us} is outside of 0 to {SLOW_MAX_US}"))
            .hint("0: no request is kept as slow"));
    }
    control.metrics.slow.set_us(threshold_us);
    let note = EventNote { text: format!("threshold_us = {threshold_us}"), ..EventNote::default() };
    Ok((Extension(note), EMPTY_RESPONSE))
}

/// A slow request as the caller may see it: keys are shown to their tenant alone, and other tenants to callers that see
/// the whole server.
fn response_of(
    snapshot: &DirectorySnapshot,
    view: &TenantView,
    request: SlowRequest,
    caller: &RequestCaller,
) -> SlowRequestResponse {
    let key = (caller.sees_keys() && request.subject.key_len() > 0)
        .then(|| String::from_utf8_lossy(request.subject.key_prefix()).into_owned());
    shown_to(caller, SlowRequestResponse { key, ..full_response(snapshot, view, request) })
}

/// A slow request of an earlier run of the server as the caller may see it. Its key is shown as that of a new one, if
/// there was one to keep and the table is still there: the digest is the one that this run has for it.
fn earlier_to(caller: &RequestCaller, view: &TenantView, earlier: KeptSlowRequest) -> SlowRequestResponse {
    let KeptSlowRequest { mut shown, key_prefix } = earlier;
    let table = view.tables.values().find(|table| Some(&*table.name()) == shown.table.as_deref());
    if let Some(table) = table.filter(|_| !key_prefix.is_empty()) {
        shown.key = caller.sees_keys().then(|| String::from_utf8_lossy(&key_prefix).into_owned());
        shown.key_digest = Some(slow_key_digest((&key_prefix, shown.key_bytes as usize), Some(&**table)));
    }
    shown_to(caller, shown)
}

/// A slow request as the caller may see it: callers that see the whole server see other tenants' names, and viewers see
/// no arguments.
fn shown_to(caller: &RequestCaller, mut request: SlowRequestResponse) -> SlowRequestResponse {
    if !matches!(caller.role(), AccessRole::Operator | AccessRole::Tenant) {
        request.call.iter_mut().for_each(|call| call.arguments.clear());
    }
    if !caller.sees_server() {
        let SlowRequestResponse { tenant, turns, .. } = &mut request;
        turns.iter_mut().filter(|share| share.tenant.as_ref() != Some(tenant)).for_each(|share| share.tenant = None);
        *turns = added_up(std::mem::take(turns));
    }
    request
}

/// One share for each name, in the order in which they come.
fn added_up(shares: Vec<TurnShareResponse>) -> Vec<TurnShareResponse> {
    let mut sums: Vec<TurnShareResponse> = Vec::new();
    for share in shares {
        match sums.iter_mut().find(|sum| sum.tenant == share.tenant) {
            Some(sum) => {
                sum.turns += share.turns;
                sum.cpu_ns += share.cpu_ns;
                sum.requests += share.requests;
            }
            None => sums.push(share),
        }
    }
    sums
}

/// A slow request as the operator sees it: without its key, with the names of all tenants.
pub(super) fn full_response(
    snapshot: &DirectorySnapshot,
    view: &TenantView,
    request: SlowRequest,
) -> SlowRequestResponse {
    let SlowRequest { id, at_ms, class, subject, count, waiting_ns, service_ns, waits, worker, call, turns, known_ns } =
        request;
    let share = |TurnShare { tenant, turns, cpu_ns, requests }| TurnShareResponse {
        tenant: snapshot.tenant(tenant).map(|other| other.tenant.name.clone()),
        turns: u64::from(turns),
        cpu_ns,
        requests: u64::from(requests),
    };
    let key = (subject.key_prefix(), subject.key_len());
    SlowRequestResponse {
        id,
        at_ms,
        tenant: view.tenant.name.clone(),
        class: Cow::Borrowed(REQUEST_CLASSES[class as usize]),
        operation: Cow::Borrowed(subject.operation),
        table: view.tables.get(&subject.table).map(|table| table.name().to_string()),
        key: None,
        key_digest: (subject.key_len() > 0)
            .then(|| slow_key_digest(key, view.tables.get(&subject.table).map(|table| &**table))),
        key_bytes: subject.key_len() as u64,
        count,
        total_ns: waiting_ns + service_ns,
        waiting_ns,
        service_ns,
        waits: waits.into(),
        worker,
        call: call.map(|call| SlowCallResponse {
            extension: call.extension,
            version: call.version,
            log_call: call.log_call,
            outcome: Cow::Borrowed(call.outcome),
            cpu_ns: call.cpu_ns,
            turns: call.polls,
            switches: call.switches,
            // The last one ended the call.
            waits: call.polls.saturating_sub(call.switches).saturating_sub(1),
            cold_waits: call.cold_waits,
            cold_ns: call.cold_ns,
            reads: call.reads,
            read_bytes: call.read_bytes,
            retries: call.retries,
            nested_calls: call.nested_calls,
            nested_cpu_ns: call.nested_cpu_ns,
            queue_ns: call.queue_ns,
            first_turn_ns: call.first_turn_ns,
            pauses: call.pauses.into(),
            arguments: call.arguments.escape_ascii().to_string(),
        }),
        turns: added_up(turns.into_iter().map(share).collect()),
        known_ns,
    }
}

//! The route of calls under way: it asks each worker which ones it has, and where they are, if the caller wants that.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::ControlState;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::response::ApiResult;
use super::types::{CallLevelResponse, CallResponse, CallsResponse, CodePlaceResponse};
use crate::limits::CALLS_TIMEOUT;
use sandstorm_catalog::{DirectoryError, TenantView};
use sandstorm_runtime::{CallActivity, CallLevel};
use sandstorm_server::workers::{CallLook, CallUnderWay, LocalCaller};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallParameters {
    extension: Option<String>,
    /// Whether to find out where they are.
    #[serde(default, rename = "where")]
    with_places: bool,
}

pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
    Query(CallParameters { extension, with_places }): Query<CallParameters>,
) -> ApiResult<CallsResponse> {
    let view = caller.reach(&control, &tenant)?;
    if let Some(name) = extension.as_ref().filter(|name| view.extension(name).is_none()) {
        let tenant = view.tenant.name.clone();
        return Err(DirectoryError::UnknownExtension { tenant, extension: name.clone() }.into());
    }
    let unavailable = |code, message: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message.to_owned());
    // Each takes time of the workers.
    let looks = if caller.is_operator() { &control.operator_call_looks } else { &control.call_looks };
    let Some(_permit) = looks.begin((view.tenant.serial, caller.sees_server())) else {
        let busy = unavailable("busy", "as many look at calls now as may, of this tenant's or of all");
        return Err(busy.hint("try again in a moment"));
    };
    let Some(workers) = &control.calls else { return Err(unavailable("no_workers", "this server runs no code")) };
    Ok(Json(ask(workers, &view, extension.as_deref(), with_places).await))
}

/// Asks all workers, and puts their answers together.
async fn ask(workers: &LocalCaller, view: &TenantView, extension: Option<&str>, with_places: bool) -> CallsResponse {
    let until = Instant::now() + CALLS_TIMEOUT;
    // Until this ends: workers answer no caller that has gone.
    let asks = Arc::new(());
    let extension: Option<Arc<str>> = extension.map(Arc::from);
    let answers: Vec<_> = (0..workers.workers())
        .map(|worker| {
            let (answer, answered) = oneshot::channel();
            let done = Box::new(move |found| {
                // No request waits for it any more if it comes too late.
                let _late = answer.send(found);
            });
            let extension = extension.clone();
            let (tenant, serial, asked) = (view.tenant.id, view.tenant.serial, Arc::downgrade(&asks));
            workers.look(worker, CallLook { tenant, serial, extension, with_places, asked, done });
            answered
        })
        .collect();
    let mut response = CallsResponse { calls: Vec::new(), more: 0, silent_workers: Vec::new() };
    for (worker, answered) in answers.into_iter().enumerate() {
        match timeout_at(until, answered).await {
            Ok(Ok(found)) => {
                response.more += found.more;
                response.calls.extend(found.calls.into_iter().map(call_response));
            }
            Ok(Err(_)) | Err(_) => response.silent_workers.push(worker),
        }
    }
    response.calls.sort_by_key(|call| std::cmp::Reverse(call.age_us));
    response
}

fn call_response(call: CallUnderWay) -> CallResponse {
    let CallUnderWay { worker, age_ns, waiting_ns, awaits_backing, turns, switches, cpu_ns, levels } = call;
    let levels = levels.into_iter().map(|level| level_response(level, awaits_backing));
    let levels: Vec<CallLevelResponse> = levels.collect();
    // The client has called the last of them; what the first one does is what the call does.
    let called = levels.last().map(|level| (level.extension.clone(), level.version));
    let (extension, version) = called.unwrap_or_default();
    CallResponse {
        extension,
        version,
        worker,
        state: levels.first().map_or("new", |level| level.state),
        age_us: age_ns / 1000,
        waiting_us: waiting_ns / 1000,
        turns,
        switches,
        cpu_us: cpu_ns / 1000,
        levels,
    }
}

fn level_response(level: CallLevel, awaits_backing: bool) -> CallLevelResponse {
    let CallLevel { extension, activity, places, .. } = level;
    let state = match activity {
        CallActivity::New => "new",
        CallActivity::Ready => "ready",
        CallActivity::SwitchedOut => "switched_out",
        CallActivity::AwaitsRecords if awaits_backing => "backing",
        CallActivity::AwaitsRecords => "disk",
        CallActivity::AwaitsCall => "call",
    };
    CallLevelResponse {
        extension: extension.name.to_string(),
        version: extension.version,
        state,
        places: places.into_iter().map(CodePlaceResponse::from).collect(),
    }
}

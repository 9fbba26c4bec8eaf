//! The route of profiles: an extension's code is sampled for as long as the caller asks and stays, and answered then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use sandstorm_accounts::CodePlace;
use serde::Deserialize;

use super::ControlState;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::response::ApiResult;
use super::types::{CodePlaceResponse, ProfileResponse, ProfiledStackResponse};
use crate::limits::{PROFILE_SECONDS, PROFILE_SECONDS_MAX};
use sandstorm_catalog::DirectoryError;
use sandstorm_extension::LoadedExtension;
use sandstorm_metrics::histogram::LatencyCounts;
use sandstorm_runtime::CodeProfile;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfileParameters {
    seconds: Option<u64>,
}

/// Ends a profile when its caller goes away.
struct ProfileStop(Arc<AtomicBool>);

impl Drop for ProfileStop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(ProfileParameters { seconds }): Query<ProfileParameters>,
) -> ApiResult<ProfileResponse> {
    let view = caller.reach(&control, &tenant)?;
    let seconds = seconds.unwrap_or(PROFILE_SECONDS);
    if !(1..=PROFILE_SECONDS_MAX).contains(&seconds) {
        let message = format!("seconds = {seconds} is outside of 1 to {PROFILE_SECONDS_MAX}");
        return Err(ApiError::invalid(message).hint("ask again to go on"));
    }
    let unknown = || DirectoryError::UnknownExtension { tenant: view.tenant.name.clone(), extension: name.clone() };
    let extension = view.extension(&name).cloned().ok_or_else(unknown)?;
    let unavailable = |code, message: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message.to_owned());
    let Some(profiler) = control.profiler.clone() else {
        return Err(unavailable("no_profiler", "this server runs no code"));
    };
    if extension.library.code().map().is_none() {
        let message = format!("{name} was built without the names of its functions");
        return Err(unavailable("no_code_map", &message).hint("push it again"));
    }
    let stop = ProfileStop(Arc::default());
    let (stopped, profiled, before) = (Arc::clone(&stop.0), Arc::clone(&extension), extension.latency.read());
    let sampled = move || profiler.profile(&profiled, Duration::from_secs(seconds), &stopped);
    let taken = tokio::task::spawn_blocking(sampled).await;
    let busy = || unavailable("busy", "another profile is being taken").hint("try again when it has ended");
    let profile = match taken {
        Ok(Ok(profile)) => profile,
        Ok(Err(_)) => return Err(busy()),
        Err(_) => return Err(unavailable("no_profiler", "the server is about to stop")),
    };
    let meanwhile = growth(&extension.latency.read(), &before);
    Ok(Json(answer(&extension, seconds, profile, meanwhile)))
}

/// What calls took meanwhile.
struct CallTimes {
    calls: u64,
    cpu_us: u64,
    waiting_us: u64,
}

fn growth(after: &LatencyCounts, before: &LatencyCounts) -> CallTimes {
    CallTimes {
        calls: after.total.count().saturating_sub(before.total.count()),
        cpu_us: after.service.sum_ns.saturating_sub(before.service.sum_ns) / 1000,
        waiting_us: after.waiting.sum_ns.saturating_sub(before.waiting.sum_ns) / 1000,
    }
}

fn answer(extension: &LoadedExtension, seconds: u64, profile: CodeProfile, times: CallTimes) -> ProfileResponse {
    let CodeProfile { samples, named, stacks, unlisted } = profile;
    let CallTimes { calls, cpu_us, waiting_us } = times;
    let (mut numbers, mut places) = (HashMap::<CodePlace, usize>::new(), Vec::new());
    let mut number = |place: CodePlace| match numbers.get(&place) {
        Some(number) => *number,
        None => {
            numbers.insert(place.clone(), places.len());
            places.push(CodePlaceResponse::from(place));
            places.len() - 1
        }
    };
    let stacks = stacks.into_iter().map(|stack| ProfiledStackResponse {
        samples: stack.samples,
        in_host: stack.in_host,
        places: stack.places.into_iter().map(&mut number).collect(),
    });
    ProfileResponse {
        extension: extension.name.to_string(),
        version: extension.version,
        seconds,
        samples_per_s: sandstorm_runtime::limits::SAMPLES_PER_S,
        samples,
        named,
        unlisted,
        calls,
        cpu_us,
        waiting_us,
        stacks: stacks.collect(),
        places,
    }
}

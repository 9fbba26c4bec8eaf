//! The catalogue: extensions that their owners share, and that others enable.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Deserialize;

use super::ControlState;
use super::body::{JsonBody, OptionalJsonBody};
use super::caller::RequestCaller;
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::response::{ApiResult, EMPTY_RESPONSE};
use super::types::{
    EnableExtensionRequest, EnableForManyRequest, EnabledResponse, ShareRequest, SharedExtensionResponse,
};
use sandstorm_catalog::{EnableRequest, ShareAudience, TenantView};

/// `GET /v1/catalogue`
pub(super) async fn list(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
) -> ApiResult<Vec<SharedExtensionResponse>> {
    let snapshot = control.directory.snapshot();
    let mut found = Vec::new();
    for view in snapshot.sorted() {
        let mut names: Vec<_> = view.shared.iter().collect();
        names.sort_unstable_by_key(|(name, _)| *name);
        for (name, with) in names {
            let Some(called) = view.extension(name) else { continue };
            let own = caller.own();
            let is_owner = own.is_none_or(|own| own.tenant.id == view.tenant.id);
            if own.is_some_and(|own| !is_owner && !with.admits(&own.tenant.name)) {
                continue;
            }
            let enabled = snapshot.enabled_of(view.tenant.id, name);
            let here = |own: &TenantView| enabled.iter().any(|(tenant, ..)| *tenant == own.tenant.name);
            found.push(SharedExtensionResponse {
                owner: view.tenant.name.clone(),
                name: name.to_string(),
                version: called.version,
                with: match with {
                    ShareAudience::Tenants(names) if is_owner => Some(names.iter().cloned().collect()),
                    _ => None,
                },
                enabled: match own {
                    Some(own) if !is_owner => u64::from(here(own)),
                    _ => enabled.len() as u64,
                },
            });
        }
    }
    Ok(Json(found))
}

/// `PUT /v1/tenants/{tenant}/extensions/{name}/share`
pub(super) async fn share(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    OptionalJsonBody(ShareRequest { with }): OptionalJsonBody<ShareRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let (audience, text) = match with {
        Some(names) => {
            let text = format!("with {}", names.join(", "));
            (ShareAudience::Tenants(names.into_iter().collect()), text)
        }
        None if caller.is_operator() => (ShareAudience::Everyone, "with all tenants".to_owned()),
        None => {
            return Err(ApiError::invalid("only the operator shares with all tenants")
                .hint("name those that may enable it: --with NAME"));
        }
    };
    control.directory.share_extension(view.tenant.id, &name, Some(audience))?;
    Ok((Extension(EventNote { text, ..EventNote::default() }), EMPTY_RESPONSE))
}

/// What becomes of the tenants that have it enabled.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct UnshareQuery {
    /// It is taken away from them.
    disable: bool,
}

/// `DELETE /v1/tenants/{tenant}/extensions/{name}/share`
pub(super) async fn unshare(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(UnshareQuery { disable }): Query<UnshareQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let id = caller.authorize_change(&control, &tenant)?.tenant.id;
    control.directory.share_extension(id, &name, None)?;
    let text = match disable {
        true => format!("and taken away from {}", control.directory.disable_everywhere(id, Some(&name))?),
        false => format!("{} have it enabled still", control.directory.snapshot().enabled_of(id, &name).len()),
    };
    Ok((Extension(EventNote { text, ..EventNote::default() }), EMPTY_RESPONSE))
}

/// `PUT /v1/tenants/{tenant}/extensions/{name}/enabled`
pub(super) async fn enable(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    JsonBody(of): JsonBody<EnableExtensionRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let (enabled, text) = enable_for(&control, &[view.tenant.id], (of, name), caller.is_operator())?;
    Ok((StatusCode::CREATED, Extension(EventNote { text, ..EventNote::default() }), Json(enabled)))
}

/// `POST /v1/catalogue/enable`
pub(super) async fn enable_for_many(
    State(control): State<Arc<ControlState>>,
    JsonBody(EnableForManyRequest { of, name, tenants }): JsonBody<EnableForManyRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let snapshot = control.directory.snapshot();
    let ids = match tenants {
        Some(names) => {
            let ids = names.iter().map(|name| Ok(snapshot.find(name.as_str())?.tenant.id));
            ids.collect::<Result<Vec<u32>, ApiError>>()?
        }
        None => {
            let others = snapshot.iter().filter(|view| view.tenant.name != of.owner && view.check_code().is_ok());
            others.map(|view| view.tenant.id).collect()
        }
    };
    let subject = Some(format!("{}/{}", of.owner, of.extension));
    let (enabled, text) = enable_for(&control, &ids, (of, name), true)?;
    let note = EventNote { subject, text: format!("{text}, for {} tenants", enabled.tenants), ..EventNote::default() };
    Ok((StatusCode::CREATED, Extension(note), Json(enabled)))
}

fn enable_for(
    control: &ControlState,
    tenants: &[u32],
    (of, name): (EnableExtensionRequest, String),
    by_operator: bool,
) -> Result<(EnabledResponse, String), ApiError> {
    let begun = Instant::now();
    let EnableExtensionRequest { owner, extension, version, follow } = of;
    let request = EnableRequest { owner, extension, name, version, follow, by_operator };
    let version = control.directory.enable_extension(tenants, &request)?;
    let EnableRequest { owner, extension, name, .. } = request;
    let follows = if follow { ", following its owner" } else { "" };
    let text = format!("{owner}/{extension} v{version} as {name}{follows}");
    let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok((EnabledResponse { version, tenants: tenants.len() as u64, took_us }, text))
}

/// `DELETE /v1/tenants/{tenant}/extensions/{name}/enabled`
pub(super) async fn disable(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> Result<impl IntoResponse, ApiError> {
    let id = caller.authorize_change(&control, &tenant)?.tenant.id;
    let of = control.directory.disable_extension(id, &name)?;
    let text = format!("{}/{} v{}", of.owner, of.extension, of.version);
    Ok((Extension(EventNote { text, ..EventNote::default() }), EMPTY_RESPONSE))
}

/// Brings the followers of an extension to the version that its owner has called now.
pub(super) fn follow(control: &ControlState, owner: u32, extension: &str) {
    match control.directory.follow_owner(owner, extension) {
        Ok(0) => {}
        Ok(tenants) => {
            tracing::info!(owner, extension, tenants, "those who follow a shared extension have its new version")
        }
        Err(error) => {
            tracing::error!(owner, extension, %error, "those who follow a shared extension keep its old version")
        }
    }
}

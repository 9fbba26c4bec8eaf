//! Builds extensions again from their kept sources while they serve: for another tier, or because a restart could not
//! load their artifacts.
//!
//! A rebuild works through extensions, one of a tenant at a time, in the tenant's turn among the pushes. The old version
//! serves until the new one, of the same number, is loaded in its place. What cannot be built is suspended: it must not
//! go on in a tier that its tenant's policy does not allow. Everything can be asked for again: what is as it has to be
//! is left alone.

mod jobs;
mod steps;

use std::sync::Arc;

use axum::extract::{Path, State};

use super::ControlState;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::response::ApiResult;
use super::types::RebuildResponse;
pub(super) use jobs::RebuildJobs;
use jobs::{JobHandle, TenantTargets, spawn};
use sandstorm_catalog::{TenantChange, TenantView};

/// Changes a tenant's settings. If its code policy is among them, its extensions are moved to that tier. Returns the
/// number of the rebuild that does it.
pub(super) fn change_tenant(
    control: &Arc<ControlState>,
    tenant: &str,
    change: &TenantChange,
) -> Result<Option<u64>, ApiError> {
    let Some(code) = change.code else {
        control.directory.update_tenant(tenant, change)?;
        return Ok(None);
    };
    let before = control.directory.snapshot().find(tenant)?.clone();
    // Modules stay in the sandboxed tier.
    let would_end = |tier| before.extensions.values().any(|one| one.origin.is_source() && one.tier != tier);
    if let (Some(true), Err(reason)) = (code.tier().map(would_end), &control.artifact_sources.builder) {
        return Err(ApiError::no_builder(reason)
            .hint("nothing was changed: without a builder the tenant's extensions would be suspended"));
    }
    let job = control.rebuilds.open(format!("tenant {tenant} has code = {code}"))?;
    let id = job.id();
    control.directory.update_tenant(tenant, change)?;
    let view = control.directory.snapshot().find(tenant)?.clone();
    if code.tier().is_some() {
        let names = view.versions.loaded().map(|(name, _)| name.to_owned()).collect();
        spawn(control, job, vec![TenantTargets::of(&view, names)]);
    } else {
        list_suspended(&job, &view);
    }
    Ok(Some(id))
}

/// The results for a tenant that may have no code any more: nothing has to be built.
fn list_suspended(job: &JobHandle, view: &TenantView) {
    for (name, loaded) in view.versions.loaded() {
        job.add(steps::refused_by_policy(view, name, loaded));
    }
}

/// Builds what the start could not load from its artifact, if there is a builder and the source is kept.
pub(super) fn after_start(control: &Arc<ControlState>) {
    if control.artifact_sources.builder.is_err() {
        return;
    }
    let snapshot = control.directory.snapshot();
    let left_out = |view: &TenantView| {
        let is_absent = |name: &str| !view.extensions.contains_key(name);
        let has_source = |name: &str, version| control.artifacts.sources().has(view.tenant.id, name, version);
        let names = view.versions.loaded().filter(|(name, loaded)| is_absent(name) && has_source(name, loaded.version));
        names.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
    };
    let with_code = snapshot.iter().filter(|view| view.check_code().is_ok());
    let targets: Vec<_> = with_code.map(|view| TenantTargets::of(view, left_out(view))).collect();
    let targets: Vec<_> = targets.into_iter().filter(|of| !of.names.is_empty()).collect();
    if targets.is_empty() {
        return;
    }
    match control.rebuilds.open("the restart left them out".to_owned()) {
        Ok(job) => spawn(control, job, targets),
        Err(_) => tracing::error!("what the restart left out is not built again: too much is under way"),
    }
}

/// `GET /v1/rebuilds/{id}`.
pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(id): Path<u64>,
) -> ApiResult<RebuildResponse> {
    caller.operator()?;
    let found = control.rebuilds.show(id);
    Ok(axum::Json(found.ok_or_else(|| ApiError::not_found(format!("there is no rebuild {id}, or not any more")))?))
}

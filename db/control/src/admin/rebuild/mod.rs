//! Builds extensions again from their kept sources while they serve: for another tier, because a restart could not load
//! their artifacts, or because they no longer pass as native code.
//!
//! A rebuild works through extensions, one of a tenant at a time, in the tenant's turn among the pushes. The old
//! version serves until the new one, of the same number, is loaded in its place. An extension that cannot be built is
//! suspended: it must not go on in a tier that its tenant's policy does not allow. A request may be repeated: it skips
//! extensions that are right already.

mod jobs;
mod steps;

use std::sync::Arc;

use axum::extract::{Path, State};

use super::ControlState;
use super::error::ApiError;
use super::response::ApiResult;
use super::types::{RebuildResponse, RecheckRemedy};
pub(super) use jobs::{JobHandle, RebuildJobs};
use jobs::{RebuildWork, TenantTargets, spawn};
use sandstorm_catalog::{TenantChange, TenantView};
use sandstorm_net::CodeTier;
use steps::RebuildPurpose;
pub(super) use steps::make_kept;

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
    if code.tier() == Some(CodeTier::Native) && !before.shared.is_empty() {
        let message = format!("tenant {tenant:?} shares extensions, and only sandboxed code is shared");
        return Err(ApiError::invalid(message).hint("end that first: `sandstorm catalogue unshare NAME`"));
    }
    let job = control.rebuilds.open(format!("tenant {tenant} has code = {code}"))?;
    let id = job.id();
    control.directory.update_tenant(tenant, change)?;
    let view = control.directory.snapshot().find(tenant)?.clone();
    if code.tier().is_some() {
        let names = view.versions.loaded().map(|(name, _)| name.to_owned()).collect();
        spawn(
            control,
            job,
            RebuildWork { targets: vec![TenantTargets::of(&view, names)], purpose: RebuildPurpose::Move },
        );
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

/// Builds what the start could not load from its artifact, if there is a builder and the source is kept. If other
/// patterns are denied than before the restart, looks for them in all native code.
pub(super) fn after_start(control: &Arc<ControlState>) {
    let reason = "the restart left them out, or other patterns are denied than before it".to_owned();
    let is_checked = control.deny.is_checked();
    let targets = match is_checked {
        true if control.artifact_sources.builder.is_err() => Vec::new(),
        true => targets(control, |view, name| is_left_out(control, view, name)),
        false => targets(control, |view, name| is_native(view, name) || is_left_out(control, view, name)),
    };
    if targets.is_empty() && is_checked {
        return;
    }
    match control.rebuilds.open(reason) {
        Ok(job) => begin_recheck(control, job, targets, RecheckRemedy::Sandbox),
        Err(_) => tracing::error!("extensions are not built or checked again: too much is under way"),
    }
}

/// Checks all native code that is loaded, and builds what a restart left out. Returns the state of the rebuild.
pub(super) fn recheck_all(control: &Arc<ControlState>, job: JobHandle, then: RecheckRemedy) -> RebuildResponse {
    let shown = job.show();
    let targets = targets(control, |view, name| is_native(view, name) || is_left_out(control, view, name));
    begin_recheck(control, job, targets, then);
    shown
}

fn begin_recheck(control: &Arc<ControlState>, job: JobHandle, targets: Vec<TenantTargets>, then: RecheckRemedy) {
    let purpose = RebuildPurpose::Recheck { then, denied: control.deny.all() };
    spawn(control, job, RebuildWork { targets, purpose });
}

/// The extensions of all tenants that may have code, of those for which `wanted` says so.
fn targets(control: &ControlState, wanted: impl Fn(&TenantView, &str) -> bool) -> Vec<TenantTargets> {
    let snapshot = control.directory.snapshot();
    let of = |view: &Arc<TenantView>| {
        let names = view.versions.loaded().map(|(name, _)| name).filter(|name| wanted(view, name));
        TenantTargets::of(view, names.map(str::to_owned).collect())
    };
    let with_code = snapshot.iter().filter(|view| view.check_code().is_ok());
    with_code.map(of).filter(|targets| !targets.names.is_empty()).collect()
}

/// Whether native code of it is loaded: the version that is called, or one that is kept.
fn is_native(view: &TenantView, name: &str) -> bool {
    let loaded = view.extension(name).into_iter().chain(view.kept_versions(name));
    loaded.into_iter().any(|extension| extension.tier == CodeTier::Native)
}

/// Whether a restart has left it out, and its source is kept.
fn is_left_out(control: &ControlState, view: &TenantView, name: &str) -> bool {
    let loaded = view.versions.loaded().find(|(loaded, _)| *loaded == name);
    let version = loaded.filter(|_| view.extension(name).is_none()).map(|(_, loaded)| loaded.version);
    version.is_some_and(|version| control.artifacts.sources().has(view.tenant.id, name, version))
}

/// `GET /v1/rebuilds/{id}`.
pub(super) async fn show(State(control): State<Arc<ControlState>>, Path(id): Path<u64>) -> ApiResult<RebuildResponse> {
    let found = control.rebuilds.show(id);
    Ok(axum::Json(found.ok_or_else(|| ApiError::not_found(format!("there is no rebuild {id}, or not any more")))?))
}

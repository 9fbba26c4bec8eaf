//! Goes back to a kept version of an extension.
//!
//! A kept version is loaded, so this is one change of the directory, as the end of a push is. A version that a restart
//! could not load, or that was built for another tier, is built first, in the tenant's turn among the pushes.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};

use super::body::OptionalJsonBody;
use super::build_turn::wait_for_build_permit;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::extension_lookup::find_extension;
use super::types::RollBackRequest;
use super::version_history::VersionMetadata;
use super::{ControlState, catalogue, rebuild};
use sandstorm_catalog::{DirectoryError, LoadedVersion, TenantView, VersionRefusal};
use sandstorm_extension::LoadedExtension;

/// `POST /v1/tenants/{tenant}/extensions/{name}/rollback`
pub(super) async fn roll_back(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    OptionalJsonBody(request): OptionalJsonBody<RollBackRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let called = find_extension(&view, &name)?.version;
    let version = request.version.map_or_else(|| version_before(&view, &name, called), Ok)?;
    if version == called {
        let message = format!("version {version} of {name:?} is the one that is called");
        return Err(ApiError::new(StatusCode::CONFLICT, "exists", message)
            .hint("`sandstorm ext versions NAME` shows the others that are kept"));
    }
    activate(&control, &view, &name, version).await?;
    let now = control.directory.snapshot().find(view.tenant.id)?.clone();
    let note = EventNote { text: format!("v{called} -> v{version}"), ..EventNote::default() };
    let shown = control.history.show_in_full(&now, &*find_extension(&now, &name)?);
    Ok((Extension(note), Json(shown)))
}

/// The newest kept version below the one that is called, of those that no rule refuses.
fn version_before(view: &TenantView, name: &str, called: u64) -> Result<u64, ApiError> {
    let kept = view.versions.kept(name).iter().rev();
    let before = kept.filter(|kept| kept.version < called).find(|kept| kept.refused.is_none());
    before.map(|kept| kept.version).ok_or_else(|| {
        ApiError::not_found(format!("no version of {name:?} before {called} is kept"))
            .hint("name another one that is kept (`sandstorm ext versions NAME`), or push the source that you want")
    })
}

/// Has a kept version called from now on.
pub(super) async fn activate(
    control: &Arc<ControlState>,
    view: &TenantView,
    name: &str,
    version: u64,
) -> Result<(), ApiError> {
    let id = view.tenant.id;
    let kept = match view.callable_version(name, version) {
        Ok(kept) => kept.clone(),
        Err(VersionRefusal::Rule(why)) => {
            let (extension, why) = (name.to_owned(), why.to_owned());
            return Err(DirectoryError::RefusedVersion { extension, version, why }.into());
        }
        Err(VersionRefusal::NotLoaded | VersionRefusal::OtherTier) => {
            let listed = view.versions.kept(name).iter().find(|kept| kept.version == version);
            let listed = listed.cloned().ok_or_else(|| view.unknown_version(name, version))?;
            let (made, about) = make(control, view, name, listed).await?;
            control.history.kept(id, &made, about);
            made
        }
    };
    let replaced = control.directory.activate_version(id, kept.clone())?;
    control.history.activated(id, &kept, replaced);
    catalogue::follow(control, id, name);
    Ok(())
}

/// Makes a kept version that is not loaded, or that is loaded for another tier.
async fn make(
    control: &Arc<ControlState>,
    view: &TenantView,
    name: &str,
    listed: LoadedVersion,
) -> Result<(Arc<LoadedExtension>, VersionMetadata), ApiError> {
    let turn = wait_for_build_permit(control, view, name).await?;
    let (control, view, name) = (Arc::clone(control), view.clone(), name.to_owned());
    let version = listed.version;
    let made = tokio::task::spawn_blocking(move || {
        let _held = turn;
        rebuild::make_kept(&control, &view, &name, &listed)
    });
    let made = made.await.map_err(|_| ApiError::internal("making the version again ended in a panic"))?;
    made.map_err(|why| {
        let message = format!("version {version} has to be made again, and cannot be: {why}");
        ApiError::new(StatusCode::CONFLICT, "refused", message).hint("push a version that passes")
    })
}

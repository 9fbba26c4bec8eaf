//! The limits of an extension: its suspension, and its budget.

use std::sync::Arc;

use axum::extract::{Path, State};

use super::ControlState;
use super::body::JsonBody;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::extension_lookup::find_extension;
use super::response::{ApiResult, EMPTY_RESPONSE, EmptyResponse};
use super::types::{ChangeBudgetRequest, ExtensionResponse};

fn set_suspended(
    control: &ControlState,
    caller: &RequestCaller,
    tenant: &str,
    name: &str,
    suspended: bool,
) -> ApiResult<ExtensionResponse> {
    let id = caller.authorize_change(control, tenant)?.tenant.id;
    control.directory.set_suspended(id, name, suspended, caller.is_operator())?;
    let snapshot = control.directory.snapshot();
    let view = snapshot.find(id)?;
    if let (false, Some(suspension)) = (suspended, view.suspension(name)) {
        return Err(ApiError::forbidden(&*suspension.text).hint("ask the operator to resume it"));
    }
    Ok(axum::Json(control.history.show_in_full(view, &*find_extension(view, name)?)))
}

pub(super) async fn suspend_extension(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<ExtensionResponse> {
    set_suspended(&control, &caller, &tenant, &name, true)
}

pub(super) async fn resume_extension(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<ExtensionResponse> {
    set_suspended(&control, &caller, &tenant, &name, false)
}

pub(super) async fn change_budget(
    State(control): State<Arc<ControlState>>,
    Path((tenant, name)): Path<(String, String)>,
    JsonBody(change): JsonBody<ChangeBudgetRequest>,
) -> ApiResult<EmptyResponse> {
    control.directory.set_budget(&tenant, &name, change.into())?;
    Ok(EMPTY_RESPONSE)
}

//! The routes of secrets. A value goes in, and never comes out: the code of the tenant alone reads it.

use std::sync::Arc;

use axum::extract::{Path, State};

use super::body::RawBody;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::response::{ApiResult, EMPTY_RESPONSE, EmptyResponse};
use super::types::SecretResponse;
use super::{ControlState, now_ms};

pub(super) async fn list(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
) -> ApiResult<Vec<SecretResponse>> {
    let view = caller.reach(&control, &tenant)?;
    let shown =
        |(name, set_at_ms, opens): (&str, u64, bool)| SecretResponse { name: name.to_owned(), set_at_ms, opens };
    Ok(axum::Json(view.secrets.list().map(shown).collect()))
}

pub(super) async fn set(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    RawBody(value): RawBody,
) -> Result<axum::Json<EmptyResponse>, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    control.directory.set_secret(view.tenant.id, &name, &value, now_ms())?;
    Ok(EMPTY_RESPONSE)
}

pub(super) async fn remove(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<EmptyResponse> {
    let view = caller.reach(&control, &tenant)?;
    control.directory.remove_secret(view.tenant.id, &name)?;
    Ok(EMPTY_RESPONSE)
}

//! The routes of grants. A tenant grants its own tables and gives up grants that it received; the operator does both
//! for any tenant. An owner gets the same answer whether or not a tenant of the grantee's name exists.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::ControlState;
use super::body::JsonBody;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::response::{ApiResult, EMPTY_RESPONSE, EmptyResponse};
use super::types::{CreateGrantRequest, GivenGrantResponse, GrantsResponse};
use sandstorm_catalog::GrantIssuer;

pub(super) async fn list(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
) -> ApiResult<GrantsResponse> {
    let view = caller.reach(&control, &tenant)?;
    Ok(axum::Json(GrantsResponse::of(&view, caller.sees_server())))
}

pub(super) async fn create(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
    JsonBody(new): JsonBody<CreateGrantRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let granter = if caller.is_operator() { GrantIssuer::Operator } else { GrantIssuer::Owner };
    let given = control.directory.grant(view.tenant.id, &new.table, &new.to, new.access, granter)?;
    let note = EventNote { subject: Some(format!("{}>{}", new.table, new.to)), ..EventNote::default() };
    Ok((StatusCode::CREATED, Extension(note), axum::Json(GivenGrantResponse::of(&given, caller.sees_server()))))
}

pub(super) async fn revoke(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, table, to)): Path<(String, String, String)>,
) -> ApiResult<EmptyResponse> {
    let view = caller.reach(&control, &tenant)?;
    control.directory.revoke(view.tenant.id, &table, &to)?;
    Ok(EMPTY_RESPONSE)
}

pub(super) async fn give_up(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, owner, table)): Path<(String, String, String)>,
) -> ApiResult<EmptyResponse> {
    let view = caller.reach(&control, &tenant)?;
    control.directory.drop_grant(view.tenant.id, &format!("{owner}/{table}"))?;
    Ok(EMPTY_RESPONSE)
}

//! The routes that replace tokens: a tenant's, and the operator's.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};

use super::ControlState;
use super::body::OptionalJsonBody;
use super::caller::{CallerSource, CurrentTokenCaller};
use super::error::ApiError;
use super::response::{ApiResult, EMPTY_RESPONSE, EmptyResponse};
use super::revocations::why_not_everywhere;
use super::types::{OperatorTokenResponse, RotateTokenRequest, RotateTokenResponse, TenantResponse};
use crate::limits::OLD_TOKEN_GRACE;
use sandstorm_catalog::OldToken;
use sandstorm_catalog::limits::OLD_TOKEN_GRACE_MAX;

/// The grace period of the old token.
fn grace(rotate: RotateTokenRequest) -> Result<Duration, ApiError> {
    let grace = rotate.grace_s.map_or(OLD_TOKEN_GRACE, Duration::from_secs);
    if grace > OLD_TOKEN_GRACE_MAX {
        let message = format!("a grace of {} s is longer than {} s", grace.as_secs(), OLD_TOKEN_GRACE_MAX.as_secs());
        return Err(ApiError::invalid(message).hint("give less, and rotate again when it is over"));
    }
    Ok(grace)
}

pub(super) async fn rotate_token(
    State(control): State<Arc<ControlState>>,
    CurrentTokenCaller(caller): CurrentTokenCaller,
    Path(tenant): Path<String>,
    OptionalJsonBody(rotate): OptionalJsonBody<RotateTokenRequest>,
) -> ApiResult<RotateTokenResponse> {
    let id = caller.authorize_change(&control, &tenant)?.tenant.id;
    let token = control.directory.rotate_with_grace(id, grace(rotate)?)?;
    control.page_sessions.end_of(&CallerSource::Tenant(id));
    let snapshot = control.directory.snapshot();
    let old_until_ms = snapshot.find(id)?.tenant.old_token().map(OldToken::until_ms);
    // Not as an error: a caller that does not get the new token has none.
    let not_everywhere = why_not_everywhere(&control).await;
    Ok(axum::Json(RotateTokenResponse { token, old_until_ms, not_everywhere }))
}

pub(super) async fn revoke_old_token(
    State(control): State<Arc<ControlState>>,
    CurrentTokenCaller(caller): CurrentTokenCaller,
    Path(tenant): Path<String>,
) -> ApiResult<TenantResponse> {
    let id = caller.reach(&control, &tenant)?.tenant.id;
    control.directory.revoke_old_token(id)?;
    control.page_sessions.end_of(&CallerSource::Tenant(id));
    Ok(axum::Json(TenantResponse::of(control.directory.snapshot().find(id)?)))
}

pub(super) async fn show_operator(State(control): State<Arc<ControlState>>) -> ApiResult<OperatorTokenResponse> {
    Ok(axum::Json(OperatorTokenResponse { old_until_ms: control.operator.old_expires_at_ms() }))
}

pub(super) async fn rotate_operator(
    State(control): State<Arc<ControlState>>,
    _current: CurrentTokenCaller,
    OptionalJsonBody(rotate): OptionalJsonBody<RotateTokenRequest>,
) -> ApiResult<RotateTokenResponse> {
    let rotated = control.operator.rotate(grace(rotate)?);
    control.page_sessions.end_of(&CallerSource::Operator);
    let (token, old_until_ms) = rotated.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(axum::Json(RotateTokenResponse { token, old_until_ms, not_everywhere: None }))
}

pub(super) async fn revoke_old_operator(
    State(control): State<Arc<ControlState>>,
    _current: CurrentTokenCaller,
) -> ApiResult<EmptyResponse> {
    control.operator.revoke_old();
    control.page_sessions.end_of(&CallerSource::Operator);
    Ok(EMPTY_RESPONSE)
}

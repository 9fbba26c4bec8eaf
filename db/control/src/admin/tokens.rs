//! The routes of viewers' tokens. The operator makes those of viewers of the whole server; a tenant, or the operator
//! for it, those of the tenant's viewers.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::ControlState;
use super::access_tokens::{AccessTokenError, AccessTokenKey, AccessTokenTenant, NewAccessToken};
use super::body::JsonBody;
use super::caller::{CallerSource, CurrentTokenCaller, RequestCaller};
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::response::{ApiResult, EMPTY_RESPONSE, EmptyResponse};
use super::types::{AccessTokenResponse, CreateAccessTokenRequest, CreateAccessTokenResponse};
use crate::limits::{ACCESS_TOKEN_LIFETIME_MAX_S, ACCESS_TOKEN_NAME_BYTES};

pub(super) async fn list(State(control): State<Arc<ControlState>>) -> ApiResult<Vec<AccessTokenResponse>> {
    Ok(axum::Json(control.access_tokens.listed(None).into_iter().map(AccessTokenResponse::of).collect()))
}

pub(super) async fn list_of_tenant(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
) -> ApiResult<Vec<AccessTokenResponse>> {
    let id = caller.reach(&control, &tenant)?.tenant.id;
    Ok(axum::Json(control.access_tokens.listed(Some(id)).into_iter().map(AccessTokenResponse::of).collect()))
}

pub(super) async fn create(
    State(control): State<Arc<ControlState>>,
    _current: CurrentTokenCaller,
    JsonBody(new): JsonBody<CreateAccessTokenRequest>,
) -> Result<impl IntoResponse, ApiError> {
    create_token(&control, new, None)
}

pub(super) async fn create_of_tenant(
    State(control): State<Arc<ControlState>>,
    CurrentTokenCaller(caller): CurrentTokenCaller,
    Path(tenant): Path<String>,
    JsonBody(new): JsonBody<CreateAccessTokenRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let tenant = AccessTokenTenant::of(&view.tenant);
    create_token(&control, new, Some(tenant))
}

fn create_token(
    control: &ControlState,
    new: CreateAccessTokenRequest,
    tenant: Option<AccessTokenTenant>,
) -> Result<impl IntoResponse + use<>, ApiError> {
    let CreateAccessTokenRequest { name, expires_s } = new;
    if let Some(expires_s) = expires_s
        && !(1..=ACCESS_TOKEN_LIFETIME_MAX_S).contains(&expires_s)
    {
        let message =
            format!("a token cannot end after {expires_s} s: 1 to {ACCESS_TOKEN_LIFETIME_MAX_S} are possible");
        return Err(ApiError::invalid(message).hint("leave `expires_s` out for one that works until it is revoked"));
    }
    let is_there = |of: &AccessTokenTenant| of.find(&control.directory.snapshot()).is_some();
    let (about, token) = control.access_tokens.create(NewAccessToken { name, tenant, expires_s }, is_there)?;
    let note =
        EventNote { subject: Some(about.name.clone()), text: about.role().name().into(), ..EventNote::default() };
    let created = CreateAccessTokenResponse { access: AccessTokenResponse::of(about), token };
    Ok((StatusCode::CREATED, Extension(note), axum::Json(created)))
}

pub(super) async fn revoke(
    State(control): State<Arc<ControlState>>,
    _current: CurrentTokenCaller,
    Path(name): Path<String>,
) -> ApiResult<EmptyResponse> {
    revoke_token(&control, (None, name))
}

pub(super) async fn revoke_of_tenant(
    State(control): State<Arc<ControlState>>,
    CurrentTokenCaller(caller): CurrentTokenCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<EmptyResponse> {
    let id = caller.reach(&control, &tenant)?.tenant.id;
    revoke_token(&control, (Some(id), name))
}

fn revoke_token(control: &ControlState, key: AccessTokenKey) -> ApiResult<EmptyResponse> {
    let revoked = control.access_tokens.revoke(&key)?;
    control.page_sessions.end_of(&CallerSource::Made(revoked));
    Ok(EMPTY_RESPONSE)
}

impl From<AccessTokenError> for ApiError {
    fn from(error: AccessTokenError) -> ApiError {
        let (status, code, hint) = match &error {
            AccessTokenError::Name(_) => {
                let hint = format!("1 to {ACCESS_TOKEN_NAME_BYTES} letters, digits, `-`, `_` and `.`");
                return ApiError::invalid(error.to_string()).hint(hint);
            }
            AccessTokenError::Exists(_) => (StatusCode::CONFLICT, "exists", "revoke it first, or choose another name"),
            AccessTokenError::Unknown(_) | AccessTokenError::TenantGone(_) => {
                (StatusCode::NOT_FOUND, "not_found", "`sandstorm token list` shows what there is")
            }
            AccessTokenError::TooMany(_) => {
                (StatusCode::CONFLICT, "over_quota", "revoke what is not needed (`sandstorm token revoke NAME`)")
            }
            AccessTokenError::Unwritable(_) => {
                let hint = "nothing was changed; see whether the disk of the state directory is full or broken";
                (StatusCode::SERVICE_UNAVAILABLE, "not_kept", hint)
            }
        };
        ApiError::new(status, code, error.to_string()).hint(hint)
    }
}

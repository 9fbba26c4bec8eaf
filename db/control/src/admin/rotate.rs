//! The routes that replace tokens: a tenant's, and the operator's.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};

use super::Control;
use super::caller::{Caller, Current};
use super::error::Failure;
use super::routes::{Answer, DONE, MaybeBody, Nothing};
use super::types::{OperatorToken, Rotate, Tenant, TokenRotated};
use crate::limits::OLD_TOKEN_GRACE;
use sandstorm_catalog::OldToken;
use sandstorm_catalog::limits::OLD_TOKEN_GRACE_MAX;

/// How long the old token is to work on.
fn grace(rotate: Rotate) -> Result<Duration, Failure> {
    let grace = rotate.grace_s.map_or(OLD_TOKEN_GRACE, Duration::from_secs);
    if grace > OLD_TOKEN_GRACE_MAX {
        let message = format!("a grace of {} s is longer than {} s", grace.as_secs(), OLD_TOKEN_GRACE_MAX.as_secs());
        return Err(Failure::invalid(message).hint("give less, and rotate again when it is over"));
    }
    Ok(grace)
}

pub(super) async fn rotate_token(
    State(control): State<Arc<Control>>,
    Current(caller): Current,
    Path(tenant): Path<String>,
    MaybeBody(rotate): MaybeBody<Rotate>,
) -> Answer<TokenRotated> {
    let id = caller.reach_to_change(&control, &tenant)?.tenant.id;
    let token = control.directory.rotate_with_grace(id, grace(rotate)?)?;
    let snapshot = control.directory.snapshot();
    let old_until_ms = snapshot.find(id)?.tenant.old_token().map(OldToken::until_ms);
    Ok(axum::Json(TokenRotated { token, old_until_ms }))
}

pub(super) async fn revoke_old_token(
    State(control): State<Arc<Control>>,
    Current(caller): Current,
    Path(tenant): Path<String>,
) -> Answer<Tenant> {
    let id = caller.reach(&control, &tenant)?.tenant.id;
    control.directory.revoke_old_token(id)?;
    Ok(axum::Json(Tenant::of(control.directory.snapshot().find(id)?)))
}

pub(super) async fn show_operator(State(control): State<Arc<Control>>, caller: Caller) -> Answer<OperatorToken> {
    caller.operator()?;
    Ok(axum::Json(OperatorToken { old_until_ms: control.operator.old_until() }))
}

pub(super) async fn rotate_operator(
    State(control): State<Arc<Control>>,
    Current(caller): Current,
    MaybeBody(rotate): MaybeBody<Rotate>,
) -> Answer<TokenRotated> {
    caller.operator()?;
    let rotated = control.operator.rotate(grace(rotate)?);
    let (token, old_until_ms) = rotated.map_err(|error| Failure::internal(error.to_string()))?;
    Ok(axum::Json(TokenRotated { token, old_until_ms }))
}

pub(super) async fn revoke_old_operator(
    State(control): State<Arc<Control>>,
    Current(caller): Current,
) -> Answer<Nothing> {
    caller.operator()?;
    control.operator.revoke_old();
    Ok(DONE)
}

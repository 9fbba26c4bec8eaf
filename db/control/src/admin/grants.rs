//! The routes of grants. A tenant grants its own tables and gives up what it was granted; the operator does either for
//! anyone. An owner gets the same answer whether or not there is a tenant of the name that it grants to.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::Control;
use super::error::Failure;
use super::routes::{Answer, Body, Caller, DONE, Nothing};
use super::types::{CreateGrant, Given, Grants};
use sandstorm_catalog::Granter;

pub(super) async fn list(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path(tenant): Path<String>,
) -> Answer<Grants> {
    let view = caller.reach(&control, &tenant)?;
    Ok(axum::Json(Grants::of(&view, caller.is_operator())))
}

pub(super) async fn create(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path(tenant): Path<String>,
    Body(new): Body<CreateGrant>,
) -> Result<impl IntoResponse, Failure> {
    let view = caller.reach_to_change(&control, &tenant)?;
    let granter = if caller.is_operator() { Granter::Operator } else { Granter::Owner };
    let given = control.directory.grant(view.tenant.id, &new.table, &new.to, new.access, granter)?;
    Ok((StatusCode::CREATED, axum::Json(Given::of(&given, caller.is_operator()))))
}

pub(super) async fn revoke(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, table, to)): Path<(String, String, String)>,
) -> Answer<Nothing> {
    let view = caller.reach(&control, &tenant)?;
    control.directory.revoke(view.tenant.id, &table, &to)?;
    Ok(DONE)
}

pub(super) async fn give_up(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, owner, table)): Path<(String, String, String)>,
) -> Answer<Nothing> {
    let view = caller.reach(&control, &tenant)?;
    control.directory.drop_grant(view.tenant.id, &format!("{owner}/{table}"))?;
    Ok(DONE)
}

//! `/v1/cluster/split`: moves about half of a server's load to another one.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};

use super::ControlState;
use super::body::JsonBody;
use super::cluster::{NOT_MOVED, check_movable, refused};
use super::cluster_balance::measure;
use super::cluster_copies::{change, no_cluster};
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::response::off_thread;
use super::types::{PlannedMoveResponse, SplitRequest, SplitResponse};
use sandstorm_cluster::load_link::load_of;
use sandstorm_cluster::slot_balance::ServerLoadReport;
use sandstorm_cluster::slot_split::SplitPlan;

pub(super) async fn split(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<SplitRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let SplitRequest { from, to, tenant, plan: is_plan, mib_per_s } = request;
    let coordinator = Arc::clone(control.moves.as_ref().ok_or_else(no_cluster)?);
    check_movable(&control)?;
    let tenant = tenant.map(|name| control.directory.snapshot().find(name.as_str()).map(|view| view.tenant.id));
    let tenant = tenant.transpose()?;
    // What cannot be is said before anything is measured, which takes some seconds.
    let (asked, source, target) = (Arc::clone(&coordinator), from.clone(), to.clone());
    off_thread(move || asked.check_split((&source, &target))).await?.map_err(refused)?;
    let report = load_report(&control, &from, tenant).await?;
    let (source, target) = (from.clone(), to);
    let SplitPlan { moves, measure, part, slots, bytes, remarks } =
        off_thread(move || coordinator.plan_split((&source, &target), &report)).await?.map_err(refused)?;
    let mut note = EventNote { is_no_change: true, ..EventNote::default() };
    if !is_plan {
        let planned = moves.clone();
        let begun =
            change(&control, NOT_MOVED, move |coordinator| coordinator.begin_balance(&planned, mib_per_s)).await?;
        let text = format!("moves begun: {begun}, with {:.0} % by {}", part * 100.0, measure.name());
        note = EventNote { subject: Some(from), text, ..EventNote::default() };
    }
    let moves = moves.into_iter().map(PlannedMoveResponse::from).collect();
    let shown = SplitResponse { begun: !is_plan, moves, measure: measure.name(), part, slots, bytes, remarks };
    Ok((Extension(note), Json(shown)))
}

/// What the slots of a server take, this one's or another one's.
async fn load_report(
    control: &Arc<ControlState>,
    server: &str,
    tenant: Option<u32>,
) -> Result<ServerLoadReport, ApiError> {
    let is_this = control.directory.slots().is_some_and(|slots| slots.own_id() == server);
    if is_this {
        return measure(control, tenant).await;
    }
    let (coordinator, server) = (Arc::clone(control.moves.as_ref().ok_or_else(no_cluster)?), server.to_owned());
    off_thread(move || load_of(&coordinator, &server, tenant)).await?.map_err(refused)
}

//! `/v1/cluster/balance`: the plan that would level the servers' loads, and its start; and this server's load, for the
//! other servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Query, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Deserialize;

use super::body::JsonBody;
use super::cluster::{NOT_MOVED, check_movable, check_span, refused};
use super::cluster_copies::{ClusterPeer, change, no_cluster};
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::findings::machine_memory_bytes;
use super::response::{ApiResult, off_thread};
use super::stat::busy_us;
use super::types::{BalanceRequest, BalanceResponse, PlannedMoveResponse, ServerBalanceResponse};
use super::{ControlState, now_ms};
use crate::limits::LOAD_DRAW_PAUSE;
use crate::record_sample::random_seed;
use crate::slot_loads::{AccessTally, add_bytes, slot_loads};
use sandstorm_cluster::limits::{BALANCE_MOVES, BALANCE_WITHIN, LOAD_WINDOW};
use sandstorm_cluster::load_link::loads_of_others;
use sandstorm_cluster::slot_balance::{BalancePlan, ServerBalance, ServerLoadReport};
use sandstorm_cluster::slot_plans::PlannedMove;

/// How far from the mean a server may be, in percent.
const WITHIN_PERCENT: std::ops::RangeInclusive<f64> = 1.0..=1_000.0;

/// What another server of the cluster asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadParameters {
    /// The id of the tenant whose tables are looked at; left out: those of all.
    tenant: Option<u32>,
}

/// What another server of the cluster asks before it makes a plan.
pub(super) async fn load(
    State(control): State<Arc<ControlState>>,
    _peer: ClusterPeer,
    Query(LoadParameters { tenant }): Query<LoadParameters>,
) -> ApiResult<ServerLoadReport> {
    measure(&control, tenant).await.map(Json)
}

/// Looks for [`LOAD_WINDOW`] at what this server does, for all tenants or for one; one caller after the other.
pub(super) async fn measure(control: &Arc<ControlState>, tenant: Option<u32>) -> Result<ServerLoadReport, ApiError> {
    let is_asked = move |id: u32| tenant.is_none_or(|tenant| tenant == id);
    let _turn = control.load_turn.lock().await;
    let (mut tally, begun, busy) = (AccessTally::default(), Instant::now(), busy_us(&control.metrics));
    while begun.elapsed() < LOAD_WINDOW {
        let snapshot = control.directory.snapshot();
        control.hot_keys.look_and_tell(&snapshot, now_ms(), &mut |table, drawn| {
            if is_asked(table.0) {
                tally.add(table, drawn);
            }
        });
        tokio::time::sleep(LOAD_DRAW_PAUSE).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let busy_us: u64 = busy_us(&control.metrics).iter().zip(&busy).map(|(now, then)| now.saturating_sub(*then)).sum();
    let control = Arc::clone(control);
    off_thread(move || {
        let (mut bytes, seed) = (BTreeMap::new(), random_seed());
        let participant = control.directory.participant();
        for view in control.directory.snapshot().iter().filter(|view| is_asked(view.tenant.id)) {
            for entry in view.tables.values() {
                add_bytes(&entry.table, &participant, (seed, now_ms()), &mut bytes);
            }
        }
        ServerLoadReport {
            workers: control.metrics.workers() as u32,
            busy_workers: busy_us as f64 / 1e6 / seconds,
            memory_limit_bytes: machine_memory_bytes(),
            slots: slot_loads(&tally, &bytes),
            tenant,
        }
    })
    .await
}

pub(super) async fn balance(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<BalanceRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let BalanceRequest { plan: is_plan, mib_per_s, within_percent, moves } = request;
    let within_percent = within_percent.unwrap_or(BALANCE_WITHIN * 100.0);
    if !WITHIN_PERCENT.contains(&within_percent) {
        return Err(ApiError::invalid(format!("within_percent = {within_percent} is outside of 1 to 1000")));
    }
    if control.moves.is_none() {
        return Err(no_cluster());
    }
    check_movable(&control)?;
    let plan = match moves {
        Some(moves) if is_plan => {
            return Err(ApiError::invalid(format!(
                "`moves` are a plan of {} moves already: leave `plan` out to begin them",
                moves.len()
            )));
        }
        Some(moves) => read_plan(&moves)?,
        None => make_plan(&control, within_percent / 100.0).await?,
    };
    let mut note = EventNote { is_no_change: true, ..EventNote::default() };
    if !is_plan && !plan.moves.is_empty() {
        let moves = plan.moves.clone();
        let begun =
            change(&control, NOT_MOVED, move |coordinator| coordinator.begin_balance(&moves, mib_per_s)).await?;
        note = EventNote { text: format!("moves begun: {begun}"), ..EventNote::default() };
    }
    Ok((Extension(note), Json(answer(plan, !is_plan))))
}

/// A plan that was read before, and is to be begun as it was.
fn read_plan(moves: &[PlannedMoveResponse]) -> Result<BalancePlan, ApiError> {
    if moves.len() > BALANCE_MOVES {
        return Err(ApiError::invalid(format!(
            "a plan has at most {BALANCE_MOVES} moves, and these are {}",
            moves.len()
        )));
    }
    let read = |one: &PlannedMoveResponse| {
        Ok(PlannedMove { span: check_span(&one.slots)?, source: one.from.clone(), target: one.to.clone() })
    };
    let moves = moves.iter().map(read).collect::<Result<_, ApiError>>()?;
    Ok(BalancePlan { moves, ..BalancePlan::default() })
}

async fn make_plan(control: &Arc<ControlState>, within: f64) -> Result<BalancePlan, ApiError> {
    let coordinator = Arc::clone(control.moves.as_ref().ok_or_else(no_cluster)?);
    let own_id = control.directory.slots().map(|slots| slots.own_id().to_owned()).ok_or_else(no_cluster)?;
    let asked = Arc::clone(&coordinator);
    let (own, others) = tokio::join!(measure(control, None), off_thread(move || loads_of_others(&asked)));
    let mut reports = BTreeMap::from([(own_id, own?)]);
    for (id, told) in others? {
        let told = told.map_err(|why| refused(format!("server {id} does not tell its load: {why}")))?;
        reports.insert(id, told);
    }
    let planned = off_thread(move || coordinator.plan_balance(&reports, within)).await?;
    planned.map_err(refused)
}

fn answer(plan: BalancePlan, is_begun: bool) -> BalanceResponse {
    let server = |one: ServerBalance, after: Option<&ServerBalance>| ServerBalanceResponse {
        cpu: one.cpu,
        cpu_after: after.map_or(one.cpu, |after| after.cpu),
        memory: one.memory,
        memory_after: after.map_or(one.memory, |after| after.memory),
        memory_bytes: one.memory_bytes,
        hottest_slot: one.hottest.map(|(slot, _)| slot),
        hottest_slot_cpu: one.hottest.map(|(_, part)| part),
        server: one.server,
    };
    let mut after = plan.after.iter();
    BalanceResponse {
        begun: is_begun && !plan.moves.is_empty(),
        bytes: plan.bytes,
        servers: plan.before.into_iter().map(|one| server(one, after.next())).collect(),
        moves: plan.moves.into_iter().map(PlannedMoveResponse::from).collect(),
        remarks: plan.remarks,
    }
}

//! `/v1/cluster`: the servers of the cluster, who owns which slots, and moves of slots. And requests that name what
//! another server may just have made.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};

use super::ControlState;
use super::body::{JsonBody, RawBody};
use super::error::ApiError;
use super::response::ApiResult;
use super::types::{
    BeginMovesRequest, CancelMovesRequest, ChangeServerRequest, ClusterMoveResponse, ClusterResponse,
    ClusterServerResponse, MovesResponse, PlannedMoveResponse, ServerChangeResponse,
};
use crate::limits::{LOOK_PATIENCE, LOOK_PAUSE};
use sandstorm_catalog::format_utc;
use sandstorm_cluster::MoveDesk;
use sandstorm_cluster::slot_moves::WantedMove;
use sandstorm_cluster::slot_plans::ServerChange;
use sandstorm_cluster::slot_source::{PEER_KEY_HEADER, unmovable};
use sandstorm_net::slots::SLOTS;
use sandstorm_store::slots::{SlotMap, SlotMove, SlotOwnership, SlotSpan};

pub(super) async fn show(State(control): State<Arc<ControlState>>) -> ApiResult<ClusterResponse> {
    let Some(own) = control.directory.slots() else { return Err(no_cluster()) };
    let mut shown = describe(own, &own.map());
    let progress = control.moves.as_ref().map(|desk| desk.progress()).unwrap_or_default();
    let map = own.map();
    let move_of = |one: &SlotMove| {
        let own_progress = (progress.move_id == one.id && !one.handed_over).then(|| progress.clone());
        let is_target = one.target == own.own_id();
        ClusterMoveResponse {
            slots: [one.span.first, one.span.last],
            from: one.source.clone(),
            to: one.target.clone(),
            handed_over: one.handed_over,
            mib_per_s: one.mib_per_s,
            records: own_progress.as_ref().filter(|_| is_target).map(|progress| progress.records),
            bytes: own_progress.as_ref().filter(|_| is_target).map(|progress| progress.bytes),
            state: own_progress.map(|progress| progress.state),
        }
    };
    shown.moves = map.moves.iter().map(move_of).collect();
    Ok(axum::Json(shown))
}

fn no_cluster() -> ApiError {
    ApiError::not_found("this server is in no cluster")
        .hint("a server joins one when it starts: sandstorm serve --cluster etcd://HOST:2379/NAME")
}

fn spans(slots: &[[u16; 2]]) -> Result<Vec<SlotSpan>, ApiError> {
    let span = |[first, last]: &[u16; 2]| match first <= last && *last < SLOTS {
        true => Ok(SlotSpan { first: *first, last: *last }),
        false => Err(ApiError::invalid(format!("slots {first} to {last}: the slots are 0 to {}", SLOTS - 1))),
    };
    if slots.is_empty() {
        return Err(ApiError::invalid("no slots are named"));
    }
    slots.iter().map(span).collect()
}

fn refused(why: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "not_moved", why)
}

/// Asks the cluster's thread for a change of the map, which takes some requests to etcd.
async fn change(
    control: &Arc<ControlState>,
    ask: impl FnOnce(&MoveDesk) -> Result<usize, String> + Send + 'static,
) -> Result<usize, ApiError> {
    let desk = Arc::clone(control.moves.as_ref().ok_or_else(no_cluster)?);
    let asked = tokio::task::spawn_blocking(move || ask(&desk)).await;
    asked.map_err(|error| ApiError::internal(error.to_string()))?.map_err(refused)
}

pub(super) async fn begin_moves(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<BeginMovesRequest>,
) -> ApiResult<MovesResponse> {
    let BeginMovesRequest { slots, to: target, mib_per_s } = request;
    let wanted = WantedMove { spans: spans(&slots)?, target, mib_per_s };
    check_movable(&control)?;
    let moves = change(&control, move |desk| desk.request_move(wanted)).await?;
    Ok(axum::Json(MovesResponse { moves }))
}

/// No table has records that cannot be moved.
fn check_movable(control: &ControlState) -> Result<(), ApiError> {
    match unmovable(&control.directory).filter(|_| control.moves.is_some()) {
        Some(why) => Err(refused(why)),
        None => Ok(()),
    }
}

pub(super) async fn cancel_moves(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<CancelMovesRequest>,
) -> ApiResult<MovesResponse> {
    let spans = spans(&request.slots)?;
    let moves = change(&control, move |desk| desk.cancel_moves(spans)).await?;
    Ok(axum::Json(MovesResponse { moves }))
}

pub(super) async fn drain(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<ChangeServerRequest>,
) -> ApiResult<ServerChangeResponse> {
    check_movable(&control)?;
    let mib_per_s = request.mib_per_s;
    change_server(&control, request, ServerChange::Drain { mib_per_s }).await
}

pub(super) async fn add(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<ChangeServerRequest>,
) -> ApiResult<ServerChangeResponse> {
    check_movable(&control)?;
    let mib_per_s = request.mib_per_s;
    change_server(&control, request, ServerChange::Add { mib_per_s }).await
}

pub(super) async fn remove(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<ChangeServerRequest>,
) -> ApiResult<ServerChangeResponse> {
    let gives_up_records = request.give_up_records;
    change_server(&control, request, ServerChange::Remove { gives_up_records }).await
}

async fn change_server(
    control: &Arc<ControlState>,
    request: ChangeServerRequest,
    wanted: ServerChange,
) -> ApiResult<ServerChangeResponse> {
    let is_removal = matches!(wanted, ServerChange::Remove { .. });
    if is_removal && request.mib_per_s != 0 {
        return Err(ApiError::invalid("`mib_per_s` is not for removals: they copy nothing"));
    }
    if !is_removal && request.give_up_records {
        return Err(ApiError::invalid("`give_up_records` is for removals only"));
    }
    let id = request.server;
    if request.plan {
        let desk = control.moves.as_ref().ok_or_else(no_cluster)?;
        let planned = desk.plan_server(&id, wanted).map_err(refused)?;
        let planned = planned.into_iter().map(|one| PlannedMoveResponse {
            slots: [one.span.first, one.span.last],
            from: one.source,
            to: one.target,
        });
        let planned: Vec<PlannedMoveResponse> = planned.collect();
        return Ok(axum::Json(ServerChangeResponse { moves: planned.len(), planned }));
    }
    let moves = change(control, move |desk| desk.change_server(&id, wanted)).await?;
    Ok(axum::Json(ServerChangeResponse { moves, planned: Vec::new() }))
}

/// What another server of the cluster asks as the target of a move. It shows the cluster's key.
pub(super) async fn copy(
    State(control): State<Arc<ControlState>>,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<Vec<u8>, ApiError> {
    let desk = Arc::clone(control.moves.as_ref().ok_or_else(no_cluster)?);
    let key = headers.get(PEER_KEY_HEADER).and_then(|key| key.to_str().ok()).unwrap_or_default();
    if !desk.is_peer_key(key) {
        return Err(ApiError::unauthorized("this is for servers of the cluster only"));
    }
    let answered = tokio::task::spawn_blocking(move || desk.answer(&control.directory, &body)).await;
    answered.map_err(|error| ApiError::internal(error.to_string()))?.map_err(refused)
}

/// Waits until all that other servers have changed before this moment holds here. Returns whether it does: false
/// without a cluster, and at once where its state cannot be read.
pub(super) async fn newer_state(control: &ControlState) -> bool {
    let Some(slots) = control.directory.slots() else { return false };
    let wanted = slots.looks() + 2;
    let begun = Instant::now();
    while slots.looks() < wanted && slots.trouble().is_none() && begun.elapsed() < LOOK_PATIENCE {
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    slots.looks() >= wanted
}

/// The lines of `health` about a cluster whose state cannot be read, or whose servers do not agree.
pub(super) fn warnings(own: &Arc<SlotOwnership>) -> Vec<String> {
    let trouble = own.trouble().map(|(since_ms, why)| format!("since {} UTC: {why}", format_utc(since_ms)));
    let map = own.map();
    let this = map.servers.iter().find(|server| server.id == own.own_id());
    let others = map.servers.iter().filter(|server| this.is_some_and(|this| this.directory != server.directory));
    let differs = others.map(|other| {
        format!(
            "server {} of the cluster, at {}, has other tenants, tables or extensions than this one: what was changed a \
             moment ago may be under way; else its log says why it does not take something over, such as an artifact of \
             a builder whose key it does not trust",
            other.id, other.data
        )
    });
    trouble.into_iter().chain(differs).collect()
}

fn describe(own: &SlotOwnership, map: &SlotMap) -> ClusterResponse {
    let ranges = map.ranges();
    let slots_of =
        |place| ranges.iter().filter(move |range| range.server == place).map(|range| [range.first, range.last]);
    let this = map.servers.iter().find(|server| server.id == own.own_id());
    let own_digest = this.map(|server| &server.directory);
    let servers = map.servers.iter().enumerate().map(|(place, server)| ClusterServerResponse {
        id: server.id.clone(),
        is_this: server.id == own.own_id(),
        lives: server.is_alive,
        data_address: server.data.to_string(),
        redis_address: server.redis.map(|address| address.to_string()),
        memcached_address: server.memcached.map(|address| address.to_string()),
        control_url: server.control.clone(),
        draining: server.is_draining,
        has_same_tenants: own_digest.is_none_or(|own| *own == server.directory),
        slots: slots_of(Some(place)).collect(),
    });
    let (since_ms, trouble) = own.trouble().unzip();
    ClusterResponse {
        server: own.own_id().to_owned(),
        epoch: map.epoch,
        servers: servers.collect(),
        unowned: slots_of(None).collect(),
        moves: Vec::new(),
        trouble,
        trouble_since_ms: since_ms,
    }
}

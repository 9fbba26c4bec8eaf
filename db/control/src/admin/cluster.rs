//! `/v1/cluster`: the servers of the cluster, the owners of slots, and moves of slots. And requests that name what
//! another server may just have made.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::ControlState;
use super::body::{JsonBody, RawBody};
use super::cluster_copies::{ClusterPeer, change, describe_copies, no_cluster};
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::response::{ApiResult, off_thread};
use super::types::{
    BeginMovesRequest, CancelMovesRequest, ChangeServerRequest, ClusterMoveResponse, ClusterResponse,
    ClusterServerResponse, CopiesResponse, MovesResponse, PlannedMoveResponse, ServerChangeResponse,
};
use crate::limits::{LOOK_PATIENCE, LOOK_PAUSE};
use sandstorm_catalog::format_utc;
use sandstorm_cluster::backed_moves::unmovable;
use sandstorm_cluster::slot_moves::WantedMove;
use sandstorm_cluster::slot_plans::ServerChange;
use sandstorm_net::slots::SLOTS;
use sandstorm_store::slots::{SlotMap, SlotMove, SlotOwnership, SlotSpan};

/// Ranges of slots that an event names.
const EVENT_RANGES: usize = 8;

pub(super) async fn show(State(control): State<Arc<ControlState>>) -> ApiResult<ClusterResponse> {
    // What there is of copies is read from a folder, and waits for writes to its files.
    off_thread(move || read_cluster(&control)).await?.map(axum::Json)
}

fn read_cluster(control: &ControlState) -> Result<ClusterResponse, ApiError> {
    let Some(own) = control.directory.slots() else { return Err(no_cluster()) };
    let map = own.map();
    let mut shown = describe(own, &map);
    let progress = control.moves.as_ref().map(|coordinator| coordinator.progress()).unwrap_or_default();
    let move_of = |one: &SlotMove| {
        let own_progress = (progress.move_id == one.id && !one.handed_over).then(|| progress.clone());
        let is_target = one.target == own.own_id();
        let state = own_progress.as_ref().map(|progress| progress.state.clone()).or_else(|| waits_for(&map, one));
        ClusterMoveResponse {
            slots: [one.span.first, one.span.last],
            from: one.source.clone(),
            to: one.target.clone(),
            handed_over: one.handed_over,
            mib_per_s: one.mib_per_s,
            records: own_progress.as_ref().filter(|_| is_target).map(|progress| progress.records),
            bytes: own_progress.as_ref().filter(|_| is_target).map(|progress| progress.bytes),
            state,
        }
    };
    shown.moves = map.moves.iter().map(move_of).collect();
    shown.copies = control.moves.as_deref().map(describe_copies).unwrap_or_default();
    Ok(shown)
}

/// What a move waits for, as every server knows it.
fn waits_for(map: &SlotMap, one: &SlotMove) -> Option<String> {
    let is_silent = |id: &&String| !map.servers.iter().any(|server| server.id == **id && server.is_alive);
    match [&one.source, &one.target].into_iter().find(is_silent) {
        _ if one.handed_over => None,
        Some(id) => Some(format!("waits: server {} is silent", id.get(..8).unwrap_or(id))),
        None => Some("under way, or waits for other moves of its servers, which know more".to_owned()),
    }
}

fn spans(slots: &[[u16; 2]]) -> Result<Vec<SlotSpan>, ApiError> {
    if slots.is_empty() {
        return Err(ApiError::invalid("no slots are named"));
    }
    slots.iter().map(check_span).collect()
}

/// A range of slots, if it is one.
pub(super) fn check_span([first, last]: &[u16; 2]) -> Result<SlotSpan, ApiError> {
    match first <= last && *last < SLOTS {
        true => Ok(SlotSpan { first: *first, last: *last }),
        false => Err(ApiError::invalid(format!("slots {first} to {last}: the slots are 0 to {}", SLOTS - 1))),
    }
}

/// Ranges of slots for an event, the first ones.
fn shown(slots: &[[u16; 2]]) -> String {
    let all: Vec<String> = slots.iter().take(EVENT_RANGES).map(|[first, last]| format!("{first}-{last}")).collect();
    all.join(",") + if slots.len() > EVENT_RANGES { ",…" } else { "" }
}

/// The code of a refusal of a move.
pub(super) const NOT_MOVED: &str = "not_moved";

pub(super) fn refused(why: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, NOT_MOVED, why)
}

pub(super) async fn begin_moves(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<BeginMovesRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let BeginMovesRequest { slots, to: target, mib_per_s } = request;
    let note = EventNote { subject: Some(shown(&slots)), text: format!("to {target}"), ..EventNote::default() };
    let wanted = WantedMove { spans: spans(&slots)?, target, mib_per_s };
    check_movable(&control)?;
    let moves = change(&control, NOT_MOVED, move |coordinator| coordinator.request_move(wanted)).await?;
    Ok((Extension(note), axum::Json(MovesResponse { moves })))
}

/// No table has records that cannot be moved.
pub(super) fn check_movable(control: &ControlState) -> Result<(), ApiError> {
    match unmovable(&control.directory).filter(|_| control.moves.is_some()) {
        Some(why) => Err(refused(why)),
        None => Ok(()),
    }
}

pub(super) async fn cancel_moves(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<CancelMovesRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let spans = spans(&request.slots)?;
    let note = EventNote { subject: Some(shown(&request.slots)), ..EventNote::default() };
    let moves = change(&control, NOT_MOVED, move |coordinator| coordinator.cancel_moves(spans)).await?;
    Ok((Extension(note), axum::Json(MovesResponse { moves })))
}

pub(super) async fn drain(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<ChangeServerRequest>,
) -> Result<impl IntoResponse, ApiError> {
    check_movable(&control)?;
    let mib_per_s = request.mib_per_s;
    change_server(&control, request, ServerChange::Drain { mib_per_s }).await
}

pub(super) async fn add(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<ChangeServerRequest>,
) -> Result<impl IntoResponse, ApiError> {
    check_movable(&control)?;
    let mib_per_s = request.mib_per_s;
    change_server(&control, request, ServerChange::Add { mib_per_s }).await
}

pub(super) async fn remove(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<ChangeServerRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let gives_up_records = request.give_up_records;
    change_server(&control, request, ServerChange::Remove { gives_up_records }).await
}

async fn change_server(
    control: &Arc<ControlState>,
    request: ChangeServerRequest,
    wanted: ServerChange,
) -> Result<(Extension<EventNote>, axum::Json<ServerChangeResponse>), ApiError> {
    let is_removal = matches!(wanted, ServerChange::Remove { .. });
    if is_removal && request.mib_per_s != 0 {
        return Err(ApiError::invalid("`mib_per_s` is not for removals: they copy nothing"));
    }
    if !is_removal && request.give_up_records {
        return Err(ApiError::invalid("`give_up_records` is for removals only"));
    }
    let id = request.server;
    if request.plan {
        let coordinator = control.moves.as_ref().ok_or_else(no_cluster)?;
        let planned = coordinator.plan_server(&id, wanted).map_err(refused)?;
        let planned: Vec<PlannedMoveResponse> = planned.into_iter().map(PlannedMoveResponse::from).collect();
        let (slots, moving) = part_of(control, &id);
        let note = EventNote { is_no_change: true, ..EventNote::default() };
        let shown = ServerChangeResponse { moves: planned.len(), slots, moving, planned };
        return Ok((Extension(note), axum::Json(shown)));
    }
    let server = id.clone();
    let moves = change(control, NOT_MOVED, move |coordinator| coordinator.change_server(&id, wanted)).await?;
    let (slots, moving) = part_of(control, &server);
    let text = match wanted {
        ServerChange::Remove { gives_up_records: true } => "its records were given up".to_owned(),
        ServerChange::Remove { .. } => String::new(),
        _ => format!("moves begun: {moves}"),
    };
    let note = EventNote { subject: Some(server), text, ..EventNote::default() };
    Ok((Extension(note), axum::Json(ServerChangeResponse { moves, slots, moving, planned: Vec::new() })))
}

/// The slots that a server owns, and the moves to or from it that are not handed over.
fn part_of(control: &ControlState, id: &str) -> (usize, usize) {
    let Some(own) = control.directory.slots() else { return (0, 0) };
    let map = own.map();
    let place = map.servers.iter().position(|server| server.id == id);
    let is_its = |one: &&SlotMove| !one.handed_over && (one.source == id || one.target == id);
    (place.map_or(0, |place| map.count(place)), map.moves.iter().filter(is_its).count())
}

/// What another server of the cluster asks as the target of a move.
pub(super) async fn copy(
    State(control): State<Arc<ControlState>>,
    ClusterPeer(coordinator): ClusterPeer,
    RawBody(body): RawBody,
) -> Result<Vec<u8>, ApiError> {
    off_thread(move || coordinator.answer(&control.directory, &body)).await?.map_err(refused)
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
        copies: CopiesResponse::default(),
        trouble,
        trouble_since_ms: since_ms,
    }
}

//! `/v1/cluster/fail-over`: another server takes the place of one; and the requests of servers of the cluster about
//! copies of their logs.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{ConnectInfo, FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::IntoResponse;

use super::ControlState;
use super::body::{JsonBody, RawBody};
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::response::off_thread;
use super::scrub::seconds_since;
use super::types::{
    CopiesResponse, CopyResponse, FailOverRequest, FailOverResponse, GenerationResponse, StoredCopyResponse,
    SuspectedServerResponse,
};
use crate::events::{EventCode, EventLog, NewEvent};
use crate::http_listener::HttpPeer;
use sandstorm_cluster::MoveCoordinator;
use sandstorm_cluster::copies_view::{FailoverNote, FailoverStep};
use sandstorm_cluster::limits::REPLICA_QUESTION_BYTES;
use sandstorm_cluster::losing_tables::losing_tables;
use sandstorm_cluster::slot_source::PEER_KEY_HEADER;

/// Bytes of what is asked about a copy, at most.
pub(super) const QUESTION_BYTES: usize = REPLICA_QUESTION_BYTES;
/// What a server says to questions about copies that has no folder for them.
pub(super) const NO_COPIES: &str = "this server has no place for copies";
/// Names of tables that an error has, at most.
const TABLES_SHOWN: usize = 5;

pub(super) async fn fail_over(
    State(control): State<Arc<ControlState>>,
    JsonBody(request): JsonBody<FailOverRequest>,
) -> Result<impl IntoResponse, ApiError> {
    if control.moves.is_none() {
        return Err(no_cluster());
    }
    let FailOverRequest { server, to, give_up_writes } = request;
    let losing = if give_up_writes { Vec::new() } else { losing_tables(&control.directory) };
    if !losing.is_empty() {
        let shown = losing.iter().take(TABLES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let more = if losing.len() > TABLES_SHOWN {
            format!(" and {} more", losing.len() - TABLES_SHOWN)
        } else {
            String::new()
        };
        let text = format!(
            "these tables have another durability than `copies`, so the last writes to them may be lost, and all records \
             of those with `none`: {shown}{more}"
        );
        return Err(ApiError::new(StatusCode::CONFLICT, "loses_writes", text)
            .hint("give them the durability `copies` before it is needed, or accept the loss with --give-up-writes"));
    }
    let note = EventNote {
        subject: Some(server.clone()),
        text: to.as_ref().map_or_else(String::new, |to| format!("to {to}")),
        ..EventNote::default()
    };
    change(&control, "not_failed_over", move |coordinator| coordinator.fail_over(&server, to.as_deref())).await?;
    Ok((Extension(note), axum::Json(FailOverResponse { begun: true })))
}

/// Another server of the cluster, which has shown the cluster's key. It is looked at before the body is read, which is
/// large.
pub(super) struct ClusterPeer(pub(super) Arc<MoveCoordinator>);

impl FromRequestParts<Arc<ControlState>> for ClusterPeer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, control: &Arc<ControlState>) -> Result<ClusterPeer, ApiError> {
        let coordinator = peer_coordinator(parts, control)?;
        // Its connection is not closed for another one's while it is served.
        if let Some(ConnectInfo(HttpPeer(_, visit))) = parts.extensions.get() {
            visit.serve(true);
        }
        Ok(ClusterPeer(coordinator))
    }
}

/// This server's part in the cluster, for a request that has shown the cluster's key.
pub(super) fn peer_coordinator(parts: &Parts, control: &ControlState) -> Result<Arc<MoveCoordinator>, ApiError> {
    let coordinator = control.moves.as_ref().ok_or_else(no_cluster)?;
    let key = parts.headers.get(PEER_KEY_HEADER).and_then(|key| key.to_str().ok()).unwrap_or_default();
    match coordinator.is_peer_key(key) {
        true => Ok(Arc::clone(coordinator)),
        false => Err(ApiError::unauthorized("this is for servers of the cluster only")),
    }
}

/// What another server of the cluster asks about the copy of its log that is here.
pub(super) async fn replica(
    ClusterPeer(coordinator): ClusterPeer,
    RawBody(body): RawBody,
) -> Result<Vec<u8>, ApiError> {
    let answered = off_thread(move || match coordinator.copies_view().copy_store() {
        Some(copy_store) => copy_store.answer(&body),
        None => Err(NO_COPIES.to_owned()),
    });
    answered.await?.map_err(|why| ApiError::new(StatusCode::CONFLICT, "not_copied", why))
}

/// What another server of the cluster asks that hears nothing of this one: whether it is there.
pub(super) async fn life(ClusterPeer(coordinator): ClusterPeer) -> Result<Vec<u8>, ApiError> {
    coordinator.answer_life().map_err(|why| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "no_answer", why))
}

/// Records what has become of servers' places since the last look.
pub(super) fn record_failovers(coordinator: &MoveCoordinator, events: &EventLog) {
    for FailoverNote { server, step, text, .. } in coordinator.copies_view().take_notes() {
        let code = match step {
            FailoverStep::Begun => EventCode::ClusterFailoverBegun,
            FailoverStep::Done => EventCode::ClusterFailoverDone,
            FailoverStep::NotPossible => EventCode::ClusterFailoverNotPossible,
        };
        events.record(NewEvent { subject: Some(server), text, ..NewEvent::of_server(code) });
    }
}

/// What there is of copies, for `GET /v1/cluster`. It waits for writes to the copies that are here.
pub(super) fn describe_copies(coordinator: &MoveCoordinator) -> CopiesResponse {
    let part = coordinator.copies_view();
    let status = part.status();
    let copies = status.copies.iter().map(|copy| CopyResponse {
        server: copy.server.clone(),
        needed: copy.is_needed,
        confirms: copy.confirms(),
        behind_bytes: copy.behind,
        held: copy.held,
        trouble: copy.trouble.clone(),
    });
    let generations = status.generations.iter().map(|one| GenerationResponse {
        owner: one.owner.clone(),
        number: one.number,
        servers: one.servers.clone(),
        successor: one.successor.clone(),
    });
    let kept = part.copy_store().map(|copy_store| copy_store.list()).unwrap_or_default();
    let kept = kept.into_iter().map(|copy| StoredCopyResponse {
        owner: copy.owner,
        bytes: copy.bytes,
        sealed: copy.is_sealed,
        checked_s_ago: copy.checked.map(seconds_since),
        damage: copy.damage,
    });
    let suspected = part.suspected().into_iter().map(|one| SuspectedServerResponse {
        server: one.server,
        silent_ms: one.silent_ms,
        gone: one.is_gone,
        obstacle: one.obstacle,
    });
    CopiesResponse {
        wanted: if status.is_on { status.wanted } else { 0 },
        stalled: status.is_stalled,
        position: status.position,
        copies: copies.collect(),
        generations: generations.collect(),
        kept: kept.collect(),
        suspected: suspected.collect(),
    }
}

/// Asks the cluster's thread for a change of the map, which takes some requests to etcd. `refusal` is the code of an
/// error if it refuses.
pub(super) async fn change<T: Send + 'static>(
    control: &ControlState,
    refusal: &'static str,
    ask: impl FnOnce(&MoveCoordinator) -> Result<T, String> + Send + 'static,
) -> Result<T, ApiError> {
    let coordinator = Arc::clone(control.moves.as_ref().ok_or_else(no_cluster)?);
    let asked = off_thread(move || ask(&coordinator)).await?;
    asked.map_err(|why| ApiError::new(StatusCode::CONFLICT, refusal, why))
}

pub(super) fn no_cluster() -> ApiError {
    ApiError::not_found("this server is in no cluster")
        .hint("a server joins one when it starts: sandstorm serve --cluster etcd://HOST:2379/NAME")
}

//! `/v1/scrub`: the log, and copies of other servers' logs, are read again from the disk; and the events of what is
//! damaged there.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;

use super::ControlState;
use super::error::ApiError;
use super::types::{ScrubPassResponse, ScrubResponse};
use crate::events::{EventCode, NewEvent};

/// Seconds since an event.
pub(super) fn seconds_since(at: Instant) -> u64 {
    at.elapsed().as_secs()
}

/// `GET /v1/scrub`
pub(super) async fn show(State(control): State<Arc<ControlState>>) -> axum::Json<ScrubResponse> {
    axum::Json(describe(&control))
}

/// `POST /v1/scrub`
pub(super) async fn begin(State(control): State<Arc<ControlState>>) -> Result<axum::Json<ScrubResponse>, ApiError> {
    if !control.directory.scrub_progress().ask() {
        let text = "this server keeps nothing on a disk (`--ephemeral`): there is nothing to be read again";
        return Err(ApiError::new(StatusCode::CONFLICT, "nothing_kept", text));
    }
    Ok(axum::Json(describe(&control)))
}

fn describe(control: &ControlState) -> ScrubResponse {
    let status = control.directory.scrub_progress().status();
    let last = status.last.map(|last| ScrubPassResponse {
        ended_s_ago: seconds_since(last.ended),
        bytes: last.bytes,
        damage: last.damage,
    });
    ScrubResponse {
        under_way: status.is_under_way || control.directory.scrub_progress().is_asked(),
        pass_bytes: status.pass_bytes,
        last,
        log_damage: status.log_damage,
    }
}

/// Records what was found to be damaged since the last look.
pub(super) fn record_damage(control: &ControlState) {
    for text in control.directory.scrub_progress().take_notes() {
        control.events.record(NewEvent { text, ..NewEvent::of_server(EventCode::LogDamaged) });
    }
    let copy_store = control.moves.as_ref().and_then(|coordinator| coordinator.copies_view().copy_store());
    for (owner, text) in copy_store.map(|copy_store| copy_store.take_damage()).unwrap_or_default() {
        control.events.record(NewEvent {
            subject: Some(owner),
            text,
            ..NewEvent::of_server(EventCode::ClusterCopyDamaged)
        });
    }
}

/// The readings of what is read again, in the order of the series.
pub(super) fn scrub_readings(control: &ControlState) -> [u64; 5] {
    let coordinator = control.directory.scrub_progress();
    let (status, [bytes, log_damage]) = (coordinator.status(), coordinator.counts());
    let age_s = status.last.map_or_else(|| control.started.elapsed().as_secs(), |last| seconds_since(last.ended));
    let copy_store = control.moves.as_ref().and_then(|coordinator| coordinator.copies_view().copy_store());
    let [damaged, found] = copy_store.map(|copy_store| copy_store.damage_counts()).unwrap_or_default();
    [bytes, age_s, log_damage + found, u64::from(status.log_damage.is_some()), damaged]
}

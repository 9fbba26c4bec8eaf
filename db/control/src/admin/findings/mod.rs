//! What is wrong with the running server, in prose: a reading of the server, and rules that are pure functions of it.

mod listing;
mod log_rules;
mod reader;
mod reading;
mod rules;
mod tenant_rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::ControlState;
use super::finding::ServerFinding;
use super::response::{ApiResult, off_thread};
use axum::extract::State;
pub(super) use reader::{LiveSamples, machine_memory_bytes};

/// `GET /v1/findings`
pub(super) async fn show(State(control): State<Arc<ControlState>>) -> ApiResult<Vec<ServerFinding>> {
    off_thread(move || current(&control)).await.map(axum::Json)
}

/// The findings of now, the worst first.
pub(super) fn current(control: &ControlState) -> Vec<ServerFinding> {
    rules::findings(&reader::read(control))
}

//! What is wrong with the running server, in prose: a reading of the server, and rules that are pure functions of it.

mod reader;
mod reading;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;

use super::ControlState;
use super::response::ApiResult;
pub(super) use reader::LiveSamples;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingSeverity {
    /// Requests fail, or records are at risk.
    Bad,
    /// It will be bad, or costs something.
    Mind,
}

/// Something that is wrong: what, by which number, why, and what changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable word for programs.
    pub code: &'static str,
    /// How bad it is.
    pub severity: FindingSeverity,
    /// What is wrong, in a few words.
    pub title: String,
    /// With its number and its cause.
    pub text: String,
    /// What to do, with the setting.
    pub advice: String,
}

/// `GET /v1/findings`
pub(super) async fn show(State(control): State<Arc<ControlState>>) -> ApiResult<Vec<Finding>> {
    Ok(axum::Json(current(&control)))
}

/// The findings of now, the worst first.
pub(super) fn current(control: &ControlState) -> Vec<Finding> {
    rules::findings(&reader::read(control))
}

//! The JSON body of the history.

use serde::Serialize;

use crate::history::HistoryPeriod;

/// `GET /v1/history`.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryResponse {
    /// The periods that were asked for, oldest first.
    pub periods: Vec<HistoryPeriod>,
}

//! The JSON bodies about calls under way.

use serde::Serialize;

use super::CodePlaceResponse;

/// `GET /v1/tenants/{tenant}/calls`.
#[derive(Clone, Debug, Serialize)]
pub struct CallsResponse {
    /// Calls under way, the oldest first.
    pub calls: Vec<CallResponse>,
    /// Further ones, which are not listed.
    pub more: usize,
    /// Workers that have not answered in time: their calls are not listed.
    pub silent_workers: Vec<usize>,
}

/// A call under way.
#[derive(Clone, Debug, Serialize)]
pub struct CallResponse {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// The worker that the call is at.
    pub worker: u32,
    /// What it does, or waits for: `new`, `ready`, `switched_out`, `disk`, `backing`.
    pub state: &'static str,
    /// Microseconds since it arrived.
    pub age_us: u64,
    /// Microseconds since its last turn; since it arrived, if it has had none.
    pub waiting_us: u64,
    /// Its turns.
    pub turns: u32,
    /// Those of them that ended because it computed past its slice.
    pub switches: u32,
    /// Its CPU time, in microseconds.
    pub cpu_us: u64,
    /// The extensions that it is in: the one that was called last, and those that have called it.
    pub levels: Vec<CallLevelResponse>,
}

/// One of the extensions that a call is in.
#[derive(Clone, Debug, Serialize)]
pub struct CallLevelResponse {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// As that of the call, or `call`: it waits for the one that it has called.
    pub state: &'static str,
    /// Where its code is, the innermost function first; empty: not known, or not asked for.
    pub places: Vec<CodePlaceResponse>,
}

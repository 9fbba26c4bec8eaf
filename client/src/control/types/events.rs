//! The JSON bodies about events.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// `GET /v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventBatch {
    /// The events, the oldest first.
    pub events: Vec<EventRecord>,
    /// The position to continue from: [`EventQuery::after`] of the next request.
    pub next: u64,
    /// Whether events behind the position may be kept no more.
    pub missed: bool,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventRecord {
    /// Its number: grows from event to event, over restarts too.
    pub id: u64,
    /// Its time, in milliseconds since 1970.
    pub at_ms: u64,
    /// What happened, such as `table.dropped`.
    pub code: String,
    /// The actor: `operator`, `tenant` (the one below) or `server`.
    pub actor: String,
    /// The address that it was asked from.
    pub from: Option<IpAddr>,
    /// The tenant that it is about.
    pub tenant: Option<String>,
    /// That tenant's id.
    pub tenant_id: Option<u32>,
    /// The extension, table, grant or pattern that it is about.
    pub subject: Option<String>,
    /// How often it happened.
    pub count: u64,
    /// Details, for people.
    pub text: String,
}

/// Which events to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Those after this position; `None`: the newest.
    pub after: Option<u64>,
    /// Those from this time on, in milliseconds since 1970.
    pub since_ms: u64,
    /// Those about this tenant.
    pub tenant: Option<String>,
    /// Those of this code, or of all codes that begin with this word, such as `extension`.
    pub code: Option<String>,
    /// How many at most; `None`: the server's choice.
    pub limit: Option<usize>,
    /// Seconds for which the server waits if there are none; fewer than the timeout of requests.
    pub wait_s: u64,
}

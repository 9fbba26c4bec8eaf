//! Triggers: calls by the clock, or for changes of a table.

use serde::{Deserialize, Serialize};

/// `POST /v1/tenants/{tenant}/triggers`: a trigger that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TriggerSpec {
    /// Its name.
    pub name: String,
    /// The extension that it calls; of several typed functions one, after a dot.
    pub extension: String,
    /// Calls it so often, such as `5s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// Calls it by the five fields of cron, in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Calls it for changes of this table, with the change as its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// For which changes: `put`, `delete`, `clear`, `expire`; empty: all but expiries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<String>,
    /// Changes of a call, at most, which are its arguments together; `None`: each call has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// The arguments of calls by a schedule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub args: String,
    /// Times that a failed call is made again; `None`: the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

/// `PATCH /v1/tenants/{tenant}/triggers/{name}`: what of a trigger is to be another. What is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TriggerPatch {
    /// The extension that it calls; of several typed functions one, after a dot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension: Option<String>,
    /// Calls it so often, such as `5s`, in place of the schedule that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// Calls it by the five fields of cron, in UTC, in place of the schedule that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Its table: the server refuses another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// For which changes: `put`, `delete`, `clear`, `expire`; empty: all but expiries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<Vec<String>>,
    /// Changes of a call, at most, which are its arguments together; 0: each call has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// The arguments of calls by a schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<String>,
    /// Times that a failed call is made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

/// `GET /v1/tenants/{tenant}/triggers`: one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TriggerReport {
    /// Its definition.
    #[serde(flatten)]
    pub spec: TriggerSpec,
    /// `running`; `paused`: until it is resumed; `waiting`: something is missing that may come.
    pub state: String,
    /// Why it does not run; empty: it does.
    pub reason: String,
    /// Of a table's trigger: the position up to which all changes are handled.
    pub position: Option<String>,
    /// Of a table's trigger: bytes of the log behind that position.
    pub behind_bytes: Option<u64>,
    /// Of a schedule: when it is due next, in milliseconds since 1970.
    pub next_due_ms: Option<u64>,
    /// Calls that wait or run.
    pub open: u64,
    /// Calls that succeeded since the server started; of a trigger with a batch, changes.
    pub succeeded: u64,
    /// Tries that failed since then; a batch is one.
    pub failed: u64,
    /// Tries that could not run.
    pub not_run: u64,
    /// Times that a schedule was due while its last call was not over.
    pub skipped: u64,
    /// Calls whose tries are over.
    pub dead_letters: u64,
    /// The last error since the server started; empty: there was none. It stays when later calls succeed.
    pub last_error: String,
    /// When that was, in milliseconds since 1970.
    pub last_error_at_ms: Option<u64>,
}

/// `GET /v1/tenants/{tenant}/triggers/{name}/dead-letters`: one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadLetterReport {
    /// Its number.
    pub id: u64,
    /// When its tries were over, in milliseconds since 1970.
    pub at_ms: u64,
    /// The position of its change; `0`: it has no change.
    pub position: String,
    /// Times that it failed.
    pub tries: u32,
    /// The last error.
    pub error: String,
    /// The arguments in base64; `None`: they were too long to be kept.
    pub args_base64: Option<String>,
    /// `put`, `delete`, `expire` or `clear`; `None`: it is no change, or its arguments were too long to be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The key of its change, if it is short as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Any other key, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The version of its change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

//! The JSON bodies about triggers.

use serde::{Deserialize, Serialize};

use crate::triggers::{DeadLetter, TriggerDefinition, TriggerPhase, TriggerStatus};

/// `GET /v1/tenants/{tenant}/triggers`, one of them.
#[derive(Clone, Debug, Serialize)]
pub struct TriggerResponse {
    /// Its definition.
    #[serde(flatten)]
    pub spec: TriggerDefinition,
    /// `running`; `paused`: until it is resumed; `waiting`: something is missing that may come.
    pub state: &'static str,
    /// Why it does not run; empty: it does.
    pub reason: String,
    /// Of a table's trigger: the position up to which all changes are handled, a decimal number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// Of a table's trigger: bytes of the log behind that position, of all tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_bytes: Option<u64>,
    /// Of a schedule: when it is due next, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_due_ms: Option<u64>,
    /// Calls that wait or run.
    pub open: usize,
    /// Calls that succeeded since the server started; of a trigger with a batch, changes.
    pub succeeded: u64,
    /// Tries that failed since then; a batch is one.
    pub failed: u64,
    /// Tries that could not run: a suspension, a quota, no such extension.
    pub not_run: u64,
    /// Times that a schedule was due while its last call was not over.
    pub skipped: u64,
    /// Calls whose tries are over.
    pub dead_letters: usize,
    /// The last error; empty: there was none.
    pub last_error: String,
}

impl TriggerResponse {
    /// The body about a trigger.
    pub fn of(status: TriggerStatus) -> TriggerResponse {
        let TriggerStatus { spec, phase, position, next_due_ms, open, calls, dead_letters, last_error } = status;
        let (state, reason) = match phase {
            TriggerPhase::Running => ("running", String::new()),
            TriggerPhase::Paused(why) => ("paused", why),
            TriggerPhase::Waiting(why) => ("waiting", why),
        };
        TriggerResponse {
            spec,
            state,
            reason,
            position: position.map(|(position, _)| position.to_string()),
            behind_bytes: position.map(|(_, behind)| behind),
            next_due_ms,
            open,
            succeeded: calls.succeeded,
            failed: calls.failed,
            not_run: calls.not_run,
            skipped: calls.skipped,
            dead_letters,
            last_error,
        }
    }
}

/// `POST /v1/tenants/{tenant}/triggers/{name}/replay`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayTriggerRequest {
    /// A position of the feed, or `end`; without it dead letters are replayed.
    #[serde(default)]
    pub from: Option<String>,
}

/// Its answer.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayTriggerResponse {
    /// Dead letters whose calls are made again.
    pub letters: usize,
}

/// `GET /v1/tenants/{tenant}/triggers/{name}/dead-letters`, one of them.
#[derive(Clone, Debug, Serialize)]
pub struct DeadLetterResponse {
    /// Its number.
    pub id: u64,
    /// When its tries were over, in milliseconds since 1970.
    pub at_ms: u64,
    /// The position of its change, a decimal number; `0`: it is none.
    pub position: String,
    /// Times that it failed.
    pub tries: u32,
    /// The last error.
    pub error: String,
    /// The arguments in base64; `null`: they were too long to be kept.
    pub args_base64: Option<String>,
}

impl DeadLetterResponse {
    /// The body about a dead letter.
    pub(crate) fn of(letter: DeadLetter) -> DeadLetterResponse {
        let DeadLetter { id, at_ms, position, tries, error, args } = letter;
        DeadLetterResponse { id, at_ms, position: position.to_string(), tries, error, args_base64: args }
    }
}

//! The JSON bodies about triggers.

use serde::{Deserialize, Serialize};

use sandstorm_api::change::{Change, ChangeOp};

use super::records::in_json;
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
    /// The last error since the server started; empty: there was none. It stays when later calls succeed.
    pub last_error: String,
    /// When that was, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_at_ms: Option<u64>,
}

impl TriggerResponse {
    /// The body about a trigger.
    pub fn of(status: TriggerStatus) -> TriggerResponse {
        let TriggerStatus { spec, phase, position, next_due_ms, open, calls, dead_letters, .. } = status;
        let (last_error, last_error_at_ms) = (status.last_error, status.last_error_at_ms);
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
            last_error_at_ms,
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
    /// The position of its change, a decimal number; `0`: it has no change.
    pub position: String,
    /// Times that it failed.
    pub tries: u32,
    /// The last error.
    pub error: String,
    /// The arguments in base64; `null`: they were too long to be kept.
    pub args_base64: Option<String>,
    /// The change that they are; none of a call by the clock, or if they were too long to be kept.
    #[serde(flatten)]
    pub change: Option<DeadChangeResponse>,
}

/// The change of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadChangeResponse {
    /// `put`, `delete`, `expire` or `clear`.
    pub op: &'static str,
    /// The key, if it is short as text; none of `clear`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Any other key, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The version of the record, or of its deletion.
    pub version: u64,
}

impl DeadChangeResponse {
    /// The body about a change.
    fn of(change: &Change<'_>) -> DeadChangeResponse {
        let op = match change.op {
            ChangeOp::Put => "put",
            ChangeOp::Delete => "delete",
            ChangeOp::Clear => "clear",
            ChangeOp::Expire => "expire",
        };
        let (key, key_base64) = if change.op == ChangeOp::Clear { (None, None) } else { in_json(change.key) };
        DeadChangeResponse { op, key, key_base64, version: change.version }
    }
}

impl DeadLetterResponse {
    /// The body about a dead letter.
    pub(crate) fn of(letter: DeadLetter) -> DeadLetterResponse {
        let change = letter.decoded_args();
        let change = change.and_then(|args| Change::decode(&args).ok().map(|change| DeadChangeResponse::of(&change)));
        let DeadLetter { id, at_ms, position, tries, error, args } = letter;
        DeadLetterResponse { id, at_ms, position: position.to_string(), tries, error, args_base64: args, change }
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;

    use super::*;

    /// What a dead letter with these arguments is in JSON.
    fn shown(args: Option<&[u8]>) -> serde_json::Value {
        let (error, args) = ("Failed: no".to_owned(), args.map(|args| BASE64.encode(args)));
        let letter = DeadLetter { id: 1, at_ms: 2, position: 3, tries: 4, error, args };
        serde_json::to_value(DeadLetterResponse::of(letter)).expect("JSON")
    }

    #[test]
    fn a_dead_letter_says_which_change_it_is() {
        let of =
            |op, key| shown(Some(&Change { op, key, value: b"v", version: 7, expires_at_ms: 0, position: 3 }.encode()));
        let put = of(ChangeOp::Put, b"apple");
        assert_eq!((&put["op"], &put["key"], &put["version"]), (&"put".into(), &"apple".into(), &7.into()), "{put}");
        let bytes = of(ChangeOp::Delete, b"\xff\0");
        assert_eq!((&bytes["op"], &bytes["key_base64"]), (&"delete".into(), &"/wA=".into()), "{bytes}");
        assert!(bytes.get("key").is_none());
        let clear = of(ChangeOp::Clear, b"");
        assert!(clear["op"] == "clear" && clear.get("key").is_none() && clear.get("key_base64").is_none(), "{clear}");
        for other in [shown(Some(b"daily")), shown(None)] {
            assert!(other.get("op").is_none() && other["position"] == "3", "{other}");
        }
    }
}

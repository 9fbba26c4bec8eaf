//! The JSON bodies about records.

use data_encoding::BASE64;
use sandstorm_log::{ChangeKind, LoggedChange};
use sandstorm_store::{RecordRef, RestoredRecord};
use serde::Serialize;

/// `GET /v1/tenants/{tenant}/tables/{name}/records`.
#[derive(Clone, Debug, Serialize)]
pub struct RecordPageResponse {
    /// Records, in no order that means anything.
    pub records: Vec<RecordResponse>,
    /// The cursor of the next page, a decimal number; `null`: this was the last one.
    pub next: Option<String>,
    /// Records of the page that are left out since their blocks of the disk are damaged, in a table larger than memory.
    pub unreadable: u64,
}

/// A record: each of key and value as text, or in base64.
#[derive(Clone, Debug, Serialize)]
pub struct RecordResponse {
    /// The key, if it is short as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Any other key, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The value, if it is short as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Any other value, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// The version.
    pub version: u64,
    /// The flags.
    pub flags: u32,
    /// Milliseconds since the Unix epoch from which on it counts as absent; 0: never.
    pub expires_at_ms: u64,
}

impl RecordResponse {
    /// Bytes of a record's names and numbers in JSON, about.
    pub const FRAME_BYTES: usize = 100;

    /// The body about a record.
    pub fn of(record: RecordRef<'_>) -> RecordResponse {
        let (version, flags, expires_at_ms) = (record.version(), record.flags(), record.expires_at_ms());
        Self::of_read(&RestoredRecord { version, key: record.key(), value: record.value(), flags, expires_at_ms })
    }

    /// The body about a record that was read from the disk.
    pub fn of_read(record: &RestoredRecord<'_>) -> RecordResponse {
        let ((key, key_base64), (value, value_base64)) = (in_json(record.key), in_json(record.value));
        let RestoredRecord { version, flags, expires_at_ms, .. } = *record;
        RecordResponse { key, key_base64, value, value_base64, version, flags, expires_at_ms }
    }
}

/// Bytes as text or in base64, whichever is no longer in JSON: a control character takes six bytes there.
pub(super) fn in_json(bytes: &[u8]) -> (Option<String>, Option<String>) {
    let text = std::str::from_utf8(bytes).ok().filter(|text| {
        let escapes: usize =
            text.bytes().map(|byte| if byte < 0x20 { 5 } else { usize::from(b"\"\\".contains(&byte)) }).sum();
        escapes <= bytes.len() / 3
    });
    match text {
        Some(text) => (Some(text.to_owned()), None),
        None => (None, Some(BASE64.encode(bytes))),
    }
}

/// `GET /v1/tenants/{tenant}/tables/{name}/changes`.
#[derive(Clone, Debug, Serialize)]
pub struct ChangePageResponse {
    /// Changes, in their order.
    pub changes: Vec<ChangeResponse>,
    /// The position behind all that was looked at, a decimal number: `after` of the next request.
    pub next: String,
    /// Whether there was no more when the log was read.
    pub at_end: bool,
}

/// A change: a put with key and value, each as text or in base64; a delete or an expiry with its key; or `clear`, of
/// all records.
#[derive(Clone, Debug, Serialize)]
pub struct ChangeResponse {
    /// The position behind it, a decimal number: those of one transaction have the same.
    pub position: String,
    /// `put`, `delete`, `expire` or `clear`.
    pub op: &'static str,
    /// The record; of a delete and an expiry its key alone, with a version of their own; of `clear` neither key nor
    /// value: no record of this version or a lower one is left.
    #[serde(flatten)]
    pub record: RecordResponse,
}

impl ChangeResponse {
    /// Bytes of a change's names and numbers in JSON, about.
    pub const FRAME_BYTES: usize = 140;

    /// The body about a change, behind which the log has this position.
    pub fn of(position: u64, change: &LoggedChange<'_>) -> ChangeResponse {
        let (key, key_base64) = if change.kind == ChangeKind::Clear { (None, None) } else { in_json(change.key) };
        let (value, value_base64) = if change.kind == ChangeKind::Put { in_json(change.value) } else { (None, None) };
        ChangeResponse {
            position: position.to_string(),
            op: change.kind.name(),
            record: RecordResponse {
                key,
                key_base64,
                value,
                value_base64,
                version: change.version,
                flags: change.flags,
                expires_at_ms: change.expires_at_ms,
            },
        }
    }
}

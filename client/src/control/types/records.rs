//! Records as JSON: pages of a table, and the lines of an export.

use std::borrow::Cow;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

/// `GET /v1/tenants/{tenant}/tables/{name}/records`: a page of a table's records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordPage {
    /// Records, in no order that means anything.
    pub records: Vec<ExportedRecord>,
    /// The cursor of the next page; `None`: this was the last one.
    pub next: Option<String>,
    /// Records of the page that are left out since their blocks of the disk are damaged, in a table larger than memory.
    pub unreadable: u64,
}

/// A record. Key and value are each text or base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExportedRecord {
    /// The key as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key in base64, where there is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The value as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The value in base64, where there is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// The version that it had.
    pub version: u64,
    /// The flags that its writer stored beside it.
    pub flags: u32,
    /// Milliseconds since the Unix epoch from which on it counts as absent; 0: never.
    pub expires_at_ms: u64,
}

/// `GET /v1/tenants/{tenant}/tables/{name}/changes`: changes of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangePage {
    /// Changes, in their order.
    pub changes: Vec<TableChange>,
    /// The position behind all that was looked at: where to go on.
    pub next: String,
    /// Whether there was no more when the log was read.
    pub at_end: bool,
}

/// A change of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableChange {
    /// The position behind it; those of one transaction have the same.
    pub position: String,
    /// `put`, `delete`, `expire`, or `clear` of all records up to a version.
    pub op: String,
    /// The record; of a delete and an expiry its key alone, of `clear` neither key nor value.
    #[serde(flatten)]
    pub record: ExportedRecord,
}

impl ExportedRecord {
    /// Returns the bytes of the key.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn key_bytes(&self) -> Result<Cow<'_, [u8]>, String> {
        bytes("key", self.key.as_deref(), self.key_base64.as_deref())
    }

    /// Returns the bytes of the value.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn value_bytes(&self) -> Result<Cow<'_, [u8]>, String> {
        bytes("value", self.value.as_deref(), self.value_base64.as_deref())
    }
}

fn bytes<'r>(what: &str, text: Option<&'r str>, base64: Option<&'r str>) -> Result<Cow<'r, [u8]>, String> {
    match (text, base64) {
        (Some(text), None) => Ok(Cow::Borrowed(text.as_bytes())),
        (None, Some(base64)) => {
            let decoded = BASE64.decode(base64.as_bytes());
            decoded.map(Cow::Owned).map_err(|error| format!("{what}_base64 is no base64: {error}"))
        }
        (None, None) => Err(format!("it has neither {what} nor {what}_base64")),
        (Some(_), Some(_)) => Err(format!("it has both {what} and {what}_base64")),
    }
}

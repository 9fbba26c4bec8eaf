//! Files that are read again from the disk.

use serde::Serialize;

/// `GET /v1/scrub`, and the answer to `POST /v1/scrub`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScrubResponse {
    /// Whether a pass is under way, or begins.
    pub under_way: bool,
    /// Bytes that it has read, or the last one has.
    pub pass_bytes: u64,
    /// The last pass that was whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<ScrubPassResponse>,
    /// What of the server's log is damaged, until a checkpoint has taken its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_damage: Option<String>,
}

/// A whole pass over the log and the copies that are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ScrubPassResponse {
    /// Seconds since it has ended.
    pub ended_s_ago: u64,
    /// Bytes that were sound.
    pub bytes: u64,
    /// Files of the log, and copies, that were damaged.
    pub damage: u64,
}

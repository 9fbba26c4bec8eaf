//! Files that are read again from the disk.

use serde::{Deserialize, Serialize};

use crate::control::{Control, ControlError, EmptyRequest};

/// How far the reading of the log, and of the copies of other servers' logs, is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Whether a pass is under way, or begins.
    pub under_way: bool,
    /// Bytes that it has read, or the last one has.
    pub pass_bytes: u64,
    /// The last pass that was whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScrubPassReport>,
    /// What of the server's log is damaged, until a checkpoint has taken its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_damage: Option<String>,
}

/// A whole pass over the log and the copies that the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPassReport {
    /// Seconds since it has ended.
    pub ended_s_ago: u64,
    /// Bytes that were sound.
    pub bytes: u64,
    /// Files of the log, and copies, that were damaged.
    pub damage: u64,
}

impl Control {
    /// How far the server is with reading its log, and the copies of other servers' logs that it has, again from the
    /// disk.
    pub fn scrub(&self) -> Result<ScrubReport, ControlError> {
        self.get("/v1/scrub")
    }

    /// Has a pass begin at once.
    pub fn begin_scrub(&self) -> Result<ScrubReport, ControlError> {
        self.post("/v1/scrub", &EmptyRequest {})
    }
}

//! A tenant's log.

use serde::{Deserialize, Serialize};

/// Lines of a tenant's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogBatch {
    /// The lines, the oldest first.
    pub lines: Vec<LogLineRecord>,
    /// What to read on after.
    pub next: u64,
    /// Whether lines after the given one had been displaced already.
    pub missed: bool,
    /// Lines of the tenant that were not kept, because too many came.
    pub left_out: u64,
}

/// A line of a tenant's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogLineRecord {
    /// Its number: they grow from line to line of the tenant.
    pub id: u64,
    /// When it was written, in microseconds since 1970.
    pub at_us: u64,
    /// `error`, `warn`, `info` or `debug`.
    pub level: String,
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// The number of the call, among those of the tenant that have written lines.
    pub call: u64,
    /// What it says, as the tenant's code wrote it: control characters may be in it.
    pub text: String,
}

/// Which lines to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Those after this one; `None`: the latest.
    pub after: Option<u64>,
    /// Those of this extension.
    pub extension: Option<String>,
    /// Those that matter as much as this at least: `error`, `warn`, `info` or `debug`; `None`: `info`. Debug lines are
    /// kept from the first request for them on.
    pub level: Option<String>,
    /// Those of this call.
    pub call: Option<u64>,
    /// How many at most; `None`: the server's choice.
    pub limit: Option<usize>,
    /// Seconds to wait for a line if there is none.
    pub wait_s: u64,
}

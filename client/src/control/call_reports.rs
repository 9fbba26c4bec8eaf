//! Calls that were ended, and calls under way, as the server tells of them.

use serde::{Deserialize, Serialize};

use super::{Control, ControlError, path_segment};

/// One invocation that was ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KillReport {
    /// Time of the kill, in milliseconds since 1970.
    pub at_ms: u64,
    /// The extension's tenant.
    pub tenant: String,
    /// The extension's name.
    pub extension: String,
    /// The extension's version.
    pub version: u64,
    /// The cause, such as `slice_budget` or `panic`.
    pub cause: String,
    /// More about it, such as the panic's message.
    pub text: String,
    /// CPU time that it had spent, in microseconds.
    pub cpu_us: u64,
    /// Time since it began, in microseconds.
    pub wall_us: u64,
    /// The worker that it ran on.
    pub worker: u32,
    /// Where its code was, the innermost function first: its caller follows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<CodePlaceReport>,
    /// The first bytes of its arguments, as ASCII with escapes, if its manifest asks for that.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub arguments: String,
}

/// A place in an extension's source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CodePlaceReport {
    /// The function.
    pub function: String,
    /// The file, relative to the extension's folder; empty: not known.
    pub file: String,
    /// The line; 0: not known.
    pub line: u32,
}

/// `GET /v1/tenants/{tenant}/calls`: calls under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallsReport {
    /// The calls, the oldest first.
    pub calls: Vec<CallReport>,
    /// Further ones, which are not listed.
    pub more: usize,
    /// Workers that have not answered in time: their calls are not listed.
    pub silent_workers: Vec<usize>,
}

/// A call under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallReport {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// The worker that the call is at.
    pub worker: u32,
    /// What it does, or waits for: `new`, `ready`, `switched_out`, `disk`, `backing`.
    pub state: String,
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
    pub levels: Vec<CallLevelReport>,
}

/// One of the extensions that a call is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallLevelReport {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// As that of the call, or `call`: it waits for the one that it has called.
    pub state: String,
    /// Where its code is, the innermost function first; empty: not known, or not asked for.
    pub places: Vec<CodePlaceReport>,
}

impl Control {
    /// Calls of a tenant's extensions that are under way, or those of one; `with_places`: with the lines at which they
    /// are.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn calls(&self, tenant: &str, extension: Option<&str>, with_places: bool) -> Result<CallsReport, ControlError> {
        let extension = extension.map_or_else(String::new, |name| format!("&extension={}", path_segment(name)));
        self.get(&format!("/v1/tenants/{}/calls?where={with_places}{extension}", path_segment(tenant)))
    }
}

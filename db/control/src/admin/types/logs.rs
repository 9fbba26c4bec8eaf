//! The JSON bodies about tenants' logs.

use serde::Serialize;

/// `GET /v1/tenants/{tenant}/logs`.
#[derive(Clone, Debug, Serialize)]
pub struct LogResponse {
    /// The lines, the oldest first.
    pub lines: Vec<LogLineResponse>,
    /// What to read on after.
    pub next: u64,
    /// Whether lines after the given one had been displaced already.
    pub missed: bool,
    /// Lines of the tenant that were not kept, because too many came.
    pub left_out: u64,
}

/// A line of a tenant's log.
#[derive(Clone, Debug, Serialize)]
pub struct LogLineResponse {
    /// Its number: they grow from line to line of the tenant.
    pub id: u64,
    /// When it was written, in microseconds since 1970.
    pub at_us: u64,
    /// `error`, `warn`, `info` or `debug`.
    pub level: &'static str,
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// The number of the call, among those of the tenant that have written lines.
    pub call: u64,
    /// What it says. Control characters in it are the tenant's code's own: make them harmless where it is shown.
    pub text: String,
}

//! A kill, as the server tells it.

use serde::{Deserialize, Serialize};

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

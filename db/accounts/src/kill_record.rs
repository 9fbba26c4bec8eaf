//! The record of an invocation that the server ended.

use sandstorm_net::rpc::KillCause;

/// A place in an extension's source where a call was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CodePlace {
    /// The function.
    pub function: String,
    /// The file, relative to the extension's folder, or behind a library's name; empty: not known.
    pub file: String,
    /// The line, from 1; 0: not known.
    pub line: u32,
}

impl std::fmt::Display for CodePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.function)?;
        match (self.file.as_str(), self.line) {
            ("", _) => Ok(()),
            (file, 0) => write!(f, " {file}"),
            (file, line) => write!(f, " {file}:{line}"),
        }
    }
}

/// An invocation that the server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillRecord {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// The cause.
    pub cause: KillCause,
    /// CPU time it had used, in microseconds.
    pub cpu_us: u64,
    /// Time since it began, in microseconds.
    pub wall_us: u64,
    /// Its time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The worker that ran it.
    pub worker: u32,
    /// The text for its caller.
    pub text: String,
    /// Where its code was, the innermost function first; empty: not known.
    pub places: Vec<CodePlace>,
    /// The first bytes of its arguments, if its author wants them kept.
    pub arguments: Vec<u8>,
}

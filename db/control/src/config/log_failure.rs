//! What a server does when its log fails.

use serde::Deserialize;

/// What a server does once a write of its log has failed, which closes the log for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFailurePolicy {
    /// It refuses durable writes, and goes on with the rest.
    #[default]
    ServeReads,
    /// It stops in order, with an error: something else is to start it anew, or another server is to take over.
    Exit,
}

impl LogFailurePolicy {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            LogFailurePolicy::ServeReads => "serve-reads",
            LogFailurePolicy::Exit => "exit",
        }
    }
}

/// The section of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogSection {
    pub(super) on_failure: LogFailurePolicy,
}

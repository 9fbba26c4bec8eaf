//! The JSON bodies about extensions that the server builds again from their kept sources.

use serde::Serialize;

use sandstorm_net::CodeTier;

/// What became of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RebuildResult {
    /// It was there already, as it has to be.
    Unchanged,
    /// It was built, or loaded, and replaced what was there.
    Rebuilt,
    /// Its calls are refused until a version that passes is pushed.
    Suspended,
    /// It was not loaded before, and is not now.
    NotLoaded,
    /// It was unloaded or replaced meanwhile, or its tenant deleted.
    Gone,
}

/// An extension that a rebuild was about.
#[derive(Clone, Debug, Serialize)]
pub struct RebuiltExtensionResponse {
    /// The tenant.
    pub tenant: String,
    /// The extension.
    pub extension: String,
    /// Its version; a rebuild does not change it.
    pub version: u64,
    /// What became of it.
    pub result: RebuildResult,
    /// The tier in which it runs, or would have to; `None` if the tenant may have no code.
    pub tier: Option<CodeTier>,
    /// The reason, for people; empty if there is nothing to say.
    pub text: String,
}

/// `GET /v1/rebuilds/{id}`.
#[derive(Clone, Debug, Serialize)]
pub struct RebuildResponse {
    /// Its number.
    pub id: u64,
    /// Its cause, for people.
    pub reason: String,
    /// Its beginning, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// Whether it is over.
    pub done: bool,
    /// Extensions whose turn has not come.
    pub waiting: u64,
    /// What became of the others, in the order of their ends.
    pub results: Vec<RebuiltExtensionResponse>,
    /// Results that are not listed, because there are too many.
    pub unlisted: u64,
}

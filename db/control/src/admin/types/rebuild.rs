//! The JSON bodies about extensions that the server builds again from their kept sources.

use serde::{Deserialize, Serialize};

use sandstorm_net::CodeTier;

/// What became of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RebuildResult {
    /// It was there already, as it has to be.
    Unchanged,
    /// It was built, or loaded, and replaced what was there.
    Rebuilt,
    /// It does not pass as native code any more, and runs in the sandboxed tier.
    Confined,
    /// Its calls are refused until a version that passes is pushed.
    Suspended,
    /// It was not loaded before, and is not now.
    NotLoaded,
    /// It was unloaded or replaced meanwhile, or its tenant deleted.
    Gone,
}

/// What becomes of native extensions that do not pass any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecheckRemedy {
    /// They are built for the sandboxed tier, and suspended if that fails.
    #[default]
    Sandbox,
    /// They are suspended.
    Suspend,
}

/// `POST /v1/recheck`; an empty body stands for the defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecheckRequest {
    /// A pattern that is denied to native code from now on.
    pub rule: Option<String>,
    /// What becomes of what does not pass.
    pub then: RecheckRemedy,
}

/// A pattern that is denied to native code.
#[derive(Clone, Debug, Serialize)]
pub struct DeniedPatternResponse {
    /// The pattern.
    pub pattern: String,
    /// Since when, in milliseconds since 1970; omitted if the configuration denies it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
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
    /// Extensions that are still to be rebuilt.
    pub waiting: u64,
    /// What became of the others, in the order of their ends.
    pub results: Vec<RebuiltExtensionResponse>,
    /// Results that are not listed, because there are too many.
    pub unlisted: u64,
}

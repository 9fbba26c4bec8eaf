//! The JSON bodies of the catalogue of shared extensions.

use serde::{Deserialize, Serialize};

/// `PUT /v1/tenants/{tenant}/extensions/{name}/share`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShareRequest {
    /// The tenants that may enable it; if not given, all (the operator's alone to say).
    pub with: Option<Vec<String>>,
}

/// `PUT /v1/tenants/{tenant}/extensions/{name}/enabled`: `name` is its name there.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnableExtensionRequest {
    /// The owner.
    pub owner: String,
    /// Its name at the owner.
    pub extension: String,
    /// The version; the one that the owner has called now, if not given.
    #[serde(default)]
    pub version: Option<u64>,
    /// Whether it goes along when the owner has another version called.
    #[serde(default)]
    pub follow: bool,
}

/// `POST /v1/catalogue/enable`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnableForManyRequest {
    /// What is enabled.
    pub of: EnableExtensionRequest,
    /// Its name at the tenants.
    pub name: String,
    /// The tenants; all but the owner, if not given.
    #[serde(default)]
    pub tenants: Option<Vec<String>>,
}

/// The answer to enabling.
#[derive(Clone, Debug, Serialize)]
pub struct EnabledResponse {
    /// The version.
    pub version: u64,
    /// For how many tenants.
    pub tenants: u64,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

/// `GET /v1/catalogue`: an extension that is shared.
#[derive(Clone, Debug, Serialize)]
pub struct SharedExtensionResponse {
    /// The owner.
    pub owner: String,
    /// Its name.
    pub name: String,
    /// The version that the owner has called now.
    pub version: u64,
    /// The tenants that may enable it; `null`: all. For the owner and the operator.
    pub with: Option<Vec<String>>,
    /// How many have it enabled, for the owner and the operator; for others 1 or 0.
    pub enabled: u64,
}

/// Where an enabled extension comes from.
#[derive(Clone, Debug, Serialize)]
pub struct EnabledFromResponse {
    /// The owner.
    pub owner: String,
    /// Its name at the owner.
    pub extension: String,
    /// Whether it goes along when the owner has another version called.
    pub follow: bool,
}

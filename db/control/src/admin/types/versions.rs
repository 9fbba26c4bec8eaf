//! The JSON bodies about versions of extensions.

use serde::{Deserialize, Serialize};

use super::ExtensionStatsResponse;
use sandstorm_catalog::Deployment;
use sandstorm_net::{CodeOrigin, CodeTier};
use sandstorm_schema::ExtensionSchema;

/// `POST /v1/tenants/{tenant}/extensions/{name}/rollback`; an empty body stands for the version before.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RollBackRequest {
    /// The kept version that is called from now on; the newest below the one that is called now, if not given.
    pub version: Option<u64>,
}

/// `PUT /v1/tenants/{tenant}/extensions/{name}/deployment`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeployRequest {
    /// The kept version.
    pub version: u64,
    /// Its share of the keys, of a hundred; 0: none, which ends the deployment; 100: it is the one that is called.
    pub percent: u32,
}

/// A version that is tried on a share of the calls.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DeploymentResponse {
    /// The version.
    pub version: u64,
    /// Its share of the keys, of a hundred.
    pub percent: u32,
    /// Its beginning, or the last change of its share, in milliseconds since 1970.
    pub since_ms: u64,
}

impl From<Deployment> for DeploymentResponse {
    fn from(deployment: Deployment) -> DeploymentResponse {
        let Deployment { version, percent, since_ms } = deployment;
        DeploymentResponse { version, percent, since_ms }
    }
}

/// A version of an extension.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VersionResponse {
    /// Its number.
    pub version: u64,
    /// The tier that it was built for.
    pub tier: CodeTier,
    /// What it was built from.
    pub origin: CodeOrigin,
    /// The version that its manifest names.
    pub manifest_version: String,
    /// SHA-256 of its source, hexadecimal.
    pub source_digest: String,
    /// Bytes of its library.
    pub library_bytes: u64,
    /// When it was loaded, in milliseconds since 1970.
    pub loaded_at_ms: u64,
    /// `current`; of the kept ones `kept` (it can be called), `refused` (by a rule), `other_tier` or `not_loaded` (it
    /// has to be built again); of others `draining` (invocations of it run) or `gone`.
    pub state: &'static str,
    /// The reason that it is refused, with the rule's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its own counters, since the server started; of a version that can be called.
    pub stats: ExtensionStatsResponse,
    /// Half of its calls took at most so many nanoseconds, from arrival to answer.
    pub p50_ns: u64,
    /// 99 of a hundred of them.
    pub p99_ns: u64,
    /// The types of its functions, of a kept version that can be called and is not the one which is called by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<ExtensionSchema>,
}

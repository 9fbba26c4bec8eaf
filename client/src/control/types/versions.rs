//! Versions of extensions, as the server lists them.

use serde::{Deserialize, Serialize};

use super::ExtensionStatus;
use super::overview::ExtensionTotals;
use sandstorm_net::{CodeOrigin, CodeTier};
use sandstorm_schema::ExtensionSchema;

/// One version of an extension.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtensionVersion {
    /// Its number.
    pub version: u64,
    /// The tier that it was built for; `None`: the server is older than tiers, and runs it natively.
    pub tier: Option<CodeTier>,
    /// What it was built from.
    pub origin: CodeOrigin,
    /// The version that its manifest names.
    pub manifest_version: String,
    /// Digest of its source, hexadecimal.
    pub source_digest: String,
    /// Bytes of its library.
    pub library_bytes: u64,
    /// Time at which it was loaded, in milliseconds since 1970.
    pub loaded_at_ms: u64,
    /// `current`; of the kept ones `kept` (it can be called), `refused` (by a rule), `other_tier` or `not_loaded` (it
    /// has to be built again); of others `draining` (invocations of it run) or `gone`.
    pub state: String,
    /// The reason that it is refused, with the rule's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its own counters, since the server started; of a version that can be called.
    pub stats: ExtensionTotals,
    /// Half of its calls took at most so many nanoseconds, from arrival to answer.
    pub p50_ns: u64,
    /// 99 of a hundred of them.
    pub p99_ns: u64,
    /// The types of its functions, of a kept version that can be called and is not the one which is called by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<ExtensionSchema>,
}

impl ExtensionStatus {
    /// The types of the functions of that version (0: the one that is called by name); `None`: it takes and gives
    /// bytes.
    ///
    /// # Errors
    /// The versions that can be called, if this one is none of them.
    pub fn schema_of(&self, version: u64) -> Result<Option<&ExtensionSchema>, Vec<u64>> {
        if version == 0 || version == self.version {
            return Ok(self.schema.as_ref());
        }
        let kept = self.versions.iter().filter(|one| one.state == "kept");
        match kept.clone().find(|one| one.version == version) {
            Some(one) => Ok(one.schema.as_ref()),
            None => Err(std::iter::once(self.version).chain(kept.map(|one| one.version)).collect()),
        }
    }
}

/// A version that is tried on a share of the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtensionDeployment {
    /// The version.
    pub version: u64,
    /// Its share of the keys, of a hundred.
    pub percent: u32,
    /// Its beginning, or the last change of its share, in milliseconds since 1970.
    pub since_ms: u64,
}

/// `PUT /v1/tenants/{tenant}/extensions/{name}/deployment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deploy {
    /// The kept version.
    pub version: u64,
    /// Its share of the keys, of a hundred; 0: none; 100: it is the one that is called.
    pub percent: u32,
}

/// Where an enabled extension comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnabledFrom {
    /// The owner.
    pub owner: String,
    /// Its name at the owner.
    pub extension: String,
    /// Whether it goes along when the owner has another version called.
    pub follow: bool,
}

/// `POST /v1/tenants/{tenant}/extensions/{name}/rollback`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RollBack {
    /// The kept version that is called from now on; left out: the newest below the one that is called now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

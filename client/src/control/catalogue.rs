//! The catalogue of shared extensions.

use serde::{Deserialize, Serialize};

use super::{Control, ControlError, path_segment};

/// `PUT /v1/tenants/{tenant}/extensions/{name}/share`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShareSpec {
    /// The tenants that may enable it; left out: all, which only the operator may say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with: Option<Vec<String>>,
}

/// What is to be enabled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnableSpec {
    /// The owner.
    pub owner: String,
    /// Its name at the owner.
    pub extension: String,
    /// The version; left out: the one that the owner has called now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Whether it goes along when the owner has another version called.
    pub follow: bool,
}

/// `POST /v1/catalogue/enable`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnableForMany {
    /// What is enabled.
    pub of: EnableSpec,
    /// Its name at the tenants.
    pub name: String,
    /// The tenants; left out: all but the owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
}

/// The answer to enabling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnabledOutcome {
    /// The version.
    pub version: u64,
    /// For how many tenants.
    pub tenants: u64,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

/// An extension that is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedExtensionStatus {
    /// The owner.
    pub owner: String,
    /// Its name.
    pub name: String,
    /// The version that the owner has called now.
    pub version: u64,
    /// The tenants that may enable it; `None`: all. For the owner and the operator.
    pub with: Option<Vec<String>>,
    /// How many have it enabled, for the owner and the operator; for others 1 or 0.
    pub enabled: u64,
}

impl Control {
    /// The extensions that are shared with the caller, or by it; the operator sees all.
    pub fn catalogue(&self) -> Result<Vec<SharedExtensionStatus>, ControlError> {
        self.get("/v1/catalogue")
    }

    /// Lets other tenants enable an extension.
    pub fn share_extension(&self, tenant: &str, name: &str, with: &ShareSpec) -> Result<(), ControlError> {
        let url = self.url(&format!("{}/share", extension_path(tenant, name)));
        self.send(self.agent.put(url), with).map(|_: serde::de::IgnoredAny| ())
    }

    /// Lets others enable an extension no more; with `disable` it is taken away from the tenants that have it.
    pub fn unshare_extension(&self, tenant: &str, name: &str, disable: bool) -> Result<(), ControlError> {
        self.delete(&format!("{}/share?disable={disable}", extension_path(tenant, name)))
    }

    /// Enables another tenant's extension, under that name.
    pub fn enable_extension(&self, tenant: &str, name: &str, of: &EnableSpec) -> Result<EnabledOutcome, ControlError> {
        self.send(self.agent.put(self.url(&format!("{}/enabled", extension_path(tenant, name)))), of)
    }

    /// Enables an extension for many tenants at once (the operator's token only).
    pub fn enable_for_many(&self, enable: &EnableForMany) -> Result<EnabledOutcome, ControlError> {
        self.post("/v1/catalogue/enable", enable)
    }

    /// Takes an enabled extension away.
    pub fn disable_extension(&self, tenant: &str, name: &str) -> Result<(), ControlError> {
        self.delete(&format!("{}/enabled", extension_path(tenant, name)))
    }
}

fn extension_path(tenant: &str, name: &str) -> String {
    format!("/v1/tenants/{}/extensions/{}", path_segment(tenant), path_segment(name))
}

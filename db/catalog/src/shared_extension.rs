//! Sharing extensions: one tenant's extension is enabled for others, under a name of their own.
//!
//! What is shared is sandboxed code, so no tenant has to trust its author, and all tenants that enable it run one
//! mapping of it. Each has its own counters, budget, throttle and suspension, and its code reaches that tenant's
//! records alone. An enabled extension stays with the version that it began with, unless the tenant says that it
//! follows the owner's: new code reaches a tenant's records only by decision of the tenant or the operator. A version
//! that is enabled somewhere keeps its artifact, even if it is no longer among the owner's last five.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The tenants that may enable an extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShareAudience {
    /// Every tenant: the operator shared it.
    Everyone,
    /// The tenants of these names.
    Tenants(BTreeSet<String>),
}

impl ShareAudience {
    /// Whether a tenant of that name may enable it.
    pub fn admits(&self, tenant: &str) -> bool {
        match self {
            ShareAudience::Everyone => true,
            ShareAudience::Tenants(names) => names.contains(tenant),
        }
    }
}

/// Where an enabled extension comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnabledExtension {
    /// The owner's id.
    pub owner_id: u32,
    /// The owner's name.
    pub owner: String,
    /// The extension's name at its owner.
    pub extension: String,
    /// The version.
    pub version: u64,
    /// Whether it goes along when the owner has another version called.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
}

impl EnabledExtension {
    pub(super) fn is_of(&self, owner: u32, extension: &str) -> bool {
        self.owner_id == owner && self.extension == extension
    }
}

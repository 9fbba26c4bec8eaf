//! The roles of tokens.

use serde::{Deserialize, Serialize};

/// What a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessRole {
    /// May do everything.
    Operator,
    /// Sees counters, events, kills and names of the whole server. Sees no keys and no values, and changes nothing.
    Viewer,
    /// May see and change what one tenant has, and use its records.
    Tenant,
    /// Sees of one tenant what a viewer sees of all.
    TenantViewer,
}

impl AccessRole {
    /// All roles.
    pub const ALL: [AccessRole; 4] =
        [AccessRole::Operator, AccessRole::Viewer, AccessRole::Tenant, AccessRole::TenantViewer];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            AccessRole::Operator => "operator",
            AccessRole::Viewer => "viewer",
            AccessRole::Tenant => "tenant",
            AccessRole::TenantViewer => "tenant-viewer",
        }
    }

    /// The role that sees as much, and changes nothing.
    pub(super) fn as_viewer(self) -> AccessRole {
        match self {
            AccessRole::Operator | AccessRole::Viewer => AccessRole::Viewer,
            AccessRole::Tenant | AccessRole::TenantViewer => AccessRole::TenantViewer,
        }
    }
}

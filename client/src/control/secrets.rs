//! Secrets, as the server lists them.

use serde::{Deserialize, Serialize};

/// A secret of a tenant, without its value, which is never shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretStatus {
    /// Its name.
    pub name: String,
    /// The time at which it was set, in milliseconds since 1970.
    pub set_at_ms: u64,
    /// Whether the server's key opens it. If not, it counts as absent until it is set again.
    pub opens: bool,
}

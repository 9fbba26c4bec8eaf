//! Secrets as the control API shows them.

use serde::Serialize;

/// A secret, without its value, which is never shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SecretResponse {
    /// Its name.
    pub name: String,
    /// The time at which it was set, in milliseconds since 1970.
    pub set_at_ms: u64,
    /// Whether the server's key opens it. If not, it counts as absent until it is set again.
    pub opens: bool,
}

//! Secrets: set, listed without their values, removed.

use super::{Control, ControlError, path_segment};
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

impl Control {
    /// Lists a tenant's secrets, by name; the server never shows a value.
    pub fn secrets(&self, tenant: &str) -> Result<Vec<SecretStatus>, ControlError> {
        self.get(&format!("/v1/tenants/{}/secrets", path_segment(tenant)))
    }

    /// Sets a secret, which the tenant's code reads by its name.
    pub fn set_secret(&self, tenant: &str, name: &str, value: &[u8]) -> Result<(), ControlError> {
        let path = format!("/v1/tenants/{}/secrets/{}", path_segment(tenant), path_segment(name));
        let request = self.with_token(self.agent.put(self.url(&path))).content_type("application/octet-stream");
        self.finish(self.timeout, request.send(value)).map(|_: serde::de::IgnoredAny| ())
    }

    /// Removes a secret.
    pub fn remove_secret(&self, tenant: &str, name: &str) -> Result<(), ControlError> {
        self.delete(&format!("/v1/tenants/{}/secrets/{}", path_segment(tenant), path_segment(name)))
    }
}

//! Changes of the version of an extension that is called.

use super::{Control, ControlError, Deploy, ExtensionStatus, RollBack, path_segment};

impl Control {
    /// The same connection, whose pushes are only staged: built and kept beside the version that is called.
    #[must_use]
    pub fn staging(&self) -> Control {
        Control { stages: true, ..self.clone() }
    }

    /// The query of a push.
    pub(super) fn push_query(&self) -> &'static str {
        if self.stages { "?stage=true" } else { "" }
    }

    /// Has a kept version of an extension called again: that of the given number, or the newest below the one that is
    /// called now. Calls under way end in the version that they began with.
    ///
    /// # Errors
    /// [`ControlError::Server`]: no such version is kept, or a rule refuses it since.
    pub fn roll_back(&self, tenant: &str, name: &str, version: Option<u64>) -> Result<ExtensionStatus, ControlError> {
        let path = format!("/v1/tenants/{}/extensions/{}/rollback", path_segment(tenant), path_segment(name));
        self.post(&path, &RollBack { version })
    }

    /// Gives a kept version of an extension a share of the calls, by their keys. The server compares it with the one
    /// that the others call, and ends the share if it does worse.
    ///
    /// # Errors
    /// [`ControlError::Server`]: no such version is kept, or it cannot be called.
    pub fn deploy(&self, tenant: &str, name: &str, deploy: &Deploy) -> Result<ExtensionStatus, ControlError> {
        let path = format!("/v1/tenants/{}/extensions/{}/deployment", path_segment(tenant), path_segment(name));
        self.send(self.agent.put(self.url(&path)), deploy)
    }
}

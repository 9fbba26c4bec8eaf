//! Requests about a tenant's log.

use super::{Control, ControlError, LogBatch, LogQuery, path_segment};

impl Control {
    /// Reads lines that a tenant's extensions have written, with the tenant's token or its viewer's.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn logs(&self, tenant: &str, query: &LogQuery) -> Result<LogBatch, ControlError> {
        let LogQuery { after, extension, level, call, limit, wait_s } = query;
        let mut path = format!("/v1/tenants/{}/logs?wait_s={wait_s}", path_segment(tenant));
        for (name, value) in [
            ("after", after.map(|after| after.to_string())),
            ("extension", extension.as_deref().map(path_segment)),
            ("level", level.as_deref().map(path_segment)),
            ("call", call.map(|call| call.to_string())),
            ("limit", limit.map(|limit| limit.to_string())),
        ] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={value}"));
            }
        }
        self.get(&path)
    }
}

//! An invocation that the server ended, and where its code was.

use std::borrow::Cow;

use sandstorm_accounts::{CodePlace, KillRecord, PolicyEvent};
use serde::{Deserialize, Serialize};

use crate::admin::role::AccessRole;

/// An invocation that was ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillResponse {
    /// Its time, in milliseconds since 1970.
    pub at_ms: u64,
    /// The tenant.
    pub tenant: String,
    /// The extension.
    pub extension: String,
    /// The version of the extension.
    pub version: u64,
    /// The cause.
    pub cause: Cow<'static, str>,
    /// The text for its caller.
    pub text: String,
    /// CPU time that it had spent, in microseconds.
    pub cpu_us: u64,
    /// Time since it began, in microseconds.
    pub wall_us: u64,
    /// The worker that ran it.
    pub worker: u32,
    /// Where its code was, the innermost function first: its caller follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<CodePlaceResponse>,
    /// The first bytes of its arguments, as ASCII with escapes, if its manifest asks for that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub arguments: String,
}

impl KillResponse {
    /// The response for a kill of that tenant.
    pub fn of(tenant: &str, kill: KillRecord) -> KillResponse {
        KillResponse {
            at_ms: kill.at_ms,
            tenant: tenant.to_owned(),
            extension: kill.extension,
            version: kill.version,
            cause: Cow::Borrowed(sandstorm_metrics::cause_name(kill.cause)),
            text: kill.text,
            cpu_us: kill.cpu_us,
            wall_us: kill.wall_us,
            worker: kill.worker,
            places: kill.places.into_iter().map(CodePlaceResponse::from).collect(),
            arguments: kill.arguments.escape_ascii().to_string(),
        }
    }
}

impl KillResponse {
    /// Leaves out what this role does not see.
    pub(in crate::admin) fn withhold_from(&mut self, role: AccessRole) {
        match role {
            AccessRole::Operator | AccessRole::Tenant => {}
            AccessRole::TenantViewer => self.withhold_arguments(),
            AccessRole::Viewer => {
                self.withhold_arguments();
                self.withhold_text();
            }
        }
    }

    /// Leaves out what the tenant's code was given: viewers do not see it.
    pub(in crate::admin) fn withhold_arguments(&mut self) {
        self.arguments.clear();
    }

    /// Leaves out what the tenant's code said: it may tell of records.
    pub(in crate::admin) fn withhold_text(&mut self) {
        if self.cause == "panic" {
            self.text = "(for the tenant and the operator)".to_owned();
        }
    }

    /// The entry among a tenant's kills for a notice.
    pub fn from_notice(tenant: &str, notice: PolicyEvent) -> KillResponse {
        KillResponse {
            at_ms: notice.at_ms,
            tenant: tenant.to_owned(),
            extension: notice.extension,
            version: notice.version,
            cause: Cow::Borrowed(notice.what),
            text: format!("notice: {}", notice.text),
            cpu_us: 0,
            wall_us: 0,
            worker: 0,
            places: Vec::new(),
            arguments: String::new(),
        }
    }
}

/// A function, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodePlaceResponse {
    /// The function.
    pub function: String,
    /// The file, relative to the extension's folder; empty: not known.
    pub file: String,
    /// The line; 0: not known.
    pub line: u32,
}

impl From<CodePlace> for CodePlaceResponse {
    fn from(place: CodePlace) -> CodePlaceResponse {
        let CodePlace { function, file, line } = place;
        CodePlaceResponse { function, file, line }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn viewers_see_no_arguments_and_those_of_the_server_no_texts() {
        let notice =
            PolicyEvent { extension: "orders".to_owned(), version: 1, what: "slowed", at_ms: 1, text: String::new() };
        let kill = KillResponse {
            cause: Cow::Borrowed("panic"),
            text: "it said so".to_owned(),
            arguments: "was given".to_owned(),
            ..KillResponse::from_notice("shop", notice)
        };
        let seen = |role: AccessRole| {
            let mut kill = kill.clone();
            kill.withhold_from(role);
            (kill.text == "it said so", kill.arguments == "was given")
        };
        let expected = [(true, true), (false, false), (true, true), (true, false)];
        assert_eq!(AccessRole::ALL.map(seen), expected, "{:?}", AccessRole::ALL);
    }
}

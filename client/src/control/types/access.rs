//! The JSON bodies about roles: tokens of viewers, new tokens, codes for the page; and what is found to be wrong.

use serde::{Deserialize, Serialize};

use super::HIDDEN;

/// A token of a viewer that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessTokenSpec {
    /// Its name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Seconds until it ends; until it is revoked if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// A token of a viewer, without the token itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccessTokenStatus {
    /// Its name.
    pub name: String,
    /// `viewer` or `tenant-viewer`.
    pub role: String,
    /// The tenant whose viewer has it.
    pub tenant: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it ends, in milliseconds since 1970; `None`: when it is revoked.
    pub expires_ms: Option<u64>,
}

/// A token that was made: the only time that it is shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CreatedAccessToken {
    /// What it is.
    pub access: AccessTokenStatus,
    /// The token.
    pub token: String,
}

/// The answer to a rotation: the only time that the new token is shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RotatedToken {
    /// The new secret.
    pub token: String,
    /// The time until which the old one works, in milliseconds since 1970; left out if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_until_ms: Option<u64>,
    /// Why the new token, and the end of the old one, are not known to hold at all servers of the cluster; left out if
    /// they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_everywhere: Option<String>,
}

impl std::fmt::Debug for RotatedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("TokenRotated");
        shown.field("token", &HIDDEN).field("old_until_ms", &self.old_until_ms);
        shown.field("not_everywhere", &self.not_everywhere).finish()
    }
}

/// A code that begins one session of the page.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageCode {
    /// The code.
    pub code: String,
    /// Seconds for which it can be used.
    pub lifetime_s: u64,
    /// The path of the page.
    pub path: String,
}

/// `GET /v1/findings`: something that is wrong with the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveFinding {
    /// A stable word for programs.
    pub code: String,
    /// `bad` or `mind`.
    pub severity: String,
    /// What is wrong, in a few words.
    pub title: String,
    /// With its number and its cause.
    pub text: String,
    /// What to do, with the setting.
    pub advice: String,
}

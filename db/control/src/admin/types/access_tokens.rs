//! The bodies about viewers' tokens.

use serde::{Deserialize, Serialize};

use crate::admin::access_tokens::AccessToken;

/// `POST /v1/tokens`, `POST /v1/tenants/{tenant}/tokens`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateAccessTokenRequest {
    /// Its name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Seconds until it ends; until it is revoked if not given.
    #[serde(default)]
    pub expires_s: Option<u64>,
}

/// A token of a viewer, without the token itself.
#[derive(Clone, Debug, Serialize)]
pub struct AccessTokenResponse {
    /// Its name.
    pub name: String,
    /// `viewer` or `tenant-viewer`.
    pub role: &'static str,
    /// The tenant whose viewer has it.
    pub tenant: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it ends, in milliseconds since 1970; `null`: when it is revoked.
    pub expires_ms: Option<u64>,
}

impl AccessTokenResponse {
    /// The response for a token.
    pub(in crate::admin) fn of(about: AccessToken) -> AccessTokenResponse {
        let role = about.role().name();
        let AccessToken { name, tenant, created_ms, expires_ms, .. } = about;
        AccessTokenResponse { name, role, tenant: tenant.map(|tenant| tenant.name), created_ms, expires_ms }
    }
}

/// The answer to making a token: the only time that it is shown.
#[derive(Clone, Serialize)]
pub struct CreateAccessTokenResponse {
    /// What it is.
    pub access: AccessTokenResponse,
    /// The token.
    pub token: String,
}

/// The answer to `POST /v1/page/codes`.
#[derive(Clone, Serialize)]
pub struct PageCodeResponse {
    /// A code that begins one session of the page.
    pub code: String,
    /// Seconds for which it can be used.
    pub lifetime_s: u64,
    /// The path of the page.
    pub path: &'static str,
}

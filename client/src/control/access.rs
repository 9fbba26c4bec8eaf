//! Roles, grants and the page: tokens of viewers, tables that others may use, codes that begin a session, what is found
//! to be wrong.

use super::{
    AccessTokenSpec, AccessTokenStatus, Control, ControlError, CreatedAccessToken, GivenGrant, GrantList, GrantSpec,
    LiveFinding, PageCode, path_segment,
};

impl Control {
    /// All tokens of viewers, or those of one tenant's viewers.
    pub fn access_tokens(&self, tenant: Option<&str>) -> Result<Vec<AccessTokenStatus>, ControlError> {
        self.get(&tokens_path(tenant))
    }

    /// Makes a token for a viewer of the whole server, or of one tenant. It is shown this once.
    pub fn create_access_token(
        &self,
        tenant: Option<&str>,
        token: &AccessTokenSpec,
    ) -> Result<CreatedAccessToken, ControlError> {
        self.post(&tokens_path(tenant), token)
    }

    /// Revokes a viewer's token.
    pub fn revoke_access_token(&self, tenant: Option<&str>, name: &str) -> Result<(), ControlError> {
        self.delete(&format!("{}/{}", tokens_path(tenant), path_segment(name)))
    }

    /// What is wrong with the server now, the worst first.
    pub fn findings(&self) -> Result<Vec<LiveFinding>, ControlError> {
        self.get("/v1/findings")
    }

    /// Makes a code that begins one session of the page in a browser.
    pub fn page_code(&self) -> Result<PageCode, ControlError> {
        self.post("/v1/page/codes", &super::EmptyRequest {})
    }

    /// Lists the grants that a tenant gave and received.
    pub fn grants(&self, tenant: &str) -> Result<GrantList, ControlError> {
        self.get(&format!("/v1/tenants/{}/grants", path_segment(tenant)))
    }

    /// Lets another tenant use one of the tenant's tables, or changes what an earlier grant of it allows.
    pub fn grant(&self, tenant: &str, grant: &GrantSpec) -> Result<GivenGrant, ControlError> {
        self.post(&format!("/v1/tenants/{}/grants", path_segment(tenant)), grant)
    }

    /// Ends a grant that the tenant gave, at once.
    pub fn revoke_grant(&self, tenant: &str, table: &str, to: &str) -> Result<(), ControlError> {
        self.delete(&format!(
            "/v1/tenants/{}/grants/given/{}/{}",
            path_segment(tenant),
            path_segment(table),
            path_segment(to)
        ))
    }

    /// Gives up a table that `owner` granted to the tenant.
    pub fn drop_grant(&self, tenant: &str, owner: &str, table: &str) -> Result<(), ControlError> {
        self.delete(&format!(
            "/v1/tenants/{}/grants/received/{}/{}",
            path_segment(tenant),
            path_segment(owner),
            path_segment(table)
        ))
    }
}

fn tokens_path(tenant: Option<&str>) -> String {
    match tenant {
        Some(tenant) => format!("/v1/tenants/{}/tokens", path_segment(tenant)),
        None => "/v1/tokens".to_owned(),
    }
}

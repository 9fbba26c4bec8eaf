//! Grants as the control API shows them.

use serde::{Deserialize, Serialize};

use sandstorm_catalog as tenants;
use sandstorm_catalog::{GrantAccess, TenantView};

/// `POST /v1/tenants/{tenant}/grants`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateGrantRequest {
    /// The table.
    pub table: String,
    /// Name of the grantee.
    pub to: String,
    /// `read` or `read_write`.
    #[serde(default)]
    pub access: GrantAccess,
}

/// `GET /v1/tenants/{tenant}/grants`.
#[derive(Clone, Debug, Serialize)]
pub struct GrantsResponse {
    /// The grants that the tenant gave.
    pub given: Vec<GivenGrantResponse>,
    /// The grants that the tenant received.
    pub received: Vec<ReceivedGrantResponse>,
}

/// A grant that a tenant gave.
#[derive(Clone, Debug, Serialize)]
pub struct GivenGrantResponse {
    /// The table.
    pub table: String,
    /// Name of the tenant that it was granted to.
    pub to: String,
    /// The access that it allows.
    pub access: GrantAccess,
    /// For the operator: whether the grantee has it. `None` for the owner, which is not told if the grantee exists.
    pub in_force: Option<bool>,
}

/// A grant that a tenant received.
#[derive(Clone, Debug, Serialize)]
pub struct ReceivedGrantResponse {
    /// Its name here: `owner/table`.
    pub name: String,
    /// Its id here.
    pub id: u64,
    /// The table's owner.
    pub owner: String,
    /// The access that it allows.
    pub access: GrantAccess,
}

impl GivenGrantResponse {
    /// The response for a grant that was given: complete only for the operator.
    pub fn of(given: &tenants::IssuedGrant, to_operator: bool) -> GivenGrantResponse {
        GivenGrantResponse {
            table: given.table.to_string(),
            to: given.to.to_string(),
            access: given.access,
            in_force: to_operator.then(|| given.in_force()),
        }
    }

    /// All grants that a tenant gave, of one table or of all, in their order.
    pub fn all(view: &TenantView, table: Option<&str>, to_operator: bool) -> Vec<GivenGrantResponse> {
        let of_table = |given: &&tenants::IssuedGrant| table.is_none_or(|table| *given.table == *table);
        view.given.iter().filter(of_table).map(|given| GivenGrantResponse::of(given, to_operator)).collect()
    }
}

impl GrantsResponse {
    /// The response for a tenant's grants: complete only for the operator.
    pub fn of(view: &TenantView, to_operator: bool) -> GrantsResponse {
        let received = |grant: &std::sync::Arc<tenants::Grant>| {
            Some(ReceivedGrantResponse {
                name: grant.name().to_string(),
                id: grant.id,
                owner: grant.owner.to_string(),
                access: grant.access()?,
            })
        };
        GrantsResponse {
            given: GivenGrantResponse::all(view, None, to_operator),
            received: view.sorted_granted().into_iter().filter_map(received).collect(),
        }
    }
}

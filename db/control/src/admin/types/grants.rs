//! Grants as the control API shows them.

use serde::{Deserialize, Serialize};

use sandstorm_catalog as tenants;
use sandstorm_catalog::{Access, TenantView};

/// `POST /v1/tenants/{tenant}/grants`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateGrant {
    /// The table.
    pub table: String,
    /// Name of the tenant that gets it.
    pub to: String,
    /// `read` or `read_write`.
    #[serde(default)]
    pub access: Access,
}

/// `GET /v1/tenants/{tenant}/grants`.
#[derive(Clone, Debug, Serialize)]
pub struct Grants {
    /// What the tenant granted to others.
    pub given: Vec<Given>,
    /// What others granted to it.
    pub received: Vec<Received>,
}

/// A grant that a tenant gave.
#[derive(Clone, Debug, Serialize)]
pub struct Given {
    /// The table.
    pub table: String,
    /// Name of the tenant that it was granted to.
    pub to: String,
    /// What it allows.
    pub access: Access,
    /// For the operator: whether the grantee has it. `None` for the owner, who is not told whether there is such a tenant.
    pub in_force: Option<bool>,
}

/// A grant that a tenant received.
#[derive(Clone, Debug, Serialize)]
pub struct Received {
    /// Its name here: `owner/table`.
    pub name: String,
    /// Its id here.
    pub id: u64,
    /// The table's owner.
    pub owner: String,
    /// What it allows.
    pub access: Access,
}

impl Given {
    /// What is shown of a grant that was given: all of it only to the operator.
    pub fn of(given: &tenants::Given, to_operator: bool) -> Given {
        Given {
            table: given.table.to_string(),
            to: given.to.to_string(),
            access: given.access,
            in_force: to_operator.then(|| given.in_force()),
        }
    }

    /// All that a tenant gave, of one table or of all, in the order in which it did.
    pub fn all(view: &TenantView, table: Option<&str>, to_operator: bool) -> Vec<Given> {
        let of_table = |given: &&tenants::Given| table.is_none_or(|table| *given.table == *table);
        view.given.iter().filter(of_table).map(|given| Given::of(given, to_operator)).collect()
    }
}

impl Grants {
    /// What is shown of a tenant's grants: all of it only to the operator.
    pub fn of(view: &TenantView, to_operator: bool) -> Grants {
        let received = |grant: &std::sync::Arc<tenants::Grant>| {
            Some(Received {
                name: grant.name.to_string(),
                id: grant.id,
                owner: grant.owner.to_string(),
                access: grant.access()?,
            })
        };
        Grants {
            given: Given::all(view, None, to_operator),
            received: view.sorted_granted().into_iter().filter_map(received).collect(),
        }
    }
}

//! What is kept, as plain data: the form that the journal's lines have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::versions::ExtensionVersions;
use super::super::{GrantAccess, QuotaChanges, TokenHash};
use sandstorm_extension::BudgetOverride;
use sandstorm_store::StorageMode;

/// Where a tenant comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantOrigin {
    /// Made while the server ran.
    #[default]
    Made,
    /// The configuration names it.
    Configured,
    /// The configuration named it once; it stays until it is deleted.
    Left,
}

impl TenantOrigin {
    /// Its name, as the control API has it.
    pub fn name(self) -> &'static str {
        match self {
            TenantOrigin::Made => "made",
            TenantOrigin::Configured => "configured",
            TenantOrigin::Left => "left",
        }
    }
}

/// A token's verifier as text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalToken(String);

impl JournalToken {
    /// What is kept of a token.
    pub fn of(hash: &TokenHash) -> JournalToken {
        JournalToken(hash.to_text())
    }

    /// What it was made of; `None` if it is something else.
    pub fn read(&self) -> Option<TokenHash> {
        TokenHash::from_text(&self.0)
    }
}

impl std::fmt::Debug for JournalToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeptToken(..)")
    }
}

/// A tenant's old token, within its grace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalOldToken {
    /// Its verifier.
    pub token: JournalToken,
    /// When its grace ends, in milliseconds since 1970.
    pub ends_ms: u64,
    /// What was left of it when that was written, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
}

/// A table's definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalTable {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Whether it evicts at its quota.
    pub cache: bool,
    /// Its quota.
    pub quota_bytes: u64,
    /// Whether its keys are kept in order as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
}

impl JournalTable {
    /// What happens at its quota.
    pub fn mode(&self) -> StorageMode {
        if self.cache { StorageMode::Cache } else { StorageMode::Store }
    }
}

/// A grant in its owner's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalGivenGrant {
    /// The table.
    pub table: String,
    /// The name that it was granted to.
    pub to: String,
    /// What it allows.
    pub access: GrantAccess,
}

/// A grant that a tenant has received and not given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalReceivedGrant {
    /// The table's id for the grantee.
    pub id: u64,
    /// `owner/table`.
    pub name: String,
}

/// Why calls of an extension are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalSuspension {
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// What callers are told.
    pub text: String,
    /// Whether only the operator lifts it.
    pub binding: bool,
}

/// All that is kept of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalTenant {
    /// Its id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub origin: TenantOrigin,
    /// Which of the configuration's tokens was set last: a token that was replaced since stays replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured_token: Option<String>,
    /// Whether it is reached without a token.
    pub open: bool,
    /// Its home worker.
    pub home_worker: u32,
    /// What was said of its quotas; the server's defaults hold for the others.
    pub quotas: QuotaChanges,
    /// What is kept of its token.
    pub token: JournalToken,
    /// The token before, within its grace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_token: Option<JournalOldToken>,
    /// Budgets of single extensions.
    pub budgets: BTreeMap<String, BudgetOverride>,
    /// Its tables in the order of their ids.
    pub tables: Vec<JournalTable>,
    /// The id of the next one.
    pub next_table: u64,
    /// Its list of grants, in its order.
    pub given: Vec<JournalGivenGrant>,
    /// Grants to it in the order of their ids.
    pub received: Vec<JournalReceivedGrant>,
    /// The id of the next one.
    pub next_granted: u64,
    /// Suspended extensions.
    pub suspended: BTreeMap<String, JournalSuspension>,
    /// Versions of its extensions.
    pub versions: ExtensionVersions,
}

/// One line of the journal: what a change has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct JournalEntry {
    /// Lines are numbered, so that none is missing unseen.
    pub(super) line: u64,
    /// The next tenant's id.
    pub(in super::super) next_tenant: u32,
    /// The next tenant's home worker.
    pub(in super::super) next_home: u32,
    /// Tenants as they are now.
    pub(in super::super) put: Vec<JournalTenant>,
    /// Tenants that are gone.
    pub(in super::super) gone: Vec<u32>,
}

/// All that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryImage {
    /// By id.
    pub tenants: BTreeMap<u32, JournalTenant>,
    /// The next tenant's id; 0: none has been given out.
    pub next_tenant: u32,
    /// The next tenant's home worker.
    pub next_home: u32,
}

impl DirectoryImage {
    /// Puts a change in place.
    pub(super) fn apply(&mut self, change: JournalEntry) {
        for id in change.gone {
            self.tenants.remove(&id);
        }
        for tenant in change.put {
            self.tenants.insert(tenant.id, tenant);
        }
        (self.next_tenant, self.next_home) = (change.next_tenant, change.next_home);
    }
}

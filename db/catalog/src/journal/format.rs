//! The persisted state as plain data: the form of the journal's lines.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use sandstorm_backing::BackingSettings;

use super::super::agreed_trigger::AgreedTriggers;
use super::super::deployment::Deployment;
use super::super::expiry_watchers::ExpiryWatchers;
use super::super::shared_extension::{EnabledExtension, ShareAudience};
use super::super::table_backing::TableBacking;
use super::super::table_durability::TableDurability;
use super::super::versions::ExtensionVersions;
use super::super::{GrantAccess, QuotaChanges, TokenHash};
use sandstorm_extension::{BudgetOverride, CodePolicy};
use sandstorm_store::StorageMode;

/// The origin of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantOrigin {
    /// Created while the server ran.
    #[default]
    Made,
    /// The configuration names it.
    Configured,
    /// Once in the configuration; it stays until it is deleted.
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
    /// The stored form of a token.
    pub fn of(hash: &TokenHash) -> JournalToken {
        JournalToken(hash.to_text())
    }

    /// The token's hash; `None` if the text is malformed.
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
    /// The end of its grace period, in milliseconds since 1970.
    pub ends_ms: u64,
    /// The rest of its grace period when that was written, in milliseconds.
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
    /// Whether cold records leave memory for the disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spill: bool,
    /// What a crash may take of its records.
    #[serde(default, skip_serializing_if = "TableDurability::is_none")]
    pub durability: TableDurability,
    /// Its number in the log; 0: its changes are not logged.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub log: u64,
    /// What it is a cache of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<TableBacking>,
    /// The watchers that are told when its records expire.
    #[serde(default, skip_serializing_if = "ExpiryWatchers::is_empty")]
    pub expiry: ExpiryWatchers,
    /// In a cluster a random number, by which its servers tell it from another table that had its id.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub serial: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl JournalTable {
    /// Sets what a crash may take of its records, at a start: with another number in the log than before if they were
    /// in memory only.
    pub fn set_durability(&mut self, durability: TableDurability) {
        if durability.is_none() {
            self.log = 0;
        } else if self.durability.is_none() {
            self.log = sandstorm_log::new_table_number();
        }
        self.durability = durability;
    }

    /// Sets how it uses its backing, at a start.
    ///
    /// # Errors
    /// It has none, or another one.
    pub fn set_backing(&mut self, settings: &BackingSettings) -> Result<(), String> {
        match &mut self.backing {
            Some(backing) if backing.settings.url == settings.url => {
                backing.settings = settings.clone();
                Ok(())
            }
            known => {
                let known = known.as_ref().map_or("no backing", |backing| &backing.settings.url);
                Err(format!("the table has {known} from an earlier start: that stays; give the new one to a new table"))
            }
        }
    }

    /// Its behaviour at its quota.
    pub fn mode(&self) -> StorageMode {
        match (self.cache, self.spill) {
            (true, _) => StorageMode::Cache,
            (false, true) => StorageMode::Spill,
            (false, false) => StorageMode::Store,
        }
    }

    /// Sets its behaviour at its quota.
    pub fn set_mode(&mut self, mode: StorageMode) {
        (self.cache, self.spill) = (mode == StorageMode::Cache, mode == StorageMode::Spill);
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
    /// The access.
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

/// The reason that calls of an extension are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalSuspension {
    /// Its beginning, in milliseconds since 1970.
    pub since_ms: u64,
    /// The text for callers.
    pub text: String,
    /// Whether only the operator lifts it.
    pub binding: bool,
    /// Whether the next version lifts it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub until_replaced: bool,
}

/// A secret of a tenant, sealed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalSecret {
    /// Nonce and sealed value, as text.
    pub sealed: String,
    /// The time at which it was set, in milliseconds since 1970.
    pub set_at_ms: u64,
}

impl std::fmt::Debug for JournalSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalSecret").field("set_at_ms", &self.set_at_ms).finish_non_exhaustive()
    }
}

/// The persisted state of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalTenant {
    /// Its id.
    pub id: u32,
    /// By which it is told from another tenant of its id and name; 0: it was made outside of a cluster, or by an
    /// earlier version.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub made: u64,
    /// Its name.
    pub name: String,
    /// Its origin.
    pub origin: TenantOrigin,
    /// The mark of the configuration's token that was set last: a token that was replaced since stays replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured_token: Option<String>,
    /// Whether it is reached without a token.
    pub open: bool,
    /// Its home worker.
    pub home_worker: u32,
    /// Whether its home worker is fixed; else it follows the tenant's load.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub home_fixed: bool,
    /// The code that it may have. Journals of servers that had one tier do not say it: theirs was the native one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<CodePolicy>,
    /// The quotas that were set; for the others the server's defaults hold.
    pub quotas: QuotaChanges,
    /// The stored form of its token.
    pub token: JournalToken,
    /// The previous token, within its grace period.
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
    /// Extensions that are confined to the sandboxed tier, with the reasons.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub confined: BTreeMap<String, String>,
    /// Its secrets, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, JournalSecret>,
    /// Its triggers on which the servers of a cluster agree, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub triggers: AgreedTriggers,
    /// Versions of its extensions.
    pub versions: ExtensionVersions,
    /// Its extensions that others may enable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<String, ShareAudience>,
    /// Other tenants' extensions that are enabled here, by their names here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub enabled: BTreeMap<String, EnabledExtension>,
    /// Versions that are tried on a share of the calls, by extension.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deployments: BTreeMap<String, Deployment>,
}

/// One line of the journal: the result of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct JournalEntry {
    /// The number of the line, so that a missing line is noticed.
    pub(super) line: u64,
    /// The next tenant's id.
    pub(in super::super) next_tenant: u32,
    /// The next tenant's home worker.
    pub(in super::super) next_home: u32,
    /// The tenants that the change touched, in their new state.
    pub(in super::super) put: Vec<JournalTenant>,
    /// Deleted tenants.
    pub(in super::super) gone: Vec<u32>,
}

/// The whole persisted state.
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
    /// Applies a change.
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

//! Tenants: who they are, what they may use and what they have, as immutable snapshots.
//!
//! The [`Directory`] is changed by control threads only; each change builds a new [`DirectorySnapshot`]. Workers keep
//! the snapshot they have and compare its generation with [`Directory::generation`] once a loop turn: no lock, no
//! reference counting on the way of a request. What a snapshot holds is counted (`Arc`), so a deleted tenant, a dropped
//! table or a replaced extension lives until the last invocation that uses it is done, and is freed then.
#![forbid(unsafe_code)]

mod change_log;
mod directory;
mod directory_state;
mod error;
mod extension_loading;
mod grant;
mod grant_end;
mod grants;
pub mod journal;
mod kill_policy;
pub mod limits;
mod options;
mod persistence;
mod quotas;
mod snapshot;
mod suspension;
mod tenant_ref;
mod token_match;
mod token_rotation;
mod versions;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;
use sandstorm_accounts::{TenantUsage, TokenHash};

use sandstorm_extension::{Budget, BudgetOverride, LoadedExtension};
use sandstorm_store::{Participant, RecordTable, StorageMode};

pub use directory::Directory;
pub use error::{DirectoryError, DirectoryErrorKind, MAX_NAME_LEN, check_name};
pub use grant::{AccessError, FIRST_GRANTED_ID, Grant, GrantAccess, GrantIssuer, IssuedGrant};
pub use journal::TenantOrigin;
pub use kill_policy::KillPolicy;
pub use options::{DirectoryOptions, NewTable, NewTenant};
#[cfg(any(test, feature = "testing"))]
pub use quotas::QuotaDeclaration;
pub use quotas::{QuotaChanges, QuotaError, Quotas};
pub use snapshot::DirectorySnapshot;
pub use suspension::{Suspension, format_utc};
pub use tenant_ref::TenantRef;
pub use token_match::TokenMatch;
pub use token_rotation::OldToken;
pub use versions::{ExtensionVersions, LoadedVersion};

/// An account. Immutable: a changed setting makes a new `TenantAccount` that shares the usage of the old.
#[derive(Clone, Debug)]
pub struct TenantAccount {
    /// Its id, which travels in every message; never 0.
    pub id: u32,
    /// Unlike id and name never another tenant's, not even after this one is deleted; never 0.
    pub serial: u64,
    /// Its name, unique on the server.
    pub name: String,
    /// Where it comes from.
    pub origin: TenantOrigin,
    /// Which of the configuration's tokens was set last.
    configured_token: Option<String>,
    /// Whether its data are reached without a token. Only on servers whose data ports are bound to loopback, or that
    /// were told to allow it.
    pub open: bool,
    /// What it may use.
    pub quotas: Quotas,
    /// What was said of its quotas; for the others the server's defaults hold.
    pub said: QuotaChanges,
    /// Budgets that the operator set for single extensions, by name.
    pub budgets: HashMap<Box<str>, BudgetOverride>,
    /// The worker that its requests should go to.
    pub home_worker: u32,
    /// Grows whenever a token is set on this server and is never the same for two tenants: a session that was
    /// authenticated stays so as long as the number it was authenticated under is among [`TenantAccount::credentials`].
    pub credential: u64,
    /// What it uses; shared between this tenant's snapshots.
    pub usage: Arc<TenantUsage>,
    token: TokenHash,
    /// The token before this one, while its grace lasts.
    old: Option<OldToken>,
}

impl TenantAccount {
    /// Whether `token` is the tenant's: the current one, or the one before within its grace. Hashes: for the start of a
    /// session, not for every message.
    pub fn token_matches(&self, token: &[u8]) -> bool {
        self.shown(token).is_some()
    }

    /// Whether one that presents `token` may use this tenant's data: it is open, or the token is right.
    pub fn admits(&self, token: &[u8]) -> bool {
        self.open || self.token_matches(token)
    }

    /// Takes a place among the tenant's concurrent invocations, with the memory that each begins with. Each place that
    /// was given has to be given back with [`TenantAccount::end_invocations`].
    ///
    /// # Errors
    /// The text that names the quota which is reached, for an answer `OverQuota`; nothing is taken.
    #[inline]
    pub fn begin_invocation(&self) -> Result<(), &'static str> {
        self.usage.begin(self.quotas.concurrent_invocations, self.quotas.invocation_memory_bytes)
    }

    /// Charges for memory (`memory_units`) that an invocation takes beyond what each begins with; `false`, and
    /// nothing is charged, if that would pass the quota `invocation_memory_bytes`.
    pub fn charge_memory(&self, units: u32) -> bool {
        self.usage.charge(units, self.quotas.invocation_memory_bytes)
    }

    /// Gives back what [`TenantAccount::charge_memory`] took.
    pub fn uncharge_memory(&self, units: u32) {
        self.usage.uncharge(units);
    }

    /// Gives so many places back.
    #[inline]
    pub fn end_invocations(&self, count: u32) {
        self.usage.end(count);
    }

    /// Whether `requests` more at `now_ns` (any monotonic clock, the same for all workers) keep within the tenant's
    /// rate. Costs one comparison when the rate is unlimited.
    #[inline]
    pub fn admit_requests(&self, now_ns: u64, requests: u32) -> bool {
        self.quotas.requests_per_s == 0 || self.usage.admit(now_ns, requests, self.quotas.requests_per_s)
    }
}

/// A tenant and what it has, at one moment.
#[derive(Clone)]
pub struct TenantView {
    /// The tenant.
    pub tenant: Arc<TenantAccount>,
    /// Its tables by id.
    pub tables: HashMap<u64, Arc<TableEntry>>,
    /// Ids of its tables by name.
    pub table_names: HashMap<Box<str>, u64>,
    /// Its extensions by name, the newest version of each.
    pub extensions: HashMap<Box<str>, Arc<LoadedExtension>>,
    /// Versions of its extensions, of those that are loaded and of those that were.
    pub versions: Arc<ExtensionVersions>,
    /// Names of extensions whose calls are refused until they are resumed.
    pub suspended: HashMap<Box<str>, Arc<Suspension>>,
    /// Other tenants' tables that it may use, by the ids that it has for them.
    pub granted: HashMap<u64, Arc<Grant>>,
    /// Those ids by name (`owner/table`).
    pub granted_names: HashMap<Box<str>, u64>,
    /// What it granted to others, in the order in which it did.
    pub given: Vec<IssuedGrant>,
}

impl TenantView {
    /// The table of that id.
    #[inline]
    pub fn table(&self, id: u64) -> Option<&Arc<TableEntry>> {
        self.tables.get(&id)
    }

    /// The table of that name.
    pub fn table_by_name(&self, name: &str) -> Option<&Arc<TableEntry>> {
        self.tables.get(self.table_names.get(name)?)
    }

    /// The extension of that name.
    #[inline]
    pub fn extension(&self, name: &str) -> Option<&Arc<LoadedExtension>> {
        self.extensions.get(name)
    }

    /// What one invocation of `extension` may use: the tenant's quotas, then what the extension says for itself, then
    /// what the operator set for it.
    #[inline]
    pub fn budget(&self, extension: &LoadedExtension) -> Budget {
        let budget = self.tenant.quotas.budget().with(&extension.budget);
        match self.tenant.budgets.get(&*extension.name) {
            Some(own) => budget.with(own),
            None => budget,
        }
    }

    /// What is used of those quotas of which something is used up, by their names. Of `memory_bytes`, what the quotas
    /// of the tables add up to.
    pub fn used(&self, now_ms: u64) -> Vec<(&'static str, u64)> {
        let usage = &self.tenant.usage;
        vec![
            ("memory_bytes", self.tables.values().map(|table| table.quota_bytes).sum()),
            ("invocation_memory_bytes", usage.invocation_memory_bytes()),
            ("concurrent_invocations", u64::from(usage.running())),
            ("tables", self.tables.len() as u64),
            ("extensions", self.extensions.len() as u64),
            ("pushes_per_hour", usage.pushes(now_ms) as u64),
            ("grants_given", self.given.len() as u64),
            ("grants_received", self.granted.len() as u64),
        ]
    }

    /// The tables in the order of their ids.
    pub fn sorted_tables(&self) -> Vec<&Arc<TableEntry>> {
        let mut tables: Vec<_> = self.tables.values().collect();
        tables.sort_by_key(|table| table.id);
        tables
    }

    /// The extensions in the order of their names.
    pub fn sorted_extensions(&self) -> Vec<&Arc<LoadedExtension>> {
        let mut extensions: Vec<_> = self.extensions.iter().collect();
        extensions.sort_by_key(|(name, _)| *name);
        extensions.into_iter().map(|(_, extension)| extension).collect()
    }
}

impl std::fmt::Debug for TenantView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantView")
            .field("tenant", &self.tenant.name)
            .field("tables", &self.table_names)
            .field("extensions", &self.extensions.keys())
            .finish()
    }
}

impl std::fmt::Debug for TableEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableEntry").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// A table of a tenant.
pub struct TableEntry {
    /// Its id within its tenant; never 0.
    pub id: u64,
    /// Its name within its tenant.
    pub name: Box<str>,
    /// What happens at its quota.
    pub mode: StorageMode,
    /// Bytes of records, with overhead, that it may hold.
    pub quota_bytes: u64,
    /// The records.
    pub table: RecordTable,
    /// When all its records are to go (memcached's `flush_all` with a delay), in milliseconds since the Unix epoch; 0:
    /// never.
    pub flush_at_ms: AtomicU64,
}

impl TableEntry {
    /// Removes all records if the time for that has come; `charge` is told of the table before, by the one who does it.
    #[inline]
    pub fn flush_if_due(&self, participant: &Participant, now_ms: u64, charge: impl FnOnce(&RecordTable)) {
        let at_ms = self.flush_at_ms.load(Relaxed);
        let is_due = at_ms != 0 && at_ms <= now_ms;
        // Whoever puts it back does it.
        if is_due && self.flush_at_ms.compare_exchange(at_ms, 0, Relaxed, Relaxed).is_ok() {
            charge(&self.table);
            self.table.clear(participant);
        }
    }
}

//! Tenants: their accounts, their quotas and their tables and extensions, as immutable snapshots.
//!
//! Only control threads change the [`Directory`]; each change builds a new [`DirectorySnapshot`]. Workers keep a
//! snapshot and compare its generation with [`Directory::generation`] once a loop turn. So a request takes no lock and
//! counts no references. The parts of a snapshot are counted (`Arc`): a deleted tenant, a dropped table or a replaced
//! extension lives until the last invocation that uses it has ended.
#![forbid(unsafe_code)]

mod agreed_changes;
mod agreed_grants;
#[cfg(any(test, feature = "testing"))]
mod agreed_in_memory;
mod agreed_tenants;
#[cfg(test)]
mod agreed_tests;
mod agreed_trigger;
mod agreement;
mod backed_tables;
mod change_log;
mod code_policy;
mod deployment;
mod deployments;
mod directory;
mod directory_changes;
mod directory_digest;
mod directory_log;
mod directory_state;
mod durability;
mod error;
mod expiry_watch;
mod expiry_watchers;
mod extension_loading;
mod grant;
mod grant_end;
mod grants;
pub mod journal;
mod kept_versions;
mod kill_policy;
pub mod limits;
mod options;
mod persistence;
mod quotas;
mod record_recovery;
mod restore_threads;
mod scrub_progress;
mod secret_changes;
mod secrets;
mod settled_durability;
mod shared_extension;
mod shared_extensions;
mod snapshot;
mod spill_folder;
mod spill_tables;
mod suspending;
mod suspension;
mod table_backing;
mod table_changes;
mod table_durability;
mod table_settings;
mod tenant_code;
mod tenant_ref;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token_match;
mod token_rotation;
mod trigger_changes;
mod versions;

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use sandstorm_accounts::{TenantUsage, TokenHash};
pub use sandstorm_backing::{BackingPolicy, BackingSettings, BackingStats, ConflictChoice};

use sandstorm_extension::{Budget, BudgetOverride, LoadedExtension};
use sandstorm_store::{Participant, RecordTable, StorageMode, StoreError, StripeSet};

pub use agreed_changes::AgreedImage;
pub use agreed_tenants::AgreedLogNumbers;
pub use agreed_trigger::{AgreedTrigger, AgreedTriggers};
pub use agreement::{AgreedChange, AgreedNews, AgreedRevision, DirectoryAgreement, ProposalOutcome};
pub use deployment::Deployment;
pub use directory::{Directory, TenantChange};
pub use directory_log::{CheckpointRequests, LogProgressHook};
pub use error::{DirectoryError, DirectoryErrorKind, MAX_NAME_LEN, check_extension_name, check_name};
pub use expiry_watchers::{ExpiryWatcher, ExpiryWatchers};
pub use grant::{AccessError, FIRST_GRANTED_ID, Grant, GrantAccess, GrantIssuer, IssuedGrant};
pub use journal::TenantOrigin;
pub use kept_versions::VersionRefusal;
pub use kill_policy::KillPolicy;
pub use options::{DirectoryOptions, NewTable, NewTenant};
#[cfg(any(test, feature = "testing"))]
pub use quotas::QuotaDeclaration;
pub use quotas::{QuotaChanges, QuotaError, Quotas};
pub use scrub_progress::{ScrubPass, ScrubProgress, ScrubStatus};
pub use secrets::{SECRET_KEY_FILE, TenantSecrets};
pub use shared_extension::{EnabledExtension, ShareAudience};
pub use shared_extensions::EnableRequest;
pub use snapshot::DirectorySnapshot;
pub use suspension::{Suspension, format_utc};
pub use table_backing::{BackingAlteration, TableBacking};
pub use table_changes::TableAlteration;
pub use table_durability::{DefaultDurability, TableDurability};
use table_settings::CurrentName;
pub use tenant_code::TenantCode;
pub use tenant_ref::TenantRef;
pub use token_match::TokenMatch;
pub use token_rotation::OldToken;
pub use versions::{ExtensionVersions, LoadedVersion};

/// An account. It is immutable: a changed setting makes a new `TenantAccount` that shares the usage of the old one.
#[derive(Clone, Debug)]
pub struct TenantAccount {
    /// Its id, which travels in every message; never 0.
    pub id: u32,
    /// Its serial number. Unlike id and name it is never another tenant's, not even after this one is deleted; never 0.
    pub serial: u64,
    /// A random number by which servers of a cluster, and a server after its next start, tell it from another tenant
    /// of its id and name. 0 where it was made outside of a cluster, or by an earlier version.
    pub made: u64,
    /// Its name, unique on the server.
    pub name: String,
    /// Its origin.
    pub origin: TenantOrigin,
    /// The mark of the configuration's token that was set last.
    configured_token: Option<String>,
    /// Whether its data are accessible without a token. Only on servers whose data ports are bound to loopback, or that
    /// allow it by configuration.
    pub open: bool,
    /// Its quotas.
    pub quotas: Quotas,
    /// The quotas that were set; for the others the server's defaults hold.
    pub said: QuotaChanges,
    /// The code that it may push and call.
    pub code: TenantCode,
    /// Budgets that the operator set for single extensions, by name.
    pub budgets: HashMap<Box<str>, BudgetOverride>,
    /// The worker that its requests should go to.
    pub home_worker: u32,
    /// Whether a command or the configuration named that worker: it does not follow the tenant's load then.
    pub home_fixed: bool,
    /// Grows whenever a token is set on this server, and is never the same for two tenants. A session stays
    /// authenticated as long as its credential is among [`TenantAccount::credentials`].
    pub credential: u64,
    /// Its usage; shared between this tenant's snapshots.
    pub usage: Arc<TenantUsage>,
    token: TokenHash,
    /// The previous token, during its grace period.
    old: Option<OldToken>,
}

impl TenantAccount {
    /// Whether `token` is the tenant's: the current one, or the previous one within its grace period. Hashes it: for
    /// the start of a session, not for every message.
    pub fn token_matches(&self, token: &[u8]) -> bool {
        self.shown(token).is_some()
    }

    /// Whether a client with `token` may use this tenant's data: it is open, or the token is right.
    pub fn admits(&self, token: &[u8]) -> bool {
        self.open || self.token_matches(token)
    }

    /// Reserves one of the tenant's concurrent invocations, with the memory that each begins with. Each reservation
    /// must be released with [`TenantAccount::end_invocations`].
    ///
    /// # Errors
    /// The text that names the quota that is reached, for an answer `OverQuota`; nothing is reserved.
    #[inline]
    pub fn begin_invocation(&self) -> Result<(), &'static str> {
        self.usage.begin(self.quotas.concurrent_invocations, self.quotas.invocation_memory_bytes)
    }

    /// Charges for memory (`memory_units`) that an invocation takes beyond what each begins with. Returns `false`, and
    /// charges nothing, if that would exceed the quota `invocation_memory_bytes`.
    pub fn charge_memory(&self, units: u32) -> bool {
        self.usage.charge(units, self.quotas.invocation_memory_bytes)
    }

    /// Returns the units of [`TenantAccount::charge_memory`].
    pub fn uncharge_memory(&self, units: u32) {
        self.usage.uncharge(units);
    }

    /// Releases `count` reservations.
    #[inline]
    pub fn end_invocations(&self, count: u32) {
        self.usage.end(count);
    }

    /// Whether `requests` more at `now_ns` (any monotonic clock, the same for all workers) are within the tenant's
    /// rate. Costs one comparison if the rate is unlimited.
    #[inline]
    pub fn admit_requests(&self, now_ns: u64, requests: u32) -> bool {
        self.quotas.requests_per_s == 0 || self.usage.admit(now_ns, requests, self.quotas.requests_per_s)
    }
}

/// A tenant and its tables, extensions and grants, at one moment.
#[derive(Clone)]
pub struct TenantView {
    /// The tenant.
    pub tenant: Arc<TenantAccount>,
    /// Its tables by id.
    pub tables: HashMap<u64, Arc<TableEntry>>,
    /// Ids of its tables by name.
    pub table_names: HashMap<Box<str>, u64>,
    /// What may change of each while it is used, by id.
    pub(crate) settings: HashMap<u64, table_settings::TableDefinition>,
    /// Its extensions by name, the newest version of each.
    pub extensions: HashMap<Box<str>, Arc<LoadedExtension>>,
    /// The other versions of its extensions that are kept, by name, in no order: those that can be called by number.
    pub kept: HashMap<Box<str>, Arc<[Arc<LoadedExtension>]>>,
    /// The versions that are tried on a share of the calls, by extension.
    pub deployments: HashMap<Box<str>, Deployment>,
    /// Its extensions that others may enable.
    pub shared: HashMap<Box<str>, ShareAudience>,
    /// Other tenants' extensions that are enabled here, by their names here; they are among `extensions` as well.
    pub enabled: HashMap<Box<str>, EnabledExtension>,
    /// Versions of its extensions, loaded or not.
    pub versions: Arc<ExtensionVersions>,
    /// Names of extensions whose calls are refused until they are resumed.
    pub suspended: HashMap<Box<str>, Arc<Suspension>>,
    /// Names of extensions that run in the sandboxed tier although the tenant is native, each with the reason.
    pub confined: HashMap<Box<str>, Box<str>>,
    /// Other tenants' tables that it may use, by the ids that it has for them.
    pub granted: HashMap<u64, Arc<Grant>>,
    /// Those ids by name (`owner/table`).
    pub granted_names: HashMap<Box<str>, u64>,
    /// Names of grants to it as they are from this snapshot on, where the grants themselves got them later, by id.
    pub(crate) renamed: HashMap<u64, Arc<str>>,
    /// The grants that it gave to others, in their order.
    pub given: Vec<IssuedGrant>,
    /// The secrets that its code may read.
    pub secrets: Arc<TenantSecrets>,
    /// In a cluster: its triggers, as all servers have them.
    pub triggers: Arc<AgreedTriggers>,
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

    /// The budget of one invocation of `extension`: the tenant's quotas, overridden by the extension's own budget, then
    /// by the operator's.
    #[inline]
    pub fn budget(&self, extension: &LoadedExtension) -> Budget {
        let budget = self.tenant.quotas.budget().with(&extension.budget);
        match self.tenant.budgets.get(&*extension.name) {
            Some(own) => budget.with(own),
            None => budget,
        }
    }

    /// The use of those quotas that can be used up, by their names. For `memory_bytes` it is the sum of the quotas of
    /// the tables, for `spill_bytes`, which each table has for itself, the largest of their spill files.
    pub fn used(&self, now_ms: u64) -> Vec<(&'static str, u64)> {
        let usage = &self.tenant.usage;
        let spill_files = self.tables.values().filter_map(|table| table.table.spill_stats());
        vec![
            ("memory_bytes", self.tables.values().map(|table| table.quota_bytes()).sum()),
            ("invocation_memory_bytes", usage.invocation_memory_bytes()),
            ("concurrent_invocations", u64::from(usage.running())),
            ("spill_bytes", spill_files.map(|stats| stats.file_bytes).max().unwrap_or(0)),
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
        f.debug_struct("TableEntry").field("id", &self.id).field("name", &self.name()).finish_non_exhaustive()
    }
}

/// A table of a tenant.
pub struct TableEntry {
    /// Its id within its tenant; never 0.
    pub id: u64,
    /// In a cluster a random number, by which its servers tell it from another table that had its id; else 0.
    pub(crate) serial: u64,
    pub(crate) name: CurrentName,
    /// The records.
    pub table: RecordTable,
    /// What a crash may take of them, and its number in the log.
    pub(crate) durability: table_durability::CurrentDurability,
    /// What it is a cache of, if it is one.
    pub(crate) backing: OnceLock<table_backing::EntryBacking>,
    /// The time at which all its records are removed (memcached's `flush_all` with a delay), in milliseconds since the
    /// Unix epoch; 0: never.
    pub flush_at_ms: AtomicU64,
    /// Whether triggers of this server of a cluster want to know when its records expire.
    pub(crate) tells_triggers_of_expiry: AtomicBool,
}

impl TableEntry {
    /// In a cluster a random number, by which its servers tell it from another table that had its id; else 0.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Its name within its tenant.
    pub fn name(&self) -> Arc<str> {
        self.name.get()
    }

    /// Its behaviour at its quota.
    pub fn mode(&self) -> StorageMode {
        self.table.mode()
    }

    /// Bytes of records, with overhead, that it may hold.
    pub fn quota_bytes(&self) -> u64 {
        self.table.quota_bytes()
    }

    /// What a crash may take of its records.
    pub fn durability(&self) -> TableDurability {
        self.durability.get()
    }

    /// Removes all records if that time has come. The thread that has done it calls `charge` with their number; others
    /// that find it due wait until it is done: what is written after the time stays, and what is read is not older.
    #[inline]
    pub fn flush_if_due(&self, participant: &Participant, now_ms: u64, charge: impl FnOnce(u64)) {
        let at_ms = self.flush_at_ms.load(Acquire);
        if at_ms != 0 && at_ms <= now_ms {
            self.flush(participant, at_ms, charge);
        }
    }

    #[cold]
    fn flush(&self, participant: &Participant, at_ms: u64, charge: impl FnOnce(u64)) {
        let mut all = self.table.exclusive(participant, StripeSet::ALL);
        if self.flush_at_ms.load(Acquire) != at_ms {
            return;
        }
        let records = self.table.stats().records;
        match all.clear() {
            Ok(_) => charge(records),
            // Slots of it move: it is refused at that moment, as it is where it is asked for at once. Later it would
            // remove what was written since.
            Err(StoreError::WrongServer) => {}
            // The log has no room: it is due still.
            Err(_) => return,
        }
        let _unless_set_again = self.flush_at_ms.compare_exchange(at_ms, 0, Release, Relaxed);
    }
}

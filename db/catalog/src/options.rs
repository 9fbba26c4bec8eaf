//! Options of the directory, of a new tenant and of a new table.

use super::journal::TenantOrigin;
use super::quotas::{QuotaChanges, Quotas};
use sandstorm_backing::BackingSettings;

use super::table_durability::{DefaultDurability, TableDurability};
use crate::limits::TENANTS;
use sandstorm_accounts::token::TokenHash;
use sandstorm_extension::CodePolicy;
use sandstorm_store::StorageMode;

/// The options that hold for all tenants of a server.
#[derive(Clone, Debug)]
pub struct DirectoryOptions {
    /// Number of workers; homes are assigned in turn.
    pub workers: u32,
    /// Tenants, at most.
    pub max_tenants: usize,
    /// Whether tenants may be open.
    pub allow_open: bool,
    /// Quotas of a tenant for which none are given.
    pub quotas: Quotas,
    /// The code of a new tenant for which nothing else is given.
    pub code: CodePolicy,
    /// Longest key of every table in bytes.
    pub max_key_len: usize,
    /// Longest value of every table in bytes.
    pub max_value_len: usize,
    /// Whether the server has a folder in which it can keep records.
    pub can_keep_records: bool,
    /// Whether the operator may read what tenants' code writes to the log.
    pub operator_reads_logs: bool,
    /// Durability of a new table for which none is given. It counts only where records can be kept.
    pub durability: DefaultDurability,
}

impl DirectoryOptions {
    /// The durability of a new table for which none is given.
    pub fn default_durability(&self, mode: StorageMode) -> TableDurability {
        let durability = if self.can_keep_records { self.durability } else { DefaultDurability::MEMORY_ONLY };
        durability.of(mode)
    }
}

impl Default for DirectoryOptions {
    fn default() -> DirectoryOptions {
        DirectoryOptions {
            workers: 1,
            max_tenants: TENANTS,
            allow_open: true,
            quotas: Quotas::default(),
            code: CodePolicy::default(),
            max_key_len: sandstorm_net::rpc::MAX_KEY_LEN,
            max_value_len: sandstorm_net::rpc::MAX_VALUE_LEN,
            can_keep_records: false,
            operator_reads_logs: false,
            durability: DefaultDurability::default(),
        }
    }
}

/// A tenant to be created. `..NewTenant::named("x")` fills in the rest.
#[derive(Clone, Default)]
pub struct NewTenant {
    /// Its name.
    pub name: String,
    /// Its id; assigned if not given.
    pub id: Option<u32>,
    /// Whether it is reached without a token.
    pub open: bool,
    /// Its token (20 to 256 printable characters); generated if neither this nor `token_hash` is given.
    pub token: Option<String>,
    /// The stored form of its token, instead of the token.
    pub token_hash: Option<TokenHash>,
    /// The quotas that differ from the server's.
    pub quotas: QuotaChanges,
    /// Its home worker, which is fixed then; assigned if not given, and follows the tenant's load.
    pub home_worker: Option<u32>,
    /// The code that it may have; the server's default if not given.
    pub code: Option<CodePolicy>,
    /// Its origin.
    pub origin: TenantOrigin,
}

impl NewTenant {
    /// A tenant of that name, with defaults for the rest.
    pub fn named(name: &str) -> NewTenant {
        NewTenant { name: name.into(), ..NewTenant::default() }
    }
}

impl std::fmt::Debug for NewTenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is left out: this gets into logs.
        f.debug_struct("NewTenant").field("name", &self.name).field("id", &self.id).finish_non_exhaustive()
    }
}

/// A table to be created.
#[derive(Clone, Debug)]
pub struct NewTable {
    /// Its name.
    pub name: String,
    /// Its id; assigned if not given.
    pub id: Option<u64>,
    /// Its behaviour at its quota.
    pub mode: StorageMode,
    /// Bytes of records it may hold; if not given: an eighth of the tenant's `memory_bytes`, at most 1 GiB.
    pub quota_bytes: Option<u64>,
    /// Whether its keys are kept in order as well, for ranges.
    pub ordered: bool,
    /// What a crash may take of its records; if not given: what the server's options say for its mode.
    pub durability: Option<TableDurability>,
    /// What it is a cache of, if it is one.
    pub backing: Option<BackingSettings>,
}

impl NewTable {
    /// A table of that name in store mode, with defaults for the rest.
    pub fn named(name: &str) -> NewTable {
        let mode = StorageMode::Store;
        let (id, quota_bytes, durability, backing) = (None, None, None, None);
        NewTable { name: name.into(), id, mode, quota_bytes, ordered: false, durability, backing }
    }
}

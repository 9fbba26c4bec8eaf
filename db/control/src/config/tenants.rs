//! `[[tenants]]`: tenants, tables and grants that are there from the start.

use serde::Deserialize;

use super::ConfigError;
use sandstorm_accounts::TokenHash;
use sandstorm_catalog::limits::MIN_TABLE_BYTES;
use sandstorm_catalog::{
    BackingSettings, Directory, DirectoryError, GrantAccess, NewTable, NewTenant, QuotaChanges, Quotas,
    TableDurability, TenantOrigin, check_name,
};
use sandstorm_net::CodePolicy;
use sandstorm_store::StorageMode;

/// A tenant that is made at the start.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    /// Its name.
    pub name: String,
    /// Its id; assigned if not given.
    pub id: Option<u32>,
    /// Its token. It is generated, and never shown, if neither this nor `token_hash` is given (`sandstorm tenant token`
    /// makes a new one).
    pub token: Option<String>,
    /// The stored form of its token, as `sandstorm token hash` prints it: instead of the token.
    pub token_hash: Option<String>,
    /// Whether it is reached without a token.
    #[serde(default)]
    pub open: bool,
    /// The worker that serves it; assigned if not given.
    pub home_worker: Option<u32>,
    /// The code that it may have; the server's default, or what it had before a restart, if not given.
    pub code: Option<CodePolicy>,
    /// The quotas that differ from the server's.
    #[serde(default)]
    pub quotas: QuotaChanges,
    /// Its tables.
    #[serde(default)]
    pub tables: Vec<TableSettings>,
    /// The grants of its tables to other tenants.
    #[serde(default)]
    pub grants: Vec<GrantSettings>,
}

/// A grant that is made at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantSettings {
    /// The table.
    pub table: String,
    /// The tenant that may use it.
    pub to: String,
    /// The access: `read`, or `read_write`.
    #[serde(default)]
    pub access: GrantAccess,
}

/// A table that is made at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSettings {
    /// Its name.
    pub name: String,
    /// Its id; assigned if not given.
    pub id: Option<u64>,
    /// Its behaviour at its quota.
    #[serde(default)]
    pub mode: TableModeSetting,
    /// Its quota in bytes.
    pub quota_bytes: Option<u64>,
    /// Whether its keys are kept in order as well, for ranges.
    #[serde(default)]
    pub ordered: bool,
    /// What a crash may take of its records; what it had before a restart, or that of `[durability]`, if not given.
    pub durability: Option<TableDurability>,
    /// What it is a cache of, if it is one.
    pub backing: Option<BackingSettings>,
}

/// A table's mode, as text has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableModeSetting {
    /// Refuses writes.
    #[default]
    Store,
    /// Evicts.
    Cache,
    /// Moves cold records to the disk.
    Spill,
}

impl From<TableModeSetting> for StorageMode {
    fn from(name: TableModeSetting) -> StorageMode {
        match name {
            TableModeSetting::Store => StorageMode::Store,
            TableModeSetting::Cache => StorageMode::Cache,
            TableModeSetting::Spill => StorageMode::Spill,
        }
    }
}

impl TenantSettings {
    /// Checks what needs no server. `number` is its index in the file, `quotas` are those of every tenant.
    pub(super) fn check(&self, number: usize, quotas: &Quotas) -> Result<(), ConfigError> {
        let name = &self.name;
        let at = |key: &str| vec![format!("tenants.{number}.{key}")];
        check_name("tenant", name).map_err(|error| self.refused(&error).at(&at("name")))?;
        if let Err(error) = self.quotas.apply(quotas) {
            let keys = error.keys(&format!("tenants.{number}.quotas"));
            return Err(self.refused(&error.into()).at(&keys));
        }
        for (table, TableSettings { name, quota_bytes, .. }) in self.tables.iter().enumerate() {
            let at = |key: &str| at(&format!("tables.{table}.{key}"));
            check_name("table", name).map_err(|error| self.refused(&error).at(&at("name")))?;
            if let Some(wanted) = quota_bytes.filter(|bytes| *bytes < MIN_TABLE_BYTES) {
                let error = DirectoryError::TableTooSmall { wanted, min: MIN_TABLE_BYTES };
                return Err(self.refused(&error).at(&at("quota_bytes")));
            }
        }
        if self.token.as_ref().is_some_and(|token| TokenHash::of_chosen(token).is_none()) {
            return Err(self.refused(&DirectoryError::InvalidToken).at(&at("token")));
        }
        let Some(hash) = &self.token_hash else { return Ok(()) };
        if self.token.is_some() {
            let text = format!("tenant {name:?} has both token and token_hash; leave token out");
            return Err(ConfigError::new(text).at(&at("token")));
        }
        if TokenHash::from_text(hash).is_none() {
            return Err(ConfigError::new(format!(
                "tenant {name:?}: token_hash is not what `sandstorm token hash` prints; run it, and copy the whole line"
            ))
            .at(&at("token_hash")));
        }
        Ok(())
    }

    /// The error for a setting that the directory refuses.
    pub(super) fn refused(&self, error: &DirectoryError) -> ConfigError {
        ConfigError::new(format!("configured tenant {:?}: {error}; {}", self.name, error.hint()))
    }

    /// The key whose value the directory refuses.
    pub(super) fn key_of(&self, number: usize, error: &DirectoryError) -> String {
        let key = match error {
            DirectoryError::TenantIdTaken(..) | DirectoryError::ZeroId(_) => "id",
            DirectoryError::OpenRefused(_) => "open",
            DirectoryError::HomeWorker { .. } => "home_worker",
            _ => "name",
        };
        format!("tenants.{number}.{key}")
    }

    pub(super) fn create(&self, directory: &Directory) -> Result<(), DirectoryError> {
        directory.create_tenant(NewTenant {
            name: self.name.clone(),
            id: self.id,
            open: self.open,
            token: self.token.clone(),
            token_hash: self.token_hash.as_deref().and_then(TokenHash::from_text),
            quotas: self.quotas.clone(),
            home_worker: self.home_worker,
            code: self.code,
            origin: TenantOrigin::Configured,
        })?;
        Ok(())
    }

    /// Creates the missing tables. An error comes with the index of its table.
    pub(super) fn create_tables(&self, directory: &Directory) -> Result<(), (usize, DirectoryError)> {
        let known = directory.snapshot().find(&self.name).map_err(|error| (0, error))?.clone();
        let is_new = |(_, table): &(usize, &TableSettings)| !known.table_names.contains_key(table.name.as_str());
        for (number, table) in self.tables.iter().enumerate().filter(is_new) {
            let new = NewTable {
                name: table.name.clone(),
                id: table.id,
                mode: table.mode.into(),
                quota_bytes: table.quota_bytes,
                ordered: table.ordered,
                durability: table.durability,
                backing: table.backing.clone(),
            };
            directory.create_table(&self.name, new).map_err(|error| (number, error))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for TenantSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the token: this gets into logs.
        f.debug_struct("TenantSettings").field("name", &self.name).field("id", &self.id).finish_non_exhaustive()
    }
}

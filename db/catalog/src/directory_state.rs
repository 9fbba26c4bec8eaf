//! The counters for new tenants and tables, and the immediate effects of a change.

use std::sync::Arc;

use hashbrown::HashMap;

use super::agreement::AgreedState;
use super::grant::{Grant, GrantAccess};
use super::table_durability::TableDurability;
use super::table_settings::TableDefinition;
use super::{TableEntry, TenantView};

/// The ids of the next tenants and tables; behind the lock for changes.
#[derive(Debug)]
pub(super) struct DirectoryState {
    pub(super) tenant: u32,
    pub(super) home_worker: u32,
    pub(super) credential: u64,
    /// For each tenant the id of its next table. Ids are not used again, so that a late request cannot reach another
    /// table.
    pub(super) table: HashMap<u32, u64>,
    /// The same for ids of tables that are granted to it.
    pub(super) granted: HashMap<u32, u64>,
    /// The immediate effects of the current change, once it is certain.
    pub(super) effects: Vec<ChangeEffect>,
    /// The agreement with the other servers, in a cluster.
    pub(super) agreed: Option<AgreedState>,
}

/// An immediate effect of a change, for holders of an older snapshot.
#[derive(Debug)]
pub(super) enum ChangeEffect {
    /// A grant has another access from now on, or none.
    Access(Arc<Grant>, Option<GrantAccess>),
    /// A table is dropped.
    Dropped(Arc<TableEntry>),
    /// A table has another durability, and number in the log.
    Durability(Arc<TableEntry>, TableDurability, u64),
    /// A table has another name, mode or quota.
    Settings(Arc<TableEntry>, TableDefinition),
    /// A grant has another name, because its table has.
    GrantName(Arc<Grant>, Arc<str>),
    /// A tenant is deleted; another one may get its id.
    Gone(Arc<TenantView>),
}

impl DirectoryState {
    pub(super) fn credential(&mut self) -> u64 {
        let credential = self.credential;
        self.credential += 1;
        credential
    }
}

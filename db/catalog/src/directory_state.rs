//! What the next tenants and tables get, and what a change does beside making a snapshot.

use std::sync::Arc;

use hashbrown::HashMap;

use super::TableEntry;
use super::grant::{Grant, GrantAccess};

/// What the next ones get; behind the lock that changes take.
#[derive(Debug)]
pub(super) struct DirectoryState {
    pub(super) tenant: u32,
    pub(super) home_worker: u32,
    pub(super) credential: u64,
    /// Per tenant: ids of tables are not used again, so that a late request cannot reach another table.
    pub(super) table: HashMap<u32, u64>,
    /// The same for ids of tables that are granted to it.
    pub(super) granted: HashMap<u32, u64>,
    /// What the change under way does beside making a snapshot, once it is certain.
    pub(super) effects: Vec<ChangeEffect>,
}

/// What a change does beside making a snapshot: at once, for those who hold the old one.
#[derive(Debug)]
pub(super) enum ChangeEffect {
    /// A grant allows something else from now on, or nothing.
    Access(Arc<Grant>, Option<GrantAccess>),
    /// A table is dropped.
    Dropped(Arc<TableEntry>),
    /// A tenant is gone; another one may have its id.
    Gone(u32),
}

impl DirectoryState {
    pub(super) fn credential(&mut self) -> u64 {
        let credential = self.credential;
        self.credential += 1;
        credential
    }
}

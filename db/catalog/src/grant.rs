//! A grant, as both sides see it, and its lookup in a tenant's view.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

use super::table_settings::CurrentName;
use super::{TableEntry, TenantView};

/// Ids of granted tables start here; own tables have smaller ones. Small enough to survive programs that keep numbers
/// in floating point.
pub const FIRST_GRANTED_ID: u64 = 1 << 48;

/// The access that a grant allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum GrantAccess {
    /// Reads alone.
    #[default]
    Read = 1,
    /// Reads and writes.
    ReadWrite = 2,
}

impl GrantAccess {
    /// Its name, as the control API has it.
    #[inline]
    pub fn name(self) -> &'static str {
        match self {
            GrantAccess::Read => "read",
            GrantAccess::ReadWrite => "read_write",
        }
    }
}

/// The reason that a table cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The tenant has no such table, or the grant of it has ended.
    Unknown,
    /// The table is granted for reading only.
    ReadOnly,
}

/// A table of one tenant that another may use.
pub struct Grant {
    /// Its id for the grantee; never used again for another.
    pub id: u64,
    /// Its name for the grantee: `owner/table`.
    pub(super) name: CurrentName,
    /// The owner's name.
    pub owner: Box<str>,
    pub(super) grantee_id: u32,
    pub(super) entry: Arc<TableEntry>,
    pub(super) access: AtomicU8,
}

impl Grant {
    /// Its name for the grantee: `owner/table`.
    pub fn name(&self) -> Arc<str> {
        self.name.get()
    }

    /// The current access; `None`: the grant has ended.
    #[inline]
    pub fn access(&self) -> Option<GrantAccess> {
        match self.access.load(Ordering::Acquire) {
            ACCESS_ENDED => None,
            allowed if allowed == GrantAccess::ReadWrite as u8 => Some(GrantAccess::ReadWrite),
            _ => Some(GrantAccess::Read),
        }
    }

    /// The table, if the grant allows this access now.
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn reach(&self, write: bool) -> Result<&TableEntry, AccessError> {
        match self.access() {
            None => Err(AccessError::Unknown),
            Some(GrantAccess::Read) if write => Err(AccessError::ReadOnly),
            Some(_) => Ok(&self.entry),
        }
    }

    /// The owner's entry of the table, for lists.
    #[inline]
    pub fn entry(&self) -> &TableEntry {
        &self.entry
    }

    /// Sets the access for all holders from now on; `None` ends the grant.
    pub(super) fn set(&self, access: Option<GrantAccess>) {
        self.access.store(access.map_or(ACCESS_ENDED, |access| access as u8), Ordering::Release);
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant")
            .field("id", &self.id)
            .field("name", &self.name())
            .field("access", &self.access())
            .finish()
    }
}

/// A grant as its owner lists it.
#[derive(Clone, Debug)]
pub struct IssuedGrant {
    /// The owner's table.
    pub table: Box<str>,
    /// The name of the tenant that it was granted to.
    pub to: Box<str>,
    /// The access.
    pub access: GrantAccess,
    /// The grantee's side; `None` if there was no such tenant, or its quota of grants was reached.
    pub(super) grant: Option<Arc<Grant>>,
}

impl IssuedGrant {
    /// Whether the grantee has it now. The owner must not know: see the module's text.
    #[inline]
    pub fn in_force(&self) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.access().is_some())
    }
}

/// The party for which a grant is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantIssuer {
    /// The operator. It learns whether the grantee exists and may receive it.
    Operator,
    /// The owner. It does not learn that.
    Owner,
}

impl TenantView {
    /// The table of that id: the tenant's own or, if the grant allows it, a granted one.
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn reach(&self, id: u64, write: bool) -> Result<&TableEntry, AccessError> {
        match self.tables.get(&id) {
            Some(entry) => Ok(entry),
            None => self.resolve_granted(id, write),
        }
    }

    /// As [`TenantView::reach`], of granted tables alone.
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline(never)]
    pub fn resolve_granted(&self, id: u64, write: bool) -> Result<&TableEntry, AccessError> {
        self.granted.get(&id).ok_or(AccessError::Unknown)?.reach(write)
    }

    /// The id of the table of that name, own (`table`) or granted (`owner/table`).
    #[inline]
    pub fn id_of(&self, name: &str) -> Option<u64> {
        let granted = || self.granted_by_name(name).filter(|grant| grant.access().is_some()).map(|grant| grant.id);
        self.table_names.get(name).copied().or_else(granted)
    }

    /// The grant of that name (`owner/table`).
    #[inline]
    pub fn granted_by_name(&self, name: &str) -> Option<&Arc<Grant>> {
        self.granted.get(self.granted_names.get(name)?)
    }

    /// The grants to this tenant in the order of their names.
    #[inline]
    pub fn sorted_granted(&self) -> Vec<&Arc<Grant>> {
        let mut granted: Vec<_> = self.granted.values().collect();
        granted.sort_by_key(|grant| grant.name());
        granted
    }

    pub(super) fn forget_granted(&mut self, grant: &Grant) {
        self.granted.remove(&grant.id);
        self.renamed.remove(&grant.id);
        self.granted_names.remove(&*grant.name());
    }
}

/// In place of an [`GrantAccess`]: the grant has ended.
const ACCESS_ENDED: u8 = 0;

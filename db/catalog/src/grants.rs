//! Grants: another tenant may read, or read and write, one table of a tenant until the grant is revoked.
//!
//! The grantee finds the table in its own name space: as `owner/table`, and under an id from [`FIRST_GRANTED_ID`] on.
//! No table of its own can have such a name or id. Both tenants' snapshots share the [`Grant`]. Its access is one
//! atomic, so a change or an end holds at once for invocations with an older snapshot. Accesses to a tenant's own
//! tables check none of this.
//!
//! An owner does not learn whether a tenant of the grantee's name exists, whether that tenant may receive the grant, or
//! whether it has dropped it. The entry in the owner's list ([`IssuedGrant`]) is the same. It is bound to the tenant
//! that had the name at that moment; a later tenant of the same name does not inherit it.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::directory::Directory;
use super::directory_state::{ChangeEffect, DirectoryState};
use super::error::{DirectoryError, check_name, over_quota, unknown_table};
use super::grant::{FIRST_GRANTED_ID, Grant, GrantAccess, GrantIssuer, IssuedGrant};
use super::grant_end::end_grant;
use super::journal::{JournalGivenGrant, JournalReceivedGrant, JournalTenant};
use super::snapshot::DirectorySnapshot;
use super::table_settings::CurrentName;
use super::tenant_ref::TenantRef;
use super::{TableEntry, TenantView};
use crate::limits::GRANTS_PER_RECEIVER;

impl Directory {
    /// Grants a table to the tenant of that name, or changes the access of an earlier grant. Returns the entry of the
    /// owner's list.
    ///
    /// # Errors
    /// No such owner or table; an invalid name; the owner itself; the owner's quota of grants is reached. For the
    /// operator alone: no such grantee, or its quota is reached.
    pub fn grant<'a>(
        &self,
        owner: impl Into<TenantRef<'a>>,
        table: &str,
        to: &str,
        access: GrantAccess,
        granter: GrantIssuer,
    ) -> Result<IssuedGrant, DirectoryError> {
        check_name("tenant", to)?;
        let owner = owner.into();
        self.change(|next, snapshot| {
            let mut view = TenantView::clone(snapshot.find(owner)?);
            let entry = view.table_by_name(table).ok_or_else(|| unknown_table(&view, table))?.clone();
            if view.tenant.name == to {
                return Err(DirectoryError::GrantToSelf(to.into()));
            }
            let old = view.given.iter().position(|given| *given.table == *table && *given.to == *to);
            let grant = match old.and_then(|old| view.given[old].grant.clone()).filter(|grant| grant.access().is_some())
            {
                Some(grant) => {
                    next.effects.push(ChangeEffect::Access(grant.clone(), Some(access)));
                    Some(grant)
                }
                None => {
                    if old.is_none() {
                        check_issue_quota(&view, to)?;
                    }
                    deliver(next, snapshot, &view, entry, to, access, granter)?
                }
            };
            let given = IssuedGrant { table: table.into(), to: to.into(), access, grant };
            match old {
                Some(old) => view.given[old] = given.clone(),
                None => view.given.push(given.clone()),
            }
            snapshot.tenants.insert(view.tenant.id, Arc::new(view));
            Ok(given)
        })
    }

    /// Ends a grant. From now on it allows nothing: no new plain operation, and no call of an invocation.
    ///
    /// # Errors
    /// No such owner or grant.
    pub fn revoke<'a>(&self, owner: impl Into<TenantRef<'a>>, table: &str, to: &str) -> Result<(), DirectoryError> {
        let owner = owner.into();
        self.change(|next, snapshot| {
            let mut view = TenantView::clone(snapshot.find(owner)?);
            let at = view.given.iter().position(|given| *given.table == *table && *given.to == *to);
            let Some(at) = at else {
                return Err(DirectoryError::UnknownGrant { table: table.into(), to: to.into() });
            };
            let given = view.given.remove(at);
            snapshot.tenants.insert(view.tenant.id, Arc::new(view));
            end_grant(next, snapshot, &given);
            Ok(())
        })
    }

    /// Ends a grant for the grantee; `name` is the grantee's name for it, `owner/table`. The owner's list still shows
    /// it: its use is the grantee's own business.
    ///
    /// # Errors
    /// No such tenant or grant.
    #[inline]
    pub fn drop_grant<'a>(&self, grantee: impl Into<TenantRef<'a>>, name: &str) -> Result<(), DirectoryError> {
        self.change_view(grantee, |next, view| {
            let unknown = || DirectoryError::NotGranted(name.into());
            let grant = view.granted_by_name(name).ok_or_else(unknown)?.clone();
            next.effects.push(ChangeEffect::Access(grant.clone(), None));
            view.forget_granted(&grant);
            Ok(())
        })
    }
}

/// Checks that the owner may give one more grant to that tenant. Only its own count decides: it learns nothing of the
/// other tenant.
fn check_issue_quota(view: &TenantView, to: &str) -> Result<(), DirectoryError> {
    over_quota(&view.tenant, "grants_given", view.tenant.quotas.grants_given, view.given.len())?;
    if view.given.iter().filter(|given| *given.to == *to).count() >= GRANTS_PER_RECEIVER {
        return Err(DirectoryError::TooManyGrants { to: to.into(), limit: GRANTS_PER_RECEIVER });
    }
    Ok(())
}

/// Adds a new grant to the grantee's view. For the operator, a missing grantee or a reached quota is an error; else
/// `None`.
fn deliver(
    next: &mut DirectoryState,
    snapshot: &mut DirectorySnapshot,
    owner: &TenantView,
    entry: Arc<TableEntry>,
    to: &str,
    access: GrantAccess,
    granter: GrantIssuer,
) -> Result<Option<Arc<Grant>>, DirectoryError> {
    let refused = |error| if granter == GrantIssuer::Operator { Err(error) } else { Ok(None) };
    let Some(grantee) = snapshot.by_name(to) else {
        return refused(DirectoryError::UnknownTenant(to.into()));
    };
    let tenant = &grantee.tenant;
    if let Err(full) = over_quota(tenant, "grants_received", tenant.quotas.grants_received, grantee.granted.len()) {
        return refused(full);
    }
    let mut view = TenantView::clone(grantee);
    let number = next.granted.entry(view.tenant.id).or_insert(FIRST_GRANTED_ID);
    let grant = Arc::new(Grant {
        id: *number,
        name: CurrentName::new(&format!("{}/{}", owner.tenant.name, entry.name())),
        owner: owner.tenant.name.as_str().into(),
        grantee_id: view.tenant.id,
        entry,
        access: AtomicU8::new(access as u8),
    });
    *number += 1;
    view.granted.insert(grant.id, grant.clone());
    view.granted_names.insert((&*grant.name()).into(), grant.id);
    snapshot.tenants.insert(view.tenant.id, Arc::new(view));
    Ok(Some(grant))
}

/// The journal entries of a tenant's grants: those that it gave, and those that it received.
pub(super) fn journal_grants(view: &TenantView) -> (Vec<JournalGivenGrant>, Vec<JournalReceivedGrant>) {
    let given = |given: &IssuedGrant| JournalGivenGrant {
        table: given.table.to_string(),
        to: given.to.to_string(),
        access: given.access,
    };
    let mut received: Vec<JournalReceivedGrant> = view
        .granted
        .values()
        .map(|grant| {
            let name = view.renamed.get(&grant.id).cloned().unwrap_or_else(|| grant.name());
            JournalReceivedGrant { id: grant.id, name: name.to_string() }
        })
        .collect();
    received.sort_by_key(|received| received.id);
    (view.given.iter().map(given).collect(), received)
}

/// Restores a tenant's list of grants, and those of them that their grantees had. All tenants are in the snapshot, with
/// their tables.
pub(super) fn restore_grants(
    snapshot: &mut DirectorySnapshot,
    received_by: &std::collections::BTreeMap<u32, JournalTenant>,
    kept: &JournalTenant,
) {
    let Some(owner) = snapshot.tenants.get(&kept.id).cloned() else { return };
    let mut view = TenantView::clone(&owner);
    for JournalGivenGrant { table, to, access } in &kept.given {
        let name = format!("{}/{table}", kept.name);
        let received = snapshot.names.get(to.as_str()).and_then(|grantee| {
            let received = received_by.get(grantee)?.received.iter().find(|received| received.name == name)?;
            Some((*grantee, received.id, owner.table_by_name(table)?.clone()))
        });
        let grant = received.map(|(grantee_id, id, entry)| {
            let grant = Arc::new(Grant {
                id,
                name: CurrentName::new(&name),
                owner: kept.name.as_str().into(),
                grantee_id,
                entry,
                access: AtomicU8::new(*access as u8),
            });
            if let Some(grantee) = snapshot.tenants.get(&grantee_id) {
                let mut grantee = TenantView::clone(grantee);
                grantee.granted.insert(id, grant.clone());
                grantee.granted_names.insert((&*grant.name()).into(), id);
                snapshot.tenants.insert(grantee_id, Arc::new(grantee));
            }
            grant
        });
        view.given.push(IssuedGrant { table: table.as_str().into(), to: to.as_str().into(), access: *access, grant });
    }
    // The grants that it has received from earlier tenants are in the snapshot alone.
    if let Some(now) = snapshot.tenants.get(&kept.id) {
        (view.granted, view.granted_names) = (now.granted.clone(), now.granted_names.clone());
    }
    snapshot.tenants.insert(kept.id, Arc::new(view));
}

#[cfg(test)]
mod tests;

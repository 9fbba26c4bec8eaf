//! Grants between tenants that another server of the cluster has changed: see [`super::agreement`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::directory_state::{ChangeEffect, DirectoryState};
use super::grant::{Grant, IssuedGrant};
use super::grants::journal_grants;
use super::journal::{JournalGivenGrant, JournalTenant};
use super::snapshot::DirectorySnapshot;
use super::table_settings::CurrentName;
use super::{TableEntry, TenantView};

/// The grants that there were, of which those that are still given go on to be used.
struct KnownGrants {
    all: Vec<Arc<Grant>>,
    /// The grants that are still given.
    used: Vec<Arc<Grant>>,
}

impl KnownGrants {
    /// A grant of a table to a tenant, under the id that the tenant has for it.
    fn take(&mut self, id: u64, grantee: u32, entry: &Arc<TableEntry>) -> Option<Arc<Grant>> {
        let is_it = |grant: &&Arc<Grant>| {
            (grant.id, grant.grantee_id) == (id, grantee)
                && Arc::ptr_eq(&grant.entry, entry)
                && grant.access().is_some()
        };
        let found = Arc::clone(self.all.iter().find(is_it)?);
        self.used.push(Arc::clone(&found));
        Some(found)
    }
}

/// Brings the grants of a snapshot to what the lists of the changed tenants say. Their views have none yet.
pub(super) fn settle_grants(
    next: &mut DirectoryState,
    before: &DirectorySnapshot,
    snapshot: &mut DirectorySnapshot,
    changed: &BTreeMap<u32, &JournalTenant>,
) {
    let owners = owners_of(before, snapshot, changed);
    let views = owners.iter().chain(changed.keys()).filter_map(|id| before.tenants.get(id));
    let grants = views.flat_map(|view| {
        view.given.iter().filter_map(|given| given.grant.clone()).chain(view.granted.values().cloned())
    });
    let mut known = KnownGrants { all: grants.collect(), used: Vec::new() };
    for owner in owners {
        let Some(view) = snapshot.tenants.get(&owner).cloned() else { continue };
        let given = changed.get(&owner).map_or_else(|| journal_grants(&view).0, |kept| kept.given.clone());
        let issued =
            given.into_iter().map(|given| issue(next, (&mut *snapshot, changed), &view, given, &mut known)).collect();
        // The owner may be among those that the grants went to.
        let now = snapshot.tenants.get(&owner).map_or_else(|| TenantView::clone(&view), |now| TenantView::clone(now));
        snapshot.tenants.insert(owner, Arc::new(TenantView { given: issued, ..now }));
    }
    let KnownGrants { all, used } = known;
    let is_over = |grant: &Arc<Grant>| used.iter().all(|used| !Arc::ptr_eq(used, grant));
    next.effects.extend(all.into_iter().filter(is_over).map(|grant| ChangeEffect::Access(grant, None)));
}

/// The tenants whose grants may have changed: those that have, and the owners of what those have received.
fn owners_of(
    before: &DirectorySnapshot,
    snapshot: &DirectorySnapshot,
    changed: &BTreeMap<u32, &JournalTenant>,
) -> BTreeSet<u32> {
    let mut owners: BTreeSet<u32> = changed.keys().copied().collect();
    let mut add = |name: &str| owners.extend(name.split('/').next().and_then(|owner| snapshot.names.get(owner)));
    for (id, kept) in changed {
        kept.received.iter().for_each(|received| add(&received.name));
        let old = before.tenants.get(id).into_iter().flat_map(|view| view.granted.values());
        old.for_each(|grant| add(&grant.name()));
    }
    owners
}

/// An entry of an owner's list, with the grantee's side if the grantee has it.
fn issue(
    next: &mut DirectoryState,
    (snapshot, changed): (&mut DirectorySnapshot, &BTreeMap<u32, &JournalTenant>),
    owner: &TenantView,
    given: JournalGivenGrant,
    known: &mut KnownGrants,
) -> IssuedGrant {
    let JournalGivenGrant { table, to, access } = given;
    let name = format!("{}/{table}", owner.tenant.name);
    let received = snapshot.names.get(to.as_str()).copied().and_then(|grantee| {
        let id = match changed.get(&grantee) {
            Some(kept) => kept.received.iter().find(|received| received.name == name)?.id,
            None => *snapshot.tenants.get(&grantee)?.granted_names.get(name.as_str())?,
        };
        Some((grantee, id, owner.table_by_name(&table)?))
    });
    let grant = received.map(|(grantee, id, entry)| {
        let grant = known.take(id, grantee, entry).unwrap_or_else(|| {
            Arc::new(Grant {
                id,
                name: CurrentName::new(&name),
                owner: owner.tenant.name.as_str().into(),
                grantee_id: grantee,
                entry: Arc::clone(entry),
                access: AtomicU8::new(access as u8),
            })
        });
        next.effects.push(ChangeEffect::Access(Arc::clone(&grant), Some(access)));
        if let Some(view) = snapshot.tenants.get(&grantee) {
            let mut view = TenantView::clone(view);
            if *grant.name() != *name {
                let name: Arc<str> = name.as_str().into();
                next.effects.push(ChangeEffect::GrantName(Arc::clone(&grant), Arc::clone(&name)));
                view.renamed.insert(id, name);
            }
            view.granted.insert(id, Arc::clone(&grant));
            view.granted_names.insert(name.as_str().into(), id);
            snapshot.tenants.insert(grantee, Arc::new(view));
        }
        grant
    });
    IssuedGrant { table: table.as_str().into(), to: to.as_str().into(), access, grant }
}

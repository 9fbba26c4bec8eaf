//! How the directory changes: under one lock, agreed with the other servers of a cluster, written to the journal, and
//! then published as a new snapshot.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::change_log;
use super::directory_state::{ChangeEffect, DirectoryState};
use super::error::DirectoryError;
use super::snapshot::DirectorySnapshot;
use super::tenant_ref::TenantRef;
use super::{Directory, TenantAccount, TenantView};

impl Directory {
    /// Runs a change under the lock. If it succeeds, its result is written to the journal and the snapshot is
    /// published; else nothing changes.
    pub(super) fn change<T>(
        &self,
        change: impl FnMut(&mut DirectoryState, &mut DirectorySnapshot) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        self.change_and_log(change_log::log_changes, change)
    }

    /// The same, with a function that logs the change from the snapshots before and after.
    pub(super) fn change_and_log<T>(
        &self,
        tell: fn(&DirectorySnapshot, &DirectorySnapshot),
        change: impl FnMut(&mut DirectoryState, &mut DirectorySnapshot) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        self.change_and_record(true, tell, change)
    }

    /// The same; `must` is whether a change that cannot be written is refused. A change that the server makes itself,
    /// and that only restricts, is made in any case and written with the next one.
    pub(super) fn change_and_record<T>(
        &self,
        must: bool,
        tell: fn(&DirectorySnapshot, &DirectorySnapshot),
        mut change: impl FnMut(&mut DirectoryState, &mut DirectorySnapshot) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        self.until_agreed(|| {
            self.publish_change(tell, |next, before, snapshot| {
                let done = change(next, snapshot)?;
                self.agree(next, before, snapshot, must)?;
                match self.keep(next, before, snapshot) {
                    // What is agreed is read again at the next start.
                    Err(error) if must && next.agreed.is_none() => Err(error),
                    _ => Ok(done),
                }
            })
        })
    }

    /// Runs a change under the lock, and publishes its snapshot if it succeeds.
    pub(super) fn publish_change<T>(
        &self,
        tell: fn(&DirectorySnapshot, &DirectorySnapshot),
        change: impl FnOnce(&mut DirectoryState, &DirectorySnapshot, &mut DirectorySnapshot) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        let done = {
            let mut next = self.next.lock();
            let before = self.snapshot.load_full();
            let mut snapshot = DirectorySnapshot::clone(&before);
            next.effects.clear();
            let done = change(&mut next, &before, &mut snapshot)?;
            self.take_effect(&mut next, &snapshot);
            snapshot.generation += 1;
            let generation = snapshot.generation;
            tell(&before, &snapshot);
            self.snapshot.store(Arc::new(snapshot));
            self.generation.store(generation, Ordering::Release);
            done
        };
        if let Some(wake) = &*self.waker.read() {
            wake();
        }
        Ok(done)
    }

    /// The immediate effects of a change that is certain.
    fn take_effect(&self, next: &mut DirectoryState, snapshot: &DirectorySnapshot) {
        let mut gone = Vec::new();
        for effect in next.effects.drain(..) {
            match effect {
                ChangeEffect::Access(grant, access) => grant.set(access),
                ChangeEffect::Dropped(table) => self.dropped.lock().push(table),
                ChangeEffect::Durability(entry, durability, number) => entry.durability.set(durability, number),
                ChangeEffect::Settings(entry, settings) => settings.apply(&entry, &self.epochs.register()),
                ChangeEffect::GrantName(grant, name) => grant.name.set(name),
                ChangeEffect::Gone(view) => {
                    view.tenant.usage.set_deleted();
                    gone.push(view.tenant.id);
                }
            }
        }
        // Another tenant may have got the id by the same news.
        for id in gone.into_iter().filter(|id| snapshot.tenant(*id).is_none()) {
            next.table.remove(&id);
            next.granted.remove(&id);
        }
    }

    /// Changes one tenant's view.
    pub(super) fn change_view<'a, T>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        mut change: impl FnMut(&mut DirectoryState, &mut TenantView) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        let tenant = tenant.into();
        self.change(|next, snapshot| {
            let mut view = TenantView::clone(snapshot.find(tenant)?);
            let done = change(next, &mut view)?;
            snapshot.tenants.insert(view.tenant.id, Arc::new(view));
            Ok(done)
        })
    }

    /// Restricts rights of a tenant, whether or not that can be written.
    pub(super) fn restrict_view<'a, T>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        mut change: impl FnMut(&mut DirectoryState, &mut TenantView) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        let tenant = tenant.into();
        self.change_and_record(false, change_log::log_changes, |next, snapshot| {
            let mut view = TenantView::clone(snapshot.find(tenant)?);
            let done = change(next, &mut view)?;
            snapshot.tenants.insert(view.tenant.id, Arc::new(view));
            Ok(done)
        })
    }

    /// Restricts rights of several tenants, whether or not that can be written.
    pub(super) fn restrict<T>(
        &self,
        change: impl FnMut(&mut DirectoryState, &mut DirectorySnapshot) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        self.change_and_record(false, change_log::log_changes, change)
    }

    /// Changes one tenant's settings.
    pub(super) fn change_tenant<'a, T>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        mut change: impl FnMut(&mut DirectoryState, &mut TenantAccount) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        self.change_view(tenant, |next, view| {
            let mut tenant = TenantAccount::clone(&view.tenant);
            let done = change(next, &mut tenant)?;
            view.tenant = Arc::new(tenant);
            Ok(done)
        })
    }
}

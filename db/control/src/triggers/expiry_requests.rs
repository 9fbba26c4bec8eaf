//! Asks for the expiry of records to be logged in tables whose triggers are called for it, and in no others.
//!
//! Asking is a change of the directory, which waits for the disk. So it is never made by the thread that makes the
//! calls, and the asking thread has nothing but the turn of the one tenant. In a cluster it is this server's own: its
//! triggers read its own log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::active::ActiveTrigger;
use super::definition::TriggerOp;
use super::trigger_store::TriggerStore;
use sandstorm_catalog::{Directory, DirectoryError, ExpiryWatcher, TenantView};

/// Time between two attempts to have the tables of a tenant's triggers log what expires, while they fail.
pub(super) const EXPIRY_ASK_EVERY: Duration = Duration::from_secs(1);

/// Requests by tenants.
#[derive(Default)]
pub(super) struct ExpiryRequests {
    tenants: Mutex<BTreeMap<u32, TenantRequest>>,
    ended: Condvar,
}

/// The request of a tenant.
struct TenantRequest {
    /// When the last one began.
    asked_at: Instant,
    is_asking: bool,
    is_queued: bool,
}

/// Ends a tenant's turn, also if its request panics.
struct RequestTurn<'r> {
    requests: &'r ExpiryRequests,
    tenant: u32,
}

impl ExpiryRequests {
    /// Makes a request while no other of the same tenant is made: what is asked for last is what holds. Requests of
    /// other tenants are made meanwhile.
    pub(super) fn make<T>(&self, tenant: u32, ask: impl FnOnce() -> T) -> T {
        let mut tenants = self.tenants.lock();
        while tenants.get(&tenant).is_some_and(|request| request.is_asking) {
            self.ended.wait(&mut tenants);
        }
        let asked_at = Instant::now();
        tenants.insert(tenant, TenantRequest { asked_at, is_asking: true, is_queued: false });
        drop(tenants);
        let _turn = RequestTurn { requests: self, tenant };
        ask()
    }

    /// Whether a request that is to be repeated may be queued now: none of the tenant is queued or made, and the last
    /// one is long enough ago.
    pub(super) fn queue(&self, tenant: u32) -> bool {
        let mut tenants = self.tenants.lock();
        let request = tenants.entry(tenant);
        let is_waiting = |request: &TenantRequest| {
            request.is_asking || request.is_queued || request.asked_at.elapsed() < EXPIRY_ASK_EVERY
        };
        match request {
            std::collections::btree_map::Entry::Occupied(found) if is_waiting(found.get()) => false,
            request => {
                let asked_at = Instant::now();
                let queued = TenantRequest { asked_at, is_asking: false, is_queued: true };
                request.insert_entry(queued);
                true
            }
        }
    }
}

impl Drop for RequestTurn<'_> {
    fn drop(&mut self) {
        let mut tenants = self.requests.tenants.lock();
        if let Some(request) = tenants.get_mut(&self.tenant) {
            request.is_asking = false;
        }
        // Those of tenants that are gone are not kept.
        tenants.retain(|_, request| {
            request.is_asking || request.is_queued || request.asked_at.elapsed() < EXPIRY_ASK_EVERY
        });
        self.requests.ended.notify_all();
    }
}

/// The table whose records' expiry a trigger is called for.
fn wanted_of(trigger: &ActiveTrigger) -> Option<&str> {
    trigger.table().filter(|_| trigger.spec.wants(TriggerOp::Expire))
}

/// Whether a trigger wants what its table does not log yet: the table is new, or has this name since a moment ago.
pub(super) fn is_missing(trigger: &ActiveTrigger, view: &TenantView) -> bool {
    let entry = wanted_of(trigger).and_then(|table| view.table_by_name(table));
    entry.is_some_and(|entry| !view.is_expiry_watched(entry, ExpiryWatcher::Triggers))
}

/// Asks for those tables of a tenant that its triggers want, and for no others.
///
/// # Errors
/// The journal cannot be written; tables that came before are done.
pub(super) fn ask(directory: &Directory, store: &TriggerStore, tenant: u32) -> Result<(), DirectoryError> {
    let mut wanted = BTreeSet::new();
    if let Some(of_tenant) = store.find(tenant) {
        of_tenant.each(|kept| wanted.extend(wanted_of(&kept.trigger).map(str::to_owned)));
    }
    let snapshot = directory.snapshot();
    let Some(view) = snapshot.tenant(tenant) else { return Ok(()) };
    for entry in view.tables.values() {
        let is_wanted = wanted.contains(&*entry.name());
        if view.is_expiry_watched(entry, ExpiryWatcher::Triggers) != is_wanted {
            match directory.watch_expiry_for_triggers(tenant, entry, is_wanted) {
                // It was dropped, or has another name, since the snapshot.
                Ok(_) | Err(DirectoryError::UnknownTable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Asks for the tables of all tenants, before other threads do. A server of a cluster that starts has told of all.
pub(super) fn ask_at_start(directory: &Directory, store: &TriggerStore) {
    for view in directory.snapshot().iter() {
        let tenant = view.tenant.id;
        if let Err(error) = ask(directory, store, tenant) {
            tracing::warn!(tenant, %error, "a trigger waits for what expires");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;

    use super::*;

    /// The second request of a tenant waits for the first; that of another tenant does not, and a repeat is not queued
    /// while one is made.
    #[test]
    fn a_request_that_waits_holds_up_its_own_tenant_alone() {
        let requests = ExpiryRequests::default();
        let (began, begins) = channel();
        let (end, ends) = channel::<()>();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let (requests, order) = (&requests, &order);
            let first = scope.spawn(move || {
                requests.make(1, || {
                    began.send(()).expect("somebody waits");
                    // It waits as for etcd, until the other tenant is done.
                    let _ended = ends.recv();
                    order.lock().push("first");
                });
            });
            begins.recv().expect("it begins");
            let second = scope.spawn(move || requests.make(1, || order.lock().push("second")));
            assert!(!requests.queue(1), "one is made");
            assert!(requests.queue(2) && !requests.queue(2), "once");
            requests.make(2, || order.lock().push("other"));
            assert!(!requests.queue(2), "it was made just now");
            assert_eq!(*order.lock(), ["other"]);
            end.send(()).expect("it waits");
            first.join().expect("no panic");
            second.join().expect("no panic");
        });
        assert_eq!(*order.lock(), ["other", "first", "second"]);
    }

    #[test]
    fn a_request_that_panics_leaves_the_turn_to_the_next() {
        let requests = ExpiryRequests::default();
        let panicked = catch_unwind(AssertUnwindSafe(|| requests.make(1, || panic!("as a bug would"))));
        assert!(panicked.is_err());
        assert_eq!(requests.make(1, || 7), 7);
    }
}

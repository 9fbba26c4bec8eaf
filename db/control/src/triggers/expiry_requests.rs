//! Asks for the expiry of records to be logged where triggers want to be called for it, and nowhere else.

use std::collections::BTreeSet;

use super::active::ActiveTrigger;
use super::definition::TriggerOp;
use sandstorm_catalog::{Directory, DirectoryError, ExpiryWatcher, TenantView};

/// The table whose records' expiry a trigger is called for.
pub(super) fn wanted_of(trigger: &ActiveTrigger) -> Option<&str> {
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
pub(super) fn ask(directory: &Directory, tenant: u32, wanted: &BTreeSet<String>) -> Result<(), DirectoryError> {
    let snapshot = directory.snapshot();
    let Some(view) = snapshot.tenant(tenant) else { return Ok(()) };
    for entry in view.tables.values() {
        let (name, watcher) = (entry.name(), ExpiryWatcher::Triggers);
        let is_wanted = wanted.contains(&*name);
        if view.is_expiry_watched(entry, watcher) != is_wanted {
            match directory.watch_expiry(tenant, &name, watcher, is_wanted) {
                // It was dropped, or has another name, since the snapshot.
                Ok(_) | Err(DirectoryError::UnknownTable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

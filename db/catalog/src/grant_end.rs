//! Ends grants: each one, all of a table, all of a tenant.

use std::sync::Arc;

use super::TenantView;
use super::directory_state::{ChangeEffect, DirectoryState};
use super::grant::IssuedGrant;
use super::snapshot::DirectorySnapshot;

/// Ends a grant that was given, and removes it from the grantee's view.
pub(super) fn end_grant(next: &mut DirectoryState, snapshot: &mut DirectorySnapshot, given: &IssuedGrant) {
    let Some(grant) = &given.grant else { return };
    let ended = grant.access().is_none();
    next.effects.push(ChangeEffect::Access(grant.clone(), None));
    // An ended one has left the grantee's view already, and another tenant may have the grantee's id by now.
    if let Some(grantee) = snapshot.tenants.get(&grant.grantee_id).filter(|_| !ended) {
        let mut view = TenantView::clone(grantee);
        view.forget_granted(grant);
        snapshot.tenants.insert(grant.grantee_id, Arc::new(view));
    }
}

/// Ends all grants of a table that is being dropped. `view` is its owner's, which is not in the snapshot yet.
pub(super) fn end_table_grants(
    next: &mut DirectoryState,
    snapshot: &mut DirectorySnapshot,
    view: &mut TenantView,
    table: &str,
) {
    for given in view.given.extract_if(.., |given| *given.table == *table) {
        end_grant(next, snapshot, &given);
    }
}

/// Ends all grants of and to a tenant that is no longer in the snapshot.
pub(super) fn end_tenant_grants(next: &mut DirectoryState, snapshot: &mut DirectorySnapshot, view: &TenantView) {
    view.given.iter().for_each(|given| end_grant(next, snapshot, given));
    next.effects.extend(view.granted.values().map(|grant| ChangeEffect::Access(grant.clone(), None)));
}

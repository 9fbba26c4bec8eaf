//! Logs each change of the directory at `info`, with its subject in fields of their own. It compares the snapshots
//! before and after, so no kind of change is left out, and no request is delayed. No token, and no stored form of one,
//! is among the compared values.

use std::sync::Arc;

use tracing::{Level, info};

use super::snapshot::DirectorySnapshot;
use super::{Quotas, TenantView};

/// Logs the effect of a change.
pub(super) fn log_changes(before: &DirectorySnapshot, after: &DirectorySnapshot) {
    if !tracing::enabled!(Level::INFO) {
        return;
    }
    for (id, view) in &before.tenants {
        if !after.tenants.contains_key(id) {
            info!(tenant = &*view.tenant.name, id, tables = view.tables.len(), "tenant deleted");
        }
    }
    for (id, view) in &after.tenants {
        match before.tenants.get(id) {
            Some(old) if Arc::ptr_eq(old, view) => {}
            Some(old) => log_tenant_changes(old, view),
            None => {
                let tenant = &view.tenant;
                let (origin, open, home_worker) = (tenant.origin.name(), tenant.open, tenant.home_worker);
                let code = tenant.code.policy().name();
                info!(tenant = &*tenant.name, id, origin, open, home_worker, code, "tenant created");
            }
        }
    }
}

/// Logs the tenants of an earlier start.
pub(super) fn log_restored(_before: &DirectorySnapshot, after: &DirectorySnapshot) {
    if after.tenants.is_empty() {
        return;
    }
    let sum = |count: fn(&TenantView) -> usize| after.tenants.values().map(|view| count(view)).sum::<usize>();
    let (tables, grants) = (sum(|view| view.tables.len()), sum(|view| view.given.len()));
    let extensions = sum(|view| view.versions.loaded().count());
    info!(tenants = after.tenants.len(), tables, grants, extensions, "restored from the journal");
}

fn log_tenant_changes(old: &TenantView, new: &TenantView) {
    if !Arc::ptr_eq(&old.tenant, &new.tenant) {
        settings(old, new);
    }
    tables(old, new);
    extensions(old, new);
    grants(old, new);
    secrets(old, new);
}

fn settings(old: &TenantView, new: &TenantView) {
    let (before, now) = (&old.tenant, &new.tenant);
    let tenant = &*now.name;
    if let Some(changed) = quotas(&before.quotas, &now.quotas) {
        info!(tenant, changed, "quotas changed");
    }
    if before.open != now.open {
        info!(tenant, open = now.open, "tenant opened or closed");
    }
    if before.code.policy() != now.code.policy() {
        let (code, was) = (now.code.policy().name(), before.code.policy().name());
        info!(tenant, code, was, "tenant has another code policy");
    }
    if before.home_worker != now.home_worker {
        info!(tenant, home_worker = now.home_worker, "tenant has another home worker");
    }
    if before.home_fixed != now.home_fixed {
        info!(tenant, home_fixed = now.home_fixed, "home worker fixed, or following its load");
    }
    let names = before.budgets.keys().chain(now.budgets.keys().filter(|name| !before.budgets.contains_key(*name)));
    for extension in names.filter(|name| before.budgets.get(*name) != now.budgets.get(*name)) {
        let own = now.budgets.contains_key(extension);
        info!(tenant, extension = &**extension, own, "budget of an extension changed");
    }
    // The credential is a number that differs for every new token.
    match (&before.old, &now.old) {
        (_, Some(_)) if before.credential != now.credential => {
            info!(tenant, "token replaced; the old one works until its grace ends");
        }
        (_, None) if before.credential != now.credential && before.open == now.open => info!(tenant, "token replaced"),
        (Some(_), None) => info!(tenant, "the old token is void"),
        _ => {}
    }
}

/// The quotas that differ, each with both values.
fn quotas(before: &Quotas, now: &Quotas) -> Option<String> {
    let both = before.list().into_iter().zip(now.list());
    let differ = both.filter(|(before, now)| before != now);
    let shown: Vec<String> = differ.map(|((name, before), (_, now))| format!("{name} {before} -> {now}")).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

fn tables(old: &TenantView, new: &TenantView) {
    let tenant = &*new.tenant.name;
    for (id, table) in old.tables.iter().filter(|(id, _)| !new.tables.contains_key(*id)) {
        info!(tenant, table = &*table.name(), id, "table dropped");
    }
    for (id, table) in new.tables.iter().filter(|(id, _)| !old.tables.contains_key(*id)) {
        let (mode, ordered) = (table.mode().name(), table.table.is_ordered());
        info!(tenant, table = &*table.name(), id, mode, ordered, quota_bytes = table.quota_bytes(), "table created");
    }
}

/// Names alone: no value is among the compared ones.
fn secrets(old: &TenantView, new: &TenantView) {
    if Arc::ptr_eq(&old.secrets, &new.secrets) {
        return;
    }
    let (tenant, names) = (&*new.tenant.name, |view: &TenantView| -> Vec<(String, u64)> {
        view.secrets.list().map(|(name, set_at_ms, _)| (name.to_owned(), set_at_ms)).collect()
    });
    let (before, now) = (names(old), names(new));
    for (secret, _) in now.iter().filter(|entry| !before.contains(entry)) {
        info!(tenant, secret, "secret set");
    }
    for (secret, _) in before.iter().filter(|(name, _)| !now.iter().any(|(other, _)| other == name)) {
        info!(tenant, secret, "secret removed");
    }
}

fn extensions(old: &TenantView, new: &TenantView) {
    let tenant = &*new.tenant.name;
    for (name, extension) in old.extensions.iter().filter(|(name, _)| !new.extensions.contains_key(*name)) {
        info!(tenant, extension = &**name, version = extension.version, "extension unloaded");
    }
    for (name, extension) in &new.extensions {
        let before = old.extensions.get(name);
        if before.is_none_or(|before| !Arc::ptr_eq(before, extension)) {
            let replaced = before.map(|before| before.version);
            let tier = extension.tier.name();
            info!(tenant, extension = &**name, version = extension.version, replaced, tier, "extension loaded");
        }
    }
    for (name, why) in new.confined.iter().filter(|(name, _)| !old.confined.contains_key(*name)) {
        info!(tenant, extension = &**name, why = &**why, "extension confined to the sandboxed tier");
    }
    for name in old.confined.keys().filter(|name| !new.confined.contains_key(*name)) {
        info!(tenant, extension = &**name, "extension no longer confined");
    }
    for (name, why) in new.suspended.iter().filter(|(name, _)| !old.suspended.contains_key(*name)) {
        info!(tenant, extension = &**name, by_operator = why.binding, "extension suspended");
    }
    for (name, _) in old.suspended.iter().filter(|(name, _)| !new.suspended.contains_key(*name)) {
        info!(tenant, extension = &**name, "extension resumed");
    }
}

fn grants(old: &TenantView, new: &TenantView) {
    let tenant = &*new.tenant.name;
    for given in &new.given {
        let same = |other: &&super::IssuedGrant| other.table == given.table && other.to == given.to;
        if old.given.iter().find(same).is_none_or(|before| before.access != given.access) {
            info!(tenant, table = &*given.table, to = &*given.to, access = given.access.name(), "table granted");
        }
    }
    for given in &old.given {
        if !new.given.iter().any(|other| other.table == given.table && other.to == given.to) {
            info!(tenant, table = &*given.table, to = &*given.to, "grant ended");
        }
    }
    // The owner's list does not change when the grantee gives the grant up.
    for (id, grant) in old.granted.iter().filter(|(id, _)| !new.granted.contains_key(*id)) {
        info!(tenant, table = &*grant.name(), id, "granted table dropped");
    }
}

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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::{Directory, GrantAccess, GrantIssuer, NewTable, NewTenant, QuotaChanges};
    use sandstorm_store::{Epochs, StorageMode};

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The lines that are logged at this level during `work`.
    fn logged(level: Level, work: impl FnOnce()) -> Vec<String> {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(level).with_ansi(false).without_time().with_target(false);
        tracing::subscriber::with_default(subscriber.with_writer(move || writer.clone()).finish(), work);
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn new(name: &str) -> NewTenant {
        NewTenant { name: name.to_owned(), ..NewTenant::default() }
    }

    #[test]
    fn the_log_tells_of_each_change_at_info_and_never_a_token() {
        let directory = Directory::new(Epochs::new());
        let mut tokens = Vec::new();
        let lines = logged(Level::INFO, || {
            tokens.push(directory.create_tenant(new("shop")).unwrap().1);
            directory.create_tenant(new("reports")).unwrap();
            let (name, mode) = ("carts".to_owned(), StorageMode::Cache);
            let carts = NewTable { name, id: None, mode, quota_bytes: None, ..NewTable::named("") };
            directory.create_table("shop", carts).unwrap();
            let changes = QuotaChanges { requests_per_s: Some(50), weight: Some(2), ..QuotaChanges::default() };
            directory.set_quotas("shop", &changes).unwrap();
            directory.grant("shop", "carts", "reports", GrantAccess::ReadWrite, GrantIssuer::Operator).unwrap();
            directory.revoke("shop", "carts", "reports").unwrap();
            tokens.push(directory.rotate_with_grace("shop", Duration::from_secs(60)).unwrap());
            tokens.push(directory.rotate_token("shop").unwrap());
            directory.drop_table("shop", "carts").unwrap();
            directory.delete_tenant("shop").unwrap();
        });
        let expected = [
            "INFO tenant created tenant=\"shop\" id=1 origin=\"made\" open=false home_worker=0 code=\"sandboxed\"",
            "INFO tenant created tenant=\"reports\" id=2 origin=\"made\" open=false home_worker=0 code=\"sandboxed\"",
            "INFO table created tenant=\"shop\" table=\"carts\" id=1 mode=\"cache\" ordered=false quota_bytes=536870912",
            "INFO quotas changed tenant=\"shop\" changed=\"requests_per_s 0 -> 50, weight 1 -> 2\"",
            "INFO table granted tenant=\"shop\" table=\"carts\" to=\"reports\" access=\"read_write\"",
            "INFO grant ended tenant=\"shop\" table=\"carts\" to=\"reports\"",
            "INFO granted table dropped tenant=\"reports\" table=\"shop/carts\" id=281474976710656",
            "INFO token replaced; the old one works until its grace ends tenant=\"shop\"",
            "INFO token replaced tenant=\"shop\"",
            "INFO table dropped tenant=\"shop\" table=\"carts\" id=1",
            "INFO tenant deleted tenant=\"shop\" id=1 tables=0",
        ];
        let sorted = |mut lines: Vec<String>| {
            lines.sort();
            lines
        };
        assert_eq!(sorted(lines.clone()), sorted(expected.map(str::to_owned).to_vec()));
        assert!(tokens.iter().all(|token| token.len() >= 20 && !lines.concat().contains(token.as_str())));
    }

    #[test]
    fn tenants_of_a_journal_without_tiers_are_named_in_one_line_at_the_usual_level() {
        let tenant = |id: u32, code: &str| {
            let text = format!(
                r#"{{"id":{id},"name":"t{id}","origin":"made","open":true,"home_worker":0,"quotas":{{}},{code}
                "token":"","budgets":{{}},"tables":[],"next_table":1,"given":[],"received":[],"next_granted":1,
                "suspended":{{}},"versions":{{"loaded":{{}},"unloaded":{{}},"floor":0}}}}"#
            );
            let mut tenant: crate::journal::JournalTenant = serde_json::from_str(&text).unwrap();
            tenant.token = crate::journal::JournalToken::of(
                &sandstorm_accounts::TokenHash::of_chosen("a-token-of-twenty-letters").unwrap(),
            );
            (id, tenant)
        };
        let old = (1..=12).map(|id| tenant(id, ""));
        let tenants = old.chain([tenant(13, r#""code":"none","#)]).collect();
        let kept = crate::journal::DirectoryImage { tenants, next_tenant: 14, next_home: 0 };
        let directory = Directory::new(Epochs::new());
        let lines = logged(Level::WARN, || directory.restore(&kept).unwrap());
        let [line] = lines.as_slice() else { panic!("one line: {lines:?}") };
        assert!(line.starts_with("WARN 12 tenants of an earlier version keep code = native"), "{line}");
        assert!(line.contains("t1, t2") && line.contains("t10 and 2 more)") && line.contains("--code sandboxed"));
    }

    #[test]
    fn nothing_is_said_of_changes_at_the_usual_level() {
        let directory = Directory::new(Epochs::new());
        let lines = logged(Level::WARN, || {
            directory.create_tenant(new("shop")).unwrap();
            directory.delete_tenant("shop").unwrap();
        });
        assert_eq!(lines, Vec::<String>::new());
    }
}

//! Applies what other servers of the cluster have changed: see [`super::agreement`].
//!
//! What is in use stays: a table's records, an account's counters, a session whose token is still good. The code of a
//! new version is loaded afterwards, by the control plane; until then the version before is called. What a change of a
//! table's durability needs of this server's log is done then, too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandstorm_log::LogError;
use sandstorm_net::CodeTier;

use super::agreed_changes::agreed_form;
use super::agreed_grants::settle_grants;
use super::agreement::{AgreedNews, AgreedRevision};
use super::change_log;
use super::directory::remove_tenant;
use super::directory_state::{ChangeEffect, DirectoryState};
use super::error::DirectoryError;
use super::grant::FIRST_GRANTED_ID;
use super::journal::{JournalTable, JournalTenant, JournalToken};
use super::persistence::journal_tenant;
use super::snapshot::DirectorySnapshot;
use super::table_durability::TableDurability;
use super::table_settings::TableDefinition;
use super::{Directory, TableEntry, TenantAccount, TenantView};

impl Directory {
    /// Applies news on top of `base`; nothing, if more has been applied since.
    pub(super) fn apply_agreed(
        &self,
        base: AgreedRevision,
        news: &AgreedNews,
        tenants: &BTreeMap<u32, JournalTenant>,
    ) -> Result<(), DirectoryError> {
        self.publish_change(change_log::log_changes, |next, before, snapshot| {
            if next.agreed.as_ref().is_none_or(|agreed| agreed.applied != base) {
                return Ok(());
            }
            let is_all = self.put_agreed(next, (before, &mut *snapshot), news, tenants);
            next.tenant = news.next_tenant.max(1);
            if let Some(agreed) = &mut next.agreed {
                // Until all is applied, it is read again, and this server changes nothing on top of it.
                (agreed.applied, agreed.missed) =
                    if is_all { (news.revision, None) } else { (base, Some(news.revision)) };
            }
            // What is agreed is read again at the next start.
            let _written_later = self.keep(next, before, snapshot);
            Ok(())
        })?;
        self.has_graces.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns whether all of it was taken over.
    fn put_agreed(
        &self,
        next: &mut DirectoryState,
        (before, snapshot): (&DirectorySnapshot, &mut DirectorySnapshot),
        news: &AgreedNews,
        tenants: &BTreeMap<u32, JournalTenant>,
    ) -> bool {
        let is_told = next.agreed.as_ref().is_some_and(|agreed| agreed.missed == Some(news.revision));
        let mut is_all = true;
        let is_gone = |view: &TenantView| match tenants.get(&view.tenant.id) {
            None => news.is_whole,
            // Another tenant has got the id, maybe with the name.
            Some(kept) => (&*kept.name, kept.made) != (&*view.tenant.name, view.tenant.made),
        };
        let gone: BTreeSet<u32> = before.iter().filter(|view| is_gone(view)).map(|view| view.tenant.id).collect();
        gone.iter().for_each(|id| drop(remove_tenant(next, snapshot, *id)));
        let mut changed = BTreeMap::new();
        for (id, kept) in tenants {
            let old = before.tenants.get(id).filter(|_| !gone.contains(id));
            if old.is_some_and(|old| agreed_form(journal_tenant(next, old)) == *kept) {
                continue;
            }
            match self.agreed_view(next, old.map(|old| &**old), kept) {
                Ok(mut view) => {
                    let agreed = next.agreed.as_ref();
                    if agreed.is_some_and(|agreed| agreed.unproposed.contains(id)) {
                        old.iter().for_each(|old| keep_restrictions(&mut view, old));
                    }
                    snapshot.names.insert(kept.name.as_str().into(), *id);
                    snapshot.tenants.insert(*id, Arc::new(view));
                    next.table.insert(*id, kept.next_table);
                    next.granted.insert(*id, kept.next_granted.max(FIRST_GRANTED_ID));
                    changed.insert(*id, kept);
                }
                Err(error) => {
                    is_all = false;
                    if !is_told {
                        let (hint, tenant) = (error.hint(), &*kept.name);
                        tracing::error!(tenant, %error, "a tenant of the cluster is not taken over: {hint}");
                    }
                }
            }
        }
        settle_grants(next, before, snapshot, &changed);
        is_all
    }

    /// A tenant as it is agreed, without its grants, with what is used of it here.
    fn agreed_view(
        &self,
        next: &mut DirectoryState,
        old: Option<&TenantView>,
        kept: &JournalTenant,
    ) -> Result<TenantView, DirectoryError> {
        let mut plain = JournalTenant { tables: Vec::new(), ..kept.clone() };
        let secrets = old.filter(|old| old.secrets.journal() == kept.secrets).map(|old| Arc::clone(&old.secrets));
        if secrets.is_some() {
            plain.secrets.clear();
        }
        let mut view = self.restored_view(next, &plain)?;
        view.secrets = secrets.unwrap_or_else(|| Arc::clone(&view.secrets));
        let mut tenant = TenantAccount::clone(&view.tenant);
        match old {
            Some(old) => carry_over(&mut tenant, &old.tenant, kept),
            None => {
                tenant.home_worker = next.home_worker % self.options().workers.max(1);
                next.home_worker = tenant.home_worker + 1;
            }
        }
        self.set_spill_quota(&tenant);
        view.tenant = Arc::new(tenant);
        for table in &kept.tables {
            let used = old.and_then(|old| old.tables.get(&table.id)).filter(|entry| entry.serial == table.serial);
            match used {
                Some(entry) => keep_table(next, &mut view, entry, table),
                None => self.new_agreed_table(&mut view, table)?,
            }
        }
        Directory::set_spill_limits(&view);
        if let Some(old) = old {
            let is_used = |entry: &&Arc<TableEntry>| view.tables.values().any(|used| Arc::ptr_eq(used, entry));
            let dropped = old.tables.values().filter(|entry| !is_used(entry));
            next.effects.extend(dropped.cloned().map(ChangeEffect::Dropped));
            keep_code(&mut view, old);
        }
        Ok(view)
    }

    /// A table that another server has made.
    fn new_agreed_table(&self, view: &mut TenantView, table: &JournalTable) -> Result<(), DirectoryError> {
        let unavailable = |error: LogError| DirectoryError::JournalUnavailable(error.to_string());
        let entry = self.entry_of(view, table);
        let full_name = format!("{}/{}", view.tenant.name, table.name);
        if table.log != 0 {
            self.log.attach(&entry.table, (table.log, &full_name), table.durability).map_err(unavailable)?;
        }
        if let Some(backing) = &table.backing {
            self.restore_backing(view, &entry, backing);
            self.attach_marks(&entry, &full_name)?;
        }
        view.add_table(&entry, table.expiry);
        Ok(())
    }

    /// The tables whose changes are logged, by their numbers in the log: as it is agreed.
    ///
    /// # Errors
    /// What is agreed of a tenant does not hold here yet, in words. It may in a moment.
    pub fn log_numbers(&self) -> Result<AgreedLogNumbers, String> {
        // No news are applied meanwhile.
        let next = self.next.lock();
        if next.agreed.as_ref().is_some_and(|agreed| agreed.missed.is_some()) {
            return Err("what other servers have changed of a tenant could not be taken over here yet".to_owned());
        }
        let mut numbers = AgreedLogNumbers::default();
        for view in self.snapshot().iter() {
            for entry in view.tables.values() {
                let (held, agreed) = (entry.durability.number(), view.settings.get(&entry.id));
                let number = agreed.map_or(held, |settings| settings.log);
                if number != held {
                    let (tenant, table) = (&view.tenant.name, entry.name());
                    numbers.unsettled.insert(number, format!("{tenant}/{table}"));
                } else if number != 0 {
                    numbers.tables.insert(number, (view.tenant.id, Arc::clone(entry)));
                }
            }
        }
        Ok(numbers)
    }
}

/// Numbers of tables in the log, as the servers of a cluster have agreed on them.
#[derive(Debug, Default)]
pub struct AgreedLogNumbers {
    /// The tables that have that number here, too, with their tenants' ids.
    pub tables: HashMap<u64, (u32, Arc<TableEntry>)>,
    /// The names of those that do not have it here yet: a change of their durability is under way.
    pub unsettled: HashMap<u64, String>,
}

impl TenantView {
    /// What a crash may take of the records of an own table, as it is agreed: it may not hold here yet.
    pub fn agreed_durability(&self, entry: &TableEntry) -> TableDurability {
        self.settings.get(&entry.id).map_or_else(|| entry.durability(), |settings| settings.durability)
    }
}

/// What is used of an account goes on, and sessions whose tokens are still good.
fn carry_over(tenant: &mut TenantAccount, old: &TenantAccount, kept: &JournalTenant) {
    tenant.serial = old.serial;
    tenant.usage = Arc::clone(&old.usage);
    (tenant.home_worker, tenant.home_fixed) = (old.home_worker, old.home_fixed);
    let was_token = JournalToken::of(&old.token);
    if was_token == kept.token && tenant.open == old.open {
        tenant.credential = old.credential;
    }
    let (Some(grace), Some(kept)) = (&mut tenant.old, &kept.old_token) else { return };
    match &old.old {
        _ if kept.token == was_token => grace.credential = old.credential,
        Some(before) if JournalToken::of(&before.token) == kept.token => grace.credential = before.credential,
        _ => {}
    }
}

/// A table that is here already.
fn keep_table(next: &mut DirectoryState, view: &mut TenantView, entry: &Arc<TableEntry>, table: &JournalTable) {
    let settings = TableDefinition {
        name: table.name.as_str().into(),
        mode: table.mode(),
        quota_bytes: table.quota_bytes,
        durability: table.durability,
        log: table.log,
        backing: table.backing.clone(),
        expiry: table.expiry,
    };
    view.table_names.insert(table.name.as_str().into(), entry.id);
    view.tables.insert(entry.id, Arc::clone(entry));
    view.settings.insert(entry.id, settings.clone());
    next.effects.push(ChangeEffect::Settings(Arc::clone(entry), settings));
}

/// What this server has restricted while nothing could be agreed stays so until the others know of it.
fn keep_restrictions(view: &mut TenantView, old: &TenantView) {
    for (name, why) in &old.suspended {
        view.suspended.entry(name.clone()).or_insert_with(|| Arc::clone(why));
    }
    for (name, why) in &old.confined {
        view.confined.entry(name.clone()).or_insert_with(|| why.clone());
    }
}

/// The code that is loaded of extensions which are still there.
fn keep_code(view: &mut TenantView, old: &TenantView) {
    for (name, code) in &old.extensions {
        let stays = match (view.enabled.get(name), old.enabled.get(name)) {
            (Some(now), Some(before)) => now.is_of(before.owner_id, &before.extension),
            (None, None) => view.versions.loaded().any(|(loaded, _)| loaded == &**name),
            _ => false,
        };
        // Native code of a tenant or an extension that is sandboxed now is called no more, whether or not other code of
        // it can be loaded here.
        let may_run = code.tier == CodeTier::Sandboxed || view.tier_of(name) == Some(CodeTier::Native);
        if stays && may_run {
            view.extensions.insert(name.clone(), Arc::clone(code));
        }
    }
    view.kept = old.kept.clone();
    old.kept.keys().for_each(|name| view.settle_kept(name, None));
}

//! Converts the directory to its persisted state, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use super::directory_state::DirectoryState;
use super::error::DirectoryError;
use super::expiry_watchers::ExpiryWatchers;
use super::grant::FIRST_GRANTED_ID;
use super::journal::{
    DirectoryImage, Journal, JournalEntry, JournalError, JournalSuspension, JournalTable, JournalTenant, JournalToken,
};
use super::secrets::TenantSecrets;
use super::snapshot::DirectorySnapshot;
use super::suspension::Suspension;
use super::table_durability::CurrentDurability;
use super::table_settings::{CurrentName, TableDefinition};
use super::tenant_code::TenantCode;
use super::token_rotation::{ClockReading, OldToken};
use super::{Directory, TableEntry, TenantAccount, TenantView, change_log, grants};
use sandstorm_accounts::TenantUsage;
use sandstorm_extension::CodePolicy;
use sandstorm_store::TableConfig;

/// The code of tenants in journals that do not say it: servers that wrote these ran it so.
const CODE_OF_OLD_JOURNALS: CodePolicy = CodePolicy::Native;
/// Names of tenants in a line of the log, at most.
const LOGGED_NAMES: usize = 10;

/// Logs that tenants of an older journal keep the native tier: one line.
fn log_old_tenants(kept: &DirectoryImage) {
    let old = kept.tenants.values().filter(|tenant| tenant.code.is_none());
    let names: Vec<&str> = old.map(|tenant| tenant.name.as_str()).collect();
    if names.is_empty() {
        return;
    }
    let (shown, more) = (names.len().min(LOGGED_NAMES), names.len().saturating_sub(LOGGED_NAMES));
    tracing::warn!(
        "{} tenants of an earlier version keep code = native, in which they ran ({}{}); new tenants have the \
         configured default; `sandstorm tenant set NAME --code sandboxed` moves one",
        names.len(),
        names[..shown].join(", "),
        if more > 0 { format!(" and {more} more") } else { String::new() }
    );
}

impl Directory {
    /// Writes the current state, and every later change, to that journal: a change is on the disk before it is visible.
    /// If the disk is full, but the journal has the current state, changes are refused until there is space.
    ///
    /// # Errors
    /// [`JournalError`]: it cannot be written for another reason, or it was empty.
    pub fn start_journal(&self, mut journal: Journal) -> Result<(), JournalError> {
        // Behind the lock for changes.
        let next = self.next.lock();
        let image = directory_image(&next, &self.snapshot());
        if let Err(error) = journal.replace(&image) {
            // What is logged under a number that the journal does not have would have no owner at the next start.
            if !journal.can_start_unwritable() || !journal.has_log_numbers(&image) {
                return Err(error);
            }
            tracing::error!(
                "{error}. The server starts with what the file holds, and refuses changes of tenants, tables, grants, tokens and \
                 extensions until it can be written; it tries again by itself"
            );
        }
        *self.journal.lock() = Some(journal);
        Ok(())
    }

    /// The time from which changes are refused because they cannot be written, in milliseconds since 1970, and the
    /// reason.
    pub fn not_kept(&self) -> Option<(u64, String)> {
        let journal = self.journal.lock();
        journal.as_ref()?.write_failure().map(|(since_ms, why)| (since_ms, why.to_string()))
    }

    /// Whether changes are persisted at all.
    pub fn has_journal(&self) -> bool {
        self.journal.lock().is_some()
    }

    /// Writes the journal again after a failure, from time to time. Called periodically.
    pub fn retry_journal(&self) {
        if !self.journal.lock().as_ref().is_some_and(Journal::is_due) {
            return;
        }
        let next = self.next.lock();
        let state = directory_image(&next, &self.snapshot());
        if let Some(journal) = &mut *self.journal.lock() {
            // The failure is noted, and returned by `not_kept`.
            let _still_failing = journal.replace(&state);
        }
    }

    /// Restores the persisted state. Tables are empty; extensions are not loaded yet.
    ///
    /// # Errors
    /// The refusal of the directory, with the tenant's name.
    pub fn restore(&self, kept: &DirectoryImage) -> Result<(), (String, DirectoryError)> {
        let mut of = String::new();
        let restored = self.change_and_log(change_log::log_restored, |next, snapshot| {
            next.tenant = next.tenant.max(kept.next_tenant);
            next.home_worker = kept.next_home;
            for tenant in kept.tenants.values() {
                of.clone_from(&tenant.name);
                let view = self.restored_view(next, tenant)?;
                if self.slots().is_some() {
                    view.tables.values().for_each(|entry| entry.tell_triggers_of_expiry());
                }
                if let Some(other) = snapshot.names.insert(tenant.name.as_str().into(), tenant.id) {
                    return Err(DirectoryError::TenantIdTaken(other, tenant.name.clone()));
                }
                snapshot.tenants.insert(tenant.id, Arc::new(view));
                next.table.insert(tenant.id, tenant.next_table);
                next.granted.insert(tenant.id, tenant.next_granted);
            }
            kept.tenants.values().for_each(|tenant| grants::restore_grants(snapshot, &kept.tenants, tenant));
            Ok(())
        });
        if restored.is_ok() {
            log_old_tenants(kept);
        }
        if !kept.tenants.is_empty() {
            self.restored.store(true, std::sync::atomic::Ordering::Release);
        }
        // The next check for grace periods finds out whether there are any.
        self.has_graces.store(true, std::sync::atomic::Ordering::Release);
        restored.map_err(|error| (of, error))
    }

    /// Whether a server with this directory ran before: requests that were meant for it may still arrive.
    pub fn was_restored(&self) -> bool {
        self.restored.load(std::sync::atomic::Ordering::Acquire)
    }

    /// A tenant as it was, without its grants.
    pub(super) fn restored_view(
        &self,
        next: &mut DirectoryState,
        kept: &JournalTenant,
    ) -> Result<TenantView, DirectoryError> {
        self.check_open(&kept.name, kept.open)?;
        let options = self.options();
        let quotas = kept.quotas.apply(&options.quotas)?;
        let token = kept.token.read().ok_or(DirectoryError::InvalidToken)?;
        let old =
            kept.old_token.as_ref().and_then(|old| OldToken::restored(old, next.credential(), ClockReading::now()));
        let workers = options.workers.max(1);
        let tenant = TenantAccount {
            id: kept.id,
            serial: next.credential(),
            made: kept.made,
            name: kept.name.clone(),
            origin: kept.origin,
            configured_token: kept.configured_token.clone(),
            open: kept.open,
            quotas,
            said: kept.quotas.clone(),
            code: TenantCode::of(kept.code.unwrap_or(CODE_OF_OLD_JOURNALS), &kept.name),
            budgets: kept.budgets.iter().map(|(name, budget)| (name.as_str().into(), *budget)).collect(),
            // There may be fewer workers than before.
            home_worker: kept.home_worker % workers,
            home_fixed: kept.home_fixed,
            credential: next.credential(),
            usage: Arc::new(TenantUsage::new(workers as usize)),
            token,
            old,
        };
        self.set_spill_quota(&tenant);
        let mut view = TenantView::of(tenant);
        view.secrets = Arc::new(TenantSecrets::restored(&self.sealer.read(), (kept.id, &kept.name), &kept.secrets));
        view.triggers = Arc::new(kept.triggers.clone());
        view.versions = Arc::new(kept.versions.clone());
        view.shared = kept.shared.iter().map(|(name, with)| (name.as_str().into(), with.clone())).collect();
        view.enabled = kept.enabled.iter().map(|(name, of)| (name.as_str().into(), of.clone())).collect();
        view.deployments = kept.deployments.iter().map(|(name, one)| (name.as_str().into(), *one)).collect();
        view.confined = kept.confined.iter().map(|(name, why)| (name.as_str().into(), why.as_str().into())).collect();
        for (name, JournalSuspension { since_ms, text, binding, until_replaced }) in &kept.suspended {
            let (since_ms, text) = (*since_ms, text.as_str().into());
            let suspension = Suspension { since_ms, text, binding: *binding, until_replaced: *until_replaced };
            view.suspended.insert(name.as_str().into(), Arc::new(suspension));
        }
        for table in &kept.tables {
            let entry = self.entry_of(&view, table);
            if let Some(backing) = &table.backing {
                self.restore_backing(&view, &entry, backing);
            }
            view.add_table(&entry, table.expiry);
        }
        Ok(view)
    }

    /// A table as it was, without records and without its backing.
    pub(super) fn entry_of(&self, view: &TenantView, table: &JournalTable) -> Arc<TableEntry> {
        let options = self.options();
        let config = TableConfig {
            mode: table.mode(),
            quota_bytes: table.quota_bytes,
            max_key_len: options.max_key_len,
            max_value_len: options.max_value_len,
            ordered: table.ordered,
        };
        let entry = Arc::new(TableEntry {
            durability: CurrentDurability::new(table.durability, table.log),
            id: table.id,
            serial: table.serial,
            name: CurrentName::new(&table.name),
            table: self.new_table(config),
            backing: Default::default(),
            flush_at_ms: Default::default(),
            tells_triggers_of_expiry: Default::default(),
        });
        entry.table.set_expiry_logging(!table.expiry.is_empty());
        if let Err(error) = self.attach_spill(&view.tenant, &entry) {
            let table = &*table.name;
            tracing::error!(table, %error, "a table has no spill file: what exceeds its memory is refused");
        }
        entry
    }

    /// Writes the result of a change. Called under the lock for changes, before the change is visible.
    pub(super) fn keep(
        &self,
        next: &DirectoryState,
        before: &DirectorySnapshot,
        after: &DirectorySnapshot,
    ) -> Result<(), DirectoryError> {
        let mut journal = self.journal.lock();
        let Some(journal) = &mut *journal else { return Ok(()) };
        let mut change = JournalEntry::default();
        (change.next_tenant, change.next_home) = (next.tenant, next.home_worker);
        change.gone = before.tenants.keys().filter(|id| !after.tenants.contains_key(*id)).copied().collect();
        for (id, view) in &after.tenants {
            let old = before.tenants.get(id);
            if old.is_some_and(|old| Arc::ptr_eq(old, view)) {
                continue;
            }
            let now = journal_tenant(next, view);
            if old.is_none_or(|old| journal_tenant(next, old) != now) {
                change.put.push(now);
            }
        }
        if change.put.is_empty() && change.gone.is_empty() {
            return Ok(());
        }
        journal.record(change, || directory_image(next, after)).map_err(|error| {
            if journal.may_log() {
                tracing::error!(%error, "a change is refused");
            }
            DirectoryError::JournalUnavailable(error.to_string())
        })
    }
}

/// The whole persisted state.
pub(super) fn directory_image(next: &DirectoryState, snapshot: &DirectorySnapshot) -> DirectoryImage {
    let tenants: BTreeMap<u32, JournalTenant> =
        snapshot.tenants.iter().map(|(id, view)| (*id, journal_tenant(next, view))).collect();
    DirectoryImage { tenants, next_tenant: next.tenant, next_home: next.home_worker }
}

/// The persisted state of a tenant.
pub(super) fn journal_tenant(next: &DirectoryState, view: &TenantView) -> JournalTenant {
    let tenant = &*view.tenant;
    let table = |entry: &Arc<TableEntry>| {
        let settings = view.settings.get(&entry.id).cloned().unwrap_or_else(|| TableDefinition::of(entry));
        JournalTable {
            id: entry.id,
            name: settings.name.to_string(),
            cache: settings.mode == sandstorm_store::StorageMode::Cache,
            spill: settings.mode == sandstorm_store::StorageMode::Spill,
            quota_bytes: settings.quota_bytes,
            ordered: entry.table.is_ordered(),
            durability: settings.durability,
            log: settings.log,
            backing: settings.backing,
            expiry: settings.expiry,
            serial: entry.serial,
        }
    };
    let suspension = |suspension: &Suspension| JournalSuspension {
        since_ms: suspension.since_ms,
        text: suspension.text.to_string(),
        binding: suspension.binding,
        until_replaced: suspension.until_replaced,
    };
    let (given, received) = grants::journal_grants(view);
    JournalTenant {
        id: tenant.id,
        made: tenant.made,
        name: tenant.name.clone(),
        origin: tenant.origin,
        configured_token: tenant.configured_token.clone(),
        open: tenant.open,
        home_worker: tenant.home_worker,
        home_fixed: tenant.home_fixed,
        code: Some(tenant.code.policy()),
        quotas: tenant.said.clone(),
        token: JournalToken::of(&tenant.token),
        old_token: tenant.old.as_ref().map(OldToken::kept),
        budgets: tenant.budgets.iter().map(|(name, budget)| (name.to_string(), *budget)).collect(),
        tables: view.sorted_tables().into_iter().map(table).collect(),
        next_table: next.table.get(&tenant.id).copied().unwrap_or(1),
        given,
        received,
        next_granted: next.granted.get(&tenant.id).copied().unwrap_or(FIRST_GRANTED_ID),
        suspended: view.suspended.iter().map(|(name, why)| (name.to_string(), suspension(why))).collect(),
        confined: view.confined.iter().map(|(name, why)| (name.to_string(), why.to_string())).collect(),
        secrets: view.secrets.journal(),
        triggers: view.triggers.as_ref().clone(),
        versions: view.versions.as_ref().clone(),
        shared: view.shared.iter().map(|(name, with)| (name.to_string(), with.clone())).collect(),
        enabled: view.enabled.iter().map(|(name, of)| (name.to_string(), of.clone())).collect(),
        deployments: view.deployments.iter().map(|(name, one)| (name.to_string(), *one)).collect(),
    }
}

impl TenantView {
    /// Adds a table as its entry is, with the watchers that are told when its records expire.
    pub(super) fn add_table(&mut self, entry: &Arc<TableEntry>, expiry: ExpiryWatchers) {
        self.settings.insert(entry.id, TableDefinition { expiry, ..TableDefinition::of(entry) });
        self.tables.insert(entry.id, Arc::clone(entry));
        self.table_names.insert((&*entry.name()).into(), entry.id);
    }

    /// A new tenant, without tables, extensions and grants.
    pub(super) fn of(tenant: TenantAccount) -> TenantView {
        TenantView {
            tenant: Arc::new(tenant),
            tables: HashMap::new(),
            table_names: HashMap::new(),
            settings: HashMap::new(),
            extensions: HashMap::new(),
            kept: HashMap::new(),
            deployments: HashMap::new(),
            shared: HashMap::new(),
            enabled: HashMap::new(),
            versions: Arc::default(),
            suspended: HashMap::new(),
            confined: HashMap::new(),
            granted: HashMap::new(),
            granted_names: HashMap::new(),
            renamed: HashMap::new(),
            given: Vec::new(),
            secrets: Arc::default(),
            triggers: Arc::default(),
        }
    }
}

//! The directory of all tenants: one lock for changes, immutable snapshots for readers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};

use super::directory_log::DirectoryLog;
use super::directory_state::{ChangeEffect, DirectoryState};
use super::error::{DirectoryError, check_name, over_quota, unknown_table};
use super::grant::FIRST_GRANTED_ID;
use super::grant_end::{end_table_grants, end_tenant_grants};
use super::journal::{Journal, TenantOrigin};
use super::options::{DirectoryOptions, NewTable, NewTenant};
use super::quotas::{QuotaChanges, Quotas};
use super::secrets::SecretSealer;
use super::snapshot::DirectorySnapshot;
use super::spill_folder::SpillFolder;
use super::table_backing::{TableBacking, check_drop};
use super::table_durability::CurrentDurability;
use super::table_settings::{CurrentName, TableDefinition};
use super::tenant_code::TenantCode;
use super::tenant_ref::TenantRef;
use super::{TableEntry, TenantAccount, TenantView};
use crate::limits::{DEFAULT_TABLE_BYTES, DEFAULT_TABLE_ONE_IN, MIN_TABLE_BYTES};
use sandstorm_accounts::TenantUsage;
use sandstorm_accounts::token::{self, TokenHash};
use sandstorm_backing::BackingPool;
use sandstorm_extension::CodePolicy;
use sandstorm_log::LogError;
use sandstorm_store::slots::SlotOwnership;
use sandstorm_store::{Epochs, Participant, RecordTable, StorageMode, TableConfig};

type ChangeWaker = Box<dyn Fn() + Send + Sync>;

/// Changes of a tenant's settings; what is not given stays.
#[derive(Clone, Debug, Default)]
pub struct TenantChange {
    /// Whether it is reached without a token.
    pub open: Option<bool>,
    /// Its home worker, which is fixed there.
    pub home_worker: Option<u32>,
    /// Whether its home worker is fixed where it is, or follows the tenant's load.
    pub home_fixed: Option<bool>,
    /// The code that it may have. What is loaded stays as it is; the caller moves it to the other tier.
    pub code: Option<CodePolicy>,
    /// Its quotas.
    pub quotas: QuotaChanges,
}

/// All tenants of a server.
pub struct Directory {
    options: DirectoryOptions,
    pub(super) epochs: Arc<Epochs>,
    pub(super) next: Mutex<DirectoryState>,
    /// The journal of the changes, if they are persisted.
    pub(super) journal: Mutex<Option<Journal>>,
    pub(super) snapshot: ArcSwap<DirectorySnapshot>,
    pub(super) generation: CachePadded<AtomicU64>,
    pub(super) waker: RwLock<Option<ChangeWaker>>,
    /// Whether any tenant may have an old token that still works; see [`Directory::expire_graces`].
    pub(super) has_graces: AtomicBool,
    /// See [`Directory::was_restored`].
    pub(super) restored: AtomicBool,
    /// Dropped tables that a worker may still use; freed by [`Directory::reap`].
    pub(super) dropped: Mutex<Vec<Arc<TableEntry>>>,
    /// The log of the tables with durability, once it was read.
    pub(super) log: DirectoryLog,
    /// Seals the secrets of tenants for the journal.
    pub(super) sealer: RwLock<SecretSealer>,
    /// The files of tables larger than memory.
    pub(super) spill: SpillFolder,
    /// The threads that ask backings of tables.
    pub(super) backings: Arc<BackingPool>,
    /// What this server owns of all tables, in a cluster.
    pub(super) slots: OnceLock<Arc<SlotOwnership>>,
    /// Moves of home workers after their load.
    homes_moved: AtomicU64,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory").field("snapshot", &self.snapshot.load()).finish_non_exhaustive()
    }
}

impl Directory {
    /// No tenants yet; one worker, default limits.
    pub fn new(epochs: Arc<Epochs>) -> Arc<Directory> {
        Directory::with_options(epochs, DirectoryOptions::default())
    }

    /// No tenants yet.
    pub fn with_options(epochs: Arc<Epochs>, options: DirectoryOptions) -> Arc<Directory> {
        let next = DirectoryState {
            tenant: 1,
            home_worker: 0,
            credential: 1,
            table: HashMap::new(),
            granted: HashMap::new(),
            effects: Vec::new(),
            agreed: None,
        };
        Arc::new(Directory {
            options,
            epochs,
            next: Mutex::new(next),
            journal: Mutex::default(),
            snapshot: ArcSwap::default(),
            generation: CachePadded::default(),
            waker: RwLock::new(None),
            has_graces: AtomicBool::new(false),
            restored: AtomicBool::new(false),
            dropped: Mutex::default(),
            log: DirectoryLog::default(),
            sealer: RwLock::new(SecretSealer::of_this_process()),
            spill: SpillFolder::default(),
            backings: BackingPool::new(),
            slots: OnceLock::new(),
            homes_moved: AtomicU64::new(0),
        })
    }

    /// Makes the server one of a cluster: its tables have the keys of the slots that it owns. Once, before there are
    /// tables.
    pub fn join_cluster(&self, slots: &Arc<SlotOwnership>) {
        if self.slots.set(Arc::clone(slots)).is_ok() {
            self.log.wait_for_copies();
            let snapshot = DirectorySnapshot { slots: Some(Arc::clone(slots)), ..DirectorySnapshot::default() };
            self.snapshot.store(Arc::new(snapshot));
        }
    }

    /// The slots that this server owns, in a cluster.
    pub fn slots(&self) -> Option<&Arc<SlotOwnership>> {
        self.slots.get()
    }

    /// An empty table.
    pub(super) fn new_table(&self, config: TableConfig) -> RecordTable {
        let table = RecordTable::new(config, self.epochs.clone());
        self.slots.get().iter().for_each(|slots| table.set_slots(slots));
        table
    }

    /// Registers the calling thread, which wants to read tables.
    pub fn participant(&self) -> Participant {
        self.epochs.register()
    }

    /// The options that hold for all tenants.
    pub fn options(&self) -> &DirectoryOptions {
        &self.options
    }

    /// Has `wake` called after every change, so that sleeping workers release deleted things.
    pub fn wake_on_change(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.waker.write() = Some(Box::new(wake));
    }

    /// The number of the newest change; one load. A worker whose snapshot has another number takes the new one.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The current snapshot of all tenants.
    pub fn snapshot(&self) -> Arc<DirectorySnapshot> {
        self.snapshot.load_full()
    }

    /// Creates a tenant. Returns it and its token, which is not stored and cannot be read again (empty if the stored
    /// form of a token was given).
    ///
    /// # Errors
    /// Name, id, token, quotas or home worker taken or not allowed; too many tenants; open if that is not allowed.
    pub fn create_tenant(&self, new: NewTenant) -> Result<(Arc<TenantView>, String), DirectoryError> {
        check_name("tenant", &new.name)?;
        let quotas = new.quotas.apply(&self.options.quotas)?;
        let chosen = new.token.is_some() || new.token_hash.is_some();
        let (token, hash) = match new.token_hash {
            Some(kept) if new.token.is_none() => (String::new(), kept),
            _ => self.new_token(new.token)?,
        };
        let configured_token = (chosen && new.origin == TenantOrigin::Configured).then(|| hash.mark());
        self.check_open(&new.name, new.open)?;
        if let Some(home) = new.home_worker {
            self.check_home_worker(home)?;
        }
        let view = self.change(|next, snapshot| {
            if snapshot.by_name(&new.name).is_some() {
                return Err(DirectoryError::TenantExists(new.name.clone()));
            }
            if snapshot.len() >= self.options.max_tenants {
                return Err(DirectoryError::TooManyTenants(snapshot.len()));
            }
            let id = free_tenant_id(next, snapshot, new.id)?;
            let home_worker = new.home_worker.unwrap_or_else(|| {
                let home = next.home_worker % self.workers();
                next.home_worker = home + 1;
                home
            });
            let is_shared = next.agreed.is_some() || self.slots.get().is_some();
            let tenant = TenantAccount {
                id,
                serial: next.credential(),
                made: if is_shared { sandstorm_log::new_table_number() } else { 0 },
                name: new.name.clone(),
                origin: new.origin,
                configured_token: configured_token.clone(),
                open: new.open,
                quotas: quotas.clone(),
                said: new.quotas.clone(),
                code: TenantCode::of(new.code.unwrap_or(self.options.code), &new.name),
                budgets: HashMap::new(),
                home_worker,
                home_fixed: new.home_worker.is_some(),
                credential: next.credential(),
                usage: Arc::new(TenantUsage::new(self.workers() as usize)),
                token: hash,
                old: None,
            };
            // Also without a table of its own on the disk: it may read such a table of another tenant.
            self.set_spill_quota(&tenant);
            let view = Arc::new(TenantView::of(tenant));
            next.table.insert(id, 1);
            snapshot.tenants.insert(id, view.clone());
            snapshot.names.insert(new.name.as_str().into(), id);
            Ok(view)
        })?;
        Ok((view, token))
    }

    /// Deletes a tenant with all it has, and ends the grants that it gave and received. Returns its last view. Running
    /// invocations are not stopped; the things that they use live as long as they do.
    ///
    /// # Errors
    /// No such tenant.
    pub fn delete_tenant<'a>(&self, tenant: impl Into<TenantRef<'a>>) -> Result<Arc<TenantView>, DirectoryError> {
        let tenant = tenant.into();
        self.change(|next, snapshot| {
            let id = snapshot.find(tenant)?.tenant.id;
            // What it shares goes with it, also what another server has enabled for a tenant since.
            snapshot.disable_all(id, None);
            remove_tenant(next, snapshot, id).ok_or_else(|| DirectoryError::UnknownTenant(tenant.to_string()))
        })
    }

    /// Changes quotas. Tables that are there stay, even if their quotas now add up to more.
    ///
    /// # Errors
    /// No such tenant; a quota outside of its range.
    pub fn set_quotas<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        changes: &QuotaChanges,
    ) -> Result<Quotas, DirectoryError> {
        self.update_tenant(tenant, &TenantChange { quotas: changes.clone(), ..TenantChange::default() })
    }

    /// Opens or closes a tenant. Closing ends the sessions that presented no token.
    ///
    /// # Errors
    /// No such tenant; open if that is not allowed.
    pub fn set_open<'a>(&self, tenant: impl Into<TenantRef<'a>>, open: bool) -> Result<(), DirectoryError> {
        self.update_tenant(tenant, &TenantChange { open: Some(open), ..TenantChange::default() }).map(|_| ())
    }

    /// Moves a tenant's home, and fixes it there.
    ///
    /// # Errors
    /// No such tenant or worker.
    pub fn set_home_worker<'a>(&self, tenant: impl Into<TenantRef<'a>>, home: u32) -> Result<(), DirectoryError> {
        self.update_tenant(tenant, &TenantChange { home_worker: Some(home), ..TenantChange::default() }).map(|_| ())
    }

    /// Moves a tenant's home after its load, from one worker to another. Returns false, and changes nothing, if the
    /// tenant is gone, or its home is elsewhere or fixed by now.
    ///
    /// # Errors
    /// No such worker; a change that cannot be recorded.
    pub fn move_home(&self, tenant: u32, from: u32, to: u32) -> Result<bool, DirectoryError> {
        self.check_home_worker(to)?;
        let is_movable = |account: &TenantAccount| account.home_worker == from && !account.home_fixed;
        if !self.snapshot().tenant(tenant).is_some_and(|view| is_movable(&view.tenant)) {
            return Ok(false);
        }
        let moved = self.change_tenant(tenant, |_, account| {
            let moves = is_movable(account);
            if moves {
                account.home_worker = to;
            }
            Ok(moves)
        })?;
        self.homes_moved.fetch_add(moved.into(), Ordering::Relaxed);
        Ok(moved)
    }

    /// Moves that [`Directory::move_home`] has made.
    pub fn homes_moved(&self) -> u64 {
        self.homes_moved.load(Ordering::Relaxed)
    }

    /// Changes several settings at once, or none if one of them is refused. Returns the quotas.
    ///
    /// # Errors
    /// As those of the single changes.
    pub fn update_tenant<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        change: &TenantChange,
    ) -> Result<Quotas, DirectoryError> {
        let TenantChange { open, home_worker, home_fixed, code, quotas: changes } = change;
        home_worker.map_or(Ok(()), |home| self.check_home_worker(home))?;
        let tenant = tenant.into();
        let quotas = self.change_tenant(tenant, |next, tenant| {
            let quotas = changes.apply(&tenant.quotas)?;
            for budget in tenant.budgets.values() {
                quotas.check_budget(budget)?;
            }
            tenant.quotas = quotas.clone();
            self.set_spill_quota(tenant);
            tenant.said = tenant.said.and(changes);
            tenant.home_worker = home_worker.unwrap_or(tenant.home_worker);
            tenant.home_fixed = home_fixed.unwrap_or(tenant.home_fixed || home_worker.is_some());
            if let Some(code) = *code {
                tenant.code = TenantCode::of(code, &tenant.name);
            }
            if let Some(open) = open.filter(|open| *open != tenant.open) {
                self.check_open(&tenant.name, open)?;
                tenant.open = open;
                tenant.credential = next.credential();
            }
            Ok(quotas)
        })?;
        self.snapshot().find(tenant).into_iter().for_each(|view| Directory::set_spill_limits(view));
        Ok(quotas)
    }

    /// Creates a table.
    ///
    /// # Errors
    /// No such tenant; name, id or quota taken, not allowed, or over the tenant's quotas.
    pub fn create_table<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        new: NewTable,
    ) -> Result<Arc<TableEntry>, DirectoryError> {
        check_name("table", &new.name)?;
        self.change_view(tenant, |next, view| {
            let tenant = view.tenant.clone();
            if view.table_names.contains_key(new.name.as_str()) {
                return Err(DirectoryError::TableExists { tenant: tenant.name.clone(), table: new.name.clone() });
            }
            over_quota(&tenant, "tables", tenant.quotas.tables, view.tables.len())?;
            let quota_bytes = table_quota(view, new.quota_bytes)?;
            let id = free_table_id(next, view, new.id)?;
            let config = TableConfig {
                mode: new.mode,
                quota_bytes,
                max_key_len: self.options.max_key_len,
                max_value_len: self.options.max_value_len,
                ordered: new.ordered,
            };
            let durability = new.durability.unwrap_or_else(|| self.options.default_durability(new.mode));
            if !durability.is_none() && !self.options.can_keep_records {
                return Err(DirectoryError::KeepsNothing(new.name.clone()));
            }
            self.check_spill(&new.name, (new.mode, new.ordered))?;
            let is_partial = new.mode == StorageMode::Spill || new.backing.is_some();
            self.check_copies(&new.name, durability, is_partial)?;
            let durability = self.check_backing(&new, durability)?;
            let table = self.new_table(config);
            let log_number = if durability.is_none() { 0 } else { sandstorm_log::new_table_number() };
            let backing = new.backing.clone().map(TableBacking::new);
            let full_name = format!("{}/{}", tenant.name, new.name);
            if log_number != 0 {
                let unavailable = |error: LogError| DirectoryError::JournalUnavailable(error.to_string());
                let logged = (log_number, full_name.as_str());
                self.log.attach(&table, logged, durability).map_err(unavailable)?;
            }
            let name: Box<str> = new.name.as_str().into();
            let serial = if self.slots.get().is_some() { sandstorm_log::new_table_number() } else { 0 };
            let entry = Arc::new(TableEntry {
                id,
                serial,
                name: CurrentName::new(&name),
                table,
                durability: CurrentDurability::new(durability, log_number),
                backing: Default::default(),
                flush_at_ms: Default::default(),
                tells_triggers_of_expiry: Default::default(),
            });
            if let Some(backing) = &backing {
                self.attach_backing(view, &entry, backing, &full_name)?;
            }
            self.attach_spill(&tenant, &entry).map_err(|error| DirectoryError::NoSpillFile(error.to_string()))?;
            view.tables.insert(id, entry.clone());
            view.settings.insert(id, TableDefinition { log: log_number, ..TableDefinition::of(&entry) });
            view.table_names.insert(name, id);
            Ok(entry)
        })
    }

    /// Drops a table with its records, and ends its grants. Returns the table.
    ///
    /// # Errors
    /// No such tenant or table.
    pub fn drop_table<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        table: &str,
    ) -> Result<Arc<TableEntry>, DirectoryError> {
        let tenant = tenant.into();
        self.change(|next, snapshot| {
            let mut view = TenantView::clone(snapshot.find(tenant)?);
            let id = view.table_names.remove(table);
            id.map(|id| view.settings.remove(&id));
            let entry = id.and_then(|id| view.tables.remove(&id)).ok_or_else(|| unknown_table(&view, table))?;
            check_drop(&entry)?;
            end_table_grants(next, snapshot, &mut view, table);
            snapshot.tenants.insert(view.tenant.id, Arc::new(view));
            next.effects.push(ChangeEffect::Dropped(entry.clone()));
            Ok(entry)
        })
    }

    /// Frees the dropped tables that are no longer used. Returns their number. A table's memory is freed here, on a
    /// control thread, and never on the worker that used it last: freeing millions of records takes a while.
    pub fn reap(&self) -> usize {
        // No thread can take a new reference to a table that only this list has: it is in no snapshot any more.
        let unused = |table: &mut Arc<TableEntry>| Arc::strong_count(table) == 1;
        let free: Vec<_> = self.dropped.lock().extract_if(.., unused).collect();
        free.len()
    }

    /// Dropped tables whose memory is not freed yet.
    pub fn dropped_tables(&self) -> usize {
        self.dropped.lock().len()
    }

    fn workers(&self) -> u32 {
        self.options.workers.max(1)
    }

    fn check_home_worker(&self, home: u32) -> Result<(), DirectoryError> {
        let last = self.workers() - 1;
        if home > last { Err(DirectoryError::HomeWorker { wanted: home, last }) } else { Ok(()) }
    }

    pub(super) fn check_open(&self, name: &str, open: bool) -> Result<(), DirectoryError> {
        if open && !self.options.allow_open { Err(DirectoryError::OpenRefused(name.into())) } else { Ok(()) }
    }

    pub(super) fn new_token(&self, chosen: Option<String>) -> Result<(String, TokenHash), DirectoryError> {
        let token = chosen.unwrap_or_else(token::generate);
        let hash = TokenHash::of_chosen(&token).ok_or(DirectoryError::InvalidToken)?;
        Ok((token, hash))
    }
}

/// Removes a tenant from a snapshot. Returns its last view.
pub(super) fn remove_tenant(
    next: &mut DirectoryState,
    snapshot: &mut DirectorySnapshot,
    id: u32,
) -> Option<Arc<TenantView>> {
    let view = snapshot.tenants.remove(&id)?;
    snapshot.names.remove(view.tenant.name.as_str());
    next.effects.push(ChangeEffect::Gone(Arc::clone(&view)));
    end_tenant_grants(next, snapshot, &view);
    next.effects.extend(view.tables.values().cloned().map(ChangeEffect::Dropped));
    Some(view)
}

fn free_tenant_id(
    next: &mut DirectoryState,
    snapshot: &DirectorySnapshot,
    wanted: Option<u32>,
) -> Result<u32, DirectoryError> {
    match wanted {
        Some(0) => Err(DirectoryError::ZeroId("tenant")),
        Some(id) => match snapshot.tenant(id) {
            Some(view) => Err(DirectoryError::TenantIdTaken(id, view.tenant.name.clone())),
            None => Ok(id),
        },
        None => {
            while snapshot.tenant(next.tenant).is_some() {
                next.tenant = next.tenant.checked_add(1).ok_or(DirectoryError::NoIdLeft("tenant"))?;
            }
            let id = next.tenant;
            next.tenant = id.checked_add(1).ok_or(DirectoryError::NoIdLeft("tenant"))?;
            Ok(id)
        }
    }
}

fn free_table_id(next: &mut DirectoryState, view: &TenantView, wanted: Option<u64>) -> Result<u64, DirectoryError> {
    let next = next.table.entry(view.tenant.id).or_insert(1);
    match wanted {
        Some(0) => Err(DirectoryError::ZeroId("table")),
        Some(id) if id >= FIRST_GRANTED_ID => Err(DirectoryError::TableIdTooLarge(id)),
        Some(id) => match view.tables.get(&id) {
            Some(table) => Err(DirectoryError::TableIdTaken { id, table: table.name().to_string() }),
            None => Ok(id),
        },
        None => {
            while view.tables.contains_key(next) {
                *next += 1;
            }
            if *next >= FIRST_GRANTED_ID {
                return Err(DirectoryError::NoIdLeft("table"));
            }
            let id = *next;
            *next += 1;
            Ok(id)
        }
    }
}

/// The quota of a new table: the requested one, or the same for each of the tenant's that says none.
fn table_quota(view: &TenantView, wanted: Option<u64>) -> Result<u64, DirectoryError> {
    let limit = view.tenant.quotas.memory_bytes;
    let reserved = view.tables.values().fold(0u64, |sum, table| sum.saturating_add(table.quota_bytes()));
    let left = limit.saturating_sub(reserved);
    let wanted = wanted.unwrap_or_else(|| (limit / DEFAULT_TABLE_ONE_IN).clamp(MIN_TABLE_BYTES, DEFAULT_TABLE_BYTES));
    if wanted < MIN_TABLE_BYTES {
        return Err(DirectoryError::TableTooSmall { wanted, min: MIN_TABLE_BYTES });
    }
    if wanted > left {
        return Err(DirectoryError::RecordMemory { tenant: view.tenant.name.clone(), wanted, reserved, limit });
    }
    Ok(wanted)
}

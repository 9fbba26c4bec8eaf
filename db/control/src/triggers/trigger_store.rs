//! The triggers of all tenants, those of each under a lock of its own, and their files.
//!
//! - The lock of a tenant's triggers is taken for short work alone: a step of one trigger, or a copy of what one has.
//!   The disk is not written under it.
//! - A thread that changes a trigger or writes a file has the tenant's turn meanwhile. So what a file has never becomes
//!   older, and other tenants wait for none of it.
//! - A change writes the file of one trigger. How far triggers have come is written beside the thread that makes calls.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::active::{ActiveTrigger, TriggerKey};
use super::noted_position::NotedPosition;
use super::state_file::TriggerFolder;
use super::trigger_outcome::TriggerError;
use crate::config::ConfigError;
use crate::limits::{TRIGGER_GIVEN_UP_MS, TRIGGER_WRITE_EVERY, TRIGGER_WRITE_PER_MIB, TRIGGERS, TRIGGERS_PER_TENANT};
use sandstorm_catalog::{Directory, TenantView};
use sandstorm_cluster::called_positions::CalledPosition;
use sandstorm_log::ChangeLog;

/// Longest wait for the log before a trigger is written.
const LOG_WAIT: Duration = Duration::from_secs(5);

/// A trigger, and what is known of its file.
pub(super) struct KeptTrigger {
    pub(super) trigger: ActiveTrigger,
    /// Whether the file is to be written.
    pub(super) is_changed: bool,
    written_at: Option<Instant>,
    written_bytes: usize,
    /// The position from which the trigger needs the log after a crash, as its file says.
    written_from: Option<u64>,
    /// Of a table's trigger of a cluster: what the log has last been told of it.
    noted: Option<NotedPosition>,
}

impl KeptTrigger {
    /// One as its file has it.
    fn of_file(mut trigger: ActiveTrigger) -> KeptTrigger {
        // It was not made just now: it is given up for itself alone.
        trigger.begin_given_up(0);
        let written_from = trigger.needs_log_from();
        KeptTrigger { trigger, is_changed: false, written_at: None, written_bytes: 0, written_from, noted: None }
    }

    /// The position from which the log is needed, also after a crash, and by the server that takes this one's place.
    fn needs_log_from(&self) -> Option<u64> {
        let noted = self.noted.map(|noted| noted.needs_log_from());
        let position = self.trigger.needs_log_from()?;
        [self.written_from, noted].into_iter().flatten().chain([position]).min()
    }

    /// Tells the log how far a trigger has come on which the servers of a cluster agree, if that is due.
    fn note_position(&mut self, view: &TenantView, (log, copied): (&Arc<ChangeLog>, u64)) {
        let ActiveTrigger { agreed: Some(agreed), .. } = &self.trigger else { return };
        let entry = self.trigger.table().and_then(|table| view.table_by_name(table));
        let Some(table) = entry.and_then(|entry| entry.table.log_number()) else { return };
        let now = (CalledPosition { table, position: self.trigger.position() }, self.trigger.counts);
        // One that has another log's position says so in its next turn.
        if [0, log.id()].contains(&self.trigger.log_id) && now.0.position <= log.durable() {
            NotedPosition::note(&mut self.noted, agreed.serial, now, (log, copied));
        }
    }

    /// Has it go on from a position of the log: others make the calls for what is before.
    pub(super) fn go_on_from(&mut self, position: u64, log: &Arc<ChangeLog>) {
        self.trigger.replay_from(position, log);
        (self.is_changed, self.written_at, self.noted) = (true, None, None);
    }

    /// Whether its file is to be written now.
    fn is_due(&self, is_last: bool) -> bool {
        let pause = TRIGGER_WRITE_EVERY + TRIGGER_WRITE_PER_MIB * (self.written_bytes >> 20) as u32;
        self.is_changed && (is_last || self.written_at.is_none_or(|written_at| written_at.elapsed() >= pause))
    }
}

#[derive(Default)]
struct TenantState {
    /// By name.
    triggers: BTreeMap<String, KeptTrigger>,
    /// Until when moves of slots do not wait for triggers that are made meanwhile, in milliseconds since 1970: else one
    /// that was given up would be waited for again once it is removed and made anew.
    given_up_until_ms: u64,
    /// Names of those whose files are to be removed.
    removed: BTreeSet<String>,
}

/// The triggers of a tenant.
pub(super) struct TenantTriggers {
    pub(super) tenant: u32,
    /// Taken while a trigger is changed or a file is written, also while that waits for the disk.
    turn: Mutex<()>,
    state: Mutex<TenantState>,
}

impl TenantTriggers {
    fn new(tenant: u32) -> Arc<TenantTriggers> {
        Arc::new(TenantTriggers { tenant, turn: Mutex::default(), state: Mutex::default() })
    }

    /// Shows each trigger, by name. The lock is taken for one at a time.
    pub(super) fn each(&self, mut look: impl FnMut(&mut KeptTrigger)) {
        let mut last: Option<Arc<TriggerKey>> = None;
        loop {
            let mut state = self.state.lock();
            let from = last.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.1.as_str()));
            let Some((_, kept)) = state.triggers.range_mut::<str, _>((from, Bound::Unbounded)).next() else { return };
            let key = Arc::clone(&kept.trigger.key);
            look(kept);
            last = Some(key);
        }
    }

    /// Shows the triggers that `names` are of, under one lock.
    pub(super) fn each_named<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
        mut look: impl FnMut(usize, &mut KeptTrigger),
    ) {
        let mut state = self.state.lock();
        for (at, name) in names.enumerate() {
            if let Some(kept) = state.triggers.get_mut(name) {
                look(at, kept);
            }
        }
    }

    /// Shows one trigger.
    pub(super) fn read<T>(&self, name: &str, look: impl FnOnce(&ActiveTrigger) -> T) -> Option<T> {
        self.state.lock().triggers.get(name).map(|kept| look(&kept.trigger))
    }

    /// Takes the turn, as a thread that waits for the disk does.
    #[cfg(test)]
    pub(super) fn take_turn(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Whether no trigger of it can be made or changed now.
    #[cfg(test)]
    pub(super) fn stands_still(&self) -> bool {
        self.state.is_locked()
    }

    /// Has no move of slots wait for triggers that are behind a position, nor for any that is made soon.
    pub(super) fn give_up(&self, position: u64, now_ms: u64) {
        let mut state = self.state.lock();
        let TenantState { triggers, given_up_until_ms, .. } = &mut *state;
        for KeptTrigger { trigger, .. } in triggers.values_mut().filter(|kept| kept.trigger.is_behind(position, now_ms))
        {
            *given_up_until_ms = now_ms + TRIGGER_GIVEN_UP_MS;
            trigger.give_up_until(*given_up_until_ms);
        }
    }

    fn names(&self) -> Vec<String> {
        self.state.lock().triggers.keys().cloned().collect()
    }

    /// The names whose files are to be written now.
    fn due_files(&self, is_last: bool) -> Vec<String> {
        let state = self.state.lock();
        let due = state.triggers.iter().filter(|(_, kept)| kept.is_due(is_last)).map(|(name, _)| name);
        state.removed.iter().chain(due).cloned().collect()
    }
}

/// Why a trigger is not in its file.
enum UnwrittenReason {
    /// The log of changes does not reach its disk: none can be written.
    Log,
    File(ConfigError),
}

impl std::fmt::Display for UnwrittenReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UnwrittenReason::Log => {
                f.write_str("the log of changes is not on the disk: its disk has failed or takes too long")
            }
            UnwrittenReason::File(error) => write!(f, "{error}"),
        }
    }
}

/// See the head of this file.
pub(super) struct TriggerStore {
    directory: Arc<Directory>,
    folder: Option<TriggerFolder>,
    tenants: Mutex<BTreeMap<u32, Arc<TenantTriggers>>>,
    /// The triggers of all tenants.
    all: AtomicUsize,
    /// Whether a table needs copies of the log, and with which generation of the directory that was looked at.
    needs_copies: Mutex<Option<(u64, bool)>>,
    /// Taken while the log is told what to keep: of two threads that tell it, the last one has looked last.
    retaining: Mutex<()>,
}

impl TriggerStore {
    /// Those of a state directory; without one nothing is kept.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn open(directory: Arc<Directory>, state: Option<&Path>) -> Result<TriggerStore, ConfigError> {
        let (folder, stored) = match state.map(TriggerFolder::open).transpose()? {
            Some((folder, stored)) => (Some(folder), stored),
            None => (None, Vec::new()),
        };
        let (all, mut tenants) = (AtomicUsize::new(stored.len()), BTreeMap::new());
        for one in stored {
            let (tenant, name) = (one.tenant, one.spec.name.clone());
            let kept = KeptTrigger::of_file(ActiveTrigger::of(one).map_err(ConfigError::new)?);
            let of_tenant = tenants.entry(tenant).or_insert_with(|| TenantTriggers::new(tenant));
            of_tenant.state.lock().triggers.insert(name, kept);
        }
        let tenants = Mutex::new(tenants);
        let (needs_copies, retaining) = (Mutex::default(), Mutex::default());
        Ok(TriggerStore { directory, folder, tenants, all, needs_copies, retaining })
    }

    /// Triggers of all tenants.
    pub(super) fn len(&self) -> usize {
        self.all.load(Ordering::SeqCst)
    }

    /// Tenant and name of those that are this server's alone, in a cluster.
    pub(super) fn own_triggers(&self) -> Vec<TriggerKey> {
        let mut own = Vec::new();
        for of_tenant in self.tenants() {
            of_tenant.each(|KeptTrigger { trigger, .. }| {
                own.extend(trigger.agreed.is_none().then(|| TriggerKey::clone(&trigger.key)));
            });
        }
        own
    }

    /// Those of each tenant that has some.
    pub(super) fn tenants(&self) -> Vec<Arc<TenantTriggers>> {
        self.tenants.lock().values().cloned().collect()
    }

    /// Those of a tenant, if it has some.
    pub(super) fn find(&self, tenant: u32) -> Option<Arc<TenantTriggers>> {
        self.tenants.lock().get(&tenant).cloned()
    }

    /// Makes a change of one trigger, which is on the disk when this returns: `change` has the trigger of that name and
    /// may make one, replace it or take it away.
    ///
    /// # Errors
    /// Those of `change`; there are too many triggers; `Unwritable`: it is made, but not on the disk.
    pub(super) fn change<T>(
        &self,
        tenant: u32,
        name: &str,
        change: impl FnOnce(&mut Option<ActiveTrigger>) -> Result<T, TriggerError>,
    ) -> Result<T, TriggerError> {
        let of_tenant = {
            let mut tenants = self.tenants.lock();
            Arc::clone(tenants.entry(tenant).or_insert_with(|| TenantTriggers::new(tenant)))
        };
        let turn = of_tenant.turn.lock();
        let done = self.change_in_memory(&of_tenant, name, change);
        let written = match &done {
            Ok(_) => {
                // Before what is changed from here on: the server that takes this one's place knows of it then.
                self.note_positions(&of_tenant);
                // Before a checkpoint may remove what it needs.
                self.retain_log();
                self.write(&of_tenant, name)
            }
            Err(_) => Ok(()),
        };
        drop(turn);
        drop(of_tenant);
        self.retain_log();
        self.forget_tenants_without();
        let done = done?;
        written.map(|()| done).map_err(|reason| TriggerError::Unwritable(reason.to_string()))
    }

    fn change_in_memory<T>(
        &self,
        of_tenant: &TenantTriggers,
        name: &str,
        change: impl FnOnce(&mut Option<ActiveTrigger>) -> Result<T, TriggerError>,
    ) -> Result<T, TriggerError> {
        let mut state = of_tenant.state.lock();
        let before = state.triggers.remove(name);
        let (mut trigger, about) = match before {
            Some(KeptTrigger { trigger, written_at, written_bytes, written_from, noted, .. }) => {
                (Some(trigger), Some((written_at, written_bytes, written_from, noted)))
            }
            None => (None, None),
        };
        let mut done = change(&mut trigger);
        if trigger.is_some() && about.is_none() {
            done = done.and_then(|done| self.count_one_more(state.triggers.len()).map(|()| done));
            if done.is_err() {
                trigger = None;
            }
        }
        match (trigger, about) {
            (Some(mut trigger), about) => {
                trigger.begin_given_up(state.given_up_until_ms);
                let (written_at, written_bytes, written_from, noted) = about.unwrap_or_default();
                let kept = KeptTrigger { trigger, is_changed: true, written_at, written_bytes, written_from, noted };
                state.triggers.insert(name.to_owned(), kept);
                state.removed.remove(name);
            }
            (None, Some(_)) => self.note_removed(&mut state, [name.to_owned()]),
            (None, None) => {}
        }
        done
    }

    /// Counts a trigger that is made.
    fn count_one_more(&self, own: usize) -> Result<(), TriggerError> {
        if own >= TRIGGERS_PER_TENANT {
            return Err(TriggerError::TooMany(format!("the tenant has {own} triggers, as many as it may have")));
        }
        let one_more = |all| (all < TRIGGERS).then_some(all + 1);
        let counted = self.all.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        counted.map(drop).map_err(|_full| {
            TriggerError::TooMany(format!("the server has {TRIGGERS} triggers of all tenants, as many as it may have"))
        })
    }

    fn note_removed(&self, state: &mut TenantState, names: impl IntoIterator<Item = String>) {
        for name in names {
            self.all.fetch_sub(1, Ordering::SeqCst);
            if self.folder.is_some() {
                state.removed.insert(name);
            }
        }
    }

    /// Removes the triggers of a tenant that is gone.
    ///
    /// # Errors
    /// `Unwritable`: they are removed, but some are still on the disk.
    pub(super) fn remove_tenant(&self, tenant: u32) -> Result<(), TriggerError> {
        let names = self.find(tenant).map(|of_tenant| of_tenant.names()).unwrap_or_default();
        let mut removed = Ok(());
        for name in names {
            removed = removed.and(self.change(tenant, &name, |trigger| {
                *trigger = None;
                Ok(())
            }));
        }
        removed
    }

    /// Removes those of a tenant's triggers that another one of its id had: `name_now` looks up the name of the tenant
    /// of this id, unless it is gone. It is asked while no trigger can be made: each one was made after its tenant, so
    /// a name that was looked up before would take triggers of new tenants for those of tenants that are gone. Their
    /// files go later.
    pub(super) fn drop_of_others(&self, of_tenant: &TenantTriggers, name_now: impl FnOnce() -> Option<String>) {
        let mut state = of_tenant.state.lock();
        let (mut dropped, name_now) = (Vec::new(), name_now());
        state.triggers.retain(|name, kept| {
            let is_own = name_now.as_deref().is_some_and(|tenant| tenant == kept.trigger.tenant_name);
            if !is_own {
                dropped.push(name.clone());
            }
            is_own
        });
        self.note_removed(&mut state, dropped);
    }

    /// Writes how far triggers have come, of those for which it is time.
    pub(super) fn write_handled(&self, is_last: bool) {
        let mut failed = None;
        for of_tenant in self.tenants() {
            self.note_positions(&of_tenant);
            // The thread with the turn waits for the disk, perhaps for seconds: others are written meanwhile.
            let turn = if is_last { Some(of_tenant.turn.lock()) } else { of_tenant.turn.try_lock() };
            let Some(_turn) = turn else { continue };
            for name in of_tenant.due_files(is_last) {
                match self.write(&of_tenant, &name) {
                    Ok(()) => {}
                    Err(UnwrittenReason::File(error)) => failed = failed.or(Some(error)),
                    // All others would wait for it as long.
                    Err(UnwrittenReason::Log) => return,
                }
            }
        }
        if let Some(error) = failed {
            tracing::error!(%error, "after a restart some calls of triggers are made again");
        }
        self.forget_tenants_without();
        self.retain_log();
    }

    /// Has a trigger's file be what the trigger is. The caller has the tenant's turn.
    fn write(&self, of_tenant: &TenantTriggers, name: &str) -> Result<(), UnwrittenReason> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let stored = {
            let mut state = of_tenant.state.lock();
            state.triggers.get_mut(name).map(|kept| {
                kept.is_changed = false;
                kept.written_at = Some(Instant::now());
                (kept.trigger.stored(), kept.trigger.needs_log_from())
            })
        };
        let written = match &stored {
            None => folder.remove(of_tenant.tenant, name).map(|()| 0).map_err(UnwrittenReason::File),
            // What calls did is on the disk before it says that they are over: else a crash could take it, and they
            // would not be made again.
            Some((stored, _)) => self.wait_for_log().and_then(|()| folder.write(stored).map_err(UnwrittenReason::File)),
        };
        let mut state = of_tenant.state.lock();
        match (written, stored, state.triggers.get_mut(name)) {
            (Ok(bytes), Some((_, from)), Some(kept)) => {
                (kept.written_bytes, kept.written_from) = (bytes, from);
                Ok(())
            }
            (Ok(_), None, None) => {
                state.removed.remove(name);
                Ok(())
            }
            (Ok(_), ..) => Ok(()),
            (Err(reason), _, kept) => {
                kept.into_iter().for_each(|kept| kept.is_changed = true);
                Err(reason)
            }
        }
    }

    /// Tells the log how far a tenant's triggers have come, of those for which that is due.
    fn note_positions(&self, of_tenant: &TenantTriggers) {
        let Some(log) = self.directory.change_log().filter(|_| self.directory.slots().is_some()) else { return };
        let copied = if self.needs_copies() { log.copied() } else { u64::MAX };
        if let Some(view) = self.directory.snapshot().tenant(of_tenant.tenant) {
            of_tenant.each(|kept| kept.note_position(view, (&log, copied)));
        }
    }

    /// Whether a table needs copies of the log on other servers. All are looked at where something has changed.
    fn needs_copies(&self) -> bool {
        let (known, newest) = (&mut *self.needs_copies.lock(), self.directory.generation());
        if known.is_none_or(|(looked_at, _)| looked_at != newest) {
            *known = Some((newest, self.directory.needs_copies()));
        }
        known.is_some_and(|(_, needs)| needs)
    }

    fn wait_for_log(&self) -> Result<(), UnwrittenReason> {
        let is_durable = self.directory.change_log().is_none_or(|log| log.wait(log.end(), LOG_WAIT));
        is_durable.then_some(()).ok_or(UnwrittenReason::Log)
    }

    /// Has the log keep what triggers need.
    pub(super) fn retain_log(&self) {
        let Some(log) = self.directory.change_log() else { return };
        let _turn = self.retaining.lock();
        let mut from: Option<u64> = None;
        for of_tenant in self.tenants() {
            let state = of_tenant.state.lock();
            let own = state.triggers.values().filter_map(KeptTrigger::needs_log_from).min();
            from = [from, own].into_iter().flatten().min();
        }
        log.retain_from(from);
    }

    /// Forgets tenants without triggers and files, of which none was given up lately.
    fn forget_tenants_without(&self) {
        let now_ms = sandstorm_store::clock_ms(0);
        self.tenants.lock().retain(|_, of_tenant| {
            // One may be about to get a trigger: a thread that knows it has found it under this lock.
            Arc::strong_count(of_tenant) > 1 || {
                let state = of_tenant.state.lock();
                !state.triggers.is_empty() || !state.removed.is_empty() || state.given_up_until_ms > now_ms
            }
        });
    }
}

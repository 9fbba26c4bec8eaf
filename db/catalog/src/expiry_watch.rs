//! Has the log told when records of a table expire, for as long as a feed or a trigger asks for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::directory_state::ChangeEffect;
use super::error::{DirectoryError, unknown_table};
use super::expiry_watchers::ExpiryWatcher;
use super::table_settings::TableDefinition;
use super::tenant_ref::TenantRef;
use super::{Directory, TableEntry, TenantView};

impl TenantView {
    /// Whether a watcher has asked to be told when records of an own table expire; triggers: at this server.
    pub fn is_expiry_watched(&self, table: &TableEntry, by: ExpiryWatcher) -> bool {
        let is_told = by == ExpiryWatcher::Triggers && table.tells_triggers_of_expiry.load(Relaxed);
        is_told || self.is_expiry_recorded(table.id, by)
    }

    /// Whether the directory says so, in a cluster for all servers.
    fn is_expiry_recorded(&self, table: u64, by: ExpiryWatcher) -> bool {
        self.settings.get(&table).is_some_and(|settings| settings.expiry.has(by))
    }
}

impl Directory {
    /// Has the log told when records of a table expire, from now on, or no longer: it is told while any watcher asks
    /// for it.
    ///
    /// # Errors
    /// No such tenant or table; the journal cannot be written.
    pub fn watch_expiry<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        table: &str,
        watcher: ExpiryWatcher,
        on: bool,
    ) -> Result<Arc<TableEntry>, DirectoryError> {
        self.change_view(tenant, |next, view| {
            let entry = Arc::clone(view.table_by_name(table).ok_or_else(|| unknown_table(view, table))?);
            let before = view.settings.get(&entry.id).cloned().unwrap_or_else(|| TableDefinition::of(&entry));
            let settings = TableDefinition { expiry: before.expiry.with(watcher, on), ..before };
            view.settings.insert(entry.id, settings.clone());
            next.effects.push(ChangeEffect::Settings(Arc::clone(&entry), settings));
            Ok(entry)
        })
    }

    /// Has this server's log told for triggers when records of a table expire, from now on, or no longer. In a cluster
    /// each server has its own triggers, which read its own log: what one asks for says nothing about another one. It
    /// holds until the server ends, and does not wait.
    ///
    /// # Errors
    /// No such tenant or table; the journal cannot be written.
    pub fn watch_expiry_for_triggers(
        &self,
        tenant: u32,
        table: &Arc<TableEntry>,
        on: bool,
    ) -> Result<(), DirectoryError> {
        let watcher = ExpiryWatcher::Triggers;
        let is_in_cluster = self.is_agreed();
        let is_recorded = {
            let _no_change_meanwhile = self.next.lock();
            let snapshot = self.snapshot();
            let view = snapshot.tenant(tenant);
            if is_in_cluster {
                let settings = view.and_then(|view| view.settings.get(&table.id));
                table.tells_triggers_of_expiry.store(on, Relaxed);
                table.table.set_expiry_logging(on || settings.is_some_and(|settings| !settings.expiry.is_empty()));
            }
            view.is_some_and(|view| view.is_expiry_recorded(table.id, watcher))
        };
        // Earlier versions had the servers of a cluster agree on it: each switched off what another one had asked for.
        let is_to_be_recorded = on && !is_in_cluster;
        match is_recorded == is_to_be_recorded {
            true => Ok(()),
            false => self.watch_expiry(tenant, &table.name(), watcher, is_to_be_recorded).map(drop),
        }
    }
}

impl TableEntry {
    /// Has the log of a server that starts told what expires until its triggers are read.
    pub(super) fn tell_triggers_of_expiry(&self) {
        self.tells_triggers_of_expiry.store(true, Relaxed);
        self.table.set_expiry_logging(true);
    }
}

//! Has the log told when records of a table expire, for as long as somebody wants to know.

use std::sync::Arc;

use super::directory_state::ChangeEffect;
use super::error::{DirectoryError, unknown_table};
use super::expiry_watchers::ExpiryWatcher;
use super::table_settings::TableDefinition;
use super::tenant_ref::TenantRef;
use super::{Directory, TableEntry, TenantView};

impl TenantView {
    /// Whether somebody has asked to be told when records of an own table expire.
    pub fn is_expiry_watched(&self, table: &TableEntry, by: ExpiryWatcher) -> bool {
        self.settings.get(&table.id).is_some_and(|settings| settings.expiry.has(by))
    }
}

impl Directory {
    /// Has the log told when records of a table expire, from now on, or no longer: it is told while anybody asks for
    /// it.
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
}

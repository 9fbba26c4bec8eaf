//! Changes of tables' durability by other servers of a cluster. They hold here once this server's disk has what they
//! promise. No thread waits for the checkpoint that this may take.

use std::sync::Arc;

use sandstorm_store::TableLogging;

use super::directory_log::SettlingTable;
use super::durability::{begins, set_logging_as_before};
use super::error::DirectoryError;
use super::table_durability::TableDurability;
use super::table_settings::TableDefinition;
use super::{Directory, TableEntry, TenantView};

impl Directory {
    /// Tables whose durability is agreed, and does not hold here yet, with the tenant's id.
    fn unsettled_tables(&self) -> Vec<(u32, Arc<TableEntry>, TableDefinition)> {
        let snapshot = self.snapshot();
        let of_tenant = |view: &Arc<TenantView>| {
            let is_unsettled = |(id, settings): (&u64, &TableDefinition)| {
                let entry = view.tables.get(id)?;
                let differs = (entry.durability(), entry.durability.number()) != (settings.durability, settings.log);
                differs.then(|| (view.tenant.id, Arc::clone(entry), settings.clone()))
            };
            view.settings.iter().filter_map(is_unsettled).collect::<Vec<_>>()
        };
        snapshot.iter().flat_map(of_tenant).collect()
    }

    /// Has the durability of tables hold here that other servers have changed. Waits for the disk, but for no
    /// checkpoint: one is asked for where tables need it, and the call after its end goes on. Returns whether all of
    /// them hold.
    ///
    /// # Errors
    /// The log cannot be written. What could not be done is tried again by the next call.
    pub fn settle_durability(&self) -> Result<bool, DirectoryError> {
        // A change that was asked for here may wait for minutes.
        let Some(mut settling) = self.log.changing.try_lock() else { return Ok(false) };
        let unsettled = self.unsettled_tables();
        settling.retain(|one| {
            let is_it = |(_, entry, settings): &(u32, Arc<TableEntry>, TableDefinition)| {
                Arc::ptr_eq(entry, &one.entry) && settings.log == one.number && begins(entry, wanted(settings))
            };
            let goes_on = unsettled.iter().any(is_it);
            if !goes_on && let Ok(log) = self.log_to_use() {
                // It was changed again meanwhile.
                set_logging_as_before(&one.entry, &log);
            }
            goes_on
        });
        let (mut is_all, mut done) = (true, Ok(()));
        for (tenant, entry, settings) in &unsettled {
            // A table that fails keeps no other from being tried.
            match self.settle_table(&mut settling, (*tenant, entry), settings) {
                Ok(holds) => is_all &= holds,
                Err(error) => done = done.and(Err(error)),
            }
        }
        done.map(|()| is_all)
    }

    /// The same for one table, under the lock for changes of durability.
    fn settle_table(
        &self,
        settling: &mut Vec<SettlingTable>,
        (tenant, entry): (u32, &Arc<TableEntry>),
        settings: &TableDefinition,
    ) -> Result<bool, DirectoryError> {
        if begins(entry, wanted(settings)) {
            let Some(at) = settling.iter().position(|one| Arc::ptr_eq(&one.entry, entry)) else {
                // What changes from here on is logged, and the checkpoint has what was there before.
                entry.set_logging(&self.log_to_use()?, settings.log, TableLogging::AtOnce);
                let request = self.log.checkpoints.ask();
                settling.push(SettlingTable { entry: Arc::clone(entry), number: settings.log, request });
                return Ok(false);
            };
            let Some(written) = self.log.checkpoints.outcome(settling[at].request) else { return Ok(false) };
            settling.swap_remove(at);
            if let Err(error) = written {
                set_logging_as_before(entry, &self.log_to_use()?);
                return Err(DirectoryError::JournalUnavailable(error.to_string()));
            }
        }
        self.complete_switch(tenant.into(), entry, wanted(settings), true).map(|()| true)
    }
}

/// The durability and the number in the log that are agreed of a table.
fn wanted(settings: &TableDefinition) -> (TableDurability, u64) {
    (settings.durability, settings.log)
}

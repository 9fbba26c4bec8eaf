//! Changes of a table's durability while it is used.

use std::sync::Arc;

use sandstorm_log::limits::STALL_AFTER;
use sandstorm_log::{ChangeLog, LogError};
use sandstorm_store::TableLogging;

use super::directory_log::{CheckpointRequests, LogProgressHook};
use super::directory_state::ChangeEffect;
use super::error::{DirectoryError, unknown_table};
use super::scrub_progress::ScrubProgress;
use super::table_backing::check_policy;
use super::table_durability::TableDurability;
use super::table_settings::TableDefinition;
use super::tenant_ref::TenantRef;
use super::{Directory, TableEntry};
use crate::limits::CHANGE_DURABILITY_MOST;

impl Directory {
    /// Has `hook` called by the log's thread after each of its writes, once there is a log.
    pub fn on_log_progress(&self, hook: LogProgressHook) {
        self.log.add_hook(hook);
    }

    /// Waits until the log is on the disk up to a position that a table of this directory has given.
    ///
    /// # Errors
    /// The log's disk has failed, or takes too long.
    pub fn wait_for_disk(&self, position: u64) -> Result<(), DirectoryError> {
        let position = sandstorm_store::backed::waits::log_position(position);
        let is_there = self.log.get().is_none_or(|log| {
            log.request(position);
            log.wait(position, STALL_AFTER)
        });
        let error = || DirectoryError::JournalUnavailable("the log's disk has failed, or stalls".to_owned());
        if is_there { Ok(()) } else { Err(error()) }
    }

    /// The requests for checkpoints.
    pub fn checkpoint_requests(&self) -> &CheckpointRequests {
        &self.log.checkpoints
    }

    /// What is known of the disk that has the log, and copies of others' logs.
    pub fn scrub_progress(&self) -> &ScrubProgress {
        &self.log.scrub
    }

    /// Changes what a crash may take of a table's records, while the table is used. Returns once it holds: for a table
    /// that was in memory only, once a checkpoint of the log has its records. Before that, and if the server stops
    /// meanwhile, its records are in memory only.
    ///
    /// # Errors
    /// No such tenant or table; the server keeps nothing; the log, or the journal, cannot be written.
    pub fn set_durability<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        table: &str,
        durability: TableDurability,
    ) -> Result<Arc<TableEntry>, DirectoryError> {
        let tenant = tenant.into();
        let _one_at_a_time = self.log.changing.lock();
        let snapshot = self.snapshot();
        let view = snapshot.find(tenant)?;
        let entry = Arc::clone(view.table_by_name(table).ok_or_else(|| unknown_table(view, table))?);
        let before = entry.durability();
        if before == durability {
            return Ok(entry);
        }
        if !durability.is_none() && !self.options().can_keep_records {
            return Err(DirectoryError::KeepsNothing(table.to_owned()));
        }
        self.check_spill(table, (entry.mode(), entry.table.is_ordered()))?;
        self.check_copies(table, durability, entry.table.is_partial())?;
        if let Some(backing) = entry.backing() {
            check_policy(table, backing.policy(), durability)?;
        }
        // Of a table that is logged already the number stays.
        let number = match (before.is_none(), durability.is_none()) {
            (_, true) => 0,
            (true, false) => sandstorm_log::new_table_number(),
            (false, false) => entry.durability.number(),
        };
        self.switch_durability(tenant, &entry, (durability, number))?;
        Ok(entry)
    }

    /// Refuses copies where there is no other server, or where records leave memory.
    pub(super) fn check_copies(
        &self,
        table: &str,
        durability: TableDurability,
        is_partial: bool,
    ) -> Result<(), DirectoryError> {
        let why = match durability {
            TableDurability::Copies if self.slots().is_none() => "this server is in no cluster",
            TableDurability::Copies if is_partial => "it has a backing, or is larger than memory",
            _ => return Ok(()),
        };
        Err(DirectoryError::CannotCopy { table: table.to_owned(), why })
    }

    /// Whether a table's changes wait for copies on other servers.
    pub fn needs_copies(&self) -> bool {
        let snapshot = self.snapshot();
        let mut tables = snapshot.iter().flat_map(|view| view.tables.values());
        tables.any(|entry| entry.durability() == TableDurability::Copies)
    }

    /// Has a table's durability hold under that number in the log. Under the lock for changes of durability.
    fn switch_durability(
        &self,
        tenant: TenantRef<'_>,
        entry: &Arc<TableEntry>,
        (durability, number): (TableDurability, u64),
    ) -> Result<(), DirectoryError> {
        let log = self.log_to_use()?;
        if begins(entry, (durability, number)) {
            // No answer waits for the disk until the change holds.
            entry.set_logging(&log, number, TableLogging::AtOnce);
            let refused = match self.log.checkpoints.wait(CHANGE_DURABILITY_MOST) {
                Some(Ok(())) => None,
                Some(Err(error)) => Some(unavailable(error)),
                None => Some(late(entry, false)),
            };
            if let Some(error) = refused {
                set_logging_as_before(entry, &log);
                return Err(error);
            }
        }
        self.complete_switch(tenant, entry, (durability, number), false)
    }

    /// The log, once the server has read it: tables get theirs then.
    pub(super) fn log_to_use(&self) -> Result<Arc<ChangeLog>, DirectoryError> {
        let log = self.log.get_or_make().map_err(unavailable)?;
        log.ok_or_else(|| unavailable(LogError::unusable("log", "the server has not read it yet")))
    }

    /// Has a table's durability hold whose records the log has, if they are to be logged. `is_agreed`: the other
    /// servers of the cluster have it already. Under the lock for changes of durability.
    pub(super) fn complete_switch(
        &self,
        tenant: TenantRef<'_>,
        entry: &Arc<TableEntry>,
        (durability, number): (TableDurability, u64),
        is_agreed: bool,
    ) -> Result<(), DirectoryError> {
        let log = self.log_to_use()?;
        let begins = begins(entry, (durability, number));
        let record = || self.record_durability(tenant, entry, (durability, number), is_agreed);
        if begins && let Err(error) = record() {
            set_logging_as_before(entry, &log);
            return Err(error);
        }
        if matches!(durability, TableDurability::Disk | TableDurability::Copies) {
            // Copies are made once the change holds, and answers wait for them from then on.
            // What was shown until now is on the disk before the promise is made.
            entry.set_logging(&log, number, TableLogging::Awaited);
            entry.table.settle(&self.epochs.register(), b"");
            if !log.wait(log.end(), CHANGE_DURABILITY_MOST) {
                entry.set_logging(&log, number, entry.durability().logging());
                return Err(log.failure().cloned().map_or_else(|| late(entry, begins), unavailable));
            }
        }
        if !begins && let Err(error) = record() {
            set_logging_as_before(entry, &log);
            return Err(error);
        }
        entry.set_logging(&log, number, durability.logging());
        Ok(())
    }

    /// Writes a table's durability to the journal, and shows it.
    fn record_durability(
        &self,
        tenant: TenantRef<'_>,
        entry: &Arc<TableEntry>,
        (durability, number): (TableDurability, u64),
        is_agreed: bool,
    ) -> Result<(), DirectoryError> {
        self.change_view(tenant, |next, view| {
            if !view.tables.get(&entry.id).is_some_and(|now| Arc::ptr_eq(now, entry)) {
                return Err(unknown_table(view, &entry.name()));
            }
            let before = view.settings.get(&entry.id).cloned().unwrap_or_else(|| TableDefinition::of(entry));
            if is_agreed && (before.durability, before.log) != (durability, number) {
                return Err(DirectoryError::JournalUnavailable("another server has changed it again".to_owned()));
            }
            view.settings.insert(entry.id, TableDefinition { durability, log: number, ..before });
            next.effects.push(ChangeEffect::Durability(Arc::clone(entry), durability, number));
            Ok(())
        })
    }
}

/// Whether a table has to be logged under another number than now, so that a checkpoint has to write its records first.
pub(super) fn begins(entry: &TableEntry, (durability, number): (TableDurability, u64)) -> bool {
    !durability.is_none() && (entry.durability().is_none() || number != entry.durability.number())
}

/// Has a table logged as its durability says: a change of it does not hold.
pub(super) fn set_logging_as_before(entry: &TableEntry, log: &Arc<ChangeLog>) {
    entry.set_logging(log, entry.durability.number(), entry.durability().logging());
}

/// A change of durability has not held in time. `holds`: it does from now on.
fn late(entry: &TableEntry, holds: bool) -> DirectoryError {
    DirectoryError::LateDurability { table: entry.name().to_string(), durability: entry.durability().name(), holds }
}

fn unavailable(error: LogError) -> DirectoryError {
    DirectoryError::JournalUnavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandstorm_store::Epochs;

    use super::*;
    use crate::{DirectoryErrorKind, NewTable, NewTenant};

    /// No thread writes checkpoints here.
    #[test]
    fn a_change_that_does_not_hold_in_time_says_what_is_now_and_what_to_do() {
        let directory = Directory::new(Epochs::new());
        assert!(directory.checkpoint_requests().wait(Duration::ZERO).is_none());
        directory.checkpoint_requests().serve(2, None);
        assert_eq!(directory.checkpoint_requests().wait(Duration::ZERO), Some(Ok(())), "the second is served already");
        directory.create_tenant(NewTenant::named("shop")).unwrap();
        let durability = Some(TableDurability::None);
        let entry = directory.create_table("shop", NewTable { durability, ..NewTable::named("items") }).unwrap();
        let error = late(&entry, false);
        let text = error.to_string();
        assert!(text.starts_with("table \"items\" keeps durability none: ") && text.contains("after 120 s"), "{text}");
        assert_eq!(error.refusal(), DirectoryErrorKind::Unavailable);
        assert!(error.hint().contains("Try again while the disk has less to do"), "{}", error.hint());
        let (text, hint) = (late(&entry, true).to_string(), late(&entry, true).hint());
        assert!(text.starts_with("table \"items\" has durability none from now on, but "), "{text}");
        assert!(hint.starts_with("nothing has to be done again"), "{hint}");
    }
}

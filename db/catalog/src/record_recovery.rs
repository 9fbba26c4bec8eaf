//! Restores the records of an earlier start from their log.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{ChangeKind, ChangeLog, LogError, LogFolder, LogOptions, LoggedChange, RecoveredLog};
use sandstorm_store::{Participant, RecordTable, RestoredRecord, StoreError, TableLog};

use super::Directory;
use super::durability::log_name;
use super::snapshot::DirectorySnapshot;
use crate::limits::RESTORE_LOG_EVERY;

impl Directory {
    /// Reads the records of an earlier start from the log in a folder, if a table needs it. It has all further changes
    /// of tables with durability logged. Else the folder is left alone until there is such a table. Before other
    /// threads have the tables.
    ///
    /// # Errors
    /// [`LogError`]: another server has the folder; the log is damaged, or cannot be read or written; a record does not
    /// fit into its table.
    pub fn restore_records(&self, folder: &Path, participant: &mut Participant, now_ms: u64) -> Result<(), LogError> {
        if !logged_tables(&self.snapshot()).is_empty() {
            let disk: Arc<dyn LogDisk> = Arc::new(LogFolder::lock(folder)?);
            self.restore_from(disk, participant, now_ms)?;
        }
        self.log.set_folder(folder);
        Ok(())
    }

    /// The log of the tables with durability, if there is one.
    pub fn change_log(&self) -> Option<Arc<ChangeLog>> {
        self.log.get()
    }

    /// As [`Directory::restore_records`] from a disk.
    ///
    /// # Errors
    /// [`LogError`]: the log is damaged, or cannot be read or written, or a record does not fit into its table.
    fn restore_from(&self, disk: Arc<dyn LogDisk>, participant: &mut Participant, now_ms: u64) -> Result<(), LogError> {
        let snapshot = self.snapshot();
        let tables = logged_tables(&snapshot);
        let (begun, mut shown, mut changes, mut dropped) = (Instant::now(), Instant::now(), 0_u64, 0_u64);
        let path = disk.path_of("");
        let recovered = RecoveredLog::read(disk, LogOptions::default(), &mut |change, _| {
            changes += 1;
            match tables.get(&change.table) {
                Some(table) => restore(table, participant, change, now_ms)
                    .map_err(|error| LogError::unusable(&path, &format!("a record cannot be restored: {error}")))?,
                None => dropped += 1,
            }
            participant.quiescent();
            if shown.elapsed() >= RESTORE_LOG_EVERY {
                shown = Instant::now();
                tracing::warn!("restoring records: {changes} changes so far, after {} s", begun.elapsed().as_secs());
            }
            Ok(())
        })?;
        tables.values().for_each(|table| table.end_restoring(participant));
        let summary = recovered.summary();
        let log = recovered.start()?;
        for (number, table) in &tables {
            table.start_logging(TableLog::new(Arc::clone(&log), *number));
        }
        for view in snapshot.iter() {
            for entry in view.tables.values().filter(|entry| entry.log_number != 0) {
                log_name(&log, entry.log_number, &format!("{}/{}", view.tenant.name, entry.name));
            }
        }
        if changes > 0 {
            let records: u64 = tables.values().map(|table| table.stats().records).sum();
            tracing::info!(
                records,
                changes,
                of_dropped_tables = dropped,
                bytes = summary.bytes,
                torn_bytes = summary.torn_bytes,
                took_ms = begun.elapsed().as_millis() as u64,
                "restored records from the log"
            );
        }
        self.log.set(log);
        Ok(())
    }
}

/// The tables whose changes are logged, by their numbers there.
fn logged_tables(snapshot: &DirectorySnapshot) -> HashMap<u64, &RecordTable> {
    let tables = snapshot.iter().flat_map(|view| view.tables.values());
    tables.filter(|entry| entry.log_number != 0).map(|entry| (entry.log_number, &entry.table)).collect()
}

/// Makes a change of the log again.
fn restore(
    table: &RecordTable,
    participant: &mut Participant,
    change: &LoggedChange<'_>,
    now_ms: u64,
) -> Result<(), StoreError> {
    let LoggedChange { kind, version, expires_at_ms, flags, key, value, .. } = *change;
    match kind {
        ChangeKind::Put => {
            table.restore_record(participant, &RestoredRecord { version, key, value, flags, expires_at_ms }, now_ms)
        }
        ChangeKind::Delete => table.restore_delete(participant, key, version),
        ChangeKind::Clear => table.restore_clear(participant, version),
        ChangeKind::MakeTable => {
            table.raise_versions(participant, version);
            Ok(())
        }
        ChangeKind::DropTable => Ok(()),
    }
}

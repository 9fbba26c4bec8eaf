//! Restores the records of an earlier start from their log. One thread reads it, others make its changes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{ChangeLog, LogError, LogFolder, RecoveredLog, bytes_to_read, single_unit_bytes};
use sandstorm_store::{Participant, RecordTable, StoreError};

use super::directory_log::log_name;
use super::restore_threads::RestoreThreads;
use super::snapshot::DirectorySnapshot;
use super::{Directory, TableEntry};
use crate::limits::{CHANGE_DURABILITY_MOST, RESTORE_LOG_EVERY};

impl Directory {
    /// Reads the records of an earlier start from the log in a folder, if a table needs it. It has all further changes
    /// of tables with durability logged. Else the folder is left alone until there is such a table. Before other
    /// threads have the tables.
    ///
    /// # Errors
    /// [`LogError`]: another server has the folder; the log is damaged, or cannot be read or written; a record does not
    /// fit into its table.
    ///
    /// `start` has the log go on: its threads belong beside the workers, while all processors are for the restoring.
    pub fn restore_records(
        &self,
        folder: &Path,
        now_ms: u64,
        start: impl FnOnce(RecoveredLog) -> Result<Arc<ChangeLog>, LogError>,
    ) -> Result<(), LogError> {
        if !logged_tables(&self.snapshot()).is_empty() {
            let disk: Arc<dyn LogDisk> = Arc::new(LogFolder::lock(folder)?);
            self.restore_from(disk, now_ms, start)?;
        }
        self.log.set_folder(folder);
        Ok(())
    }

    /// Has the thread that writes the log call a function when it begins: before records are restored, and before there
    /// is a table with durability.
    pub fn on_log_writer(&self, begins: fn()) {
        self.log.on_writer(begins);
    }

    /// The log of the tables with durability, if there is one.
    pub fn change_log(&self) -> Option<Arc<ChangeLog>> {
        self.log.get()
    }

    /// As [`Directory::restore_records`] from a disk.
    ///
    /// # Errors
    /// [`LogError`]: the log is damaged, or cannot be read or written, or a record does not fit into its table.
    fn restore_from(
        &self,
        disk: Arc<dyn LogDisk>,
        now_ms: u64,
        start: impl FnOnce(RecoveredLog) -> Result<Arc<ChangeLog>, LogError>,
    ) -> Result<(), LogError> {
        let snapshot = self.snapshot();
        let tables = logged_tables(&snapshot);
        let (begun, mut shown, mut changes, mut dropped) = (Instant::now(), Instant::now(), 0_u64, 0_u64);
        let (path, all_bytes, mut bytes) = (disk.path_of(""), bytes_to_read(&*disk)?, 0);
        let recovered = std::thread::scope(|scope| {
            let mut threads = RestoreThreads::start(scope, &tables, &self.epochs, now_ms)
                .map_err(|error| LogError::unusable(&path, &format!("the system gives no thread: {error}")))?;
            let failed =
                |error: StoreError| LogError::unusable(&path, &format!("a record cannot be restored: {error}"));
            let recovered = RecoveredLog::read(disk, self.log.options(), &mut |change, _| {
                changes += 1;
                bytes += single_unit_bytes(change.key.len(), change.value.len());
                match tables.get(&change.table) {
                    Some(table) => threads.take(table, change).map_err(failed)?,
                    None => dropped += 1,
                }
                // The clock is looked at once in a while.
                if changes.is_multiple_of(1024) && shown.elapsed() >= RESTORE_LOG_EVERY {
                    shown = Instant::now();
                    let (seconds, [read, all]) =
                        (begun.elapsed().as_secs(), [bytes, all_bytes].map(|bytes| bytes >> 20));
                    tracing::warn!(
                        "restoring records: {changes} changes so far, {read} MiB of at most {all}, after {seconds} s"
                    );
                }
                Ok(())
            })?;
            threads.finish().map_err(failed)?;
            Ok::<_, LogError>(recovered)
        })?;
        let participant = self.epochs.register();
        let summary = recovered.summary();
        let log = start(recovered)?;
        Directory::connect_logged(&snapshot, &log, &participant)?;
        // The versions that are given from here on are above all that were shown before, after another crash as well.
        wait_for(&log)?;
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
        restore_backings(&snapshot, &participant, now_ms);
        Ok(())
    }

    /// Has the changes of restored tables logged.
    fn connect_logged(
        snapshot: &DirectorySnapshot,
        log: &Arc<ChangeLog>,
        participant: &Participant,
    ) -> Result<(), LogError> {
        for view in snapshot.iter() {
            for entry in view.tables.values().filter(|entry| entry.durability.number() != 0) {
                let version = entry.table.end_restoring(participant);
                let (number, name) = (entry.durability.number(), format!("{}/{}", view.tenant.name, entry.name()));
                let marks = entry.backing.get().map(|backing| {
                    let version = backing.table.marks().end_restoring(participant);
                    (backing.marks, format!("{name} changed records"), version)
                });
                entry.set_logging(log, number, entry.durability().logging());
                for (number, name, version) in std::iter::once((number, name, version)).chain(marks) {
                    while !log_name(log, number, &name, version) {
                        // There are as many tables as take more than may wait.
                        wait_for(log)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Has written to the backings of tables what a crash had left.
fn restore_backings(snapshot: &DirectorySnapshot, participant: &Participant, now_ms: u64) {
    for view in snapshot.iter() {
        for (entry, backing) in view.tables.values().filter_map(|entry| Some((entry, entry.backing()?))) {
            let changed = backing.restore_dirty(participant, now_ms);
            if changed > 0 {
                let table = format!("{}/{}", view.tenant.name, entry.name());
                tracing::info!(table, changed, "records are written to the backing of a table, which a crash had left");
            }
        }
    }
}

/// Waits until the log is on the disk.
fn wait_for(log: &ChangeLog) -> Result<(), LogError> {
    if log.wait(log.end(), CHANGE_DURABILITY_MOST) {
        return Ok(());
    }
    Err(log.failure().cloned().unwrap_or_else(|| LogError::unusable("log", "its disk takes too long")))
}

/// The tables whose changes are logged, by their numbers there.
fn logged_tables(snapshot: &DirectorySnapshot) -> HashMap<u64, &RecordTable> {
    let tables = snapshot.iter().flat_map(|view| view.tables.values());
    let logged = tables.filter(|entry| entry.durability.number() != 0);
    logged.flat_map(with_marks).collect()
}

/// A table, and the table of marks of one that is in front of a backing.
fn with_marks(entry: &Arc<TableEntry>) -> impl Iterator<Item = (u64, &RecordTable)> {
    let marks = entry.backing.get().map(|backing| (backing.marks, backing.table.marks()));
    std::iter::once((entry.durability.number(), &entry.table)).chain(marks)
}

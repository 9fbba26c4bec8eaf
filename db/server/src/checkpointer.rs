//! The checkpointer: a thread that writes the records of tables with durability into a checkpoint of the log when that
//! has grown. So neither the log nor the next start grows without bound. Tables serve and change meanwhile. Records are
//! copied first and written then: a slow disk delays no reclamation of memory.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::limits::{
    CHECKPOINT_CHECK_MS, CHECKPOINT_COLD_RECORDS, CHECKPOINT_MIN_LOG_BYTES, CHECKPOINT_RETRY_S, CHECKPOINT_SCAN_BYTES,
    CHECKPOINT_SCAN_RECORDS, CHECKPOINT_SCANS, CHECKPOINT_SUGGESTED_LOG_BYTES, CHECKPOINT_SUGGESTED_PART,
};
use sandstorm_catalog::Directory;
use sandstorm_log::{ChangeLog, CheckpointWriter, LogError, LoggedChange};
use sandstorm_store::{ColdRecord, Epochs, Participant, RecordRef, RecordTable};

/// The running thread; stops when dropped.
pub struct Checkpointer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(directory: Arc<Directory>, epochs: Arc<Epochs>) -> io::Result<Checkpointer> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("checkpointer".into()).spawn(move || {
            let mut participant = epochs.register();
            participant.offline();
            let (mut last_bytes, mut retry_at) = (0, Instant::now());
            while !stopped.load(Relaxed) {
                std::thread::park_timeout(Duration::from_millis(CHECKPOINT_CHECK_MS));
                let Some(log) = directory.change_log() else { continue };
                let may_try = Instant::now() >= retry_at;
                // A suggestion waits as long as the disk is left alone after a failure.
                let is_suggested = may_try && directory.checkpoint_requests().take_suggestion();
                let suggested = is_suggested.then(|| suggested_beside(&log, last_bytes));
                let is_due = is_due(log.bytes_since_checkpoint(), last_bytes, suggested);
                let requested = directory.checkpoint_requests().pending();
                if stopped.load(Relaxed) || (requested.is_none() && (!is_due || !may_try)) {
                    continue;
                }
                if let Some(failure) = log.failure() {
                    let serve = |request| directory.checkpoint_requests().serve(request, Some(failure.clone()));
                    requested.into_iter().for_each(serve);
                    continue;
                }
                let written = write_checkpoint(&directory, &log, &mut participant, &stopped);
                participant.offline();
                if let Some(request) = requested {
                    let error = written.as_ref().err().cloned();
                    let stops = written.as_ref().is_ok_and(Option::is_none);
                    let stopping = stops.then(|| LogError::unusable("log", "the server is stopping"));
                    directory.checkpoint_requests().serve(request, error.or(stopping));
                }
                match written {
                    Ok(bytes) => last_bytes = bytes.unwrap_or(last_bytes),
                    Err(error) => {
                        tracing::error!("no checkpoint was written, so the log keeps growing: {error}");
                        retry_at = Instant::now() + Duration::from_secs(CHECKPOINT_RETRY_S);
                    }
                }
            }
        })?;
        Ok(Checkpointer { stop, thread: Some(thread) })
    }
}

/// The bytes of the last checkpoint that a suggestion is compared with: where this process has written none, that of
/// the process before. What is not known is large, for this suggestion.
fn suggested_beside(log: &ChangeLog, last_bytes: u64) -> u64 {
    if last_bytes == 0 { log.checkpoint_bytes().unwrap_or(u64::MAX) } else { last_bytes }
}

/// Whether a checkpoint is due: since the last one the log has grown by as much as that has, so that no more is written
/// to checkpoints than to the log. A part of it is enough where one was suggested, beside one of so many bytes.
fn is_due(log_bytes: u64, last_bytes: u64, suggested: Option<u64>) -> bool {
    let least = |beside: u64| CHECKPOINT_SUGGESTED_LOG_BYTES.max(beside / CHECKPOINT_SUGGESTED_PART);
    log_bytes >= CHECKPOINT_MIN_LOG_BYTES.max(last_bytes) || suggested.is_some_and(|beside| log_bytes >= least(beside))
}

/// Writes a checkpoint. The participant is offline whenever the disk is at work. Returns the checkpoint's bytes; `None`
/// if the server stopped meanwhile.
fn write_checkpoint(
    directory: &Directory,
    log: &Arc<ChangeLog>,
    participant: &mut Participant,
    stopped: &AtomicBool,
) -> Result<Option<u64>, LogError> {
    let (begun, mut records) = (Instant::now(), 0_u64);
    let mut writer = CheckpointWriter::begin(log)?;
    for view in directory.snapshot().iter() {
        for entry in view.tables.values().filter(|entry| entry.table.is_logged()) {
            let name = format!("{}/{}", view.tenant.name, entry.name());
            let marks = entry.backing().map(|backing| (backing.marks(), format!("{name} changed records")));
            let tables = std::iter::once((&entry.table, name.clone())).chain(marks);
            let written = tables.map(|(table, name)| write_table((table, &name), &mut writer, participant, stopped));
            // All of them, or the first that is not.
            match written.collect::<Result<Option<Vec<u64>>, LogError>>().map(|all| all.map(|all| all[0])) {
                Ok(Some(written)) => records += written,
                Ok(None) => {
                    writer.abandon();
                    return Ok(None);
                }
                Err(error) => {
                    writer.abandon();
                    return Err(error);
                }
            }
        }
    }
    let bytes = writer.finish()?;
    let took_ms = begun.elapsed().as_millis() as u64;
    tracing::info!(records, bytes, took_ms, "wrote a checkpoint of the records");
    Ok(Some(bytes))
}

/// Writes the records of a table. Returns their number; `None` if the server stopped meanwhile.
fn write_table(
    (table, name): (&RecordTable, &str),
    writer: &mut CheckpointWriter,
    participant: &mut Participant,
    stopped: &AtomicBool,
) -> Result<Option<u64>, LogError> {
    let settled = table.settle(participant, name.as_bytes());
    participant.offline();
    if let Some(beginning) = settled {
        writer.push(&beginning)?;
    }
    let (mut records, mut cursor) = (0, Some(0));
    let (mut batch, mut cold) = (RecordBatch::default(), Vec::new());
    while let Some(at) = cursor {
        if stopped.load(Relaxed) {
            return Ok(None);
        }
        cursor = batch.fill(table, participant, at);
        // The disk may be slow. No freeing of memory waits for it.
        participant.offline();
        records += batch.records.len() as u64;
        batch.changes().try_for_each(|change| writer.push(&change))?;
        cold.append(&mut batch.cold);
        if cold.len() >= CHECKPOINT_COLD_RECORDS || cursor.is_none() {
            records += write_cold((table, name), &mut cold, writer, (participant, stopped))?;
            cold.clear();
        }
    }
    Ok((!stopped.load(Relaxed)).then_some(records))
}

/// Writes cold records, except those that have changed since they were met; returns how many. It ends early when the
/// server stops.
fn write_cold(
    (table, name): (&RecordTable, &str),
    cold: &mut [ColdRecord],
    writer: &mut CheckpointWriter,
    (participant, stopped): (&mut Participant, &AtomicBool),
) -> Result<u64, LogError> {
    let mut written = Ok(());
    let has_failed = Cell::new(false);
    let goes_on = || !stopped.load(Relaxed) && !has_failed.get();
    let read = table.read_cold_together(participant, cold, &goes_on, &mut |record| {
        if let (Ok(()), Some(change)) = (&written, table.cold_as_change(record)) {
            written = writer.push(&change);
            has_failed.set(written.is_err());
        }
    });
    participant.offline();
    let count = read.map_err(|error| LogError::unusable(name, &format!("a cold record cannot be read: {error}")))?;
    written.map(|()| count)
}

/// Copies of records, which are written when the table's own are not protected any more.
#[derive(Default)]
struct RecordBatch {
    /// Where each record's key and value end in `bytes`, and the rest of its change.
    records: Vec<(usize, usize, LoggedChange<'static>)>,
    bytes: Vec<u8>,
    /// The cold records among them, which are not copied.
    cold: Vec<ColdRecord>,
}

impl RecordBatch {
    /// Copies the next records of a table; returns where they end, `None` at the end of the table.
    fn fill(&mut self, table: &RecordTable, participant: &Participant, from: u64) -> Option<u64> {
        self.records.clear();
        self.bytes.clear();
        self.cold.clear();
        // One of large values does not keep its memory.
        self.bytes.shrink_to(2 * CHECKPOINT_SCAN_BYTES);
        let guard = participant.guard();
        let mut cursor = Some(from);
        for _ in 0..CHECKPOINT_SCANS {
            let Some(at) = cursor else { break };
            // By no clock: what has expired goes when it is found.
            let copy = &mut |record: RecordRef<'_>| {
                if let Some(change) = table.as_change(record) {
                    self.bytes.extend_from_slice(change.key);
                    let key_end = self.bytes.len();
                    self.bytes.extend_from_slice(change.value);
                    self.records.push((key_end, self.bytes.len(), LoggedChange { key: b"", value: b"", ..change }));
                }
            };
            cursor = table.scan_all(&guard, (at, CHECKPOINT_SCAN_RECORDS), 0, copy, &mut self.cold);
            if self.bytes.len() >= CHECKPOINT_SCAN_BYTES {
                break;
            }
        }
        cursor
    }

    /// The records as changes.
    fn changes(&self) -> impl Iterator<Item = LoggedChange<'_>> {
        let mut begin = 0;
        self.records.iter().map(move |(key_end, end, change)| {
            let (key, value) = (&self.bytes[begin..*key_end], &self.bytes[*key_end..*end]);
            begin = *end;
            LoggedChange { key, value, ..*change }
        })
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the checkpointer had panicked");
            }
        }
    }
}

#[cfg(test)]
mod spill_tests;

#[cfg(test)]
mod tests {
    //! Promise: a checkpoint copies each record whole, a bounded number of bytes at a time.

    use std::collections::BTreeMap;

    use sandstorm_catalog::{DirectoryOptions, NewTable, NewTenant, TableDurability};
    use sandstorm_log::disk::simulated::SimulatedDisk;
    use sandstorm_log::{LogOptions, RecoveredLog};
    use sandstorm_store::{TableConfig, TableLogging, WriteOptions};

    use super::*;

    #[test]
    fn a_checkpoint_that_is_suggested_is_written_where_it_costs_little() {
        let (mib, gib) = (1_u64 << 20, 1_u64 << 30);
        assert!(!is_due(127 * mib, 0, None) && is_due(128 * mib, 0, None));
        assert!(!is_due(gib - 1, gib, None) && is_due(gib, gib, None));
        assert!(!is_due(mib - 1, 0, Some(0)) && is_due(mib, 0, Some(0)));
        assert!(!is_due(255 * mib, gib, Some(gib)) && is_due(256 * mib, gib, Some(gib)));
        // What is not known is large for the suggestion alone.
        assert!(!is_due(127 * mib, 0, Some(u64::MAX)) && is_due(128 * mib, 0, Some(u64::MAX)));
    }

    #[test]
    fn a_suggestion_has_one_written_long_before_it_is_due() {
        let folder = std::env::temp_dir().join(format!("sandstorm-suggested-{}", std::process::id()));
        let _left = std::fs::remove_dir_all(&folder);
        let epochs = Epochs::new();
        let options = DirectoryOptions { can_keep_records: true, ..DirectoryOptions::default() };
        let directory = Directory::with_options(Arc::clone(&epochs), options);
        directory.restore_records(&folder, 1, |log| log.start()).unwrap();
        directory.create_tenant(NewTenant::named("shop")).unwrap();
        let new = NewTable { durability: Some(TableDurability::Disk), ..NewTable::named("items") };
        directory.create_table("shop", new).unwrap();
        let log = directory.change_log().unwrap();
        {
            let view = directory.snapshot().by_name("shop").unwrap().clone();
            let (entry, participant) = (view.table_by_name("items").unwrap(), directory.participant());
            let (table, options) = (&entry.table, WriteOptions::default());
            for number in 0..200_u32 {
                let key = number.to_le_bytes();
                table.put(&participant, table.hash(&key), &key, &[7; 10_000], &options, 1).unwrap();
            }
        }
        assert!(log.bytes_since_checkpoint() < CHECKPOINT_MIN_LOG_BYTES / 8);
        directory.checkpoint_requests().suggest();
        let checkpointer = Checkpointer::start(Arc::clone(&directory), epochs).unwrap();
        let until = Instant::now() + Duration::from_secs(120);
        while log.checkpoint_bytes() == Ok(0) {
            assert!(Instant::now() < until, "no checkpoint is written");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(log.checkpoint_bytes().unwrap() > 200 * 10_000 && !directory.checkpoint_requests().take_suggestion());
        drop(checkpointer);
        log.close();
        let _left = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn batches_have_all_records_and_few_bytes() {
        const VALUE_BYTES: usize = 40_000;
        let epochs = Epochs::new();
        let mut participant = epochs.register();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 1);
        let disk = Arc::new(SimulatedDisk::default());
        let options = LogOptions { segment_bytes: 64 << 20, feed_bytes: 0, ..LogOptions::default() };
        let log = RecoveredLog::read(disk, options, &mut |_, _| Ok(())).expect("empty").start().expect("started");
        table.set_logging(&log, 7, TableLogging::AtOnce);
        let mut written = BTreeMap::new();
        for number in 0..2_000_u32 {
            let (key, flags) = (number.to_le_bytes(), number % 3);
            let value = vec![number as u8; if number < 200 { VALUE_BYTES } else { number as usize % 50 }];
            let options = WriteOptions { flags, ..WriteOptions::default() };
            let version = table.put(&participant, table.hash(&key), &key, &value, &options, 1).expect("room");
            written.insert(key.to_vec(), (value, flags, version));
        }
        let (mut batch, mut cursor, mut found) = (RecordBatch::default(), Some(0), BTreeMap::new());
        while let Some(at) = cursor {
            cursor = batch.fill(&table, &participant, at);
            participant.offline();
            let most = CHECKPOINT_SCAN_BYTES + CHECKPOINT_SCAN_RECORDS * (VALUE_BYTES + 4);
            assert!(batch.bytes.len() <= most, "{} bytes", batch.bytes.len());
            assert!(batch.records.len() <= CHECKPOINT_SCANS * CHECKPOINT_SCAN_RECORDS);
            for change in batch.changes() {
                assert_eq!(change.table, 7);
                found.insert(change.key.to_vec(), (change.value.to_vec(), change.flags, change.version));
            }
        }
        assert!(found == written, "{} of {} records", found.len(), written.len());
    }
}

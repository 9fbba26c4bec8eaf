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
    CHECKPOINT_SCAN_RECORDS, CHECKPOINT_SCANS,
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
                // As much as the last checkpoint: so no more is written to checkpoints than to the log.
                let is_due = log.bytes_since_checkpoint() >= CHECKPOINT_MIN_LOG_BYTES.max(last_bytes);
                let requested = directory.checkpoint_requests().pending();
                if stopped.load(Relaxed) || (requested.is_none() && (!is_due || Instant::now() < retry_at)) {
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
        // The disk may be slow. Nobody's memory waits for it.
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

    use sandstorm_log::disk::simulated::SimulatedDisk;
    use sandstorm_log::{LogOptions, RecoveredLog};
    use sandstorm_store::{TableConfig, TableLogging, WriteOptions};

    use super::*;

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

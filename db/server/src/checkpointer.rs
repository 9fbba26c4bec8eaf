//! The checkpointer: a thread that writes the records of tables with durability into a checkpoint of the log when that
//! has grown. So neither the log nor the next start grows without bound. Tables serve and change meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::limits::{CHECKPOINT_CHECK_MS, CHECKPOINT_MIN_LOG_BYTES, CHECKPOINT_RETRY_S, CHECKPOINT_SCAN_RECORDS};
use sandstorm_catalog::{Directory, TableEntry};
use sandstorm_log::{ChangeLog, CheckpointWriter, LogError};
use sandstorm_store::{Epochs, Participant};

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
                if !is_due || Instant::now() < retry_at || log.failure().is_some() || stopped.load(Relaxed) {
                    continue;
                }
                participant.online();
                let written = write_checkpoint(&directory, &log, &mut participant, &stopped);
                participant.offline();
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

/// Writes a checkpoint. Returns its bytes; `None` if the server stopped meanwhile.
fn write_checkpoint(
    directory: &Directory,
    log: &Arc<ChangeLog>,
    participant: &mut Participant,
    stopped: &AtomicBool,
) -> Result<Option<u64>, LogError> {
    let (begun, mut records) = (Instant::now(), 0_u64);
    let mut writer = CheckpointWriter::begin(log)?;
    for view in directory.snapshot().iter() {
        for entry in view.tables.values().filter(|entry| !entry.durability.is_none()) {
            let name = format!("{}/{}", view.tenant.name, entry.name);
            match write_table((entry, &name), &mut writer, participant, stopped) {
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
    (entry, name): (&TableEntry, &str),
    writer: &mut CheckpointWriter,
    participant: &mut Participant,
    stopped: &AtomicBool,
) -> Result<Option<u64>, LogError> {
    if let Some(table) = entry.table.settle(participant, name.as_bytes()) {
        writer.push(&table)?;
    }
    let (mut records, mut cursor) = (0, Some(0));
    while let Some(at) = cursor {
        if stopped.load(Relaxed) {
            return Ok(None);
        }
        let mut written = Ok(());
        {
            let guard = participant.guard();
            // By no clock: what has expired goes, whoever finds it.
            cursor = entry.table.scan(&guard, at, CHECKPOINT_SCAN_RECORDS, 0, &mut |record| {
                if let (Ok(()), Some(change)) = (&written, entry.table.as_change(record)) {
                    records += 1;
                    written = writer.push(&change);
                }
            });
        }
        written?;
        participant.quiescent();
    }
    Ok(Some(records))
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

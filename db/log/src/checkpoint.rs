//! Checkpoints: a file with the records of all tables as changes, which makes the log before it superfluous.
//!
//! It is written while the tables change. So it holds for the position at which it was begun, once everything that it
//! may have seen is on the disk: changes from that position on are made again over it, and the higher version of a key
//! wins.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::change::{LoggedChange, UnitBuilder};
use crate::change_log::ChangeLog;
use crate::disk::LogFile;
use crate::error::LogError;
use crate::frame::{FileHeader, FileKind, FrameHeader, FramePlace};
use crate::limits::{BLOCK_BYTES, CHECKPOINT_FRAME_BYTES, CHECKPOINT_SYNC_BYTES, FRAME_PAYLOAD_BYTES};
use crate::segment_writer::{NEW_PREFIX, now_ms};

/// Longest wait for the log at the end of a checkpoint, after which it is given up: the disk is stuck.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

/// A checkpoint that is being written. One at a time; one that is dropped before its end removes its
/// file: the earlier one and the log hold.
pub struct CheckpointWriter {
    log: Arc<ChangeLog>,
    file: Box<dyn LogFile>,
    name: String,
    number: u64,
    /// The position for which it holds.
    from: u64,
    unit: UnitBuilder,
    unit_bytes: usize,
    buffer: Vec<u8>,
    /// The offset of the next frame.
    offset: u64,
    position: u64,
    unsynced: u64,
    is_published: bool,
}

impl CheckpointWriter {
    /// Begins a checkpoint at the log's end. What was appended before is in the tables once each of their locks was
    /// free after this call: only then may their records be read.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub fn begin(log: &Arc<ChangeLog>) -> Result<CheckpointWriter, LogError> {
        let shared = log.shared();
        let (number, from) = (shared.checkpoint.load(Relaxed) + 1, log.end());
        let name = format!("{NEW_PREFIX}{}", FileKind::Checkpoint.file_name(number));
        let failed = |error| LogError::system("make", shared.disk.path_of(&name), &error);
        let file = shared.disk.create(&name).map_err(failed)?;
        let mut writer = CheckpointWriter {
            log: Arc::clone(log),
            file,
            name,
            number,
            from,
            unit: UnitBuilder::default(),
            unit_bytes: 0,
            buffer: Vec::new(),
            offset: 0,
            position: 0,
            unsynced: 0,
            is_published: false,
        };
        let (kind, log_id) = (FileKind::Checkpoint, shared.log_id);
        let header = FileHeader { kind, log_id, number, first_position: from, made_ms: now_ms() };
        writer.write(&header.encode())?;
        Ok(writer)
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub fn push(&mut self, change: &LoggedChange<'_>) -> Result<(), LogError> {
        self.unit.push(change);
        self.unit_bytes += change.encoded_bytes();
        if self.unit_bytes >= CHECKPOINT_FRAME_BYTES { self.end_unit() } else { Ok(()) }
    }

    fn end_unit(&mut self) -> Result<(), LogError> {
        let mut unit = std::mem::take(&mut self.unit);
        let written = unit.encoded().chunks(FRAME_PAYLOAD_BYTES).try_for_each(|part| self.frame(part, false));
        unit.clear(2 * CHECKPOINT_FRAME_BYTES);
        (self.unit, self.unit_bytes) = (unit, 0);
        written
    }

    fn frame(&mut self, payload: &[u8], is_last: bool) -> Result<(), LogError> {
        let (log_id, number, offset) = (self.log.shared().log_id, self.number, self.offset);
        let place = FramePlace { kind: FileKind::Checkpoint, log_id, number, offset };
        let header = FrameHeader { position: self.position, durable: 0, payload_bytes: payload.len() as u32, is_last };
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        header.encode(&place, payload, &mut buffer);
        let written = self.write(&buffer);
        self.buffer = buffer;
        self.position += payload.len() as u64;
        written
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        let written = self.file.write_at(self.offset, bytes).map_err(|error| self.failed("write", &error))?;
        if written != bytes.len() {
            return Err(self.failed("write", &std::io::ErrorKind::StorageFull.into()));
        }
        self.offset += bytes.len() as u64;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= CHECKPOINT_SYNC_BYTES { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), LogError> {
        self.unsynced = 0;
        self.file.sync().map_err(|error| self.failed("sync", &error))
    }

    fn failed(&self, action: &'static str, error: &std::io::Error) -> LogError {
        LogError::system(action, self.log.shared().disk.path_of(&self.name), error)
    }

    /// Ends the checkpoint, and removes the files that it makes superfluous. Returns its bytes.
    ///
    /// # Errors
    /// [`LogError`]: the earlier checkpoint and the log hold then.
    pub fn finish(mut self) -> Result<u64, LogError> {
        if !self.unit.is_empty() {
            self.end_unit()?;
        }
        self.frame(b"", true)?;
        self.sync()?;
        // The records may be those of changes that a crash would still take back.
        if !self.log.wait(self.log.end(), FINISH_TIMEOUT) {
            let why = "the log was not on the disk in time";
            return Err(self
                .log
                .failure()
                .cloned()
                .unwrap_or_else(|| self.failed("finish", &std::io::Error::other(why))));
        }
        let shared = Arc::clone(self.log.shared());
        let name = FileKind::Checkpoint.file_name(self.number);
        shared.disk.rename(&self.name, &name).map_err(|error| self.failed("rename", &error))?;
        self.is_published = true;
        shared.disk.sync_folder().map_err(|error| self.failed("sync", &error))?;
        let before = shared.checkpoint.swap(self.number, Relaxed);
        shared.needed_from.store(self.from, Relaxed);
        let mut gone = Vec::new();
        {
            let mut segments = shared.first_positions.lock();
            while segments.get(1).is_some_and(|(_, first_position)| *first_position <= self.from) {
                gone.push(FileKind::Segment.file_name(segments.remove(0).0));
            }
        }
        if before != 0 {
            gone.push(FileKind::Checkpoint.file_name(before));
        }
        for name in gone {
            if let Err(error) = shared.disk.remove(&name) {
                // The next start tries again.
                tracing::warn!("cannot remove {}, which is not needed any more: {error}", shared.disk.path_of(&name));
            }
        }
        Ok(self.offset.max(BLOCK_BYTES))
    }

    /// Gives the checkpoint up: the earlier one and the log hold.
    pub fn abandon(self) {
        drop(self);
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if !self.is_published {
            // On a full disk its bytes are what the log needs.
            let _or_at_the_next_start = self.log.shared().disk.remove(&self.name);
        }
    }
}

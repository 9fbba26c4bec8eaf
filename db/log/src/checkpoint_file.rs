//! The file of a checkpoint: changes in units, frame by frame, under another name until it is whole.

use std::sync::Arc;

use crate::change::{LoggedChange, UnitBuilder};
use crate::disk::{LogDisk, LogFile};
use crate::error::LogError;
use crate::frame::{FORMAT, FileHeader, FileKind, FrameHeader, FramePlace, file_age};
use crate::limits::{CHECKPOINT_FRAME_BYTES, CHECKPOINT_SYNC_BYTES, FRAME_PAYLOAD_BYTES};
use crate::segment_writer::{NEW_PREFIX, now_ms};

/// A file that is being written; one that is dropped before it is published is removed.
pub(crate) struct CheckpointFile {
    disk: Arc<dyn LogDisk>,
    file: Box<dyn LogFile>,
    name: String,
    header: FileHeader,
    unit: UnitBuilder,
    unit_bytes: usize,
    buffer: Vec<u8>,
    /// The offset of the next frame.
    offset: u64,
    position: u64,
    unsynced: u64,
    is_published: bool,
}

impl CheckpointFile {
    /// Begins the checkpoint of that number, which holds for the position `from` of a log.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn begin(
        disk: &Arc<dyn LogDisk>,
        log_id: u64,
        number: u64,
        from: u64,
    ) -> Result<CheckpointFile, LogError> {
        let name = format!("{NEW_PREFIX}{}", FileKind::Checkpoint.file_name(number));
        let file = disk.create(&name).map_err(|error| LogError::system("make", disk.path_of(&name), &error))?;
        let (kind, made_ms) = (FileKind::Checkpoint, now_ms());
        let header = FileHeader { format: FORMAT, kind, log_id, number, first_position: from, made_ms };
        let mut checkpoint = CheckpointFile {
            disk: Arc::clone(disk),
            file,
            name,
            header,
            unit: UnitBuilder::default(),
            unit_bytes: 0,
            buffer: Vec::new(),
            offset: 0,
            position: 0,
            unsynced: 0,
            is_published: false,
        };
        checkpoint.write(&header.encode())?;
        Ok(checkpoint)
    }

    /// Returns its number, and the position for which it holds.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.header.number, self.header.first_position)
    }

    /// Returns its bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset
    }

    /// Adds a change.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn push(&mut self, change: &LoggedChange<'_>) -> Result<(), LogError> {
        self.unit.push(change);
        self.unit_bytes += change.encoded_bytes();
        if self.unit_bytes >= CHECKPOINT_FRAME_BYTES { self.end_unit() } else { Ok(()) }
    }

    fn end_unit(&mut self) -> Result<(), LogError> {
        let mut unit = std::mem::take(&mut self.unit);
        let mut parts = unit.encoded().chunks(FRAME_PAYLOAD_BYTES).enumerate();
        let written = parts.try_for_each(|(at, part)| {
            let header = FrameHeader { begins_unit: at == 0, ..FrameHeader::default() };
            self.frame(part, header)
        });
        unit.clear(2 * CHECKPOINT_FRAME_BYTES);
        (self.unit, self.unit_bytes) = (unit, 0);
        written
    }

    fn frame(&mut self, payload: &[u8], header: FrameHeader) -> Result<(), LogError> {
        let FileHeader { kind, log_id, number, made_ms, .. } = self.header;
        let place = FramePlace { kind, log_id, number, offset: self.offset };
        let age = file_age(made_ms, now_ms());
        let header = FrameHeader { position: self.position, payload_bytes: payload.len() as u32, age, ..header };
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

    /// The error of an action with this file.
    pub(crate) fn failed(&self, action: &'static str, error: &std::io::Error) -> LogError {
        LogError::system(action, self.disk.path_of(&self.name), error)
    }

    /// Writes the last frame, and waits until the file is on the disk. `seen`: the position up to which it may have
    /// seen changes.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn finish(&mut self, seen: u64) -> Result<(), LogError> {
        if !self.unit.is_empty() {
            self.end_unit()?;
        }
        self.frame(b"", FrameHeader { durable: seen, is_last: true, ..FrameHeader::default() })?;
        self.sync()
    }

    /// Gives the finished file its name.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn publish(&mut self) -> Result<(), LogError> {
        let name = FileKind::Checkpoint.file_name(self.header.number);
        self.disk.rename(&self.name, &name).map_err(|error| self.failed("rename", &error))?;
        self.is_published = true;
        self.disk.sync_folder().map_err(|error| self.failed("sync", &error))
    }
}

impl Drop for CheckpointFile {
    fn drop(&mut self) {
        if !self.is_published {
            // On a full disk its bytes are what the log needs.
            let _or_at_the_next_start = self.disk.remove(&self.name);
        }
    }
}

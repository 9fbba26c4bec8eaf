//! A file of a copy of a log. A segment's frames of one batch go to the disk by one synchronous write, to a file that
//! was filled with zeros ahead.

use std::io::ErrorKind;

use crate::broken_rules::{ReplicaRule, is_replica_broken};
use crate::disk::LogFile;
use crate::frame::{FRAME_HEADER_BYTES, FileHeader, frame_bytes};
use crate::limits::{FRAME_PAYLOAD_BYTES, REPLICA_ZERO_BYTES, SHIPPED_BYTES};
use crate::segment_writer::{FrameBuffer, fill_with_zeros};

/// Bytes of a segment's changes in a batch, at most: it ends with the frame that exceeds its size.
pub(crate) const BATCH_PAYLOAD_BYTES: u64 = (SHIPPED_BYTES + FRAME_PAYLOAD_BYTES) as u64;
/// Bytes of its frames, in whole blocks, about: more is written in more than one piece of memory.
const BATCH_FRAME_BYTES: u64 = 2 * BATCH_PAYLOAD_BYTES;
/// Bytes of a batch up to which the file is filled with zeros for the next ones: for a larger one they would cost more
/// than a growing file does.
const ZEROS_FOR_BYTES: u64 = 64 << 10;

/// A file that may be written.
pub(crate) struct ReplicaFile {
    pub(crate) header: FileHeader,
    /// None: it is not written any more.
    pub(crate) file: Option<Box<dyn LogFile>>,
    pub(crate) offset: u64,
    pub(crate) position: u64,
    /// Whether a checkpoint's last frame is there.
    pub(crate) is_whole: bool,
    pub(crate) is_dirty: bool,
    /// A segment's frames that are not written yet: those of one batch go to the disk by one synchronous write.
    pending: FrameBuffer,
    /// The position before them.
    pending_from: u64,
    /// The offset up to which the file is filled with zeros, or with frames: the file does not grow up to there. Or, if
    /// there was no room for zeros: up to which none are tried again.
    zeros_to: u64,
}

impl ReplicaFile {
    pub(crate) fn new(header: FileHeader, file: Option<Box<dyn LogFile>>, offset: u64, position: u64) -> ReplicaFile {
        let (is_whole, is_dirty, pending, pending_from, zeros_to) = (false, false, FrameBuffer::default(), position, 0);
        ReplicaFile { header, file, offset, position, is_whole, is_dirty, pending, pending_from, zeros_to }
    }

    /// Nothing is written to it any more.
    pub(crate) fn close(&mut self) {
        (self.file, self.pending) = (None, FrameBuffer::default());
    }

    /// Has a segment's frame, in whole blocks, written with the next sync.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let whole = frame_bytes(bytes.len() - FRAME_HEADER_BYTES);
        if self.pending.frames().is_empty() {
            self.pending.begin(BATCH_FRAME_BYTES);
            self.pending_from = self.position;
        }
        self.pending.add(bytes, whole as usize);
        self.offset += whole;
    }

    /// Writes what is pending, and waits until it is on the disk.
    pub(crate) fn flush(&mut self) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let is_broken = is_replica_broken(ReplicaRule::ConfirmedIsOnDisk);
        if std::mem::take(&mut self.is_dirty) && !is_broken {
            file.sync()?;
        }
        let bytes = self.pending.frames().len() as u64;
        if bytes == 0 {
            return Ok(());
        }
        let (at, frames) = (self.offset - bytes, self.pending.frames());
        let written = match if is_broken { file.write_at(at, frames) } else { file.write_synced_at(at, frames) } {
            Ok(written) if written as u64 != bytes => Err(ErrorKind::StorageFull.into()),
            done => done,
        };
        self.pending.clear();
        if let Err(error) = written {
            (self.offset, self.position) = (self.offset - bytes, self.pending_from);
            return Err(error);
        }
        if bytes <= ZEROS_FOR_BYTES && self.zeros_to < self.offset + bytes {
            self.fill_ahead()?;
        }
        Ok(())
    }

    /// Fills the file with zeros behind its end, as the log's own segments are. Where a file does not grow, a write is
    /// one of the disk; else the file system writes to its journal, too. A disk without room is met by the next frame.
    fn fill_ahead(&mut self) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        self.zeros_to = self.offset + REPLICA_ZERO_BYTES;
        match fill_with_zeros(&**file, self.offset..self.zeros_to) {
            // Nor does it take a MiB of what a quota leaves for frames. Tried at each batch, it would take some of what
            // others have made room of, each time, and the answer would wait for that.
            Err(error) if [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&error.kind()) => Ok(()),
            filled => filled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::LogDisk;
    use crate::disk::simulated::SimulatedDisk;
    use crate::frame::FileKind;
    use crate::limits::BLOCK_BYTES;

    #[test]
    fn a_disk_without_room_for_zeros_is_not_asked_for_it_again_at_each_batch() {
        let (kind, number) = (FileKind::Segment, 1);
        let header = FileHeader { format: 1, kind, log_id: 7, number, first_position: 0, made_ms: 1 };
        let operations = |room: Option<u64>| {
            let disk = SimulatedDisk::default();
            let made = disk.create("a").expect("a file");
            let mut file = ReplicaFile::new(header, Some(made), BLOCK_BYTES, 0);
            let mut counts = Vec::new();
            for _ in 0..8 {
                // Whatever others make room of.
                disk.set_capacity(room.map(|room| disk.used() + room));
                let before = disk.operations();
                file.add(&[7; FRAME_HEADER_BYTES + 100]);
                file.flush().expect("there is room for a frame");
                counts.push(disk.operations() - before);
            }
            (counts, disk.used())
        };
        let (filled, _) = operations(None);
        let (full, used) = operations(Some(4 * BLOCK_BYTES));
        assert_eq!(full[1..], filled[1..], "frames and nothing else");
        assert!(full[1] < filled[0] && used < REPLICA_ZERO_BYTES / 4, "{full:?} {filled:?} {used}");
    }
}

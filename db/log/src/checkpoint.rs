//! Checkpoints: a file with the records of all tables as changes, which replaces the log before it.
//!
//! It is written while the tables change. So it is valid for the position at which it was begun, once everything that
//! it may have seen is on the disk: a restart makes the changes from that position on over it, and the higher version
//! of a key wins.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::change::LoggedChange;
use crate::change_log::ChangeLog;
use crate::checkpoint_file::CheckpointFile;
use crate::error::LogError;
use crate::frame::FileKind;

/// Longest wait for the log at the end of a checkpoint, after which it is given up: the disk is stuck.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

impl ChangeLog {
    /// Returns the bytes of the last checkpoint; 0: there is none.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub fn checkpoint_bytes(&self) -> Result<u64, LogError> {
        let shared = self.shared();
        let number = shared.checkpoint.load(Relaxed);
        if number == 0 {
            return Ok(0);
        }
        let name = FileKind::Checkpoint.file_name(number);
        let bytes = shared.disk.open(&name).and_then(|file| file.bytes());
        bytes.map_err(|error| LogError::system("read", shared.disk.path_of(&name), &error))
    }
}

/// A checkpoint that is being written. One at a time; one that is dropped before its end removes its
/// file: the earlier one and the log hold.
pub struct CheckpointWriter {
    log: Arc<ChangeLog>,
    file: CheckpointFile,
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
        let file = CheckpointFile::begin(&shared.disk, shared.log_id, number, from)?;
        Ok(CheckpointWriter { log: Arc::clone(log), file })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub fn push(&mut self, change: &LoggedChange<'_>) -> Result<(), LogError> {
        self.file.push(change)
    }

    /// Ends the checkpoint, and removes the files that it makes superfluous. Returns its bytes.
    ///
    /// # Errors
    /// [`LogError`]: the earlier checkpoint and the log hold then.
    pub fn finish(mut self) -> Result<u64, LogError> {
        // The records may be those of changes that a crash would still take back.
        let seen = self.log.end();
        self.file.finish(seen)?;
        if !self.log.wait(seen, FINISH_TIMEOUT) {
            let late = || self.file.failed("finish", &std::io::Error::other("the log was not on the disk in time"));
            return Err(self.log.failure().cloned().unwrap_or_else(late));
        }
        let shared = Arc::clone(self.log.shared());
        self.file.publish()?;
        let (number, from) = self.file.place();
        let before = shared.checkpoint.swap(number, Relaxed);
        shared.needed_from.store(from, Relaxed);
        let mut gone = Vec::new();
        let asked = shared.retain_from.load(Relaxed).min(shared.ship_from.load(Relaxed));
        let retained = asked.max(seen.saturating_sub(shared.options.retained_bytes));
        // A tail goes on from a frame that begins a unit. What is pending is less than a segment, so that frame is in
        // the segment of the position, or in the one before.
        let behind = if asked < from { 2 } else { 1 };
        let kept_from = from.min(retained).min(seen.saturating_sub(shared.options.feed_bytes));
        {
            let mut segments = shared.first_positions.lock();
            while segments.get(behind).is_some_and(|(_, first_position)| *first_position <= kept_from) {
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
        Ok(self.file.bytes())
    }

    /// Gives the checkpoint up: the earlier one and the log hold.
    pub fn abandon(self) {
        drop(self);
    }
}

//! The log of changes: what was acknowledged is there after a crash. It knows no tables; `README.md` says why it is
//! as it is.
//!
//! - [`change`], [`frame`]: the format;
//! - [`disk`]: the seam to the file system;
//! - [`change_log`]: the log of a running server, [`segment_writer`] writes its files;
//! - [`recovery`], [`file_reader`]: what an earlier server left;
//! - [`checkpoint`]: what makes the log before it superfluous;
//! - [`tail`]: the changes of a running log, as they reach the disk; [`read_behind()`]: those of one that has ended;
//! - [`replica`], [`replica_ledger`], [`shipper`]: copies of a log on other servers, and what sends them;
//! - [`scrub`]: looks again whether what is on the disk is what has to be there.
#![forbid(unsafe_code)]

mod broken_rules;
pub mod change;
mod change_log;
mod checkpoint;
mod checkpoint_file;
mod damaged_tables;
pub mod disk;
mod error;
mod file_reader;
pub mod frame;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod limits;
mod log_copy;
#[cfg(any(test, feature = "testing"))]
mod memory_replica;
mod options;
mod positions;
mod read_behind;
mod recent_frames;
mod recovery;
mod replica;
mod replica_file;
mod replica_format;
mod replica_ledger;
#[cfg(any(test, feature = "testing"))]
pub mod replica_suite;
mod salvage;
mod scrub;
mod segment_writer;
mod shipper;
mod tail;
#[cfg(test)]
mod tests;

pub use change::single_unit_bytes;
pub use change::{ChangeKind, LoggedChange, UnitBuilder};
pub use change_log::{ChangeLog, LogPermit, ProgressHook, RecoveredLog};
pub use checkpoint::CheckpointWriter;
// The checksum of the log's files, for other files that have the same one.
pub use crc32c::crc32c_append;
pub use disk::folder::LogFolder;
pub use error::{LogError, LogRefusal};
pub use log_copy::{CopiedFile, CopyEnd, LogCopy, copy_log};
#[cfg(any(test, feature = "testing"))]
pub use memory_replica::MemoryReplica;
pub use options::LogOptions;
pub use positions::{COPIED_BIT, PositionState, boot_time, later_position, waits_for_copies};
pub use read_behind::{BehindVisitor, read_behind};
pub use recovery::{ChangeVisitor, ReplaySummary, bytes_to_read};
pub use replica::{LogReplica, ReplicaError, ReplicaFileState, ReplicaFolder, ReplicaState};
pub use replica_format::ReplicaBatch;
pub use replica_ledger::ReplicaLedger;
pub use salvage::{LostRange, SalvagedLog, salvage_log};
pub use scrub::{FileScrub, ScrubDamage, ScrubStep, ScrubbedFile};
pub use shipper::LogShipper;
pub use tail::{LogTail, TailError, TailVisitor};

/// Returns a number for a table in the log: no other table has it, not even a dropped one. Never 0.
pub fn new_table_number() -> u64 {
    rand::random::<u64>().max(1)
}

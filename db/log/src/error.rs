//! Errors: one sentence each, with the file.

use std::io;

/// The log cannot be opened, read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Another process has the folder.
    #[error("{0} is used by another server: two servers on one state directory would overwrite each other's records")]
    Locked(String),
    /// A file is damaged: it is not what was acknowledged.
    #[error(
        "{file} is damaged at byte {offset}: {what}. Records that were acknowledged may be missing, so nothing is read; \
         restore the folder from a copy, or give up what is lost with `sandstorm serve --salvage`"
    )]
    Damaged {
        /// The file.
        file: String,
        /// The byte in it.
        offset: u64,
        /// The difference from what has to be there.
        what: String,
    },
    /// A file of a newer version of this program.
    #[error("{file} has format {format}, which a newer version of this program has written: start that version")]
    Newer {
        /// The file.
        file: String,
        /// Its format.
        format: u32,
    },
    /// A file of a version of this program that is too old.
    #[error("{file} has format {format}, which this program does not read any more: start the version before it once")]
    Older {
        /// The file.
        file: String,
        /// Its format.
        format: u32,
    },
    /// What was read cannot be used.
    #[error("the log in {file} cannot be used: {what}")]
    Unusable {
        /// The file or folder.
        file: String,
        /// The reason.
        what: String,
    },
    /// A system call failed.
    #[error("cannot {action} {file}: {error}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The file.
        file: String,
        /// The system's reason.
        error: String,
        /// Whether the disk is full.
        is_full: bool,
    },
}

impl LogError {
    pub(crate) fn system(action: &'static str, file: String, error: &io::Error) -> LogError {
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        LogError::System { action, file, error: error.to_string(), is_full }
    }

    /// Adds how many bytes a log needs to begin, if the reason is a full disk.
    pub(crate) fn with_needed_bytes(self, bytes: u64) -> LogError {
        match self {
            LogError::System { action, file, error, is_full: true } => {
                let needed = bytes.div_ceil(1 << 20);
                let error =
                    format!("{error}; the log of tables with durability needs {needed} MiB to begin: make room");
                LogError::System { action, file, error, is_full: true }
            }
            other => other,
        }
    }

    pub(crate) fn damaged(file: &str, offset: u64, what: impl Into<String>) -> LogError {
        LogError::Damaged { file: file.to_owned(), offset, what: what.into() }
    }

    /// What was read of a file or folder cannot be used by the reader.
    pub fn unusable(file: &str, what: &str) -> LogError {
        LogError::Unusable { file: file.to_owned(), what: what.to_owned() }
    }

    /// Returns whether the reason is a full disk.
    pub fn is_full(&self) -> bool {
        matches!(self, LogError::System { is_full: true, .. })
    }
}

/// The reason that a change is not taken; nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogRefusal {
    /// The disk is full: what is reserved is left for what was taken before.
    #[error("the disk of the server's log is full")]
    Full,
    /// Changes come faster than the disk takes them.
    #[error("the disk of the server's log is slower than the writes")]
    Busy,
    /// The disk has been at work on one write for longer than [`crate::limits::STALL_AFTER`].
    #[error("the disk of the server's log does not end its last write")]
    Stalled,
    /// The log has no copy on another server or in a stream, or none that confirms it, for longer than a moment.
    #[error("no copy of the server's log confirms what is written")]
    NotCopied,
    /// A write has failed; the log is closed for good.
    #[error("the server's log is closed, since a write of it failed")]
    Closed,
}

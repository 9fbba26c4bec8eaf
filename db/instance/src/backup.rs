//! Backups: a folder with all that a server needs to serve again: the directory of tenants, extensions, tokens, and the
//! records' log. They are made of the state directory's files, while a server serves or not.

mod create;
mod file_copy;
mod manifest;
mod object_store;
mod restore;

use std::path::{Path, PathBuf};

use sandstorm_catalog::journal::JournalError;
use sandstorm_log::LogError;

pub use create::create_backup;
pub use manifest::{BackupFile, BackupLog, BackupManifest, BackupTable, MANIFEST_FILE, MANIFEST_FORMAT};
pub use object_store::{BackupStore, PART_BYTES, is_store};
pub use restore::{RestorePoint, RestoredBackup, check_backup, restore_backup};

/// The folder of a backup with the state directory's files.
const STATE_FOLDER: &str = "state";

/// The reason that a backup was not made, or not restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A system call failed.
    #[error("cannot {action} {path}: {error}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: String,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A file is not what it was when the backup was made.
    #[error("{path} is damaged: {what}; nothing was restored")]
    Damaged {
        /// The file.
        path: String,
        /// The difference.
        what: String,
    },
    /// A backup of a newer version of this program.
    #[error("{path} has format {format}, which a newer version of this program has written: use that version")]
    Newer {
        /// The manifest.
        path: String,
        /// Its format.
        format: u64,
    },
    /// The request cannot be met.
    #[error("{0}")]
    Refused(String),
    /// The object store does not do what it is asked for.
    #[error("cannot {action} {object}: {error}")]
    Store {
        /// What was tried.
        action: &'static str,
        /// The object.
        object: String,
        /// What the store says.
        error: String,
    },
    /// The log cannot be copied.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The directory of tenants cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl BackupError {
    fn system(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BackupError {
        let path = path.display().to_string();
        move |error| BackupError::System { action, path, error }
    }

    fn damaged(path: &Path, what: impl Into<String>) -> BackupError {
        BackupError::Damaged { path: path.display().to_string(), what: what.into() }
    }
}

/// A backup that was found.
#[derive(Debug)]
pub struct FoundBackup {
    /// Its folder, or its URL.
    pub path: PathBuf,
    /// What it has, or why that cannot be read.
    pub manifest: Result<BackupManifest, BackupError>,
}

/// Lists the backups in a folder by their names, the oldest first. What is no backup is left out, and so is one that is
/// being made.
///
/// # Errors
/// The folder cannot be read.
pub fn list_backups(folder: &Path) -> Result<Vec<FoundBackup>, BackupError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(BackupError::system("read", folder))? {
        let path = entry.map_err(BackupError::system("read", folder))?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if !is_hidden && path.join(MANIFEST_FILE).exists() {
            let manifest = BackupManifest::read(&path);
            found.push(FoundBackup { path, manifest });
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

#[cfg(test)]
mod tests;

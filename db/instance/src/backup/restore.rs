//! Restores a backup into a state directory that is not there, or empty. All of the backup is checked before anything
//! is written, and the state directory gets its name when it is whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandstorm_log::disk::LogDisk;
use sandstorm_log::{CopyEnd, LogFolder, copy_log};

use super::file_copy::{copy_file, make_folder, sum_file, sync_folder};
use super::{BackupError, BackupManifest, STATE_FOLDER};
use crate::LOG_FOLDER;

/// The state of the records that is restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestorePoint {
    /// That at the end of the backup.
    #[default]
    End,
    /// That at a position of the log.
    Position(u64),
    /// That of a time, in milliseconds since the Unix epoch.
    Time(u64),
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredBackup {
    /// What the backup has.
    pub manifest: BackupManifest,
    /// The position of the log at which the records are; 0: there is no log.
    pub position: u64,
    /// When the last change was written that is there, in milliseconds since the Unix epoch; 0: it is not known.
    pub time_ms: u64,
}

/// Checks every file of a backup against its manifest.
///
/// # Errors
/// [`BackupError`]: the first file that is not what it was.
pub fn check_backup(backup: &Path) -> Result<BackupManifest, BackupError> {
    let manifest = BackupManifest::read(backup)?;
    for file in &manifest.files {
        let path = backup.join(STATE_FOLDER).join(&file.path);
        if !path.exists() {
            return Err(BackupError::damaged(&path, "the file is not there"));
        }
        let (bytes, crc32c) = sum_file(&path)?;
        if bytes != file.bytes {
            return Err(BackupError::damaged(&path, format!("it has {bytes} bytes instead of {}", file.bytes)));
        }
        if crc32c != file.crc32c {
            return Err(BackupError::damaged(&path, "its checksum is wrong"));
        }
    }
    Ok(manifest)
}

/// Restores a backup into a state directory.
///
/// # Errors
/// [`BackupError`]: the backup is damaged, or does not have that point; there is something in the state directory; a
/// system call failed. Nothing is left then.
pub fn restore_backup(backup: &Path, state: &Path, point: RestorePoint) -> Result<RestoredBackup, BackupError> {
    check_empty(state)?;
    let manifest = check_backup(backup)?;
    if manifest.log.is_none() && point != RestorePoint::End {
        return Err(BackupError::Refused("the backup has no log, and so no earlier point".to_owned()));
    }
    let unfinished = unfinished_name(state)?;
    if unfinished.exists() {
        let text = format!("{} is there, from a restore that was interrupted: remove it", unfinished.display());
        return Err(BackupError::Refused(text));
    }
    let restored = write_state(backup, &manifest, &unfinished, point).and_then(|(position, time_ms)| {
        fs::rename(&unfinished, state).map_err(BackupError::system("rename", &unfinished))?;
        sync_folder(parent_of(state))?;
        Ok((position, time_ms))
    });
    if restored.is_err() {
        // It may never have been made.
        let _absent = fs::remove_dir_all(&unfinished);
    }
    let (position, time_ms) = restored?;
    Ok(RestoredBackup { manifest, position, time_ms })
}

pub(super) fn check_empty(state: &Path) -> Result<(), BackupError> {
    match fs::read_dir(state) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BackupError::system("read", state)(error)),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(BackupError::Refused(format!(
                "{} is not empty: restore into a state directory that is not there, or empty",
                state.display()
            ))),
        },
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn unfinished_name(state: &Path) -> Result<PathBuf, BackupError> {
    let no_name = || BackupError::Refused(format!("{} is no name for a state directory", state.display()));
    let mut name = state.file_name().ok_or_else(no_name)?.to_owned();
    name.push(".restoring");
    Ok(state.with_file_name(name))
}

/// Writes all files; returns the position of the log, and its time.
fn write_state(
    backup: &Path,
    manifest: &BackupManifest,
    into: &Path,
    point: RestorePoint,
) -> Result<(u64, u64), BackupError> {
    make_folder(into)?;
    let from = backup.join(STATE_FOLDER);
    let is_log = |path: &str| path.strip_prefix(LOG_FOLDER).is_some_and(|rest| rest.starts_with('/'));
    let mut folders = vec![into.to_owned()];
    for file in &manifest.files {
        let (source, target) = (from.join(&file.path), into.join(&file.path));
        let folder = parent_of(&target);
        make_folder(folder)?;
        folders.push(folder.to_owned());
        if is_log(&file.path) {
            continue;
        }
        // It may have changed since it was checked.
        if copy_file(&source, &target)? != Some((file.bytes, file.crc32c)) {
            return Err(BackupError::damaged(&source, "it has changed"));
        }
    }
    let mut place = (0, 0);
    if manifest.log.is_some() {
        let until = match point {
            RestorePoint::End => CopyEnd::All,
            RestorePoint::Position(position) => CopyEnd::Position(position),
            RestorePoint::Time(time_ms) => CopyEnd::Time(time_ms),
        };
        let (source, target) = (from.join(LOG_FOLDER), into.join(LOG_FOLDER));
        make_folder(&target)?;
        let disk: Arc<dyn LogDisk> = Arc::new(LogFolder::read(&source));
        let copy = copy_log(&disk, &LogFolder::read(&target), until)?;
        place = (copy.end, copy.end_ms);
    }
    folders.dedup();
    folders.iter().try_for_each(|folder| sync_folder(folder))?;
    Ok(place)
}

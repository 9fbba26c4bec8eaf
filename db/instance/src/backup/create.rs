//! Makes a backup of a state directory, also of a running server's: nothing of the server waits for it.
//!
//! The directory of tenants is read before the log and after it. If it is the same both times, the copy is the state of
//! one moment: that at which the log's copy ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sandstorm_catalog::journal::{CUT_PREFIX, DirectoryImage, JOURNAL_FILE, LOCK_FILE, read_image};
use sandstorm_cluster::limits::COPIES_FOLDER;
use sandstorm_control::config::CONTROL_FILE;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{CopyEnd, LogCopy, LogFolder, copy_log};

use super::file_copy::{copy_file, make_folder, sync_folder, write_file};
use super::manifest::{BackupFile, BackupLog, BackupManifest, BackupTable, MANIFEST_FILE, MANIFEST_FORMAT};
use super::{BackupError, STATE_FOLDER};
use crate::{BUILDER_FOLDER, DAMAGED_LOG_PREFIX, LOG_FOLDER, SPILL_FOLDER};

/// Times that a backup is begun anew since tenants, tables or extensions have changed meanwhile.
const ATTEMPTS: u32 = 5;
/// Beginning of the name of a backup that is being made, and of a state directory's files that are.
const NEW_PREFIX: &str = ".new-";

/// Makes a backup of a state directory in a folder; returns its folder there.
///
/// # Errors
/// [`BackupError`]; nothing is left of the backup.
pub fn create_backup(state: &Path, folder: &Path) -> Result<(PathBuf, BackupManifest), BackupError> {
    make_folder(folder)?;
    let made_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let name = backup_name(made_ms);
    let (unfinished, backup) = (folder.join(format!("{NEW_PREFIX}{name}")), folder.join(name));
    let made = try_often(state, &unfinished, made_ms).and_then(|manifest| {
        let bytes = manifest.encode().map_err(|error| BackupError::Refused(error.to_string()))?;
        write_file(&unfinished.join(MANIFEST_FILE), &bytes)?;
        sync_folder(&unfinished)?;
        fs::rename(&unfinished, &backup).map_err(BackupError::system("rename", &unfinished))?;
        sync_folder(folder)?;
        Ok(manifest)
    });
    if made.is_err() {
        // It may never have been made.
        let _absent = fs::remove_dir_all(&unfinished);
    }
    made.map(|manifest| (backup, manifest))
}

/// A name that sorts by time: `20260102T030405.678Z`.
fn backup_name(made_ms: u64) -> String {
    let time: String = sandstorm_catalog::format_utc(made_ms).chars().filter(char::is_ascii_digit).collect();
    let (day, time) = time.split_at_checked(8).unwrap_or((&time, ""));
    format!("{day}T{time}.{:03}Z", made_ms % 1_000)
}

fn try_often(state: &Path, into: &Path, made_ms: u64) -> Result<BackupManifest, BackupError> {
    for _ in 0..ATTEMPTS {
        // What an earlier attempt left.
        let _absent = fs::remove_dir_all(into);
        if let Some(manifest) = copy_state(state, into, made_ms)? {
            return Ok(manifest);
        }
    }
    let text = "tenants, tables or extensions changed during each attempt: try again when fewer changes are made";
    Err(BackupError::Refused(text.to_owned()))
}

/// Copies all files. `None`: the directory of tenants has changed meanwhile.
fn copy_state(state: &Path, into: &Path, made_ms: u64) -> Result<Option<BackupManifest>, BackupError> {
    let target = into.join(STATE_FOLDER);
    make_folder(&target)?;
    let (image, journal) = read_journal(state)?;
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        copy_folder(state, &target, &folder, &mut folders, &mut files)?;
    }
    let (bytes, crc32c) = write_file(&target.join(JOURNAL_FILE), &journal)?;
    files.push(BackupFile { path: JOURNAL_FILE.to_owned(), bytes, crc32c });
    let log = copy_log_folder(&state.join(LOG_FOLDER), &target.join(LOG_FOLDER))?;
    if read_journal(state)?.0 != image {
        return Ok(None);
    }
    for file in log.iter().flat_map(|copy| &copy.files) {
        let path = format!("{LOG_FOLDER}/{}", file.name);
        files.push(BackupFile { path, bytes: file.bytes, crc32c: file.crc32c });
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    let log = log.map(|LogCopy { log_id, earliest, earliest_ms, end, end_ms, .. }| BackupLog {
        id: format!("{log_id:016x}"),
        earliest,
        earliest_ms,
        end,
        end_ms,
    });
    let (format, program) = (MANIFEST_FORMAT, env!("CARGO_PKG_VERSION").to_owned());
    Ok(Some(BackupManifest { format, program, made_ms, log, tables: tables_of(&image), files }))
}

fn tables_of(image: &DirectoryImage) -> Vec<BackupTable> {
    let tables = image.tenants.values().flat_map(|tenant| tenant.tables.iter().map(move |table| (tenant, table)));
    tables
        .map(|(tenant, table)| BackupTable {
            tenant: tenant.name.clone(),
            name: table.name.clone(),
            has_records: table.log != 0,
        })
        .collect()
}

/// Reads the directory of tenants; returns its bytes that are whole, too.
fn read_journal(state: &Path) -> Result<(DirectoryImage, Vec<u8>), BackupError> {
    let path = state.join(JOURNAL_FILE);
    let mut bytes = match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = format!("there is no {}: is it the state directory of a server (--state)?", path.display());
            return Err(BackupError::Refused(text));
        }
        read => read.map_err(BackupError::system("read", &path))?,
    };
    let (image, whole) = read_image(&bytes, &path)?;
    bytes.truncate(whole);
    Ok((image, bytes))
}

/// Copies the files of a folder of the state directory that belong into a backup, and finds its folders.
fn copy_folder(
    state: &Path,
    target: &Path,
    folder: &Path,
    folders: &mut Vec<PathBuf>,
    files: &mut Vec<BackupFile>,
) -> Result<(), BackupError> {
    let path = state.join(folder);
    make_folder(&target.join(folder))?;
    for entry in fs::read_dir(&path).map_err(BackupError::system("read", &path))? {
        let entry = entry.map_err(BackupError::system("read", &path))?;
        let relative = folder.join(entry.file_name());
        // Gone since the folder was read: as the log's and the journal's files, those of events are replaced.
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && has_folder(&relative) {
            folders.push(relative);
        } else if kind.is_file() && has_file(&relative) {
            let Some((bytes, crc32c)) = copy_file(&entry.path(), &target.join(&relative))? else { continue };
            files.push(BackupFile { path: relative.to_string_lossy().into_owned(), bytes, crc32c });
        }
    }
    sync_folder(&target.join(folder))
}

/// Whether a folder of the state directory belongs in a backup. The log does not: it is copied apart. Nor do files that
/// were put aside or that the builder makes again, values that are in the log too, or other servers' logs.
pub(super) fn has_folder(path: &Path) -> bool {
    let name = path.to_string_lossy();
    ![LOG_FOLDER, SPILL_FOLDER, COPIES_FOLDER].contains(&&*name)
        && !name.starts_with(DAMAGED_LOG_PREFIX)
        && path.parent() != Some(Path::new(BUILDER_FOLDER))
}

/// Whether a file of the state directory belongs in a backup. The journal does not: it is copied apart. Nor do files of
/// the running process alone. The server's id in its cluster belongs: a restored server goes on as that one.
pub(super) fn has_file(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_of_process = [JOURNAL_FILE, LOCK_FILE, CONTROL_FILE].contains(&name.as_str());
    !is_of_process && !name.starts_with(NEW_PREFIX) && !name.starts_with(CUT_PREFIX)
}

fn copy_log_folder(from: &Path, to: &Path) -> Result<Option<LogCopy>, BackupError> {
    if !from.exists() {
        return Ok(None);
    }
    make_folder(to)?;
    let disk: Arc<dyn LogDisk> = Arc::new(LogFolder::read(from));
    let copy = copy_log(&disk, &LogFolder::read(to), CopyEnd::All)?;
    Ok((copy.log_id != 0).then_some(copy))
}

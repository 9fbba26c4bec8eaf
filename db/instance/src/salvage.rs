//! `serve --salvage`: replaces a damaged log by one with what is sound of it. The damaged one is put aside, with a
//! report.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sandstorm_catalog::Directory;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{LogError, LogFolder, LogOptions, RecoveredLog, SalvagedLog, salvage_log};

use crate::{DAMAGED_LOG_PREFIX, StartError, unix_ms};

/// The report in the folder that was put aside.
const REPORT_FILE: &str = "salvage-report.txt";
/// The folder of the new log until it is whole.
const NEW_FOLDER: &str = "log.salvaging";

/// Replaces the log in a folder if it is damaged. A sound one is left alone.
///
/// # Errors
/// [`StartError`]: another server has the folder; the files cannot be read or written, or are of a newer format. The
/// log is as it was then.
pub(crate) fn salvage_folder(folder: &Path) -> Result<(), StartError> {
    if !folder.exists() {
        return Ok(());
    }
    let locked: Arc<dyn LogDisk> = Arc::new(LogFolder::lock(folder)?);
    match RecoveredLog::read(Arc::clone(&locked), LogOptions::default(), &mut |_, _| Ok(())) {
        Ok(_) => {
            tracing::warn!("--salvage: the log is sound, and nothing was to be salvaged; leave the option out");
            return Ok(());
        }
        Err(LogError::Damaged { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let state = folder.parent().unwrap_or(Path::new("."));
    let new = state.join(NEW_FOLDER);
    // What an attempt left that was interrupted.
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    fs::DirBuilder::new().mode(0o700).create(&new)?;
    let into: Arc<dyn LogDisk> = Arc::new(LogFolder::read(&new));
    let salvaged = salvage_log(&locked, &into, LogOptions::default(), &mut |_| Ok(()))?;
    put_aside(state, folder, &new, &salvaged)?;
    Ok(())
}

/// Logs how many records each table with durability has.
pub(crate) fn log_kept(directory: &Directory) {
    for view in directory.snapshot().iter() {
        for entry in view.tables.values().filter(|entry| !entry.durability().is_none()) {
            let records = entry.table.stats().records;
            tracing::warn!("--salvage: table {}/{} has {records} records", view.tenant.name, entry.name());
        }
    }
}

/// Puts the new log in the place of the damaged one, in one step: a crash leaves either.
fn put_aside(state: &Path, folder: &Path, new: &Path, salvaged: &SalvagedLog) -> io::Result<()> {
    let aside = state.join(format!("{DAMAGED_LOG_PREFIX}{}", unix_ms()));
    let report = describe(salvaged);
    fs::write(folder.join(REPORT_FILE), &report)?;
    let sync = |path: &Path| fs::File::open(path).and_then(|folder| folder.sync_all());
    sync(new)?;
    renameat_with(CWD, new, CWD, folder, RenameFlags::EXCHANGE)?;
    sync(state)?;
    fs::rename(new, &aside)?;
    sync(state)?;
    tracing::warn!("--salvage: the damaged log was put aside, in {}, with {REPORT_FILE}", aside.display());
    report.lines().for_each(|line| tracing::warn!("--salvage: {line}"));
    Ok(())
}

fn describe(salvaged: &SalvagedLog) -> String {
    let mut report = format!("{} changes are sound and were taken\n", salvaged.changes);
    for lost in &salvaged.lost {
        // Writing to a string cannot fail.
        let _written = writeln!(report, "lost: {}, bytes {} to {}: {}", lost.file, lost.from, lost.to, lost.why);
    }
    report.push_str(
        "what was lost may be of any table: a record may have an older value, or be there although it was deleted\n",
    );
    report
}

//! `sandstorm backup …`: backups of the server's state directory, on the server's machine.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use sandstorm_catalog::format_utc;
use sandstorm_control::config::default_state_dir;
use sandstorm_instance::backup::{
    BackupError, BackupLog, BackupManifest, FoundBackup, RestorePoint, check_backup, create_backup, list_backups,
    restore_backup,
};
use serde::Serialize;

use super::output::{CliError, OutputPrinter, columns, fields, format_bytes};

/// Backups of the state directory, on the server's machine.
#[derive(Debug, Subcommand)]
pub(super) enum BackupCommand {
    /// Make a backup in a folder, while the server serves or not: tenants, tables, grants, tokens, extensions, and the
    /// records of tables with durability
    Create {
        /// Folder of backups; each has a folder of its own there
        folder: PathBuf,
    },
    /// List the backups of a folder
    List {
        /// Folder of backups
        folder: PathBuf,
        /// Read all of their files, and say whether they are what they were
        #[arg(long)]
        check: bool,
    },
    /// Restore a backup into the state directory (--state), which may not be there, or has to be empty
    Restore {
        /// Folder of the backup
        backup: PathBuf,
        /// Restore the records as they were then: a time such as 2026-01-02T03:04:05Z, or a position of the log
        #[arg(long, value_name = "TIME|POSITION", value_parser = restore_point)]
        to: Option<RestorePoint>,
    },
}

fn restore_point(text: &str) -> Result<RestorePoint, String> {
    if let Ok(position) = text.parse() {
        return Ok(RestorePoint::Position(position));
    }
    let time: jiff::Timestamp = text
        .parse()
        .map_err(|error| format!("it is neither a position nor a time such as 2026-01-02T03:04:05Z: {error}"))?;
    let time_ms = u64::try_from(time.as_millisecond()).map_err(|_| "the time is before 1970".to_owned())?;
    Ok(RestorePoint::Time(time_ms))
}

/// The failure of a command.
fn failed(error: BackupError) -> CliError {
    let code = match &error {
        BackupError::Damaged { .. } => "damaged",
        BackupError::Newer { .. } => "newer",
        BackupError::Refused(_) => "refused",
        BackupError::System { .. } | BackupError::Log(_) | BackupError::Journal(_) => "backup",
    };
    CliError::new(error.to_string()).code(code)
}

/// A backup in a list.
#[derive(Debug, Serialize)]
struct ListedBackup {
    folder: String,
    made_ms: u64,
    program: String,
    tables: usize,
    bytes: u64,
    log: Option<BackupLog>,
    /// `sound` if it was looked at, or what is wrong with it.
    state: String,
}

impl ListedBackup {
    fn of(path: &Path, manifest: Result<BackupManifest, BackupError>, state: &str) -> ListedBackup {
        let folder = path.display().to_string();
        match manifest {
            Ok(manifest) => ListedBackup {
                folder,
                made_ms: manifest.made_ms,
                bytes: manifest.bytes(),
                tables: manifest.tables.len(),
                program: manifest.program,
                log: manifest.log,
                state: state.to_owned(),
            },
            Err(error) => {
                let (made_ms, program, tables, bytes, log) = (0, String::new(), 0, 0, None);
                ListedBackup { folder, made_ms, program, tables, bytes, log, state: error.to_string() }
            }
        }
    }

    /// Times between which it can be restored.
    fn times(&self) -> String {
        match &self.log {
            Some(BackupLog { earliest: Some(earliest), earliest_ms, end, end_ms, .. }) if earliest < end => {
                format!("{} to {} (positions {earliest} to {end})", shown(*earliest_ms), shown(*end_ms))
            }
            Some(BackupLog { end, .. }) => format!("its end only (position {end})"),
            None => "-".to_owned(),
        }
    }
}

fn shown(time_ms: u64) -> String {
    if time_ms == 0 { "-".to_owned() } else { format_utc(time_ms) }
}

pub(super) fn run(command: BackupCommand, state: Option<&Path>, out: &OutputPrinter) -> Result<(), CliError> {
    let state = state.map_or_else(default_state_dir, Path::to_path_buf);
    match command {
        BackupCommand::Create { folder } => {
            let (path, manifest) = create_backup(&state, &folder).map_err(failed)?;
            out.show(&ListedBackup::of(&path, Ok(manifest), "sound"), |made| {
                let (tables, bytes) = (made.tables, format_bytes(made.bytes));
                format!("made {}: {tables} tables, {bytes}; to be restored to {}\n", made.folder, made.times())
            })
        }
        BackupCommand::List { folder, check } => list(&folder, check, out),
        BackupCommand::Restore { backup, to } => restore(&backup, &state, to.unwrap_or_default(), out),
    }
}

fn list(folder: &Path, check: bool, out: &OutputPrinter) -> Result<(), CliError> {
    let found = list_backups(folder).map_err(failed)?.into_iter().map(|FoundBackup { path, manifest }| {
        let checked = if check { manifest.and_then(|_| check_backup(&path)) } else { manifest };
        ListedBackup::of(&path, checked, if check { "sound" } else { "not looked at" })
    });
    let found: Vec<ListedBackup> = found.collect();
    out.show(&found, |found| {
        let rows: Vec<_> = found
            .iter()
            .map(|backup| {
                vec![
                    backup.folder.clone(),
                    shown(backup.made_ms),
                    backup.program.clone(),
                    backup.tables.to_string(),
                    format_bytes(backup.bytes),
                    backup.times(),
                    backup.state.clone(),
                ]
            })
            .collect();
        columns(&["BACKUP", "MADE", "PROGRAM", "TABLES", "BYTES", "TO BE RESTORED TO", "STATE"], &rows)
    })?;
    // Those that cannot be read are errors whether they were looked at or not.
    let bad = found.iter().filter(|backup| backup.made_ms == 0).count();
    if bad == 0 { Ok(()) } else { Err(CliError::new(format!("{bad} of {} backups cannot be used", found.len()))) }
}

/// What was restored.
#[derive(Debug, Serialize)]
struct RestoreReport {
    state: String,
    tables: usize,
    /// Tables that are empty, since their records were in memory only.
    without_records: Vec<String>,
    position: u64,
    time_ms: u64,
}

fn restore(backup: &Path, state: &Path, point: RestorePoint, out: &OutputPrinter) -> Result<(), CliError> {
    let restored = restore_backup(backup, state, point).map_err(failed)?;
    let tables = &restored.manifest.tables;
    let without = tables.iter().filter(|table| !table.has_records);
    let report = RestoreReport {
        state: state.display().to_string(),
        tables: tables.len(),
        without_records: without.map(|table| format!("{}/{}", table.tenant, table.name)).collect(),
        position: restored.position,
        time_ms: restored.time_ms,
    };
    out.show(&report, |report| {
        fields(&[
            ("state directory", report.state.clone()),
            ("tables", report.tables.to_string()),
            ("without records", report.without_records.join(", ")),
            ("position of the log", report.position.to_string()),
            ("last change", shown(report.time_ms)),
        ])
    })
}

//! `sandstorm backup …`: backups of the server's state directory, on the server's machine, in a folder or in an
//! object store.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use sandstorm_catalog::format_utc;
use sandstorm_control::config::default_state_dir;
use sandstorm_instance::backup::{
    BackupError, BackupLog, BackupManifest, BackupStore, FoundBackup, RestorePoint, check_backup, create_backup,
    is_store, list_backups, restore_backup,
};
use serde::Serialize;

use super::output::{CliError, OutputPrinter, columns, fields, format_bytes};

/// Backups of the state directory, on the server's machine.
#[derive(Debug, Subcommand)]
pub(super) enum BackupCommand {
    /// Make a backup in a folder or an object store, while the server serves or not: tenants, tables, grants, tokens,
    /// extensions, and the records of tables with durability
    Create {
        /// Folder of backups, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME; each has a folder of its own there
        folder: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
        /// Folder in which a backup for an object store is made first; it has to have room for it [default: that of
        /// temporary files]
        #[arg(long, value_name = "FOLDER")]
        staging: Option<PathBuf>,
    },
    /// List the backups of a folder or an object store
    List {
        /// Folder of backups, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME
        folder: PathBuf,
        /// Read all of their files, and say whether they are what they were
        #[arg(long)]
        check: bool,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Restore a backup into the state directory (--state), which may not be there, or has to be empty
    Restore {
        /// Folder of the backup, or its s3:// URL as `list` has it
        backup: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
        /// Restore the records as they were then: a time such as 2026-01-02T03:04:05Z, or a position of the log
        #[arg(long, value_name = "TIME|POSITION", value_parser = restore_point)]
        to: Option<RestorePoint>,
    },
}

/// How an object store is reached.
#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    /// File with ACCESS_KEY:SECRET_KEY, or ACCESS_KEY:SECRET_KEY:SESSION_TOKEN, for s3://; else they are in the
    /// environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
}

impl StoreArgs {
    fn credentials(&self) -> Result<String, CliError> {
        if let Some(path) = &self.credentials {
            let read = std::fs::read_to_string(path);
            return read.map_err(|error| CliError::new(format!("cannot read {}: {error}", path.display())));
        }
        let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let keys = of("AWS_ACCESS_KEY_ID").zip(of("AWS_SECRET_ACCESS_KEY"));
        let (access, secret) = keys.ok_or_else(|| {
            let hint = "give --credentials FILE, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
            CliError::new("an object store needs credentials").hint(hint).code("credentials")
        })?;
        let token = of("AWS_SESSION_TOKEN").map_or_else(String::new, |token| format!(":{token}"));
        Ok(format!("{access}:{secret}{token}"))
    }

    /// Opens a place of backups, if it is an object store.
    fn open(&self, place: &Path) -> Result<Option<BackupStore>, CliError> {
        let Some(url) = store_url(place) else { return Ok(None) };
        BackupStore::open(url, &self.credentials()?).map(Some).map_err(failed)
    }
}

fn store_url(place: &Path) -> Option<&str> {
    place.to_str().filter(|_| is_store(place))
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
        BackupError::Store { .. } => "store",
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
        BackupCommand::Create { folder, store, staging } => {
            let (path, manifest) = match store.open(&folder)? {
                Some(store) => {
                    let staging = staging.unwrap_or_else(std::env::temp_dir);
                    let (name, manifest) = store.create(&state, &staging).map_err(failed)?;
                    (PathBuf::from(store.url(&name)), manifest)
                }
                None if staging.is_some() => {
                    return Err(CliError::new("--staging is for object stores: a folder is written as it is"));
                }
                None => create_backup(&state, &folder).map_err(failed)?,
            };
            out.show(&ListedBackup::of(&path, Ok(manifest), "sound"), |made| {
                let (tables, bytes) = (made.tables, format_bytes(made.bytes));
                format!("made {}: {tables} tables, {bytes}; to be restored to {}\n", made.folder, made.times())
            })
        }
        BackupCommand::List { folder, check, store } => list(&folder, (check, &store), out),
        BackupCommand::Restore { backup, store, to } => restore((&backup, &store), &state, to.unwrap_or_default(), out),
    }
}

fn list(folder: &Path, (check, store): (bool, &StoreArgs), out: &OutputPrinter) -> Result<(), CliError> {
    let store = store.open(folder)?;
    let found = store.as_ref().map_or_else(|| list_backups(folder), BackupStore::list).map_err(failed)?;
    let looked_at = |path: &Path| match &store {
        Some(store) => {
            let url = path.to_str().unwrap_or_default().split('?').next().unwrap_or_default();
            store.check(url.rsplit('/').next().unwrap_or_default())
        }
        None => check_backup(path),
    };
    let found = found.into_iter().map(|FoundBackup { path, manifest }| {
        let checked = if check { manifest.and_then(|_| looked_at(&path)) } else { manifest };
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

fn restore(
    (backup, store): (&Path, &StoreArgs),
    state: &Path,
    point: RestorePoint,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let restored = match store_url(backup) {
        Some(url) => {
            let (store, name) = BackupStore::open_backup(url, &store.credentials()?).map_err(failed)?;
            store.restore(&name, state, point)
        }
        None => restore_backup(backup, state, point),
    };
    let restored = restored.map_err(failed)?;
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

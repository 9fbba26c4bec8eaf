//! `sandstorm log …`: reads the log of the records in the state directory. A server may run meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use clap::Subcommand;
use sandstorm_control::config::default_state_dir;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{ChangeKind, LogFolder, LogOptions, RecoveredLog, ReplaySummary};
use serde::Serialize;

use super::output::{CliError, OutputPrinter, columns, fields, format_bytes};

/// The log of the records.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Read all of it, as a server does that starts, and say whether it is sound
    Check,
    /// Show what it has of each table
    Show,
}

/// What a log has of a table.
#[derive(Debug, Default, Serialize)]
struct LoggedTable {
    /// The tenant's name and the table's, where the log has them.
    name: String,
    puts: u64,
    deletes: u64,
    clears: u64,
    /// Bytes of keys and values that were put.
    bytes: u64,
}

/// What was read of a log.
#[derive(Debug, Serialize)]
struct LogReport {
    folder: String,
    checkpoint_changes: u64,
    units: u64,
    changes: u64,
    bytes: u64,
    torn_bytes: u64,
    /// By the tables' numbers in the log.
    tables: BTreeMap<String, LoggedTable>,
}

pub(super) fn run(command: LogCommand, state: Option<&Path>, out: &OutputPrinter) -> Result<(), CliError> {
    let folder = state.map_or_else(default_state_dir, Path::to_path_buf).join(sandstorm_instance::LOG_FOLDER);
    if !folder.exists() {
        let text = format!("there is no log in {}", folder.display());
        return Err(CliError::new(text)
            .hint("it is made with the first table that has durability, as tables in store mode have"));
    }
    let report = read(&folder).map_err(|error| CliError::new(error.to_string()).code("damaged"))?;
    out.show(&report, |report| match command {
        LogCommand::Check => summary(report),
        LogCommand::Show => tables(report),
    })
}

fn read(folder: &Path) -> Result<LogReport, sandstorm_log::LogError> {
    let disk: Arc<dyn LogDisk> = Arc::new(LogFolder::read(folder));
    let mut tables: BTreeMap<String, LoggedTable> = BTreeMap::new();
    let read = RecoveredLog::read(disk, LogOptions::default(), &mut |change, _| {
        let table = tables.entry(format!("{:016x}", change.table)).or_default();
        match change.kind {
            ChangeKind::Put | ChangeKind::Arrive => {
                table.puts += 1;
                table.bytes += (change.key.len() + change.value.len()) as u64;
            }
            ChangeKind::Delete | ChangeKind::Expire | ChangeKind::Leave => table.deletes += 1,
            ChangeKind::Clear => table.clears += 1,
            ChangeKind::MakeTable => table.name = String::from_utf8_lossy(change.key).into_owned(),
            ChangeKind::DropTable => {}
        }
        Ok(())
    })?;
    let ReplaySummary { checkpoint_changes, units, changes, bytes, torn_bytes } = read.summary();
    let folder = folder.display().to_string();
    Ok(LogReport { folder, checkpoint_changes, units, changes, bytes, torn_bytes, tables })
}

fn summary(report: &LogReport) -> String {
    fields(&[
        ("log", report.folder.clone()),
        ("state", "sound".to_owned()),
        ("tables", report.tables.len().to_string()),
        ("changes in the checkpoint", report.checkpoint_changes.to_string()),
        ("changes behind it", report.changes.to_string()),
        ("in units", report.units.to_string()),
        ("bytes", format_bytes(report.bytes)),
        ("unfinished at the end", format_bytes(report.torn_bytes)),
    ])
}

fn tables(report: &LogReport) -> String {
    let row = |(number, table): (&String, &LoggedTable)| {
        vec![
            table.name.clone(),
            number.clone(),
            table.puts.to_string(),
            table.deletes.to_string(),
            table.clears.to_string(),
            format_bytes(table.bytes),
        ]
    };
    let rows: Vec<_> = report.tables.iter().map(row).collect();
    columns(&["TABLE", "NUMBER", "PUTS", "DELETES", "CLEARS", "BYTES"], &rows)
}

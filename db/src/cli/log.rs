//! `sandstorm log …`: reads the log of the records in the state directory. A server may run meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use clap::{Args, Subcommand};
use sandstorm_client::control::ScrubReport;
use sandstorm_control::config::default_state_dir;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{ChangeKind, LogFolder, LogOptions, RecoveredLog, ReplaySummary};
use serde::Serialize;

use super::output::{CliError, OutputPrinter, columns, fields, format_bytes};
use super::session::CliSession;

/// The log of the records.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Read all of it, as a server does that starts, and say whether it is sound
    Check,
    /// Show what it has of each table
    Show,
    /// Show when a running server has read its log, and copies of other servers' logs, again from the disk, and what
    /// was damaged
    Scrub(ScrubArgs),
}

/// Arguments of `log scrub`.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ScrubArgs {
    /// Begin to read all of it now; each hour it is done by itself
    #[arg(long)]
    now: bool,
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

pub(super) fn run(
    command: LogCommand,
    session: impl FnOnce() -> CliSession,
    state: Option<&Path>,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    if let LogCommand::Scrub(args) = command {
        let session = session();
        let report = if args.now { session.control().begin_scrub()? } else { session.control().scrub()? };
        return out.show(&report, describe_scrub);
    }
    let folder = state.map_or_else(default_state_dir, Path::to_path_buf).join(sandstorm_instance::LOG_FOLDER);
    if !folder.exists() {
        let text = format!("there is no log in {}", folder.display());
        return Err(CliError::new(text)
            .hint("it is made with the first table that has durability, as tables in store mode have"));
    }
    let report = read(&folder).map_err(|error| CliError::new(error.to_string()).code("damaged"))?;
    out.show(&report, |report| match command {
        LogCommand::Show => tables(report),
        LogCommand::Check | LogCommand::Scrub(_) => summary(report),
    })
}

/// How far a running server is with reading its disk again.
fn describe_scrub(report: &ScrubReport) -> String {
    let state = match report.under_way {
        true => format!("under way, {} read", format_bytes(report.pass_bytes)),
        false => "waits for the next hour".to_owned(),
    };
    let last = match report.last {
        Some(last) => format!("{} s ago, {} sound", last.ended_s_ago, format_bytes(last.bytes)),
        None => "none yet".to_owned(),
    };
    let damaged = report.last.map_or(0, |last| last.damage);
    let mut facts = vec![("state", state), ("last whole pass", last), ("damaged then", damaged.to_string())];
    facts.extend(report.log_damage.iter().map(|text| ("log", text.clone())));
    fields(&facts)
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

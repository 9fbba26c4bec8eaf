//! `sandstorm export`: writes the records of tables to a file, as JSON lines, while the server serves.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use sandstorm_client::control::{Control, ControlError, RecordPage, TableAccess, TableSpec, TableStatus};
use serde::Serialize;

use super::export_file::{EndLine, ExportWriter, FORMAT_NAME, FORMAT_VERSION, HeaderLine, TableEndLine, TableLine};
use super::output::{CliError, OutputPrinter, counted};
use super::progress::ProgressLine;
use super::session::CliSession;

/// Time for which a page is asked for again while the server is busy with others.
const BUSY_PATIENCE: Duration = Duration::from_secs(30);

/// Write the records of tables to a file.
#[derive(Debug, Args)]
#[command(after_help = "The file has JSON, one record a line: docs/durability.md describes it. A record that is not \
    changed during the export is in it once; one that is changed meanwhile, with some value that it had.")]
pub(super) struct ExportArgs {
    /// Table and file, or with --all the file; "-" is standard output
    #[arg(required = true, num_args = 1..=2, value_names = ["TABLE", "FILE"])]
    paths: Vec<PathBuf>,
    /// All tables of the tenant
    #[arg(long)]
    all: bool,
}

/// How much was written.
#[derive(Debug, Default)]
struct WrittenTables {
    tables: u64,
    records: u64,
    /// Records that are not in the file, since their blocks of the server's disk are damaged.
    unreadable: u64,
}

/// What was written, as `--json` has it.
#[derive(Debug, Serialize)]
struct ExportReport {
    file: String,
    tables: u64,
    records: u64,
    unreadable: u64,
    seconds: f64,
}

impl ExportReport {
    fn describe(&self) -> String {
        let (records, tables) = (counted(self.records, "record"), counted(self.tables, "table"));
        format!("exported {records} of {tables} to {}\n", self.file)
    }
}

pub(super) fn export(session: &CliSession, args: &ExportArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (control, tenant) = (session.control(), session.tenant()?);
    let (tables, path) = match (args.all, args.paths.as_slice()) {
        (true, [path]) => {
            let own = |table: &TableStatus| table.access == TableAccess::Own;
            (control.tables(&tenant)?.into_iter().filter(own).collect(), path)
        }
        (false, [table, path]) => (vec![control.table(&tenant, &table.to_string_lossy())?], path),
        (true, _) => return Err(CliError::new("--all takes a file and no table").code("usage")),
        (false, _) => return Err(CliError::new("where to? sandstorm export TABLE FILE, or --all FILE").code("usage")),
    };
    let begun = Instant::now();
    let is_stdout = path.as_os_str() == "-";
    let written = if is_stdout {
        write_tables(control, &tenant, &tables, &mut BufWriter::new(std::io::stdout().lock()))?
    } else {
        to_file(path, |file| write_tables(control, &tenant, &tables, file))?
    };
    let WrittenTables { tables, records, unreadable } = written;
    let file = path.display().to_string();
    if !is_stdout {
        let seconds = begun.elapsed().as_secs_f64();
        out.show(&ExportReport { file: file.clone(), tables, records, unreadable, seconds }, ExportReport::describe)?;
    }
    match unreadable {
        0 => Ok(()),
        some => Err(CliError::new(format!("{} could not be read from the disk", counted(some, "record")))
            .hint(format!("{file} has all others; the server's log says which disk"))
            .code("not_read")),
    }
}

/// Writes a file under another name first: what has the name is whole.
fn to_file<T>(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> Result<T, CliError>) -> Result<T, CliError> {
    let failed = |error: std::io::Error| CliError::from(error).about(&path.display().to_string());
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let written = File::create(&part).map_err(failed).and_then(|file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        let done = write(&mut file)?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&part, path).map_err(failed)?;
        Ok(done)
    });
    if written.is_err() {
        // It may never have been made.
        let _absent = std::fs::remove_file(&part);
    }
    written
}

fn write_tables(
    control: &Control,
    tenant: &str,
    tables: &[TableStatus],
    into: &mut impl Write,
) -> Result<WrittenTables, CliError> {
    let (mut file, mut progress) = (ExportWriter::new(into), ProgressLine::new());
    let program = env!("CARGO_PKG_VERSION");
    let (format, format_version, made_ms) = (FORMAT_NAME, FORMAT_VERSION, sandstorm_store::clock_ms(0));
    file.line(&HeaderLine { format, format_version, program, tenant, made_ms })?;
    let mut written = WrittenTables { tables: tables.len() as u64, ..WrittenTables::default() };
    for table in tables {
        file.line(&TableLine { table: spec_of(table) })?;
        let (mut records, mut cursor) = (0, None);
        loop {
            let page = page(control, tenant, &table.name, cursor.as_deref())?;
            records += page.records.len() as u64;
            written.unreadable += page.unreadable;
            page.records.iter().try_for_each(|record| file.line(record))?;
            progress.tick(|| format!("{}: {records} of about {} records", table.name, table.records));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        file.line(&TableEndLine { end_of_table: &table.name, records })?;
        written.records += records;
    }
    file.end(&EndLine { end: true, tables: written.tables, records: written.records })?;
    Ok(written)
}

/// What makes such a table again.
fn spec_of(table: &TableStatus) -> TableSpec {
    let TableStatus { name, mode, ordered, durability, quota_bytes, .. } = table.clone();
    // Of a granted table "owner/name": it becomes an own one.
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    TableSpec {
        name,
        id: None,
        mode,
        quota_bytes: Some(quota_bytes),
        ordered,
        durability: Some(durability),
        backing: None,
    }
}

fn page(control: &Control, tenant: &str, table: &str, cursor: Option<&str>) -> Result<RecordPage, CliError> {
    let until = Instant::now() + BUSY_PATIENCE;
    loop {
        match control.records(tenant, table, cursor) {
            Err(ControlError::Server { code, .. }) if code == "busy" && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(100));
            }
            page => return Ok(page?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_table_is_no_tables() {
        let report = |records, tables| {
            ExportReport { file: "f".into(), tables, records, unreadable: 0, seconds: 0.0 }.describe()
        };
        assert_eq!(report(26_983, 1), "exported 26983 records of 1 table to f\n");
        assert_eq!(report(1, 2), "exported 1 record of 2 tables to f\n");
    }
}

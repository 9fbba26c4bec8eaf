//! `sandstorm import`: writes records to a running server, from a file of `sandstorm export`, a Redis or a memcached.

mod memcached;
mod record_sink;
mod redis;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use sandstorm_client::control::{ControlError, ExportedRecord, TableSpec};
use sandstorm_net::rpc::MAX_OPERATIONS;

use self::record_sink::{IncomingRecord, RecordSink};
use super::export_file::{ExportFault, ExportLine, LineReader, check_whole};
use super::output::{CliError, OutputPrinter};
use super::progress::ProgressLine;
use super::session::CliSession;

/// Write records to tables: those of a file of `sandstorm export`, or those that a Redis or a memcached has.
#[derive(Debug, Args)]
#[command(after_help = "A record that is there already is written over, so an import may be repeated. What cannot be \
    taken is listed and counted, and makes the status 1; everything else is imported. docs/durability.md has the format.")]
pub(super) struct ImportArgs {
    /// A file of `sandstorm export`; "-" is standard input
    #[arg(required_unless_present_any = ["redis", "memcached"], conflicts_with_all = ["redis", "memcached"])]
    file: Option<PathBuf>,
    /// Read the strings of a Redis or Valkey, with their times to live
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "memcached", requires = "table")]
    redis: Option<String>,
    /// Read the items of a memcached, with their flags and times to live
    #[arg(long, value_name = "HOST:PORT", requires = "table")]
    memcached: Option<String>,
    /// Table to write to [default: those that the file names; they are created if they are not there]
    #[arg(long)]
    table: Option<String>,
    /// Leave records alone that are there already
    #[arg(long)]
    keep_existing: bool,
    /// Skip the records before this line of the file: where an import that was interrupted goes on
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, requires = "file")]
    from_line: u64,
    /// User of the Redis [default: its default user]
    #[arg(long, requires = "redis", requires = "password_file")]
    user: Option<String>,
    /// File with the password of the Redis
    #[arg(long, value_name = "FILE", requires = "redis")]
    password_file: Option<PathBuf>,
    /// Database of the Redis
    #[arg(long, value_name = "N", default_value_t = 0, requires = "redis")]
    db: u32,
    /// Only keys of the Redis that match this pattern, as its SCAN has it
    #[arg(long = "match", value_name = "PATTERN", requires = "redis")]
    pattern: Option<String>,
}

pub(super) fn import(session: &CliSession, args: &ImportArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let mut sink = RecordSink::new(session, args.keep_existing)?;
    let mut progress = ProgressLine::new();
    let table = args.table.as_deref();
    let ended = match (&args.file, &args.redis, &args.memcached) {
        (Some(path), ..) => {
            let about = |error: CliError| error.about(&path.display().to_string());
            // Nothing is written yet.
            let reader = open(path).map_err(|error| about(error).hint("`sandstorm export` writes such a file"))?;
            check_file(path).map_err(about)?;
            import_file(session, LineReader::new(reader), (table, args.from_line), &mut sink, &mut progress)
                .map_err(about)
        }
        (None, Some(address), _) => {
            sink.choose_table(session, table.unwrap_or_default())?;
            redis::import(address, args, &mut sink, &mut progress)
        }
        (None, None, Some(address)) => {
            sink.choose_table(session, table.unwrap_or_default())?;
            memcached::import(address, &mut sink, &mut progress)
        }
        (None, None, None) => return Err(CliError::new("import what? a FILE, --redis or --memcached").code("usage")),
    };
    drop(progress);
    let report = sink.finish();
    if let Err(error) = ended {
        // What was written stays.
        return Err(error.below(&report.describe()));
    }
    out.show(&report, |report| report.describe())?;
    report.outcome()
}

fn open(path: &Path) -> Result<Box<dyn BufRead>, CliError> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::with_capacity(1 << 20, std::io::stdin())));
    }
    Ok(Box::new(BufReader::with_capacity(1 << 20, File::open(path)?)))
}

/// Refuses a file that is not whole before anything of it is imported. What comes through a pipe is read only once, so
/// what is wrong with it is told at its end.
fn check_file(path: &Path) -> Result<(), CliError> {
    if path.as_os_str() == "-" || !std::fs::metadata(path)?.is_file() {
        return Ok(());
    }
    let checked = check_whole(BufReader::with_capacity(1 << 20, File::open(path)?))?;
    checked.map_err(|(number, fault)| not_whole(fault, number, "nothing of it was imported"))
}

/// Imports a file, whose tables are created where they are not there, or go to the one that is named.
fn import_file(
    session: &CliSession,
    mut lines: LineReader<impl BufRead>,
    (named, from_line): (Option<&str>, u64),
    sink: &mut RecordSink,
    progress: &mut ProgressLine,
) -> Result<(), CliError> {
    let mut place = FilePlace::default();
    while let Some((number, line)) = lines.next_line()? {
        let parsed = line.and_then(ExportLine::parse);
        if place.ended {
            return Err(CliError::new(format!("line {number} is behind the end that the file names")));
        }
        match parsed {
            Ok(ExportLine::Header { version }) if !place.headed => (place.headed, place.version) = (true, version),
            Ok(ExportLine::Header { .. }) => {
                return Err(CliError::new(format!("line {number} is a second first line")));
            }
            Err(error) if !place.headed => return Err(CliError::new(format!("line {number}: {error}"))),
            Ok(_) if !place.headed => {
                return Err(CliError::new(format!("line {number} has no format: it is no file of `sandstorm export`")));
            }
            Ok(ExportLine::Table(table)) => {
                sink.flush().map_err(|error| resume_hint(error, number))?;
                place.begin_table(named, number)?;
                choose_table(session, sink, table, named)?;
            }
            Ok(ExportLine::Record(_)) if !place.in_table => {
                return Err(CliError::new(format!("line {number} has a record before any table")));
            }
            Ok(ExportLine::Record(record)) => {
                place.records += 1;
                if number >= from_line {
                    take_record(&record, number, sink)?;
                }
            }
            // Whatever it was meant to be, it counts as a record: the file's own counts are of such lines.
            Err(why) => {
                place.records += 1;
                sink.reject(format!("line {number}"), why);
            }
            Ok(ExportLine::TableEnd { records }) => {
                // First: what is wrong with the count is told with what was imported.
                sink.flush().map_err(|error| resume_hint(error, number))?;
                place.end_table(records, number)?;
            }
            Ok(ExportLine::End { records, crc32c }) => {
                sink.flush().map_err(|error| resume_hint(error, number))?;
                place.end(records, number)?;
                let checked = lines.check_sum(place.version, crc32c);
                checked.map_err(|fault| not_whole(fault, number, WHAT_IS_THERE))?;
            }
        }
        progress.tick(|| format!("line {number}: {}", sink.counts()));
    }
    sink.flush().map_err(|error| resume_hint(error, lines.number))?;
    if place.ended {
        return Ok(());
    }
    Err(not_whole(ExportFault::CutOff, lines.number, WHAT_IS_THERE))
}

/// What was done with a file at whose end something is found to be wrong.
const WHAT_IS_THERE: &str = "what is there was imported";

fn not_whole(fault: ExportFault, number: u64, what_was_done: &str) -> CliError {
    let error = CliError::new(fault.describe(number));
    if fault == ExportFault::CutOff {
        return error.hint(format!("{what_was_done}; export again")).code("cut_off");
    }
    error
        .hint(format!(
            "{what_was_done}; export again, or, if you have changed it, write \"format_version\":1 in its first line, \
             which asks for no checksum"
        ))
        .code("checksum")
}

fn take_record(record: &ExportedRecord, number: u64, sink: &mut RecordSink) -> Result<(), CliError> {
    let at = || format!("line {number}");
    match IncomingRecord::read(record) {
        Ok(record) => sink.push(record, &at).map_err(|error| resume_hint(error, number)),
        Err(why) => {
            sink.reject(at(), why);
            Ok(())
        }
    }
}

/// Says where an import goes on that ends with this error. A batch before the line may be there in part.
fn resume_hint(error: CliError, number: u64) -> CliError {
    let from = number.saturating_sub(MAX_OPERATIONS as u64).max(1);
    error.hint(format!("remove the cause, then go on with --from-line {from}"))
}

/// How far a file was read.
#[derive(Default)]
struct FilePlace {
    headed: bool,
    /// The version of its format.
    version: u32,
    in_table: bool,
    ended: bool,
    tables: u64,
    /// Lines of records since the table began.
    records: u64,
    /// The same of the tables before.
    all: u64,
}

impl FilePlace {
    fn begin_table(&mut self, named: Option<&str>, number: u64) -> Result<(), CliError> {
        if self.in_table {
            return Err(CliError::new(format!("line {number} begins a table within another")));
        }
        self.tables += 1;
        if self.tables > 1 && named.is_some() {
            return Err(CliError::new(format!("line {number} begins a second table, and --table names one"))
                .hint("without --table the file's own names are used"));
        }
        (self.in_table, self.records) = (true, 0);
        Ok(())
    }

    fn end_table(&mut self, records: u64, number: u64) -> Result<(), CliError> {
        if !self.in_table || records != self.records {
            return Err(wrong_count(number, records, self.records));
        }
        self.in_table = false;
        self.all += self.records;
        Ok(())
    }

    fn end(&mut self, records: u64, number: u64) -> Result<(), CliError> {
        if self.in_table || records != self.all {
            return Err(wrong_count(number, records, self.all));
        }
        self.ended = true;
        Ok(())
    }
}

fn wrong_count(number: u64, named: u64, found: u64) -> CliError {
    CliError::new(format!("line {number} tells of {named} records, and {found} lines were there: some are missing"))
        .hint("what is there was imported")
        .code("cut_off")
}

fn choose_table(
    session: &CliSession,
    sink: &mut RecordSink,
    table: TableSpec,
    named: Option<&str>,
) -> Result<(), CliError> {
    let name = named.unwrap_or(&table.name).to_owned();
    match sink.choose_table(session, &name) {
        // An older server says `not_found`.
        Err(error) if ["unknown_table", "not_found"].contains(&&*error.code) && named.is_none() => {}
        chosen => return chosen,
    }
    let tenant = session.tenant()?;
    let created = session.control().create_table(&tenant, &TableSpec { id: None, ..table });
    created.map_err(|error: ControlError| {
        CliError::from(error)
            .about(&format!("table {name:?} cannot be created as the file has it"))
            .hint("create it as you want it, then import again")
    })?;
    sink.choose_table(session, &name)
}

//! `sandstorm put | get | range | del | incr`: data requests over the data port, as the tenant.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use data_encoding::HEXLOWER;
use sandstorm_client::{Condition, Direction, KeyedRecord, PutOptions, PutOutcome, Record};
use serde_json::json;

use super::byte_args::{self, for_people, for_programs};
use super::output::{CliError, OutputPrinter, summarize_names};
use super::session::CliSession;

/// Write a record.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
pub(super) struct PutArgs {
    /// Table, by name
    pub(super) table: String,
    /// Key
    pub(super) key: OsString,
    /// Value; several are joined without anything between them
    #[arg(required = true)]
    pub(super) value: Vec<OsString>,
    /// Write only if there is no record under the key
    #[arg(long, conflicts_with_all = ["if_present", "if_version"])]
    pub(super) if_absent: bool,
    /// Write only if there is a record under the key
    #[arg(long, conflicts_with = "if_version")]
    pub(super) if_present: bool,
    /// Only if the record has this version
    #[arg(long, value_name = "VERSION")]
    pub(super) if_version: Option<u64>,
    /// Seconds until the record expires
    #[arg(long, value_name = "SECONDS")]
    pub(super) ttl: Option<f64>,
    /// A number to store beside the value
    #[arg(long, default_value_t = 0)]
    pub(super) flags: u32,
}

/// Read records.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
pub(super) struct GetArgs {
    /// Table, by name
    table: String,
    /// Keys; several are read in one request
    #[arg(required = true)]
    keys: Vec<OsString>,
    /// Print the value's bytes as they are, without a line end
    #[arg(long)]
    raw: bool,
}

/// Delete a record.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
pub(super) struct DelArgs {
    /// Table, by name
    pub(super) table: String,
    /// Key
    pub(super) key: OsString,
    /// Only if the record has this version
    #[arg(long, value_name = "VERSION")]
    pub(super) if_version: Option<u64>,
}

/// Add to a number.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
pub(super) struct IncrArgs {
    /// Table, by name
    pub(super) table: String,
    /// Key
    pub(super) key: OsString,
    /// What to add; may be negative
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    pub(super) delta: i64,
}

/// Read records of an ordered table between two keys.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
pub(super) struct RangeArgs {
    /// Name of an ordered table, or owner/table of one that was granted
    pub(super) table: String,
    /// Key to start from; "" starts from the smallest
    #[arg(default_value = "")]
    pub(super) from: OsString,
    /// Key to end before; "" goes on to the largest
    #[arg(default_value = "")]
    pub(super) to: OsString,
    /// Most records to print
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(super) limit: usize,
    /// Go from the largest key to the smallest
    #[arg(long)]
    pub(super) backward: bool,
}

pub(super) fn key(argument: &OsString, session: &CliSession, tenant: &str) -> Result<Vec<u8>, CliError> {
    byte_args::parse(argument, &mut |table| session.table_id(tenant, table))
}

pub(super) fn put(session: &CliSession, args: &PutArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let options = put_options(args)?;
    let (client, tenant) = session.data()?;
    let table = session.table_id(&tenant.name, &args.table)?;
    let key = key(&args.key, session, &tenant.name)?;
    let value = byte_args::parse_all(&args.value, &mut |table| session.table_id(&tenant.name, table))?;
    let version = match client.put_outcome(table, &key, &value, &options)? {
        PutOutcome::Written { version } => version,
        PutOutcome::Conflict { version } => return Err(conflict(&options, version)),
    };
    out.show(&json!({"version": version}), |_| format!("version {version}\n"))
}

/// The reason why a put's condition did not hold.
pub(super) fn conflict(options: &PutOptions, found: Option<u64>) -> CliError {
    let message = match (options.condition, found) {
        (Condition::Version, Some(found)) => {
            format!("conflict: the record has version {found}, not {}", options.version)
        }
        (Condition::Version | Condition::Present, None) => "conflict: there is no record".to_owned(),
        (_, Some(found)) => format!("conflict: there is a record, of version {found}"),
        (_, None) => "conflict: there was a record, which is gone by now".to_owned(),
    };
    CliError::new(message).hint("nothing was written; read the record, and decide anew").code("conflict")
}

pub(super) fn put_options(args: &PutArgs) -> Result<PutOptions, CliError> {
    let mut options = PutOptions::default();
    if args.if_absent {
        options = options.if_absent();
    } else if args.if_present {
        options = options.if_present();
    } else if let Some(version) = args.if_version {
        options = options.if_version(version);
    }
    options.flags = args.flags;
    if let Some(seconds) = args.ttl {
        options.ttl = Some(time_to_live(seconds)?);
    }
    Ok(options)
}

/// The time to live that `--ttl` says.
pub(super) fn time_to_live(seconds: f64) -> Result<Duration, CliError> {
    let ttl = Duration::try_from_secs_f64(seconds).ok().filter(|ttl| !ttl.is_zero());
    ttl.ok_or_else(|| CliError::new(format!("--ttl {seconds} is no time to live")))
}

pub(super) fn get(session: &CliSession, args: &GetArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (client, tenant) = session.data()?;
    let table = session.table_id(&tenant.name, &args.table)?;
    let keys: Vec<Vec<u8>> =
        args.keys.iter().map(|argument| key(argument, session, &tenant.name)).collect::<Result<_, _>>()?;
    let records = match keys.as_slice() {
        [key] => vec![client.get(table, key)?],
        keys => client.multi_get(table, keys)?,
    };
    if out.json {
        let found: Vec<_> = keys.iter().zip(&records).map(|(key, record)| in_json(key, record.as_ref())).collect();
        match found.as_slice() {
            [one] => out.json(one)?,
            many => out.json(&many)?,
        }
    } else if let [record] = records.as_slice() {
        let value = record.as_ref().map(|record| &record.value[..]).unwrap_or_default();
        if args.raw {
            out.raw(value)?;
        } else if record.is_some() {
            out.value(&for_people(value))?;
        }
    } else {
        for (key, record) in keys.iter().zip(&records) {
            match record {
                Some(record) if args.raw => out.raw(&record.value)?,
                Some(record) => out.value(&row(key, &record.value))?,
                None => {}
            }
        }
    }
    let missing: Vec<String> =
        keys.iter().zip(&records).filter(|(_, record)| record.is_none()).map(|(key, _)| for_people(key)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(CliError::new(format!("no record under {}", summarize_names(&missing))).code("not_found"))
}

pub(super) fn range(session: &CliSession, args: &RangeArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (client, tenant) = session.data()?;
    let table = session.control().table(&tenant.name, &args.table)?;
    if !table.ordered {
        return Err(not_ordered(&args.table));
    }
    let (from, to) = (key(&args.from, session, &tenant.name)?, key(&args.to, session, &tenant.name)?);
    let direction = if args.backward { Direction::Backward } else { Direction::Forward };
    let records = client.range(table.id, &from, &to, args.limit, direction)?;
    if out.json {
        return out.json(&records.iter().map(keyed_in_json).collect::<Vec<_>>());
    }
    for record in &records {
        out.value(&row(&record.key, &record.value))?;
    }
    Ok(())
}

pub(super) fn not_ordered(table: &str) -> CliError {
    CliError::new(format!("table {table:?} is not ordered: it keeps no order of its keys"))
        .hint("`sandstorm table create NAME --ordered` makes one that does; a table stays as it was made")
        .code("not_ordered")
}

/// A record of a range, for programs.
pub(super) fn keyed_in_json(record: &KeyedRecord) -> serde_json::Value {
    let (key, value) = (for_programs(&record.key), for_programs(&record.value));
    json!({"key": key, "value": value, "version": record.version, "flags": record.flags})
}

/// One of several records, on a line of its own: bytes that would end the line or the column are escaped.
pub(super) fn row(key: &[u8], value: &[u8]) -> String {
    let shown = |bytes: &[u8]| match for_people(bytes) {
        text if text.contains(['\n', '\t']) => format!("hex:{}", HEXLOWER.encode(bytes)),
        text => text,
    };
    format!("{}\t{}", shown(key), shown(value))
}

pub(super) fn in_json(key: &[u8], record: Option<&Record>) -> serde_json::Value {
    let shown = record
        .map(|record| json!({"value": for_programs(&record.value), "version": record.version, "flags": record.flags}));
    json!({"key": for_programs(key), "record": shown})
}

pub(super) fn del(session: &CliSession, args: &DelArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (client, tenant) = session.data()?;
    let table = session.table_id(&tenant.name, &args.table)?;
    let key = key(&args.key, session, &tenant.name)?;
    let was_there = match args.if_version {
        Some(version) => client.delete_if_version(table, &key, version)?,
        None => client.delete(table, &key)?,
    };
    if was_there {
        return out.done("deleted");
    }
    Err(CliError::new(format!("no record under {}", for_people(&key))).code("not_found"))
}

pub(super) fn incr(session: &CliSession, args: &IncrArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (client, tenant) = session.data()?;
    let table = session.table_id(&tenant.name, &args.table)?;
    let sum = client.increment(table, &key(&args.key, session, &tenant.name)?, args.delta)?;
    out.show(&json!({"sum": sum}), |_| format!("{sum}\n"))
}

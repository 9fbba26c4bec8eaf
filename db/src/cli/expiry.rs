//! `sandstorm ttl | touch`: when records expire, over the data port, as the tenant.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgGroup, Args};
use sandstorm_client::RecordExpiry;
use serde_json::{Value, json};

use super::byte_args::{self, for_people};
use super::data::{key, time_to_live};
use super::output::{CliError, OutputPrinter};
use super::session::CliSession;

/// Show how long a record has left.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
pub(super) struct TtlArgs {
    /// Table, by name
    pub(super) table: String,
    /// Key
    pub(super) key: OsString,
}

/// Change when a record expires.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
#[group(skip)]
#[command(group = ArgGroup::new("expiry").required(true).args(["ttl", "never"]))]
pub(super) struct TouchArgs {
    /// Table, by name
    pub(super) table: String,
    /// Key
    pub(super) key: OsString,
    /// Seconds until the record expires
    #[arg(long, value_name = "SECONDS")]
    pub(super) ttl: Option<f64>,
    /// It does not expire any more
    #[arg(long)]
    pub(super) never: bool,
}

fn absent(key: &[u8]) -> CliError {
    CliError::new(format!("no record under {}", for_people(key))).code("not_found")
}

pub(super) fn ttl(session: &CliSession, args: &TtlArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (client, tenant) = session.data()?;
    let table = session.table_id(&tenant.name, &args.table)?;
    let key = key(&args.key, session, &tenant.name)?;
    let expiry = client.ttl(table, &key)?.ok_or_else(|| absent(&key))?;
    out.show(&expiry_in_json(expiry), |_| format!("{}\n", expiry_text(expiry)))
}

/// When a record expires, for people.
pub(super) fn expiry_text(expiry: RecordExpiry) -> String {
    match expiry {
        RecordExpiry::Never => "it does not expire".to_owned(),
        RecordExpiry::After(left) => format!("{} s", left.as_secs_f64()),
    }
}

/// The same for programs.
pub(super) fn expiry_in_json(expiry: RecordExpiry) -> Value {
    match expiry {
        RecordExpiry::Never => json!({"expires": false}),
        RecordExpiry::After(left) => {
            json!({"expires": true, "ttl_ms": u64::try_from(left.as_millis()).unwrap_or(u64::MAX)})
        }
    }
}

pub(super) fn touch(session: &CliSession, args: &TouchArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let ttl: Option<Duration> = args.ttl.map(time_to_live).transpose()?;
    let (client, tenant) = session.data()?;
    let table = session.table_id(&tenant.name, &args.table)?;
    let key = key(&args.key, session, &tenant.name)?;
    if client.touch(table, &key, ttl)? { out.done("touched") } else { Err(absent(&key)) }
}

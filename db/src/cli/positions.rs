//! `sandstorm count | rank | nth`: positions among the keys of ordered tables, over the data port, as the tenant.

use std::ffi::OsString;

use clap::Args;
use sandstorm_client::blocking::Client;
use serde_json::json;

use super::byte_args::{self, for_people, for_programs};
use super::data::{key, not_ordered};
use super::output::{CliError, OutputPrinter, counted};
use super::session::CliSession;

/// Count the keys of an ordered table between two keys.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
pub(super) struct CountArgs {
    /// Name of an ordered table, or owner/table of one that was granted
    pub(super) table: String,
    /// Key to start from; "" starts from the smallest
    #[arg(default_value = "")]
    pub(super) from: OsString,
    /// Key to end before; "" goes on to the largest
    #[arg(default_value = "")]
    pub(super) to: OsString,
}

/// Count the keys of an ordered table before one.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
pub(super) struct RankArgs {
    /// Name of an ordered table, or owner/table of one that was granted
    pub(super) table: String,
    /// Key, which need not be there
    pub(super) key: OsString,
}

/// Find the key at a position of an ordered table.
#[derive(Debug, Args)]
pub(super) struct NthArgs {
    /// Name of an ordered table, or owner/table of one that was granted
    pub(super) table: String,
    /// Its position: how many keys are before it
    pub(super) position: u64,
}

/// A connection, the tenant's name, and the id of an ordered table.
fn ordered(session: &CliSession, name: &str) -> Result<(Client, String, u64), CliError> {
    let (client, tenant) = session.data()?;
    let table = session.control().table(&tenant.name, name)?;
    if table.ordered { Ok((client, tenant.name, table.id)) } else { Err(not_ordered(name)) }
}

pub(super) fn count(session: &CliSession, args: &CountArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (client, tenant, table) = ordered(session, &args.table)?;
    let keys = client.count(table, &key(&args.from, session, &tenant)?, &key(&args.to, session, &tenant)?)?;
    out.show(&json!({"count": keys}), |_| format!("{keys}\n"))
}

pub(super) fn rank(session: &CliSession, args: &RankArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (client, tenant, table) = ordered(session, &args.table)?;
    let rank = client.rank(table, &key(&args.key, session, &tenant)?)?;
    out.show(&json!({"rank": rank}), |_| format!("{rank}\n"))
}

pub(super) fn nth(session: &CliSession, args: &NthArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (client, _, table) = ordered(session, &args.table)?;
    match client.nth(table, args.position)? {
        Some(key) if out.json => out.json(&json!({"key": for_programs(&key)})),
        Some(key) => out.value(&for_people(&key)),
        None => {
            let keys = counted(client.count(table, b"", b"")?, "key");
            let text = format!("no key at position {}: the table has {keys}, from position 0 on", args.position);
            Err(CliError::new(text).code("not_found"))
        }
    }
}

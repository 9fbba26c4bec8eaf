//! `sandstorm table …`

mod backing;

use clap::{Subcommand, ValueEnum};
use sandstorm_client::control::{
    DurabilityLevel, FlushSpec, SpillStatus, TableAccess, TableMode, TablePatch, TableSpec, TableStatus,
};

use self::backing::{BackingArgs, ConflictArg};
use super::grant::describe_access;
use super::output::{CliError, OutputPrinter, columns, fields, format_bytes};
use super::session::CliSession;
use super::tenant::size_argument;

/// Tables of a tenant.
#[derive(Debug, Subcommand)]
pub(super) enum TableCommand {
    /// Create a table
    Create {
        /// Name of the new table: 1 to 64 letters, digits, '_', '-' and '.'
        name: String,
        /// What happens when the quota is reached [default: store; cache with --backing]
        #[arg(long, value_enum)]
        mode: Option<TableModeArg>,
        /// Bytes that its records may take, such as 64MiB [default: an eighth of the tenant's memory_bytes, 1 GiB at
        /// most]
        #[arg(long, value_name = "BYTES", value_parser = size_argument)]
        quota: Option<u64>,
        /// Its number, as clients send it [default: the next free one]
        #[arg(long)]
        id: Option<u64>,
        /// Also keep the keys in order, for `sandstorm range`; each record takes 104 bytes and its key's length more
        #[arg(long)]
        ordered: bool,
        /// What a crash may take of its records. By default interval for a store and none for a cache, unless the
        /// server's configuration says otherwise. `copies` is experimental: do not keep the only copy of anything in it
        #[arg(long, value_enum)]
        durability: Option<DurabilityArg>,
        /// Make it a cache in front of file:///FOLDER, s3://BUCKET/PREFIX[?endpoint=URL&region=NAME], another table
        /// (sandstorm://HOST:PORT/TENANT/TABLE), or memory:NAME for trials. With ?format=raw objects have values alone.
        /// Takes the operator's token
        #[arg(long, value_name = "URL")]
        backing: Option<String>,
        #[command(flatten)]
        behaviour: BackingArgs,
    },
    /// Change a table's quota, mode, durability or backing while it is used; returns when the change holds
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["quota", "mode", "durability", "feed_expiry", "policy", "backing_secret", "fresh", "stale", "absent", "flush_after", "dirty"]))]
    Set {
        /// Name of the table
        name: String,
        /// Bytes that its records may take, such as 64MiB; of a store no less than it holds
        #[arg(long, value_name = "BYTES", value_parser = size_argument)]
        quota: Option<u64>,
        /// What happens when the quota is reached; a store becomes a cache only while it is empty
        #[arg(long, value_enum)]
        mode: Option<TableModeArg>,
        /// What a crash may take of its records. `copies` is experimental: do not keep the only copy of anything in it
        #[arg(long, value_enum)]
        durability: Option<DurabilityArg>,
        /// Whether its change feed has the records that expire. While a trigger asks for them, it has
        #[arg(long, value_enum, value_name = "ON|OFF")]
        feed_expiry: Option<SwitchArg>,
        #[command(flatten)]
        behaviour: BackingArgs,
    },
    /// Write all changes of a table that its backing does not have yet; returns when it has them
    Flush {
        /// Name of the table
        name: String,
        /// What to do with records that another writer has changed in the backing, too
        #[arg(long, value_enum, default_value = "keep")]
        conflicts: ConflictArg,
        /// Seconds that it waits at most, up to 60
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        wait: u64,
    },
    /// Give a table another name. Its id, records and grants stay; extensions and ports have to use the new name
    Rename {
        /// Name of the table
        name: String,
        /// Its new name: 1 to 64 letters, digits, '_', '-' and '.'
        to: String,
    },
    /// List the tables
    List,
    /// Show one table: id, quota, contents, grants
    Show {
        /// Name of the table
        name: String,
    },
    /// Drop a table with its records
    Drop {
        /// Name of the table
        name: String,
    },
}

/// What a table does at its quota.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum TableModeArg {
    /// Writes are refused
    Store,
    /// Records are evicted, those first that were read once at most
    Cache,
    /// The values of records move to the disk, those first that were read once at most; keys stay in memory
    Spill,
}

/// What a crash may take of a table's records.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum DurabilityArg {
    /// All of them: they are in memory only
    None,
    /// The writes of the last 100 ms: they are acknowledged at once, and written to disk meanwhile
    Interval,
    /// Nothing: a write is acknowledged when it is on the disk, and a change that is not is not shown
    Disk,
    /// As above, also where the server or its disk is lost: it is on the disks of other servers of the cluster, too
    Copies,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SwitchArg {
    /// It is
    On,
    /// It is not
    Off,
}

impl TableModeArg {
    fn mode(self) -> TableMode {
        match self {
            TableModeArg::Store => TableMode::Store,
            TableModeArg::Cache => TableMode::Cache,
            TableModeArg::Spill => TableMode::Spill,
        }
    }
}

impl DurabilityArg {
    fn level(self) -> DurabilityLevel {
        match self {
            DurabilityArg::None => DurabilityLevel::None,
            DurabilityArg::Interval => DurabilityLevel::Interval,
            DurabilityArg::Disk => DurabilityLevel::Disk,
            DurabilityArg::Copies => DurabilityLevel::Copies,
        }
    }
}

pub(super) fn run(session: &CliSession, command: TableCommand, out: &OutputPrinter) -> Result<(), CliError> {
    let control = session.control();
    let tenant = session.tenant()?;
    match command {
        TableCommand::Create { name, mode, quota, id, ordered, durability, backing, behaviour } => {
            let backing = behaviour.spec(backing)?;
            let usual = if backing.is_some() { TableMode::Cache } else { TableMode::Store };
            let mode = mode.map_or(usual, TableModeArg::mode);
            let durability = durability.map(DurabilityArg::level);
            let new = TableSpec { name, id, mode, quota_bytes: quota, ordered, durability, backing };
            let table = control.create_table(&tenant, &new)?;
            out.show(&table, |table| {
                let (quota, durability) = (format_bytes(table.quota_bytes), durability_of(table));
                format!("created table {} (id {}, quota {quota}, durability {durability})\n", table.name, table.id)
            })
        }
        TableCommand::Set { name, quota, mode, durability, feed_expiry, behaviour } => {
            let (mode, durability) = (mode.map(TableModeArg::mode), durability.map(DurabilityArg::level));
            let (backing, feed_expiry) = (behaviour.patch(), feed_expiry.map(|switch| switch == SwitchArg::On));
            let change = TablePatch { name: None, mode, quota_bytes: quota, durability, backing, feed_expiry };
            let table = control.change_table(&tenant, &name, &change)?;
            out.show(&table, |table| {
                let (quota, mode) = (format_bytes(table.quota_bytes), self::mode(table));
                let expiry = if table.feed_expiry { ", and a change feed with what expires" } else { "" };
                let durability = durability_of(table);
                format!("table {} has quota {quota}, mode {mode}, durability {durability}{expiry}\n", table.name)
            })
        }
        TableCommand::Rename { name, to } => {
            let change = TablePatch { name: Some(to), ..TablePatch::default() };
            let table = control.change_table(&tenant, &name, &change)?;
            out.show(&table, |table| format!("table {name} is {} now (id {})\n", table.name, table.id))
        }
        TableCommand::Flush { name, conflicts, wait } => {
            let flush = FlushSpec { conflicts: conflicts.choice(), wait_ms: Some(wait.saturating_mul(1000)) };
            let report = control.flush_table(&tenant, &name, &flush)?;
            out.show(&report, |report| {
                format!(
                    "the backing of table {name} has all of its records ({} objects were written)\n",
                    report.flushes
                )
            })
        }
        TableCommand::List => out.show(&control.tables(&tenant)?, |tables| list(tables)),
        TableCommand::Show { name } => out.show(&control.table(&tenant, &name)?, show),
        TableCommand::Drop { name } => {
            control.drop_table(&tenant, &name)?;
            out.done(&format!("dropped table {name}"))
        }
    }
}

fn mode(table: &TableStatus) -> String {
    let mode = match table.mode {
        TableMode::Store => "store",
        TableMode::Cache => "cache",
        TableMode::Spill => "spill",
    };
    if table.ordered { format!("{mode}, ordered") } else { mode.to_owned() }
}

fn durability_of(table: &TableStatus) -> String {
    match table.durability {
        DurabilityLevel::None => "none",
        DurabilityLevel::Interval => "interval",
        DurabilityLevel::Disk => "disk",
        DurabilityLevel::Copies => "copies",
    }
    .to_owned()
}

fn list(tables: &[TableStatus]) -> String {
    let row = |table: &TableStatus| {
        vec![
            table.name.clone(),
            table.id.to_string(),
            mode(table),
            durability_of(table),
            table.records.to_string(),
            format_bytes(table.bytes),
            format_bytes(table.quota_bytes),
        ]
    };
    let mut rows: Vec<_> = tables.iter().map(row).collect();
    let mut head = vec!["NAME", "ID", "MODE", "DURABILITY", "RECORDS", "BYTES", "QUOTA"];
    backing::add_columns(tables, &mut head, &mut rows);
    // Where nothing is on the disk, or shared, the columns are left out.
    if tables.iter().any(|table| table.spill.is_some()) {
        head.extend(["COLD", "ON DISK"]);
        for (row, table) in rows.iter_mut().zip(tables) {
            let of = |shown: fn(&SpillStatus) -> String| table.spill.as_ref().map_or("-".to_owned(), shown);
            row.extend([of(|spill| spill.cold_records.to_string()), of(|spill| format_bytes(spill.file_bytes))]);
        }
    }
    if tables.iter().any(|table| table.access != TableAccess::Own || !table.granted_to.is_empty()) {
        head.extend(["ACCESS", "GRANTED TO"]);
        for (row, table) in rows.iter_mut().zip(tables) {
            row.extend([describe_access(table.access).to_owned(), granted_to(table)]);
        }
    }
    columns(&head, &rows)
}

/// The tenants to which a table is granted.
fn granted_to(table: &TableStatus) -> String {
    let all: Vec<_> =
        table.granted_to.iter().map(|given| format!("{} ({})", given.to, describe_access(given.access))).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

fn show(table: &TableStatus) -> String {
    let mut shown = vec![
        ("name", table.name.clone()),
        ("id", table.id.to_string()),
        ("mode", mode(table)),
        ("durability", durability_of(table)),
        ("expiry in its feed", if table.feed_expiry { "yes" } else { "no" }.to_owned()),
        ("access", describe_access(table.access).to_owned()),
        ("owner", table.owner.clone().unwrap_or_else(|| "-".to_owned())),
        ("granted to", granted_to(table)),
        ("records", table.records.to_string()),
        ("bytes", format_bytes(table.bytes)),
        ("quota", format_bytes(table.quota_bytes)),
        ("evictions", table.evictions.to_string()),
        ("expirations", table.expirations.to_string()),
        ("refusals", table.refusals.to_string()),
        ("slots", table.capacity.to_string()),
    ];
    if let Some(spill) = &table.spill {
        let mean_us = spill.read_us.checked_div(spill.reads).unwrap_or(0);
        shown.extend([
            ("cold records", spill.cold_records.to_string()),
            ("on disk", format_bytes(spill.file_bytes)),
            ("cold reads", format!("{} ({}, {mean_us} us each)", spill.reads, format_bytes(spill.read_bytes))),
            ("waits", format!("{}, {} reads held by the quota", spill.waits, spill.held_by_quota)),
            ("kept in memory", format!("{} times, for the quota spill_bytes", spill.refused_by_quota)),
            ("read errors", spill.read_errors.to_string()),
            ("disk", spill.failure.clone().unwrap_or_else(|| "ok".to_owned())),
        ]);
    }
    shown.extend(table.backing.iter().flat_map(backing::rows));
    fields(&shown)
}

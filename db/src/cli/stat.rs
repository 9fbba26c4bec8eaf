//! `sandstorm stat`.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use sandstorm_client::control::ServerStats;
use serde_json::{Value, json};

use super::latency::{self, LatencyArgs};
use super::output::{CliError, OutputPrinter, format_bytes};
use super::session::CliSession;

/// Counters, one row a second until it is interrupted, with --json one object a line. Scripts that read one answer take
/// --once, or --all.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct StatArgs {
    #[command(subcommand)]
    what: Option<StatCommand>,
    /// Rows to print [default: until interrupted]
    #[arg(long, short = 'n')]
    count: Option<u64>,
    /// Print one row and end
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Seconds between two rows
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// Print every counter since the start, once
    #[arg(long, conflicts_with_all = ["count", "once"])]
    all: bool,
}

#[derive(Debug, Subcommand)]
enum StatCommand {
    /// Show how long requests took at the server, by tenant, kind and extension
    Latency(LatencyArgs),
}

/// Rows after which the heading is printed again.
const HEAD_EVERY: u64 = 20;

type CounterMap = BTreeMap<String, u64>;

/// A column: its heading, its width, and its value, computed from a pair of readings.
struct StatColumn(&'static str, usize, fn(&CounterDelta<'_>) -> String);

/// Two readings.
struct CounterDelta<'a> {
    before: &'a CounterMap,
    now: &'a CounterMap,
    seconds: f64,
}

impl CounterDelta<'_> {
    /// The increase of a counter.
    fn increase(&self, name: &str) -> u64 {
        let at = |counters: &CounterMap| counters.get(name).copied().unwrap_or(0);
        at(self.now).saturating_sub(at(self.before))
    }

    /// The increase of all counters with that prefix, except one.
    fn increase_of_prefix(&self, prefix: &str, but: &str) -> u64 {
        self.now.keys().filter(|name| name.starts_with(prefix) && *name != but).map(|name| self.increase(name)).sum()
    }

    fn rate(&self, count: u64) -> String {
        format!("{:.0}", count as f64 / self.seconds)
    }

    fn per_second(&self, name: &str) -> String {
        self.rate(self.increase(name))
    }

    fn is(&self, name: &str) -> u64 {
        self.now.get(name).copied().unwrap_or(0)
    }

    /// The nanoseconds as a part of one core.
    fn core(&self, name: &str) -> String {
        format!("{:.0}%", self.increase(name) as f64 / self.seconds / 1e7)
    }

    /// The microseconds as a part of one core.
    fn core_share_us(&self, name: &str) -> String {
        format!("{:.0}%", self.increase(name) as f64 / self.seconds / 1e4)
    }
}

/// The columns for an operator: rates a second, unless the heading says otherwise.
const SERVER_COLUMNS: &[StatColumn] = &[
    StatColumn("msgs", 8, |row| row.per_second("messages")),
    StatColumn("get", 8, |row| row.rate(row.increase("requests.get") + row.increase("requests.multiget"))),
    StatColumn("put", 8, |row| {
        row.rate(row.increase("requests.put") + row.increase("requests.increment") + row.increase("requests.touch"))
    }),
    StatColumn("del", 6, |row| row.per_second("requests.delete")),
    StatColumn("invoke", 8, |row| row.per_second("requests.invoke")),
    StatColumn("errors", 7, |row| row.rate(row.increase_of_prefix("responses.", "responses.ok"))),
    StatColumn("killed", 7, |row| row.rate(row.increase_of_prefix("invocations_killed.", ""))),
    StatColumn("switched", 8, |row| row.per_second("preemptions")),
    StatColumn("busy", 5, |row| row.core_share_us("busy_us")),
    StatColumn("ext-cpu", 7, |row| row.core("invocation_cpu_ns")),
    StatColumn("live", 5, |row| row.is("invocations_live").to_string()),
    StatColumn("pkt-in", 8, |row| row.per_second("packets_in")),
    StatColumn("pkt-out", 8, |row| row.per_second("packets_out")),
    StatColumn("resent", 6, |row| row.per_second("retransmissions")),
    StatColumn("steals", 6, |row| row.rate(row.increase("steals") + row.increase("packet_steals"))),
    StatColumn("sleeps", 6, |row| row.per_second("sleeps")),
    StatColumn("records", 10, |row| row.is("records").to_string()),
    StatColumn("memory", 9, |row| format_bytes(row.is("record_bytes"))),
];

/// The columns for a tenant.
const TENANT_COLUMNS: &[StatColumn] = &[
    StatColumn("requests", 9, |row| row.per_second("tenant_requests")),
    StatColumn("over-quota", 10, |row| row.per_second("tenant_over_quota")),
    StatColumn("done", 8, |row| row.per_second("tenant_invocations_done")),
    StatColumn("failed", 8, |row| row.per_second("tenant_invocations_failed")),
    StatColumn("killed", 8, |row| row.rate(row.increase_of_prefix("tenant_invocations_killed.", ""))),
    StatColumn("switched", 8, |row| row.per_second("tenant_preemptions")),
    StatColumn("ext-cpu", 8, |row| row.core("tenant_invocation_cpu_ns")),
    StatColumn("live", 5, |row| row.is("tenant_used.concurrent_invocations").to_string()),
    StatColumn("ext-memory", 10, |row| format_bytes(row.is("tenant_used.invocation_memory_bytes"))),
];

pub(super) fn stat(session: &CliSession, args: &StatArgs, out: &OutputPrinter) -> Result<(), CliError> {
    if let Some(StatCommand::Latency(args)) = &args.what {
        return latency::run(session, args, out);
    }
    let interval = Duration::try_from_secs_f64(args.interval).ok().filter(|interval| interval.as_millis() >= 10);
    let interval = interval.ok_or_else(|| CliError::new(format!("--interval {} is too short", args.interval)))?;
    let mut before = session.control().stat()?;
    if args.all {
        return out.show(&before, |stat| all(&counters_of(session, stat)));
    }
    let count = if args.once { Some(1) } else { args.count };
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        std::thread::sleep(interval);
        let now = session.control().stat()?;
        let (old, new) = (counters_of(session, &before), counters_of(session, &now));
        let seconds = (now.at_ms.saturating_sub(before.at_ms)).max(1) as f64 / 1e3;
        let row = CounterDelta { before: &old, now: &new, seconds };
        if out.json {
            out.json(&deltas(&row, now.at_ms))?;
        } else {
            let shown = if new.contains_key("messages") { SERVER_COLUMNS } else { TENANT_COLUMNS };
            if printed == 0 && new.contains_key("messages") {
                print_network(session, out)?;
            }
            if printed % HEAD_EVERY == 0 {
                out.line(&head(shown))?;
            }
            out.line(&line(shown, &row))?;
        }
        printed += 1;
        before = now;
    }
    Ok(())
}

/// Prints the device beside the kernel: its kind, and how packets are steered to their workers.
fn print_network(session: &CliSession, out: &OutputPrinter) -> Result<(), CliError> {
    let network = session.control().health()?.network;
    if network.starts_with("DPDK") { out.line(&format!("network: {network}")) } else { Ok(()) }
}

/// The counters to show: one tenant's if one is named, else those that the token may see.
fn counters_of(session: &CliSession, stat: &ServerStats) -> CounterMap {
    let named = session.named_tenant().and_then(|name| stat.tenants.get(name));
    named.unwrap_or(&stat.counters).clone()
}

fn all(counters: &CounterMap) -> String {
    let width = counters.keys().map(String::len).max().unwrap_or(0);
    counters.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

fn head(columns: &[StatColumn]) -> String {
    let cells: Vec<String> = columns.iter().map(|StatColumn(head, width, _)| format!("{head:>width$}")).collect();
    cells.join(" ")
}

fn line(columns: &[StatColumn], row: &CounterDelta<'_>) -> String {
    let cells: Vec<String> =
        columns.iter().map(|StatColumn(_, width, cell)| format!("{:>width$}", cell(row))).collect();
    cells.join(" ")
}

fn deltas(row: &CounterDelta<'_>, at_ms: u64) -> Value {
    let grown: CounterMap = row.now.keys().map(|name| (name.clone(), row.increase(name))).collect();
    json!({"at_ms": at_ms, "seconds": row.seconds, "grown": grown, "now": row.now})
}

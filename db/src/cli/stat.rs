//! `sandstorm stat` and `sandstorm kills`.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use sandstorm_catalog::utc;
use sandstorm_client::control::Stat;
use serde_json::{Value, json};

use super::output::{Failure, Out, bytes_in_words, columns};
use super::session::Session;

/// Counters, one row a second.
#[derive(Debug, Args)]
pub(super) struct StatArgs {
    /// Rows to print [default: until interrupted]
    #[arg(long, short = 'n')]
    count: Option<u64>,
    /// Seconds between two rows
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// Print every counter since the start, once
    #[arg(long, conflicts_with_all = ["count"])]
    all: bool,
}

/// Invocations that were ended lately.
#[derive(Debug, Args)]
pub(super) struct KillsArgs {
    /// Kills to show, at most
    #[arg(long, default_value_t = 20)]
    limit: usize,
}

/// Rows after which the head is printed again.
const HEAD_EVERY: u64 = 20;

type Counters = BTreeMap<String, u64>;

/// A column: its head, its width, and how it is made of what grew, of what is, and of the seconds between.
struct Column(&'static str, usize, fn(&Row<'_>) -> String);

/// Two readings.
struct Row<'a> {
    before: &'a Counters,
    now: &'a Counters,
    seconds: f64,
}

impl Row<'_> {
    /// How much the counter grew.
    fn grown(&self, name: &str) -> u64 {
        let at = |counters: &Counters| counters.get(name).copied().unwrap_or(0);
        at(self.now).saturating_sub(at(self.before))
    }

    /// How much all counters with that prefix grew, but for one.
    fn grown_all(&self, prefix: &str, but: &str) -> u64 {
        self.now.keys().filter(|name| name.starts_with(prefix) && *name != but).map(|name| self.grown(name)).sum()
    }

    fn rate(&self, count: u64) -> String {
        format!("{:.0}", count as f64 / self.seconds)
    }

    fn per_second(&self, name: &str) -> String {
        self.rate(self.grown(name))
    }

    fn is(&self, name: &str) -> u64 {
        self.now.get(name).copied().unwrap_or(0)
    }

    /// Part of one core that the nanoseconds are.
    fn core(&self, name: &str) -> String {
        format!("{:.0}%", self.grown(name) as f64 / self.seconds / 1e7)
    }

    /// Part of one core that the microseconds are.
    fn core_us(&self, name: &str) -> String {
        format!("{:.0}%", self.grown(name) as f64 / self.seconds / 1e4)
    }
}

/// The columns for an operator: rates a second, unless the head says otherwise.
const SERVER: &[Column] = &[
    Column("msgs", 8, |row| row.per_second("messages")),
    Column("get", 8, |row| row.rate(row.grown("requests.get") + row.grown("requests.multiget"))),
    Column("put", 8, |row| row.rate(row.grown("requests.put") + row.grown("requests.increment"))),
    Column("del", 6, |row| row.per_second("requests.delete")),
    Column("invoke", 8, |row| row.per_second("requests.invoke")),
    Column("errors", 7, |row| row.rate(row.grown_all("responses.", "responses.ok"))),
    Column("killed", 7, |row| row.rate(row.grown_all("invocations_killed.", ""))),
    Column("switched", 8, |row| row.per_second("preemptions")),
    Column("busy", 5, |row| row.core_us("busy_us")),
    Column("ext-cpu", 7, |row| row.core("invocation_cpu_ns")),
    Column("live", 5, |row| row.is("invocations_live").to_string()),
    Column("pkt-in", 8, |row| row.per_second("packets_in")),
    Column("pkt-out", 8, |row| row.per_second("packets_out")),
    Column("resent", 6, |row| row.per_second("retransmissions")),
    Column("steals", 6, |row| row.rate(row.grown("steals") + row.grown("packet_steals"))),
    Column("sleeps", 6, |row| row.per_second("sleeps")),
    Column("records", 10, |row| row.is("records").to_string()),
    Column("memory", 9, |row| bytes_in_words(row.is("record_bytes"))),
];

/// The columns for a tenant.
const TENANT: &[Column] = &[
    Column("requests", 9, |row| row.per_second("tenant_requests")),
    Column("over-quota", 10, |row| row.per_second("tenant_over_quota")),
    Column("done", 8, |row| row.per_second("tenant_invocations_done")),
    Column("failed", 8, |row| row.per_second("tenant_invocations_failed")),
    Column("killed", 8, |row| row.rate(row.grown_all("tenant_invocations_killed.", ""))),
    Column("switched", 8, |row| row.per_second("tenant_preemptions")),
    Column("ext-cpu", 8, |row| row.core("tenant_invocation_cpu_ns")),
    Column("live", 5, |row| row.is("tenant_used.concurrent_invocations").to_string()),
    Column("ext-memory", 10, |row| bytes_in_words(row.is("tenant_used.invocation_memory_bytes"))),
];

pub(super) fn stat(session: &Session, args: &StatArgs, out: &Out) -> Result<(), Failure> {
    let interval = Duration::try_from_secs_f64(args.interval).ok().filter(|interval| interval.as_millis() >= 10);
    let interval = interval.ok_or_else(|| Failure::new(format!("--interval {} is too short", args.interval)))?;
    let mut before = session.control().stat()?;
    if args.all {
        return out.show(&before, |stat| all(&counters_of(session, stat)));
    }
    let mut printed = 0;
    while args.count.is_none_or(|count| printed < count) {
        std::thread::sleep(interval);
        let now = session.control().stat()?;
        let (old, new) = (counters_of(session, &before), counters_of(session, &now));
        let seconds = (now.at_ms.saturating_sub(before.at_ms)).max(1) as f64 / 1e3;
        let row = Row { before: &old, now: &new, seconds };
        if out.json {
            out.json(&deltas(&row, now.at_ms))?;
        } else {
            let shown = if new.contains_key("messages") { SERVER } else { TENANT };
            if printed == 0 && new.contains_key("messages") {
                tell_network(session, out)?;
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

/// A device beside the kernel: what it is, and who brings packets to their workers.
fn tell_network(session: &Session, out: &Out) -> Result<(), Failure> {
    let network = session.control().health()?.network;
    if network.starts_with("DPDK") { out.line(&format!("network: {network}")) } else { Ok(()) }
}

/// The counters that are meant: one tenant's if one is named, else what the token sees.
fn counters_of(session: &Session, stat: &Stat) -> Counters {
    let named = session.named_tenant().and_then(|name| stat.tenants.get(name));
    named.unwrap_or(&stat.counters).clone()
}

fn all(counters: &Counters) -> String {
    let width = counters.keys().map(String::len).max().unwrap_or(0);
    counters.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

fn head(columns: &[Column]) -> String {
    let cells: Vec<String> = columns.iter().map(|Column(head, width, _)| format!("{head:>width$}")).collect();
    cells.join(" ")
}

fn line(columns: &[Column], row: &Row<'_>) -> String {
    let cells: Vec<String> = columns.iter().map(|Column(_, width, cell)| format!("{:>width$}", cell(row))).collect();
    cells.join(" ")
}

fn deltas(row: &Row<'_>, at_ms: u64) -> Value {
    let grown: Counters = row.now.keys().map(|name| (name.clone(), row.grown(name))).collect();
    json!({"at_ms": at_ms, "seconds": row.seconds, "grown": grown, "now": row.now})
}

pub(super) fn kills(session: &Session, args: &KillsArgs, out: &Out) -> Result<(), Failure> {
    let kills = session.control().kills(session.named_tenant(), args.limit)?;
    out.show(&kills, |kills| {
        let rows: Vec<Vec<String>> = kills
            .iter()
            .map(|kill| {
                vec![
                    utc(kill.at_ms),
                    kill.tenant.clone(),
                    format!("{} v{}", kill.extension, kill.version),
                    kill.cause.clone(),
                    kill.cpu_us.to_string(),
                    kill.wall_us.to_string(),
                    kill.text.chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { c }).take(100).collect(),
                ]
            })
            .collect();
        columns(&["TIME (UTC)", "TENANT", "EXTENSION", "CAUSE", "CPU_US", "WALL_US", "TEXT"], &rows)
    })
}

//! INFO: the properties of the server that a tenant may know, in sections.

use std::fmt::Write as _;

use super::arguments::is_word;
use super::cluster::is_enabled;
use super::command_call::CommandCall;
use super::commands::COMMANDS;
use super::errors::CommandResult;
use super::server::REDIS_VERSION;
use super::settings::settings;
use crate::limits::redis::COUNTERS_PER_REQUEST;
use sandstorm_accounts::CommandStat;
use sandstorm_metrics::{SingleWriterCounter, TenantCounters};

/// All sections; those that are shown only on request are marked.
const SECTIONS: [(&str, bool); 10] = [
    ("server", false),
    ("clients", false),
    ("memory", false),
    ("persistence", false),
    ("stats", false),
    ("replication", false),
    ("cpu", false),
    ("commandstats", true),
    ("cluster", false),
    ("keyspace", false),
];

pub(super) fn info(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let named = |words: &[&str]| call.rest(1).iter().any(|word| words.iter().any(|known| is_word(word, known)));
    let all = named(&["all", "everything"]);
    let default = all || call.args.len() == 1 || named(&["default"]);
    let mut out = String::new();
    for (section, on_request) in SECTIONS {
        if all || default && !on_request || named(&[section]) {
            if !out.is_empty() {
                out.push_str("\r\n");
            }
            // Writing to a string does not fail.
            let _ = describe(call, section, &mut out);
        }
    }
    call.reply.verbatim(&out);
    Ok(())
}

fn describe(call: &CommandCall<'_, '_>, section: &str, out: &mut String) -> std::fmt::Result {
    let (facts, view) = (call.context.facts, call.view);
    let tables: Vec<_> = view.map_or_else(Vec::new, |view| view.sorted_tables());
    let stats: Vec<_> = tables.iter().map(|entry| (entry.id, entry.table.stats())).collect();
    let sum = |f: fn(&sandstorm_store::TableStats) -> u64| stats.iter().map(|(_, stats)| f(stats)).sum::<u64>();
    let mut title = section.to_owned();
    title[..1].make_ascii_uppercase();
    write!(out, "# {title}\r\n")?;
    let up_s = call.now_ms().saturating_sub(facts.started_ms) / 1000;
    match section {
        "server" => {
            let mode = if is_enabled(call) { "cluster" } else { "standalone" };
            write!(out, "redis_version:{REDIS_VERSION}\r\nredis_mode:{mode}\r\nos:Linux x86_64\r\narch_bits:64\r\n")?;
            write!(out, "sandstorm_version:{}\r\nmultiplexing_api:epoll\r\n", env!("CARGO_PKG_VERSION"))?;
            write!(
                out,
                "process_id:{}\r\nuptime_in_seconds:{up_s}\r\nuptime_in_days:{}\r\n",
                std::process::id(),
                up_s / 86_400
            )?;
            write!(out, "io_threads_active:{}\r\n", facts.workers)?;
        }
        "clients" => {
            let connected = sum_counter(call, |tenant| &tenant.connections).max(1);
            write!(out, "connected_clients:{connected}\r\nmaxclients:{}\r\nblocked_clients:0\r\n", facts.connections)?;
        }
        "memory" => {
            let (used, quota) = (sum(|stats| stats.bytes), sum(|stats| stats.quota_bytes));
            write!(out, "used_memory:{used}\r\nused_memory_human:{}\r\n", human_bytes(used))?;
            write!(out, "maxmemory:{quota}\r\nmaxmemory_human:{}\r\n", human_bytes(quota))?;
            let policy = settings(call).into_iter().find(|(name, _)| *name == "maxmemory-policy");
            write!(
                out,
                "maxmemory_policy:{}\r\nmem_allocator:system\r\n",
                policy.map_or_else(String::new, |(_, policy)| policy)
            )?;
        }
        "persistence" => write!(
            out,
            "loading:0\r\nrdb_changes_since_last_save:0\r\nrdb_bgsave_in_progress:0\r\naof_enabled:0\r\naof_rewrite_in_progress:0\r\n"
        )?,
        "stats" => {
            let reads = sum_counter(call, |tenant| &tenant.connection_reads);
            let misses = sum_counter(call, |tenant| &tenant.connection_misses);
            write!(out, "total_connections_received:{}\r\n", sum_counter(call, |tenant| &tenant.connections).max(1))?;
            write!(out, "total_commands_processed:{}\r\n", sum_counter(call, |tenant| &tenant.requests))?;
            write!(out, "keyspace_hits:{}\r\nkeyspace_misses:{misses}\r\n", reads.saturating_sub(misses))?;
            write!(
                out,
                "expired_keys:{}\r\nevicted_keys:{}\r\n",
                sum(|stats| stats.expirations),
                sum(|stats| stats.evictions)
            )?;
        }
        "replication" => write!(out, "role:master\r\nconnected_slaves:0\r\nmaster_repl_offset:0\r\n")?,
        "cpu" | "commandstats" => describe_work(call, section, out)?,
        "cluster" => write!(out, "cluster_enabled:{}\r\n", u8::from(is_enabled(call)))?,
        _ => {
            for (id, stats) in stats.iter().filter(|(_, stats)| stats.records > 0) {
                write!(out, "db{id}:keys={},expires=0,avg_ttl=0\r\n", stats.records)?;
            }
        }
    }
    Ok(())
}

/// The work of the tenant's clients, and its CPU time.
fn describe_work(call: &CommandCall<'_, '_>, section: &str, out: &mut String) -> std::fmt::Result {
    if section == "cpu" {
        // The tenant's own CPU time: its commands', estimated from those that were timed, and its invocations'.
        let invocations_us = sum_counter(call, |tenant| &tenant.invocation_cpu_ns) / 1000;
        let commands_us = stats_of_commands(call).iter().map(|(_, stat)| stat.total_us).sum::<u64>();
        let user_us = invocations_us + commands_us;
        write!(out, "used_cpu_sys:0.000000\r\nused_cpu_user:{}.{:06}\r\n", user_us / 1_000_000, user_us % 1_000_000)?;
        write!(out, "used_cpu_sys_children:0.000000\r\nused_cpu_user_children:0.000000\r\n")?;
        return Ok(());
    }
    for (name, stat) in stats_of_commands(call) {
        let each = stat.total_us as f64 / stat.calls.max(1) as f64;
        write!(out, "cmdstat_{name}:calls={},usec={},usec_per_call={each:.2}", stat.calls, stat.total_us)?;
        write!(out, ",rejected_calls={},failed_calls={}\r\n", stat.rejected, stat.failed)?;
    }
    Ok(())
}

/// The commands of the tenant's clients, with their counts.
fn stats_of_commands(call: &CommandCall<'_, '_>) -> Vec<(&'static str, CommandStat)> {
    let stats = call.view.map_or_else(Vec::new, |view| view.tenant.usage.commands());
    let counters = stats.len() * call.context.facts.workers;
    call.context.work((counters / COUNTERS_PER_REQUEST) as u64);
    let named = COMMANDS.iter().map(|spec| spec.name).zip(stats);
    named.filter(|(_, stat)| stat.calls + stat.rejected > 0).collect()
}

/// Sums a counter of the tenant over all workers.
fn sum_counter(call: &CommandCall<'_, '_>, counter: fn(&TenantCounters) -> &SingleWriterCounter) -> u64 {
    let usage = call.view.map(|view| &view.tenant.usage);
    let of_worker = |worker| usage.map_or(0, |usage| counter(usage.worker(worker)).get());
    (0..call.context.facts.workers).map(of_worker).sum()
}

/// A number of bytes in Redis' form for people.
fn human_bytes(bytes: u64) -> String {
    let (mut value, mut units) = (bytes as f64, "BKMGTP".chars());
    let mut unit = units.next();
    while value >= 1024.0
        && let Some(larger) = units.next()
    {
        (value, unit) = (value / 1024.0, Some(larger));
    }
    let unit = unit.unwrap_or('B');
    if unit == 'B' { format!("{bytes}B") } else { format!("{value:.2}{unit}") }
}

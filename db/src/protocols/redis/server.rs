//! Commands about the server, as far as a tenant may know it.

use std::fmt::Write as _;

use super::call::{Call, Outcome, integer, is, text};
use super::commands::unknown_subcommand;
use super::glob::Pattern;
use crate::limits::redis::{PATTERN_STEPS, PATTERN_STEPS_PER_REQUEST, SLOW_ENTRIES};
use crate::metrics::{Counter, TenantCounters};

/// The version of Redis whose commands are answered.
pub(super) const REDIS_VERSION: &str = "7.0.15";

/// Answers lines for a person.
pub(super) fn help(call: &mut Call<'_, '_>, lines: &[&str]) -> Outcome {
    call.reply.array(lines.len());
    lines.iter().for_each(|line| call.reply.simple(line));
    Ok(())
}

pub(super) fn time(call: &mut Call<'_, '_>) -> Outcome {
    let now_ms = call.now_ms();
    call.reply.array(2);
    call.reply.bulk((now_ms / 1000).to_string().as_bytes());
    call.reply.bulk((now_ms % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

pub(super) fn lastsave(call: &mut Call<'_, '_>) -> Outcome {
    call.reply.integer((call.context.facts.started_ms / 1000) as i64);
    Ok(())
}

pub(super) fn wait(call: &mut Call<'_, '_>) -> Outcome {
    let (replicas, timeout) = (call.integer(1)?, call.arg(2));
    if integer(timeout).ok_or("ERR timeout is not an integer or out of range")? < 0 {
        return Err("ERR timeout is negative".into());
    }
    let _ = replicas;
    call.reply.integer(0);
    Ok(())
}

pub(super) fn role(call: &mut Call<'_, '_>) -> Outcome {
    call.reply.array(3);
    call.reply.bulk(b"master");
    call.reply.integer(0);
    call.reply.array(0);
    Ok(())
}

pub(super) fn debug(_call: &mut Call<'_, '_>) -> Outcome {
    Err("ERR DEBUG command not allowed. Other tenants would notice.".into())
}

pub(super) fn cluster(_call: &mut Call<'_, '_>) -> Outcome {
    Err("ERR This instance has cluster support disabled".into())
}

const SLOWLOG_COUNT: &str = "ERR count should be greater than or equal to -1";

pub(super) fn slowlog(call: &mut Call<'_, '_>) -> Outcome {
    let log = &call.view()?.tenant.usage.slow;
    match call.arg(1).to_ascii_uppercase().as_slice() {
        b"GET" => {
            let count = match call.args.len() {
                2 => 10,
                3 => integer(call.arg(2)).filter(|count| *count >= -1).ok_or(SLOWLOG_COUNT)?,
                _ => {
                    let text = "ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.";
                    return Err(text.into());
                }
            };
            let entries = log.recent(usize::try_from(count).unwrap_or(usize::MAX));
            call.reply.array(entries.len());
            for entry in entries {
                call.reply.array(6);
                for number in [entry.id, entry.at_s, entry.took_us] {
                    call.reply.integer(number as i64);
                }
                call.reply.array(entry.command.args().len());
                entry.command.args().for_each(|arg| call.reply.bulk(arg));
                call.reply.bulk(b"");
                call.reply.bulk(&entry.name);
            }
        }
        b"LEN" => call.reply.integer(log.count() as i64),
        b"RESET" => {
            log.clear();
            call.reply.ok();
        }
        b"HELP" => {
            return help(call, &["SLOWLOG <subcommand> [<arg> ...]. Subcommands are:", "GET [<count>], LEN, RESET."]);
        }
        _ => return Err(unknown_subcommand(call.arg(1), "SLOWLOG")),
    }
    Ok(())
}

/// What tools ask for, and what is true of it.
fn settings(call: &Call<'_, '_>) -> Vec<(&'static str, String)> {
    let table = call.table(false).ok();
    let policy = match table.map(|table| table.mode) {
        Some(crate::store::Mode::Cache) => "allkeys-lfu",
        _ => "noeviction",
    };
    let databases = call.view.map_or(0, |view| view.tables.keys().max().copied().unwrap_or(0)) + 1;
    vec![
        ("save", String::new()),
        ("appendonly", "no".into()),
        ("maxmemory", table.map_or(0, |table| table.quota_bytes).to_string()),
        ("maxmemory-policy", policy.into()),
        ("databases", databases.to_string()),
        ("maxclients", call.context.facts.connections.to_string()),
        ("proto-max-bulk-len", crate::limits::MAX_VALUE_BYTES.to_string()),
        ("timeout", "0".into()),
        ("tcp-keepalive", "0".into()),
        ("cluster-enabled", "no".into()),
        ("notify-keyspace-events", String::new()),
        ("slowlog-max-len", SLOW_ENTRIES.to_string()),
        ("slowlog-log-slower-than", call.context.facts.slow_us.to_string()),
    ]
}

pub(super) fn config(call: &mut Call<'_, '_>) -> Outcome {
    match call.arg(1).to_ascii_uppercase().as_slice() {
        b"GET" if call.args.len() >= 3 => {
            let (mut shown, mut left) = (settings(call), PATTERN_STEPS);
            let patterns: Vec<_> = call.rest(2).iter().map(|pattern| pattern.to_ascii_lowercase()).collect();
            shown.retain(|(name, _)| {
                patterns.iter().any(|pattern| {
                    let mut pattern = Pattern::within(pattern, left);
                    let matches = pattern.matches(name.as_bytes());
                    left -= pattern.steps();
                    matches
                })
            });
            call.context.work((PATTERN_STEPS - left) / PATTERN_STEPS_PER_REQUEST);
            call.reply.map(shown.len());
            for (name, value) in shown {
                // A name comes back as it was said.
                let said = call.rest(2).iter().find(|said| is(said, name));
                call.reply.bulk(said.map_or(name.as_bytes(), |said| *said));
                call.reply.bulk(value.as_bytes());
            }
            Ok(())
        }
        b"RESETSTAT" => {
            call.reply.ok();
            Ok(())
        }
        b"SET" | b"REWRITE" => Err("ERR settings are the operator's: `sandstorm tenant set`, sandstorm.toml".into()),
        b"HELP" => help(call, &["CONFIG <subcommand> [<arg> ...]. Subcommands are:", "GET <pattern>, RESETSTAT."]),
        _ => Err(unknown_subcommand(call.arg(1), "CONFIG")),
    }
}

const SECTIONS: [&str; 8] =
    ["server", "clients", "memory", "persistence", "stats", "replication", "cluster", "keyspace"];

pub(super) fn info(call: &mut Call<'_, '_>) -> Outcome {
    let all = call.args.len() == 1
        || call.rest(1).iter().any(|word| is(word, "all") || is(word, "default") || is(word, "everything"));
    let mut out = String::new();
    for section in SECTIONS {
        if all || call.rest(1).iter().any(|word| is(word, section)) {
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

fn describe(call: &Call<'_, '_>, section: &str, out: &mut String) -> std::fmt::Result {
    let (facts, view) = (call.context.facts, call.view);
    let tables: Vec<_> = view.map_or_else(Vec::new, |view| view.sorted_tables());
    let stats: Vec<_> = tables.iter().map(|entry| (entry.id, entry.table.stats())).collect();
    let sum = |f: fn(&crate::store::TableStats) -> u64| stats.iter().map(|(_, stats)| f(stats)).sum::<u64>();
    let mut title = section.to_owned();
    title[..1].make_ascii_uppercase();
    write!(out, "# {title}\r\n")?;
    let up_s = call.now_ms().saturating_sub(facts.started_ms) / 1000;
    match section {
        "server" => {
            write!(
                out,
                "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nos:Linux x86_64\r\narch_bits:64\r\n"
            )?;
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
            let connected = counted(call, |tenant| &tenant.connections).max(1);
            write!(out, "connected_clients:{connected}\r\nmaxclients:{}\r\nblocked_clients:0\r\n", facts.connections)?;
        }
        "memory" => {
            let (used, quota) = (sum(|stats| stats.bytes), sum(|stats| stats.quota_bytes));
            write!(out, "used_memory:{used}\r\nused_memory_human:{}\r\n", human(used))?;
            write!(out, "maxmemory:{quota}\r\nmaxmemory_human:{}\r\n", human(quota))?;
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
            let reads = counted(call, |tenant| &tenant.connection_reads);
            let misses = counted(call, |tenant| &tenant.connection_misses);
            write!(out, "total_connections_received:{}\r\n", counted(call, |tenant| &tenant.connections).max(1))?;
            write!(out, "total_commands_processed:{}\r\n", counted(call, |tenant| &tenant.requests))?;
            write!(out, "keyspace_hits:{}\r\nkeyspace_misses:{misses}\r\n", reads.saturating_sub(misses))?;
            write!(
                out,
                "expired_keys:{}\r\nevicted_keys:{}\r\n",
                sum(|stats| stats.expirations),
                sum(|stats| stats.evictions)
            )?;
        }
        "replication" => write!(out, "role:master\r\nconnected_slaves:0\r\nmaster_repl_offset:0\r\n")?,
        "cluster" => write!(out, "cluster_enabled:0\r\n")?,
        _ => {
            for (id, stats) in stats.iter().filter(|(_, stats)| stats.records > 0) {
                write!(out, "db{id}:keys={},expires=0,avg_ttl=0\r\n", stats.records)?;
            }
        }
    }
    Ok(())
}

/// What all workers have counted for the tenant.
fn counted(call: &Call<'_, '_>, counter: fn(&TenantCounters) -> &Counter) -> u64 {
    let usage = call.view.map(|view| &view.tenant.usage);
    let of_worker = |worker| usage.map_or(0, |usage| counter(usage.worker(worker)).get());
    (0..call.context.facts.workers).map(of_worker).sum()
}

/// A number of bytes as Redis shows it to people.
fn human(bytes: u64) -> String {
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

pub(super) fn acl(call: &mut Call<'_, '_>) -> Outcome {
    match call.arg(1).to_ascii_uppercase().as_slice() {
        b"WHOAMI" => {
            let name = call.view()?.tenant.name.as_bytes();
            call.reply.bulk(name);
            Ok(())
        }
        _ => {
            Err(format!("ERR unknown subcommand '{}'. Users are tenants: `sandstorm tenant`", text(call.arg(1))).into())
        }
    }
}

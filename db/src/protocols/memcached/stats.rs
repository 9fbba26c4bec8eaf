//! `stats`: what a tenant may know, under memcached's names.

use sandstorm_net::memcached::text::Words;

use super::classic::{Work, line};
use crate::limits::protocols::COMPATIBLE;
use crate::limits::{MAX_VALUE_BYTES, MAX_WORKERS};
use crate::metrics::Counter;
use crate::store::{Mode, TableStats};
use crate::tenants::{TableEntry, TenantView};

fn stat(name: &str, value: impl std::fmt::Display, out: &mut Vec<u8>) {
    use std::io::Write as _;
    // Writing to a Vec does not fail.
    let _ = write!(out, "STAT {name} {value}\r\n");
}

/// Runs `stats` and what stands behind it.
pub(super) fn stats(work: &Work<'_>, mut words: Words<'_>, out: &mut Vec<u8>) {
    let entry = match work.reach(false) {
        Ok(entry) => entry,
        Err(text) => return line(text, out),
    };
    let Some(view) = work.view else { return };
    let table = entry.table.stats();
    match words.next() {
        None => general(work, view, entry, &table, out),
        Some(b"reset") => return line("RESET", out),
        Some(b"settings") => settings(work, entry, &table, out),
        Some(b"items") if table.records > 0 => {
            stat("items:1:number", table.records, out);
            stat("items:1:evicted", table.evictions, out);
            stat("items:1:outofmemory", table.refusals, out);
        }
        Some(b"slabs") => {
            if table.records > 0 {
                stat("1:used_chunks", table.records, out);
                stat("1:mem_requested", table.bytes, out);
            }
            stat("active_slabs", u64::from(table.records > 0), out);
            stat("total_malloced", table.bytes, out);
        }
        Some(b"sizes") => stat("sizes_status", "disabled", out),
        Some(b"items" | b"conns" | b"extstore" | b"proxy") => {}
        Some(_) => return line("ERROR", out),
    }
    line("END", out);
}

fn general(work: &Work<'_>, view: &TenantView, entry: &TableEntry, table: &TableStats, out: &mut Vec<u8>) {
    let (facts, now_ms) = (work.context.facts, work.context.now_ms);
    let sum = |counter: fn(&crate::metrics::TenantCounters) -> &Counter| {
        (0..facts.workers).map(|worker| counter(view.tenant.usage.worker(worker)).get()).sum::<u64>()
    };
    let (reads, misses) = (sum(|tenant| &tenant.connection_reads), sum(|tenant| &tenant.connection_misses));
    let writes = sum(|tenant| &tenant.connection_writes);
    stat("pid", std::process::id(), out);
    stat("uptime", now_ms.saturating_sub(facts.started_ms) / 1000, out);
    stat("time", now_ms / 1000, out);
    stat("version", COMPATIBLE, out);
    stat("sandstorm", env!("CARGO_PKG_VERSION"), out);
    stat("pointer_size", usize::BITS, out);
    stat("max_connections", facts.connections, out);
    stat("curr_connections", sum(|tenant| &tenant.connections), out);
    stat("cmd_get", reads, out);
    stat("cmd_set", writes, out);
    stat("get_hits", reads.saturating_sub(misses), out);
    stat("get_misses", misses, out);
    stat("get_expired", table.expirations, out);
    stat("limit_maxbytes", entry.quota_bytes, out);
    stat("accepting_conns", 1, out);
    stat("threads", facts.workers, out);
    stat("bytes", table.bytes, out);
    stat("curr_items", table.records, out);
    stat("evictions", table.evictions, out);
    stat("kills", facts.metrics.kills().min(view.tenant.usage.kills_total()), out);
}

fn settings(work: &Work<'_>, entry: &TableEntry, table: &TableStats, out: &mut Vec<u8>) {
    stat("maxbytes", table.quota_bytes, out);
    stat("maxconns", work.context.facts.connections, out);
    stat("evictions", if entry.mode == Mode::Cache { "on" } else { "off" }, out);
    stat("num_threads", work.context.facts.workers.min(MAX_WORKERS), out);
    stat("item_size_max", MAX_VALUE_BYTES, out);
    stat("cas_enabled", "yes", out);
    stat("auth_enabled_ascii", if work.by_token { "yes" } else { "no" }, out);
    stat("flush_enabled", "yes", out);
    stat("binding_protocol", "ascii", out);
}

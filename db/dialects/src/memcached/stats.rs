//! `stats`: the tenant's own statistics, under memcached's names, in either protocol. An unknown value has no line,
//! rather than a 0.

use sandstorm_net::memcached::binary::{BinaryResponseHeader, BinaryStatus};
use sandstorm_net::memcached::text::LineTokens;

use super::answers::push_line;
use super::binary::refusal::push_refusal;
use super::context::MemcachedContext;
use crate::limits::protocols::MEMCACHED_VERSION;
use sandstorm_accounts::{MemcachedTotals, Tally};
use sandstorm_catalog::{TableEntry, TenantView};
use sandstorm_metrics::limits::MAX_WORKERS;
use sandstorm_metrics::{ConnectionReason, SingleWriterCounter};
use sandstorm_store::{StorageMode, TableStats};

/// The writer of the lines, in either protocol.
pub(super) struct StatWriter<'o> {
    out: &'o mut Vec<u8>,
    /// The common header of the binary protocol's answers.
    answer: Option<BinaryResponseHeader<'static>>,
}

impl<'o> StatWriter<'o> {
    /// Lines of text.
    pub(super) fn text(out: &'o mut Vec<u8>) -> StatWriter<'o> {
        StatWriter { out, answer: None }
    }

    /// An answer of the binary protocol for each.
    pub(super) fn binary(answer: BinaryResponseHeader<'static>, out: &'o mut Vec<u8>) -> StatWriter<'o> {
        StatWriter { out, answer: Some(answer) }
    }

    fn stat(&mut self, name: &str, value: impl std::fmt::Display) {
        use std::io::Write as _;
        let Some(answer) = &self.answer else {
            // Writing to a Vec does not fail.
            let _ = write!(self.out, "STAT {name} {value}\r\n");
            return;
        };
        BinaryResponseHeader { key: name.as_bytes(), ..*answer }.push(value.to_string().as_bytes(), self.out);
    }

    /// Ends the list, if the protocol has an end line.
    fn end(self, text: &str) {
        match &self.answer {
            Some(answer) => answer.push(b"", self.out),
            None => push_line(text, self.out),
        }
    }

    /// Answers that there is no such list.
    fn unknown(self) {
        match self.answer {
            Some(answer) => {
                let status = BinaryStatus::NotFound;
                BinaryResponseHeader { status, ..answer }.push(status.text().as_bytes(), self.out);
            }
            None => push_line("ERROR", self.out),
        }
    }

    /// Answers with an error.
    fn error(self, text: &'static str) {
        match self.answer {
            Some(answer) => push_refusal(answer, text, self.out),
            None => push_line(text, self.out),
        }
    }
}

/// Runs `stats` with its arguments.
pub(super) fn stats(work: &MemcachedContext<'_>, mut words: LineTokens<'_>, mut lines: StatWriter<'_>) {
    let entry = match work.reach(false) {
        Ok(entry) => entry,
        Err(text) => return lines.error(text),
    };
    let Some(view) = work.view else { return };
    let (table, totals) = (entry.table.stats(), view.tenant.usage.tallies.since_reset());
    match words.next() {
        None => general(work, view, entry, (&table, &totals), &mut lines),
        Some(b"reset") => {
            view.tenant.usage.tallies.reset();
            return lines.end("RESET");
        }
        Some(b"settings") => settings(work, entry, &table, &mut lines),
        // The bytes are in `slabs`: in both, memcached_exporter fails, which has one as a counter and one as a gauge.
        Some(b"items") if table.records > 0 => {
            lines.stat("items:1:number", table.records);
            lines.stat("items:1:evicted", table.evictions);
            lines.stat("items:1:reclaimed", table.expirations);
            lines.stat("items:1:outofmemory", table.refusals + table.held_back);
        }
        Some(b"slabs") => slabs(&table, &totals, &mut lines),
        Some(b"sizes") => lines.stat("sizes_status", "disabled"),
        Some(b"items" | b"conns" | b"extstore" | b"proxy") => {}
        Some(_) => return lines.unknown(),
    }
    lines.end("END");
}

fn general(
    work: &MemcachedContext<'_>,
    view: &TenantView,
    entry: &TableEntry,
    (table, totals): (&TableStats, &MemcachedTotals),
    lines: &mut StatWriter<'_>,
) {
    let (facts, now_ms, usage) = (work.context.facts, work.context.now_ms, &view.tenant.usage);
    let sum = |counter: fn(&sandstorm_metrics::TenantCounters) -> &SingleWriterCounter| {
        (0..facts.workers).map(|worker| counter(usage.worker(worker)).get()).sum::<u64>()
    };
    let refused = |reason: ConnectionReason| {
        let workers = (0..facts.workers).filter_map(|worker| facts.metrics.worker(worker));
        workers.map(|worker| worker.connections_refused[reason as usize].get()).sum::<u64>()
    };
    lines.stat("pid", std::process::id());
    lines.stat("uptime", now_ms.saturating_sub(facts.started_ms) / 1000);
    lines.stat("time", now_ms / 1000);
    lines.stat("version", MEMCACHED_VERSION);
    lines.stat("sandstorm", env!("CARGO_PKG_VERSION"));
    lines.stat("pointer_size", usize::BITS);
    let cpu_us = sum(|tenant| &tenant.invocation_cpu_ns) / 1000;
    lines.stat("rusage_user", format_args!("{}.{:06}", cpu_us / 1_000_000, cpu_us % 1_000_000));
    lines.stat("rusage_system", "0.000000");
    lines.stat("max_connections", facts.connections);
    lines.stat("curr_connections", sum(|tenant| &tenant.connections));
    let no_files = refused(ConnectionReason::NoFiles);
    lines.stat("rejected_connections", refused(ConnectionReason::Full) + no_files);
    lines.stat("cmd_get", totals.of(Tally::GetHits) + totals.of(Tally::GetMisses));
    lines.stat("cmd_touch", totals.of(Tally::TouchHits) + totals.of(Tally::TouchMisses));
    for tally in Tally::ALL {
        lines.stat(tally.name(), totals.of(*tally));
    }
    lines.stat("limit_maxbytes", entry.quota_bytes());
    lines.stat("accepting_conns", 1);
    lines.stat("listen_disabled_num", no_files);
    lines.stat("threads", facts.workers);
    lines.stat("hash_is_expanding", u64::from(entry.table.is_growing(work.guard())));
    lines.stat("bytes", table.bytes);
    lines.stat("curr_items", table.records);
    lines.stat("evictions", table.evictions);
    lines.stat("reclaimed", table.expirations);
    lines.stat("kills", facts.metrics.kills().min(usage.kills_total()));
}

/// One class, of items of any size.
fn slabs(table: &TableStats, totals: &MemcachedTotals, lines: &mut StatWriter<'_>) {
    if table.records > 0 {
        lines.stat("1:used_chunks", table.records);
        lines.stat("1:mem_requested", table.bytes);
        let counted = [
            Tally::GetHits,
            Tally::Sets,
            Tally::DeleteHits,
            Tally::IncrHits,
            Tally::DecrHits,
            Tally::CasHits,
            Tally::CasBad,
            Tally::TouchHits,
        ];
        for tally in counted {
            lines.stat(&format!("1:{}", tally.name()), totals.of(tally));
        }
    }
    lines.stat("active_slabs", u64::from(table.records > 0));
    lines.stat("total_malloced", table.bytes);
}

fn settings(work: &MemcachedContext<'_>, entry: &TableEntry, table: &TableStats, lines: &mut StatWriter<'_>) {
    let by_token = if work.by_token { "yes" } else { "no" };
    lines.stat("maxbytes", table.quota_bytes);
    lines.stat("maxconns", work.context.facts.connections);
    lines.stat("evictions", if entry.mode() == StorageMode::Cache { "on" } else { "off" });
    lines.stat("num_threads", work.context.facts.workers.min(MAX_WORKERS));
    lines.stat("item_size_max", entry.table.max_value_len());
    lines.stat("cas_enabled", "yes");
    lines.stat("auth_enabled_ascii", by_token);
    lines.stat("auth_enabled_sasl", by_token);
    lines.stat("flush_enabled", "yes");
    lines.stat("dump_enabled", "no");
    lines.stat("detail_enabled", "no");
    lines.stat("binding_protocol", "auto-negotiate");
    lines.stat("lru_crawler", "no");
    lines.stat("lru_segmented", "no");
}

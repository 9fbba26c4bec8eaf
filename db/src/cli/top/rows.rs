//! The rows of `sandstorm top`: what was used between two reports of the server.

use std::cmp::Ordering;
use std::collections::HashMap;

use clap::ValueEnum;
use sandstorm_client::control::{DurationStats, ExtensionUse, TableUse, TenantUse, TopReport, TopRows};
use sandstorm_terminal::escape_one_line;
use sandstorm_terminal::output::format_bytes;

use crate::cli::latency::format_duration;

/// What the rows are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum TopView {
    /// Tenants
    #[default]
    Tenants,
    /// Extensions
    Extensions,
    /// Tables
    Tables,
}

/// The value of a cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TopValue {
    /// Made fit for a terminal: one line without control characters.
    Text(String),
    /// Of one processor, or of a quota.
    Percent(f64),
    /// A second.
    Rate(f64),
    DurationNs(u64),
    /// How many times as much; 0: not known.
    Times(f64),
    Bytes(u64),
    Count(u64),
}

impl TopValue {
    fn text(text: &str) -> TopValue {
        TopValue::Text(escape_one_line(text))
    }

    /// The value for people.
    pub(super) fn shown(&self) -> String {
        match self {
            TopValue::Text(text) => text.clone(),
            TopValue::Percent(value) if *value < 9.95 => format!("{value:.1}"),
            TopValue::Percent(value) => format!("{value:.0}"),
            TopValue::Rate(value) if *value > 0.0 && *value < 9.95 => format!("{value:.1}"),
            TopValue::Rate(value) => format!("{value:.0}"),
            TopValue::DurationNs(0) | TopValue::Times(0.0) => "-".to_owned(),
            TopValue::Times(value) => format!("{value:.1}x"),
            TopValue::DurationNs(ns) => format_duration(*ns),
            TopValue::Bytes(bytes) => format_bytes(*bytes),
            TopValue::Count(count) => count.to_string(),
        }
    }

    /// The value for programs: a number in the unit that the column's name has, or a text without tabs and line ends.
    pub(super) fn plain(&self) -> String {
        match self {
            TopValue::Text(text) => text.clone(),
            TopValue::Percent(value) | TopValue::Rate(value) | TopValue::Times(value) => format!("{value:.2}"),
            TopValue::DurationNs(ns) => format!("{:.3}", *ns as f64 / 1e3),
            TopValue::Bytes(value) | TopValue::Count(value) => value.to_string(),
        }
    }

    /// Whether it stands at the right of its column.
    pub(super) fn is_number(&self) -> bool {
        !matches!(self, TopValue::Text(_))
    }

    fn number(&self) -> f64 {
        match self {
            TopValue::Text(_) => 0.0,
            TopValue::Percent(value) | TopValue::Rate(value) | TopValue::Times(value) => *value,
            TopValue::DurationNs(value) | TopValue::Bytes(value) | TopValue::Count(value) => *value as f64,
        }
    }

    /// The order of two values of a column, smallest first.
    pub(super) fn order(&self, other: &TopValue) -> Ordering {
        match (self, other) {
            (TopValue::Text(one), TopValue::Text(two)) => one.cmp(two),
            _ => self.number().total_cmp(&other.number()),
        }
    }
}

/// A column: its heading for people, its name for programs, and its width on a screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopColumn {
    pub(super) head: &'static str,
    pub(super) name: &'static str,
    pub(super) width: u16,
}

const fn column(head: &'static str, name: &'static str, width: u16) -> TopColumn {
    TopColumn { head, name, width }
}

/// What tells a row from others, over reports: tenant, name, and a number that changes when it is made again.
pub(super) type RowKey = (String, String, u64);

/// What the graphs of a row's page show.
pub(super) const GRAPHS: [&str; 3] = ["CPU %", "requests/s", "p99 us"];
/// The same of tables.
pub(super) const TABLE_GRAPHS: [&str; 3] = ["KiB", "records", "not freed KiB"];

/// A row.
#[derive(Clone, Debug)]
pub(super) struct TopRow {
    pub(super) key: RowKey,
    /// In the order of the view's columns.
    pub(super) cells: Vec<TopValue>,
    /// In the order of [`GRAPHS`] or [`TABLE_GRAPHS`].
    pub(super) graphs: [f64; 3],
}

impl TopView {
    /// What the server is asked for.
    pub(super) fn rows_of_report(self) -> TopRows {
        match self {
            TopView::Tenants => TopRows::Tenants,
            TopView::Extensions => TopRows::Extensions,
            TopView::Tables => TopRows::Tables,
        }
    }

    /// Its columns. Scripts read them by name and place: new ones come last.
    pub(super) fn columns(self) -> &'static [TopColumn] {
        const TENANTS: &[TopColumn] = &[
            column("TENANT", "tenant", 16),
            column("CPU%", "cpu_percent", 5),
            column("REQ/S", "requests_per_s", 8),
            column("CALLS/S", "calls_per_s", 8),
            column("P50", "p50_us", 6),
            column("P99", "p99_us", 6),
            column("KILLS/S", "kills_per_s", 7),
            column("SWITCH/S", "switches_per_s", 8),
            column("REFUSED/S", "over_quota_per_s", 9),
            column("THROTTLED%", "throttled_percent", 10),
            column("MEMORY", "memory_bytes", 8),
            column("QUOTA%", "quota_percent", 6),
            column("NEAREST QUOTA", "quota", 24),
            column("RUNNING", "running", 7),
            column("SUSPENDED", "suspended", 9),
            column("SLOWED", "slowed", 6),
            column("CONNS", "connections", 6),
            column("RECORDS", "records", 10),
            column("BESIDE", "isolation_ratio", 6),
            column("WAITING_P99", "waiting_p99_us", 11),
            column("SERVICE_P99", "service_p99_us", 11),
            column("SENDING_P99", "sending_p99_us", 11),
            column("HOME", "home_worker", 4),
            column("CALLS CPU%", "calls_cpu_percent", 10),
        ];
        const EXTENSIONS: &[TopColumn] = &[
            column("TENANT", "tenant", 16),
            column("EXTENSION", "extension", 16),
            column("CPU%", "cpu_percent", 5),
            column("CALLS/S", "calls_per_s", 8),
            column("P50", "p50_us", 6),
            column("P99", "p99_us", 6),
            column("KILLS/S", "kills_per_s", 7),
            column("FAILED/S", "failed_per_s", 8),
            column("SWITCH/S", "switches_per_s", 8),
            column("RUNNING", "running", 7),
            column("STATE", "state", 12),
            column("TIER", "tier", 9),
            column("VERSION", "version", 7),
            column("WAITING_P99", "waiting_p99_us", 11),
            column("SERVICE_P99", "service_p99_us", 11),
            column("SENDING_P99", "sending_p99_us", 11),
            column("MEMORY", "memory_bytes", 8),
            column("OF BUDGET%", "budget_cpu_percent", 10),
        ];
        const TABLES: &[TopColumn] = &[
            column("TENANT", "tenant", 16),
            column("TABLE", "table", 16),
            column("MEMORY", "memory_bytes", 8),
            column("QUOTA%", "quota_percent", 6),
            column("RECORDS", "records", 10),
            column("NOT FREED", "garbage_bytes", 9),
            column("EVICTED/S", "evicted_per_s", 9),
            column("EXPIRED/S", "expired_per_s", 9),
            column("REFUSED/S", "refused_per_s", 9),
            column("MODE", "mode", 5),
            column("HOT KEY%", "hot_key_percent", 8),
            column("READS/S", "reads_per_s", 8),
            column("WRITES/S", "writes_per_s", 8),
        ];
        match self {
            TopView::Tenants => TENANTS,
            TopView::Extensions => EXTENSIONS,
            TopView::Tables => TABLES,
        }
    }

    /// The column that rows are sorted by at first.
    pub(super) fn first_order(self) -> usize {
        match self {
            TopView::Tenants => 1,
            TopView::Extensions | TopView::Tables => 2,
        }
    }

    /// The rows of what was used between two reports; without an earlier one, or after a restart of the server, since
    /// it started.
    pub(super) fn rows(self, before: Option<&TopReport>, now: &TopReport) -> Vec<TopRow> {
        let before = before.filter(|before| before.uptime_us < now.uptime_us);
        let passed_us = now.uptime_us - before.map_or(0, |before| before.uptime_us);
        let passed = UsePeriod { seconds: passed_us.max(1) as f64 / 1e6 };
        let nothing = TopReport::default();
        let before = before.unwrap_or(&nothing);
        match self {
            TopView::Tenants => pairs(&before.tenants, &now.tenants, tenant_key, |old, new| passed.tenant(old, new)),
            TopView::Extensions => {
                pairs(&before.extensions, &now.extensions, extension_key, |old, new| passed.extension(old, new))
            }
            TopView::Tables => pairs(&before.tables, &now.tables, table_key, |old, new| passed.table(old, new)),
        }
    }
}

fn tenant_key(one: &TenantUse) -> RowKey {
    (one.name.clone(), String::new(), one.id.into())
}

fn extension_key(one: &ExtensionUse) -> RowKey {
    (one.tenant.clone(), one.name.clone(), one.version)
}

fn table_key(one: &TableUse) -> RowKey {
    (one.tenant.clone(), one.name.clone(), one.id)
}

/// Makes a row of each new entry and the old one of its key, or an empty one.
fn pairs<T: Default>(
    before: &[T],
    now: &[T],
    key_of: impl Fn(&T) -> RowKey,
    cells: impl Fn(&T, &T) -> (Vec<TopValue>, [f64; 3]),
) -> Vec<TopRow> {
    let old: HashMap<RowKey, &T> = before.iter().map(|one| (key_of(one), one)).collect();
    let none = T::default();
    let row = |new: &T| {
        let key = key_of(new);
        let (cells, graphs) = cells(old.get(&key).copied().unwrap_or(&none), new);
        TopRow { key, cells, graphs }
    };
    now.iter().map(row).collect()
}

/// The time between two reports.
struct UsePeriod {
    seconds: f64,
}

impl UsePeriod {
    fn rate(&self, old: u64, new: u64) -> f64 {
        new.saturating_sub(old) as f64 / self.seconds
    }

    /// Nanoseconds as a part of one processor.
    fn percent(&self, old_ns: u64, new_ns: u64) -> f64 {
        self.rate(old_ns, new_ns) / 1e7
    }

    fn tenant(&self, old: &TenantUse, new: &TenantUse) -> (Vec<TopValue>, [f64; 3]) {
        let latency = new.latency.since(&old.latency);
        let calls_cpu = self.percent(old.cpu_ns, new.cpu_ns);
        let cpu = calls_cpu + self.percent(old.plain_cpu_ns, new.plain_cpu_ns);
        let requests = self.rate(old.requests, new.requests);
        // A rate has no use to be nearest to: it is reached while it refuses.
        let (quota, used) = match self.rate(old.over_rate, new.over_rate) {
            0.0 => (new.quota.name.as_str(), part(new.quota.used, new.quota.limit)),
            _ => ("requests_per_s", 100.0),
        };
        let cells = vec![
            TopValue::text(&new.name),
            TopValue::Percent(cpu),
            TopValue::Rate(requests),
            TopValue::Rate(self.rate(old.calls, new.calls)),
            TopValue::DurationNs(latency.p50_ns),
            TopValue::DurationNs(latency.p99_ns),
            TopValue::Rate(self.rate(old.killed, new.killed)),
            TopValue::Rate(self.rate(old.switches, new.switches)),
            TopValue::Rate(self.rate(old.over_quota, new.over_quota)),
            TopValue::Percent(new.throttled_per_mille as f64 / 10.0),
            TopValue::Bytes(new.record_bytes + new.invocation_memory_bytes),
            TopValue::Percent(used),
            TopValue::text(quota),
            TopValue::Count(new.running.into()),
            TopValue::Count(new.suspended),
            TopValue::Count(new.slowed),
            TopValue::Count(new.connections),
            TopValue::Count(new.records),
            TopValue::Times(new.isolation.as_ref().map_or(0.0, |beside| beside.ratio_per_mille as f64 / 1e3)),
            p99(&old.waiting, &new.waiting),
            p99(&old.service, &new.service),
            p99(&old.sending, &new.sending),
            TopValue::Count(new.home_worker.into()),
            TopValue::Percent(calls_cpu),
        ];
        (cells, [cpu, requests, p99_us(&latency)])
    }

    fn extension(&self, old: &ExtensionUse, new: &ExtensionUse) -> (Vec<TopValue>, [f64; 3]) {
        let latency = new.latency.since(&old.latency);
        let (cpu, calls) = (self.percent(old.cpu_ns, new.cpu_ns), self.rate(old.calls, new.calls));
        // The budget bounds each call, not their sum: the 99th percentile says how close they come to it.
        let service = new.service.since(&old.service);
        let state = match (new.suspended, new.slowed_to_per_s) {
            (true, _) => "suspended".to_owned(),
            (false, 0) => "runs".to_owned(),
            (false, per_s) => format!("slowed to {per_s}/s"),
        };
        let cells = vec![
            TopValue::text(&new.tenant),
            TopValue::text(&new.name),
            TopValue::Percent(cpu),
            TopValue::Rate(calls),
            TopValue::DurationNs(latency.p50_ns),
            TopValue::DurationNs(latency.p99_ns),
            TopValue::Rate(self.rate(old.killed, new.killed)),
            TopValue::Rate(self.rate(old.failed, new.failed)),
            TopValue::Rate(self.rate(old.switches, new.switches)),
            TopValue::Count(new.running),
            TopValue::text(&state),
            TopValue::text(new.tier.map_or("-", |tier| tier.name())),
            TopValue::Count(new.version),
            p99(&old.waiting, &new.waiting),
            TopValue::DurationNs(service.p99_ns),
            p99(&old.sending, &new.sending),
            TopValue::Bytes(new.memory_bytes),
            TopValue::Percent(part(service.p99_ns, new.budget_cpu_ns)),
        ];
        (cells, [cpu, calls, p99_us(&latency)])
    }

    fn table(&self, old: &TableUse, new: &TableUse) -> (Vec<TopValue>, [f64; 3]) {
        let cells = vec![
            TopValue::text(&new.tenant),
            TopValue::text(&new.name),
            TopValue::Bytes(new.bytes),
            TopValue::Percent(part(new.bytes, new.quota_bytes)),
            TopValue::Count(new.records),
            TopValue::Bytes(new.garbage_bytes),
            TopValue::Rate(self.rate(old.evictions, new.evictions)),
            TopValue::Rate(self.rate(old.expirations, new.expirations)),
            TopValue::Rate(self.rate(old.refusals, new.refusals)),
            TopValue::text(&new.mode),
            TopValue::Percent(new.hot_key_per_mille as f64 / 10.0),
            TopValue::Rate(new.reads_per_s as f64),
            TopValue::Rate(new.writes_per_s as f64),
        ];
        (cells, [new.bytes as f64 / 1024.0, new.records as f64, new.garbage_bytes as f64 / 1024.0])
    }
}

/// What 99 of a hundred took at most of those that came between two readings.
fn p99(old: &DurationStats, new: &DurationStats) -> TopValue {
    TopValue::DurationNs(new.since(old).p99_ns)
}

fn p99_us(latency: &DurationStats) -> f64 {
    latency.p99_ns as f64 / 1e3
}

/// A part of a whole, in percent.
fn part(used: u64, limit: u64) -> f64 {
    if limit == 0 { 0.0 } else { 100.0 * used as f64 / limit as f64 }
}

/// Sorts rows by a column: numbers largest first, texts from A to Z, or the other way round. Rows of equal value are in
/// the order of their names.
pub(super) fn sort(rows: &mut [TopRow], column: usize, reversed: bool) {
    rows.sort_by(|one, two| {
        let (Some(a), Some(b)) = (one.cells.get(column), two.cells.get(column)) else { return Ordering::Equal };
        let order = if a.is_number() { b.order(a) } else { a.order(b) };
        let order = if reversed { order.reverse() } else { order };
        order.then_with(|| one.key.cmp(&two.key))
    });
}

/// Whether a row is one of those whose tenant or name has this text.
pub(super) fn is_match(row: &TopRow, filter: &str) -> bool {
    let (tenant, name, _) = &row.key;
    filter.is_empty() || tenant.contains(filter) || name.contains(filter)
}

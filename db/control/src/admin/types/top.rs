//! The JSON bodies about what tenants, extensions and tables use now.

use sandstorm_catalog::{TableEntry, TenantView};
use sandstorm_extension::{InvocationTotals, LoadedExtension};
use sandstorm_metrics::histogram::{LatencyCounts, REQUEST_CLASSES};
use sandstorm_net::CodeTier;
use serde::Serialize;

use super::DurationResponse;
use crate::hot_keys::TableAccessRates;
use crate::isolation::IsolationReading;
use crate::use_meter::MeteredUse;

/// `GET /v1/top`. Counters grow: two answers make rates.
#[derive(Clone, Debug, Serialize)]
pub struct TopResponse {
    /// When it was read, in milliseconds since 1970.
    pub at_ms: u64,
    /// Microseconds since the server started: it has restarted where this is less than before.
    pub uptime_us: u64,
    /// Number of workers, so of processors that are 100 % each.
    pub workers: u32,
    /// The tenants that were asked for.
    pub tenants: Vec<TenantUseResponse>,
    /// The same of extensions.
    pub extensions: Vec<ExtensionUseResponse>,
    /// The same of tables.
    pub tables: Vec<TableUseResponse>,
}

/// What a tenant uses.
#[derive(Clone, Debug, Serialize)]
pub struct TenantUseResponse {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// Its home worker.
    pub home_worker: u32,
    /// CPU time of its calls, nanoseconds.
    pub cpu_ns: u64,
    /// Time that workers were busy with its other requests, of all protocols, nanoseconds: each second's time of a
    /// worker in which no call computed, divided among tenants by their work there.
    pub plain_cpu_ns: u64,
    /// Operations received.
    pub requests: u64,
    /// Those of them that were refused because of a quota.
    pub over_quota: u64,
    /// Those of these that were refused by the quota `requests_per_s`.
    pub over_rate: u64,
    /// Calls that ended.
    pub calls: u64,
    /// Those of them that returned an error.
    pub failed: u64,
    /// Those of them that the server ended.
    pub killed: u64,
    /// Polls of calls that ended by a switch, because they computed past their slice.
    pub switches: u64,
    /// Calls under way.
    pub running: u32,
    /// Connections of its memcached and Redis clients.
    pub connections: u64,
    /// Records in its tables.
    pub records: u64,
    /// Bytes of records, with overhead and with those that are not freed yet.
    pub record_bytes: u64,
    /// Bytes of memory of its calls.
    pub invocation_memory_bytes: u64,
    /// Of a thousand of its datagrams, those that are dropped early now.
    pub throttled_per_mille: u64,
    /// Its extensions whose calls are refused until they are resumed.
    pub suspended: u64,
    /// Its extensions whose calls are admitted at a bounded rate.
    pub slowed: u64,
    /// The quota of which it has used the largest part.
    pub quota: QuotaUseResponse,
    /// How long its requests took, of all kinds together; with buckets, as its parts have.
    pub latency: DurationResponse,
    /// The part of it in which nothing was done for the request.
    pub waiting: DurationResponse,
    /// The other part; of calls their CPU time.
    pub service: DurationResponse,
    /// How long answers were sent, of some: the end of `service`; of calls it comes after `latency`.
    pub sending: DurationResponse,
    /// What neighbours cost it, of the kind of its requests that they cost most; `null`: not known.
    pub isolation: Option<IsolationResponse>,
}

/// What neighbours cost a tenant.
#[derive(Clone, Debug, Serialize)]
pub struct IsolationResponse {
    /// The kind of the requests.
    pub class: &'static str,
    /// 99 of a hundred took at most so many nanoseconds while others used little of the tenant's workers.
    pub quiet_p99_ns: u64,
    /// The same while others used much of them.
    pub beside_p99_ns: u64,
    /// The second over the first, in thousandths.
    pub ratio_per_mille: u64,
}

impl IsolationResponse {
    /// Of a reading.
    pub fn of(reading: &IsolationReading) -> IsolationResponse {
        IsolationResponse {
            class: REQUEST_CLASSES.get(reading.class).copied().unwrap_or("unknown"),
            quiet_p99_ns: reading.quiet_p99_ns,
            beside_p99_ns: reading.beside_p99_ns,
            ratio_per_mille: reading.per_mille(),
        }
    }
}

/// How much of a quota is used.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QuotaUseResponse {
    /// The quota's name; `table NAME`: the quota in bytes of this table.
    pub name: String,
    /// How much is used.
    pub used: u64,
    /// How much may be used.
    pub limit: u64,
}

/// What an extension uses.
#[derive(Clone, Debug, Serialize)]
pub struct ExtensionUseResponse {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The version that runs now: all counters are of this version.
    pub version: u64,
    /// The tier that it runs in.
    pub tier: CodeTier,
    /// Whether calls are refused.
    pub suspended: bool,
    /// Calls a second that are admitted while they keep being killed; 0: no limit.
    pub slowed_to_per_s: u32,
    /// CPU time of calls that ended, nanoseconds.
    pub cpu_ns: u64,
    /// Calls that ended.
    pub calls: u64,
    /// Those of them that returned an error.
    pub failed: u64,
    /// Those of them that the server ended.
    pub killed: u64,
    /// Polls that ended by a switch, because they computed past their slice.
    pub switches: u64,
    /// Calls under way.
    pub running: u64,
    /// Bytes of memory that its tenant is charged for these.
    pub memory_bytes: u64,
    /// CPU time that a call may have (`total_us`), nanoseconds.
    pub budget_cpu_ns: u64,
    /// Bytes of memory that a call may have (`arena_bytes`).
    pub budget_memory_bytes: u64,
    /// How long calls took; with buckets, as its parts have.
    pub latency: DurationResponse,
    /// The part of it in which nothing was computed.
    pub waiting: DurationResponse,
    /// The CPU time.
    pub service: DurationResponse,
    /// How long replies were sent, of some: it comes after `latency`.
    pub sending: DurationResponse,
}

/// What a table uses.
#[derive(Clone, Debug, Serialize)]
pub struct TableUseResponse {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Its id, which a table that is made again under its name does not have.
    pub id: u64,
    /// `store` or `cache`.
    pub mode: &'static str,
    /// Records.
    pub records: u64,
    /// Bytes of its records, with overhead.
    pub bytes: u64,
    /// Its quota in bytes.
    pub quota_bytes: u64,
    /// Bytes of replaced and deleted records that are not freed yet.
    pub garbage_bytes: u64,
    /// Records evicted.
    pub evictions: u64,
    /// Records expired.
    pub expirations: u64,
    /// Writes refused: at the quota, for lack of memory, or because too much is not freed yet.
    pub refusals: u64,
    /// Of a thousand accesses of the last half a minute, those of its hottest key, at least; 0: no key is known to
    /// take a large part.
    pub hot_key_per_mille: u64,
    /// About so many keys that are read a second, as of the last seconds; 0 unless it is one of the 512 tables that are
    /// used most.
    pub reads_per_s: u64,
    /// The same of keys that are written.
    pub writes_per_s: u64,
}

impl TenantUseResponse {
    /// What the tenant of `view` uses.
    pub(in crate::admin) fn of(
        view: &TenantView,
        isolation: Option<&IsolationReading>,
        used: &MeteredUse,
        now_ms: u64,
    ) -> TenantUseResponse {
        let (tenant, usage) = (&view.tenant, &view.tenant.usage);
        let totals = usage.totals();
        let tables = || view.tables.values().map(|table| table.table.stats());
        let mut latency = LatencyCounts::default();
        usage.latencies().iter().for_each(|class| latency.add(class));
        let [total, waiting, service, sending] = parts(&latency);
        TenantUseResponse {
            name: tenant.name.clone(),
            id: tenant.id,
            home_worker: tenant.home_worker,
            cpu_ns: totals.cpu_ns,
            plain_cpu_ns: used.plain_cpu_ns,
            requests: totals.requests,
            over_quota: totals.over_quota,
            over_rate: usage.over_rate(),
            calls: totals.calls,
            failed: totals.failed,
            killed: totals.killed,
            switches: totals.switches,
            running: usage.running(),
            connections: usage.connections(),
            records: tables().map(|stats| stats.records).sum(),
            record_bytes: tables().map(|stats| stats.bytes + stats.garbage_bytes).sum(),
            invocation_memory_bytes: usage.invocation_memory_bytes(),
            throttled_per_mille: usage.dropped_early_per_mille(),
            suspended: view.suspended_extensions() as u64,
            slowed: view.extensions.values().filter(|one| one.throttle.calls_per_s() > 0).count() as u64,
            quota: nearest_quota(view, used, now_ms),
            latency: total,
            waiting,
            service,
            sending,
            isolation: isolation.map(IsolationResponse::of),
        }
    }
}

/// The quota of which the tenant has used the largest part, of rates in the last second. Tables count by what is in
/// them, not by what they may have.
pub(in crate::admin) fn nearest_quota(view: &TenantView, metered: &MeteredUse, now_ms: u64) -> QuotaUseResponse {
    let limits = view.tenant.quotas.list();
    let mut nearest = QuotaUseResponse::default();
    let mut consider = |name: &dyn Fn() -> String, used: u64, limit: u64| {
        let part = |used: u64, limit: u64| if limit == 0 { 0.0 } else { used as f64 / limit as f64 };
        if nearest.name.is_empty() || part(used, limit) > part(nearest.used, nearest.limit) {
            nearest = QuotaUseResponse { name: name(), used, limit };
        }
    };
    for (name, used) in view.used(now_ms).into_iter().chain(metered.rates()) {
        if let Some((_, limit)) = limits.iter().find(|(quota, _)| *quota == name && name != "memory_bytes") {
            consider(&|| name.to_owned(), used, *limit);
        }
    }
    for table in view.tables.values() {
        consider(&|| format!("table {}", table.name()), table.table.stats().bytes, table.quota_bytes());
    }
    let bytes = view.tables.values().map(|table| table.table.stats().bytes).sum();
    consider(&|| "memory_bytes".to_owned(), bytes, view.tenant.quotas.memory_bytes);
    nearest
}

/// The whole of latencies and its parts, with buckets.
fn parts(latency: &LatencyCounts) -> [DurationResponse; 4] {
    [&latency.total, &latency.waiting, &latency.service, &latency.sending].map(|part| DurationResponse::of(part, true))
}

impl ExtensionUseResponse {
    /// What an extension of the tenant of `view` uses.
    pub fn of(view: &TenantView, extension: &LoadedExtension, memory_bytes: u64) -> ExtensionUseResponse {
        let budget = view.budget(extension);
        let counts = extension.stats.read();
        let InvocationTotals { ok, failed, switches, .. } = counts;
        let killed = counts.killed_total();
        let [total, waiting, service, sending] = parts(&extension.latency.read());
        ExtensionUseResponse {
            tenant: view.tenant.name.clone(),
            name: extension.name.to_string(),
            version: extension.version,
            tier: extension.tier,
            suspended: view.suspension(&extension.name).is_some(),
            slowed_to_per_s: extension.throttle.calls_per_s(),
            cpu_ns: counts.cpu_us * 1000,
            calls: ok + failed + killed,
            failed,
            killed,
            switches,
            running: counts.live(),
            memory_bytes,
            budget_cpu_ns: budget.total_us.saturating_mul(1_000),
            budget_memory_bytes: budget.memory_bytes as u64,
            latency: total,
            waiting,
            service,
            sending,
        }
    }
}

impl TableUseResponse {
    /// What a table of the tenant of that name uses, the part of its hottest key, and how often it is used.
    pub(in crate::admin) fn of(
        tenant: &str,
        entry: &TableEntry,
        hot_key_per_mille: u64,
        rates: TableAccessRates,
    ) -> TableUseResponse {
        let stats = entry.table.stats();
        TableUseResponse {
            tenant: tenant.to_owned(),
            name: entry.name().to_string(),
            id: entry.id,
            mode: entry.mode().name(),
            records: stats.records,
            bytes: stats.bytes,
            quota_bytes: entry.quota_bytes(),
            garbage_bytes: stats.garbage_bytes,
            evictions: stats.evictions,
            expirations: stats.expirations,
            refusals: stats.refusals + stats.held_back + stats.no_memory_refusals,
            hot_key_per_mille,
            reads_per_s: rates.reads_per_s.round() as u64,
            writes_per_s: rates.writes_per_s.round() as u64,
        }
    }
}

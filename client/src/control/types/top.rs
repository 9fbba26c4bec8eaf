//! The JSON bodies about what tenants, extensions and tables use now.

use sandstorm_net::CodeTier;
use serde::{Deserialize, Serialize};

use super::DurationStats;

/// `GET /v1/top`: what each uses. Counters grow: two reports make rates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopReport {
    /// Time at which it was read, in milliseconds since 1970.
    pub at_ms: u64,
    /// Microseconds since the server started: it has restarted where this is less than before.
    pub uptime_us: u64,
    /// Number of workers, so of processors that are 100 % each.
    pub workers: u32,
    /// The tenants that were asked for.
    pub tenants: Vec<TenantUse>,
    /// The same of extensions.
    pub extensions: Vec<ExtensionUse>,
    /// The same of tables.
    pub tables: Vec<TableUse>,
}

/// What a tenant uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantUse {
    /// Its name.
    pub name: String,
    /// Its id, which a tenant that is made again under its name does not have.
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
    pub quota: QuotaUse,
    /// How long its requests took, of all kinds together; with buckets, as its parts have.
    pub latency: DurationStats,
    /// The part of it in which nothing was done for the request.
    pub waiting: DurationStats,
    /// The other part; of calls their CPU time.
    pub service: DurationStats,
    /// How long answers were sent, of some: the end of `service`; of calls it comes after `latency`.
    pub sending: DurationStats,
    /// What neighbours cost it, of the kind of its requests that they cost most; `None`: not known.
    pub isolation: Option<TenantIsolation>,
}

/// What neighbours cost a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantIsolation {
    /// The kind of the requests.
    pub class: String,
    /// 99 of a hundred took at most so many nanoseconds while others used little of the tenant's workers.
    pub quiet_p99_ns: u64,
    /// The same while others used much of them.
    pub beside_p99_ns: u64,
    /// The second over the first, in thousandths.
    pub ratio_per_mille: u64,
}

/// How much of a quota is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaUse {
    /// The quota's name; `table NAME`: the quota in bytes of this table.
    pub name: String,
    /// How much is used.
    pub used: u64,
    /// How much may be used.
    pub limit: u64,
}

/// What an extension uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtensionUse {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The version that runs now: all counters are of this version.
    pub version: u64,
    /// The tier that it runs in.
    pub tier: Option<CodeTier>,
    /// True if calls are refused.
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
    pub latency: DurationStats,
    /// The part of it in which nothing was computed.
    pub waiting: DurationStats,
    /// The CPU time.
    pub service: DurationStats,
    /// How long replies were sent, of some: it comes after `latency`.
    pub sending: DurationStats,
}

/// What a table uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableUse {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Its id, which a table that is made again under its name does not have.
    pub id: u64,
    /// `store` or `cache`.
    pub mode: String,
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

/// Which rows of [`TopReport`] to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopRows {
    /// All three kinds.
    #[default]
    All,
    /// Tenants alone.
    Tenants,
    /// Extensions alone.
    Extensions,
    /// Tables alone.
    Tables,
}

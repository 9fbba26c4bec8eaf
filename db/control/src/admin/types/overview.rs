//! The bodies of what the page shows.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    ExtensionSummaryResponse, HotSpotResponse, IsolationResponse, KillResponse, LatencyRowResponse, QuotaUseResponse,
    TableResponse, TenantResponse,
};
use crate::admin::finding::ServerFinding;
use crate::events::ServerEvent;

/// `GET /v1/caller`.
#[derive(Clone, Debug, Serialize)]
pub struct CallerResponse {
    /// What the token stands for: `operator`, `viewer`, `tenant` or `tenant-viewer`.
    pub role: &'static str,
    /// The tenant that is all it sees.
    pub tenant: Option<String>,
    /// When it ends by itself, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
}

/// `GET /v1/overview`: the server, or a tenant.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OverviewResponse {
    /// When it was read, in milliseconds since 1970: at most two seconds ago.
    pub at_ms: u64,
    /// The server's version.
    pub version: &'static str,
    /// Seconds since the server started.
    pub uptime_s: u64,
    /// Counters as in `GET /v1/stat`: of the server, or of the tenant.
    pub counters: BTreeMap<String, u64>,
    /// Microseconds that each worker was busy.
    pub workers: Vec<u64>,
    /// What is wrong, in an overview of the server.
    pub findings: Option<Vec<ServerFinding>>,
    /// How many tenants there are.
    pub tenants_in_all: u64,
    /// Tenants, those with most requests first.
    pub tenants: Vec<TenantRowResponse>,
    /// The tenant, if the overview is of one.
    pub tenant: Option<TenantResponse>,
    /// Its quotas and their use.
    pub quotas: Vec<OverviewQuotaResponse>,
    /// Its tables.
    pub tables: Vec<TableResponse>,
    /// How long its requests took.
    pub latency: Vec<LatencyRowResponse>,
    /// How many extensions there are.
    pub extensions_in_all: u64,
    /// Extensions, those with most CPU time first.
    pub extensions: Vec<ExtensionSummaryResponse>,
    /// The latest kills, the newest first.
    pub kills: Vec<KillResponse>,
    /// Keys that take much of their table's accesses now, without their bytes.
    pub hot: Vec<HotSpotResponse>,
    /// The latest events, the newest last.
    pub events: Vec<ServerEvent>,
}

/// A tenant among all.
#[derive(Clone, Debug, Serialize)]
pub struct TenantRowResponse {
    /// Its name.
    pub name: String,
    /// The worker that serves it.
    pub home_worker: u32,
    /// Operations received for it, over all protocols.
    pub requests: u64,
    /// Calls of its extensions that have ended.
    pub calls: u64,
    /// Those of them that the server ended.
    pub killed: u64,
    /// CPU time of its calls, nanoseconds.
    pub cpu_ns: u64,
    /// Operations refused because of a quota.
    pub over_quota: u64,
    /// Of a thousand of its datagrams, those that are dropped early now.
    pub dropped_early_per_mille: u64,
    /// Bytes of its records.
    pub record_bytes: u64,
    /// Extensions that are loaded.
    pub extensions: u64,
    /// Those of them whose calls are refused.
    pub suspended: u64,
    /// 99 of a hundred requests took at most so many nanoseconds, since the tenant was created; 0: not known.
    pub p99_ns: u64,
    /// The quota of which most is used, those of its tables included.
    pub fullest: Option<QuotaUseResponse>,
    /// What neighbours cost it, of the kind of its requests that they cost most; `null`: not known.
    pub isolation: Option<IsolationResponse>,
}

/// A quota and its use.
#[derive(Clone, Debug, Serialize)]
pub struct OverviewQuotaResponse {
    /// The quota.
    pub name: &'static str,
    /// What is used of it.
    pub used: u64,
    /// What may be used.
    pub limit: u64,
}

impl OverviewQuotaResponse {
    /// The part of it that is used, of one.
    pub fn ratio(&self) -> f64 {
        if self.limit == 0 { 0.0 } else { self.used as f64 / self.limit as f64 }
    }
}

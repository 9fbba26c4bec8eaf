//! The bodies that have the limits of an invocation.

use sandstorm_extension::{Budget, BudgetOverride};
use serde::{Deserialize, Serialize};

/// The budget of one invocation.
    pub budget: BudgetResponse,
    /// Its counters since it was first pushed.
    pub stats: ExtensionStatsResponse,
    /// Its versions, newest first; older ones are draining or gone.
    pub versions: Vec<VersionResponse>,
}

/// `GET /v1/extensions`: an extension among those of all tenants.
#[derive(Clone, Debug, Serialize)]
pub struct ExtensionSummaryResponse {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The version that runs now.
    pub version: u64,
    /// The tier that it runs in.
    pub tier: CodeTier,
    /// Whether calls are refused.
    pub suspended: bool,
    /// Calls a second that are admitted while they keep being killed; 0: no limit.
    pub slowed_to_per_s: u32,
    /// Its counters since it was first pushed.
    pub stats: ExtensionStatsResponse,
    /// Half of the calls of this version took at most so many nanoseconds, from arrival to answer.
    pub p50_ns: u64,
    /// 99 of a hundred of them.
    pub p99_ns: u64,
}

impl ExtensionSummaryResponse {
    /// The summary of an extension, with how long calls of its version took.
    pub fn of(tenant: &str, shown: ExtensionResponse, total: &DurationCounts) -> ExtensionSummaryResponse {
        let ExtensionResponse { name, version, tier, suspended, slowed_to_per_s, stats, .. } = shown;
        let [p50_ns, p99_ns] = [500_000, 990_000].map(|per_million| total.quantile_ns(per_million));
        let tenant = tenant.to_owned();
        ExtensionSummaryResponse { tenant, name, version, tier, suspended, slowed_to_per_s, stats, p50_ns, p99_ns }
    }
}

/// The budget of one invocation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BudgetResponse {
    /// CPU microseconds between two yields.
    pub slice_us: u64,
    /// CPU microseconds in all.
    pub total_us: u64,
    /// Bytes of memory.
    pub arena_bytes: u64,
    /// Bytes of the reply.
    pub reply_bytes: u64,
}

impl From<Budget> for BudgetResponse {
    fn from(budget: Budget) -> BudgetResponse {
        BudgetResponse {
            slice_us: budget.slice_us,
            total_us: budget.total_us,
            arena_bytes: budget.memory_bytes as u64,
            reply_bytes: budget.reply_bytes as u64,
        }
    }
}

/// `PUT /v1/tenants/{tenant}/extensions/{name}/budget`: for omitted fields the tenant's budget counts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeBudgetRequest {
    /// CPU microseconds between two yields.
    #[serde(default)]
    pub slice_us: Option<u64>,
    /// CPU microseconds in all.
    #[serde(default)]
    pub total_us: Option<u64>,
    /// Bytes of memory.
    #[serde(default)]
    pub arena_bytes: Option<usize>,
    /// Bytes of the reply.
    #[serde(default)]
    pub reply_bytes: Option<usize>,
}

impl From<ChangeBudgetRequest> for BudgetOverride {
    fn from(change: ChangeBudgetRequest) -> BudgetOverride {
        BudgetOverride {
            slice_us: change.slice_us,
            total_us: change.total_us,
            memory_bytes: change.arena_bytes,
            reply_bytes: change.reply_bytes,
        }
    }
}

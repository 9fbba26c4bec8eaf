//! The bodies that have the limits of an invocation.

use sandstorm_extension::{Budget, BudgetOverride};
use serde::{Deserialize, Serialize};

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

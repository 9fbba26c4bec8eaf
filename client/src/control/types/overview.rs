//! The JSON bodies about all tenants at once: their extensions, and which kills are asked for.

use sandstorm_net::CodeTier;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `GET /v1/extensions`: an extension among those of all tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtensionSummary {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The version that runs now.
    pub version: u64,
    /// The tier that it runs in.
    pub tier: Option<CodeTier>,
    /// True if calls are refused.
    pub suspended: bool,
    /// Calls a second that are admitted while they keep being killed; 0: no limit.
    pub slowed_to_per_s: u32,
    /// Its counters since it was first pushed.
    pub stats: ExtensionTotals,
    /// Half of the calls of this version took at most so many nanoseconds, from arrival to answer.
    pub p50_ns: u64,
    /// 99 of a hundred of them.
    pub p99_ns: u64,
}

/// Counters of an extension; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtensionTotals {
    /// Calls begun.
    pub invocations: u64,
    /// Calls that replied.
    pub ok: u64,
    /// Calls that returned an error.
    pub failed: u64,
    /// Calls that were ended.
    pub killed: u64,
    /// The same by cause; causes without any are left out.
    pub killed_by: BTreeMap<String, u64>,
    /// CPU time spent in it, in microseconds.
    pub cpu_us: u64,
    /// Transactions that were committed.
    pub commits: u64,
    /// Runs that were begun anew because the transaction met the writes of others.
    pub retries: u64,
    /// Calls that were answered `Conflict`, because it did each time.
    pub conflicts: u64,
}

/// The order of extensions, largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExtensionSort {
    /// By tenant and name.
    #[default]
    Name,
    /// By CPU time.
    Cpu,
    /// By the number of calls.
    Calls,
    /// By the number of kills.
    Kills,
    /// By the median of how long calls took.
    P50,
    /// By the 99th percentile.
    P99,
}

impl ExtensionSort {
    /// Its name in a request.
    pub fn name(self) -> &'static str {
        match self {
            ExtensionSort::Name => "name",
            ExtensionSort::Cpu => "cpu",
            ExtensionSort::Calls => "calls",
            ExtensionSort::Kills => "kills",
            ExtensionSort::P50 => "p50",
            ExtensionSort::P99 => "p99",
        }
    }
}

/// Which kills to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KillQuery {
    /// Those of this tenant.
    pub tenant: Option<String>,
    /// Those of extensions of this name.
    pub extension: Option<String>,
    /// Those of this cause; `notice`: measures of the server.
    pub cause: Option<String>,
    /// Those from this time on, in milliseconds since 1970.
    pub since_ms: u64,
    /// How many at most; `None`: the server's choice.
    pub limit: Option<usize>,
}

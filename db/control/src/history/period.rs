//! A period of the history, and what tenants used in it.

use serde::{Deserialize, Serialize};

/// What was used in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPeriod {
    /// Its end, in milliseconds since 1970.
    pub at_ms: u64,
    /// Its length in milliseconds.
    pub length_ms: u64,
    /// The whole server first, then the tenants that used most of it.
    pub rows: Vec<HistoryRow>,
}

/// What a tenant used in a period, or the whole server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRow {
    /// The tenant; `null`: the whole server.
    pub tenant: Option<String>,
    /// Its id: another tenant may have its name by now.
    pub tenant_id: u32,
    /// CPU time of its calls, microseconds.
    pub cpu_us: u64,
    /// Operations received.
    pub requests: u64,
    /// Those of them that were refused because of a quota.
    pub over_quota: u64,
    /// Calls that ended.
    pub calls: u64,
    /// Those of them that the server ended.
    pub killed: u64,
    /// Polls that ended by a switch, because they computed past their slice.
    pub switches: u64,
    /// The 99th percentile from arrival to answer of its worst second, nanoseconds; 0: not measured.
    pub p99_ns: u64,
    /// Bytes of its records and calls at the end, or when it last used much.
    pub memory_bytes: u64,
    /// Of a thousand of its datagrams, those that were dropped early when that was worst.
    pub throttled_per_mille: u64,
}

impl HistoryRow {
    /// Adds what was used later.
    pub(super) fn add(&mut self, later: &HistoryRow) {
        self.cpu_us += later.cpu_us;
        self.requests += later.requests;
        self.over_quota += later.over_quota;
        self.calls += later.calls;
        self.killed += later.killed;
        self.switches += later.switches;
        self.p99_ns = self.p99_ns.max(later.p99_ns);
        if later.memory_bytes > 0 {
            self.memory_bytes = later.memory_bytes;
        }
        self.throttled_per_mille = self.throttled_per_mille.max(later.throttled_per_mille);
    }

    /// Whether a later row is about the same tenant.
    pub(super) fn is_of(&self, later: &HistoryRow) -> bool {
        (self.tenant_id, &self.tenant) == (later.tenant_id, &later.tenant)
    }

    /// Whether nothing was used.
    pub(super) fn is_quiet(&self) -> bool {
        self.cpu_us + self.requests + self.over_quota + self.calls + self.throttled_per_mille == 0
    }
}

//! The JSON bodies of the history.

use serde::{Deserialize, Serialize};

/// `GET /v1/history`: what was used in the last minutes, day or month.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryReport {
    /// The periods that were asked for, oldest first.
    pub periods: Vec<PeriodUse>,
}

/// What was used in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeriodUse {
    /// Its end, in milliseconds since 1970.
    pub at_ms: u64,
    /// Its length in milliseconds.
    pub length_ms: u64,
    /// The whole server first, then the tenants that used most of it.
    pub rows: Vec<PeriodUseRow>,
}

/// What a tenant used in a period, or the whole server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeriodUseRow {
    /// The tenant; `None`: the whole server.
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

/// The lengths of periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeriodLength {
    /// Seconds, of the last two minutes.
    Seconds,
    /// Minutes, of the last day.
    #[default]
    Minutes,
    /// Hours, of the last month.
    Hours,
}

impl PeriodLength {
    /// Its name in a request.
    pub fn name(self) -> &'static str {
        match self {
            PeriodLength::Seconds => "seconds",
            PeriodLength::Minutes => "minutes",
            PeriodLength::Hours => "hours",
        }
    }
}

/// Which periods to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Rows of this tenant alone.
    pub tenant: Option<String>,
    /// The length of periods.
    pub by: PeriodLength,
    /// Periods that ended after this time, in milliseconds since 1970.
    pub since_ms: u64,
    /// How many at most, the latest; `None`: all.
    pub limit: Option<usize>,
}

//! The input of findings: numbers alone, so that a test can write any of them.

use std::collections::BTreeMap;

use crate::isolation::IsolationReading;

/// A reading of the server.
#[derive(Clone, Debug, Default)]
pub(in crate::admin) struct LiveReading {
    /// Seconds over which growth was counted.
    pub(super) seconds: f64,
    /// Counters of the server, by their names: their growth in that time.
    pub(super) growth: BTreeMap<String, u64>,
    /// Counters and gauges of the server now.
    pub(super) now: BTreeMap<String, u64>,
    /// The part of that time in which each worker was busy, of one.
    pub(super) busy: Vec<f64>,
    /// Tenants.
    pub(super) tenants: Vec<TenantPressure>,
    /// Extensions.
    pub(super) extensions: Vec<ExtensionState>,
    /// Tables.
    pub(super) tables: Vec<TableLoad>,
    /// Keys that take much of their table's accesses.
    pub(super) hot_keys: Vec<HotTableKey>,
    /// Why there is no builder.
    pub(super) no_builder: Option<String>,
    /// Pushes that may wait, all tenants together.
    pub(super) build_places: u64,
    /// Why changes cannot be written.
    pub(super) changes_refused: Option<String>,
    /// Whether changes survive a restart.
    pub(super) keeps_changes: bool,
    /// Why the log of records was closed.
    pub(super) log_failure: Option<String>,
    /// Certificates and tokens that end by themselves, and in how many seconds.
    pub(super) ends: Vec<(String, i64)>,
    /// Milliseconds by which the wall clock was set in that time.
    pub(super) clock_step_ms: i64,
    /// The machine.
    pub(super) machine: MachineState,
}

/// A tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct TenantPressure {
    pub(super) name: String,
    /// Quotas: name, use, limit.
    pub(super) quotas: Vec<(&'static str, u64, u64)>,
    /// Of a thousand of its datagrams, those that are dropped early.
    pub(super) dropped_early_per_mille: u64,
    /// Its quota of requests a second; 0: none.
    pub(super) requests_per_s: u64,
    /// Operations admitted in the time of the reading.
    pub(super) requests: u64,
    /// Operations refused by a quota in that time, and those of them by requests_per_s.
    pub(super) over_quota: u64,
    pub(super) over_rate: u64,
    /// Its home worker.
    pub(super) home_worker: u32,
    /// What neighbours cost it, if that is known.
    pub(super) isolation: Option<IsolationReading>,
}

impl TenantPressure {
    /// Operations that arrived, admitted or not.
    pub(super) fn sent(&self) -> u64 {
        self.requests + self.over_quota
    }
}

/// An extension.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtensionState {
    pub(super) tenant: String,
    pub(super) name: String,
    /// Why its calls are refused.
    pub(super) suspended: Option<String>,
    /// Calls a second to which it is slowed down; 0: not.
    pub(super) slowed_to_per_s: u32,
    /// Calls that were killed in the time of the reading, and the cause of most.
    pub(super) killed: u64,
    pub(super) cause: &'static str,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub(super) struct TableLoad {
    pub(super) tenant: String,
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) quota_bytes: u64,
    /// Of a thousand parts of its quota, those that are used; 0 unless its mode is store.
    pub(super) used_per_mille: u64,
    pub(super) records: u64,
    pub(super) slots: u64,
    pub(super) garbage_bytes: u64,
    /// Writes refused by its quota in the time of the reading.
    pub(super) refusals: u64,
}

/// A key that takes much of its table's accesses now.
#[derive(Clone, Debug, Default)]
pub(super) struct HotTableKey {
    pub(super) tenant: String,
    pub(super) table: String,
    pub(super) key_digest: String,
    /// Its part of the accesses.
    pub(super) share: f64,
    /// Accesses of the key a second.
    pub(super) per_s: f64,
}

/// The machine.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineState {
    /// The kernel's use of transparent huge pages: `always`, `madvise`, `never`; empty if it does not say.
    pub(super) huge_pages: String,
    pub(super) memory_bytes: u64,
    pub(super) available_bytes: u64,
    pub(super) open_files: u64,
    pub(super) open_files_max: u64,
    /// Bytes free where the state directory is, and bytes there; 0 if there is none.
    pub(super) disk_free_bytes: u64,
    pub(super) disk_bytes: u64,
}

impl LiveReading {
    /// The growth of a counter a second, over all values of its label.
    pub(super) fn per_s(&self, name: &str) -> f64 {
        if self.seconds > 0.0 { sum(&self.growth, name) as f64 / self.seconds } else { 0.0 }
    }

    /// So many in the time of the reading, a second.
    pub(super) fn a_second(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }

    /// A gauge, or a counter since the start.
    pub(super) fn gauge(&self, name: &str) -> u64 {
        sum(&self.now, name)
    }
}

/// The value of that name, or the sum over the values of its label.
fn sum(values: &BTreeMap<String, u64>, name: &str) -> u64 {
    let of_label = |found: &str| found.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    values.iter().filter(|(found, _)| of_label(found)).map(|(_, value)| value).sum()
}

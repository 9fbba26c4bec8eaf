//! The JSON body of an extension's counters.

use std::collections::BTreeMap;

use serde::Serialize;

use sandstorm_extension::InvocationTotals;
use sandstorm_metrics as metrics;

/// Counters of an extension.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExtensionStatsResponse {
    /// Calls begun.
    pub invocations: u64,
    /// Calls that replied.
    pub ok: u64,
    /// Calls that returned an error.
    pub failed: u64,
    /// Calls that were ended.
    pub killed: u64,
    /// Calls that were ended, by cause; causes without any are left out.
    pub killed_by: BTreeMap<&'static str, u64>,
    /// CPU time spent in it, in microseconds.
    pub cpu_us: u64,
    /// Transactions that were committed.
    pub commits: u64,
    /// Runs that were restarted because of a conflict with other transactions.
    pub retries: u64,
    /// Calls that were answered `Conflict`, because every run had a conflict.
    pub conflicts: u64,
}

impl ExtensionStatsResponse {
    /// Adds the counters of another version.
    pub fn add(&mut self, counts: &InvocationTotals) {
        self.invocations += counts.invocations;
        self.ok += counts.ok;
        self.failed += counts.failed;
        self.killed += counts.killed_total();
        self.cpu_us += counts.cpu_us;
        self.commits += counts.transactions.commits;
        self.retries += counts.transactions.retries;
        self.conflicts += counts.transactions.conflicts;
        for (cause, count) in metrics::KILL_CAUSES.iter().zip(counts.killed) {
            if count > 0 {
                *self.killed_by.entry(cause).or_default() += count;
            }
        }
    }
}

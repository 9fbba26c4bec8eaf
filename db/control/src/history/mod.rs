//! The use of the last minutes, day and month: by seconds, minutes and hours, in fixed memory; minutes and hours
//! outlive a restart.
//!
//! Each second the counters of all tenants are read. The tenants that used most of the period are kept by name, and all
//! together as the whole server.

mod layer;
mod period;

use std::path::Path;

use hashbrown::HashMap;
use parking_lot::Mutex;
use sandstorm_accounts::UsageTotals;
use sandstorm_catalog::{Directory, TenantView};
use sandstorm_metrics::histogram::DurationCounts;
use serde::Deserialize;

use self::layer::{HistoryLayer, choose};
pub use self::period::{HistoryPeriod, HistoryRow};
use crate::config::ConfigError;
use crate::json_lines::make_private_folder;
use crate::limits::{HISTORY_HOURS, HISTORY_MINUTES, HISTORY_SECONDS};

/// The folder of the files in the state directory.
const FOLDER: &str = "history";

/// The lengths of periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryResolution {
    /// The last two minutes.
    Seconds,
    /// The last day.
    #[default]
    Minutes,
    /// The last month.
    Hours,
}

/// The history: see the head of this file.
#[derive(Debug)]
pub struct UsageHistory(Mutex<HistoryState>);

#[derive(Debug)]
struct HistoryState {
    looked_ms: u64,
    /// The counters of each tenant when they were last read, with its serial number: another may have its id.
    before: HashMap<u32, (u64, UsageTotals)>,
    /// How long the requests took of those that used most in the last second.
    latencies: HashMap<u32, (u64, DurationCounts)>,
    seconds: HistoryLayer,
    minutes: HistoryLayer,
    hours: HistoryLayer,
}

impl UsageHistory {
    /// A history that begins now and is kept nowhere.
    pub fn in_memory() -> UsageHistory {
        UsageHistory(Mutex::new(HistoryState {
            looked_ms: 0,
            before: HashMap::new(),
            latencies: HashMap::new(),
            seconds: HistoryLayer::new(1_000, HISTORY_SECONDS),
            minutes: HistoryLayer::new(60_000, HISTORY_MINUTES),
            hours: HistoryLayer::new(3_600_000, HISTORY_HOURS),
        }))
    }

    /// The history of a state directory.
    ///
    /// # Errors
    /// One line: a file cannot be read.
    pub fn open(state: &Path) -> Result<UsageHistory, ConfigError> {
        let history = UsageHistory::in_memory();
        let Some(folder) = make_private_folder(state, FOLDER, "the history is") else { return Ok(history) };
        let mut state = history.0.lock();
        let kept = state.minutes.keep_in(&folder, "minutes").and_then(|()| state.hours.keep_in(&folder, "hours"));
        if kept.is_ok() {
            let HistoryState { minutes, hours, .. } = &mut *state;
            hours.fill_from(minutes);
        }
        drop(state);
        kept.map_err(|error| ConfigError::new(format!("the history in {}: {error}", folder.display())))?;
        Ok(history)
    }

    /// Reads the counters, if a second has passed.
    pub(crate) fn look(&self, directory: &Directory, now_ms: u64) {
        let mut state = self.0.lock();
        if now_ms.abs_diff(state.looked_ms) < 1_000 {
            return;
        }
        state.looked_ms = now_ms;
        state.read(directory, now_ms);
    }

    /// Reads the counters for the last time, and keeps what was used in the minute that the server does not end.
    pub(crate) fn end(&self, directory: &Directory, now_ms: u64) {
        let mut state = self.0.lock();
        state.read(directory, now_ms);
        state.minutes.end(now_ms);
    }

    /// The latest periods of this length that ended after `since_ms`, oldest first, at most `limit`.
    pub(crate) fn since(&self, resolution: HistoryResolution, since_ms: u64, limit: usize) -> Vec<HistoryPeriod> {
        let state = self.0.lock();
        let layer = match resolution {
            HistoryResolution::Seconds => &state.seconds,
            HistoryResolution::Minutes => &state.minutes,
            HistoryResolution::Hours => &state.hours,
        };
        layer.since(since_ms, limit).cloned().collect()
    }
}

impl HistoryState {
    fn read(&mut self, directory: &Directory, now_ms: u64) {
        let snapshot = directory.snapshot();
        let is_first = self.before.is_empty();
        let mut rows: HashMap<u32, HistoryRow> = HashMap::new();
        for view in snapshot.iter() {
            let (tenant, totals) = (&view.tenant, view.tenant.usage.totals());
            let before = self.before.insert(tenant.id, (tenant.serial, totals));
            let before = match before {
                Some((serial, before)) if serial == tenant.serial => before,
                // What it used before the server's first look belongs to no second.
                _ if is_first => totals,
                _ => UsageTotals::default(),
            };
            rows.insert(tenant.id, row_of(view, &before, &totals));
        }
        self.before.retain(|id, _| rows.contains_key(id));
        let mut latencies = HashMap::new();
        for id in choose(&rows) {
            let (Some(view), Some(row)) = (snapshot.tenant(id), rows.get_mut(&id)) else { continue };
            let mut counts = DurationCounts::default();
            view.tenant.usage.latencies().iter().for_each(|class| counts.add(&class.total));
            let before = self.latencies.get(&id).filter(|(serial, _)| *serial == view.tenant.serial);
            // Without an earlier reading the second is not known.
            row.p99_ns = before.map_or(0, |(_, before)| counts.since(before).quantile_ns(990_000));
            row.memory_bytes = memory_bytes(view);
            latencies.insert(id, (view.tenant.serial, counts));
        }
        self.latencies = latencies;
        for layer in [&mut self.seconds, &mut self.minutes, &mut self.hours] {
            layer.add(&rows, now_ms);
        }
    }
}

/// What a tenant used between two readings.
fn row_of(view: &TenantView, before: &UsageTotals, now: &UsageTotals) -> HistoryRow {
    let tenant = &view.tenant;
    HistoryRow {
        tenant: Some(tenant.name.clone()),
        tenant_id: tenant.id,
        cpu_us: now.cpu_ns.saturating_sub(before.cpu_ns) / 1000,
        requests: now.requests.saturating_sub(before.requests),
        over_quota: now.over_quota.saturating_sub(before.over_quota),
        calls: now.calls.saturating_sub(before.calls),
        killed: now.killed.saturating_sub(before.killed),
        switches: now.switches.saturating_sub(before.switches),
        p99_ns: 0,
        memory_bytes: 0,
        throttled_per_mille: tenant.usage.dropped_early_per_mille(),
    }
}

/// Bytes of a tenant's records and calls.
fn memory_bytes(view: &TenantView) -> u64 {
    let tables = view.tables.values().map(|entry| entry.table.stats());
    tables.map(|stats| stats.bytes + stats.garbage_bytes).sum::<u64>() + view.tenant.usage.invocation_memory_bytes()
}

#[cfg(test)]
mod tests {
    use sandstorm_catalog::NewTenant;
    use sandstorm_metrics::histogram::RequestClass;
    use sandstorm_store::Epochs;

    use super::*;

    #[test]
    fn what_a_server_used_before_it_stopped_is_there_after_its_start() {
        let state = tempfile::tempdir().unwrap();
        let directory = Directory::new(Epochs::new());
        directory.create_tenant(NewTenant::named("a")).unwrap();
        let history = UsageHistory::open(state.path()).unwrap();
        history.look(&directory, 10_000);
        directory.snapshot().by_name("a").unwrap().tenant.usage.worker(0).requests.add(30);
        history.end(&directory, 17_500);
        let again = UsageHistory::open(state.path()).unwrap();
        for resolution in [HistoryResolution::Minutes, HistoryResolution::Hours] {
            let periods = again.since(resolution, 0, 100);
            let shown: Vec<_> = periods.iter().map(|one| (one.at_ms, one.length_ms, one.rows[0].requests)).collect();
            assert_eq!(shown, [(17_500, 8_500, 30)], "{resolution:?}");
        }
    }

    #[test]
    fn each_second_has_what_was_used_in_it_and_no_more() {
        let directory = Directory::new(Epochs::new());
        directory.create_tenant(NewTenant::named("a")).unwrap();
        let usage = |name: &str| std::sync::Arc::clone(&directory.snapshot().by_name(name).unwrap().tenant.usage);
        let history = UsageHistory::in_memory();
        let work = |requests: u64, duration_ns: u64| {
            let usage = usage("a");
            usage.worker(0).requests.add(requests);
            usage.worker(0).invocation_cpu_ns.add(3_000_000);
            usage.latency(0).of(RequestClass::Get).record(0, duration_ns, requests);
        };
        work(1_000, 5_000_000);
        history.look(&directory, 10_000);
        work(10, 20_000);
        history.look(&directory, 11_000);
        history.look(&directory, 11_500);
        work(20, 80_000);
        history.look(&directory, 12_000);
        // A second without anything, then another tenant of that name.
        history.look(&directory, 13_000);
        directory.delete_tenant("a").unwrap();
        directory.create_tenant(NewTenant::named("a")).unwrap();
        usage("a").worker(0).requests.add(4);
        history.look(&directory, 14_000);
        let seconds = history.since(HistoryResolution::Seconds, 0, 100);
        let rows: Vec<_> = seconds.iter().map(|one| (one.at_ms, one.rows[0].requests, one.rows.len())).collect();
        assert_eq!(rows, [(10_000, 0, 1), (11_000, 10, 2), (12_000, 20, 2), (13_000, 0, 1), (14_000, 4, 2)]);
        let of_a = &seconds[2].rows[1];
        assert_eq!((of_a.tenant.as_deref(), of_a.cpu_us), (Some("a"), 3_000));
        assert!(of_a.p99_ns.abs_diff(80_000) < 80_000 / 50, "of that second alone: {of_a:?}");
        assert_eq!(history.since(HistoryResolution::Seconds, 12_000, 1).len(), 1);
        assert_eq!(history.since(HistoryResolution::Minutes, 0, 9), [], "a minute is not over");
    }
}

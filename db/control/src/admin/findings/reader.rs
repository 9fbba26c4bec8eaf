//! Reads the input of findings from the running server. Growth is counted from one of two samples, which are taken from
//! time to time: so a reading does not wait.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::reading::{ExtensionState, HotTableKey, LiveReading, MachineState, TableLoad, TenantPressure};
use crate::admin::hot::hot_spots;
use crate::admin::quota_use::{quota_uses, table_used_per_mille};
use crate::admin::stat::{busy_us, server_counters};
use crate::admin::types::HotSpotResponse;
use crate::admin::{ControlState, MAX_PUSHES, now_ms};
use crate::limits::{HOT_KEYS, LIVE_SAMPLE_INTERVAL};
use sandstorm_catalog::TenantView;
use sandstorm_metrics::KILL_CAUSES;

/// Operations of a tenant: admitted, refused by a quota, and those of them by requests_per_s.
#[derive(Clone, Copy, Debug, Default)]
struct TenantCounts {
    requests: u64,
    over_quota: u64,
    over_rate: u64,
}

/// Counters at one moment.
#[derive(Clone, Debug)]
struct LiveSample {
    at: Instant,
    wall_ms: u64,
    counters: BTreeMap<String, u64>,
    busy_us: Vec<u64>,
    usage: HashMap<u32, TenantCounts>,
    killed: HashMap<(u32, String), Vec<u64>>,
    /// Writes that tables have refused, by the ids of tenant and table.
    refusals: HashMap<(u32, u64), u64>,
}

/// The two latest samples, the older first.
#[derive(Default)]
pub(in crate::admin) struct LiveSamples(Mutex<Option<(LiveSample, LiveSample)>>);

impl LiveSamples {
    /// Takes a sample, if the last one is old enough.
    pub(in crate::admin) fn look(&self, control: &ControlState) {
        let mut samples = self.0.lock();
        match &*samples {
            Some((_, newer)) if newer.at.elapsed() < LIVE_SAMPLE_INTERVAL => {}
            Some((_, newer)) => *samples = Some((newer.clone(), sample(control))),
            None => {
                let first = sample(control);
                *samples = Some((first.clone(), first));
            }
        }
    }

    fn older(&self) -> Option<LiveSample> {
        self.0.lock().as_ref().map(|(older, _)| older.clone())
    }
}

impl std::fmt::Debug for LiveSamples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LiveSamples(..)")
    }
}

fn sample(control: &ControlState) -> LiveSample {
    let snapshot = control.directory.snapshot();
    let mut sample = LiveSample {
        at: Instant::now(),
        wall_ms: now_ms(),
        counters: server_counters(control),
        busy_us: busy_us(&control.metrics),
        usage: HashMap::new(),
        killed: HashMap::new(),
        refusals: HashMap::new(),
    };
    for view in snapshot.iter() {
        sample.usage.insert(view.tenant.id, tenant_counts(view));
        for extension in view.extensions.values() {
            let key = (view.tenant.id, extension.name.to_string());
            sample.killed.insert(key, extension.stats.read().killed.to_vec());
        }
        for entry in view.tables.values() {
            sample.refusals.insert((view.tenant.id, entry.id), entry.table.stats().refusals);
        }
    }
    sample
}

fn tenant_counts(view: &TenantView) -> TenantCounts {
    let totals = view.tenant.usage.totals();
    TenantCounts {
        requests: totals.requests + totals.connection_records,
        over_quota: totals.over_quota,
        over_rate: view.tenant.usage.over_rate(),
    }
}

/// A reading of now.
pub(in crate::admin) fn read(control: &ControlState) -> LiveReading {
    let (now, before) = (sample(control), control.live_samples.older());
    let before = before.unwrap_or_else(|| now.clone());
    let elapsed = now.at.duration_since(before.at);
    let seconds = elapsed.as_secs_f64();
    let snapshot = control.directory.snapshot();
    let views: Vec<&Arc<TenantView>> = snapshot.iter().collect();
    let grown = |(name, value): (&String, &u64)| {
        (name.clone(), value.saturating_sub(before.counters.get(name).copied().unwrap_or(0)))
    };
    let busy = now
        .busy_us
        .iter()
        .zip(&before.busy_us)
        .map(|(now, before)| if seconds > 0.0 { now.saturating_sub(*before) as f64 / 1e6 / seconds } else { 0.0 });
    let log = control.directory.change_log();
    LiveReading {
        seconds,
        growth: now.counters.iter().map(grown).collect(),
        busy: busy.collect(),
        tenants: views.iter().map(|view| tenant(control, view, &now, &before)).collect(),
        extensions: views.iter().flat_map(|view| extensions(control, view, &before)).collect(),
        tables: views.iter().flat_map(|view| tables(view, &before)).collect(),
        hot_keys: hot_keys(control, &views),
        no_builder: control.artifact_sources.builder.as_ref().err().cloned(),
        build_places: MAX_PUSHES as u64,
        changes_refused: control.directory.not_kept().map(|(_, why)| why),
        keeps_changes: control.directory.has_journal(),
        log_failure: log.as_ref().and_then(|log| log.failure().map(ToString::to_string)),
        ends: ends(control),
        clock_step_ms: clock_step_ms(&now, &before, elapsed),
        machine: machine(control.operator.state_dir()),
        now: now.counters,
    }
}

fn hot_keys(control: &ControlState, views: &[&Arc<TenantView>]) -> Vec<HotTableKey> {
    let views: Vec<Arc<TenantView>> = views.iter().map(|view| Arc::clone(view)).collect();
    let of = |spot: HotSpotResponse| {
        let HotSpotResponse { tenant, table, key_digest, share, per_s, .. } = spot;
        HotTableKey { tenant, table, key_digest, share, per_s }
    };
    hot_spots(control, &views, HOT_KEYS, false).into_iter().map(of).collect()
}

fn clock_step_ms(now: &LiveSample, before: &LiveSample, elapsed: Duration) -> i64 {
    let by_wall = i64::try_from(now.wall_ms).unwrap_or(0) - i64::try_from(before.wall_ms).unwrap_or(0);
    by_wall - i64::try_from(elapsed.as_millis()).unwrap_or(0)
}

fn tenant(control: &ControlState, view: &TenantView, now: &LiveSample, before: &LiveSample) -> TenantPressure {
    let id = view.tenant.id;
    let counts = now.usage.get(&id).copied().unwrap_or_default();
    // A tenant that was made since has no earlier count.
    let since = before.usage.get(&id).copied().unwrap_or(counts);
    TenantPressure {
        name: view.tenant.name.clone(),
        quotas: quota_uses(view).into_iter().map(|quota| (quota.name, quota.used, quota.limit)).collect(),
        dropped_early_per_mille: view.tenant.usage.dropped_early_per_mille(),
        requests_per_s: u64::from(view.tenant.quotas.requests_per_s),
        requests: counts.requests.saturating_sub(since.requests),
        over_quota: counts.over_quota.saturating_sub(since.over_quota),
        over_rate: counts.over_rate.saturating_sub(since.over_rate),
        home_worker: view.tenant.home_worker,
        isolation: control.isolation.worst_of(id),
    }
}

fn extensions(control: &ControlState, view: &TenantView, before: &LiveSample) -> Vec<ExtensionState> {
    let of = |extension: &Arc<sandstorm_extension::LoadedExtension>| {
        let killed = extension.stats.read().killed;
        let earlier = before.killed.get(&(view.tenant.id, extension.name.to_string()));
        let grown: Vec<u64> = killed
            .iter()
            .enumerate()
            // A new version counts from none.
            .map(|(at, now)| now.saturating_sub(earlier.and_then(|counts| counts.get(at)).copied().unwrap_or(0)))
            .collect();
        let most = grown.iter().enumerate().max_by_key(|(_, count)| **count).map_or(0, |(at, _)| at);
        let shown = control.history.show(view, extension);
        ExtensionState {
            tenant: view.tenant.name.clone(),
            name: extension.name.to_string(),
            suspended: view.suspension(&extension.name).map(|suspension| suspension.text.to_string()),
            slowed_to_per_s: shown.slowed_to_per_s,
            killed: grown.iter().sum(),
            cause: KILL_CAUSES.get(most).copied().unwrap_or("unknown"),
        }
    };
    view.extensions.values().map(of).collect()
}

fn tables(view: &TenantView, before: &LiveSample) -> Vec<TableLoad> {
    let of = |entry: &Arc<sandstorm_catalog::TableEntry>| {
        let stats = entry.table.stats();
        let refusals = before.refusals.get(&(view.tenant.id, entry.id)).copied().unwrap_or(stats.refusals);
        TableLoad {
            tenant: view.tenant.name.clone(),
            name: entry.name().to_string(),
            bytes: stats.bytes,
            quota_bytes: entry.quota_bytes(),
            used_per_mille: table_used_per_mille(entry),
            records: stats.records,
            slots: stats.capacity,
            garbage_bytes: stats.garbage_bytes,
            refusals: stats.refusals.saturating_sub(refusals),
        }
    };
    view.tables.values().map(of).collect()
}

/// Certificates and tokens that end, and in how many seconds.
fn ends(control: &ControlState) -> Vec<(String, i64)> {
    let now_s = i64::try_from(now_ms() / 1_000).unwrap_or(0);
    let tokens = control.access_tokens.listed(None).into_iter().filter_map(|token| {
        let whose = token.tenant.as_ref().map_or_else(String::new, |tenant| format!(" of tenant {}", tenant.name));
        let ends_s = i64::try_from(token.expires_ms? / 1_000).ok()?;
        Some((format!("The token {}{whose}", token.name), ends_s - now_s))
    });
    let certificate = control.certificate.get().and_then(|identity| identity.not_after_s());
    let certificate = certificate.map(|ends_s| ("The control port's certificate".to_owned(), ends_s - now_s));
    certificate.into_iter().chain(tokens).collect()
}

/// A number of bytes that the kernel tells of memory; 0 where it tells none.
fn memory_bytes(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Bytes of memory of the machine, or of what this process may use of it; 0 where the kernel tells none.
pub(in crate::admin) fn machine_memory_bytes() -> u64 {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let of_machine = memory_bytes(&text("/proc/meminfo"), "MemTotal");
    text("/sys/fs/cgroup/memory.max").trim().parse().map_or(of_machine, |limit: u64| limit.min(of_machine))
}

/// The machine, as far as the kernel tells; its disk, where the state directory is.
fn machine(state: Option<&Path>) -> MachineState {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let memory = text("/proc/meminfo");
    let bytes = |name: &str| memory_bytes(&memory, name);
    let huge_pages = text("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = huge_pages.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(word, _)| word);
    let disk = state.and_then(|state| rustix::fs::statvfs(state).ok());
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(0);
    MachineState {
        huge_pages: chosen.to_owned(),
        memory_bytes: bytes("MemTotal"),
        available_bytes: bytes("MemAvailable"),
        // The kernel tells their number as the folder's size; an older one (before 6.2) tells none.
        open_files: fs::metadata("/proc/self/fd").map_or(0, |files| files.len()),
        open_files_max: files,
        disk_free_bytes: disk.as_ref().map_or(0, |disk| disk.f_bavail * disk.f_frsize),
        disk_bytes: disk.as_ref().map_or(0, |disk| disk.f_blocks * disk.f_frsize),
    }
}

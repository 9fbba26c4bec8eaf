//! Counters and kills as the control port shows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::types::{Kill, Stat};
use super::{Control, now_ms};
use sandstorm_metrics::text::{Labelled, flat, prometheus as text};
use sandstorm_metrics::{CONTROL, DeviceState, Metrics, Reading, memory_values, readings};

use super::totals::server_values;
use sandstorm_catalog::TenantView;

/// Kills that one answer holds if it is not said how many.
const KILLS: usize = 100;

/// The newest kills of these tenants.
pub(super) fn kills<'a>(tenants: impl Iterator<Item = &'a Arc<TenantView>>, limit: Option<usize>) -> Vec<Kill> {
    let of = |view: &'a Arc<TenantView>| {
        let name = view.tenant.name.as_str();
        let usage = &view.tenant.usage;
        let notices = usage.notices().into_iter().map(move |notice| Kill::of_notice(name, notice));
        notices.chain(usage.kills().into_iter().map(move |kill| Kill::of(name, kill)))
    };
    let mut kills: Vec<Kill> = tenants.flat_map(of).collect();
    kills.sort_by_key(|kill| std::cmp::Reverse(kill.at_ms));
    kills.truncate(limit.unwrap_or(KILLS));
    kills
}

/// The whole server's counters.
pub(super) fn server(control: &Control) -> Stat {
    let mut counters: BTreeMap<String, u64> = flat(&control.metrics.read()).collect();
    counters.extend(flat(&gauges(control)));
    let snapshot = control.directory.snapshot();
    let tenants = snapshot.iter().map(|view| (view.tenant.name.clone(), tenant_counters(view))).collect();
    Stat { at_ms: now_ms(), counters, workers: workers(&control.metrics), tenants }
}

/// One tenant's counters.
pub(super) fn tenant(view: &TenantView) -> Stat {
    Stat { at_ms: now_ms(), counters: tenant_counters(view), workers: Vec::new(), tenants: BTreeMap::new() }
}

/// Counters worker by worker.
pub(super) fn workers(metrics: &Metrics) -> Vec<BTreeMap<String, u64>> {
    (0..metrics.workers()).map(|worker| flat(&metrics.read_worker(worker)).collect()).collect()
}

/// The text that Prometheus scrapes.
pub(super) fn prometheus(control: &Control) -> String {
    let mut groups = vec![Labelled { labels: Vec::new(), readings: gauges(control) }];
    for worker in 0..control.metrics.workers() {
        let readings = control.metrics.read_worker(worker);
        groups.push(Labelled { labels: vec![("worker", worker.to_string())], readings });
    }
    for view in control.directory.snapshot().sorted() {
        let readings = view.tenant.usage.read();
        groups.push(Labelled { labels: vec![("tenant", view.tenant.name.clone())], readings });
    }
    text(&groups)
}

fn gauges(control: &Control) -> Vec<Reading> {
    let mut all = server_values(control.metrics.uptime_s() as u64, &control.directory);
    all.extend(memory_values());
    let counts = control.door.counts();
    let counted =
        [&counts.wrong_tokens, &counts.crowded, &counts.shed, &counts.too_slow, &counts.not_tls, &counts.handshakes]
            .map(read);
    all.extend(control.metrics.device().iter().flat_map(DeviceState::readings));
    all.extend(readings(CONTROL, counted.into_iter().map(|count| vec![count]).collect()));
    all
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

fn tenant_counters(view: &TenantView) -> BTreeMap<String, u64> {
    let used = view.used(now_ms()).into_iter().map(|(name, used)| (format!("tenant_used.{name}"), used));
    flat(&view.tenant.usage.read()).chain(used).collect()
}

//! Counters and kills as the control port shows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::types::{KillResponse, StatResponse};
use super::{ControlState, now_ms};
use sandstorm_metrics::text::flat;
use sandstorm_metrics::{
    CONTROL_METRICS, DeviceState, KILL_CAUSES, MetricReading, ServerMetrics, memory_readings, readings,
};

use super::series;
use super::totals::server_readings;
use sandstorm_catalog::TenantView;

/// Which kills are asked for.
pub(super) struct KillFilter {
    /// Those of extensions of this name.
    pub(super) extension: Option<String>,
    /// Those of this cause.
    pub(super) cause: Option<String>,
    /// Measures of the server alone, or kills alone; `None`: both.
    pub(super) notices: Option<bool>,
    /// Those from this time on, in milliseconds since 1970.
    pub(super) since_ms: u64,
}

impl KillFilter {
    fn takes(&self, kill: &KillResponse) -> bool {
        kill.at_ms >= self.since_ms
            && self.extension.as_ref().is_none_or(|extension| *extension == kill.extension)
            && self.cause.as_ref().is_none_or(|cause| *cause == kill.cause)
    }
}

/// The newest kills of these tenants, at most `limit`; those of earlier runs of the server, too.
pub(super) fn recent_kills<'a>(
    control: &ControlState,
    tenants: impl Iterator<Item = &'a Arc<TenantView>>,
    filter: &KillFilter,
    limit: usize,
) -> Vec<KillResponse> {
    let of = |view: &'a Arc<TenantView>| {
        let name = view.tenant.name.as_str();
        let usage = &view.tenant.usage;
        let (notices, kills) = match filter.notices {
            Some(true) => (usage.policy_events(), Vec::new()),
            Some(false) => (Vec::new(), usage.kills()),
            None => (usage.policy_events(), usage.kills()),
        };
        let is_notice = |kill: &KillResponse| !KILL_CAUSES.contains(&&*kill.cause);
        let wants = move |kill: &KillResponse| filter.notices.is_none_or(|notices| notices == is_notice(kill));
        let earlier = control.incidents.kills_of(view).into_iter().filter(wants);
        let notices = notices.into_iter().map(move |notice| KillResponse::from_notice(name, notice));
        earlier.chain(notices).chain(kills.into_iter().map(move |kill| KillResponse::of(name, kill)))
    };
    let mut kills: Vec<KillResponse> = tenants.flat_map(of).filter(|kill| filter.takes(kill)).collect();
    kills.sort_by_key(|kill| std::cmp::Reverse(kill.at_ms));
    kills.truncate(limit);
    kills
}

/// The whole server's counters.
pub(super) fn server_stats(control: &ControlState) -> StatResponse {
    let counters = server_counters(control);
    let snapshot = control.directory.snapshot();
    let tenants = snapshot.iter().map(|view| (view.tenant.name.clone(), tenant_counters(view))).collect();
    StatResponse { at_ms: now_ms(), counters, workers: worker_counters(&control.metrics), tenants }
}

/// The whole server's counters, by their names.
pub(super) fn server_counters(control: &ControlState) -> BTreeMap<String, u64> {
    flat(&control.metrics.read()).chain(flat(&server_gauges(control))).collect()
}

/// One tenant's counters.
pub(super) fn tenant_stats(view: &TenantView) -> StatResponse {
    StatResponse { at_ms: now_ms(), counters: tenant_counters(view), workers: Vec::new(), tenants: BTreeMap::new() }
}

/// Counters worker by worker.
pub(super) fn worker_counters(metrics: &ServerMetrics) -> Vec<BTreeMap<String, u64>> {
    (0..metrics.workers()).map(|worker| flat(&metrics.read_worker(worker)).collect()).collect()
}

/// Microseconds that each worker was busy.
pub(super) fn busy_us(metrics: &ServerMetrics) -> Vec<u64> {
    let of = |worker: &BTreeMap<String, u64>| worker.get("busy_us").copied().unwrap_or(0);
    worker_counters(metrics).iter().map(of).collect()
}

/// The readings of the server as a whole, but for its workers.
pub(super) fn server_gauges(control: &ControlState) -> Vec<MetricReading> {
    let mut all = server_readings(control.metrics.uptime_s() as u64, &control.directory);
    all.extend(memory_readings());
    let counts = control.limiter.counts();
    let counted =
        [&counts.wrong_tokens, &counts.crowded, &counts.shed, &counts.too_slow, &counts.not_tls, &counts.handshakes]
            .map(load_counter);
    let counted = counted.into_iter().chain([control.events.held_back()]);
    all.extend(control.metrics.device().iter().flat_map(DeviceState::readings));
    all.extend(series::server_readings(control));
    all.extend(readings(CONTROL_METRICS, counted.map(|count| vec![count]).collect()));
    all
}

fn load_counter(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

pub(super) fn tenant_counters(view: &TenantView) -> BTreeMap<String, u64> {
    let used = view.used(now_ms()).into_iter().map(|(name, used)| (format!("tenant_used.{name}"), used));
    flat(&view.tenant.usage.read()).chain(used).collect()
}

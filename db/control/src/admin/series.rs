//! Readings for Prometheus of what workers do not count: extensions, tables, quotas, the builder, the disk. The number
//! of series is bounded: the extensions with most CPU time, the tables with most bytes, and the quotas of the tenants
//! that are nearest to one. Those with an alert rule are added: a suspended extension uses no CPU time, and a full
//! table may be small.

use std::cmp::Reverse;
use std::sync::Arc;

use super::ControlState;
use super::extension_memory::extension_memory_bytes;
use super::quota_use::{quota_uses_and_rates, table_used_per_mille};
use super::scrub::scrub_readings;
use super::types::OverviewQuotaResponse;
use crate::hot_keys::HotSpot;
use crate::isolation::IsolationReading;
use crate::limits::{HOT_KEYS_MAX, METRIC_SERIES_IN_TROUBLE, NEARLY_USED_PER_MILLE, QUOTAS_FILLED_BY_HAND};
use sandstorm_catalog::{TableEntry, TenantView};
use sandstorm_extension::LoadedExtension;
use sandstorm_metrics::histogram::REQUEST_CLASSES;
use sandstorm_metrics::latency::ExtensionLatency;
use sandstorm_metrics::series::{
    BYTE_RATE_QUOTAS, BYTES_QUOTAS, NUMBER_QUOTAS, RATE_QUOTAS, TIME_QUOTAS, USED_BYTES_QUOTAS, USED_NUMBER_QUOTAS,
};
use sandstorm_metrics::text::LabelledReadings;
use sandstorm_metrics::{
    BUILD_METRICS, EXTENSION_METRICS, HOT_KEY_METRICS, ISOLATION_METRICS, MetricReading, PERSISTENCE_METRICS,
    QUOTA_METRICS, SPILL_METRICS, TABLE_METRICS, TENANT_USE_METRICS, USED_QUOTAS, WATCHDOG_METRICS, readings,
};
use sandstorm_store::TableStats;

/// The readings of the builder, the watchdog and the disk. They are not for the control port's thread: those of copies
/// of logs wait for a disk.
pub(super) fn server_readings(control: &ControlState) -> Vec<MetricReading> {
    let (running, waiting) = control.queue.load();
    let builds = vec![
        vec![u64::from(control.artifact_sources.builder.is_ok())],
        vec![running as u64],
        vec![waiting as u64],
        control.builds.by_result(),
        vec![control.builds.durations().building.sum_ns / 1_000],
    ];
    let watched = control.metrics.watchdog();
    let watchdog = [watched.looks, watched.requests, watched.late].map(|count| vec![count]).to_vec();
    let log = control.directory.change_log();
    let pending = log.as_ref().map_or(0, |log| log.end().saturating_sub(log.durable()));
    let slots = control.directory.slots();
    let kept = [
        u64::from(control.directory.not_kept().is_some()),
        u64::from(log.as_ref().is_some_and(|log| log.failure().is_some())),
        pending,
        log.as_ref().map_or(0, |log| log.bytes_since_checkpoint()),
        u64::from(slots.is_some_and(|slots| slots.trouble().is_some())),
        slots.map_or(0, |slots| slots.map().epoch),
    ];
    let kept = kept.into_iter().chain(copies_readings(control)).chain(scrub_readings(control));
    let kept = kept.map(|value| vec![value]).collect();
    let spilled = spill_counts(control).map(|value| vec![value]).to_vec();
    [
        readings(PERSISTENCE_METRICS, kept),
        readings(SPILL_METRICS, spilled),
        readings(BUILD_METRICS, builds),
        readings(WATCHDOG_METRICS, watchdog),
    ]
    .concat()
}

/// What there is of copies of logs, in the order of the series. It waits for writes to the copies that are here.
fn copies_readings(control: &ControlState) -> [u64; 11] {
    let Some(part) = control.moves.as_ref().map(|coordinator| coordinator.copies_view()) else { return [0; 11] };
    let status = part.status();
    let needed = || status.copies.iter().filter(|copy| copy.is_needed);
    let confirmed = needed().filter(|copy| copy.confirms()).count();
    let behind = needed().map(|copy| copy.behind).max().unwrap_or(0);
    let kept = part.copy_store().map(|copy_store| copy_store.list()).unwrap_or_default();
    let without_successor = part.suspected().iter().filter(|one| one.needs_operator).count();
    let [by_itself, by_command] = part.places_taken();
    [
        if status.is_on { status.wanted as u64 } else { 0 },
        confirmed as u64,
        status.generation,
        behind,
        u64::from(status.is_stalled),
        kept.len() as u64,
        kept.iter().filter(|copy| copy.is_sealed).count() as u64,
        kept.iter().map(|copy| copy.bytes).sum(),
        without_successor as u64,
        by_itself,
        by_command,
    ]
}

/// The counts of all tables of mode `spill` together, in the order of [`SPILL_METRICS`].
fn spill_counts(control: &ControlState) -> [u64; SPILL_METRICS.len()] {
    let snapshot = control.directory.snapshot();
    let tables = snapshot.iter().flat_map(|view| view.tables.values());
    let mut sums = [0; SPILL_METRICS.len()];
    for stats in tables.filter_map(|entry| entry.table.spill_stats()) {
        let counts = [
            stats.cold_records,
            stats.file_bytes,
            u64::from(stats.failure.is_some()),
            stats.reads,
            stats.read_bytes,
            stats.read_us,
            stats.read_errors,
            stats.waits,
            stats.held_by_quota,
            stats.spilled,
            stats.written_bytes,
            stats.write_errors,
            stats.refused_by_quota,
        ];
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    sums
}

/// The reading of what a tenant uses of the workers' time.
pub(super) fn tenant_use_readings(control: &ControlState, view: &TenantView) -> Vec<MetricReading> {
    let plain_us = control.tenant_use.of(view).plain_cpu_ns / 1_000;
    readings(TENANT_USE_METRICS, vec![vec![plain_us]])
}

/// The readings of the quotas of the tenants that have nearly used one, and of the others those that are nearest to
/// one.
pub(super) fn quota_readings(control: &ControlState, most: usize) -> Vec<LabelledReadings> {
    let snapshot = control.directory.snapshot();
    let mut all: Vec<_> = snapshot
        .iter()
        .map(|view| (quota_uses_and_rates(control, view), view))
        .map(|(uses, view)| (urgency(&uses), uses, view))
        .collect();
    all.sort_by_key(|(urgency, _, view)| (Reverse(*urgency), view.tenant.id));
    let all = chosen(all, most, |((_, nearest), ..)| *nearest >= NEARLY_USED_PER_MILLE);
    all.into_iter().map(|(_, uses, view)| quota_readings_of(view, &uses)).collect()
}

/// Of a thousand parts of a quota, those that are used.
fn used_per_mille(quota: &OverviewQuotaResponse) -> u64 {
    (quota.ratio() * 1_000.0).round() as u64
}

/// How near a tenant is to a quota, of a thousand parts: to the nearest one that fills by use, and to the nearest of
/// all. One that has all tables or extensions that it may have is in order for years; one whose memory is full is not.
fn urgency(uses: &[OverviewQuotaResponse]) -> (u64, u64) {
    let nearest = |uses: &mut dyn Iterator<Item = &OverviewQuotaResponse>| uses.map(used_per_mille).max().unwrap_or(0);
    let fills_by_use = |quota: &&OverviewQuotaResponse| !QUOTAS_FILLED_BY_HAND.contains(&quota.name);
    (nearest(&mut uses.iter().filter(fills_by_use)), nearest(&mut uses.iter()))
}

/// The readings of a tenant's quotas.
fn quota_readings_of(view: &TenantView, uses: &[OverviewQuotaResponse]) -> LabelledReadings {
    let limits = view.tenant.quotas.list();
    let of = |name: &str| uses.iter().find(|quota| quota.name == name);
    let used = |names: &[&str]| names.iter().map(|name| of(name).map_or(0, |quota| quota.used)).collect();
    let limit = |name: &&str| limits.iter().find(|(quota, _)| quota == name).map_or(0, |(_, limit)| *limit);
    let limits_of = |names: &[&str]| names.iter().map(limit).collect();
    let us = |name: &&str| limit(name).saturating_mul(if name.ends_with("_s") { 1_000_000 } else { 1 });
    let quotas = vec![
        USED_QUOTAS.iter().map(|name| of(name).map_or(0, used_per_mille)).collect(),
        used(USED_NUMBER_QUOTAS),
        limits_of(NUMBER_QUOTAS),
        used(USED_BYTES_QUOTAS),
        limits_of(BYTES_QUOTAS),
        used(RATE_QUOTAS),
        limits_of(RATE_QUOTAS),
        used(BYTE_RATE_QUOTAS),
        limits_of(BYTE_RATE_QUOTAS),
        TIME_QUOTAS.iter().map(us).collect(),
    ];
    let labels = vec![("tenant", view.tenant.name.clone())];
    LabelledReadings { labels, readings: readings(QUOTA_METRICS, quotas) }
}

/// The first of those in trouble, and the first `most` of the others, among which are those in trouble behind these.
fn chosen<T>(all: Vec<T>, most: usize, is_in_trouble: impl Fn(&T) -> bool) -> Vec<T> {
    let (mut chosen, others): (Vec<T>, Vec<T>) = all.into_iter().partition(is_in_trouble);
    let behind = chosen.split_off(chosen.len().min(METRIC_SERIES_IN_TROUBLE));
    chosen.extend(behind.into_iter().chain(others).take(most));
    chosen
}

/// The extensions that are suspended or slowed down, and the others with most CPU time.
pub(super) fn shown_extensions(control: &ControlState, most: usize) -> Vec<(Arc<TenantView>, Arc<LoadedExtension>)> {
    let snapshot = control.directory.snapshot();
    let mut all: Vec<_> = snapshot
        .iter()
        .flat_map(|view| view.extensions.values().map(move |extension| (view, extension)))
        .map(|(view, extension)| (extension.stats.read().cpu_us, view, extension))
        .collect();
    all.sort_by_key(|(cpu_us, view, extension)| (Reverse(*cpu_us), view.tenant.id, extension.name.to_string()));
    let all = chosen(all, most, |(_, view, extension)| {
        view.is_suspended(&extension.name) || extension.throttle.calls_per_s() > 0
    });
    all.into_iter().map(|(_, view, extension)| (Arc::clone(view), Arc::clone(extension))).collect()
}

/// The readings of an extension.
pub(super) fn extension_readings(
    control: &ControlState,
    view: &TenantView,
    extension: &LoadedExtension,
) -> LabelledReadings {
    let shown = control.history.show(view, extension);
    let counts = extension.stats.read();
    let values = vec![
        vec![shown.stats.ok, shown.stats.failed, shown.stats.killed],
        vec![shown.stats.cpu_us],
        vec![counts.switches],
        vec![counts.live()],
        vec![extension_memory_bytes(extension)],
        vec![u64::from(shown.suspended)],
        vec![u64::from(shown.slowed_to_per_s > 0)],
    ];
    let labels = vec![("tenant", view.tenant.name.clone()), ("extension", shown.name)];
    LabelledReadings { labels, readings: readings(EXTENSION_METRICS, values) }
}

/// The latency of an extension's calls.
pub(super) fn extension_latency(view: &TenantView, extension: &LoadedExtension) -> ExtensionLatency {
    let (tenant, name) = (view.tenant.name.clone(), extension.name.to_string());
    ExtensionLatency { tenant, extension: name, calls: extension.latency.read() }
}

/// The readings of the tables that are nearly full, and of the others with most bytes.
pub(super) fn table_readings(control: &ControlState, most: usize) -> Vec<LabelledReadings> {
    let snapshot = control.directory.snapshot();
    let mut all: Vec<_> = snapshot
        .iter()
        .flat_map(|view| view.tables.values().map(move |entry| (view, entry)))
        .map(|(view, entry)| (entry.table.stats(), view, entry))
        .collect();
    all.sort_by_key(|(stats, view, entry)| (Reverse(stats.bytes), view.tenant.id, entry.id));
    let all = chosen(all, most, |(_, _, entry)| table_used_per_mille(entry) >= NEARLY_USED_PER_MILLE);
    let rates = control.hot_keys.rates();
    let of = |(stats, view, entry): (TableStats, &Arc<TenantView>, &Arc<TableEntry>)| {
        let backing = entry.backing().map(|backing| backing.stats()).unwrap_or_default();
        let counts = [
            stats.records,
            stats.bytes,
            entry.quota_bytes(),
            table_used_per_mille(entry),
            stats.garbage_bytes,
            stats.evictions,
            stats.expirations,
            stats.refusals,
            backing.dirty_bytes,
            backing.oldest_dirty_ms.saturating_mul(1_000),
            backing.loads,
            backing.flushes,
            backing.load_errors + backing.flush_errors + backing.conflicts,
        ];
        let rates = rates.get(&(view.tenant.id, entry.id)).copied().unwrap_or_default();
        let rates = vec![rates.reads_per_s.round() as u64, rates.writes_per_s.round() as u64];
        let values = counts.map(|value| vec![value]).into_iter().chain([rates]).collect();
        let labels = vec![("tenant", view.tenant.name.clone()), ("table", entry.name().to_string())];
        LabelledReadings { labels, readings: readings(TABLE_METRICS, values) }
    };
    all.into_iter().map(of).collect()
}

/// The readings of the tenants that neighbours cost most, by the kind of their requests.
pub(super) fn isolation_readings(control: &ControlState, most: usize) -> Vec<LabelledReadings> {
    let snapshot = control.directory.snapshot();
    let of = |reading: IsolationReading| {
        let tenant = snapshot.tenant(reading.tenant)?.tenant.name.clone();
        let class = REQUEST_CLASSES.get(reading.class)?;
        let values = [reading.per_mille(), reading.quiet_p99_ns, reading.beside_p99_ns];
        let labels = vec![("tenant", tenant), ("class", (*class).to_owned())];
        let values = values.map(|value| vec![value]).to_vec();
        Some(LabelledReadings { labels, readings: readings(ISOLATION_METRICS, values) })
    };
    control.isolation.readings().into_iter().take(most).filter_map(of).collect()
}

/// The readings of the hottest keys, one of each table: of those that take most accesses.
pub(super) fn hot_key_readings(control: &ControlState, most: usize) -> Vec<LabelledReadings> {
    let snapshot = control.directory.snapshot();
    let mut seen: Vec<(u32, u64)> = Vec::new();
    let of = |spot: HotSpot| {
        if seen.contains(&(spot.tenant, spot.table)) {
            return None;
        }
        seen.push((spot.tenant, spot.table));
        let view = snapshot.tenant(spot.tenant)?;
        let table = view.tables.get(&spot.table)?.name().to_string();
        let values = [spot.per_mille(), spot.per_s().round() as u64];
        let labels = vec![("tenant", view.tenant.name.clone()), ("table", table)];
        let values = values.map(|value| vec![value]).to_vec();
        Some(LabelledReadings { labels, readings: readings(HOT_KEY_METRICS, values) })
    };
    control.hot_keys.hottest(|_| true, HOT_KEYS_MAX).into_iter().filter_map(of).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::use_meter::MeteredUse;
    use sandstorm_metrics::ALL_QUOTAS;

    #[test]
    fn a_tenant_whose_memory_is_nearly_full_comes_before_one_that_has_all_its_tables() {
        let quota = |name, used, limit| OverviewQuotaResponse { name, used, limit };
        let [tables, extensions] = ["tables", "extensions"].map(|name| quota(name, 1, 1));
        let filled_by_hand = urgency(&[tables, quota("memory_bytes", 1, 100), extensions]);
        let memory = urgency(&[quota("tables", 1, 8), quota("memory_bytes", 95, 100)]);
        let rate = urgency(&[quota("requests_per_s", 99, 100)]);
        assert!(rate > memory && memory > filled_by_hand, "{rate:?} {memory:?} {filled_by_hand:?}");
        assert!([rate, memory, filled_by_hand].iter().all(|(_, nearest)| *nearest >= NEARLY_USED_PER_MILLE));
        assert!(QUOTAS_FILLED_BY_HAND.iter().all(|name| USED_QUOTAS.contains(name)));
    }

    #[test]
    fn what_is_in_trouble_behind_the_first_of_that_comes_before_what_is_not() {
        const FIRST: usize = METRIC_SERIES_IN_TROUBLE;
        let all = |in_trouble: usize| (0..FIRST + 10).map(|number| (number, number < in_trouble)).collect::<Vec<_>>();
        let numbers = |in_trouble, most| {
            let chosen = chosen(all(in_trouble), most, |(_, is_in_trouble)| *is_in_trouble);
            chosen.into_iter().map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(FIRST + 5, 3), (0..FIRST + 3).collect::<Vec<_>>());
        assert_eq!(numbers(FIRST + 5, 7), (0..FIRST + 7).collect::<Vec<_>>());
        assert_eq!((numbers(2, 0), numbers(0, 2)), (vec![0, 1], vec![0, 1]));
    }

    #[test]
    fn the_quotas_with_a_use_are_those_of_the_catalogue() {
        use sandstorm_catalog::{Directory, DirectoryOptions, NewTenant};
        let directory = Directory::with_options(sandstorm_store::Epochs::new(), DirectoryOptions::default());
        let (view, _) =
            directory.create_tenant(NewTenant { name: "a".into(), ..NewTenant::default() }).expect("a tenant");
        let used = view.used(0).into_iter().map(|(name, _)| name);
        let used: Vec<&str> = used.chain(MeteredUse::default().rates().map(|(name, _)| name)).collect();
        assert_eq!(used, USED_QUOTAS);
        let all: Vec<&str> = view.tenant.quotas.list().into_iter().map(|(name, _)| name).collect();
        assert_eq!(all, ALL_QUOTAS);
        // Each is in the metric of its unit, and in no other.
        let units = [NUMBER_QUOTAS, BYTES_QUOTAS, RATE_QUOTAS, BYTE_RATE_QUOTAS, TIME_QUOTAS];
        let sorted = |names: &[&[&'static str]]| {
            let mut names = names.concat();
            names.sort_unstable();
            names
        };
        assert_eq!(sorted(&units), sorted(&[ALL_QUOTAS]));
        let used_units = [USED_NUMBER_QUOTAS, USED_BYTES_QUOTAS, RATE_QUOTAS, BYTE_RATE_QUOTAS];
        assert_eq!(sorted(&used_units), sorted(&[USED_QUOTAS]));
    }
}

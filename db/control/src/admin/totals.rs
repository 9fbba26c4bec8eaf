//! Readings from the directory and the store, which workers do not count.

use sandstorm_catalog::Directory;
use sandstorm_extension::CodeTier;
use sandstorm_metrics::{MetricReading, SERVER_METRICS, readings};
use sandstorm_store::slab_bytes;

/// The readings of [`SERVER_METRICS`].
pub(super) fn server_readings(uptime_s: u64, directory: &Directory) -> Vec<MetricReading> {
    let snapshot = directory.snapshot();
    let (mut tables, mut extensions, mut sandboxed, mut suspended, mut slowed, mut grants) = (0, 0, 0, 0, 0, 0);
    let (mut records, mut bytes, mut evicted, mut expired) = (0u64, 0u64, 0u64, 0u64);
    let (mut garbage, mut held_back, mut no_memory_refusals) = (0u64, 0u64, 0u64);
    for view in snapshot.iter() {
        extensions += view.extensions.len() as u64;
        sandboxed += view.extensions.values().filter(|one| one.tier == CodeTier::Sandboxed).count() as u64;
        suspended += view.suspended_extensions() as u64;
        slowed += view.extensions.values().filter(|extension| extension.throttle.calls_per_s() > 0).count() as u64;
        grants += view.granted.len() as u64;
        for table in view.tables.values() {
            let stats = table.table.stats();
            tables += 1;
            records += stats.records;
            bytes += stats.bytes;
            evicted += stats.evictions;
            expired += stats.expirations;
            garbage += stats.garbage_bytes;
            held_back += stats.held_back;
            no_memory_refusals += stats.no_memory_refusals;
        }
    }
    let tenants = snapshot.len() as u64;
    let dropped = directory.dropped_tables() as u64;
    let slabs = slab_bytes() as u64;
    let moved = directory.homes_moved();
    let kept =
        [records, bytes, evicted, expired, garbage, held_back, no_memory_refusals, slabs, grants, dropped, moved];
    let values = [uptime_s, tenants, tables, extensions, sandboxed, suspended, slowed].into_iter().chain(kept);
    readings(SERVER_METRICS, values.map(|value| vec![value]).collect())
}

//! What is read from the directory and the store rather than counted by workers.

use sandstorm_catalog::Directory;
use sandstorm_metrics::{Reading, SERVER, readings};
use sandstorm_store::slab_bytes;

/// The readings of [`SERVER`].
pub(super) fn server_values(uptime_s: u64, directory: &Directory) -> Vec<Reading> {
    let snapshot = directory.snapshot();
    let (mut tables, mut extensions, mut suspended, mut slowed, mut grants) = (0, 0, 0, 0, 0);
    let (mut records, mut bytes, mut evicted, mut expired) = (0u64, 0u64, 0u64, 0u64);
    let (mut garbage, mut held_back, mut without_memory) = (0u64, 0u64, 0u64);
    for view in snapshot.iter() {
        extensions += view.extensions.len() as u64;
        suspended += view.suspended.len() as u64;
        slowed += view.extensions.values().filter(|extension| extension.brake.calls_per_s() > 0).count() as u64;
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
            without_memory += stats.without_memory;
        }
    }
    let tenants = snapshot.len() as u64;
    let dropped = directory.dropped_tables() as u64;
    let slabs = slab_bytes() as u64;
    let kept = [records, bytes, evicted, expired, garbage, held_back, without_memory, slabs, grants, dropped];
    let values = [uptime_s, tenants, tables, extensions, suspended, slowed].into_iter().chain(kept);
    readings(SERVER, values.map(|value| vec![value]).collect())
}

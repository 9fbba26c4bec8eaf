//! The counters of a table, summed up.

use std::sync::atomic::Ordering;

use super::RecordTable;
use crate::TableStats;

impl RecordTable {
    /// Returns the counters.
    pub fn stats(&self) -> TableStats {
        let mut stats = TableStats {
            bytes: self.bytes.load(Ordering::Relaxed),
            quota_bytes: self.quota_bytes(),
            garbage_bytes: self.garbage.bytes(),
            capacity: self.count.load(Ordering::Relaxed) as u64 * 4,
            growths: self.growths.load(Ordering::Relaxed),
            ..TableStats::default()
        };
        for stripe in &self.stripes {
            stats.records += stripe.records.get();
            stats.evictions += stripe.evictions.get();
            stats.expirations += stripe.expirations.get();
            stats.refusals += stripe.refusals.get();
            stats.held_back += stripe.held_back.get();
            stats.no_memory_refusals += stripe.no_memory_refusals.get();
        }
        stats
    }
}

//! The room of a table: its mode and its quota, which may change while it is used.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::RecordTable;
use crate::epochs::Participant;
use crate::limits::{GARBAGE_MIN_BYTES, GARBAGE_ONE_IN, STRIPES};
use crate::{StorageMode, TableConfig};

/// See the head of this file.
#[derive(Debug)]
pub(super) struct TableRoom {
    is_cache: AtomicBool,
    quota_bytes: AtomicU64,
    /// The limit on the bytes of garbage, beyond which puts are refused.
    garbage_limit: AtomicU64,
}

fn garbage_limit(quota_bytes: u64) -> u64 {
    (quota_bytes / GARBAGE_ONE_IN).max(GARBAGE_MIN_BYTES)
}

impl TableRoom {
    pub(super) fn new(config: &TableConfig) -> TableRoom {
        TableRoom {
            is_cache: AtomicBool::new(config.mode == StorageMode::Cache),
            quota_bytes: AtomicU64::new(config.quota_bytes),
            garbage_limit: AtomicU64::new(garbage_limit(config.quota_bytes)),
        }
    }

    #[cfg(test)]
    pub(super) fn limit_garbage(&self, bytes: u64) {
        self.garbage_limit.store(bytes, Relaxed);
    }
}

impl RecordTable {
    /// The behaviour at the quota.
    #[inline]
    pub fn mode(&self) -> StorageMode {
        match self.is_cache() {
            _ if self.is_larger_than_memory() => StorageMode::Spill,
            true => StorageMode::Cache,
            false => StorageMode::Store,
        }
    }

    /// Whether records leave memory when there is no room.
    #[inline]
    pub(super) fn makes_room(&self) -> bool {
        self.is_cache() || self.is_larger_than_memory()
    }

    #[inline]
    pub(super) fn is_cache(&self) -> bool {
        self.room.is_cache.load(Relaxed)
    }

    /// Bytes of records that it may hold.
    #[inline]
    pub fn quota_bytes(&self) -> u64 {
        self.room.quota_bytes.load(Relaxed)
    }

    #[inline]
    pub(super) fn garbage_limit(&self) -> u64 {
        self.room.garbage_limit.load(Relaxed)
    }

    /// Sets the bytes of records that it may hold. If it holds more, a store refuses what would take more, and a cache
    /// makes room with each write.
    pub fn set_quota_bytes(&self, bytes: u64) {
        self.room.garbage_limit.store(garbage_limit(bytes), Relaxed);
        self.room.quota_bytes.store(bytes, Relaxed);
    }

    /// Sets the behaviour at the quota. A cache knows the order of its records from their writes on: what is there when
    /// a store becomes one is not evicted before it is written again, so callers change an empty one. The mode `spill`
    /// is fixed for a table's life.
    pub fn set_mode(&self, participant: &Participant, mode: StorageMode) {
        self.room.is_cache.store(mode == StorageMode::Cache, Relaxed);
        if mode == StorageMode::Store && !self.is_larger_than_memory() {
            for stripe in 0..STRIPES {
                self.lock_stripe(participant, stripe).state.queues = Default::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Epochs, StoreError, WriteOptions};

    #[test]
    fn a_table_takes_another_quota_and_another_mode_while_it_is_used() {
        let epochs = Epochs::new();
        let config = TableConfig { quota_bytes: 64 << 10, ..TableConfig::default() };
        let table = RecordTable::with_seed(config, Arc::clone(&epochs), 1);
        let participant = epochs.register();
        let put = |number: u32| {
            let key = number.to_le_bytes();
            table.put(&participant, table.hash(&key), &key, &[0; 1_000], &WriteOptions::default(), 1)
        };
        let filled = (0..).take_while(|number| put(*number).is_ok()).count() as u32;
        assert!((10..64).contains(&filled), "{filled}");
        table.set_quota_bytes(128 << 10);
        let more = (filled..).take_while(|number| put(*number).is_ok()).count() as u32;
        assert!(more + 5 > filled, "{more} more after {filled}");
        table.set_quota_bytes(64 << 10);
        assert!(matches!(put(1_000), Err(StoreError::OutOfMemory)), "what is there stays, and nothing comes");
        table.clear(&participant).expect("nothing is logged");
        table.set_mode(&participant, StorageMode::Cache);
        (0..200).for_each(|number| assert!(put(number).is_ok(), "a cache makes room"));
        assert!(table.stats().evictions > 100);
        table.set_quota_bytes(32 << 10);
        (200..300).for_each(|number| assert!(put(number).is_ok()));
        assert!(table.stats().bytes <= 32 << 10, "{}", table.stats().bytes);
        table.set_mode(&participant, StorageMode::Store);
        assert!((300..400).any(|number| put(number).is_err()), "a store refuses");
    }
}

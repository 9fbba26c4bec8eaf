//! A stripe: a sixty-fourth of the hashes, with the lock that its writers take.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

use super::eviction::EvictionQueues;
use crate::spill::SpillAddress;

/// Lock and counters of a stripe, on its own cache lines. Counters are written under the lock and read without.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct TableStripe {
    pub(super) state: Mutex<StripeState>,
    /// Records, expired ones included.
    pub(super) records: StripeCounter,
    /// Records that will expire: a stripe without any is not swept.
    pub(super) expiring: StripeCounter,
    pub(super) evictions: StripeCounter,
    pub(super) expirations: StripeCounter,
    pub(super) refusals: StripeCounter,
    /// Writes refused because too much garbage of the table is still being read.
    pub(super) held_back: StripeCounter,
    /// Writes refused because the system gave no memory.
    pub(super) no_memory_refusals: StripeCounter,
}

/// The state that the lock of a stripe guards beside its buckets.
#[derive(Default)]
pub(super) struct StripeState {
    /// The version given last. Never goes back, so versions of a key grow across delete and re-insert.
    pub(super) last_version: u64,
    /// The generation of the array that `moved` is about.
    pub(super) generation: u64,
    /// Buckets that have been moved from the previous array.
    pub(super) moved: usize,
    pub(super) all_moved: bool,
    /// A chain became longer than inserts make them, in this array or an earlier one: see `buckets::chain_limits`.
    pub(super) long_chains: bool,
    pub(super) queues: EvictionQueues,
    /// Records in memory that the spill file has as well, by their hashes.
    pub(super) clean: HashMap<u64, CleanCopy>,
    /// Keys that have changed while their slots are copied to another server.
    pub(super) copied_keys: HashSet<Box<[u8]>>,
    /// Whether the table was emptied meanwhile.
    pub(super) was_emptied: bool,
}

/// The copy on the disk of a record that is in memory: without a write it may leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct CleanCopy {
    pub(super) version: u64,
    pub(super) address: SpillAddress,
}

/// A counter with one writer at a time.
#[derive(Default)]
pub(super) struct StripeCounter(AtomicU64);

impl StripeCounter {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    pub(super) fn sub(&self, n: u64) {
        self.0.store(self.get().wrapping_sub(n), Ordering::Relaxed);
    }

    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}

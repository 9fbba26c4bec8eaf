//! A stripe: a sixty-fourth of the hashes, with the lock that its writers take.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::queues::Queues;

/// Lock and counters of a stripe, on its own cache lines. Counters are written under the lock and read without.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Stripe {
    pub(super) state: Mutex<State>,
    /// Records, expired ones included.
    pub(super) records: Counter,
    /// Records that will expire: a stripe without any is not swept.
    pub(super) expiring: Counter,
    pub(super) evictions: Counter,
    pub(super) expirations: Counter,
    pub(super) refusals: Counter,
    /// Writes refused because too much garbage of the table is still being read.
    pub(super) held_back: Counter,
    /// Writes refused because the system gave no memory.
    pub(super) without_memory: Counter,
}

/// What the lock of a stripe guards beside its buckets.
#[derive(Default)]
pub(super) struct State {
    /// The version given last. Never goes back, so versions of a key grow across delete and re-insert.
    pub(super) last_version: u64,
    /// The generation of the array that `moved` is about.
    pub(super) generation: u64,
    /// Buckets of the previous array that have been moved.
    pub(super) moved: usize,
    pub(super) all_moved: bool,
    /// A chain became longer than inserts make them, in this array or an earlier one: see `buckets::crowds`.
    pub(super) crowded: bool,
    pub(super) queues: Queues,
}

/// A counter with one writer at a time.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
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

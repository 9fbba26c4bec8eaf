//! From when on a request counts as slow: for all protocols, and changed while the server runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The threshold, and the numbers of slow requests.
#[derive(Debug)]
pub struct SlowThreshold {
    /// [`SlowThreshold::OFF`]: none is slow.
    threshold_ns: AtomicU64,
    next_id: AtomicU64,
}

impl Default for SlowThreshold {
    fn default() -> SlowThreshold {
        SlowThreshold { threshold_ns: AtomicU64::new(SlowThreshold::OFF), next_id: AtomicU64::new(1) }
    }
}

impl SlowThreshold {
    /// The threshold that no request reaches.
    pub const OFF: u64 = u64::MAX;

    /// Nanoseconds from arrival to answer from which a request is slow.
    #[inline]
    pub fn ns(&self) -> u64 {
        self.threshold_ns.load(Relaxed)
    }

    /// Sets the threshold: 0 makes every request slow.
    pub fn set_ns(&self, threshold_ns: u64) {
        self.threshold_ns.store(threshold_ns, Relaxed);
    }

    /// The threshold in microseconds; 0: none is slow.
    pub fn us(&self) -> u64 {
        match self.ns() {
            SlowThreshold::OFF => 0,
            ns => (ns / 1000).max(1),
        }
    }

    /// Sets the threshold in microseconds; 0: none is slow.
    pub fn set_us(&self, threshold_us: u64) {
        self.set_ns(if threshold_us == 0 { SlowThreshold::OFF } else { threshold_us.saturating_mul(1000) });
    }

    /// Has the numbers of slow requests go on behind this one: those of earlier runs of the server are shown, too.
    pub fn continue_after(&self, id: u64) {
        self.next_id.fetch_max(id.saturating_add(1), Relaxed);
    }

    /// The last number that was given; 0: there is none.
    pub fn last_id(&self) -> u64 {
        self.next_id.load(Relaxed) - 1
    }

    /// A number for a slow request: they grow.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }
}

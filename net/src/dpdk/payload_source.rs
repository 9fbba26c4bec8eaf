//! Counters of frames whose last bytes are sent in place, or copied.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The source of a frame's last bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PayloadSource {
    /// They are not shared.
    Unshared,
    /// They are sent in place, from where they are stored.
    InPlace,
    /// They are shared, and were copied.
    Copied,
}

/// Frames that a queue has sent, by the source of their last bytes. On a cache line of its own: each worker writes one.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct PayloadCounts {
    in_place: AtomicU64,
    copied: AtomicU64,
}

impl PayloadCounts {
    /// Adds frames. Called by the queue's worker alone.
    pub(super) fn add(&self, sent: impl Iterator<Item = PayloadSource>) {
        let (mut in_place, mut copied) = (0, 0);
        for end in sent {
            in_place += u64::from(end == PayloadSource::InPlace);
            copied += u64::from(end == PayloadSource::Copied);
        }
        for (count, more) in [(&self.in_place, in_place), (&self.copied, copied)] {
            if more != 0 {
                count.store(count.load(Relaxed) + more, Relaxed);
            }
        }
    }

    /// Returns the frames sent in place, and those copied.
    pub(super) fn get(&self) -> (u64, u64) {
        (self.in_place.load(Relaxed), self.copied.load(Relaxed))
    }
}

//! How much of what is sent is sent from where it is stored.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How the end of a frame is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PayloadSource {
    /// It is nobody else's.
    Unshared,
    /// From where it is stored.
    InPlace,
    /// It is shared, and was copied.
    Copied,
}

/// Frames that a queue has sent, by their ends. On a line of its own: each worker writes one.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct PayloadCounts {
    in_place: AtomicU64,
    copied: AtomicU64,
}

impl PayloadCounts {
    /// By the queue's worker alone.
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

    /// Those sent from where they are stored, and those copied.
    pub(super) fn get(&self) -> (u64, u64) {
        (self.in_place.load(Relaxed), self.copied.load(Relaxed))
    }
}

//! The moves of records to a larger array: every write moves some, of the current stripe, one stripe after the other.

use std::sync::atomic::Ordering;

use super::RecordTable;
use crate::Participant;
use crate::limits::{BUCKETS_MOVED_WHEN_FULL, STRIPES};

/// Stripes that one write looks at for something to move: the first of them nearly always has it.
const STRIPES_PROBED: usize = 4;

impl RecordTable {
    /// Moves buckets of the current stripe, so that the front of the old array is empty soon, and goes back. `false`
    /// where another thread is at it, or the caller holds that stripe's lock itself. It never waits for a lock, since
    /// the caller may hold some.
    pub(super) fn help(&self, participant: &Participant, buckets: usize, is_locked: impl Fn(usize) -> bool) -> bool {
        for _ in 0..STRIPES_PROBED {
            let rehash_stripe = self.rehash_stripe.load(Ordering::Relaxed);
            if is_locked(rehash_stripe % STRIPES) {
                return false;
            }
            let Some(mut locked) = self.try_lock_stripe(participant, rehash_stripe % STRIPES) else { return false };
            if locked.rehash_some(buckets) {
                return true;
            }
            self.pass_on(rehash_stripe);
        }
        false
    }

    /// Advances to the next stripe, if this one is current: it has been moved, or cannot be.
    pub(super) fn pass_on(&self, stripe: usize) {
        let rehash_stripe = self.rehash_stripe.load(Ordering::Relaxed);
        if rehash_stripe % STRIPES == stripe % STRIPES {
            self.rehash_stripe.store(rehash_stripe.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Moves buckets of a table that grows though no thread writes to it any more, so that the old array does not stay.
    pub(super) fn rehash_idle(&self, participant: &Participant, buckets: usize) {
        for _ in 0..buckets.div_ceil(BUCKETS_MOVED_WHEN_FULL) {
            if !self.help(participant, BUCKETS_MOVED_WHEN_FULL, |_| false) {
                break;
            }
        }
    }
}

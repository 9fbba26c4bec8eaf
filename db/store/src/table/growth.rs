//! Who moves records to a larger array: every write some, of the stripe whose turn it is, one stripe after the other.

use std::sync::atomic::Ordering;

use super::Table;
use crate::Participant;
use crate::limits::{BUCKETS_MOVED_WHEN_FULL, STRIPES};

/// Stripes that one write looks at for something to move: the first of them nearly always has it.
const STRIPES_LOOKED_AT: usize = 4;

impl Table {
    /// Moves buckets of the stripe whose turn it is: so that the front of the old array is empty soon, and goes back. `false` where
    /// another thread is at it, or the caller holds that stripe's lock itself. Never waits for a lock, since the caller may hold some.
    pub(super) fn help(&self, participant: &Participant, buckets: usize, is_held: impl Fn(usize) -> bool) -> bool {
        for _ in 0..STRIPES_LOOKED_AT {
            let helped = self.helped.load(Ordering::Relaxed);
            if is_held(helped % STRIPES) {
                return false;
            }
            let Some(mut locked) = self.try_lock_stripe(participant, helped % STRIPES) else { return false };
            if locked.move_some(buckets) {
                return true;
            }
            self.pass_on(helped);
        }
        false
    }

    /// It is the next stripe's turn, if it is this one's: it has been moved, or cannot be.
    pub(super) fn pass_on(&self, stripe: usize) {
        let helped = self.helped.load(Ordering::Relaxed);
        if helped % STRIPES == stripe % STRIPES {
            self.helped.store(helped.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Moves buckets of a table that grows though nobody writes to it any more, so that the old array does not stay.
    pub(super) fn help_idle(&self, participant: &Participant, buckets: usize) {
        for _ in 0..buckets.div_ceil(BUCKETS_MOVED_WHEN_FULL) {
            if !self.help(participant, BUCKETS_MOVED_WHEN_FULL, |_| false) {
                break;
            }
        }
    }
}

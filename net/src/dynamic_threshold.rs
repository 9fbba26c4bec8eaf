//! The one rule by which owners divide a shared pool, for bytes, buffers, connections, invocations and stacks.
//!
//! It is the dynamic threshold of Choudhury and Hahne ("Dynamic Queue Length Thresholds for Shared-Memory Packet
//! Switches", IEEE/ACM Transactions on Networking 6(2), 1998), made for the packet buffers of switches. An owner may
//! take more as long as it holds less than a constant times what is free. The number of owners need not be known. Few
//! owners get much. However many want all that they can get, something stays free for one that holds nothing.

/// An owner may hold so many times what is free. If `n` owners want all that they can get, each has 2 of `2n + 1` parts
/// of the pool, and one part is left for the next. One owner alone has two thirds.
pub const ALPHA: usize = 2;

/// A pool of units, which its owners share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicThreshold {
    capacity: usize,
}

impl DynamicThreshold {
    /// The threshold for a pool of that capacity.
    #[inline]
    pub const fn of(capacity: usize) -> DynamicThreshold {
        DynamicThreshold { capacity }
    }

    /// Units that are free while `used` are taken.
    #[inline]
    pub const fn free(self, used: usize) -> usize {
        self.capacity.saturating_sub(used)
    }

    /// Returns whether an owner that holds `owned` of the `used` units may take one more.
    #[inline]
    pub const fn admits(self, used: usize, owned: usize) -> bool {
        owned < self.free(used).saturating_mul(ALPHA)
    }

    /// Returns whether it may take `size` more at once, for many units in large pieces, such as bytes. Both sides are
    /// counted as they will be then.
    #[inline]
    pub const fn admits_size(self, used: usize, owned: usize, size: usize) -> bool {
        let after = used.saturating_add(size);
        after <= self.capacity && owned.saturating_add(size) <= self.free(after).saturating_mul(ALPHA)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_of_n_greedy_owners_gets_two_of_2n_plus_1_parts() {
        for owners in [1usize, 2, 5, 30] {
            let (pool, mut owned) = (DynamicThreshold::of(10_000), vec![0; owners]);
            // The owners take in rotation, so that none is late.
            while owned.iter().any(|own| pool.admits(owned.iter().sum(), *own)) {
                for owner in 0..owners {
                    owned[owner] += usize::from(pool.admits(owned.iter().sum(), owned[owner]));
                }
            }
            let part = 10_000 * ALPHA / (ALPHA * owners + 1);
            assert!(owned.iter().all(|own| own.abs_diff(part) <= 2), "{owners}: {owned:?}, {part} each");
        }
    }

    proptest! {
        /// However much eight owners take, in units or in sizes, and in any order: something is left for another one.
        /// The worst case is that they come one after the other, each to a third of what the one before has found.
        #[test]
        fn however_many_take_all_they_can_get_another_one_still_gets_in(
            capacity in 30_000usize..100_000,
            steps in prop::collection::vec((0usize..8, prop_oneof![Just(None), (1usize..20_000).prop_map(Some)]), 1..500),
        ) {
            let (pool, mut owned) = (DynamicThreshold::of(capacity), [0; 8]);
            for (owner, size) in steps {
                let used = owned.iter().sum();
                let may = match size {
                    Some(size) => pool.admits_size(used, owned[owner], size),
                    None => pool.admits(used, owned[owner]),
                };
                owned[owner] += if may { size.unwrap_or(1) } else { 0 };
                let used: usize = owned.iter().sum();
                prop_assert!(capacity.saturating_sub(used) >= capacity / 3_usize.pow(8) - 1, "{:?}", owned);
                prop_assert!(pool.admits(used, 0));
            }
        }
    }

    #[test]
    fn nothing_is_given_of_nothing() {
        assert!(!DynamicThreshold::of(10).admits(10, 0) && !DynamicThreshold::of(0).admits(0, 0));
        assert!(!DynamicThreshold::of(10).admits(11, 0), "more is taken than there is: its capacity was lowered");
        assert!(!DynamicThreshold::of(10).admits_size(0, 0, 11) && !DynamicThreshold::of(10).admits_size(0, 0, 10));
        assert!(DynamicThreshold::of(10).admits_size(0, 0, 6));
        let all = DynamicThreshold::of(usize::MAX);
        assert!(all.admits(0, usize::MAX - 1) && !all.admits_size(1, 0, usize::MAX));
    }
}

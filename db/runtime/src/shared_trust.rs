//! The trust that all unproven extensions of one worker share.
//!
//! Where hundreds of tenants have new code, some of it is always new, and the watchdog would never nap. So each worker
//! counts the calls of its unproven extensions together. After tens of thousands of them the watchdog may look at the
//! next such poll a short nap late. A poll that exceeds its slice is charged to that count. So late looks cost a worker
//! at most a fraction of the time of these calls, whichever tenant's code runs. A machine that takes some microseconds
//! from a poll now and then does not keep the watchdog awake.

use sandstorm_extension::CallTrust;

use crate::limits::{SHARED_TRUST_AFTER_CALLS, SHARED_TRUST_NAPS, WATCHDOG_SHORT_NAP_US};

/// The calls of one worker's extensions that are not proven.
#[derive(Debug)]
pub(super) struct SharedTrust {
    /// Names the worker, and the number of its polls that exceeded their slices.
    epoch: u64,
    /// Calls that no long poll has used up.
    calls: u64,
}

/// The calls that a worker saves up at most: a few late looks may follow each other.
const MAX_CALLS: u64 = SHARED_TRUST_NAPS * SHARED_TRUST_AFTER_CALLS;

impl SharedTrust {
    pub(super) fn of_worker(worker: usize) -> SharedTrust {
        SharedTrust { epoch: (worker as u64) << 48, calls: 0 }
    }

    /// The time between two polls that exceeded their slices, on whichever worker.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the trust in a poll of an extension that has so much of its own.
    #[inline]
    pub(super) fn now(&self, own: CallTrust) -> CallTrust {
        if self.calls > SHARED_TRUST_AFTER_CALLS { own.max(CallTrust::Known) } else { own }
    }

    /// Counts a call of an extension with so much trust.
    #[inline]
    pub(super) fn begun(&mut self, own: CallTrust) {
        self.calls = MAX_CALLS.min(self.calls + u64::from(own < CallTrust::Proven));
    }

    /// Notes a poll that exceeded its slice by so much. What a nap allows is the most that a late look can cost; where
    /// more was measured, the machine took it.
    pub(super) fn note_long_poll(&mut self, over_ns: u64) {
        const NAP_NS: u64 = WATCHDOG_SHORT_NAP_US * 1000;
        let used_up = (over_ns.min(NAP_NS) * SHARED_TRUST_AFTER_CALLS).div_ceil(NAP_NS);
        self.calls = self.calls.saturating_sub(used_up);
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any nap.
    const LONG_NS: u64 = 1_000_000_000;

    fn calls(crowd: &mut SharedTrust, calls: u64) {
        (0..calls).for_each(|_| crowd.begun(CallTrust::Unknown));
    }

    #[test]
    fn many_short_calls_of_new_code_earn_short_naps_once() {
        let mut crowd = SharedTrust::of_worker(1);
        for _ in 0..3 {
            calls(&mut crowd, SHARED_TRUST_AFTER_CALLS);
            assert_eq!(crowd.now(CallTrust::Unknown), CallTrust::Unknown);
            calls(&mut crowd, 1);
            assert_eq!(crowd.now(CallTrust::Unknown), CallTrust::Known);
            assert_eq!(crowd.now(CallTrust::Proven), CallTrust::Proven);
            let epoch = crowd.epoch();
            crowd.note_long_poll(LONG_NS);
            assert_eq!(crowd.now(CallTrust::Unknown), CallTrust::Unknown, "those that are under way, too");
            assert_ne!(crowd.epoch(), epoch, "what calls had when they began is looked up anew");
            assert_ne!(SharedTrust::of_worker(2).epoch(), crowd.epoch());
            crowd.note_long_poll(LONG_NS);
        }
    }

    #[test]
    fn what_is_proven_neither_adds_to_that_nor_needs_it() {
        let mut crowd = SharedTrust::of_worker(1);
        (0..2 * SHARED_TRUST_AFTER_CALLS).for_each(|_| crowd.begun(CallTrust::Proven));
        assert_eq!(crowd.now(CallTrust::Unknown), CallTrust::Unknown);
        assert_eq!(crowd.now(CallTrust::Known), CallTrust::Known, "its own");
    }

    #[test]
    fn late_looks_take_no_more_time_than_the_calls_have_paid_for() {
        let mut crowd = SharedTrust::of_worker(1);
        for (calls_between, over_us) in [(0, 1), (10, 60), (1_000, 60), (3_000, 900), (40_000, 10_000)] {
            let (mut made, mut late_ns) = (0, 0);
            for _ in 0..1_000 {
                calls(&mut crowd, calls_between);
                made += calls_between;
                // Only where the watchdog naps can it be late.
                if crowd.now(CallTrust::Unknown) == CallTrust::Known {
                    late_ns += (over_us * 1_000).min(WATCHDOG_SHORT_NAP_US * 1_000);
                }
                crowd.note_long_poll(over_us * 1_000);
            }
            let paid_ns = (made + MAX_CALLS) * WATCHDOG_SHORT_NAP_US * 1_000 / SHARED_TRUST_AFTER_CALLS;
            assert!(late_ns <= paid_ns, "{late_ns} ns late, {paid_ns} ns paid: {calls_between} calls, {over_us} us");
        }
    }

    #[test]
    fn microseconds_that_a_machine_takes_now_and_then_do_not_take_the_trust() {
        let mut crowd = SharedTrust::of_worker(1);
        calls(&mut crowd, 2 * SHARED_TRUST_AFTER_CALLS);
        for _ in 0..1_000 {
            calls(&mut crowd, 2_000);
            crowd.note_long_poll(60_000);
            assert_eq!(crowd.now(CallTrust::Unknown), CallTrust::Known);
        }
        (0..SHARED_TRUST_NAPS).for_each(|_| crowd.note_long_poll(LONG_NS));
        assert_eq!(crowd.now(CallTrust::Unknown), CallTrust::Unknown, "what was saved up is used up");
    }
}

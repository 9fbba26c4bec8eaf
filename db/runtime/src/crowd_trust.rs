//! The trust in all extensions of a worker together that have none of their own yet.
//!
//! Where hundreds of tenants have new code, some of it is always new, and the watchdog would never nap. So calls of
//! extensions that are not proven are counted together on each worker. After tens of thousands of them without a poll
//! that exceeded its slice, the watchdog may look at the next such poll a short nap late. It is once: then they count
//! anew. So whoever's code it is, a worker loses to that at most a fraction of what these calls took.

use sandstorm_extension::CallTrust;

use crate::limits::CROWD_KNOWN_AFTER_CALLS;

/// The calls of one worker's extensions that are not proven.
#[derive(Debug)]
pub(super) struct CrowdTrust {
    /// Names the worker, and the number of its polls that exceeded their slices.
    epoch: u64,
    /// Since a poll of any extension last exceeded its slice.
    calls: u64,
}

impl CrowdTrust {
    pub(super) fn of_worker(worker: usize) -> CrowdTrust {
        CrowdTrust { epoch: (worker as u64) << 48, calls: 0 }
    }

    /// The time between two polls that exceeded their slices, on whichever worker.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the trust in a call that had this much when it began: a long poll since then, of any code, takes what is
    /// not proven, or the calls that are under way could be late one after the other.
    #[inline]
    pub(super) fn now(&self, at_begin: CallTrust, epoch: u64) -> CallTrust {
        if at_begin == CallTrust::Known && epoch != self.epoch { CallTrust::Unknown } else { at_begin }
    }

    /// Counts a call of an extension with so much trust; returns the trust in this call.
    #[inline]
    pub(super) fn begun(&mut self, own: CallTrust) -> CallTrust {
        if own == CallTrust::Proven {
            return own;
        }
        self.calls = self.calls.saturating_add(1);
        if self.calls > CROWD_KNOWN_AFTER_CALLS { CallTrust::Known } else { own }
    }

    /// Notes a poll that exceeded its slice.
    pub(super) fn note_long_poll(&mut self) {
        self.calls = 0;
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_short_calls_of_new_code_earn_short_naps_once() {
        let mut crowd = CrowdTrust::of_worker(1);
        for _ in 0..3 {
            for _ in 0..CROWD_KNOWN_AFTER_CALLS {
                assert_eq!(crowd.begun(CallTrust::Unknown), CallTrust::Unknown);
            }
            assert_eq!(crowd.begun(CallTrust::Unknown), CallTrust::Known);
            assert_eq!(crowd.begun(CallTrust::Known), CallTrust::Known);
            let epoch = crowd.epoch();
            assert_eq!(crowd.now(CallTrust::Known, epoch), CallTrust::Known);
            crowd.note_long_poll();
            assert_eq!(crowd.now(CallTrust::Known, epoch), CallTrust::Unknown, "others that are under way");
            assert_eq!(crowd.now(CallTrust::Proven, epoch), CallTrust::Proven);
            assert_eq!(CrowdTrust::of_worker(2).now(CallTrust::Known, crowd.epoch()), CallTrust::Unknown);
        }
    }

    #[test]
    fn what_is_proven_neither_adds_to_that_nor_needs_it() {
        let mut crowd = CrowdTrust::of_worker(1);
        for _ in 0..2 * CROWD_KNOWN_AFTER_CALLS {
            assert_eq!(crowd.begun(CallTrust::Proven), CallTrust::Proven);
        }
        assert_eq!(crowd.begun(CallTrust::Unknown), CallTrust::Unknown);
        assert_eq!(crowd.begun(CallTrust::Known), CallTrust::Known, "its own");
    }
}

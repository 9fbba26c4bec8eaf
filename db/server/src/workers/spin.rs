//! The time that an idle worker looks for work before it sleeps.
//!
//! A sleep costs a system call, the kernel's and the machine's wake-up, and cold caches. If the next packet comes soon,
//! that is most of the worker's possible work. So it spins for [`SPIN_US`] first, and longer, up to [`SPIN_MAX_US`], if
//! its sleeps turn out to be short. Linux' haltpoll does the same for a virtual processor. Unlike a kernel, a worker
//! does not see whether another thread wants the processor, for instance the very client whose packet it waits for. So
//! a longer spin has to show that it prevents sleeps, or is given up for a while.

use crate::limits::{SPIN_BACKOFF_US, SPIN_MAX_MISSES, SPIN_MAX_US, SPIN_US};

/// The spin time of one worker, by its experience.
#[derive(Debug)]
pub(super) struct SpinController {
    us: u64,
    /// Sleeps in spite of a longer spin, since one was prevented.
    missed: u32,
    /// No longer spins are tried before this time.
    backoff_until_us: u64,
}

impl SpinController {
    pub(super) fn new() -> SpinController {
        SpinController { us: SPIN_US, missed: 0, backoff_until_us: 0 }
    }

    /// Whether to spin on after `idle_us` without work.
    #[inline]
    pub(super) fn goes_on(&self, idle_us: u64) -> bool {
        idle_us <= self.us
    }

    /// Notes new work after `idle_us` without any; `slept` is whether part of that was a sleep.
    #[inline]
    pub(super) fn found_work(&mut self, now_us: u64, idle_us: u64, slept: bool) {
        if slept {
            self.learn(now_us, idle_us);
        } else if idle_us > SPIN_US {
            // A prevented sleep.
            self.missed = 0;
        }
    }

    fn learn(&mut self, now_us: u64, idle_us: u64) {
        self.missed += u32::from(self.us > SPIN_US);
        if self.missed >= SPIN_MAX_MISSES {
            *self = SpinController { backoff_until_us: now_us + SPIN_BACKOFF_US, ..SpinController::new() };
        } else if idle_us > SPIN_MAX_US {
            self.us = SPIN_US;
        } else if now_us >= self.backoff_until_us {
            self.us = (2 * self.us).min(SPIN_MAX_US);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a worker that finds work after each of `gaps`, with a wake-up of `sleep_us`. Returns the number of its
    /// sleeps.
    fn sleeps(spin: &mut SpinController, now_us: &mut u64, gaps: impl Iterator<Item = u64>, sleep_us: u64) -> usize {
        let mut sleeps = 0;
        for gap_us in gaps {
            let slept = !spin.goes_on(gap_us);
            let idle_us = if slept { gap_us + sleep_us } else { gap_us };
            *now_us += idle_us;
            spin.found_work(*now_us, idle_us, slept);
            sleeps += usize::from(slept);
        }
        sleeps
    }

    #[test]
    fn short_gaps_are_spun_through_and_long_ones_slept() {
        let (mut spin, mut now_us) = (SpinController::new(), 0);
        assert_eq!(sleeps(&mut spin, &mut now_us, [SPIN_US; 100].into_iter(), 50), 0);
        assert!(sleeps(&mut spin, &mut now_us, [SPIN_MAX_US - 60; 100].into_iter(), 50) <= 2, "it learns");
        assert_eq!(sleeps(&mut spin, &mut now_us, [SPIN_MAX_US + 1; 100].into_iter(), 50), 100);
        assert!(!spin.goes_on(SPIN_US + 1), "long sleeps end long spins");
        assert!(sleeps(&mut spin, &mut now_us, [SPIN_MAX_US - 60; 100].into_iter(), 50) <= 2, "it learns again");
    }

    #[test]
    fn a_longer_spin_that_ends_no_sleep_is_given_up_for_a_while() {
        let mut spin = SpinController::new();
        // Work comes only once this worker sleeps: its sender wants the same processor.
        for wake_us in [20, 60, 120] {
            let (mut now_us, mut longer_us) = (0, 0);
            while now_us < 10 * SPIN_BACKOFF_US {
                let idle_us = spin.us + wake_us;
                longer_us += spin.us - SPIN_US;
                now_us += idle_us;
                spin.found_work(now_us, idle_us, true);
            }
            assert!(longer_us > 0, "it is tried");
            assert!(longer_us * 20 < now_us, "{longer_us} us of {now_us} for nothing");
            spin = SpinController::new();
        }
    }
}

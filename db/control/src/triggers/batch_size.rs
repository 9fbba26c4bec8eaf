//! How many changes a trigger with a batch has in a call: as many as it asks for, or fewer where a call's budget does
//! not allow so many.

use crate::limits::{TRIGGER_BATCH_TRIAL_AFTER, TRIGGER_BATCH_TRIAL_AFTER_MAX};

/// What the end of a call says of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// It fits.
    Fits,
    /// It was more than one change, and may have been too many.
    TooMuch,
    /// Nothing.
    Unknown,
}

/// The size of batches. It halves when a call took too much. Then one call at a time tries a larger one, now and then:
/// all those under way would take too much together. After each try that took too much, the next one comes twice as
/// late: what the server ends counts as a kill of the extension, and many kills suspend it.
#[derive(Clone, Debug)]
pub(crate) struct BatchSize {
    asked: usize,
    now: usize,
    /// Full batches that fitted since the last one that did not.
    full: u32,
    /// So many have to fit before one tries more.
    trial_after: u32,
    /// The call that tries more.
    trial: Option<(usize, u64)>,
}

impl BatchSize {
    /// As many as the trigger asks for.
    pub(crate) fn of(asked: u32) -> BatchSize {
        let asked = asked as usize;
        BatchSize { asked, now: asked, full: 0, trial_after: TRIGGER_BATCH_TRIAL_AFTER, trial: None }
    }

    /// Changes that the next call may have.
    pub(crate) fn next(&self) -> usize {
        let may_try = self.now < self.asked && self.trial.is_none() && self.full >= self.trial_after;
        if may_try { (self.now + self.now.div_ceil(4)).min(self.asked) } else { self.now }
    }

    /// A call of that size has begun.
    pub(crate) fn begun(&mut self, size: usize, place: (usize, u64)) {
        if size > self.now {
            self.trial = Some(place);
        }
    }

    /// A call of that number of changes has ended.
    pub(crate) fn ended(&mut self, place: (usize, u64), changes: usize, outcome: BatchOutcome) {
        let is_trial = self.trial.take_if(|trial| *trial == place).is_some();
        match outcome {
            BatchOutcome::Fits if is_trial && changes > self.now => self.set(changes),
            BatchOutcome::Fits if changes >= self.now => self.full = self.full.saturating_add(1),
            BatchOutcome::TooMuch if is_trial => {
                self.full = 0;
                self.trial_after = self.trial_after.saturating_mul(2).min(TRIGGER_BATCH_TRIAL_AFTER_MAX);
            }
            BatchOutcome::TooMuch => self.set(self.now.min(changes / 2).max(1)),
            BatchOutcome::Fits | BatchOutcome::Unknown => {}
        }
    }

    fn set(&mut self, now: usize) {
        (self.now, self.full, self.trial_after) = (now, 0, TRIGGER_BATCH_TRIAL_AFTER);
    }

    /// The calls under way are forgotten.
    pub(crate) fn forget_calls(&mut self) {
        self.trial = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes calls, 20 of them under way, each of as many changes as it may have. Returns those that took too much.
    fn calls_that_take_too_much(size: &mut BatchSize, fits: usize, calls: u64) -> u64 {
        let (mut too_much, mut under_way) = (0, std::collections::VecDeque::new());
        for number in 0..calls {
            let changes = size.next();
            size.begun(changes, (3, number));
            under_way.push_back(((3, number), changes));
            if under_way.len() > 20
                && let Some((place, changes)) = under_way.pop_front()
            {
                let outcome = if changes > fits { BatchOutcome::TooMuch } else { BatchOutcome::Fits };
                too_much += u64::from(outcome == BatchOutcome::TooMuch);
                size.ended(place, changes, outcome);
            }
        }
        size.forget_calls();
        too_much
    }

    #[test]
    fn what_fits_is_found_and_few_calls_take_too_much() {
        for fits in [1, 2, 5, 17, 63, 64, 100] {
            let mut size = BatchSize::of(64);
            let first = calls_that_take_too_much(&mut size, fits, 2_000);
            assert!(first <= 7 * 21 + 2_000 / 16, "{fits}: {first}");
            let later = calls_that_take_too_much(&mut size, fits, 1_600);
            assert!(later <= 1_600 / u64::from(TRIGGER_BATCH_TRIAL_AFTER), "{fits}: {later}");
            let found = size.now;
            assert!(found <= fits.min(64) && found * 5 >= fits.min(64) * 4 - 4, "{fits}: {found}");
            // The work has become lighter: all that was asked for is found again.
            assert_eq!(calls_that_take_too_much(&mut size, 64, 2_000), 0);
            assert_eq!((size.now, size.next()), (64, 64));
        }
    }

    /// Whatever the number of calls, the tries of larger ones do not add up to what suspends an extension.
    #[test]
    fn tries_that_take_too_much_become_rare() {
        let mut size = BatchSize::of(64);
        calls_that_take_too_much(&mut size, 10, 1_000);
        let more = calls_that_take_too_much(&mut size, 10, 300_000);
        assert!(more <= 16, "{more} calls took too much");
    }

    #[test]
    fn a_trial_that_was_not_full_or_could_not_run_says_nothing() {
        let mut size = BatchSize::of(64);
        size.ended((1, 1), 64, BatchOutcome::TooMuch);
        (2..=16 + 1).for_each(|number| size.ended((1, number), 32, BatchOutcome::Fits));
        assert_eq!(size.next(), 40);
        size.begun(40, (1, 20));
        assert_eq!(size.next(), 32, "one at a time");
        size.ended((1, 20), 40, BatchOutcome::Unknown);
        assert_eq!((size.now, size.next()), (32, 40));
        size.begun(40, (1, 21));
        size.ended((1, 21), 7, BatchOutcome::Fits);
        assert_eq!((size.now, size.next()), (32, 40));
        // Small batches that fit say nothing, either.
        size.ended((1, 22), 40, BatchOutcome::TooMuch);
        (0..100).for_each(|number| size.ended((2, number), 3, BatchOutcome::Fits));
        assert_eq!((size.now, size.next()), (20, 20));
    }
}

//! Remembers which packet numbers have been seen: each is taken once.

use super::limits::REPLAY_WINDOW;

const WORD: u64 = u64::BITS as u64;
/// One more word than the window has bits for: the newest number's word is filled only in part.
const WORDS: usize = (REPLAY_WINDOW / WORD) as usize + 1;

/// The reason why a number is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// It was taken before.
    Replayed,
    /// It is so far below the newest that it is not known whether it was seen.
    TooOld,
}

/// The last [`REPLAY_WINDOW`] numbers, as bits in a ring of words.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// One more than the newest number taken.
    next: u64,
    bits: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> ReplayWindow {
        ReplayWindow { next: 0, bits: [0; WORDS] }
    }
}

impl ReplayWindow {
    /// One more than the newest number taken; 0 when none was.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Checks whether `number` may be taken. Changes nothing: first the packet has to prove genuine.
    ///
    /// # Errors
    /// [`ReplayError`].
    #[inline]
    pub fn check(&self, number: u64) -> Result<(), ReplayError> {
        if number >= self.next {
            return if number == u64::MAX { Err(ReplayError::TooOld) } else { Ok(()) };
        }
        if self.next - number > REPLAY_WINDOW {
            return Err(ReplayError::TooOld);
        }
        let word = self.bits.get((number / WORD % WORDS as u64) as usize).copied().unwrap_or(u64::MAX);
        if word >> (number % WORD) & 1 == 0 { Ok(()) } else { Err(ReplayError::Replayed) }
    }

    /// Takes a number that [`ReplayWindow::check`] allowed.
    #[inline]
    pub fn take(&mut self, number: u64) {
        if number >= self.next {
            let (newest, last) = (number / WORD, self.next.saturating_sub(1) / WORD);
            // Words between the last newest and this one hold numbers that have left the window.
            for passed in 1..=(newest - last).min(WORDS as u64) {
                if let Some(word) = self.bits.get_mut(((last + passed) % WORDS as u64) as usize) {
                    *word = 0;
                }
            }
            self.next = number.saturating_add(1);
        }
        if let Some(word) = self.bits.get_mut((number / WORD % WORDS as u64) as usize) {
            *word |= 1 << (number % WORD);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// The same, as a simple model.
    #[derive(Default)]
    struct Model {
        next: u64,
        taken: HashSet<u64>,
    }

    impl Model {
        fn check(&self, number: u64) -> Result<(), ReplayError> {
            if number == u64::MAX || (number < self.next && self.next - number > REPLAY_WINDOW) {
                Err(ReplayError::TooOld)
            } else if self.taken.contains(&number) {
                Err(ReplayError::Replayed)
            } else {
                Ok(())
            }
        }
    }

    fn holds_against_the_model(numbers: &[u64]) {
        let (mut window, mut model) = (ReplayWindow::default(), Model::default());
        for number in numbers {
            let expected = model.check(*number);
            assert_eq!(window.check(*number), expected, "{number} of {numbers:?}");
            if expected.is_ok() {
                window.take(*number);
                model.taken.insert(*number);
                model.next = model.next.max(number + 1);
                assert_eq!(window.check(*number), Err(ReplayError::Replayed));
            }
            assert_eq!(window.next(), model.next);
        }
    }

    #[test]
    fn the_edges_are_where_they_should_be() {
        let w = REPLAY_WINDOW;
        holds_against_the_model(&[0, 0, w - 1, 0, w, 0, 1, 1, w + 1, 1, 2]);
        for edge in [0, 1, 63, 64, 65, 127, 128] {
            holds_against_the_model(&[
                edge,
                edge + w - 1,
                edge,
                edge + w,
                edge,
                edge + 1,
                edge + w + 63,
                edge + 64,
                edge + 63,
            ]);
            holds_against_the_model(&[
                edge + 5 * w,
                edge + 4 * w,
                edge + 4 * w + 1,
                edge + 9 * w,
                edge + 8 * w + 1,
                edge,
            ]);
        }
        holds_against_the_model(&[u64::MAX - 1, u64::MAX - 1, u64::MAX, u64::MAX - w, u64::MAX - w - 1, 0]);
        holds_against_the_model(&[3, u64::MAX, 4, 1 << 63, (1 << 63) - w + 1, (1 << 63) - w, (1 << 63) + 1]);
    }

    proptest! {
        /// For any steps between numbers, forward and back, the window tells what a set of all of them would.
        #[test]
        fn numbers_are_taken_once(steps in proptest::collection::vec((any::<bool>(), prop_oneof![0u64..4, 0u64..70, 1900u64..2200, 0u64..100_000]), 1..400)) {
            let mut at = 0u64;
            let numbers: Vec<u64> = steps.iter().map(|(back, step)| {
                let number = if *back { at.saturating_sub(*step) } else { at + step };
                at = at.max(number);
                number
            }).collect();
            holds_against_the_model(&numbers);
        }
    }
}

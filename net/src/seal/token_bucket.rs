//! So many a second, and as many at once.

/// A bucket that fills by `per_s` a second up to that many. What is counted is whole things; parts of them are kept as
/// microseconds times rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    per_s: u64,
    /// Millionths of things.
    filled: u64,
    at_us: u64,
}

const MILLION: u64 = 1_000_000;

impl TokenBucket {
    pub(super) fn new(per_s: u32) -> TokenBucket {
        TokenBucket { per_s: per_s.into(), filled: u64::from(per_s) * MILLION, at_us: 0 }
    }

    fn fill(&mut self, now_us: u64) {
        let passed_us = now_us.saturating_sub(self.at_us).min(MILLION);
        self.at_us = self.at_us.max(now_us);
        self.filled = (self.filled + passed_us * self.per_s).min(self.per_s * MILLION);
    }

    /// Takes one, if there is one.
    pub(super) fn take(&mut self, now_us: u64) -> bool {
        self.fill(now_us);
        let left = self.filled.checked_sub(MILLION);
        self.filled = left.unwrap_or(self.filled);
        left.is_some()
    }

    /// Takes one if more than half of them would be left.
    pub(super) fn try_take_above_half(&mut self, now_us: u64) -> bool {
        self.fill(now_us);
        self.filled > self.per_s * MILLION / 2 && self.take(now_us)
    }

    /// Whether nothing was taken for a second: it need not be remembered.
    pub(super) fn is_full(&mut self, now_us: u64) -> bool {
        self.fill(now_us);
        self.filled == self.per_s * MILLION
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_so_many_a_second_are_given() {
        let mut rate = TokenBucket::new(10);
        assert_eq!((0..100).filter(|_| rate.take(0)).count(), 10, "as many at once");
        assert!(!rate.take(99_999) && rate.take(100_000) && !rate.take(100_000));
        let later = (0..10_000u64).filter(|step| rate.take(100_000 + step * 1000)).count();
        assert_eq!(later, 99, "and ten for each of the ten seconds, less the one at the end");
        assert!(!rate.is_full(10_100_000) && rate.is_full(12_000_000));
        assert!(rate.take(5), "time never runs back");
    }
}

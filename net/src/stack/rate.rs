//! How often something may happen.

/// So many times a second, and as many at once after a second of rest.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    per_s: u64,
    /// Microseconds' worth of what may happen now, times `per_s`.
    saved: u64,
    seen_us: u64,
}

const SECOND_US: u64 = 1_000_000;

impl Rate {
    pub(super) fn new(per_s: u64) -> Rate {
        Rate { per_s, saved: per_s * SECOND_US, seen_us: 0 }
    }

    /// Whether it may happen now; it is counted then.
    pub(super) fn take(&mut self, now_us: u64) -> bool {
        let since_us = now_us.saturating_sub(self.seen_us).min(SECOND_US);
        self.seen_us = self.seen_us.max(now_us);
        self.saved = (self.saved + since_us * self.per_s).min(self.per_s * SECOND_US);
        if self.saved < SECOND_US {
            return false;
        }
        self.saved -= SECOND_US;
        true
    }
}

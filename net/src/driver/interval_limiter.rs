//! How often something may happen.

/// So many times in a span, and as many at once after a span of rest.
#[derive(Clone, Debug)]
pub(crate) struct IntervalLimiter {
    times: u64,
    span_us: u64,
    /// Microseconds' worth of what may happen now, times `times`.
    credit: u64,
    seen_us: u64,
}

const SECOND_US: u64 = 1_000_000;

impl IntervalLimiter {
    /// So many times a second.
    pub(crate) fn new(per_s: u64) -> IntervalLimiter {
        IntervalLimiter { times: per_s, span_us: SECOND_US, credit: per_s * SECOND_US, seen_us: 0 }
    }

    /// Once in so many microseconds.
    pub(crate) fn once_per(span_us: u64) -> IntervalLimiter {
        IntervalLimiter { times: 1, span_us, credit: span_us, seen_us: 0 }
    }

    /// Whether it may happen now; it is counted then.
    pub(crate) fn take(&mut self, now_us: u64) -> bool {
        let since_us = now_us.saturating_sub(self.seen_us).min(self.span_us);
        self.seen_us = self.seen_us.max(now_us);
        self.credit = (self.credit + since_us * self.times).min(self.times * self.span_us);
        if self.credit < self.span_us {
            return false;
        }
        self.credit -= self.span_us;
        true
    }
}

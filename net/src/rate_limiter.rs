//! The one rate limiter, for the events of drivers, ports and tenants.
//!
//! It is a token bucket in the form of the generic cell rate algorithm (GCRA; ITU-T I.371, annex A). In place of tokens
//! and the time at which they were counted, one moment is kept: that from which on the bucket is full again. Each event
//! moves it by its part of the time, and it may run ahead of now by as much as the burst takes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SECOND_NS: u64 = 1_000_000_000;
const US_NS: u64 = 1_000;

/// A rate, and how much may come at once after a rest.
///
/// An event's part of the time is rounded down to a nanosecond. Rates up to ten million a second are kept to one per
/// cent, and none above a thousand million a second bounds anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The events in a span.
    events: u64,
    span_ns: u64,
    /// The most that the moment of recovery may be ahead of now.
    burst_ns: u64,
}

impl RateLimit {
    /// This number a second, and as many at once; 0: none ever.
    #[inline]
    pub const fn per_second(events: u64) -> RateLimit {
        RateLimit { events, span_ns: SECOND_NS, burst_ns: SECOND_NS }
    }

    /// One in this number of microseconds.
    #[inline]
    pub const fn once_in_us(span_us: u64) -> RateLimit {
        let span_ns = span_us.saturating_mul(US_NS);
        RateLimit { events: 1, span_ns, burst_ns: span_ns }
    }

    /// The same rate, with this number of events at once.
    #[inline]
    #[must_use]
    pub const fn with_burst(self, events: u64) -> RateLimit {
        RateLimit { burst_ns: self.cost_ns(events), ..self }
    }

    /// The same rate, with a burst of as many events as come in this number of nanoseconds, and one at least.
    #[inline]
    #[must_use]
    pub const fn with_burst_ns(self, burst_ns: u64) -> RateLimit {
        RateLimit { burst_ns, ..self }
    }

    /// Returns the time that so many events take.
    #[inline]
    const fn cost_ns(&self, events: u64) -> u64 {
        match events.saturating_mul(self.span_ns).checked_div(self.events) {
            Some(cost_ns) => cost_ns,
            None => u64::MAX,
        }
    }

    /// Returns the time at which all has recovered, if these events are let in now. A batch beyond the burst is let in
    /// after a rest, and pays by the wait behind it: otherwise it could never pass.
    #[inline]
    fn admit(&self, recovered_ns: u64, now_ns: u64, events: u64) -> Option<u64> {
        if self.events == 0 {
            return None;
        }
        let next_ns = recovered_ns.max(now_ns).saturating_add(self.cost_ns(events));
        (next_ns <= now_ns.saturating_add(self.burst_ns) || recovered_ns <= now_ns).then_some(next_ns)
    }
}

/// Recent events, measured against a [`RateLimit`]: one word, for one thread or shared by many.
///
/// Times are of any clock that does not run back, the same for all calls. The limit comes with each call, since some
/// change while they are in force. After a change the rest of the old one's burst counts as time of the new one.
#[derive(Debug, Default)]
pub struct RateLimiter {
    /// The moment from which on no past event counts any more.
    recovered_ns: AtomicU64,
}

impl RateLimiter {
    /// Returns whether one more event may happen; it is counted then. For one thread.
    #[inline]
    pub fn admit(&mut self, limit: &RateLimit, now_us: u64) -> bool {
        let recovered_ns = self.recovered_ns.get_mut();
        let next_ns = limit.admit(*recovered_ns, now_us.saturating_mul(US_NS), 1);
        *recovered_ns = next_ns.unwrap_or(*recovered_ns);
        next_ns.is_some()
    }

    /// The same as long as more than half of the burst would be left: the other half is kept for others.
    #[inline]
    pub fn admit_above_half(&mut self, limit: &RateLimit, now_us: u64) -> bool {
        let used_ns = self.recovered_ns.get_mut().saturating_sub(now_us.saturating_mul(US_NS));
        used_ns < limit.burst_ns / 2 && self.admit(limit, now_us)
    }

    /// Returns whether some of the burst is left, for events whose cost is known only later: see
    /// [`RateLimiter::charge`].
    #[inline]
    pub fn has_some_left(&self, limit: &RateLimit, now_us: u64) -> bool {
        self.recovered_ns.load(Relaxed).saturating_sub(now_us.saturating_mul(US_NS)) < limit.burst_ns
    }

    /// Counts so many events that have happened, even beyond the burst. Some of the burst is left again when their time
    /// has passed.
    #[inline]
    pub fn charge(&mut self, limit: &RateLimit, now_us: u64, events: u64) {
        let recovered_ns = self.recovered_ns.get_mut();
        *recovered_ns = (*recovered_ns).max(now_us.saturating_mul(US_NS)).saturating_add(limit.cost_ns(events));
    }

    /// Returns the time from which some of the burst is left, if nothing else happens.
    #[inline]
    pub fn has_some_left_from_us(&self, limit: &RateLimit) -> u64 {
        self.recovered_ns.load(Relaxed).checked_sub(limit.burst_ns).map_or(0, |until_ns| until_ns / US_NS + 1)
    }

    /// Returns whether so many more events may happen; they are counted then, all or none. For any number of threads.
    #[inline]
    pub fn admit_shared(&self, limit: &RateLimit, now_ns: u64, events: u32) -> bool {
        let count = |recovered_ns| limit.admit(recovered_ns, now_ns, events.into());
        self.recovered_ns.fetch_update(Relaxed, Relaxed, count).is_ok()
    }

    /// Returns whether all has recovered, so that it need not be remembered.
    #[inline]
    pub fn is_at_rest(&self, now_us: u64) -> bool {
        self.recovered_ns.load(Relaxed) <= now_us.saturating_mul(US_NS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::thread;

    use super::*;

    /// A token bucket as textbooks have it: it fills with time up to its size. It counts in parts of an event, as many
    /// as a span has nanoseconds, so that nothing is rounded.
    struct TokenBucket {
        limit: RateLimit,
        /// Less than nothing while a large batch is being paid for.
        filled: i128,
        at_ns: u64,
    }

    impl TokenBucket {
        fn new(limit: RateLimit) -> TokenBucket {
            TokenBucket { limit, filled: TokenBucket::size(limit), at_ns: 0 }
        }

        fn size(limit: RateLimit) -> i128 {
            i128::from(limit.burst_ns) * i128::from(limit.events)
        }

        fn fill(&mut self, now_ns: u64) {
            let gained = i128::from(now_ns - self.at_ns) * i128::from(self.limit.events);
            self.filled = (self.filled + gained).min(TokenBucket::size(self.limit));
            self.at_ns = now_ns;
        }

        fn take(&mut self, now_ns: u64, events: u32) -> bool {
            self.fill(now_ns);
            let cost = i128::from(events) * i128::from(self.limit.span_ns);
            let may = cost <= self.filled || self.filled == TokenBucket::size(self.limit);
            self.filled -= if may { cost } else { 0 };
            may
        }
    }

    /// Limits whose events take whole nanoseconds.
    fn limits() -> impl Strategy<Value = RateLimit> {
        let rate = prop::sample::select(vec![1, 2, 5, 10, 1_000, 8_000, 20_000, 100_000, 1_000_000]);
        prop_oneof![
            rate.clone().prop_map(RateLimit::per_second),
            (rate.clone(), 1u64..300).prop_map(|(rate, burst)| RateLimit::per_second(rate).with_burst(burst)),
            rate.prop_map(|rate| RateLimit::per_second(rate).with_burst_ns(SECOND_NS / 10)),
            (1u64..2_000_000).prop_map(RateLimit::once_in_us),
        ]
    }

    proptest! {
        /// It admits what a token bucket admits, and is at rest when that is full.
        #[test]
        fn it_is_a_token_bucket(
            limit in limits(),
            steps in prop::collection::vec((prop_oneof![Just(0), 0u64..2_000, 0u64..3_000_000], 0u32..40, any::<bool>()), 1..300),
        ) {
            let (mut limiter, mut model, mut now_us) = (RateLimiter::default(), TokenBucket::new(limit), 0);
            for (wait_us, events, is_shared) in steps {
                now_us += wait_us;
                if is_shared {
                    let admitted = limiter.admit_shared(&limit, now_us * US_NS, events);
                    prop_assert_eq!(admitted, model.take(now_us * US_NS, events));
                } else {
                    prop_assert_eq!(limiter.admit(&limit, now_us), model.take(now_us * US_NS, 1));
                }
                prop_assert_eq!(limiter.is_at_rest(now_us), model.filled == TokenBucket::size(limit));
            }
        }

        /// At any rate, even one whose events take parts of nanoseconds, no more pass than the burst and what the time
        /// brings, to one per cent.
        #[test]
        fn no_rate_is_passed(per_s in 1u64..10_000_000, step_us in 1u64..5_000) {
            let (limit, mut limiter) = (RateLimit::per_second(per_s).with_burst(10), RateLimiter::default());
            let (mut admitted, steps) = (0, 1_000);
            for step in 0..steps {
                admitted += (0..50).filter(|_| limiter.admit(&limit, step * step_us)).count() as u64;
            }
            let most = 10 + per_s as u128 * u128::from((steps - 1) * step_us) / 1_000_000;
            prop_assert!(u128::from(admitted) <= most + most / 99 + 1, "{} of {}", admitted, most);
        }
    }

    #[test]
    fn so_many_a_second_and_as_many_at_once() {
        let (limit, mut limiter) = (RateLimit::per_second(10), RateLimiter::default());
        assert_eq!((0..100).filter(|_| limiter.admit(&limit, 0)).count(), 10, "as many at once");
        assert!(!limiter.admit(&limit, 99_999) && limiter.admit(&limit, 100_000) && !limiter.admit(&limit, 100_000));
        let later = (0..10_000u64).filter(|step| limiter.admit(&limit, 100_000 + step * 1000)).count();
        assert_eq!(later, 99, "and ten for each of the ten seconds, less the one at the end");
        assert!(!limiter.is_at_rest(10_100_000) && limiter.is_at_rest(12_000_000));
        assert!(!RateLimiter::default().admit(&RateLimit::per_second(0), 1 << 40), "none is none");
        assert!(RateLimiter::default().admit(&limit, u64::MAX), "no time is too late to count with");
    }

    #[test]
    fn half_of_the_burst_is_kept_for_others() {
        let (limit, mut limiter) = (RateLimit::per_second(10), RateLimiter::default());
        assert_eq!((0..100).filter(|_| limiter.admit_above_half(&limit, 0)).count(), 5);
        assert_eq!((0..100).filter(|_| limiter.admit(&limit, 0)).count(), 5);
        assert!(!limiter.admit_above_half(&limit, 500_000) && limiter.admit_above_half(&limit, 500_001));
    }

    #[test]
    fn what_cost_more_than_was_left_is_paid_for_by_a_wait() {
        // Nanoseconds of each second: a tenth of them, and five milliseconds at once.
        let (limit, mut limiter) = (RateLimit::per_second(100_000_000).with_burst(5_000_000), RateLimiter::default());
        assert!(limiter.has_some_left(&limit, 0) && limiter.has_some_left_from_us(&limit) == 0);
        limiter.charge(&limit, 0, 4_000_000);
        assert!(limiter.has_some_left(&limit, 0), "one millisecond of five");
        limiter.charge(&limit, 0, 3_000_000);
        let from_us = limiter.has_some_left_from_us(&limit);
        assert_eq!(from_us, 20_001, "two too many, at a tenth of the time");
        assert!(!limiter.has_some_left(&limit, from_us - 1) && limiter.has_some_left(&limit, from_us));
        assert!(!limiter.is_at_rest(69_999) && limiter.is_at_rest(70_000));
    }

    #[test]
    fn threads_that_count_at_once_pass_no_limit_together() {
        let (limit, limiter) = (RateLimit::per_second(1_000).with_burst(100), RateLimiter::default());
        let take = || (0..1_000).filter(|_| limiter.admit_shared(&limit, SECOND_NS, 1)).count();
        let admitted: usize = thread::scope(|threads| {
            let running: Vec<_> = (0..4).map(|_| threads.spawn(take)).collect();
            running.into_iter().map(|thread| thread.join().expect("a count")).sum()
        });
        assert_eq!(admitted, 100);
    }
}

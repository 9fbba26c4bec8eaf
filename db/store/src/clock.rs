//! The wall clock as expiry needs it: a record never expires before its time to live is over.
//!
//! Reads use a time that their worker took at most one loop turn ago, in whole milliseconds. That time may be late, and
//! a record is then seen a moment longer, which is allowed. A deadline counted from such a time would be early by as
//! much. So deadlines are counted from the clock itself, and from the end of the current millisecond.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the milliseconds since the Unix epoch, now; never before `now_ms`, which the caller has used.
#[inline]
pub fn clock_ms(now_ms: u64) -> u64 {
    #[cfg(any(test, feature = "testing"))]
    if let Some(fixed_ms) = FIXED_MS.get() {
        return fixed_ms.max(now_ms);
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64).max(now_ms)
}

/// Returns the expiry of a record that is written now and is to live for `ttl_ms`. `now_ms` is the caller's time.
#[inline]
pub fn expiry_ms(now_ms: u64, ttl_ms: u64) -> u64 {
    clock_ms(now_ms).saturating_add(1).saturating_add(ttl_ms)
}

/// Stops the clock of this thread in a test.
#[cfg(any(test, feature = "testing"))]
#[inline]
pub fn set_fixed_ms(at_ms: Option<u64>) {
    FIXED_MS.set(at_ms);
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static FIXED_MS: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_late_by_a_millisecond_at_most_and_never_early() {
        for taken_us in (0..5_000).step_by(7) {
            // A worker's time is up to some milliseconds old when a write comes.
            for old_ms in 0..3 {
                let now_ms = (1_000_000 + taken_us) / 1000;
                set_fixed_ms(Some(now_ms));
                let end_us = expiry_ms(now_ms - old_ms, 20) * 1000;
                let lived_us = end_us - (1_000_000 + taken_us);
                assert!((20_000..=21_000).contains(&lived_us), "{lived_us} at {taken_us}, {old_ms} old");
            }
        }
        set_fixed_ms(Some(5));
        assert_eq!((clock_ms(9), expiry_ms(9, u64::MAX)), (9, u64::MAX), "a clock that was put back; for ever");
        set_fixed_ms(None);
    }
}

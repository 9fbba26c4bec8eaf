//! Times of expiry as memcached has them: seconds from now, or since 1970 if they are more than a month, or over.

use sandstorm_store::{clock_ms, expiry_ms};

/// Seconds beyond which a time is not from now but since 1970.
const MONTH_S: i64 = 60 * 60 * 24 * 30;

/// A moment that has passed, in milliseconds since 1970: what is written until then is gone.
const PAST_MS: u64 = 1;

/// The expiry of a record written at `now_ms` with this time, in milliseconds since 1970; 0: never.
pub(super) fn expires_at_ms(exptime: impl Into<i64>, now_ms: u64) -> u64 {
    let exptime = exptime.into();
    match u64::try_from(exptime) {
        Err(_) => PAST_MS,
        Ok(0) => 0,
        Ok(seconds) if exptime > MONTH_S => seconds * 1000,
        Ok(seconds) => expiry_ms(now_ms, seconds * 1000),
    }
}

/// Seconds until that expiry, never more than it was given; -1: it does not expire.
pub(super) fn remaining_s(expires_at_ms: u64, now_ms: u64) -> i64 {
    match expires_at_ms {
        0 => -1,
        at_ms => {
            let left_ms = at_ms.saturating_sub(1).saturating_sub(clock_ms(now_ms));
            i64::try_from(left_ms.div_ceil(1000)).unwrap_or(i64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandstorm_store::fix_clock;

    #[test]
    fn seconds_from_now_dates_and_the_past() {
        let now_ms = 1_800_000_000_123;
        assert_eq!(expires_at_ms(0, now_ms), 0);
        fix_clock(Some(now_ms + 3));
        let end_ms = now_ms + 3 + 1;
        assert_eq!(expires_at_ms(1, now_ms), end_ms + 1000, "by the clock, and never early");
        assert_eq!(expires_at_ms(MONTH_S, now_ms), end_ms + 2_592_000_000);
        assert_eq!(expires_at_ms(MONTH_S + 1, now_ms), 2_592_001_000, "long ago");
        assert_eq!(expires_at_ms(1_900_000_000, now_ms), 1_900_000_000_000);
        assert_eq!(expires_at_ms(u32::MAX, now_ms), 4_294_967_295_000, "the binary protocol has no minus");
        assert!(
            (1..now_ms).contains(&expires_at_ms(-1, now_ms)) && (1..now_ms).contains(&expires_at_ms(i32::MIN, now_ms))
        );
        assert_eq!(
            (remaining_s(0, now_ms), remaining_s(end_ms + 100_000, now_ms), remaining_s(5, now_ms)),
            (-1, 100, 0)
        );
        fix_clock(None);
    }
}

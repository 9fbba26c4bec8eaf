//! Time: the processor's counter for charging polls, threads' CPU clocks for judging them, the wall clock for tenants'
//! code.
//!
//! Guarantees: only reads clocks.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Reads the processor's time-stamp counter.
#[inline(always)]
pub(super) fn ticks() -> u64 {
    // SAFETY: every x86_64 processor has the instruction, and Linux lets programs use it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns the microseconds since the Unix epoch, now.
pub(super) fn clock_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Returns the CPU time of a thread, nanoseconds; 0 if the clock is gone.
pub(super) fn cpu_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a local.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
        _ => 0,
    }
}

/// The length of a tick of [`ticks`].
#[derive(Clone, Copy, Debug)]
pub(super) struct TickLength {
    /// Nanoseconds of 2^32 ticks.
    ns_shifted: u64,
}

impl TickLength {
    /// Returns the rate, measured once per process, which takes two milliseconds.
    pub(super) fn measured() -> TickLength {
        static MEASURED: OnceLock<TickLength> = OnceLock::new();
        *MEASURED.get_or_init(|| {
            let (instant, start) = (Instant::now(), ticks());
            while instant.elapsed() < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            let (ns, passed) = (instant.elapsed().as_nanos(), ticks().wrapping_sub(start));
            TickLength { ns_shifted: ((ns << 32) / u128::from(passed.max(1))) as u64 }
        })
    }

    /// Returns the nanoseconds of a number of ticks.
    #[inline]
    pub(super) fn ns(self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.ns_shifted)) >> 32) as u64
    }
    /// Returns the ticks in so many nanoseconds, at most 2^32 of them.
    pub(super) fn ticks(self, ns: u64) -> u64 {
        (ns << 32) / self.ns_shifted.max(1)
    }
}

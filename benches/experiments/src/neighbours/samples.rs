//! The samples of one side of a measurement: the victim's latencies, the times during which the measuring thread did
//! not run, and the processor time that the machine lost.

use std::time::{Duration, Instant};

/// A measuring thread that does not read its clock for so long was not running, or was delayed in the kernel.
const STALL_THRESHOLD: Duration = Duration::from_micros(100);

/// A clock that notices when the thread that polls it was not running.
pub(super) struct StallClock {
    begun: Instant,
    last: Duration,
    /// The time at which the thread last returned from a stall.
    back: Option<Duration>,
    gaps: u64,
}

impl StallClock {
    pub(super) fn new() -> StallClock {
        StallClock { begun: Instant::now(), last: Duration::ZERO, back: None, gaps: 0 }
    }

    pub(super) fn now(&mut self) -> Duration {
        let now = self.begun.elapsed();
        if now.saturating_sub(self.last) > STALL_THRESHOLD {
            self.back = Some(now);
            self.gaps += 1;
        }
        self.last = now;
        now
    }

    /// Returns whether the thread has stalled since that time.
    fn stalled_since(&self, then: Duration) -> bool {
        self.back.is_some_and(|back| back >= then)
    }
}

/// The samples of one side, in one round or in all.
#[derive(Default)]
pub(super) struct VictimSamples {
    latencies_ns: Vec<u64>,
    /// Latencies of the requests during which the measuring thread ran, from their due time until their answer was
    /// read.
    attended_ns: Vec<u64>,
    pub(super) lost: u64,
    pub(super) wrong: u64,
    pub(super) sent: u64,
    pub(super) gaps: u64,
    /// Time that the hypervisor took from all processors, milliseconds.
    pub(super) stolen_ms: u64,
}

impl VictimSamples {
    /// Records an answer to the request that was due at `due`.
    pub(super) fn answered(&mut self, clock: &mut StallClock, due: Duration) {
        let now = clock.now();
        let ns = now.saturating_sub(due).as_nanos() as u64;
        self.latencies_ns.push(ns);
        if !clock.stalled_since(due) {
            self.attended_ns.push(ns);
        }
    }

    pub(super) fn end(&mut self, clock: &StallClock) {
        self.gaps += clock.gaps;
    }

    pub(super) fn append(&mut self, other: &mut VictimSamples) {
        self.latencies_ns.append(&mut other.latencies_ns);
        self.attended_ns.append(&mut other.attended_ns);
        self.lost += other.lost;
        self.wrong += other.wrong;
        self.sent += other.sent;
        self.gaps += other.gaps;
        self.stolen_ms += other.stolen_ms;
    }

    pub(super) fn us(&mut self, at: f64) -> f64 {
        quantile(&mut self.latencies_ns, at)
    }

    pub(super) fn attended_quantile_us(&mut self, at: f64) -> f64 {
        quantile(&mut self.attended_ns, at)
    }

    pub(super) fn count(&self) -> usize {
        self.latencies_ns.len()
    }

    /// Number of samples during which the measuring thread did not run.
    pub(super) fn unattended(&self) -> usize {
        self.latencies_ns.len() - self.attended_ns.len()
    }
}

fn quantile(samples_ns: &mut [u64], quantile: f64) -> f64 {
    samples_ns.sort_unstable();
    let at = (samples_ns.len() as f64 * quantile) as usize;
    let last = samples_ns.len().saturating_sub(1);
    samples_ns.get(at.min(last)).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
}

/// Milliseconds that the hypervisor has taken from all processors since the machine started; 0 where the kernel does
/// not report them.
pub(super) fn stolen_ms() -> u64 {
    let Ok(stat) = std::fs::read_to_string("/proc/stat") else { return 0 };
    let of_all = stat.lines().next().and_then(|line| line.split_whitespace().nth(STEAL_COLUMN));
    of_all.and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or(0) * MS_PER_TICK
}

/// The column of stolen time in the line `cpu` of `/proc/stat`.
const STEAL_COLUMN: usize = 8;
/// The kernel reports times to programs in hundredths of a second, whatever its own clock is.
const MS_PER_TICK: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_a_gap_counts_in_one_column_only() {
        let (mut clock, mut seen) = (StallClock::new(), VictimSamples::default());
        let due = clock.now();
        std::thread::sleep(2 * STALL_THRESHOLD);
        seen.answered(&mut clock, due);
        assert_eq!((seen.count(), seen.unattended()), (1, 1));
        assert!(seen.us(0.99) >= 200.0 && seen.attended_quantile_us(0.99).is_nan());
        let (mut clock, mut seen) = (StallClock::new(), VictimSamples::default());
        clock.back = Some(Duration::from_nanos(1));
        seen.answered(&mut clock, Duration::from_secs(3600));
        assert_eq!((seen.count(), seen.unattended()), (1, 0), "it was back before that was due");
    }
}

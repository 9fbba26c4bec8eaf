//! What a load finds over time: the answers of each period of a run.

use super::Class;
use super::report::coarse_latency_histogram;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Gathers what a tenant's requests find, period by period, from the first moment of a run: give it to
/// [`super::TenantLoad::time_line`], and read it when the run has ended. A request counts in the period in which it
/// ends.
#[derive(Debug)]
pub struct TimeLine {
    period: Duration,
    /// The class whose requests count; `None`: all.
    class: Option<Class>,
    gathered: Mutex<GatheredPeriods>,
}

#[derive(Debug, Default)]
struct GatheredPeriods {
    /// The start of the run: the first period begins there.
    start: Option<Instant>,
    periods: Vec<PeriodTally>,
}

/// The requests that ended in one period.
#[derive(Clone, Debug)]
struct PeriodTally {
    latency_ns: Histogram<u64>,
    errors: u64,
    longest_gap_ns: u64,
}

/// What a load has found in a part of a run.
#[derive(Clone, Copy, Debug)]
pub struct LoadPeriod {
    /// The time at which it begins.
    pub begun: Instant,
    /// Requests that succeeded in a second.
    pub per_s: f64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Median latency of all requests, errors included, in microseconds; as all below NaN if there was none.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// 99.9th percentile of the same.
    pub p999_us: f64,
    /// The longest of the same.
    pub max_us: f64,
    /// The longest time without a success on a connection, if it ended here; in microseconds.
    pub longest_gap_us: f64,
}

impl PeriodTally {
    fn new() -> PeriodTally {
        PeriodTally { latency_ns: coarse_latency_histogram(), errors: 0, longest_gap_ns: 0 }
    }

    fn add(&mut self, other: &PeriodTally) {
        // Both have the same bounds: nothing can be out of range.
        let added = self.latency_ns.add(&other.latency_ns);
        debug_assert!(added.is_ok());
        self.errors += other.errors;
        self.longest_gap_ns = self.longest_gap_ns.max(other.longest_gap_ns);
    }

    fn report(&self, begun: Instant, took: Duration) -> LoadPeriod {
        let us = |ns: u64| if self.latency_ns.is_empty() { f64::NAN } else { ns as f64 / 1_000.0 };
        let quantile = |quantile| us(self.latency_ns.value_at_quantile(quantile));
        let succeeded = self.latency_ns.len() - self.errors;
        LoadPeriod {
            begun,
            per_s: succeeded as f64 / took.as_secs_f64().max(1e-9),
            errors: self.errors,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: us(self.latency_ns.max()),
            longest_gap_us: us(self.longest_gap_ns),
        }
    }
}

impl TimeLine {
    /// Periods of that length; requests of one class alone, or of all.
    pub fn new(period: Duration, class: Option<Class>) -> Arc<TimeLine> {
        Arc::new(TimeLine { period: period.max(Duration::from_millis(1)), class, gathered: Mutex::default() })
    }

    /// All periods, in their order.
    pub fn periods(&self) -> Vec<LoadPeriod> {
        let gathered = self.gathered.lock();
        let Some(start) = gathered.start else { return Vec::new() };
        let report = |(number, tally): (u32, &PeriodTally)| tally.report(start + self.period * number, self.period);
        (0..).zip(&gathered.periods).map(report).collect()
    }

    /// All periods together that have a part between two moments.
    pub fn between(&self, from: Instant, to: Instant) -> LoadPeriod {
        let gathered = self.gathered.lock();
        let (mut sum, mut periods) = (PeriodTally::new(), 0);
        for (number, tally) in (0..).zip(&gathered.periods) {
            let begun = gathered.start.map_or(from, |start| start + self.period * number);
            if begun < to && begun + self.period > from {
                sum.add(tally);
                periods += 1;
            }
        }
        sum.report(from, self.period * periods)
    }
}

/// What one connection finds over time, until it is gathered.
pub(super) struct PeriodRecorder {
    line: Arc<TimeLine>,
    periods: Vec<PeriodTally>,
    last_success_ns: Option<u64>,
}

impl PeriodRecorder {
    pub(super) fn new(line: &Arc<TimeLine>) -> PeriodRecorder {
        PeriodRecorder { line: Arc::clone(line), periods: Vec::new(), last_success_ns: None }
    }

    /// Notes a request that ended so many nanoseconds after the start of the run.
    pub(super) fn note(&mut self, now_ns: u64, class: Class, latency_ns: u64, well: bool) {
        if self.line.class.is_some_and(|only| only != class) {
            return;
        }
        let number = (u128::from(now_ns) / self.line.period.as_nanos()) as usize;
        if self.periods.len() <= number {
            self.periods.resize_with(number + 1, PeriodTally::new);
        }
        let Some(tally) = self.periods.get_mut(number) else { return };
        tally.latency_ns.saturating_record(latency_ns);
        if well {
            let gap_ns = self.last_success_ns.map_or(0, |last_ns| now_ns.saturating_sub(last_ns));
            tally.longest_gap_ns = tally.longest_gap_ns.max(gap_ns);
            self.last_success_ns = Some(now_ns);
        } else {
            tally.errors += 1;
        }
    }

    /// Adds it to what the other connections have found.
    pub(super) fn gather(self, start: Instant) {
        let mut gathered = self.line.gathered.lock();
        gathered.start.get_or_insert(start);
        if gathered.periods.len() < self.periods.len() {
            gathered.periods.resize_with(self.periods.len(), PeriodTally::new);
        }
        gathered.periods.iter_mut().zip(&self.periods).for_each(|(all, one)| all.add(one));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn each_period_has_what_ended_in_it() {
        let line = TimeLine::new(Duration::from_millis(100), Some(Class::Put));
        let start = Instant::now();
        let mut one = PeriodRecorder::new(&line);
        one.note(10 * MS, Class::Put, MS, true);
        one.note(20 * MS, Class::Get, 90 * MS, true);
        one.note(60 * MS, Class::Put, 2 * MS, false);
        one.note(230 * MS, Class::Put, 5 * MS, true);
        let mut other = PeriodRecorder::new(&line);
        other.note(99 * MS, Class::Put, MS, true);
        one.gather(start);
        other.gather(start);
        let periods = line.periods();
        let rates: Vec<(f64, u64)> = periods.iter().map(|period| (period.per_s, period.errors)).collect();
        assert_eq!(rates, [(20.0, 1), (0.0, 0), (10.0, 0)]);
        assert_eq!(periods[1].begun, start + Duration::from_millis(100));
        assert!(periods[1].p99_us.is_nan(), "nothing ended there");
        let gap_ms = (periods[2].longest_gap_us / 1_000.0).round();
        assert_eq!(gap_ms, 220.0, "an error ends no gap");
        let part = line.between(start + Duration::from_millis(150), start + Duration::from_millis(250));
        assert_eq!((part.per_s, (part.max_us / 1_000.0).round()), (5.0, 5.0), "two periods have a part of it");
        let all = line.between(start, start + Duration::from_secs(1));
        assert_eq!((all.per_s, all.errors), (10.0, 1));
    }
}

//! Log-linear histograms of durations: fixed memory, one writer, bounded error.
//!
//! Below [`LINEAR_NS`] a bucket is 32 ns wide. From there on each power of two has 32 buckets, so a bucket is at most a
//! 32nd of its lower bound wide, and its middle is at most 1.6 % away from any duration in it. Durations of more than
//! [`HISTOGRAM_MAX_NS`] count in the last bucket.
//!
//! A histogram is allocated with its first duration (7 KiB), in cache lines of its own.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use super::{MetricKind, MetricSpec, SingleWriterCounter};
use crate::limits::{HISTOGRAM_MAX_NS, HISTOGRAM_STEPS};

/// Bits of a bucket's number within its power of two.
const STEP_BITS: u32 = HISTOGRAM_STEPS.trailing_zeros();
/// The power of two at which buckets begin to grow: below it they are as wide as right above it.
const LINEAR_BITS: u32 = 10;
/// Durations below this, nanoseconds, are in buckets of equal width.
const LINEAR_NS: u64 = 1 << LINEAR_BITS;
/// Buckets of a histogram.
pub const HISTOGRAM_BUCKETS: usize = HISTOGRAM_STEPS * (1 + (HISTOGRAM_MAX_NS.trailing_zeros() - LINEAR_BITS) as usize);

const _: () = assert!(HISTOGRAM_STEPS.is_power_of_two() && HISTOGRAM_MAX_NS.is_power_of_two());

/// The bucket of a duration.
#[inline]
pub fn bucket_of(duration_ns: u64) -> usize {
    if duration_ns < LINEAR_NS {
        return (duration_ns >> (LINEAR_BITS - STEP_BITS)) as usize;
    }
    let exponent = duration_ns.ilog2();
    let step = (duration_ns >> (exponent - STEP_BITS)) as usize & (HISTOGRAM_STEPS - 1);
    ((exponent - LINEAR_BITS + 1) as usize * HISTOGRAM_STEPS + step).min(HISTOGRAM_BUCKETS - 1)
}

/// The durations of a bucket, nanoseconds: the first that is in it, and the first that is not.
pub fn bucket_bounds_ns(bucket: usize) -> (u64, u64) {
    let (octave, step) = ((bucket / HISTOGRAM_STEPS) as u32, (bucket % HISTOGRAM_STEPS) as u64);
    let width_ns = 1 << (LINEAR_BITS - STEP_BITS + octave.saturating_sub(1));
    let from_ns = if octave == 0 { step * width_ns } else { (HISTOGRAM_STEPS as u64 + step) * width_ns };
    (from_ns, from_ns + width_ns)
}

#[derive(Debug)]
struct HistogramCounters {
    sum_ns: SingleWriterCounter,
    buckets: [SingleWriterCounter; HISTOGRAM_BUCKETS],
}

/// A histogram with a single writer: that thread alone may call [`DurationHistogram::record`], any may read.
#[derive(Debug, Default)]
pub struct DurationHistogram(OnceLock<Box<CachePadded<HistogramCounters>>>);

impl DurationHistogram {
    /// Counts `count` durations of this length; only for the thread that owns the histogram.
    #[inline]
    pub fn record(&self, duration_ns: u64, count: u64) {
        let counters = match self.0.get() {
            Some(counters) => counters,
            None => self.allocate(),
        };
        counters.sum_ns.add(duration_ns.wrapping_mul(count));
        counters.buckets[bucket_of(duration_ns)].add(count);
    }

    #[cold]
    fn allocate(&self) -> &CachePadded<HistogramCounters> {
        self.0.get_or_init(|| {
            Box::new(CachePadded::new(HistogramCounters {
                sum_ns: SingleWriterCounter::default(),
                buckets: [const { SingleWriterCounter::new() }; HISTOGRAM_BUCKETS],
            }))
        })
    }

    /// Adds what was counted so far to `counts`.
    pub fn read_into(&self, counts: &mut DurationCounts) {
        let Some(counters) = self.0.get() else { return };
        counts.sum_ns = counts.sum_ns.wrapping_add(counters.sum_ns.get());
        counts.buckets.resize(HISTOGRAM_BUCKETS, 0);
        for (sum, bucket) in counts.buckets.iter_mut().zip(&counters.buckets) {
            *sum += bucket.get();
        }
    }
}

/// A reading of histograms, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationCounts {
    /// The sum of all durations, nanoseconds.
    pub sum_ns: u64,
    /// Durations by bucket; empty if there are none.
    buckets: Vec<u64>,
}

impl DurationCounts {
    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds another reading.
    pub fn add(&mut self, other: &DurationCounts) {
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        if !other.buckets.is_empty() {
            self.buckets.resize(HISTOGRAM_BUCKETS, 0);
        }
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += count;
        }
    }

    /// What was counted since an earlier reading of the same histograms.
    pub fn since(&self, earlier: &DurationCounts) -> DurationCounts {
        let mut buckets = self.buckets.clone();
        for (count, before) in buckets.iter_mut().zip(&earlier.buckets) {
            *count = count.saturating_sub(*before);
        }
        DurationCounts { sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns), buckets }
    }

    /// Counts a duration.
    pub fn note(&mut self, duration_ns: u64) {
        self.sum_ns = self.sum_ns.wrapping_add(duration_ns);
        self.buckets.resize(HISTOGRAM_BUCKETS, 0);
        self.buckets[bucket_of(duration_ns)] += 1;
    }

    /// Adds `count` durations of no length.
    fn add_zeros(&mut self, count: u64) {
        if count > 0 {
            self.buckets.resize(HISTOGRAM_BUCKETS, 0);
            self.buckets[0] += count;
        }
    }

    /// The duration, in nanoseconds, that `per_million` of a million durations do not exceed: the middle of the bucket
    /// that holds it; 0 if there are none.
    pub fn quantile_ns(&self, per_million: u32) -> u64 {
        let count = self.count();
        let rank = (u128::from(count) * u128::from(per_million)).div_ceil(1_000_000).max(1) as u64;
        let mut seen = 0;
        for (bucket, here) in self.buckets.iter().enumerate() {
            seen += here;
            if seen >= rank {
                let (from_ns, to_ns) = bucket_bounds_ns(bucket);
                return from_ns.midpoint(to_ns);
            }
        }
        0
    }

    /// The buckets with durations: the first duration beyond each, nanoseconds, and their number, shortest first.
    pub fn filled_buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let filled = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (bucket_bounds_ns(bucket).1, *count))
    }

    /// Number of durations below `bound_ns`, which is exact where a bucket begins there.
    pub fn below(&self, bound_ns: u64) -> u64 {
        self.buckets.iter().take(bucket_of(bound_ns)).sum()
    }
}

/// The latency of requests of one kind at one worker, which alone writes it.
///
/// Most requests do not wait: a turn serves them as soon as it has received them. For these one histogram says all.
#[derive(Debug, Default)]
pub struct RequestLatency {
    /// Requests that did not wait.
    prompt: DurationHistogram,
    /// Requests that waited: from arrival to answer, then the part before their service, then their service.
    late: [DurationHistogram; 3],
    /// The sending of those for which it was measured.
    sending: DurationHistogram,
}

impl RequestLatency {
    /// Counts `count` requests that waited, and then were served, for so long; only for the worker.
    #[inline]
    pub fn record(&self, waiting_ns: u64, service_ns: u64, count: u64) {
        if waiting_ns == 0 {
            return self.prompt.record(service_ns, count);
        }
        let [total, waiting, service] = &self.late;
        total.record(waiting_ns.saturating_add(service_ns), count);
        waiting.record(waiting_ns, count);
        service.record(service_ns, count);
    }

    /// Counts that the answers to `count` of these requests were sent for so long; only for the worker.
    #[inline]
    pub fn record_sending(&self, sending_ns: u64, count: u64) {
        self.sending.record(sending_ns, count);
    }

    /// Adds what was counted so far to `counts`.
    pub fn read_into(&self, counts: &mut LatencyCounts) {
        self.sending.read_into(&mut counts.sending);
        let mut prompt = DurationCounts::default();
        self.prompt.read_into(&mut prompt);
        let [total, waiting, service] = &self.late;
        total.read_into(&mut counts.total);
        waiting.read_into(&mut counts.waiting);
        service.read_into(&mut counts.service);
        counts.total.add(&prompt);
        counts.service.add(&prompt);
        counts.waiting.add_zeros(prompt.count());
    }
}

/// How long replies were sent that no worker sends: those of calls over HTTP, which the control thread alone counts.
#[derive(Debug, Default)]
pub struct ReplySending(OnceLock<Box<DurationHistogram>>);

impl ReplySending {
    /// Counts a reply; only for the control thread.
    pub fn record(&self, sending_ns: u64) {
        self.0.get_or_init(Box::default).record(sending_ns, 1);
    }

    /// Adds what was counted so far to `counts`.
    pub fn read_into(&self, counts: &mut LatencyCounts) {
        if let Some(sending) = self.0.get() {
            sending.read_into(&mut counts.sending);
        }
    }
}

/// A reading of latencies, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// From arrival to answer.
    pub total: DurationCounts,
    /// The part of it in which nothing was done for the request.
    pub waiting: DurationCounts,
    /// The other part.
    pub service: DurationCounts,
    /// Of some of the requests: the time from their answers' being ready until these had left. It is the end of their
    /// service, but for calls, whose time ends before it.
    pub sending: DurationCounts,
}

impl LatencyCounts {
    /// Adds another reading.
    pub fn add(&mut self, other: &LatencyCounts) {
        self.total.add(&other.total);
        self.waiting.add(&other.waiting);
        self.service.add(&other.service);
        self.sending.add(&other.sending);
    }
}

/// Kinds of requests whose latency is counted apart, in the order of [`RequestClass`].
pub const REQUEST_CLASSES: &[&str] = &["get", "put", "range", "call", "redis", "memcached"];

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestClass {
    /// Reads of keys, one or many.
    Get,
    /// Writes: put, delete, increment.
    Put,
    /// Reads of ranges.
    Range,
    /// Calls of extensions, over any protocol.
    Call,
    /// Commands of Redis clients: what came together, and was answered together, counts once.
    Redis,
    /// The same of memcached clients.
    Memcached,
}

/// The metrics of latency.
pub const LATENCY_METRICS: &[MetricSpec] = &[
    MetricSpec {
        name: "request_duration_seconds",
        kind: MetricKind::Histogram,
        label: Some(("class", REQUEST_CLASSES)),
        meaning: "Time from a request's arrival until its answer is sent, for all tenants that are there now: from when the host received its datagram, if the kernel says when that was, else from when its worker took it. A message counts once, by its first operation; each call counts for itself.",
    },
    MetricSpec {
        name: "tenant_request_duration_seconds",
        kind: MetricKind::Summary,
        label: Some(("class", REQUEST_CLASSES)),
        meaning: "The same by tenant (label `tenant`), for the 50 tenants with most requests, since each was created.",
    },
    MetricSpec {
        name: "tenant_request_waiting_seconds",
        kind: MetricKind::Summary,
        label: Some(("class", REQUEST_CLASSES)),
        meaning: "The part of it in which nothing was done for the request. For calls that is all but their CPU time.",
    },
    MetricSpec {
        name: "tenant_request_service_seconds",
        kind: MetricKind::Summary,
        label: Some(("class", REQUEST_CLASSES)),
        meaning: "The other part. For calls that is their CPU time.",
    },
    MetricSpec {
        name: "tenant_request_sending_seconds",
        kind: MetricKind::Summary,
        label: Some(("class", REQUEST_CLASSES)),
        meaning: "Time from an answer's being ready until it is with the kernel or the device, of one turn in 16 that \
                  answers, and of each call over HTTP. It is the end of what a request takes; for calls it comes after.",
    },
];

/// The latency of a tenant's requests at one worker, by their kind.
#[derive(Debug, Default)]
pub struct ClassLatencies([OnceLock<Box<RequestLatency>>; REQUEST_CLASSES.len()]);

impl ClassLatencies {
    /// Those of one kind.
    #[inline]
    pub fn of(&self, class: RequestClass) -> &RequestLatency {
        let latency = &self.0[class as usize];
        match latency.get() {
            Some(latency) => latency,
            None => latency.get_or_init(Box::default),
        }
    }

    /// Adds what was counted so far to `counts`, which are in the order of [`REQUEST_CLASSES`].
    pub fn read_into(&self, counts: &mut [LatencyCounts; REQUEST_CLASSES.len()]) {
        for (latency, counts) in self.0.iter().zip(counts) {
            if let Some(latency) = latency.get() {
                latency.read_into(counts);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The stated error: 1.6 % from a microsecond on, 16 ns below.
    fn is_within_error(estimate_ns: u64, exact_ns: u64) -> bool {
        estimate_ns.abs_diff(exact_ns) <= (exact_ns / 64).max(16)
    }

    #[test]
    fn buckets_are_gapless_and_as_narrow_as_stated() {
        let mut next_ns = 0;
        for bucket in 0..HISTOGRAM_BUCKETS {
            let (from_ns, to_ns) = bucket_bounds_ns(bucket);
            assert_eq!(from_ns, next_ns, "bucket {bucket}");
            assert!(to_ns - from_ns <= (from_ns / HISTOGRAM_STEPS as u64).max(32));
            assert_eq!((bucket_of(from_ns), bucket_of(to_ns - 1)), (bucket, bucket));
            next_ns = to_ns;
        }
        assert_eq!(next_ns, HISTOGRAM_MAX_NS);
        assert_eq!((bucket_of(HISTOGRAM_MAX_NS), bucket_of(u64::MAX)), (HISTOGRAM_BUCKETS - 1, HISTOGRAM_BUCKETS - 1));
    }

    #[test]
    fn nothing_counted_is_nothing_read_and_takes_no_memory() {
        let (latency, mut counts) = (RequestLatency::default(), LatencyCounts::default());
        latency.read_into(&mut counts);
        assert_eq!(counts, LatencyCounts::default());
        assert_eq!((counts.total.quantile_ns(500_000), counts.total.filled_buckets().count()), (0, 0));
        assert!(size_of::<ClassLatencies>() <= 128, "a tenant without requests");
    }

    #[test]
    fn sending_is_counted_apart_from_the_whole() {
        let (workers, mut counts): ([RequestLatency; 2], _) = (Default::default(), LatencyCounts::default());
        workers[0].record(0, 5_000, 10);
        workers.iter().for_each(|worker| worker.record_sending(2_000, 3));
        workers.iter().for_each(|worker| worker.read_into(&mut counts));
        assert_eq!((counts.sending.count(), counts.sending.sum_ns), (6, 12_000));
        assert_eq!((counts.total.count(), counts.service.sum_ns), (10, 50_000));
        let mut twice = counts.clone();
        twice.add(&counts);
        assert_eq!(twice.sending.count(), 12);
    }

    proptest! {
        /// Quantiles, sums and counts against a sorted list of all durations.
        #[test]
        fn quantiles_are_within_the_stated_error(
            durations in prop::collection::vec((0u64..36, any::<u64>()), 1..300),
            per_million in 0u32..=1_000_000,
        ) {
            let durations: Vec<u64> =
                durations.into_iter().map(|(bits, any)| (any & ((1 << bits) - 1)).min(HISTOGRAM_MAX_NS - 1)).collect();
            let histogram = DurationHistogram::default();
            durations.iter().for_each(|duration_ns| histogram.record(*duration_ns, 1));
            let mut counts = DurationCounts::default();
            histogram.read_into(&mut counts);
            let mut sorted = durations.clone();
            sorted.sort_unstable();
            let rank = (sorted.len() * per_million as usize).div_ceil(1_000_000).max(1);
            let (estimate_ns, exact_ns) = (counts.quantile_ns(per_million), sorted[rank - 1]);
            prop_assert!(is_within_error(estimate_ns, exact_ns), "{estimate_ns} for {exact_ns}");
            prop_assert_eq!(counts.count(), durations.len() as u64);
            prop_assert_eq!(counts.sum_ns, durations.iter().sum::<u64>());
            for bound_ns in [1 << 10, 1 << 16, 1 << 30] {
                let exact = durations.iter().filter(|duration_ns| **duration_ns < bound_ns).count();
                prop_assert_eq!(counts.below(bound_ns), exact as u64, "powers of two are bounds of buckets");
            }
        }

        /// What is read of several workers is what all of them counted, and the parts have as many as the whole.
        #[test]
        fn parts_add_up(requests in prop::collection::vec((0usize..3, 0u64..1 << 20, 0u64..1 << 20, 1u64..5), 0..200)) {
            let workers: [RequestLatency; 3] = Default::default();
            let (mut all, mut waiting_ns, mut service_ns) = (0, 0, 0);
            for (worker, waited, served, count) in requests {
                // Every other one does not wait.
                let waited = if served % 2 == 0 { 0 } else { waited };
                workers[worker].record(waited, served, count);
                all += count;
                waiting_ns += waited * count;
                service_ns += served * count;
            }
            let mut counts = LatencyCounts::default();
            workers.iter().for_each(|worker| worker.read_into(&mut counts));
            let LatencyCounts { total, waiting, service, .. } = counts;
            prop_assert_eq!([total.count(), waiting.count(), service.count()], [all; 3]);
            prop_assert_eq!((waiting.sum_ns, service.sum_ns), (waiting_ns, service_ns));
            prop_assert_eq!(total.sum_ns, waiting_ns + service_ns);
        }
    }
}

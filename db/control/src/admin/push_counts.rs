//! Counters of pushes: their outcomes, and how long they waited and took.

use std::time::Duration;

use parking_lot::Mutex;

use super::error::ApiError;
use sandstorm_metrics::BUILD_RESULTS;
use sandstorm_metrics::latency::PushDurations;

/// The outcome of a push, in the order of [`BUILD_RESULTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushResult {
    /// It is loaded.
    Loaded,
    /// What was pushed is at fault, or a rule or quota does not allow it.
    Refused,
    /// The builder, the server or its disk is at fault.
    Failed,
}

impl PushResult {
    /// The outcome of a push with this answer.
    pub(super) fn of<T>(answer: &Result<T, ApiError>) -> PushResult {
        match answer {
            Ok(_) => PushResult::Loaded,
            Err(error) if error.is_servers_fault() => PushResult::Failed,
            Err(_) => PushResult::Refused,
        }
    }
}

/// Counts of pushes. There are some in a minute, so a lock is as good as counters.
#[derive(Debug, Default)]
pub(super) struct PushCounts(Mutex<CountedPushes>);

#[derive(Debug, Default)]
struct CountedPushes {
    by_result: [u64; BUILD_RESULTS.len()],
    durations: PushDurations,
}

impl PushCounts {
    /// Counts a push that was decided, how long it waited, and how long that took then.
    pub(super) fn note(&self, result: PushResult, waited: Duration, took: Duration) {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let mut counted = self.0.lock();
        counted.by_result[result as usize] += 1;
        counted.durations.waiting.note(ns(waited));
        counted.durations.building.note(ns(took));
    }

    /// Pushes by their outcomes.
    pub(super) fn by_result(&self) -> Vec<u64> {
        self.0.lock().by_result.to_vec()
    }

    /// How long they waited and took.
    pub(super) fn durations(&self) -> PushDurations {
        self.0.lock().durations.clone()
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_builder::BuildError;
    use sandstorm_net::CodeOrigin;

    use super::*;

    #[test]
    fn what_is_the_servers_fault_is_no_refusal() {
        let counts = PushCounts::default();
        let note = |result: PushResult| counts.note(result, Duration::from_millis(5), Duration::from_secs(2));
        let text = || "why".to_owned();
        let of = |error: BuildError| PushResult::of::<()>(&Err(ApiError::build(&error, CodeOrigin::Source)));
        for error in [BuildError::Refused(Vec::new()), BuildError::Compile(Vec::new()), BuildError::Limit(text())] {
            assert_eq!(of(error.clone()), PushResult::Refused, "{error:?}");
            note(of(error));
        }
        let failures = [
            BuildError::Busy(text()),
            BuildError::Toolchain(text()),
            BuildError::Sandbox(text()),
            BuildError::Internal(text()),
        ];
        for error in failures {
            assert_eq!(of(error.clone()), PushResult::Failed, "{error:?}");
            note(of(error));
        }
        assert_eq!(PushResult::of(&Err::<(), _>(ApiError::not_kept("a full disk"))), PushResult::Failed);
        note(PushResult::of::<()>(&Ok(())));
        assert_eq!(counts.by_result(), [1, 3, 4]);
        let PushDurations { waiting, building } = counts.durations();
        assert_eq!((waiting.count(), waiting.sum_ns), (8, 8 * 5_000_000));
        assert_eq!((building.count(), building.sum_ns), (8, 16_000_000_000));
    }
}

//! Counts and times of each command of a tenant's Redis clients.

use std::sync::OnceLock;

use parking_lot::Mutex;

use sandstorm_metrics::SingleWriterCounter;

/// One call in this many is timed, of commands that cannot take long: two clock readings take as long as some of them.
const SAMPLED_ONE_IN: u64 = 64;

/// The counts of one command on one worker.
#[derive(Debug, Default)]
pub struct CommandCounts {
    calls: SingleWriterCounter,
    /// Calls that were answered with an error.
    pub failed: SingleWriterCounter,
    /// Commands that were rejected before they began; they are no calls.
    pub rejected: SingleWriterCounter,
    /// Calls of commands that may take long: each is timed.
    long_calls: SingleWriterCounter,
    long_ns: SingleWriterCounter,
    /// Calls of other commands: some are timed.
    sampled_calls: SingleWriterCounter,
    sampled_ns: SingleWriterCounter,
}

impl CommandCounts {
    /// Counts a call. Returns whether it is to be timed.
    #[inline]
    pub fn begin(&self, quick: bool) -> bool {
        let before = self.calls.get();
        self.calls.add(1);
        !quick || before.is_multiple_of(SAMPLED_ONE_IN)
    }

    /// Notes the time of a call that was timed.
    #[inline]
    pub fn end(&self, quick: bool, took_ns: u64) {
        let (calls, ns) = match quick {
            true => (&self.sampled_calls, &self.sampled_ns),
            false => (&self.long_calls, &self.long_ns),
        };
        calls.add(1);
        ns.add(took_ns);
    }

    fn read(&self) -> [u64; 7] {
        let Self { calls, failed, rejected, long_calls, long_ns, sampled_calls, sampled_ns } = self;
        [calls, failed, rejected, long_calls, long_ns, sampled_calls, sampled_ns].map(SingleWriterCounter::get)
    }
}

/// The counts of one worker, by the commands' numbers; allocated with the first command.
pub(crate) type WorkerCommandCounts = OnceLock<Box<[CommandCounts]>>;

/// The counts of a command on all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandStat {
    /// Commands that were run.
    pub calls: u64,
    /// Calls that ended with an error.
    pub failed: u64,
    /// Commands that were refused before they ran.
    pub rejected: u64,
    /// The time of all calls, estimated from those that were timed.
    pub total_us: u64,
}

/// The counts at the last reset.
#[derive(Debug, Default)]
pub(crate) struct CommandBaseline(Mutex<Vec<[u64; 7]>>);

fn sums<'w>(workers: impl Iterator<Item = &'w WorkerCommandCounts>) -> Vec<[u64; 7]> {
    let mut sums: Vec<[u64; 7]> = Vec::new();
    for counts in workers.filter_map(OnceLock::get) {
        sums.resize(counts.len().max(sums.len()), [0; 7]);
        for (sum, one) in sums.iter_mut().zip(counts) {
            sum.iter_mut().zip(one.read()).for_each(|(sum, number)| *sum += number);
        }
    }
    sums
}

impl CommandBaseline {
    /// Resets the counts of these workers.
    pub(crate) fn forget<'w>(&self, workers: impl Iterator<Item = &'w WorkerCommandCounts>) {
        *self.0.lock() = sums(workers);
    }

    /// The counts since the last reset, by the commands' numbers.
    pub(crate) fn since<'w>(&self, workers: impl Iterator<Item = &'w WorkerCommandCounts>) -> Vec<CommandStat> {
        let before = self.0.lock();
        let since = sums(workers).into_iter().enumerate().map(|(at, mut sum)| {
            let before = before.get(at).copied().unwrap_or_default();
            sum.iter_mut().zip(before).for_each(|(sum, before)| *sum = sum.saturating_sub(before));
            let [calls, failed, rejected, long_calls, long_ns, sampled_calls, sampled_ns] = sum;
            let each_ns = sampled_ns.checked_div(sampled_calls).unwrap_or(0);
            let total_ns = long_ns.saturating_add(each_ns.saturating_mul(calls.saturating_sub(long_calls)));
            CommandStat { calls, failed, rejected, total_us: total_ns / 1000 }
        });
        since.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_quick_calls_stand_for_all_and_what_was_forgotten_is_not_told() {
        let worker = WorkerCommandCounts::new();
        let counts = worker.get_or_init(|| (0..2).map(|_| CommandCounts::default()).collect());
        for _ in 0..SAMPLED_ONE_IN * 10 {
            if counts[1].begin(true) {
                counts[1].end(true, 2_000);
            }
        }
        assert!(counts[1].begin(false), "each that may be long is timed");
        counts[1].end(false, 1_000_000);
        let forgotten = CommandBaseline::default();
        let stats = forgotten.since([&worker].into_iter());
        assert_eq!(stats[0], CommandStat::default());
        let (calls, total_us) = (SAMPLED_ONE_IN * 10 + 1, SAMPLED_ONE_IN * 10 * 2 + 1_000);
        assert_eq!(stats[1], CommandStat { calls, failed: 0, rejected: 0, total_us });
        forgotten.forget([&worker].into_iter());
        assert_eq!(forgotten.since([&worker].into_iter())[1], CommandStat::default());
    }
}

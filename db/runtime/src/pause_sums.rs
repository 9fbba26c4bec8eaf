//! The times between the polls of an invocation, by why each poll ended, in ticks of the processor's counter. The
//! readings are those by which polls are charged.

use sandstorm_accounts::{CallPauses, WaitSum};
use sandstorm_store::LockWaits;

use super::clock::TickLength;

/// Why an invocation is not polled now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PauseKind {
    /// It computed past its slice.
    Switched,
    /// It reads: memory is fetched, or others have their turn between two parts.
    Read,
    /// It has yielded by itself.
    #[default]
    Yield,
    /// It has met records that are not in memory.
    Cold,
    /// It has asked for a call of another extension, or that has ended.
    Call,
    /// Its transaction begins anew.
    Retry,
}

/// The kinds of pauses.
const PAUSE_KINDS: usize = 6;

/// The pause of an invocation that is not polled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenPause {
    /// Since when; 0: it has none.
    pub(super) since_ticks: u64,
    /// When its first poll began.
    pub(super) begun_ticks: u64,
    pub(super) kind: PauseKind,
    /// Whether it has asked for records, in its poll, for which it may yield.
    pub(super) has_asked: bool,
    /// Whether it has had any pause.
    pub(super) has_any: bool,
}

/// All pauses of an invocation that are over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PauseSums {
    /// How often, and for how many ticks, by kind.
    by_kind: [(u32, u64); PAUSE_KINDS],
    /// When it began anew for the last time; 0: never.
    pub(super) vain_until_ticks: u64,
}

impl PauseSums {
    /// Adds a pause.
    pub(super) fn note(&mut self, kind: PauseKind, ticks: u64) {
        let (count, sum_ticks) = &mut self.by_kind[kind as usize];
        *count = count.saturating_add(1);
        *sum_ticks = sum_ticks.saturating_add(ticks);
    }

    /// Adds the pauses of another invocation, which this one has called.
    pub(super) fn add(&mut self, others: &PauseSums) {
        for ((count, ticks), (more, more_ticks)) in self.by_kind.iter_mut().zip(others.by_kind) {
            *count = count.saturating_add(more);
            *ticks = ticks.saturating_add(more_ticks);
        }
    }

    /// The pauses as others read them, of an invocation whose first poll began at `begun_ticks`, and that has waited so
    /// for other threads.
    pub(super) fn read(&self, begun_ticks: u64, locks: LockWaits) -> CallPauses {
        let tick = TickLength::measured();
        let of = |kind: PauseKind| {
            let (count, ticks) = self.by_kind[kind as usize];
            WaitSum::new(count, tick.ns(ticks))
        };
        CallPauses {
            switched: of(PauseKind::Switched),
            reads: of(PauseKind::Read),
            yields: of(PauseKind::Yield),
            cold: of(PauseKind::Cold),
            calls: of(PauseKind::Call),
            retries: of(PauseKind::Retry),
            locks: WaitSum::new(locks.locks, locks.locks_ns),
            commits: WaitSum::new(locks.commits, locks.commits_ns),
            vain_ns: tick.ns(self.vain_until_ticks.saturating_sub(begun_ticks)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_add_up_by_kind_with_those_of_callees() {
        let tick = TickLength::measured();
        let (ms, mut sums, mut callee) = (tick.ticks(1_000_000), PauseSums::default(), PauseSums::default());
        sums.note(PauseKind::Switched, 2 * ms);
        sums.note(PauseKind::Switched, ms);
        sums.note(PauseKind::Retry, ms);
        callee.note(PauseKind::Switched, ms);
        callee.note(PauseKind::Cold, 5 * ms);
        sums.add(&callee);
        sums.vain_until_ticks = 9 * ms;
        let read = sums.read(2 * ms, LockWaits { locks: 2, locks_ns: 7, commits: 1, commits_ns: 5 });
        let about = |sum: WaitSum, count: u32, ns: u64| sum.count == count && sum.ns.abs_diff(ns) < 1_000;
        assert!(about(read.switched, 3, 4_000_000) && about(read.cold, 1, 5_000_000), "{read:?}");
        assert!(about(read.retries, 1, 1_000_000) && read.vain_ns.abs_diff(7_000_000) < 1_000, "{read:?}");
        let nothing = WaitSum::default();
        assert_eq!((read.reads, read.yields, read.calls), (nothing, nothing, nothing));
        assert_eq!((read.locks, read.commits), (WaitSum::new(2, 7), WaitSum::new(1, 5)));
        assert_eq!(PauseSums::default().read(2 * ms, LockWaits::default()), CallPauses::default());
    }
}

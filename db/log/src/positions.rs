//! Whether a position of the log is reached; and positions that wait for copies of the log on other servers, beside
//! the server's own disk.
//!
//! A position counts bytes, so its highest bits are free. A position with [`COPIED_BIT`] is used like any other. It is
//! reached once the copies have the log up to there, and have confirmed lately that no other server has taken this
//! one's place: until the end of a *lease*, on a clock that goes on while the machine sleeps.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Whether changes up to some position are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionState {
    /// They are.
    OnDisk,
    /// They will be in a moment: the log's hook is called then.
    Waits,
    /// It is not known: a write has failed, or takes too long.
    Uncertain,
}

/// The bit of a position that waits for the copies, too. A backing's waits have the bit above it.
pub const COPIED_BIT: u64 = 1 << 62;

/// Returns the position of which one is reached no sooner than both.
#[inline]
pub fn later_position(one: u64, other: u64) -> u64 {
    (one & !COPIED_BIT).max(other & !COPIED_BIT) | (one | other) & COPIED_BIT
}

/// Returns whether a position waits for the copies.
#[inline]
pub fn waits_for_copies(position: u64) -> bool {
    position & COPIED_BIT != 0
}

/// Returns the time since the machine's start, sleep included. It is no time of day, and never set.
pub fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// How far the copies have the log, and until when they allow what that shows.
#[derive(Debug, Default)]
pub(crate) struct CopiedPosition {
    /// Whether such positions wait for copies. Else, without a cluster, for the disk only.
    is_on: AtomicBool,
    position: AtomicU64,
    /// The end of the lease, in nanoseconds of [`boot_time`].
    lease_end_ns: AtomicU64,
    /// Whether copies have been missing for too long.
    is_stalled: AtomicBool,
    /// What waits for such a position or an earlier one is never shown: another server has taken this one's place.
    lost: AtomicU64,
    /// The lowest position that is waited for since then.
    floor: AtomicU64,
}

impl CopiedPosition {
    pub(crate) fn turn_on(&self) {
        self.is_on.store(true, SeqCst);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(SeqCst)
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.is_stalled.load(SeqCst)
    }

    pub(crate) fn position(&self) -> u64 {
        self.position.load(SeqCst)
    }

    /// The lowest position that what is read from now on waits for.
    pub(crate) fn floor(&self) -> u64 {
        self.floor.load(SeqCst)
    }

    pub(crate) fn lose(&self, lost: u64, floor: u64) {
        self.lost.store(lost, SeqCst);
        self.floor.store(floor, SeqCst);
    }

    pub(crate) fn set(&self, position: u64, lease_end: Duration, is_stalled: bool) {
        self.position.store(position, SeqCst);
        self.lease_end_ns.store(u64::try_from(lease_end.as_nanos()).unwrap_or(u64::MAX), SeqCst);
        self.is_stalled.store(is_stalled, SeqCst);
    }

    /// Whether the copies have the log up to a position, and the lease has not run out. What is shown was read before
    /// this call, so it was true at some moment of the lease.
    pub(crate) fn state_of(&self, position: u64) -> PositionState {
        let is_leased = || boot_time().as_nanos() < u128::from(self.lease_end_ns.load(SeqCst));
        let is_reached = self.position() >= position && is_leased();
        // Behind position and lease: those of new copies are set only after what is lost was set.
        let lost = self.lost.load(SeqCst);
        if self.is_on() && lost > 0 && position <= lost {
            PositionState::Uncertain
        } else if !self.is_on() || is_reached {
            PositionState::OnDisk
        } else if self.is_stalled() {
            PositionState::Uncertain
        } else {
            PositionState::Waits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_positions_waits_for_what_both_wait_for() {
        assert_eq!((later_position(5, 9), later_position(9, 0)), (9, 9));
        assert_eq!(later_position(5 | COPIED_BIT, 9), 9 | COPIED_BIT);
        assert_eq!(later_position(9 | COPIED_BIT, 5 | COPIED_BIT), 9 | COPIED_BIT);
        assert!(waits_for_copies(COPIED_BIT) && !waits_for_copies(7));
    }

    #[test]
    fn a_position_is_reached_by_the_copies_and_only_within_the_lease() {
        let copied = CopiedPosition::default();
        assert_eq!(copied.state_of(7), PositionState::OnDisk, "without a cluster there are no copies");
        copied.turn_on();
        assert_eq!(copied.state_of(0), PositionState::Waits, "there is no lease yet");
        let (later, over) = (boot_time() + Duration::from_secs(3_600), boot_time());
        copied.set(7, later, false);
        assert_eq!((copied.state_of(7), copied.state_of(8)), (PositionState::OnDisk, PositionState::Waits));
        copied.lose(7, 9);
        copied.set(9, later, false);
        assert_eq!((copied.state_of(0), copied.state_of(7)), (PositionState::Uncertain, PositionState::Uncertain));
        assert_eq!((copied.floor(), copied.state_of(9)), (9, PositionState::OnDisk));
        copied.lose(0, 0);
        copied.set(7, over, false);
        assert_eq!(copied.state_of(7), PositionState::Waits);
        copied.set(7, over, true);
        assert_eq!(copied.state_of(7), PositionState::Uncertain);
        copied.set(7, later, true);
        assert_eq!((copied.state_of(7), copied.state_of(8)), (PositionState::OnDisk, PositionState::Uncertain));
    }
}

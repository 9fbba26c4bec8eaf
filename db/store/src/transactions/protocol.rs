//! The small core of a commit: the order of its steps, and the state that readers and other commits check meanwhile. No
//! `unsafe`, no records, no tables. `model.rs` compiles it a second time over loom's atomics and explores its
//! interleavings.
//!
//! # Why a commit is seen at one moment
//! 1. *Readers wait.* A commit announces the stripes that it changes before the first change, and takes that back after
//!    the last, with their locks held all the time. A thread that reads one of the changes (acquire) sees the
//!    announcement that was made before it, and waits for the lock in its next get of another. A thread that does not
//!    see it has read nothing of the commit.
//! 2. *Two commits that read what the other one changes cannot both find it unchanged.* Each locks its changes, then
//!    comes a SeqCst fence, then it checks whether the stripes that it has read are locked. Of the two fences one is
//!    first. The other commit's check then sees that lock. If the lock was released meanwhile, that check sees the
//!    writes made under it (the lock's release, and the fence after the check).
//! 3. *Long checks come before the announcement*, so that no reader waits for them: ranges, whose tables are locked as
//!    a whole from before that check until after the fence. So they are unchanged from the check to the fence. A thread
//!    that writes to them after the locks were released, and lets others see that, comes after the announcement.
//! 4. *A change that is not announced* is one of a commit that makes a single one, and keeps all stripes that it has
//!    read locked until then: no thread can tell the moment of its check from that of its change.

use super::sync::{AtomicU64, Lock, Ordering, fence};

/// The stripes of a table that commits are writing to, a bit each: readers of their keys wait.
pub(crate) struct CommitMask(AtomicU64);

impl CommitMask {
    pub(crate) fn new() -> CommitMask {
        CommitMask(AtomicU64::new(0))
    }

    /// Makes readers of some stripes wait, whose locks the caller holds.
    pub(crate) fn add(&self, stripes: u64) {
        self.0.fetch_or(stripes, Ordering::SeqCst);
    }

    /// Ends their wait.
    pub(crate) fn take_back(&self, stripes: u64) {
        self.0.fetch_and(!stripes, Ordering::Release);
    }

    /// Returns whether there are any. While there are none, this is a get's whole cost.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Returns whether the stripe of that number is among them.
    pub(crate) fn has(&self, stripe: usize) -> bool {
        self.0.load(Ordering::Acquire) >> stripe & 1 == 1
    }

    /// Waits until the commit that is writing to a stripe, if any, has installed all of its changes. That commit holds
    /// the stripe's lock until then, and waits for nothing itself.
    pub(crate) fn wait<T>(&self, stripe: usize, lock: &Lock<T>) {
        if self.has(stripe) {
            drop(lock.lock());
        }
    }
}

/// Returns whether another thread is writing to the stripe of that lock. If not, the caller's next reads see everything
/// that was written before its last fence.
pub(crate) fn is_write_locked<T>(lock: &Lock<T>) -> bool {
    let written = lock.is_locked();
    fence(Ordering::Acquire);
    written
}

/// Returns whether a commit happens at one moment without an announcement. It then makes a single change, and all
/// stripes that were read (one flag each) stay locked until that is made.
pub(crate) fn needs_no_announcement(changes: usize, mut reads_locked: impl Iterator<Item = bool>) -> bool {
    changes == 1 && reads_locked.all(|locked| locked)
}

/// A commit's steps between taking its locks and releasing them, by their numbers in `mod.rs`.
pub(crate) trait CommitSteps {
    /// The announcement; dropping it takes it back.
    type Announced;
    /// The reason why nothing is to happen.
    type Failure;

    /// 2. Checks the reads whose stripes are locked until [`CommitSteps::let_go`].
    fn check_locked(&mut self) -> Result<(), Self::Failure>;

    /// 3. Makes readers of the changed stripes wait.
    fn announce(&mut self) -> Self::Announced;

    /// 4. Checks the other reads, behind the fence.
    fn check(&mut self) -> Result<(), Self::Failure>;

    /// 5. Unlocks the stripes that are not changed.
    fn let_go(&mut self);

    /// 6 and 7. Prepares all changes and makes them, or none.
    fn make(&mut self) -> Result<(), Self::Failure>;
}

/// Takes the steps in their order.
pub(crate) fn run_steps<S: CommitSteps>(commit: &mut S) -> Result<(), S::Failure> {
    commit.check_locked()?;
    let announced = commit.announce();
    fence(Ordering::SeqCst);
    commit.check()?;
    commit.let_go();
    commit.make()?;
    // Before the locks: the next holder of one announces its own.
    drop(announced);
    Ok(())
}

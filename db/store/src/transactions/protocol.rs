//! The small core of a commit: in which order it does what, and what readers and other commits go by meanwhile. No
//! `unsafe`, no records, no tables; it is compiled a second time over loom's atomics by `model.rs`, which explores its
//! interleavings.
//!
//! # Why a commit is seen at one moment
//! 1. *Readers wait.* A commit announces the stripes that it changes before the first change, and takes that back after
//!    the last, with their locks held all the time. Who reads one of the changes (acquire) sees the announcement that
//!    was made before it, and waits for the lock in the next get of another; who does not see it has read nothing of
//!    the commit.
//! 2. *Two commits that read what the other one changes cannot both find it unchanged.* Each has locked what it
//!    changes, then comes a SeqCst fence, then it looks whether what it has read is locked. Of the two fences one is
//!    first; the other commit's look then sees that lock, or, if it was let go meanwhile, what was written under it
//!    (the lock's release, and the fence after the look).
//! 3. *What takes long to look at comes before the announcement*, so that no reader waits for it: ranges, whose tables
//!    are locked as a whole from before that look until after the fence. So they are at the fence what they were at the
//!    look; and who writes to them after the locks were let go, and lets others see that, comes after the announcement.
//! 4. *A change that is not announced* is one of a commit that makes a single one, and keeps everything locked until
//!    then that it has read: nobody can tell the moment of its look from that of its change.

use super::sync::{AtomicU64, Lock, Ordering, fence};

/// The stripes of a table that commits are writing to, a bit each: whoever looks for a key of theirs waits.
pub(crate) struct CommitMask(AtomicU64);

impl CommitMask {
    pub(crate) fn new() -> CommitMask {
        CommitMask(AtomicU64::new(0))
    }

    /// Has readers of some stripes wait, whose locks the caller holds.
    pub(crate) fn add(&self, stripes: u64) {
        self.0.fetch_or(stripes, Ordering::SeqCst);
    }

    /// Has them wait no longer.
    pub(crate) fn take_back(&self, stripes: u64) {
        self.0.fetch_and(!stripes, Ordering::Release);
    }

    /// Whether there are any. All that a get pays while there are none.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Whether the stripe of that number is among them.
    pub(crate) fn has(&self, stripe: usize) -> bool {
        self.0.load(Ordering::Acquire) >> stripe & 1 == 1
    }

    /// Waits until the commit that is writing to a stripe, if any, has installed all of its changes: it holds the
    /// stripe's lock until then, and waits for nothing itself.
    pub(crate) fn wait<T>(&self, stripe: usize, lock: &Lock<T>) {
        if self.has(stripe) {
            drop(lock.lock());
        }
    }
}

/// Whether somebody is writing to the stripe of that lock. If not, then what was written before the caller's last fence
/// is seen by what the caller reads next.
pub(crate) fn is_write_locked<T>(lock: &Lock<T>) -> bool {
    let written = lock.is_locked();
    fence(Ordering::Acquire);
    written
}

/// Whether a commit is made at one moment without being announced: it makes a single change, and all that was read (of
/// each: whether it is so) stays locked until that is made.
pub(crate) fn needs_no_announcement(changes: usize, mut stays_locked: impl Iterator<Item = bool>) -> bool {
    changes == 1 && stays_locked.all(|locked| locked)
}

/// What a commit does between taking its locks and letting go of them, by the numbers of the steps in `mod.rs`.
pub(crate) trait CommitSteps {
    /// Takes back, when it is dropped, what was announced.
    type Announced;
    /// Why nothing is to happen.
    type Failure;

    /// 2. Looks at what is locked until [`CommitSteps::let_go`].
    fn check_locked(&mut self) -> Result<(), Self::Failure>;

    /// 3. Has readers of what is to be changed wait.
    fn announce(&mut self) -> Self::Announced;

    /// 4. Looks at the rest, behind the fence.
    fn check(&mut self) -> Result<(), Self::Failure>;

    /// 5. Lets go of what is not changed.
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
    // Before the locks: the next who has one announces its own.
    drop(announced);
    Ok(())
}

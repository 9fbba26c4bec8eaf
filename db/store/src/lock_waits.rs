//! How long a thread, or an invocation, has waited for other threads that write. Nothing is measured where nobody is in
//! the way: a lock that is free costs what it cost before.

use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::ShownPosition;

/// How often its owner has waited for other threads that write, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockWaits {
    /// Writes and commits that waited for a lock of a part of a table.
    pub locks: u32,
    /// For how long, nanoseconds.
    pub locks_ns: u64,
    /// Reads that waited until a commit had made all of its changes.
    pub commits: u32,
    /// For how long, nanoseconds.
    pub commits_ns: u64,
}

impl LockWaits {
    /// Adds others.
    pub fn add(&mut self, others: LockWaits) {
        self.locks = self.locks.saturating_add(others.locks);
        self.locks_ns = self.locks_ns.saturating_add(others.locks_ns);
        self.commits = self.commits.saturating_add(others.commits);
        self.commits_ns = self.commits_ns.saturating_add(others.commits_ns);
    }
}

/// Takes a lock for a write. Notes how long that took if another thread had it.
#[inline]
pub(crate) fn lock_noted<'l, T>(lock: &'l Mutex<T>, shown: &ShownPosition) -> MutexGuard<'l, T> {
    lock.try_lock().unwrap_or_else(|| lock_contended(lock, shown))
}

#[cold]
fn lock_contended<'l, T>(lock: &'l Mutex<T>, shown: &ShownPosition) -> MutexGuard<'l, T> {
    let begun = Instant::now();
    let guard = lock.lock();
    shown.note_lock_waits(LockWaits { locks: 1, locks_ns: since_ns(begun), ..LockWaits::default() });
    guard
}

/// Notes a read that has waited since then for a commit.
#[cold]
pub(crate) fn note_commit_wait(shown: &ShownPosition, begun: Instant) {
    shown.note_lock_waits(LockWaits { commits: 1, commits_ns: since_ns(begun), ..LockWaits::default() });
}

/// Nanoseconds since then; at least one, so that a wait is never none.
fn since_ns(begun: Instant) -> u64 {
    (begun.elapsed().as_nanos() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use super::*;

    /// Another thread has the lock when this one comes, and gives it up a moment later.
    fn meet(lock: &Mutex<()>, shown: &ShownPosition) {
        let taken = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _held = lock.lock();
                taken.wait();
                std::thread::sleep(Duration::from_millis(2));
            });
            taken.wait();
            drop(lock_noted(lock, shown));
        });
    }

    #[test]
    fn a_lock_that_another_thread_has_is_waited_for_and_that_is_noted_once() {
        let (lock, shown) = (Mutex::new(()), ShownPosition::default());
        drop(lock_noted(&lock, &shown));
        assert!(!shown.has_lock_waits(), "it was free");
        // This thread may come so late that the lock is free again: then they meet once more.
        let is_noted = (0..1_000).any(|_| {
            meet(&lock, &shown);
            shown.has_lock_waits()
        });
        let waits = shown.take_lock_waits();
        assert!(is_noted && waits.locks == 1 && waits.locks_ns > 0 && waits.commits == 0, "{waits:?}");
        assert_eq!(
            (shown.has_lock_waits(), shown.take_lock_waits()),
            (false, LockWaits::default()),
            "each is told once"
        );
    }

    #[test]
    fn waits_add_up_and_do_not_overflow() {
        let mut sum = LockWaits { locks: u32::MAX, commits_ns: u64::MAX, ..LockWaits::default() };
        sum.add(LockWaits { locks: 2, locks_ns: 3, commits: 4, commits_ns: 5 });
        assert_eq!(sum, LockWaits { locks: u32::MAX, locks_ns: 3, commits: 4, commits_ns: u64::MAX });
    }
}

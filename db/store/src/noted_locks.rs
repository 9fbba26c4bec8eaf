//! Locks and waits that note how long they took. Without contention nothing is measured: a free lock costs what it cost
//! before.

use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::{LockWaits, ShownPosition};

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
}

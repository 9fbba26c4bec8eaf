//! The latest entries of a list that grows at its end, each with a number: a reader goes on behind the last one that it
//! has seen.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// The latest `MOST` entries: a new one displaces the oldest. The first has the number 1, each other one the next.
#[derive(Debug)]
pub(crate) struct RecentEntries<T, const MOST: usize> {
    entries: Mutex<VecDeque<T>>,
    /// The number of the newest. It changes under the lock alone, so that number and list belong together there.
    total: AtomicU64,
}

/// What is behind an entry in a list, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntries<T> {
    /// The entries, the oldest first: those that are still there.
    pub entries: Vec<T>,
    /// New entries, with those that were displaced before they were read.
    pub count: u64,
    /// The number of the newest entry of the list; 0: there was none ever. The next ones come behind it.
    pub last: u64,
}

impl<T, const MOST: usize> Default for RecentEntries<T, MOST> {
    fn default() -> RecentEntries<T, MOST> {
        RecentEntries { entries: Mutex::default(), total: AtomicU64::new(0) }
    }
}

impl<T: Clone, const MOST: usize> RecentEntries<T, MOST> {
    /// Adds an entry.
    pub(crate) fn add(&self, entry: T) {
        let mut entries = self.entries.lock();
        if entries.len() >= MOST {
            entries.pop_front();
        }
        entries.push_back(entry);
        self.total.fetch_add(1, Relaxed);
    }

    /// Entries that there were ever. It may be ahead of what a reader of the list has found before.
    #[inline]
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// All that are there, the newest first.
    pub(crate) fn newest_first(&self) -> Vec<T> {
        self.entries.lock().iter().rev().cloned().collect()
    }

    /// The entries behind the one of a number. A number that the list has not reached is of another list, which was
    /// there before: then all entries are new.
    pub(crate) fn after(&self, number: u64) -> NewEntries<T> {
        // Readers look often, and there is seldom something.
        if self.total() == number {
            return NewEntries { entries: Vec::new(), count: 0, last: number };
        }
        let entries = self.entries.lock();
        let last = self.total();
        let count = last.checked_sub(number).unwrap_or(last);
        let known = usize::try_from(count).unwrap_or(usize::MAX).min(entries.len());
        NewEntries { entries: entries.range(entries.len() - known..).cloned().collect(), count, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_a_number_is_read_once_and_what_was_displaced_is_counted() {
        let list: RecentEntries<u64, 4> = RecentEntries::default();
        assert_eq!(list.after(0), NewEntries { entries: Vec::new(), count: 0, last: 0 });
        (1..=3).for_each(|number| list.add(number));
        assert_eq!(list.after(1), NewEntries { entries: vec![2, 3], count: 2, last: 3 });
        assert_eq!(list.after(3), NewEntries { entries: Vec::new(), count: 0, last: 3 });
        (4..=9).for_each(|number| list.add(number));
        assert_eq!(list.after(3), NewEntries { entries: vec![6, 7, 8, 9], count: 6, last: 9 });
        assert_eq!((list.newest_first(), list.total()), (vec![9, 8, 7, 6], 9));
        let other: RecentEntries<u64, 4> = RecentEntries::default();
        other.add(1);
        assert_eq!(other.after(9), NewEntries { entries: vec![1], count: 1, last: 1 }, "the list began anew");
    }

    #[test]
    fn a_reader_beside_a_writer_finds_each_entry_once() {
        const ENTRIES: u64 = 200_000;
        let list: RecentEntries<u64, 64> = RecentEntries::default();
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=ENTRIES {
                    // None is displaced before it is read.
                    while number > seen.load(Relaxed) + 64 {
                        std::thread::yield_now();
                    }
                    list.add(number);
                }
            });
            while seen.load(Relaxed) < ENTRIES {
                let before = seen.load(Relaxed);
                let new = list.after(before);
                let is_whole = new.entries.iter().copied().eq(before + 1..=new.last);
                // A failure ends the writer, too: it waits for what was seen.
                seen.store(if is_whole { new.last } else { u64::MAX / 2 }, Relaxed);
                assert!(is_whole && new.count == new.last - before, "behind {before}: {new:?}");
            }
        });
    }
}

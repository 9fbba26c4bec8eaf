//! Records that a load adds while it runs: hands out ids to write, and tracks up to where all exist.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The records of one tenant, shared by all its connections.
#[derive(Debug)]
pub(super) struct InsertTracker {
    /// All ids below this one exist.
    there: AtomicU64,
    inserts: Mutex<InsertState>,
}

#[derive(Debug)]
struct InsertState {
    next: u64,
    /// Ids whose insert failed; the next inserts take them, so that no gap remains.
    again: Vec<u64>,
    /// Ids that are there, behind one that is not yet.
    out_of_order: BTreeSet<u64>,
}

impl InsertTracker {
    pub(super) fn new(records: u64) -> InsertTracker {
        let inserts = InsertState { next: records, again: Vec::new(), out_of_order: BTreeSet::new() };
        InsertTracker { there: AtomicU64::new(records), inserts: Mutex::new(inserts) }
    }

    /// Returns the number of records that can be asked for: all ids below it exist.
    pub(super) fn there(&self) -> u64 {
        self.there.load(Relaxed)
    }

    /// The id of a record to insert.
    pub(super) fn take(&self) -> u64 {
        let mut inserts = self.inserts.lock();
        inserts.again.pop().unwrap_or_else(|| {
            inserts.next += 1;
            inserts.next - 1
        })
    }

    /// The insert of `id` has ended, well or not.
    pub(super) fn ended(&self, id: u64, well: bool) {
        let mut inserts = self.inserts.lock();
        if !well {
            inserts.again.push(id);
            return;
        }
        inserts.out_of_order.insert(id);
        let mut there = self.there();
        while inserts.out_of_order.remove(&there) {
            there += 1;
        }
        self.there.store(there, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_when_all_before_them_are_there_and_failed_ones_are_tried_again() {
        let growth = InsertTracker::new(10);
        assert_eq!([growth.take(), growth.take(), growth.take()], [10, 11, 12]);
        growth.ended(12, true);
        growth.ended(10, false);
        growth.ended(11, true);
        assert_eq!((growth.there(), growth.take()), (10, 10));
        growth.ended(10, true);
        assert_eq!((growth.there(), growth.take()), (13, 13));
    }
}

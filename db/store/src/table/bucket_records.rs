//! The records of one bucket, for scans and sweeps.

use crate::limits::MAX_CHAIN_BUCKETS;
use crate::record::RecordPtr;

/// The most records in one bucket of an array and the previous array's buckets of its range, where chains are no longer
/// than inserts make them. At most two of the latter overlap it, since the previous array is smaller.
const INLINE_RECORDS: usize = 3 * 4 * MAX_CHAIN_BUCKETS;

/// The records of one bucket and its predecessors, as a scan collects them. Unused room is not initialised again and
/// again: the array holds options of pointers.
pub(super) struct BucketRecords {
    records: [Option<(u64, RecordPtr)>; INLINE_RECORDS],
    len: usize,
    /// The records that do not fit there: those of a crowd, see `buckets::chain_limits`.
    more: Vec<Option<(u64, RecordPtr)>>,
}

impl Default for BucketRecords {
    fn default() -> Self {
        BucketRecords { records: [None; INLINE_RECORDS], len: 0, more: Vec::new() }
    }
}

impl BucketRecords {
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.more.clear();
    }

    pub(super) fn push(&mut self, hash: u64, record: RecordPtr) {
        match self.records.get_mut(self.len) {
            Some(slot) => {
                *slot = Some((hash, record));
                self.len += 1;
            }
            None => self.more.push(Some((hash, record))),
        }
    }

    /// Sorted by hash, each record once (one that moved meanwhile was met twice).
    pub(super) fn in_order(&mut self) -> impl Iterator<Item = (u64, RecordPtr)> {
        let mut records = &mut self.records[..self.len];
        if !self.more.is_empty() {
            self.more.extend_from_slice(records);
            records = &mut self.more;
        }
        records.sort_unstable_by_key(|entry| entry.map(|(hash, record)| (hash, record.as_ptr().addr())));
        let mut last = None;
        records.iter().flatten().copied().filter(move |(_, record)| last.replace(*record) != Some(*record))
    }
}

//! Ranges within a transaction: the table's records, with the transaction's own writes laid over them.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::iter::Peekable;

use super::log::LoggedValue;
use super::{Transaction, TransactionRecord};
use crate::Error;
use crate::host::RangeRemainder;
use crate::keys::Direction;
use crate::range::check_limit;
use crate::record::{Record, TableId};
use crate::yielding::yield_now;

/// A transaction's view of a range.
struct MergedRange<'a> {
    seen: Vec<TransactionRecord<'a>>,
    /// Records of the table that lie between the range's beginning and the last that is shown, or its end.
    rows: usize,
}

impl<'a> Transaction<'a> {
    /// Reads a range as [`Db::range`](crate::Db::range) does, with the transaction's own writes laid over it. When the
    /// transaction is committed, the table must hold these records in the range, as far as it was shown, and no others.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let tx = db.transaction();
    /// for record in tx.range(table, b"a", b"b", 10, Direction::Forward).await? {
    ///     tx.delete(table, record.key()).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Db::range`](crate::Db::range); `TooLarge` when the transaction has read `TRANSACTION_RANGES` ranges, met
    /// `TRANSACTION_ROWS` records in them, or keys of `TRANSACTION_ROW_BYTES`.
    pub async fn range(
        &self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        limit: usize,
        direction: Direction,
    ) -> Result<Vec<TransactionRecord<'a>>, Error> {
        check_limit(limit)?;
        let mut left = RangeRemainder::new(from, to, direction);
        let (mut records, mut bytes) = (Vec::new(), from.len() + to.len());
        // The transaction's own writes may hide as many.
        let mut want = limit + self.written(table, from, to, direction).len();
        loop {
            let before = records.len();
            self.host.range(table.0, &mut left, want - before, &mut records)?;
            bytes += records[before..].iter().map(|record| record.key.len()).sum::<usize>();
            self.notes.borrow().check_range(records.len(), bytes)?;
            if left.is_finished() || records.len() >= want {
                // Another future of the transaction may have written more by now.
                let written = self.written(table, from, to, direction);
                let shown = self.merge_writes((&records, left.is_finished()), &written, limit, direction);
                if left.is_finished() || shown.seen.len() == limit {
                    let last = shown.seen.get(limit - 1).map(TransactionRecord::key);
                    let mut notes = self.notes.borrow_mut();
                    // When the range is checked again, it ends at the last record that was shown.
                    notes.check_range(shown.rows, bytes + last.map_or(0, <[u8]>::len))?;
                    notes.log_range(table, (from, to), last, direction, &records[..shown.rows]);
                    return Ok(shown.seen);
                }
                want = records.len() + limit - shown.seen.len();
            }
            if self.host.interleave() {
                yield_now().await;
            }
        }
    }

    /// Returns the writes of the transaction between two keys, in the range's order.
    pub(super) fn written(
        &self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        direction: Direction,
    ) -> Vec<(&'a [u8], Option<LoggedValue>)> {
        let notes = self.notes.borrow();
        let mut written = Vec::new();
        for note in notes.list.iter().filter(|note| note.table == table.0) {
            let (Some(stored), key) = (note.written, self.host.kept(note.key)) else { continue };
            if from <= key && (to.is_empty() || key < to) {
                written.push((key, stored.filter(|stored| stored.is_live_at(self.host.now_ms()))));
            }
        }
        written.sort_unstable_by(|(a, _), (b, _)| compare_keys(a, b, direction));
        written
    }

    /// Merges records and writes, and returns the first `limit` of both. If the records are not all that there are, it
    /// goes only as far as they do.
    fn merge_writes(
        &self,
        (records, are_all): (&[Record<'a>], bool),
        written: &[(&'a [u8], Option<LoggedValue>)],
        limit: usize,
        direction: Direction,
    ) -> MergedRange<'a> {
        let (mut records, mut written) = (records.iter().peekable(), written.iter().peekable());
        let mut shown = MergedRange { seen: Vec::new(), rows: 0 };
        while shown.seen.len() < limit && (are_all || records.peek().is_some()) {
            let first = compare_next(&mut records, &mut written, direction);
            let Some(first) = first else { break };
            let record = if first.is_le() { records.next() } else { None };
            shown.rows += usize::from(record.is_some());
            let own = if first.is_ge() { written.next() } else { None };
            match (own, record) {
                (Some((key, Some(stored))), _) => {
                    shown.seen.push(TransactionRecord {
                        key,
                        value: self.host.kept(stored.value),
                        flags: stored.flags,
                    });
                }
                (None, Some(record)) => {
                    shown.seen.push(TransactionRecord { key: record.key, value: record.value, flags: record.flags });
                }
                (Some((_, None)), _) | (None, None) => {}
            }
        }
        shown
    }
}

fn compare_keys(a: &[u8], b: &[u8], direction: Direction) -> Ordering {
    match direction {
        Direction::Forward => a.cmp(b),
        Direction::Backward => b.cmp(a),
    }
}

/// Returns `Less` if a record comes first, `Greater` if a write does, and `Equal` if both have the same key; `None`:
/// neither is left.
fn compare_next<'a: 'r, 'r>(
    records: &mut Peekable<impl Iterator<Item = &'r Record<'a>>>,
    written: &mut Peekable<impl Iterator<Item = &'r (&'a [u8], Option<LoggedValue>)>>,
    direction: Direction,
) -> Option<Ordering> {
    match (records.peek(), written.peek()) {
        (None, None) => None,
        (Some(_), None) => Some(Ordering::Less),
        (None, Some(_)) => Some(Ordering::Greater),
        (Some(record), Some((key, _))) => Some(compare_keys(record.key, key, direction)),
    }
}

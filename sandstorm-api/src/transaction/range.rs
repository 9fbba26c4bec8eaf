//! Ranges within a transaction: what is in the table, with its own writes laid over it.

use alloc::format;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::iter::Peekable;
use core::ops::Range;

use super::{LoggedValue, Seen, Transaction, TransactionLog};
use crate::abi::{RawRangeRead, RawRow};
use crate::host::{InvocationBytes, RangeRemainder};
use crate::limits::{TRANSACTION_RANGES, TRANSACTION_ROW_BYTES, TRANSACTION_ROWS};
use crate::range::check_limit;
use crate::{Direction, Error, Record, TableId, yield_now};

/// A range that was read, as far as it was shown.
pub(super) struct LoggedRange {
    table: u64,
    from: InvocationBytes,
    to: InvocationBytes,
    /// `to` is part of it.
    included: bool,
    backward: bool,
    /// Among the rows of all ranges.
    rows: Range<usize>,
}

/// What a transaction shows of a range.
struct MergedRange<'a> {
    seen: Vec<Seen<'a>>,
    /// Records of the table that lie between the range's beginning and the last that is shown, or its end.
    rows: usize,
}

impl<'a> Transaction<'a> {
    /// Reads a range as [`Db::range`](crate::Db::range) does, with the transaction's own writes laid over it. When the
    /// transaction is committed, the table must hold these records in the range, as far as it was shown, and no others.
    ///
    /// # Errors
    /// As [`Db::range`](crate::Db::range); `TooLarge` when the transaction has read [`TRANSACTION_RANGES`] ranges, met
    /// [`TRANSACTION_ROWS`] records in them, or keys of [`TRANSACTION_ROW_BYTES`].
    pub async fn range(
        &self,
        table: TableId,
        from: &[u8],
        to: &[u8],
        limit: usize,
        direction: Direction,
    ) -> Result<Vec<Seen<'a>>, Error> {
        check_limit(limit)?;
        let mut left = RangeRemainder::new(from, to, direction);
        let (mut records, mut bytes) = (Vec::new(), from.len() + to.len());
        // What it has written may hide as many.
        let mut want = limit + self.written(table, from, to, direction).len();
        loop {
            let before = records.len();
            self.host.range(table.0, &mut left, want - before, &mut records)?;
            bytes += records[before..].iter().map(|record| record.key.len()).sum::<usize>();
            self.notes.borrow().check_range(records.len(), bytes)?;
            if left.is_finished() || records.len() >= want {
                // It may have written more meanwhile, by another of its futures.
                let written = self.written(table, from, to, direction);
                let shown = self.merge_writes((&records, left.is_finished()), &written, limit, direction);
                if left.is_finished() || shown.seen.len() == limit {
                    let last = shown.seen.get(limit - 1).map(Seen::key);
                    let mut notes = self.notes.borrow_mut();
                    // What is shown last is where the range ends, when it is looked at again.
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

    /// What the transaction has written between two keys, in the range's order.
    fn written(
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

    /// The first `limit` of what is there when both are taken together; where the records are not all that there are,
    /// as far as they go.
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
                    shown.seen.push(Seen { key, value: self.host.kept(stored.value), flags: stored.flags });
                }
                (None, Some(record)) => {
                    shown.seen.push(Seen { key: record.key, value: record.value, flags: record.flags });
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

/// Whether a record comes first (`Less`), something written (`Greater`), or both are of the same key; `None`: neither
/// is left.
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

impl TransactionLog {
    /// Whether it may read one more range, of so many records, and bytes of their keys and its ends.
    fn check_range(&self, rows: usize, bytes: usize) -> Result<(), Error> {
        if self.ranges.len() >= TRANSACTION_RANGES {
            return Err(Error::too_large(format!("a transaction may read {TRANSACTION_RANGES} ranges")));
        }
        if self.rows.len() + rows > TRANSACTION_ROWS {
            return Err(Error::too_large(format!("a transaction may meet {TRANSACTION_ROWS} records in its ranges")));
        }
        if self.row_bytes + bytes > TRANSACTION_ROW_BYTES {
            let text = format!("a transaction may meet keys of {TRANSACTION_ROW_BYTES} bytes in its ranges");
            return Err(Error::too_large(text));
        }
        Ok(())
    }

    /// Notes a range of which everything up to `last` was shown, or everything.
    fn log_range(
        &mut self,
        table: TableId,
        (from, to): (&[u8], &[u8]),
        last: Option<&[u8]>,
        direction: Direction,
        records: &[Record<'_>],
    ) {
        let first_row = self.rows.len();
        for record in records {
            let (key, key_len) = InvocationBytes::record(record.key).parts();
            self.rows.push(RawRow { key, key_len, version: record.version });
            self.row_bytes += key_len;
        }
        let (from, to, included) = match (last, direction) {
            // What is shown are parts of records or copies, which stay.
            (Some(last), Direction::Forward) => (self.keeper.copy(from), InvocationBytes::record(last), true),
            (Some(last), Direction::Backward) => (InvocationBytes::record(last), self.keeper.copy(to), false),
            (None, _) => (self.keeper.copy(from), self.keeper.copy(to), false),
        };
        self.row_bytes += from.parts().1 + to.parts().1;
        self.ranges.push(LoggedRange {
            table: table.0,
            from,
            to,
            included,
            backward: direction == Direction::Backward,
            rows: first_row..self.rows.len(),
        });
    }

    /// The ranges that the host is to look at again.
    pub(crate) fn raw_ranges(&self) -> Vec<RawRangeRead> {
        let raw = |range: &LoggedRange| {
            let ((from, from_len), (to, to_len)) = (range.from.parts(), range.to.parts());
            let rows = &self.rows[range.rows.clone()];
            let (included, backward) = (u32::from(range.included), u32::from(range.backward));
            let (rows, rows_len) = (rows.as_ptr(), rows.len());
            RawRangeRead { table: range.table, from, from_len, to, to_len, rows, rows_len, included, backward }
        };
        self.ranges.iter().map(raw).collect()
    }
}

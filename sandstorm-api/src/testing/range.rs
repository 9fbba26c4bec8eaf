//! Ranges over a [`TestStore`].
//!
//! Guarantees: it reads what its pointers point to only during the call, and what it hands out is kept until the
//! invocation ends.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use core::ops::Bound;

use super::arguments::{slice_argument, test_invocation};
use super::{MAX_KEY_LEN, TestRecord, TestStore, TestTable};
use crate::abi::{self, InvocationHeader, MAX_CALL_RECORDS, RawKeys, RawRange, RawRangeRead, RawRecord};
use crate::limits::{TRANSACTION_RANGES, TRANSACTION_ROW_BYTES, TRANSACTION_ROWS};

/// The keys from one on, which is itself left out if `past`, up to another, which is itself part of it if `included`.
/// No `to`: all.
pub(super) struct KeySpan<'k> {
    from: &'k [u8],
    past: bool,
    to: Option<&'k [u8]>,
    included: bool,
}

impl KeySpan<'_> {
    fn is_empty(&self) -> bool {
        let both = self.included && !self.past;
        self.to.is_some_and(|to| to < self.from || to == self.from && !both)
    }

    /// Those of the table's records in it that have not expired, in the order of their keys.
    pub(super) fn records<'t>(
        &self,
        table: &'t TestTable,
        now_ms: u64,
    ) -> impl DoubleEndedIterator<Item = &'t Arc<TestRecord>> {
        let first = if self.past { Bound::Excluded(self.from) } else { Bound::Included(self.from) };
        let last = match self.to {
            None => Bound::Unbounded,
            Some(to) if self.included => Bound::Included(to),
            Some(to) => Bound::Excluded(to),
        };
        // The map panics at ends that have nothing between them.
        let nothing = (Bound::Included(self.from), Bound::Excluded(self.from));
        let ends = if self.is_empty() { nothing } else { (first, last) };
        let records = table.places.range::<[u8], _>(ends).filter_map(|(_, place)| table.records.get(place));
        records.filter(move |record| record.is_live_at(now_ms))
    }
}

pub(super) fn ordered_table(store: &TestStore, table: u64) -> Result<&TestTable, u32> {
    let table = store.reach(table)?;
    if table.ordered { Ok(table) } else { Err(abi::STATUS_NOT_ORDERED) }
}

/// The table that a range is asked of, and the span that is left of it.
///
/// # Safety
/// The range's ends outlive `'k`.
pub(super) unsafe fn requested_span<'s, 'k>(
    store: &'s TestStore,
    table: u64,
    range: &RawRange,
) -> Result<(&'s TestTable, KeySpan<'k>), u32> {
    let table = ordered_table(store, table)?;
    if range.from_len.max(range.to_len) > MAX_KEY_LEN + 1 {
        return Err(abi::STATUS_TOO_LARGE);
    }
    // SAFETY: this function's contract.
    let (from, to) = unsafe { (slice_argument(range.from, range.from_len), slice_argument(range.to, range.to_len)) };
    let to = Some(to).filter(|to| !to.is_empty());
    Ok((table, KeySpan { from, past: range.past != 0, to, included: false }))
}

pub(super) unsafe extern "C" fn range(
    inv: *mut InvocationHeader,
    table: u64,
    range: *mut RawRange,
    out: *mut RawRecord,
    limit: usize,
    filled: *mut usize,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a range whose ends are live, room for `limit`
    // records and for a count.
    let (behind, range, out, filled) = unsafe {
        (
            test_invocation(inv),
            &mut *range,
            core::slice::from_raw_parts_mut(out, limit.min(MAX_CALL_RECORDS)),
            &mut *filled,
        )
    };
    *filled = 0;
    // SAFETY: as above.
    let (table, span) = match unsafe { requested_span(&behind.store, table, range) } {
        Ok(asked) => asked,
        Err(status) => return status,
    };
    let mut records = span.records(table, behind.store.now_ms);
    for slot in out {
        let next = if range.backward != 0 { records.next_back() } else { records.next() };
        let Some(record) = next.filter(|_| range.finished == 0) else {
            range.finished = 1;
            break;
        };
        *slot = record.raw();
        *filled += 1;
        behind.held.push(Arc::clone(record));
        if range.backward == 0 {
            (range.from, range.from_len, range.past) = (record.key.as_ptr(), record.key.len(), 1);
        } else {
            (range.to, range.to_len) = (record.key.as_ptr(), record.key.len());
            // Nothing is before the empty key, and as an end it would stand for all.
            range.finished = u32::from(record.key.is_empty());
        }
    }
    abi::STATUS_OK
}

pub(super) unsafe extern "C" fn range_keys(
    inv: *mut InvocationHeader,
    table: u64,
    range: *mut RawRange,
    out: *mut RawKeys,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a range whose ends are live, and the room that it
    // names.
    let (behind, range, out) = unsafe { (test_invocation(inv), &mut *range, &mut *out) };
    out.filled = 0;
    // SAFETY: as above.
    let (table, span) = match unsafe { requested_span(&behind.store, table, range) } {
        Ok(asked) => asked,
        Err(status) => return status,
    };
    // Expired records have keys until they are met.
    let mut records = span.records(table, 0);
    let mut used = 0;
    while out.filled < out.ends_len.min(MAX_CALL_RECORDS) {
        let next = if range.backward != 0 { records.next_back() } else { records.next() };
        let Some(record) = next.filter(|_| range.finished == 0) else {
            range.finished = 1;
            break;
        };
        if used + record.key.len() > out.bytes_len {
            break;
        }
        // SAFETY: there is room for the key and for one more end.
        unsafe {
            out.bytes.add(used).copy_from_nonoverlapping(record.key.as_ptr(), record.key.len());
            used += record.key.len();
            out.ends.add(out.filled).write(used);
        }
        out.filled += 1;
    }
    abi::STATUS_OK
}

/// Checks whether ranges that were read still have the same content.
///
/// # Safety
/// Their ends, rows, and the rows' keys are live.
pub(super) unsafe fn validate_ranges(store: &TestStore, ranges: &[RawRangeRead]) -> Result<(), u32> {
    let (mut rows_seen, mut bytes_seen) = (0, 0);
    for range in ranges {
        let is_counted = range.backward == abi::RANGE_COUNTED;
        // SAFETY: the caller's promise.
        let (from, to, rows) = unsafe {
            let rows = if is_counted { &[] } else { core::slice::from_raw_parts(range.rows, range.rows_len) };
            (slice_argument(range.from, range.from_len), slice_argument(range.to, range.to_len), rows)
        };
        rows_seen += rows.len();
        bytes_seen += from.len() + to.len() + rows.iter().map(|row| row.key_len).sum::<usize>();
        if rows_seen > TRANSACTION_ROWS || bytes_seen > TRANSACTION_ROW_BYTES || ranges.len() > TRANSACTION_RANGES {
            return Err(abi::STATUS_TOO_LARGE);
        }
        let included = range.included != 0;
        let span = KeySpan { from, past: false, to: Some(to).filter(|to| included || !to.is_empty()), included };
        let table = ordered_table(store, range.table)?;
        if is_counted {
            match span.records(table, 0).count() == range.rows_len {
                true => continue,
                false => return Err(abi::STATUS_CONFLICT),
            }
        }
        let mut records = span.records(table, store.now_ms);
        let mut same = true;
        for row in rows {
            let record = if range.backward != 0 { records.next_back() } else { records.next() };
            // SAFETY: the caller's promise.
            let key = unsafe { slice_argument(row.key, row.key_len) };
            same &= record.is_some_and(|record| *record.key == *key && record.version == row.version);
        }
        if !same || records.next().is_some() {
            return Err(abi::STATUS_CONFLICT);
        }
    }
    Ok(())
}

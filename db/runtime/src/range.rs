//! The host's functions that read a range of an ordered table, its keys or positions, and the ranges of a commit.
//!
//! Guarantees: as `host.rs`; the ends of a range that the library gets back are keys of records, which stay until the
//! invocation's pin ends. The library's lengths are bounded before anything is read.
#![allow(unsafe_code)]

use sandstorm_api::abi::{self, MAX_CALL_RECORDS, RawKeys, RawRange, RawRangeRead, RawRecord};
use sandstorm_api::limits::{TRANSACTION_ROW_BYTES, TRANSACTION_ROWS};

use super::host_call::{call, guest_bytes, guest_list, raw_record, resolve_table, status_code};
use super::invocation::InvocationState;
use sandstorm_store::limits::MAX_KEY_BYTES;
use sandstorm_store::transactions::{MetInRange, RangeRead};
use sandstorm_store::{KeyRange, Participant, RangeProgress, RecordRef, RecordTable, ScanBudget};

/// Bytes that an end of a range may have: the key that comes after the longest one is longer by a byte.
const MAX_BOUND_BYTES: usize = MAX_KEY_BYTES + 1;

/// Returns the rest of a range as a span.
///
/// # Safety
/// The range's ends outlive `'k`.
unsafe fn span_of<'k>(asked: &RawRange) -> Result<KeyRange<'k>, u32> {
    // SAFETY: this function's contract.
    let (from, to) = unsafe {
        (
            guest_bytes(asked.from, asked.from_len, MAX_BOUND_BYTES)?,
            guest_bytes(asked.to, asked.to_len, MAX_BOUND_BYTES)?,
        )
    };
    Ok(KeyRange { past: asked.past != 0, ..KeyRange::new(from, to, asked.backward != 0) })
}

pub(super) unsafe extern "C" fn range(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    range: *mut RawRange,
    out: *mut RawRecord,
    limit: usize,
    filled: *mut usize,
) -> u32 {
    // SAFETY: the library's range and its ends, its results (room for `limit` records) and count outlive the call; the
    // records, and with them the ends that it is given, stay until the invocation's pin ends.
    let read = |body: &mut InvocationState, _: &Participant| unsafe {
        filled.write(0);
        body.pause.has_asked = true;
        let now_ms = body.abi.now_ms;
        let table: *const RecordTable = body.table(table)?;
        let table = &*table;
        let asked = *range;
        let mut span = span_of(&asked)?;
        let (mut count, mut read_bytes) = (0, 0);
        let mut add = |record: RecordRef<'_>| {
            let record = raw_record(&record);
            read_bytes += record.value_len as u64;
            out.add(count).write(record);
            count += 1;
        };
        let limit = if asked.finished == 0 { limit.min(MAX_CALL_RECORDS) } else { 0 };
        let progress = table.range_pinned(&mut span, limit, now_ms, &mut { ScanBudget::CALL }, &body.shown, &mut add);
        let progress = progress.map_err(|_| abi::STATUS_NOT_ORDERED)?;
        filled.write(count);
        // Before the empty key there is nothing, and as an end it would stand for none.
        let at_start = span.backward && span.to.is_some_and(<[u8]>::is_empty);
        let to = span.to.unwrap_or_default();
        range.write(RawRange {
            from: span.from.as_ptr(),
            from_len: span.from.len(),
            to: to.as_ptr(),
            to_len: to.len(),
            past: u32::from(span.past),
            finished: u32::from(asked.finished != 0 || progress == RangeProgress::Finished || at_start),
            ..asked
        });
        body.reads += count as u64;
        body.read_bytes += read_bytes;
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status_code(read(body, participant))) }
}

pub(super) unsafe extern "C" fn range_keys(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    range: *mut RawRange,
    out: *mut RawKeys,
) -> u32 {
    // SAFETY: the library's range and its ends, and the room that it tells of, outlive the call.
    let read = |body: &mut InvocationState| unsafe {
        let room = *out;
        (*out).filled = 0;
        body.pause.has_asked = true;
        let table: *const RecordTable = body.table(table)?;
        let table = &*table;
        let asked = *range;
        let span = span_of(&asked)?;
        let limit = if asked.finished == 0 { room.ends_len.min(MAX_CALL_RECORDS) } else { 0 };
        let (mut count, mut used) = (0, 0);
        let mut add = |key: &[u8]| {
            let fits = key.len() <= room.bytes_len - used;
            if fits {
                room.bytes.add(used).copy_from_nonoverlapping(key.as_ptr(), key.len());
                used += key.len();
                room.ends.add(count).write(used);
                count += 1;
            }
            fits
        };
        let progress = table.range_keys(&span, limit, &body.shown, &mut add).map_err(|_| abi::STATUS_NOT_ORDERED)?;
        (*out).filled = count;
        (*range).finished = u32::from(asked.finished != 0 || progress == RangeProgress::Finished);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(read(body))) }
}

pub(super) unsafe extern "C" fn count(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    range: *const RawRange,
    count: *mut u64,
) -> u32 {
    // SAFETY: the library's range and its ends, and the place for the count, outlive the call.
    let read = |body: &mut InvocationState| unsafe {
        let table: *const RecordTable = body.table(table)?;
        let table = &*table;
        let span = span_of(&*range)?;
        count.write(table.count_keys(&span).map_err(|_| abi::STATUS_NOT_ORDERED)?);
        table.note_all_read(&body.shown);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(read(body))) }
}

pub(super) unsafe extern "C" fn nth(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    position: u64,
    out: *mut RawKeys,
) -> u32 {
    // SAFETY: the room that the library tells of outlives the call.
    let read = |body: &mut InvocationState| unsafe {
        let room = *out;
        (*out).filled = 0;
        let table: *const RecordTable = body.table(table)?;
        let table = &*table;
        let key = table.key_at(position).map_err(|_| abi::STATUS_NOT_ORDERED)?;
        table.note_all_read(&body.shown);
        let key = key.ok_or(abi::STATUS_NOT_FOUND)?;
        if key.len() <= room.bytes_len && room.ends_len > 0 {
            room.bytes.copy_from_nonoverlapping(key.as_ptr(), key.len());
            room.ends.write(key.len());
            (*out).filled = 1;
        }
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(read(body))) }
}

/// Returns the ranges that a transaction has read.
///
/// # Safety
/// Their ends, rows, and the rows' keys outlive the call, which is 'a.
pub(super) unsafe fn ranges_read<'a>(
    body: &'a InvocationState,
    raw: &'a [RawRangeRead],
) -> Result<Vec<RangeRead<'a>>, u32> {
    let (mut rows_left, mut bytes_left) = (TRANSACTION_ROWS, TRANSACTION_ROW_BYTES);
    let mut ranges = Vec::with_capacity(raw.len());
    for range in raw {
        let table = resolve_table(body, range.table, false)?;
        if !table.is_ordered() {
            return Err(abi::STATUS_NOT_ORDERED);
        }
        let mut key = |first, len| {
            bytes_left = usize::checked_sub(bytes_left, len).ok_or(abi::STATUS_TOO_LARGE)?;
            // SAFETY: this function's contract.
            unsafe { guest_bytes(first, len, MAX_BOUND_BYTES) }
        };
        let (from, to) = (key(range.from, range.from_len)?, key(range.to, range.to_len)?);
        let mut span = KeyRange::new(from, to, range.backward == 1);
        if range.included != 0 {
            (span.to, span.included) = (Some(to), true);
        }
        if range.backward == abi::RANGE_COUNTED {
            ranges.push(RangeRead { table, span, met: MetInRange::Keys(range.rows_len as u64) });
            continue;
        }
        // SAFETY: this function's contract.
        let raw_rows = unsafe { guest_list(range.rows, range.rows_len, rows_left) }?;
        rows_left -= raw_rows.len();
        let mut rows = Vec::with_capacity(raw_rows.len());
        for row in raw_rows {
            rows.push((key(row.key, row.key_len)?, row.version));
        }
        ranges.push(RangeRead { table, span, met: MetInRange::Records(rows) });
    }
    Ok(ranges)
}

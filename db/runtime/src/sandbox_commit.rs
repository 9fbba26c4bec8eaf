//! The commit of a sandboxed invocation's transaction: its lists are copied out of its memory, address by address, and
//! go the way of a native one's.
//!
//! Guarantees: lists are bounded before they are read. Keys and values stay in the module's memory, which no code of it
//! changes during the call.
#![allow(unsafe_code)]

use sandstorm_api::abi::{self, RawChange, RawRangeRead, RawRead, RawRow};
use sandstorm_api::limits::{
    TRANSACTION_BYTES, TRANSACTION_RANGES, TRANSACTION_READS, TRANSACTION_ROW_BYTES, TRANSACTION_ROWS,
    TRANSACTION_WRITES,
};
use sandstorm_sandbox::guest_types::{GuestChange, GuestRangeRead, GuestRead, GuestRow};
use sandstorm_store::Participant;

use super::commit::{TransactionLists, commit_lists};
use super::guest_memory::GuestMemory;
use super::guest_value::{GuestAddress, GuestValue};
use super::invocation::InvocationState;

/// Commits the lists that the module names, each by its address and length.
pub(super) fn commit(
    body: &mut InvocationState,
    participant: &Participant,
    memory: &GuestMemory,
    reads: (GuestAddress, u32),
    ranges: (GuestAddress, u32),
    changes: (GuestAddress, u32),
) -> u32 {
    let only_checks = changes.0 == 0;
    match read_lists(memory, reads, ranges, changes) {
        Ok((reads, rows, mut ranges, changes)) => {
            let mut rest = rows.as_slice();
            for range in ranges.iter_mut().filter(|range| range.backward != abi::RANGE_COUNTED) {
                let (own, others) = rest.split_at(range.rows_len.min(rest.len()));
                (range.rows, rest) = (own.as_ptr(), others);
            }
            let lists = TransactionLists { reads: &reads, ranges: &ranges, changes: &changes, only_checks };
            // SAFETY: the addresses are those of granted parts of the module's memory, which outlive the call, and rows
            // lie in `rows`.
            unsafe { commit_lists(body, participant, &lists) }
        }
        Err(status) => status,
    }
}

type Lists = (Vec<RawRead>, Vec<RawRow>, Vec<RawRangeRead>, Vec<RawChange>);

/// Copies the lists; addresses in them become the host's own. The rows of all ranges come one after the other.
fn read_lists(
    memory: &GuestMemory,
    reads: (GuestAddress, u32),
    ranges: (GuestAddress, u32),
    changes: (GuestAddress, u32),
) -> Result<Lists, u32> {
    let reads = list(memory, reads, TRANSACTION_READS, |read: GuestRead| {
        let (key, key_len) = bytes(memory, read.key, read.key_len)?;
        Ok(RawRead { table: read.table, hash: read.hash, key, key_len, version: read.version })
    })?;
    let mut rows = Vec::new();
    let ranges = list(memory, ranges, TRANSACTION_RANGES, |range: GuestRangeRead| {
        let (from, from_len) = bytes(memory, range.from, range.from_len)?;
        let (to, to_len) = bytes(memory, range.to, range.to_len)?;
        let (included, backward) = (range.included, range.backward);
        if backward == abi::RANGE_COUNTED {
            let (rows, rows_len) = (std::ptr::dangling(), range.rows_len as usize);
            return Ok(RawRangeRead {
                table: range.table,
                from,
                from_len,
                to,
                to_len,
                rows,
                rows_len,
                included,
                backward,
            });
        }
        let left = TRANSACTION_ROWS - rows.len();
        let own = list(memory, (range.rows, range.rows_len), left, |row: GuestRow| {
            let (key, key_len) = bytes(memory, row.key, row.key_len)?;
            Ok(RawRow { key, key_len, version: row.version })
        })?;
        let rows_len = own.len();
        rows.extend(own);
        let rows = std::ptr::dangling();
        Ok(RawRangeRead { table: range.table, from, from_len, to, to_len, rows, rows_len, included, backward })
    })?;
    let changes = match changes {
        (0, _) => Vec::new(),
        changes => list(memory, changes, TRANSACTION_WRITES, |change: GuestChange| {
            let (key, key_len) = bytes(memory, change.key, change.key_len)?;
            let (value, value_len) = match change.kind {
                abi::CHANGE_PUT => bytes(memory, change.value, change.value_len)?,
                _ => (std::ptr::dangling(), 0),
            };
            let (expires_at_ms, flags, kind) = (change.expires_at_ms, change.flags, change.kind);
            Ok(RawChange { table: change.table, key, key_len, value, value_len, expires_at_ms, flags, kind })
        })?,
    };
    Ok((reads, rows, ranges, changes))
}

/// Copies a list of at most so many entries.
fn list<T: GuestValue, R>(
    memory: &GuestMemory,
    (first, len): (GuestAddress, u32),
    limit: usize,
    mut each: impl FnMut(T) -> Result<R, u32>,
) -> Result<Vec<R>, u32> {
    if len as usize > limit {
        return Err(abi::STATUS_TOO_LARGE);
    }
    let mut copied = Vec::with_capacity(len as usize);
    for index in 0..len {
        let at = first.checked_add(index * size_of::<T>() as u32).ok_or(abi::STATUS_INVALID)?;
        copied.push(each(memory.read(at)?)?);
    }
    Ok(copied)
}

/// Where bytes of the module lie in this process.
fn bytes(memory: &GuestMemory, first: GuestAddress, len: u32) -> Result<(*const u8, usize), u32> {
    const MOST: usize =
        if TRANSACTION_BYTES > TRANSACTION_ROW_BYTES { TRANSACTION_BYTES } else { TRANSACTION_ROW_BYTES };
    if len as usize > MOST {
        return Err(abi::STATUS_TOO_LARGE);
    }
    if len == 0 {
        return Ok((std::ptr::dangling(), 0));
    }
    // SAFETY: only the address is used here; the commit reads the bytes while no code of the module runs.
    unsafe { memory.bytes(first, len) }.map(|bytes| (bytes.as_ptr(), bytes.len()))
}

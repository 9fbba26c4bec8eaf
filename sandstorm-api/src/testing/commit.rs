//! Commits over a [`TestStore`]: like the server's, but without writes by others during the commit.
//!
//! Guarantees: it reads what its pointers point to only during the call.
#![allow(unsafe_code)]

use super::TestStore;
use super::arguments::{slice_argument, test_invocation};
use crate::abi::{self, InvocationHeader, RawChange, RawRangeRead, RawRead};
use crate::limits::{TRANSACTION_BYTES, TRANSACTION_TRIES};

pub(super) unsafe extern "C" fn commit(
    inv: *mut InvocationHeader,
    reads: *const RawRead,
    reads_len: usize,
    ranges: *const RawRangeRead,
    ranges_len: usize,
    changes: *const RawChange,
    changes_len: usize,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation and its lists, whose keys, rows and values outlive
    // the call.
    let (behind, reads, ranges, changes) = unsafe {
        let changes = if changes.is_null() { &[] } else { core::slice::from_raw_parts(changes, changes_len) };
        let ranges = core::slice::from_raw_parts(ranges, ranges_len);
        (test_invocation(inv), core::slice::from_raw_parts(reads, reads_len), ranges, changes)
    };
    let store = &mut behind.store;
    // SAFETY: as above.
    let outcome = unsafe {
        let checked = validate_reads(store, reads).and_then(|()| super::range::validate_ranges(store, ranges));
        checked.and_then(|()| apply_changes(store, changes))
    };
    match outcome {
        Ok(()) => abi::STATUS_OK,
        Err(abi::STATUS_CONFLICT) => {
            store.tries += 1;
            if store.tries < TRANSACTION_TRIES { abi::STATUS_CONFLICT } else { abi::STATUS_CONTENDED }
        }
        Err(status) => status,
    }
}

/// Checks whether all reads still hold.
///
/// # Safety
/// The reads' keys are live.
unsafe fn validate_reads(store: &TestStore, reads: &[RawRead]) -> Result<(), u32> {
    if reads.iter().map(|read| read.key_len).sum::<usize>() > TRANSACTION_BYTES {
        return Err(abi::STATUS_TOO_LARGE);
    }
    for read in reads {
        // SAFETY: the caller's promise.
        let key = unsafe { slice_argument(read.key, read.key_len) };
        let version = store.reach(read.table)?.get(key, store.now_ms).map_or(0, |record| record.version);
        if version != read.version {
            return Err(abi::STATUS_CONFLICT);
        }
    }
    Ok(())
}

/// Makes all changes, if they fit.
///
/// # Safety
/// The changes' keys and values are live.
unsafe fn apply_changes(store: &mut TestStore, changes: &[RawChange]) -> Result<(), u32> {
    let mut bytes_after = store.bytes;
    for change in changes {
        // SAFETY: the caller's promise.
        let key = unsafe { slice_argument(change.key, change.key_len) };
        let table = store.writable_table(change.table)?;
        if change.key_len > super::MAX_KEY_LEN || change.value_len > super::MAX_VALUE_LEN {
            return Err(abi::STATUS_TOO_LARGE);
        }
        let old = table.places.get(key).and_then(|place| table.records.get(place));
        bytes_after -= old.map_or(0, |record| record.bytes());
        if change.kind == abi::CHANGE_PUT {
            bytes_after += change.key_len + change.value_len;
        }
    }
    if bytes_after > store.max_bytes && bytes_after > store.bytes {
        return Err(abi::STATUS_OUT_OF_MEMORY);
    }
    // Changes that make room come first, so that none is refused halfway.
    for change in changes {
        // SAFETY: the caller's promise.
        store.remove(change.table, unsafe { slice_argument(change.key, change.key_len) });
    }
    for change in changes.iter().filter(|change| change.kind == abi::CHANGE_PUT) {
        // SAFETY: the caller's promise.
        let (key, value) =
            unsafe { (slice_argument(change.key, change.key_len), slice_argument(change.value, change.value_len)) };
        store.replace(change.table, key, value, change.flags, change.expires_at_ms)?;
    }
    Ok(())
}

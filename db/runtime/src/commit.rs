//! The host's function that commits a transaction.
//!
//! Guarantees: the library's lists are bounded before they are read, and read during the call alone. Tables are the
//! invocation's own tenant's and those granted to it at this moment. A commit that was made is never reported as a
//! kill.
#![allow(unsafe_code)]

use sandstorm_api::abi::{self, RawChange, RawRangeRead, RawRead};
use sandstorm_api::limits::{
    TRANSACTION_BYTES, TRANSACTION_RANGES, TRANSACTION_READS, TRANSACTION_TRIES, TRANSACTION_WRITES,
};

use super::host_call::{call, guest_bytes, guest_list, resolve_table, store_error_status};
use super::invocation::InvocationState;
use super::range::ranges_read;
use sandstorm_store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use sandstorm_store::transactions::{self as transactions, CommitError, KeyChange, KeyRead, NewRecord};
use sandstorm_store::{Participant, clock_ms};

pub(super) unsafe extern "C" fn commit(
    invocation: *mut abi::InvocationHeader,
    reads: *const RawRead,
    reads_len: usize,
    ranges: *const RawRangeRead,
    ranges_len: usize,
    changes: *const RawChange,
    changes_len: usize,
) -> u32 {
    // SAFETY: the library's lists, and the keys, rows and values that they name, outlive the call.
    let commit = |body: &mut InvocationState, participant: &Participant| unsafe {
        let only_checks = changes.is_null();
        let reads = match guest_list(reads, reads_len, TRANSACTION_READS) {
            Ok(reads) => reads,
            Err(status) => return status,
        };
        let ranges = match guest_list(ranges, ranges_len, TRANSACTION_RANGES) {
            Ok(ranges) => ranges,
            Err(status) => return status,
        };
        let changes = match guest_list(changes, changes_len, TRANSACTION_WRITES) {
            Ok(changes) => changes,
            Err(_) if only_checks => &[],
            Err(status) => return status,
        };
        commit_lists(body, participant, &TransactionLists { reads, ranges, changes, only_checks })
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, commit) }
}

/// What a transaction has read and wants to change.
pub(super) struct TransactionLists<'a> {
    pub(super) reads: &'a [RawRead],
    pub(super) ranges: &'a [RawRangeRead],
    pub(super) changes: &'a [RawChange],
    /// Nothing is to be changed: it only checks whether all reads still hold.
    pub(super) only_checks: bool,
}

/// Commits a transaction; returns its status.
///
/// # Safety
/// The keys, rows and values that the lists name outlive the call.
pub(super) unsafe fn commit_lists(
    body: &mut InvocationState,
    participant: &Participant,
    lists: &TransactionLists<'_>,
) -> u32 {
    if body.transaction.committed || (body.call_depth() > 0 && !lists.only_checks) {
        // A called invocation hands its changes back. And otherwise it would be reported as failed, or killed, though
        // something was written.
        return abi::STATUS_INVALID;
    }
    body.transaction.tried = true;
    // SAFETY: this function's contract.
    match unsafe { run_commit(body, participant, lists.reads, lists.ranges, lists.changes) } {
        Ok(()) => {
            body.transaction.committed = !lists.only_checks;
            abi::STATUS_OK
        }
        Err(abi::STATUS_CONFLICT) => {
            body.transaction.conflicts += 1;
            let again = body.transaction.conflicts < TRANSACTION_TRIES;
            body.transaction.may_retry = again;
            if again { abi::STATUS_CONFLICT } else { abi::STATUS_CONTENDED }
        }
        Err(status) => status,
    }
}

/// Returns the bytes of a transaction's reads or changes. They are counted before they are hashed or copied, which
/// takes time in proportion.
#[derive(Default)]
struct TransactionBytes(usize);

impl TransactionBytes {
    fn add(&mut self, bytes: &[u8]) -> Result<(), u32> {
        self.0 = self.0.saturating_add(bytes.len());
        if self.0 > TRANSACTION_BYTES { Err(abi::STATUS_TOO_LARGE) } else { Ok(()) }
    }
}

/// # Safety
/// The keys, rows and values that are named outlive the call.
unsafe fn run_commit(
    body: &InvocationState,
    participant: &Participant,
    reads: &[RawRead],
    ranges: &[RawRangeRead],
    changes: &[RawChange],
) -> Result<(), u32> {
    let mut looked_at = Vec::with_capacity(reads.len());
    let mut total = TransactionBytes::default();
    for read in reads {
        // SAFETY: this function's contract.
        let key = unsafe { guest_bytes(read.key, read.key_len, MAX_KEY_BYTES) }?;
        total.add(key)?;
        let table = resolve_table(body, read.table, false)?;
        let hash = if read.hash == 0 { table.hash(key) } else { read.hash };
        if !table.owns(key) {
            return Err(abi::STATUS_WRONG_SERVER);
        }
        looked_at.push(KeyRead { table, hash, key, version: read.version });
    }
    // SAFETY: this function's contract.
    let ranges = unsafe { ranges_read(body, ranges) }?;
    let mut changed = Vec::with_capacity(changes.len());
    let mut total = TransactionBytes::default();
    for change in changes {
        // SAFETY: this function's contract.
        let key = unsafe { guest_bytes(change.key, change.key_len, MAX_KEY_BYTES) }?;
        total.add(key)?;
        let table = resolve_table(body, change.table, true)?;
        if !table.owns(key) {
            return Err(abi::STATUS_WRONG_SERVER);
        }
        // The library's hash is never used: under a wrong one there could be two records of a key.
        let hash = table.hash(key);
        let becomes = match change.kind {
            abi::CHANGE_DELETE => None,
            abi::CHANGE_PUT => {
                // SAFETY: this function's contract.
                let value = unsafe { guest_bytes(change.value, change.value_len, MAX_VALUE_BYTES) }?;
                total.add(value)?;
                // The library counted from the time that it was given, which is as old as its slice.
                let late_ms = clock_ms(body.abi.now_ms).saturating_add(1) - body.abi.now_ms;
                let expires_at_ms = match change.expires_at_ms {
                    0 => 0,
                    at_ms => at_ms.saturating_add(late_ms),
                };
                Some(NewRecord { value, flags: change.flags, expires_at_ms })
            }
            _ => return Err(abi::STATUS_INVALID),
        };
        changed.push(KeyChange { table, hash, key, becomes });
    }
    let ended = transactions::commit_with_ranges(participant, &looked_at, &ranges, &mut changed, body.abi.now_ms);
    transactions::note_counts(&ranges, &body.shown);
    ended.map_err(|error| match error {
        CommitError::Conflict => abi::STATUS_CONFLICT,
        CommitError::Refused(error) => store_error_status(error),
        CommitError::DuplicateKey => abi::STATUS_INVALID,
    })
}

//! The host's functions that read and change when a record expires.
//!
//! Guarantees: as `host.rs`.
#![allow(unsafe_code)]

use sandstorm_api::abi;
use sandstorm_store::limits::MAX_KEY_BYTES;
use sandstorm_store::{Participant, RecordTable, RecordUpdate, UpdateValue, expiry_ms};

use super::host::{call, call_inline, guest_bytes, status_code, store_error_status};
use super::invocation::InvocationState;

pub(super) unsafe extern "C" fn expiry(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    hash: u64,
    key: *const u8,
    key_len: usize,
    expires_at_ms: *mut u64,
) -> u32 {
    // SAFETY: the library's key and result outlive the call; the record is not kept.
    let read = |body: &mut InvocationState| unsafe {
        let key = guest_bytes(key, key_len, MAX_KEY_BYTES)?;
        expires_at_ms.write(expiry_of(body, table, hash, key)?);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_inline(invocation, |body, _| status_code(read(body))) }
}

/// Returns the time at which a record expires, milliseconds since the Unix epoch; 0: never. `hash` may be 0.
#[inline(always)]
pub(super) fn expiry_of(body: &mut InvocationState, table: u64, hash: u64, key: &[u8]) -> Result<u64, u32> {
    let now_ms = body.abi.now_ms;
    let table: *const RecordTable = body.table(table)?;
    // SAFETY: the invocation's view keeps its tables, and a grant's view the granted ones, until the call is over.
    let table = unsafe { &*table };
    let hash = if hash == 0 { table.hash(key) } else { hash };
    if !table.owns(hash) {
        return Err(abi::STATUS_WRONG_SERVER);
    }
    // SAFETY: the invocation's pin is the protection that the record needs.
    let record = unsafe { table.get_pinned(hash, key, now_ms, &body.shown) };
    Ok(record.ok_or(abi::STATUS_NOT_FOUND)?.expires_at_ms())
}

pub(super) unsafe extern "C" fn touch(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    ttl_ms: u64,
) -> u32 {
    // SAFETY: the library's key outlives the call.
    let write = |body: &mut InvocationState, participant: &Participant| unsafe {
        let key = guest_bytes(key, key_len, MAX_KEY_BYTES)?;
        let now_ms = body.abi.now_ms;
        touch_record(body.table_to_write(table)?, participant, key, now_ms, ttl_ms)
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status_code(write(body, participant))) }
}

/// Lets a record expire after so many milliseconds from now; 0: never.
pub(super) fn touch_record(
    table: &RecordTable,
    participant: &Participant,
    key: &[u8],
    now_ms: u64,
    ttl_ms: u64,
) -> Result<(), u32> {
    let expires_at_ms = if ttl_ms == 0 { 0 } else { expiry_ms(now_ms, ttl_ms) };
    let touched = table.update(participant, table.hash(key), key, now_ms, |found| match found {
        None => RecordUpdate::Keep(false),
        Some(record) => {
            let (value, flags) = (UpdateValue::unchanged(&record), record.flags());
            RecordUpdate::Put { value, flags, expires_at_ms, answer: true }
        }
    });
    match touched {
        Ok((true, _)) => Ok(()),
        Ok((false, _)) => Err(abi::STATUS_NOT_FOUND),
        Err(error) => Err(store_error_status(error)),
    }
}

//! The host's functions for an invocation's other facilities than records: expiry, random numbers, the time, secrets.
//!
//! Guarantees: as `host.rs`.
#![allow(unsafe_code)]

use sandstorm_api::abi::{self, MAX_RANDOM_BYTES};

use super::clock::clock_us;
use super::host_call::{call, call_inline, guest_bytes, status_code};
use super::invocation::InvocationState;
use sandstorm_catalog::TenantView;
use sandstorm_store::limits::MAX_KEY_BYTES;
use sandstorm_store::{Participant, RecordTable, RecordUpdate, StoreError, UpdateValue, expiry_ms};

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
    if !table.owns(key) {
        return Err(abi::STATUS_WRONG_SERVER);
    }
    // SAFETY: the invocation's pin is the protection that the record needs.
    let record = unsafe { table.get_pinned(hash, key, now_ms, &body.shown) };
    let expires_at_ms = record.ok_or_else(|| body.absent_status())?.expires_at_ms();
    // A read of a record, none of whose value is looked at.
    body.note_read(0);
    Ok(expires_at_ms)
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
        match touch_record(body.table_to_write(table)?, participant, key, now_ms, ttl_ms) {
            Ok(true) => Ok(()),
            Ok(false) => Err(abi::STATUS_NOT_FOUND),
            Err(error) => Err(body.write_status(error)),
        }
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status_code(write(body, participant))) }
}

/// Lets a record expire after so many milliseconds from now; 0: never. Returns whether there is one.
///
/// # Errors
/// The store's: [`StoreError::Cold`] where it is on the disk.
pub(super) fn touch_record(
    table: &RecordTable,
    participant: &Participant,
    key: &[u8],
    now_ms: u64,
    ttl_ms: u64,
) -> Result<bool, StoreError> {
    let expires_at_ms = if ttl_ms == 0 { 0 } else { expiry_ms(now_ms, ttl_ms) };
    let touched = table.update(participant, table.hash(key), key, now_ms, |found| match found {
        None => RecordUpdate::Keep(false),
        Some(record) => {
            let (value, flags) = (UpdateValue::unchanged(&record), record.flags());
            RecordUpdate::Put { value, flags, expires_at_ms, answer: true }
        }
    });
    touched.map(|(is_there, _)| is_there)
}

pub(super) unsafe extern "C" fn random(invocation: *mut abi::InvocationHeader, bytes: *mut u8, len: usize) -> u32 {
    let fill = |body: &mut InvocationState| {
        if len > MAX_RANDOM_BYTES || bytes.is_null() {
            return Err(abi::STATUS_INVALID);
        }
        // SAFETY: the library's buffer outlives the call. It may be uninitialised, so it is written first.
        let bytes = unsafe {
            bytes.write_bytes(0, len);
            std::slice::from_raw_parts_mut(bytes, len)
        };
        body.random.fill(bytes)
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(fill(body))) }
}

pub(super) unsafe extern "C" fn now_us(invocation: *mut abi::InvocationHeader) -> u64 {
    let mut now_us = 0;
    let read = |_: &mut InvocationState, _: &Participant| {
        now_us = clock_us();
        abi::STATUS_OK
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, read) };
    now_us
}

pub(super) unsafe extern "C" fn secret(
    invocation: *mut abi::InvocationHeader,
    name: *const u8,
    name_len: usize,
    to: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> u32 {
    // SAFETY: the library's name, buffer and result outlive the call.
    let copy = |body: &mut InvocationState| unsafe {
        let name = guest_bytes(name, name_len, MAX_KEY_BYTES)?;
        let refs = body.refs.as_ref().ok_or(abi::STATUS_INVALID)?;
        let value = secret_of(&refs.view, name)?;
        len.write(value.len());
        if value.len() > capacity {
            return Err(abi::STATUS_TOO_LARGE);
        }
        to.copy_from_nonoverlapping(value.as_ptr(), value.len());
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(copy(body))) }
}

/// Returns a secret of a tenant.
pub(super) fn secret_of<'v>(view: &'v TenantView, name: &[u8]) -> Result<&'v [u8], u32> {
    let name = std::str::from_utf8(name).map_err(|_| abi::STATUS_NOT_FOUND)?;
    view.secrets.get(name).ok_or(abi::STATUS_NOT_FOUND)
}

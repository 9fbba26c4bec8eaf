//! The host's functions over a [`TestStore`].
//!
//! Guarantees: each reads what its pointers point to only during the call, and `TestInvocation` keeps what it hands
//! out until the invocation ends.
#![allow(unsafe_code)]

use alloc::sync::Arc;

use super::TestStore;
use super::arguments::{slice_argument, test_invocation};
use super::commit::commit;
use super::log::log_line;
use super::nested::{call_begin, call_end, call_part, call_return};
use super::order::{count, expiry, now_us, nth, random, secret, touch};
use super::range::{range, range_keys};
use crate::abi::{self, HostCalls, InvocationHeader, RawCursor, RawKey, RawRecord, RawWrite};

/// The host's functions over a [`TestStore`].
pub(super) static CALLS: HostCalls = HostCalls {
    prefetch,
    prefetch_record,
    get,
    put,
    delete,
    increment,
    scan,
    table_by_name,
    reply,
    fail,
    abort,
    grow,
    prefetch_many,
    prefetch_records,
    get_many,
    commit,
    range,
    range_keys,
    count,
    nth,
    expiry,
    touch,
    random,
    now_us,
    secret,
    log_line,
    call_begin,
    call_end,
    call_part,
    call_return,
};

fn write_outcome<T>(outcome: Result<T, u32>, out: impl FnOnce(T)) -> u32 {
    match outcome {
        Ok(value) => {
            out(value);
            abi::STATUS_OK
        }
        Err(status) => status,
    }
}

unsafe extern "C" fn prefetch(
    inv: *mut InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    hash: *mut u64,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a key and a place for the hash.
    let (behind, key, hash) = unsafe { (test_invocation(inv), slice_argument(key, key_len), &mut *hash) };
    write_outcome(behind.store.reach(table), |_| *hash = TestStore::hash(key))
}

unsafe extern "C" fn prefetch_record(inv: *mut InvocationHeader, table: u64, _hash: u64) -> u32 {
    // SAFETY: the extension's side calls with its live invocation.
    let behind = unsafe { test_invocation(inv) };
    write_outcome(behind.store.reach(table), |_| ())
}

unsafe extern "C" fn get(
    inv: *mut InvocationHeader,
    table: u64,
    hash: u64,
    key: *const u8,
    key_len: usize,
    out: *mut RawRecord,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a key and a place for the record.
    let (behind, key, out) = unsafe { (test_invocation(inv), slice_argument(key, key_len), &mut *out) };
    behind.store.reads += 1;
    if hash != 0 && hash != TestStore::hash(key) {
        return abi::STATUS_INVALID;
    }
    let table = match behind.store.reach(table) {
        Ok(table) => table,
        Err(status) => return status,
    };
    let Some(record) = table.get(key, behind.store.now_ms) else { return abi::STATUS_NOT_FOUND };
    *out = record.raw();
    behind.held.push(Arc::clone(record));
    abi::STATUS_OK
}

unsafe extern "C" fn put(
    inv: *mut InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    how: *const RawWrite,
    version: *mut u64,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a key, a value, and a place for the version.
    let (behind, key, value, version) = unsafe {
        (test_invocation(inv), slice_argument(key, key_len), slice_argument(value, value_len), &mut *version)
    };
    // SAFETY: null, or a write that lives during the call.
    let how = unsafe { how.as_ref() }.copied().unwrap_or(UNCONDITIONAL);
    let reached = behind.store.writable_table(table).map(|_| ());
    write_outcome(reached.and_then(|()| behind.store.write(table, key, value, &how)), |new| *version = new)
}

const UNCONDITIONAL: RawWrite = RawWrite { condition: abi::CONDITION_ALWAYS, flags: 0, version: 0, ttl_ms: 0 };

unsafe extern "C" fn delete(
    inv: *mut InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    how: *const RawWrite,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation and a key; `how` is null or lives during the call.
    let (behind, key, how) =
        unsafe { (test_invocation(inv), slice_argument(key, key_len), how.as_ref().copied().unwrap_or(UNCONDITIONAL)) };
    let exists = match behind.store.writable_table(table) {
        Err(status) => return status,
        Ok(table) => table.get(key, behind.store.now_ms).is_some(),
    };
    if !exists {
        return abi::STATUS_NOT_FOUND;
    }
    if let Err(status) = behind.store.check(table, key, &how) {
        return status;
    }
    behind.store.remove(table, key);
    abi::STATUS_OK
}

unsafe extern "C" fn increment(
    inv: *mut InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    delta: i64,
    sum: *mut i64,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a key and a place for the sum.
    let (behind, key, sum) = unsafe { (test_invocation(inv), slice_argument(key, key_len), &mut *sum) };
    let reached = behind.store.writable_table(table).map(|_| ());
    write_outcome(reached.and_then(|()| behind.store.increment(table, key, delta)), |new| *sum = new)
}

unsafe extern "C" fn scan(
    inv: *mut InvocationHeader,
    table: u64,
    cursor: *mut RawCursor,
    out: *mut RawRecord,
    limit: usize,
    filled: *mut usize,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a cursor, room for `limit` records and for a count.
    let (behind, cursor, out, filled) =
        unsafe { (test_invocation(inv), &mut *cursor, core::slice::from_raw_parts_mut(out, limit), &mut *filled) };
    let table = match behind.store.reach(table) {
        Ok(table) => table,
        Err(status) => return status,
    };
    *filled = 0;
    for (place, record) in table.records.range(cursor.position..) {
        let Some(slot) = out.get_mut(*filled) else {
            cursor.position = *place;
            return abi::STATUS_OK;
        };
        if record.is_live_at(behind.store.now_ms) {
            *slot = record.raw();
            behind.held.push(Arc::clone(record));
            *filled += 1;
        }
    }
    cursor.finished = 1;
    abi::STATUS_OK
}

unsafe extern "C" fn table_by_name(
    inv: *mut InvocationHeader,
    name: *const u8,
    name_len: usize,
    table: *mut u64,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a name and a place for the id.
    let (behind, name, table) = unsafe { (test_invocation(inv), slice_argument(name, name_len), &mut *table) };
    match core::str::from_utf8(name).ok().and_then(|name| behind.store.names.get(name)) {
        Some(id) => {
            *table = *id;
            abi::STATUS_OK
        }
        None => abi::STATUS_NOT_FOUND,
    }
}

unsafe extern "C" fn reply(inv: *mut InvocationHeader, at: *const u8, len: usize) -> u32 {
    // SAFETY: the extension's side calls with its live invocation and bytes.
    let (behind, bytes) = unsafe { (test_invocation(inv), slice_argument(at, len)) };
    if bytes.len() > behind.store.max_reply.saturating_sub(behind.reply.len()) {
        return abi::STATUS_TOO_LARGE;
    }
    behind.reply.extend_from_slice(bytes);
    abi::STATUS_OK
}

/// The wrapper hands errors over here; [`TestStore::invoke`] takes them from the future itself.
unsafe extern "C" fn fail(_inv: *mut InvocationHeader, _code: u32, _text: *const u8, _len: usize) -> u32 {
    abi::STATUS_OK
}

/// The wrapper's panic handler ends an invocation here; in a test, a panic is the test's own and never comes here.
unsafe extern "C" fn abort(_inv: *mut InvocationHeader, _cause: u32, _text: *const u8, _len: usize) -> ! {
    std::process::abort()
}

/// Tests run on the system's allocator, so no arena asks for more.
unsafe extern "C" fn grow(_inv: *mut InvocationHeader, _bytes: usize) -> u32 {
    abi::STATUS_OUT_OF_MEMORY
}

unsafe extern "C" fn prefetch_many(
    inv: *mut InvocationHeader,
    table: u64,
    keys: *const RawKey,
    count: usize,
    hashes: *mut u64,
) -> u32 {
    // SAFETY: the extension's side calls with as many keys, and places for hashes, as it says.
    let (keys, hashes) =
        unsafe { (core::slice::from_raw_parts(keys, count), core::slice::from_raw_parts_mut(hashes, count)) };
    for (key, hash) in keys.iter().zip(hashes) {
        // SAFETY: the extension's side calls with its live invocation and keys.
        let status = unsafe { prefetch(inv, table, key.first, key.len, hash) };
        if status != abi::STATUS_OK {
            return status;
        }
    }
    abi::STATUS_OK
}

unsafe extern "C" fn prefetch_records(
    inv: *mut InvocationHeader,
    table: u64,
    _hashes: *const u64,
    _count: usize,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation.
    unsafe { prefetch_record(inv, table, 0) }
}

unsafe extern "C" fn get_many(
    inv: *mut InvocationHeader,
    table: u64,
    keys: *const RawKey,
    hashes: *const u64,
    count: usize,
    out: *mut RawRecord,
) -> u32 {
    // SAFETY: the extension's side calls with as many keys, hashes, and places for records, as it says.
    let (keys, hashes, out) = unsafe {
        (
            core::slice::from_raw_parts(keys, count),
            core::slice::from_raw_parts(hashes, count),
            core::slice::from_raw_parts_mut(out, count),
        )
    };
    for ((key, hash), out) in keys.iter().zip(hashes).zip(out) {
        // SAFETY: the extension's side calls with its live invocation and keys.
        match unsafe { get(inv, table, *hash, key.first, key.len, out) } {
            abi::STATUS_OK => {}
            abi::STATUS_NOT_FOUND => *out = RawRecord::ABSENT,
            status => return status,
        }
    }
    abi::STATUS_OK
}

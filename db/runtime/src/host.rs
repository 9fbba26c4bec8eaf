//! The host's functions, which a library can call.
//!
//! Guarantees: each takes the worker's block from gs, checks that enough stack is left, and bounds every length before
//! a slice is made of it. It touches nothing but the tables of the invocation's own tenant and those granted to it. A
//! switch that is requested meanwhile is taken at its end; where control leaves by landing, no lock is held and nothing
//! with a destructor is alive.
#![allow(unsafe_code)]

use sandstorm_api::abi::{self, HostCalls, RawCursor, RawKey, RawRecord, RawWrite};

use super::cold_records::{ScanFrom, scan_table};
use super::commit::commit;
use super::extension_calls::{call_begin, call_end, call_part, call_return};
use super::host_call::{
    call, call_inline, enter_call, guest_bytes, guest_keys, raw_record, status_code, store_error_status,
};
use super::invocation::InvocationState;
use super::log_calls::log_line;
use super::own_calls::{expiry, now_us, random, secret, touch};
use super::range::{count, nth, range, range_keys};
use super::stack_switch::trap;
use crate::limits::{ERROR_TEXT_BYTES, SCAN_CALL_RECORDS};
use sandstorm_extension::KillCause;
use sandstorm_store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use sandstorm_store::{Participant, RecordRef, RecordTable, StoreCondition, WriteOptions, expiry_ms};

/// The table of functions that every invocation points to.
pub(super) static HOST_CALLS: HostCalls = HostCalls {
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

/// As [`guest_bytes()`], for a text of any length: returns its first bytes, one more than are kept, which tells where
/// its last character ends.
///
/// # Safety
/// As for [`guest_bytes()`].
unsafe fn guest_text<'a>(first: *const u8, len: usize) -> Result<&'a [u8], u32> {
    const READ: usize = ERROR_TEXT_BYTES + 1;
    // SAFETY: this function's contract.
    unsafe { guest_bytes(first, len.min(READ), READ) }
}

fn condition(how: &RawWrite) -> Result<StoreCondition, u32> {
    condition_of(how.condition, how.version)
}

/// The condition of a write by its number.
#[inline(always)]
pub(super) fn condition_of(condition: u32, version: u64) -> Result<StoreCondition, u32> {
    match condition {
        abi::CONDITION_ALWAYS => Ok(StoreCondition::Always),
        abi::CONDITION_ABSENT => Ok(StoreCondition::Absent),
        abi::CONDITION_PRESENT => Ok(StoreCondition::Present),
        abi::CONDITION_VERSION => Ok(StoreCondition::Version(version)),
        _ => Err(abi::STATUS_INVALID),
    }
}

unsafe extern "C" fn prefetch(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    hash: *mut u64,
) -> u32 {
    // SAFETY: the library's key and result outlive the call.
    let ask = |body: &mut InvocationState, _: &Participant| unsafe {
        let key = guest_bytes(key, key_len, MAX_KEY_BYTES)?;
        let found = body.table(table)?;
        let of_key = found.hash(key);
        found.prefetch_bucket(of_key);
        (body.asked, body.pause.has_asked) = ((table, of_key), true);
        hash.write(of_key);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_inline(invocation, |body, participant| status_code(ask(body, participant))) }
}

unsafe extern "C" fn prefetch_record(invocation: *mut abi::InvocationHeader, table: u64, hash: u64) -> u32 {
    let ask = |body: &mut InvocationState| {
        // SAFETY: the invocation's pin is the protection that the bucket needs.
        unsafe { body.table(table)?.prefetch_chained_pinned(hash) };
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_inline(invocation, |body, _| status_code(ask(body))) }
}

unsafe extern "C" fn get(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    hash: u64,
    key: *const u8,
    key_len: usize,
    out: *mut RawRecord,
) -> u32 {
    // SAFETY: the library's key and result outlive the call. The record stays until the invocation's pin ends, and the
    // table as long as its view.
    let read = |body: &mut InvocationState| unsafe {
        let key = guest_bytes(key, key_len, MAX_KEY_BYTES)?;
        let (now_ms, id) = (body.abi.now_ms, table);
        let table: *const RecordTable = body.table(table)?;
        let table = &*table;
        let hash = if hash == 0 { table.hash(key) } else { hash };
        if !table.owns(key) {
            return Err(abi::STATUS_WRONG_SERVER);
        }
        let record = table.get_pinned(hash, key, now_ms, &body.shown).ok_or_else(|| body.absent_status())?;
        let is_watched = table.is_watched();
        let record = raw_record(&record);
        if is_watched {
            body.note_watched(id, hash, key);
        }
        body.note_read(record.value_len);
        out.write(record);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_inline(invocation, |body, _| status_code(read(body))) }
}

unsafe extern "C" fn prefetch_many(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    keys: *const RawKey,
    count: usize,
    hashes: *mut u64,
) -> u32 {
    // SAFETY: the library's keys outlive the call, as does the room for so many hashes.
    let ask = |body: &mut InvocationState| unsafe {
        let keys = guest_keys(keys, count)?;
        body.pause.has_asked = true;
        let table = body.table(table)?;
        for (at, key) in keys.iter().enumerate() {
            let hash = table.hash(guest_bytes(key.first, key.len, MAX_KEY_BYTES)?);
            table.prefetch_bucket(hash);
            hashes.add(at).write(hash);
        }
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_inline(invocation, |body, _| status_code(ask(body))) }
}

unsafe extern "C" fn prefetch_records(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    hashes: *const u64,
    count: usize,
) -> u32 {
    // SAFETY: the library's hashes outlive the call; the invocation's pin is the protection that the buckets need.
    let ask = |body: &mut InvocationState| unsafe {
        let hashes = guest_keys(hashes, count)?;
        body.pause.has_asked = true;
        let table = body.table(table)?;
        table.prefetch_records_pinned(hashes.iter().copied());
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_inline(invocation, |body, _| status_code(ask(body))) }
}

unsafe extern "C" fn get_many(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    keys: *const RawKey,
    hashes: *const u64,
    count: usize,
    out: *mut RawRecord,
) -> u32 {
    // SAFETY: the library's keys and hashes outlive the call, as does the room for so many records. Records and table
    // stay as with `get`.
    let read = |body: &mut InvocationState| unsafe {
        let (keys, hashes) = (guest_keys(keys, count)?, guest_keys(hashes, count)?);
        let now_ms = body.abi.now_ms;
        let table: *const RecordTable = body.table(table)?;
        let table = &*table;
        let (mut reads, mut read_bytes) = (0, 0);
        for (at, (key, hash)) in keys.iter().zip(hashes).enumerate() {
            let key = guest_bytes(key.first, key.len, MAX_KEY_BYTES)?;
            let hash = if *hash == 0 { table.hash(key) } else { *hash };
            if !table.owns(key) {
                return Err(abi::STATUS_WRONG_SERVER);
            }
            let found = table.get_pinned(hash, key, now_ms, &body.shown);
            reads += u64::from(found.is_some());
            let record = found.as_ref().map_or(RawRecord::ABSENT, raw_record);
            read_bytes += record.value_len as u64;
            out.add(at).write(record);
        }
        if body.shown.has_cold() {
            return Err(body.met_cold());
        }
        body.reads += reads;
        body.read_bytes += read_bytes;
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_inline(invocation, |body, _| status_code(read(body))) }
}

unsafe extern "C" fn put(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    how: *const RawWrite,
    version: *mut u64,
) -> u32 {
    // SAFETY: the library's key, value, manner and result outlive the call.
    let write = |body: &mut InvocationState, participant: &Participant| unsafe {
        let key = guest_bytes(key, key_len, MAX_KEY_BYTES)?;
        let value = guest_bytes(value, value_len, MAX_VALUE_BYTES)?;
        let now_ms = body.abi.now_ms;
        let write = match how.as_ref() {
            None => WriteOptions::default(),
            Some(how) => WriteOptions {
                condition: condition(how)?,
                flags: how.flags,
                expires_at_ms: if how.ttl_ms == 0 { 0 } else { expiry_ms(now_ms, how.ttl_ms) },
            },
        };
        let table = body.table_to_write(table)?;
        let hash = table.hash(key);
        version.write(table.put(participant, hash, key, value, &write, now_ms).map_err(store_error_status)?);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status_code(write(body, participant))) }
}

unsafe extern "C" fn delete(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    how: *const RawWrite,
) -> u32 {
    // SAFETY: the library's key and manner outlive the call.
    let delete = |body: &mut InvocationState, participant: &Participant| unsafe {
        let key = guest_bytes(key, key_len, MAX_KEY_BYTES)?;
        let condition = how.as_ref().map_or(Ok(StoreCondition::Always), condition)?;
        let now_ms = body.abi.now_ms;
        let table = body.table_to_write(table)?;
        match table.delete(participant, table.hash(key), key, condition, now_ms).map_err(store_error_status)? {
            true => Ok(()),
            false => Err(abi::STATUS_NOT_FOUND),
        }
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status_code(delete(body, participant))) }
}

unsafe extern "C" fn increment(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    delta: i64,
    sum: *mut i64,
) -> u32 {
    // SAFETY: the library's key and result outlive the call.
    let add = |body: &mut InvocationState, participant: &Participant| unsafe {
        let key = guest_bytes(key, key_len, MAX_KEY_BYTES)?;
        let now_ms = body.abi.now_ms;
        let table = body.table_to_write(table)?;
        let added = table.increment(participant, table.hash(key), key, delta, now_ms);
        sum.write(added.map_err(|error| body.write_status(error))?.0);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status_code(add(body, participant))) }
}

unsafe extern "C" fn scan(
    invocation: *mut abi::InvocationHeader,
    table: u64,
    cursor: *mut RawCursor,
    out: *mut RawRecord,
    limit: usize,
    filled: *mut usize,
) -> u32 {
    // SAFETY: the library's cursor, results (room for `limit` records) and count outlive the call; the records stay
    // until the invocation's pin ends.
    let fill = |body: &mut InvocationState, participant: &Participant| unsafe {
        let RawCursor { position, finished } = *cursor;
        let limit = limit.min(SCAN_CALL_RECORDS);
        let cold_status = body.cold_status();
        body.pause.has_asked = true;
        let from = ScanFrom { position, finished, limit, now_ms: body.abi.now_ms, cold_status };
        let table = body.table(table)?;
        let (mut count, mut read_bytes) = (0, 0);
        let mut add = |record: RecordRef<'_>| {
            if count < limit {
                let record = raw_record(&record);
                read_bytes += record.value_len as u64;
                out.add(count).write(record);
                count += 1;
            }
        };
        if limit > 0 && finished != abi::CURSOR_FINISHED {
            let guard = participant.guard();
            let scanned = scan_table((table, &guard), participant, from, &mut add);
            match scanned.inspect_err(|status| body.note_if(*status == cold_status))? {
                Some(next) => (*cursor).position = next,
                None => (*cursor).finished = abi::CURSOR_FINISHED,
            }
        }
        filled.write(count);
        body.reads += count as u64;
        body.read_bytes += read_bytes;
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status_code(fill(body, participant))) }
}

unsafe extern "C" fn table_by_name(
    invocation: *mut abi::InvocationHeader,
    name: *const u8,
    name_len: usize,
    table: *mut u64,
) -> u32 {
    // SAFETY: the library's name and result outlive the call.
    let find = |body: &mut InvocationState| unsafe {
        let name = guest_bytes(name, name_len, MAX_KEY_BYTES)?;
        let name = std::str::from_utf8(name).map_err(|_| abi::STATUS_NOT_FOUND)?;
        let refs = body.refs.as_ref().ok_or(abi::STATUS_INVALID)?;
        table.write(refs.view.id_of(name).ok_or(abi::STATUS_NOT_FOUND)?);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(find(body))) }
}

unsafe extern "C" fn reply(invocation: *mut abi::InvocationHeader, first: *const u8, len: usize) -> u32 {
    // SAFETY: the library's bytes outlive the call.
    let append = |body: &mut InvocationState| unsafe {
        let bytes = guest_bytes(first, len, body.reply_limit.saturating_sub(body.reply.len()))?;
        if !body.grow_reply(len) {
            return Err(abi::STATUS_OUT_OF_MEMORY);
        }
        body.reply.extend_from_slice(bytes);
        Ok(())
    };
    // SAFETY: this is a host function.
    let status = unsafe { call(invocation, |body, _| status_code(append(body))) };
    if status == abi::STATUS_OUT_OF_MEMORY {
        const TEXT: &str = "no memory for a longer reply";
        // SAFETY: as this function, which the library called; nothing with a destructor is alive.
        unsafe { abort(invocation, abi::ABORT_OUT_OF_MEMORY, TEXT.as_ptr(), TEXT.len()) }
    }
    status
}

unsafe extern "C" fn grow(invocation: *mut abi::InvocationHeader, bytes: usize) -> u32 {
    let grow =
        |body: &mut InvocationState| if body.grow_arena(bytes) { abi::STATUS_OK } else { abi::STATUS_OUT_OF_MEMORY };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| grow(body)) }
}

unsafe extern "C" fn fail(invocation: *mut abi::InvocationHeader, code: u32, text: *const u8, len: usize) -> u32 {
    // SAFETY: the library's text outlives the call.
    let keep = |body: &mut InvocationState| unsafe {
        body.reply.clear();
        body.code = code;
        body.set_text(guest_text(text, len)?);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(keep(body))) }
}

unsafe extern "C" fn abort(invocation: *mut abi::InvocationHeader, cause: u32, text: *const u8, len: usize) -> ! {
    // SAFETY: as in `call`; the text outlives the call. The borrow of the body ends before the landing.
    unsafe {
        let block = enter_call();
        let body = &mut *invocation.cast::<InvocationState>();
        if let Ok(text) = guest_text(text, len) {
            body.set_text(text);
        }
        let cause = if cause == abi::ABORT_OUT_OF_MEMORY { KillCause::OutOfMemory } else { KillCause::Panic };
        if cause == KillCause::OutOfMemory {
            body.append_quota_name();
        }
        trap(block, cause)
    }
}

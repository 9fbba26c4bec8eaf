//! The host's functions: what a library can ask for.
//!
//! Guarantees: each takes the worker's block from gs, checks that enough stack is left, bounds every length before a slice
//! is made of it, and touches nothing but the tables of the invocation's own tenant and those granted to it. A switch that is
//! asked for meanwhile is taken at its end; where control leaves by landing, no lock is held and nothing with a destructor is alive.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use sandstorm_api::abi::{self, CALL_KEYS, HostCalls, RawCursor, RawKey, RawRecord, RawWrite};

use super::block::{Block, CALL, TENANT};
use super::commit::commit;
use super::invocation::Body;
use super::range::{range, range_keys};
use super::switch::{land, pause};
use crate::limits::{ERROR_TEXT_BYTES, SCAN_CALL_RECORDS};
use sandstorm_catalog::{FIRST_GRANTED_ID, NoAccess};
use sandstorm_extension::KillCause;
use sandstorm_store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use sandstorm_store::{Condition, Participant, RecordRef, StoreError, Table, Write, ends_ms};

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
};

/// Makes the worker's state that of a host call; lands if too little stack is left for one.
///
/// # Safety
/// Called by host functions only, on entry, which only library code calls.
#[inline(always)]
unsafe fn enter_call<'a>() -> &'a Block {
    let stack_pointer: usize;
    // SAFETY: one instruction stores to the block of whichever thread this is; from then on it stays on that thread. The
    // other copies a register.
    unsafe {
        std::arch::asm!(
            "mov dword ptr gs:[{state}], {call}",
            "mov {sp}, rsp",
            sp = out(reg) stack_pointer,
            state = const std::mem::offset_of!(Block, state),
            call = const CALL,
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: a worker with an engine, in call state.
    let block = unsafe { Block::here() };
    if stack_pointer < block.call_floor.load(Ordering::Relaxed) {
        // SAFETY: on the side stack in call state, with nothing alive.
        unsafe { land(block, KillCause::StackOverflow) }
    }
    block
}

/// Makes the worker's state that of tenant code again; takes a switch that was asked for meanwhile.
///
/// # Safety
/// In call state, with no value alive that has a `Drop` or is bound to the thread.
#[inline(always)]
unsafe fn leave_call() {
    let pending: u32;
    // SAFETY: between the two instructions the code may move to another thread, whose block says 0.
    unsafe {
        std::arch::asm!(
            "mov dword ptr gs:[{state}], {tenant}",
            "mov {pending:e}, gs:[{place}]",
            pending = out(reg) pending,
            state = const std::mem::offset_of!(Block, state),
            place = const std::mem::offset_of!(Block, pending),
            tenant = const TENANT,
            options(nostack, preserves_flags),
        );
    }
    if pending != 0 {
        // SAFETY: on the side stack, with as much of it left as the call's entry has made sure of.
        unsafe { pause() }
    }
}

/// Runs the body of a host function, which must not panic and returns before a switch is taken.
///
/// # Safety
/// Called by host functions only, with what library code passed.
#[inline(always)]
pub(super) unsafe fn call(invocation: *mut abi::Invocation, f: impl FnOnce(&mut Body, &Participant) -> u32) -> u32 {
    // SAFETY: this function's contract is that of `call_lean`.
    unsafe { call_lean(invocation, |body, participant| out_of_line(body, participant, f)) }
}

/// Keeps what `f` does, and what the compiler may compute for it ahead of time such as the addresses of the thread's
/// variables, between the entry and the end of a call: outside of that the code may move to another thread.
#[inline(never)]
fn out_of_line(body: &mut Body, participant: &Participant, f: impl FnOnce(&mut Body, &Participant) -> u32) -> u32 {
    f(body, participant)
}

/// As [`call`], for functions that use no variables of the thread (they neither allocate nor lock), with `f` in line.
///
/// # Safety
/// As for [`call`].
#[inline(always)]
unsafe fn call_lean(invocation: *mut abi::Invocation, f: impl FnOnce(&mut Body, &Participant) -> u32) -> u32 {
    // SAFETY: called by host functions only, on entry.
    let block = unsafe { enter_call() };
    let participant = block.participant.load(Ordering::Relaxed);
    // SAFETY: the library hands on the pointer to the body that it was polled with, which the engine holds alone; the
    // participant outlives the poll.
    let status = unsafe { f(&mut *invocation.cast::<Body>(), &*participant) };
    // SAFETY: `f` is over and its values are gone.
    unsafe { leave_call() };
    status
}

/// The bytes that the library names, if they are not more than the limit.
///
/// # Safety
/// They come from a slice that outlives the host call.
#[inline(always)]
pub(super) unsafe fn bytes<'a>(first: *const u8, len: usize, limit: usize) -> Result<&'a [u8], u32> {
    if len > limit {
        return Err(abi::STATUS_TOO_LARGE);
    }
    if first.is_null() {
        return Err(abi::STATUS_INVALID);
    }
    // SAFETY: this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(first, len) })
}

/// What the library lists, if that is not more than one call takes.
///
/// # Safety
/// It comes from a slice that outlives the host call.
#[inline(always)]
unsafe fn list<'a, T>(first: *const T, count: usize) -> Result<&'a [T], u32> {
    if count > CALL_KEYS || first.is_null() {
        return Err(abi::STATUS_INVALID);
    }
    // SAFETY: this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// As [`bytes()`], of a text of any length: its first bytes, one more than are kept, which tells where its last character ends.
///
/// # Safety
/// As for [`bytes()`].
unsafe fn text_bytes<'a>(first: *const u8, len: usize) -> Result<&'a [u8], u32> {
    const READ: usize = ERROR_TEXT_BYTES + 1;
    // SAFETY: this function's contract.
    unsafe { bytes(first, len.min(READ), READ) }
}

impl Body {
    /// The tenant's table of that id, to be read.
    #[inline(always)]
    pub(super) fn table(&mut self, id: u64) -> Result<&Table, u32> {
        self.reach::<false>(id)
    }

    /// The tenant's table of that id, to be written.
    #[inline(always)]
    fn table_to_write(&mut self, id: u64) -> Result<&Table, u32> {
        self.reach::<true>(id)
    }

    #[inline(always)]
    fn reach<const WRITE: bool>(&mut self, id: u64) -> Result<&Table, u32> {
        if self.table.0 != id || self.table.1.is_null() {
            if id >= FIRST_GRANTED_ID {
                return self.granted(id, WRITE);
            }
            let held = self.held.as_ref().ok_or(abi::STATUS_INVALID)?;
            let entry = held.view.tables.get(&id).ok_or(abi::STATUS_UNKNOWN_TABLE)?;
            self.table = (id, std::sync::Arc::as_ptr(entry));
        }
        // SAFETY: the view keeps its tables, and the body its view, until the invocation ends.
        Ok(unsafe { &(*self.table.1).table })
    }

    /// A table that another tenant granted. Never kept in `self.table`: each call asks anew what the grant allows, which
    /// its end changes for invocations under way too.
    #[inline(never)]
    fn granted(&self, id: u64, write: bool) -> Result<&Table, u32> {
        let held = self.held.as_ref().ok_or(abi::STATUS_INVALID)?;
        match held.view.reach_granted(id, write) {
            Ok(entry) => Ok(&entry.table),
            Err(NoAccess::ReadOnly) => Err(abi::STATUS_READ_ONLY),
            Err(NoAccess::Unknown) => Err(abi::STATUS_UNKNOWN_TABLE),
        }
    }
}

pub(super) fn status<T>(result: Result<T, u32>) -> u32 {
    match result {
        Ok(_) => abi::STATUS_OK,
        Err(status) => status,
    }
}

pub(super) fn refusal(error: StoreError) -> u32 {
    match error {
        StoreError::Conflict => abi::STATUS_CONFLICT,
        StoreError::OutOfMemory | StoreError::NoMemory | StoreError::StillRead => abi::STATUS_OUT_OF_MEMORY,
        StoreError::KeyTooLarge | StoreError::ValueTooLarge => abi::STATUS_TOO_LARGE,
        StoreError::NotANumber => abi::STATUS_NOT_A_NUMBER,
        StoreError::WrongServer => abi::STATUS_WRONG_SERVER,
    }
}

pub(super) fn raw(record: &RecordRef<'_>) -> RawRecord {
    let (key, value) = record.key_and_value();
    RawRecord {
        value: value.as_ptr(),
        value_len: value.len(),
        key: key.as_ptr(),
        key_len: key.len(),
        version: record.version(),
        flags: record.flags(),
        reserved: 0,
    }
}

fn condition(how: &RawWrite) -> Result<Condition, u32> {
    match how.condition {
        abi::CONDITION_ALWAYS => Ok(Condition::Always),
        abi::CONDITION_ABSENT => Ok(Condition::Absent),
        abi::CONDITION_PRESENT => Ok(Condition::Present),
        abi::CONDITION_VERSION => Ok(Condition::Version(how.version)),
        _ => Err(abi::STATUS_INVALID),
    }
}

unsafe extern "C" fn prefetch(
    invocation: *mut abi::Invocation,
    table: u64,
    key: *const u8,
    key_len: usize,
    hash: *mut u64,
) -> u32 {
    // SAFETY: the library's key and result outlive the call.
    let ask = |body: &mut Body, _: &Participant| unsafe {
        let key = bytes(key, key_len, MAX_KEY_BYTES)?;
        let found = body.table(table)?;
        let of_key = found.hash(key);
        found.prefetch_bucket(of_key);
        body.asked = (table, of_key);
        hash.write(of_key);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_lean(invocation, |body, participant| status(ask(body, participant))) }
}

unsafe extern "C" fn prefetch_record(invocation: *mut abi::Invocation, table: u64, hash: u64) -> u32 {
    let ask = |body: &mut Body| {
        // SAFETY: the invocation's pin is the protection that the bucket needs.
        unsafe { body.table(table)?.prefetch_further_pinned(hash) };
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_lean(invocation, |body, _| status(ask(body))) }
}

unsafe extern "C" fn get(
    invocation: *mut abi::Invocation,
    table: u64,
    hash: u64,
    key: *const u8,
    key_len: usize,
    out: *mut RawRecord,
) -> u32 {
    // SAFETY: the library's key and result outlive the call. The record stays until the invocation's pin ends, and the
    // table as long as its view.
    let read = |body: &mut Body| unsafe {
        let key = bytes(key, key_len, MAX_KEY_BYTES)?;
        let now_ms = body.abi.now_ms;
        let table = body.table(table)?;
        let hash = if hash == 0 { table.hash(key) } else { hash };
        if !table.owns(hash) {
            return Err(abi::STATUS_WRONG_SERVER);
        }
        let record = table.get_pinned(hash, key, now_ms).ok_or(abi::STATUS_NOT_FOUND)?;
        out.write(raw(&record));
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_lean(invocation, |body, _| status(read(body))) }
}

unsafe extern "C" fn prefetch_many(
    invocation: *mut abi::Invocation,
    table: u64,
    keys: *const RawKey,
    count: usize,
    hashes: *mut u64,
) -> u32 {
    // SAFETY: the library's keys outlive the call, as do the places for so many hashes.
    let ask = |body: &mut Body| unsafe {
        let keys = list(keys, count)?;
        let table = body.table(table)?;
        for (at, key) in keys.iter().enumerate() {
            let hash = table.hash(bytes(key.first, key.len, MAX_KEY_BYTES)?);
            table.prefetch_bucket(hash);
            hashes.add(at).write(hash);
        }
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_lean(invocation, |body, _| status(ask(body))) }
}

unsafe extern "C" fn prefetch_records(
    invocation: *mut abi::Invocation,
    table: u64,
    hashes: *const u64,
    count: usize,
) -> u32 {
    // SAFETY: the library's hashes outlive the call; the invocation's pin is the protection that the buckets need.
    let ask = |body: &mut Body| unsafe {
        let hashes = list(hashes, count)?;
        let table = body.table(table)?;
        table.prefetch_records_pinned(hashes.iter().copied());
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_lean(invocation, |body, _| status(ask(body))) }
}

unsafe extern "C" fn get_many(
    invocation: *mut abi::Invocation,
    table: u64,
    keys: *const RawKey,
    hashes: *const u64,
    count: usize,
    out: *mut RawRecord,
) -> u32 {
    // SAFETY: the library's keys and hashes outlive the call, as do the places for so many records. Records and table stay as
    // with `get`.
    let read = |body: &mut Body| unsafe {
        let (keys, hashes) = (list(keys, count)?, list(hashes, count)?);
        let now_ms = body.abi.now_ms;
        let table = body.table(table)?;
        for (at, (key, hash)) in keys.iter().zip(hashes).enumerate() {
            let key = bytes(key.first, key.len, MAX_KEY_BYTES)?;
            let hash = if *hash == 0 { table.hash(key) } else { *hash };
            if !table.owns(hash) {
                return Err(abi::STATUS_WRONG_SERVER);
            }
            let found = table.get_pinned(hash, key, now_ms);
            out.add(at).write(found.as_ref().map_or(RawRecord::ABSENT, raw));
        }
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call_lean(invocation, |body, _| status(read(body))) }
}

unsafe extern "C" fn put(
    invocation: *mut abi::Invocation,
    table: u64,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    how: *const RawWrite,
    version: *mut u64,
) -> u32 {
    // SAFETY: the library's key, value, manner and result outlive the call.
    let write = |body: &mut Body, participant: &Participant| unsafe {
        let key = bytes(key, key_len, MAX_KEY_BYTES)?;
        let value = bytes(value, value_len, MAX_VALUE_BYTES)?;
        let now_ms = body.abi.now_ms;
        let write = match how.as_ref() {
            None => Write::default(),
            Some(how) => Write {
                condition: condition(how)?,
                flags: how.flags,
                expires_at_ms: if how.ttl_ms == 0 { 0 } else { ends_ms(now_ms, how.ttl_ms) },
            },
        };
        let table = body.table_to_write(table)?;
        let hash = table.hash(key);
        version.write(table.put(participant, hash, key, value, &write, now_ms).map_err(refusal)?);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status(write(body, participant))) }
}

unsafe extern "C" fn delete(
    invocation: *mut abi::Invocation,
    table: u64,
    key: *const u8,
    key_len: usize,
    how: *const RawWrite,
) -> u32 {
    // SAFETY: the library's key and manner outlive the call.
    let delete = |body: &mut Body, participant: &Participant| unsafe {
        let key = bytes(key, key_len, MAX_KEY_BYTES)?;
        let condition = how.as_ref().map_or(Ok(Condition::Always), condition)?;
        let now_ms = body.abi.now_ms;
        let table = body.table_to_write(table)?;
        match table.delete(participant, table.hash(key), key, condition, now_ms).map_err(refusal)? {
            true => Ok(()),
            false => Err(abi::STATUS_NOT_FOUND),
        }
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status(delete(body, participant))) }
}

unsafe extern "C" fn increment(
    invocation: *mut abi::Invocation,
    table: u64,
    key: *const u8,
    key_len: usize,
    delta: i64,
    sum: *mut i64,
) -> u32 {
    // SAFETY: the library's key and result outlive the call.
    let add = |body: &mut Body, participant: &Participant| unsafe {
        let key = bytes(key, key_len, MAX_KEY_BYTES)?;
        let now_ms = body.abi.now_ms;
        let table = body.table_to_write(table)?;
        sum.write(table.increment(participant, table.hash(key), key, delta, now_ms).map_err(refusal)?.0);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status(add(body, participant))) }
}

unsafe extern "C" fn scan(
    invocation: *mut abi::Invocation,
    table: u64,
    cursor: *mut RawCursor,
    out: *mut RawRecord,
    limit: usize,
    filled: *mut usize,
) -> u32 {
    // SAFETY: the library's cursor, results (room for `limit` records) and count outlive the call; the records stay until
    // the invocation's pin ends.
    let fill = |body: &mut Body, participant: &Participant| unsafe {
        let now_ms = body.abi.now_ms;
        let table = body.table(table)?;
        let limit = limit.min(SCAN_CALL_RECORDS);
        let mut count = 0;
        let mut add = |record: RecordRef<'_>| {
            if count < limit {
                out.add(count).write(raw(&record));
                count += 1;
            }
        };
        if limit > 0 && (*cursor).finished == 0 {
            let guard = participant.guard();
            match table.scan(&guard, (*cursor).position, limit, now_ms, &mut add) {
                Some(next) => (*cursor).position = next,
                None => (*cursor).finished = 1,
            }
        }
        filled.write(count);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, participant| status(fill(body, participant))) }
}

unsafe extern "C" fn table_by_name(
    invocation: *mut abi::Invocation,
    name: *const u8,
    name_len: usize,
    table: *mut u64,
) -> u32 {
    // SAFETY: the library's name and result outlive the call.
    let find = |body: &mut Body| unsafe {
        let name = bytes(name, name_len, MAX_KEY_BYTES)?;
        let name = std::str::from_utf8(name).map_err(|_| abi::STATUS_NOT_FOUND)?;
        let held = body.held.as_ref().ok_or(abi::STATUS_INVALID)?;
        table.write(held.view.id_of(name).ok_or(abi::STATUS_NOT_FOUND)?);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status(find(body))) }
}

unsafe extern "C" fn reply(invocation: *mut abi::Invocation, first: *const u8, len: usize) -> u32 {
    // SAFETY: the library's bytes outlive the call.
    let append = |body: &mut Body| unsafe {
        let bytes = bytes(first, len, body.reply_limit.saturating_sub(body.reply.len()))?;
        if !body.grow_reply(len) {
            return Err(abi::STATUS_OUT_OF_MEMORY);
        }
        body.reply.extend_from_slice(bytes);
        Ok(())
    };
    // SAFETY: this is a host function.
    let status = unsafe { call(invocation, |body, _| status(append(body))) };
    if status == abi::STATUS_OUT_OF_MEMORY {
        const TEXT: &str = "no memory for a longer reply";
        // SAFETY: as this function, which the library called; nothing with a destructor is alive.
        unsafe { abort(invocation, abi::ABORT_OUT_OF_MEMORY, TEXT.as_ptr(), TEXT.len()) }
    }
    status
}

unsafe extern "C" fn grow(invocation: *mut abi::Invocation, bytes: usize) -> u32 {
    let grow = |body: &mut Body| if body.grow_arena(bytes) { abi::STATUS_OK } else { abi::STATUS_OUT_OF_MEMORY };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| grow(body)) }
}

unsafe extern "C" fn fail(invocation: *mut abi::Invocation, code: u32, text: *const u8, len: usize) -> u32 {
    // SAFETY: the library's text outlives the call.
    let keep = |body: &mut Body| unsafe {
        body.reply.clear();
        body.code = code;
        body.set_text(text_bytes(text, len)?);
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status(keep(body))) }
}

unsafe extern "C" fn abort(invocation: *mut abi::Invocation, cause: u32, text: *const u8, len: usize) -> ! {
    // SAFETY: as in `call`; the text outlives the call. The borrow of the body ends before the landing.
    unsafe {
        let block = enter_call();
        let body = &mut *invocation.cast::<Body>();
        if let Ok(text) = text_bytes(text, len) {
            body.set_text(text);
        }
        let cause = if cause == abi::ABORT_OUT_OF_MEMORY { KillCause::OutOfMemory } else { KillCause::Panic };
        if cause == KillCause::OutOfMemory {
            body.name_quota();
        }
        land(block, cause)
    }
}

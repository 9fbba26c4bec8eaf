//! What the host's functions are made of: the entry and the end of a call, what a library names, statuses, tables.
//!
//! Guarantees: a call takes the worker's block from gs and checks that enough stack is left. Every length is bounded
//! before a slice is made of it. It reaches nothing but the tables of the invocation's own tenant and those granted to
//! it. A switch that is requested meanwhile is taken at its end.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use sandstorm_api::abi::{self, MAX_CALL_KEYS, RawRecord};

use super::invocation::InvocationState;
use super::stack_switch::{switch_out_in_call, trap};
use super::worker_block::{STATE_GUEST, STATE_HOST_CALL, WorkerBlock};
use sandstorm_catalog::{AccessError, FIRST_GRANTED_ID};
use sandstorm_extension::KillCause;
use sandstorm_store::backed::BackingRefusal;
use sandstorm_store::{Participant, RecordRef, RecordTable, StoreError};

/// Makes the worker's state that of a host call; lands if too little stack is left for one.
///
/// # Safety
/// Called by host functions only, on entry, which only library code calls.
#[inline(always)]
pub(super) unsafe fn enter_call<'a>() -> &'a WorkerBlock {
    let stack_pointer: usize;
    // SAFETY: one instruction stores to the block of whichever thread this is; from then on it stays on that thread.
    // The other copies a register.
    unsafe {
        std::arch::asm!(
            "mov dword ptr gs:[{state}], {call}",
            "mov {sp}, rsp",
            sp = out(reg) stack_pointer,
            state = const std::mem::offset_of!(WorkerBlock, state),
            call = const STATE_HOST_CALL,
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: a worker with an engine, in call state.
    let block = unsafe { WorkerBlock::here() };
    if stack_pointer < block.call_floor.load(Ordering::Relaxed) {
        // SAFETY: on the side stack in call state, with nothing alive.
        unsafe { trap(block, KillCause::StackOverflow) }
    }
    block
}

/// Makes the worker's state that of tenant code again; takes a switch that was requested meanwhile.
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
            state = const std::mem::offset_of!(WorkerBlock, state),
            place = const std::mem::offset_of!(WorkerBlock, pending),
            tenant = const STATE_GUEST,
            options(nostack, preserves_flags),
        );
    }
    if pending != 0 {
        // SAFETY: on the side stack, with as much of it left as the call's entry has ensured.
        unsafe { switch_out_in_call() }
    }
}

/// Runs the body of a host function, which must not panic and returns before a switch is taken.
///
/// # Safety
/// Called by host functions only, with what library code passed.
#[inline(always)]
pub(super) unsafe fn call(
    invocation: *mut abi::InvocationHeader,
    f: impl FnOnce(&mut InvocationState, &Participant) -> u32,
) -> u32 {
    // SAFETY: this function's contract is that of `call_inline`.
    unsafe { call_inline(invocation, |body, participant| out_of_line(body, participant, f)) }
}

/// Keeps `f` between the entry and the end of a call. The same holds for everything that the compiler may compute for
/// it ahead of time, such as the addresses of the thread's variables. Outside of that the code may move to another
/// thread.
#[inline(never)]
fn out_of_line(
    body: &mut InvocationState,
    participant: &Participant,
    f: impl FnOnce(&mut InvocationState, &Participant) -> u32,
) -> u32 {
    f(body, participant)
}

/// As [`call`], for functions that use no variables of the thread (they neither allocate nor lock), with `f` in line.
///
/// # Safety
/// As for [`call`].
#[inline(always)]
pub(super) unsafe fn call_inline(
    invocation: *mut abi::InvocationHeader,
    f: impl FnOnce(&mut InvocationState, &Participant) -> u32,
) -> u32 {
    // SAFETY: called by host functions only, on entry.
    let block = unsafe { enter_call() };
    let participant = block.participant.load(Ordering::Relaxed);
    // SAFETY: the library hands on the pointer to the body that it was polled with, which the engine holds alone; the
    // participant outlives the poll.
    let status = unsafe { f(&mut *invocation.cast::<InvocationState>(), &*participant) };
    // SAFETY: `f` is over and its values are gone.
    unsafe { leave_call() };
    status
}

/// Returns the bytes that the library names, if they are not more than the limit.
///
/// # Safety
/// They come from a slice that outlives the host call.
#[inline(always)]
pub(super) unsafe fn guest_bytes<'a>(first: *const u8, len: usize, limit: usize) -> Result<&'a [u8], u32> {
    if len > limit {
        return Err(abi::STATUS_TOO_LARGE);
    }
    if first.is_null() {
        return Err(abi::STATUS_INVALID);
    }
    // SAFETY: this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(first, len) })
}

/// Returns the library's list, if it is not more than one call takes.
///
/// # Safety
/// It comes from a slice that outlives the host call.
#[inline(always)]
pub(super) unsafe fn guest_keys<'a, T>(first: *const T, count: usize) -> Result<&'a [T], u32> {
    if count > MAX_CALL_KEYS || first.is_null() {
        return Err(abi::STATUS_INVALID);
    }
    // SAFETY: this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Returns the list that the library names, if it is not longer than the limit.
///
/// # Safety
/// It outlives the call.
pub(super) unsafe fn guest_list<'a, T>(first: *const T, len: usize, limit: usize) -> Result<&'a [T], u32> {
    if len > limit {
        return Err(abi::STATUS_TOO_LARGE);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(abi::STATUS_INVALID);
    }
    // SAFETY: this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(first, len) })
}

impl InvocationState {
    /// Returns the tenant's table of that id, for reading.
    #[inline(always)]
    pub(super) fn table(&mut self, id: u64) -> Result<&RecordTable, u32> {
        self.reach::<false>(id)
    }

    /// Returns the tenant's table of that id, for writing.
    #[inline(always)]
    pub(super) fn table_to_write(&mut self, id: u64) -> Result<&RecordTable, u32> {
        self.reach::<true>(id)
    }

    #[inline(always)]
    fn reach<const WRITE: bool>(&mut self, id: u64) -> Result<&RecordTable, u32> {
        if self.table.0 != id || self.table.1.is_null() {
            if id >= FIRST_GRANTED_ID {
                return self.granted(id, WRITE);
            }
            let refs = self.refs.as_ref().ok_or(abi::STATUS_INVALID)?;
            let entry = refs.view.tables.get(&id).ok_or(abi::STATUS_UNKNOWN_TABLE)?;
            self.table = (id, std::sync::Arc::as_ptr(entry));
        }
        // SAFETY: the view keeps its tables, and the body its view, until the invocation ends.
        Ok(unsafe { &(*self.table.1).table })
    }

    /// Returns a table that another tenant granted. It is never kept in `self.table`: each call checks anew what the
    /// grant allows, since its end applies to invocations under way too.
    #[inline(never)]
    fn granted(&self, id: u64, write: bool) -> Result<&RecordTable, u32> {
        let refs = self.refs.as_ref().ok_or(abi::STATUS_INVALID)?;
        match refs.view.resolve_granted(id, write) {
            Ok(entry) => Ok(&entry.table),
            Err(AccessError::ReadOnly) => Err(abi::STATUS_READ_ONLY),
            Err(AccessError::Unknown) => Err(abi::STATUS_UNKNOWN_TABLE),
        }
    }
}

pub(super) fn status_code<T>(result: Result<T, u32>) -> u32 {
    match result {
        Ok(_) => abi::STATUS_OK,
        Err(status) => status,
    }
}

pub(super) fn store_error_status(error: StoreError) -> u32 {
    match error {
        StoreError::Conflict => abi::STATUS_CONFLICT,
        StoreError::OutOfMemory
        | StoreError::NoMemory
        | StoreError::ReclaimPressure
        | StoreError::NotLogged(_)
        | StoreError::NotSpilled(_) => abi::STATUS_OUT_OF_MEMORY,
        StoreError::NotBacked(BackingRefusal::ReadOnly) => abi::STATUS_READ_ONLY,
        StoreError::NotBacked(_) => abi::STATUS_NOT_BACKED,
        StoreError::Cold => abi::STATUS_COLD,
        StoreError::KeyTooLarge | StoreError::ValueTooLarge => abi::STATUS_TOO_LARGE,
        StoreError::NotANumber => abi::STATUS_NOT_A_NUMBER,
        StoreError::WrongServer => abi::STATUS_WRONG_SERVER,
    }
}

pub(super) fn raw_record(record: &RecordRef<'_>) -> RawRecord {
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

/// Returns a table of the invocation's, if it may be used at this moment.
pub(super) fn resolve_table(body: &InvocationState, id: u64, write: bool) -> Result<&RecordTable, u32> {
    if id >= FIRST_GRANTED_ID {
        return body.granted(id, write);
    }
    let refs = body.refs.as_ref().ok_or(abi::STATUS_INVALID)?;
    refs.view.tables.get(&id).map(|entry| &entry.table).ok_or(abi::STATUS_UNKNOWN_TABLE)
}

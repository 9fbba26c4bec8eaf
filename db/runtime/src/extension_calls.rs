//! The host's functions for calls of the tenant's other extensions.
//!
//! Guarantees: as `host.rs`.
#![allow(unsafe_code)]

use sandstorm_api::abi::{self, STATUS_TOO_LARGE};
use sandstorm_api::limits::CALL_BYTES;
use sandstorm_store::limits::MAX_KEY_BYTES;

use super::host_call::{call, guest_bytes, status_code};
use super::invocation::InvocationState;

pub(super) unsafe extern "C" fn call_begin(
    invocation: *mut abi::InvocationHeader,
    name: *const u8,
    name_len: usize,
    args: *const u8,
    args_len: usize,
    notes: *const u8,
    notes_len: usize,
) -> u32 {
    // SAFETY: the library's name, arguments and notes outlive the call.
    let request = |body: &mut InvocationState| unsafe {
        let name = guest_bytes(name, name_len, MAX_KEY_BYTES)?;
        body.request_call(name, guest_bytes(args, args_len, CALL_BYTES)?, guest_bytes(notes, notes_len, CALL_BYTES)?)
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(request(body))) }
}

pub(super) unsafe extern "C" fn call_end(invocation: *mut abi::InvocationHeader, code: *mut u32) -> u32 {
    let take = |body: &mut InvocationState| {
        if code.is_null() {
            body.forget_call();
            return Ok(());
        }
        let ended = body.take_ended_call().inspect_err(|_| body.note_look())?;
        // SAFETY: the library's place for the code outlives the call.
        unsafe { code.write(ended) };
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(take(body))) }
}

pub(super) unsafe extern "C" fn call_part(
    invocation: *mut abi::InvocationHeader,
    part: u32,
    to: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> u32 {
    let copy = |body: &mut InvocationState| {
        let bytes = body.call_part(part)?;
        // SAFETY: the library's buffer and place for the length outlive the call.
        unsafe {
            len.write(bytes.len());
            if bytes.len() > capacity {
                return Err(STATUS_TOO_LARGE);
            }
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Ok(())
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(copy(body))) }
}

pub(super) unsafe extern "C" fn call_return(
    invocation: *mut abi::InvocationHeader,
    notes: *const u8,
    len: usize,
) -> u32 {
    // SAFETY: the library's notes outlive the call.
    let keep = |body: &mut InvocationState| unsafe { body.return_notes(guest_bytes(notes, len, CALL_BYTES)?) };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(keep(body))) }
}

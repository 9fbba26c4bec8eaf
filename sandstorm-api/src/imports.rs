//! The way to the host's functions: a table behind the invocation on native targets, imports of a WebAssembly module on
//! wasm32. Tests have a stand-in of the host, which is behind the invocation on both.
//!
//! Guarantees: each function of the table that stands for the imports passes its arguments on unchanged, all but the
//! invocation, of which a module has only one. The compiler checks parameters and results against
//! [`HostCalls`], whose fields the imports are named after.
#![allow(unsafe_code)]

use crate::abi::{HostCalls, InvocationHeader};

/// The host's functions.
///
/// # Safety
/// `invocation` is live for `'a`.
#[cfg(any(not(target_arch = "wasm32"), feature = "testing"))]
#[inline(always)]
pub(crate) unsafe fn host_calls<'a>(invocation: *mut InvocationHeader) -> &'a HostCalls {
    // SAFETY: the host has filled the header of a live invocation, and keeps its functions as long.
    unsafe { &*(*invocation).host }
}

/// The host's functions. The header's field is null here: a module calls its imports. The table is a constant, so that
/// the compiler sees through it, and no call is an indirect one.
///
/// # Safety
/// `invocation` is live for `'a`.
#[cfg(all(target_arch = "wasm32", not(feature = "testing")))]
#[inline(always)]
pub(crate) unsafe fn host_calls<'a>(_invocation: *mut InvocationHeader) -> &'a HostCalls {
    &IMPORTED
}

/// Declares the imports, and the table of functions that call them.
#[cfg(all(target_arch = "wasm32", not(feature = "testing")))]
macro_rules! imports {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        mod imported {
            use crate::abi::*;

            // Its name is `abi::SANDBOX_IMPORTS`: an attribute takes only a literal.
            #[link(wasm_import_module = "sandstorm")]
            unsafe extern "C" {
                $(pub(super) fn $name($($argument: $kind),*) -> $answer;)*
            }
        }

        mod calls {
            use crate::abi::*;

            $(
                #[inline]
                pub(super) unsafe extern "C" fn $name(_: *mut InvocationHeader, $($argument: $kind),*) -> $answer {
                    // SAFETY: the caller keeps to the contract of the field of `HostCalls` that has this name.
                    unsafe { super::imported::$name($($argument),*) }
                }
            )*
        }

        const IMPORTED: HostCalls = HostCalls { $($name: calls::$name),* };
    };
}

#[cfg(all(target_arch = "wasm32", not(feature = "testing")))]
imports! {
    prefetch(table: u64, key: *const u8, key_len: usize, hash: *mut u64) -> u32;
    prefetch_record(table: u64, hash: u64) -> u32;
    get(table: u64, hash: u64, key: *const u8, key_len: usize, out: *mut RawRecord) -> u32;
    put(
        table: u64,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
        how: *const RawWrite,
        version: *mut u64
    ) -> u32;
    delete(table: u64, key: *const u8, key_len: usize, how: *const RawWrite) -> u32;
    increment(table: u64, key: *const u8, key_len: usize, delta: i64, sum: *mut i64) -> u32;
    scan(table: u64, cursor: *mut RawCursor, out: *mut RawRecord, limit: usize, filled: *mut usize) -> u32;
    table_by_name(name: *const u8, name_len: usize, table: *mut u64) -> u32;
    reply(bytes: *const u8, len: usize) -> u32;
    fail(code: u32, text: *const u8, len: usize) -> u32;
    abort(cause: u32, text: *const u8, len: usize) -> !;
    grow(bytes: usize) -> u32;
    prefetch_many(table: u64, keys: *const RawKey, count: usize, hashes: *mut u64) -> u32;
    prefetch_records(table: u64, hashes: *const u64, count: usize) -> u32;
    get_many(table: u64, keys: *const RawKey, hashes: *const u64, count: usize, out: *mut RawRecord) -> u32;
    commit(
        reads: *const RawRead,
        reads_len: usize,
        ranges: *const RawRangeRead,
        ranges_len: usize,
        changes: *const RawChange,
        changes_len: usize
    ) -> u32;
    range(table: u64, range: *mut RawRange, out: *mut RawRecord, limit: usize, filled: *mut usize) -> u32;
    range_keys(table: u64, range: *mut RawRange, out: *mut RawKeys) -> u32;
    count(table: u64, range: *const RawRange, count: *mut u64) -> u32;
    nth(table: u64, position: u64, out: *mut RawKeys) -> u32;
    expiry(table: u64, hash: u64, key: *const u8, key_len: usize, expires_at_ms: *mut u64) -> u32;
    touch(table: u64, key: *const u8, key_len: usize, ttl_ms: u64) -> u32;
    random(bytes: *mut u8, len: usize) -> u32;
    now_us() -> u64;
    secret(name: *const u8, name_len: usize, to: *mut u8, capacity: usize, len: *mut usize) -> u32;
    log_line(level: u32, text: *const u8, len: usize) -> u32;
    call_begin(
        name: *const u8,
        name_len: usize,
        args: *const u8,
        args_len: usize,
        notes: *const u8,
        notes_len: usize
    ) -> u32;
    call_end(code: *mut u32) -> u32;
    call_part(part: u32, to: *mut u8, capacity: usize, len: *mut usize) -> u32;
    call_return(notes: *const u8, len: usize) -> u32;
}

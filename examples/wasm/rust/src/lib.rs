//! Adds up the records of a range of an ordered table, and keeps the sum, as one transaction.
//!
//! Arguments: table u64, then from_len u16, from, to_len u16, to, and the key of the sum. Each record with a key of
//! `from <= key < to` has a number (u64). Reply: the sum u64, the number of records u32. Integers are little-endian.
//!
//! The host's functions are imported as they are; docs/modules.md has them all.
#![no_std]

use core::ptr::null;

/// Records that one call of `range` fills at most.
const PAGE: usize = 32;
/// Records that a transaction may have met in its ranges, and this example with its room for them.
const MOST_ROWS: usize = 4_096;

const DONE: u32 = 1;
const FAILED: u32 = 2;
const AGAIN: u32 = 3;
const OK: u32 = 0;
const CONFLICT: u32 = 2;
const TOO_LARGE: u32 = 5;
const INVALID: u32 = 8;

/// The beginning of an invocation's header.
#[repr(C)]
pub struct Header {
    host: u32,
    args: *const u8,
    args_len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Record {
    value: *const u8,
    value_len: usize,
    key: *const u8,
    key_len: usize,
    version: u64,
    flags: u32,
    reserved: u32,
}

#[repr(C)]
struct Range {
    from: *const u8,
    from_len: usize,
    to: *const u8,
    to_len: usize,
    backward: u32,
    past: u32,
    finished: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Row {
    key: *const u8,
    key_len: usize,
    version: u64,
}

#[repr(C)]
struct RangeRead {
    table: u64,
    from: *const u8,
    from_len: usize,
    to: *const u8,
    to_len: usize,
    rows: *const Row,
    rows_len: usize,
    included: u32,
    backward: u32,
}

#[repr(C)]
struct Change {
    table: u64,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    expires_at_ms: u64,
    flags: u32,
    kind: u32,
}

#[link(wasm_import_module = "sandstorm")]
unsafe extern "C" {
    fn range(table: u64, range: *mut Range, records: *mut Record, limit: usize, filled: *mut usize) -> u32;
    fn commit(
        reads: *const u8,
        reads_len: usize,
        ranges: *const RangeRead,
        ranges_len: usize,
        changes: *const Change,
        changes_len: usize,
    ) -> u32;
    fn reply(bytes: *const u8, len: usize) -> u32;
    fn fail(code: u32, text: *const u8, text_len: usize) -> u32;
    fn abort(cause: u32, text: *const u8, text_len: usize) -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    let text = "a panic";
    // SAFETY: a text of this module; the host ends the call.
    unsafe { abort(1, text.as_ptr(), text.len()) }
}

fn failed(code: u32, text: &str) -> u32 {
    // SAFETY: a text of this module.
    unsafe { fail(code, text.as_ptr(), text.len()) };
    FAILED
}

/// The table, the range's ends, and the key of the sum.
fn parse(args: &[u8]) -> Option<(u64, &[u8], &[u8], &[u8])> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (len, rest) = rest.split_first_chunk::<2>()?;
    let (from, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
    let (len, rest) = rest.split_first_chunk::<2>()?;
    let (to, key) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
    Some((u64::from_le_bytes(*table), from, to, key))
}

/// Called by the server, once for each call; memory is as at first each time.
///
/// # Safety
/// `invocation` is the address that the server passes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sandstorm_start(_slot: u32, invocation: *const Header) -> u32 {
    // SAFETY: this function's contract; the arguments stay where they are until the call ends.
    let args = unsafe { core::slice::from_raw_parts((*invocation).args, (*invocation).args_len) };
    let Some((table, from, to, key)) = parse(args) else {
        return failed(INVALID, "args: table u64, from_len u16, from, to_len u16, to, key of the sum");
    };
    static mut ROWS: [Row; MOST_ROWS] = [Row { key: null(), key_len: 0, version: 0 }; MOST_ROWS];
    // SAFETY: one thread, and one call in this memory.
    let rows = unsafe { &mut *(&raw mut ROWS) };
    let (mut sum, mut count) = (0_u64, 0_usize);
    let mut left = Range {
        from: from.as_ptr(),
        from_len: from.len(),
        to: to.as_ptr(),
        to_len: to.len(),
        backward: 0,
        past: 0,
        finished: 0,
        reserved: 0,
    };
    while left.finished == 0 {
        let none = Record { value: null(), value_len: 0, key: null(), key_len: 0, version: 0, flags: 0, reserved: 0 };
        let (mut page, mut filled) = ([none; PAGE], 0);
        // SAFETY: everything that is named lies in this module's memory, with room for a page.
        let status = unsafe { range(table, &mut left, page.as_mut_ptr(), PAGE, &mut filled) };
        if status != OK {
            return failed(status, "the range cannot be read");
        }
        for record in page.iter().take(filled) {
            // SAFETY: the host's copy of a record, which stays until the call ends.
            let value = unsafe { core::slice::from_raw_parts(record.value, record.value_len) };
            let (Some(number), Some(row)) = (value.first_chunk::<8>(), rows.get_mut(count)) else {
                return failed(INVALID, "more records than there is room for, or one that has no number");
            };
            let Some(more) = sum.checked_add(u64::from_le_bytes(*number)) else {
                return failed(TOO_LARGE, "the sum has no room");
            };
            *row = Row { key: record.key, key_len: record.key_len, version: record.version };
            (sum, count) = (more, count + 1);
        }
    }
    let value = sum.to_le_bytes();
    let read = RangeRead {
        table,
        from: from.as_ptr(),
        from_len: from.len(),
        to: to.as_ptr(),
        to_len: to.len(),
        rows: rows.as_ptr(),
        rows_len: count,
        included: 0,
        backward: 0,
    };
    let change = Change {
        table,
        key: key.as_ptr(),
        key_len: key.len(),
        value: value.as_ptr(),
        value_len: value.len(),
        expires_at_ms: 0,
        flags: 0,
        kind: 0,
    };
    // The reply comes first: after a commit nothing may fail.
    let count = (count as u32).to_le_bytes();
    // SAFETY: everything that is named lies in this module's memory.
    let status = unsafe {
        reply(value.as_ptr(), value.len());
        reply(count.as_ptr(), count.len());
        commit(null(), 0, &read, 1, &change, 1)
    };
    match status {
        OK => DONE,
        // Another call has changed what was read: the server starts this one again.
        CONFLICT => AGAIN,
        status => failed(status, "the sum cannot be written"),
    }
}

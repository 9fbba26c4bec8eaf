//! The binary interface between the server and an extension: its library, version 8, or its WebAssembly module.
//!
//! Everything here is `repr(C)` and may only change together with [`ABI_VERSION`]. The server calls the four functions
//! of [`ExtensionVtable`]. The library calls back through [`HostCalls`], found behind the [`InvocationHeader`] that it
//! is given. Tenant code never names this module (the checker refuses the path); the generated wrapper and the server
//! do.
//!
//! The host fills an [`InvocationHeader`] before it calls `create`. The library's allocator moves
//! [`InvocationArena::next`] and the free lists. The host moves [`InvocationArena::end`], only within a call of
//! [`HostCalls::grow`]. No other code touches them while tenant code runs.
//!
//! Version 2: the arena grows by [`HostCalls::grow`], up to [`InvocationArena::limit`]; in version 1 it had its whole
//! length at once. Version 3: [`HostCalls::prefetch_many`], [`HostCalls::prefetch_records`] and
//! [`HostCalls::get_many`]. Version 4: transactions ([`HostCalls::commit`], [`POLL_AGAIN`]).
//! Version 5: ranges of ordered tables ([`HostCalls::range`]), and their checks in a commit.
//! Version 6: the keys of such a range alone ([`HostCalls::range_keys`]). Version 7: counts and positions of keys
//! ([`HostCalls::count`], [`HostCalls::nth`], [`RANGE_COUNTED`]), expiry ([`HostCalls::expiry`],
//! [`HostCalls::touch`]), random numbers, microseconds and secrets. Version 8: lines for the
//! tenant's log ([`HostCalls::log_line`], [`InvocationHeader::log_level`]), calls of other extensions
//! ([`HostCalls::call_begin`], [`InvocationHeader::nested`]).
//!
//! # Modules
//!
//! A module of the sandboxed tier is for wasm32, and speaks version [`SANDBOX_ABI_VERSION`] of its own:
//! - It imports the fields of [`HostCalls`] as functions of the module [`SANDBOX_IMPORTS`], without their first
//!   parameter. Pointers and `usize` are i32.
//! - It exports its memory, the global `__heap_base`, and the functions [`START_EXPORT`] and [`POLL_EXPORT`], which
//!   take the slot and the invocation and answer a `POLL_*`. A start stands for `create` and `poll` of
//!   [`ExtensionVtable`]. (Rust's linker adds the global `__data_end`.)
//! - Its custom section [`MODULE_SECTION`] has [`MODULE_SECTION_BYTES`]: see [`module_section`].
//! - Its [`InvocationHeader`] lies at `__heap_base`, rounded up to [`MODULE_INVOCATION_ALIGN`]; the field `host` is
//!   null.
//! - All structs have the layout that `repr(C)` gives them on wasm32, little-endian. `module_layout` asserts it.

#[cfg(target_arch = "wasm32")]
mod module_layout;
mod modules;

/// Version of the structs in this module. The server refuses a library built for any other.
pub const ABI_VERSION: u32 = 8;

/// The name under which a library exports its [`ExtensionVtable`].
pub const EXTENSION_SYMBOL: &str = "SANDSTORM_EXTENSION";

pub use modules::{
    MODULE_INVOCATION_ALIGN, MODULE_SECTION, MODULE_SECTION_BYTES, POLL_EXPORT, SANDBOX_ABI_VERSION, SANDBOX_IMPORTS,
    START_EXPORT, module_section,
};

/// `poll`/`start` answered: not ready, poll again.
pub const POLL_PENDING: u32 = 0;
/// `poll`/`start` answered: the extension returned `Ok(())`.
pub const POLL_DONE: u32 = 1;
/// `poll`/`start` answered: the extension returned an error, which it has handed to [`HostCalls::fail`].
pub const POLL_FAILED: u32 = 2;
/// Answer of `poll`/`start`: the invocation's transaction met the writes of others, as [`HostCalls::commit`] has
/// reported. The host forgets the future and all of the invocation's memory but the arguments, and starts it anew.
/// (Since version 4.)
pub const POLL_AGAIN: u32 = 3;

/// The exports of a library, one per library, under [`EXTENSION_SYMBOL`].
#[repr(C)]
#[derive(Debug)]
pub struct ExtensionVtable {
    /// [`ABI_VERSION`] the library was built with.
    pub abi_version: u32,
    /// Zero.
    pub reserved: u32,
    /// Fingerprint of the API source the library was built with (first 8 bytes of its SHA-256, little-endian).
    pub api_fingerprint: u64,
    /// Size in bytes of the extension's future.
    pub future_size: usize,
    /// Alignment in bytes of the extension's future; a power of two.
    pub future_align: usize,
    /// Builds the future of one invocation in `slot` (`future_size` bytes at `future_align`).
    pub create: unsafe extern "C" fn(slot: *mut u8, invocation: *mut InvocationHeader),
    /// Polls the future once: `POLL_PENDING`, `POLL_DONE` or `POLL_FAILED`. A ready answer has dropped the future;
    /// nothing is called with it again.
    pub poll: unsafe extern "C" fn(slot: *mut u8, invocation: *mut InvocationHeader) -> u32,
    /// Drops a future that is not ready.
    pub drop: unsafe extern "C" fn(slot: *mut u8),
    /// `create`, then `poll`.
    pub start: unsafe extern "C" fn(slot: *mut u8, invocation: *mut InvocationHeader) -> u32,
}

/// Number of size classes of the arena's allocator: class `i` holds blocks of `16 << i` bytes.
pub const ARENA_CLASSES: usize = 24;

/// The memory of one invocation: bump pointer, end, quota, and a free list per size class. Freed whole by the host.
#[repr(C)]
#[derive(Debug)]
pub struct InvocationArena {
    /// First free byte.
    pub next: *mut u8,
    /// One past the last byte that may be used now; [`HostCalls::grow`] moves it up.
    pub end: *mut u8,
    /// One past the last byte that there can ever be: the invocation's own quota. Stays as it is.
    pub limit: *mut u8,
    /// Heads of the free lists, null when empty; a free block's first word points at the next one.
    pub free: [*mut u8; ARENA_CLASSES],
}

/// The library's view of one invocation. The host keeps more behind it.
#[repr(C)]
#[derive(Debug)]
pub struct InvocationHeader {
    /// The host's functions; valid as long as the invocation.
    pub host: *const HostCalls,
    /// The caller's arguments.
    pub args: *const u8,
    /// Length of the arguments in bytes.
    pub args_len: usize,
    /// Milliseconds since the Unix epoch, refreshed before each poll.
    pub now_ms: u64,
    /// 1: an awaited read should prefetch and yield, since other invocations are ready to run; 0: it should read at
    /// once.
    pub interleave: u32,
    /// 1: the extension has begun a transaction; the library's business, but that the host sets it to 0 at the
    /// beginning. (Since version 4, before which it was zero.)
    pub transaction: u32,
    /// The invocation's memory.
    pub arena: InvocationArena,
    /// The transaction's log, if one was begun. It is in the arena, and only the library uses it. (Since version 4.)
    pub notes: *mut u8,
    /// The number of the least severe lines that the tenant's log keeps, 0: none; as of the invocation's beginning.
    /// (This one and the next since version 8.)
    pub log_level: u32,
    /// 1: another extension has called this one, and the transaction is handed back to it.
    pub nested: u32,
}

/// A borrowed record as the host hands it out; lives as long as the invocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawRecord {
    /// First byte of the value.
    pub value: *const u8,
    /// Length of the value in bytes.
    pub value_len: usize,
    /// First byte of the key.
    pub key: *const u8,
    /// Length of the key in bytes.
    pub key_len: usize,
    /// Version of the record; grows with every write of its key.
    pub version: u64,
    /// The caller's flags, stored with the record.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

impl RawRecord {
    /// A record of nothing, to be overwritten by the host.
    pub const EMPTY: RawRecord = RawRecord {
        value: core::ptr::NonNull::<u8>::dangling().as_ptr(),
        value_len: 0,
        key: core::ptr::NonNull::<u8>::dangling().as_ptr(),
        key_len: 0,
        version: 0,
        flags: 0,
        reserved: 0,
    };
}

impl RawRecord {
    /// Stands for a missing record: without a value, not even an empty one.
    pub const ABSENT: RawRecord = RawRecord { value: core::ptr::null(), ..RawRecord::EMPTY };
}

/// Most keys that one host call takes: few enough that it is over in a few microseconds, since a switch to another
/// invocation has to wait for that.
pub const MAX_CALL_KEYS: usize = 32;

/// A key, where there are many.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawKey {
    /// First byte.
    pub first: *const u8,
    /// Length in bytes.
    pub len: usize,
}

/// Condition of a write: none.
pub const CONDITION_ALWAYS: u32 = 0;
/// Condition of a write: only if the key is absent.
pub const CONDITION_ABSENT: u32 = 1;
/// Condition of a write: only if the key is present.
pub const CONDITION_PRESENT: u32 = 2;
/// Condition of a write: only if the record's version is `RawWrite::version`.
pub const CONDITION_VERSION: u32 = 3;

/// Options of a write or delete.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawWrite {
    /// One of the `CONDITION_*` constants.
    pub condition: u32,
    /// The caller's flags, stored with the record.
    pub flags: u32,
    /// The version that `CONDITION_VERSION` asks for.
    pub version: u64,
    /// Milliseconds until the record expires; 0: never.
    pub ttl_ms: u64,
}

/// Position of a scan of a table: opaque to the extension; all zero at the start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawCursor {
    /// Host's business; 0 at the start.
    pub position: u64,
    /// 1 when the scan has seen the whole table. Before: 0, or [`CURSOR_WAITS`].
    pub finished: u64,
}

/// [`RawCursor::finished`] of a scan that takes [`STATUS_COLD`], and so shows tables larger than memory.
pub const CURSOR_WAITS: u64 = 2;
/// [`RawCursor::finished`] of a scan that has seen the whole table.
pub const CURSOR_FINISHED: u64 = 1;

/// Records that one call of [`HostCalls::range`] fills at most, for the same reason as [`MAX_CALL_KEYS`].
pub const MAX_CALL_RECORDS: usize = 32;

/// Bytes of a secret at most.
pub const MAX_SECRET_BYTES: usize = 4 << 10;

/// Bytes of a line of the tenant's log, at most; what is longer is cut.
pub const LOG_LINE_BYTES: usize = 1 << 10;

/// Random bytes that one call of [`HostCalls::random`] fills at most, for the same reason: about a microsecond.
pub const MAX_RANDOM_BYTES: usize = 1024;

/// The rest of a range of an ordered table. (Since version 5.)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawRange {
    /// First byte of the key from which on there is something left.
    pub from: *const u8,
    /// Length of that key in bytes.
    pub from_len: usize,
    /// First byte of the key before which the range ends.
    pub to: *const u8,
    /// Length of that key in bytes; 0: the range goes on to the end of the table.
    pub to_len: usize,
    /// 1: the largest key comes first.
    pub backward: u32,
    /// 1: `from` itself is no part of it.
    pub past: u32,
    /// 1: nothing is left.
    pub finished: u32,
    /// Zero.
    pub reserved: u32,
}

/// Room for keys, for [`HostCalls::range_keys`]. (Since version 6.)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawKeys {
    /// Buffer for the keys, one behind the other.
    pub bytes: *mut u8,
    /// Bytes of that buffer.
    pub bytes_len: usize,
    /// Buffer for each key's end: the number of bytes of it and the keys before it.
    pub ends: *mut usize,
    /// Length of that buffer: the most keys to copy.
    pub ends_len: usize,
    /// Number of keys that the host has copied.
    pub filled: usize,
}

/// A record that a transaction has met in a range. (Since version 5.)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawRow {
    /// First byte of the key.
    pub key: *const u8,
    /// Length of the key in bytes.
    pub key_len: usize,
    /// The record's version.
    pub version: u64,
}

/// A range that a transaction has read, for [`HostCalls::commit`]: these rows and no others. (Since version 5.)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawRangeRead {
    /// The table's id.
    pub table: u64,
    /// First byte of the smallest key that was looked for.
    pub from: *const u8,
    /// Length of that key in bytes.
    pub from_len: usize,
    /// First byte of the key at which the range ends.
    pub to: *const u8,
    /// Length of that key in bytes; 0, unless `included` is 1: the range goes on to the end of the table.
    pub to_len: usize,
    /// The first of the rows that were found, in the order of the keys in which the range was read.
    pub rows: *const RawRow,
    /// Number of rows.
    pub rows_len: usize,
    /// 1: `to` itself is part of it.
    pub included: u32,
    /// 1: the rows begin with the largest key. [`RANGE_COUNTED`]: the keys were only counted.
    pub backward: u32,
}

/// In [`RawRangeRead::backward`]: `rows_len` is the number of keys that were counted, and `rows` is not read. (Since
/// version 7.)
pub const RANGE_COUNTED: u32 = 2;

/// A read of a transaction, for [`HostCalls::commit`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawRead {
    /// The table's id.
    pub table: u64,
    /// The hash that `prefetch` wrote for the key, or 0.
    pub hash: u64,
    /// First byte of the key.
    pub key: *const u8,
    /// Length of the key in bytes.
    pub key_len: usize,
    /// The record's version; 0: there was none.
    pub version: u64,
}

/// Kind of a change: the record is written, even if there is one.
pub const CHANGE_PUT: u32 = 0;
/// Kind of a change: the record is deleted, if it is there. Value, flags and expiry do not count.
pub const CHANGE_DELETE: u32 = 1;

/// A change by a transaction, for [`HostCalls::commit`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawChange {
    /// The table's id.
    pub table: u64,
    /// First byte of the key.
    pub key: *const u8,
    /// Length of the key in bytes.
    pub key_len: usize,
    /// First byte of the value.
    pub value: *const u8,
    /// Length of the value in bytes.
    pub value_len: usize,
    /// Milliseconds since the Unix epoch from which on the record counts as absent; 0: never.
    pub expires_at_ms: u64,
    /// The caller's flags, stored with the record.
    pub flags: u32,
    /// One of the `CHANGE_*` constants.
    pub kind: u32,
}

/// Status of a host call: done.
pub const STATUS_OK: u32 = 0;
/// Status of a host call: no record under that key (or no table of that name).
pub const STATUS_NOT_FOUND: u32 = 1;
/// Status of a host call: the condition of a write did not hold.
pub const STATUS_CONFLICT: u32 = 2;
/// Status of a host call: the tenant has no such table, or the grant of it has ended.
pub const STATUS_UNKNOWN_TABLE: u32 = 3;
/// Status of a host call: the table's or tenant's memory quota is reached.
pub const STATUS_OUT_OF_MEMORY: u32 = 4;
/// Status of a host call: a key, value or reply is longer than its limit.
pub const STATUS_TOO_LARGE: u32 = 5;
/// Status of a host call: an increment met a value that is not a decimal number, or would overflow.
pub const STATUS_NOT_A_NUMBER: u32 = 6;
/// Status of a host call: another server owns this part of the table.
pub const STATUS_WRONG_SERVER: u32 = 7;
/// Status of a host call: an argument is out of its range.
pub const STATUS_INVALID: u32 = 8;
/// Status of a host call: a write to a table that another tenant granted for reading only.
pub const STATUS_READ_ONLY: u32 = 9;
/// Status of a commit: the transaction met the writes of others each time that it was tried.
pub const STATUS_CONTENDED: u32 = 10;
/// Status of a range: the table was not made as an ordered one. (Since version 5.)
pub const STATUS_NOT_ORDERED: u32 = 11;
/// Status of a host call: the record is on the server's disk, which does not read it or has damaged it.
pub const STATUS_NOT_READ: u32 = 14;
/// Status of a host call: the record is on the server's disk. Nothing was done: the library answers [`POLL_PENDING`],
/// is polled again once the record is in memory, and makes the call again.
pub const STATUS_COLD: u32 = 15;
/// Status of a scan: not all records of the table are in memory, and the scan does not wait, or they are elsewhere.
pub const STATUS_NOT_SCANNED: u32 = 16;
/// Status of a host call: what is behind the table does not take the change.
pub const STATUS_NOT_BACKED: u32 = 17;

/// Status of [`HostCalls::call_begin`]: another call is under way. (This one and the next since version 8.)
pub const STATUS_BUSY: u32 = 12;
/// The server has ended the called extension. No status of a host call, but a code of [`HostCalls::call_end`].
pub const STATUS_KILLED: u32 = 13;

/// A part of [`HostCalls::call_part`]: the reply of the call that has ended, or the text of its error.
pub const CALL_REPLY: u32 = 1;
/// A part of [`HostCalls::call_part`]: what it has added to the transaction; empty: nothing.
pub const CALL_NOTES: u32 = 2;
/// A part of [`HostCalls::call_part`]: the caller's transaction so far, in an invocation that was called.
pub const CALL_INHERITED: u32 = 3;

/// Reason to leave through [`HostCalls::abort`]: the extension panicked.
pub const ABORT_PANIC: u32 = 1;
/// Reason to leave through [`HostCalls::abort`]: the arena is used up.
pub const ABORT_OUT_OF_MEMORY: u32 = 2;

/// The host's functions. All take the invocation first, run on the caller's stack, and return a `STATUS_*` unless said
/// otherwise. Keys, values and texts are `(pointer, length)`; they are only read during the call.
#[repr(C)]
#[derive(Debug)]
pub struct HostCalls {
    /// Hashes the key and prefetches its bucket; writes the hash. Never fails for a missing key. Where the extension
    /// yields after it, the host prefetches the record, too, before it polls again.
    pub prefetch:
        unsafe extern "C" fn(*mut InvocationHeader, table: u64, key: *const u8, key_len: usize, hash: *mut u64) -> u32,
    /// Prefetches the record that the bucket of `hash` points to, if any.
    pub prefetch_record: unsafe extern "C" fn(*mut InvocationHeader, table: u64, hash: u64) -> u32,
    /// Reads a record. `hash` is the one that `prefetch` wrote for this key, or 0: the host hashes.
    pub get: unsafe extern "C" fn(
        *mut InvocationHeader,
        table: u64,
        hash: u64,
        key: *const u8,
        key_len: usize,
        out: *mut RawRecord,
    ) -> u32,
    /// Writes a record and its new version. A null `how` means: always, no flags, no expiry.
    pub put: unsafe extern "C" fn(
        *mut InvocationHeader,
        table: u64,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
        how: *const RawWrite,
        version: *mut u64,
    ) -> u32,
    /// Deletes a record under the condition of `how` (null: always).
    pub delete: unsafe extern "C" fn(
        *mut InvocationHeader,
        table: u64,
        key: *const u8,
        key_len: usize,
        how: *const RawWrite,
    ) -> u32,
    /// Adds `delta` to a decimal value (an absent key counts as 0) and writes the sum.
    pub increment: unsafe extern "C" fn(
        *mut InvocationHeader,
        table: u64,
        key: *const u8,
        key_len: usize,
        delta: i64,
        sum: *mut i64,
    ) -> u32,
    /// Fills up to `limit` records from the cursor on, moves the cursor, writes how many. Records that stay unchanged
    /// during a whole scan are seen at least once. Where the first is on the disk, it answers [`STATUS_COLD`] and fills
    /// none, if the cursor says that it waits.
    pub scan: unsafe extern "C" fn(
        *mut InvocationHeader,
        table: u64,
        cursor: *mut RawCursor,
        out: *mut RawRecord,
        limit: usize,
        filled: *mut usize,
    ) -> u32,
    /// Finds the id of the tenant's table of that name, or of the table granted to it as `owner/table`.
    pub table_by_name:
        unsafe extern "C" fn(*mut InvocationHeader, name: *const u8, name_len: usize, table: *mut u64) -> u32,
    /// Appends to the reply.
    pub reply: unsafe extern "C" fn(*mut InvocationHeader, bytes: *const u8, len: usize) -> u32,
    /// Hands over the error that the extension returned: code and text. The reply so far is dropped.
    pub fail: unsafe extern "C" fn(*mut InvocationHeader, code: u32, text: *const u8, len: usize) -> u32,
    /// Ends the invocation at once, with one of the `ABORT_*` causes and a text. Does not return.
    pub abort: unsafe extern "C" fn(*mut InvocationHeader, cause: u32, text: *const u8, len: usize) -> !,
    /// Moves [`InvocationArena::end`] up so that at least `bytes` lie between [`InvocationArena::next`] and it. Returns
    /// `STATUS_OUT_OF_MEMORY`, and changes nothing, if that passes [`InvocationArena::limit`] or the tenant's quota.
    /// (Since version 2.)
    pub grow: unsafe extern "C" fn(*mut InvocationHeader, bytes: usize) -> u32,
    /// Like `prefetch` for each of up to [`MAX_CALL_KEYS`] keys. (This one and the next two since version 3.)
    pub prefetch_many: unsafe extern "C" fn(
        *mut InvocationHeader,
        table: u64,
        keys: *const RawKey,
        count: usize,
        hashes: *mut u64,
    ) -> u32,
    /// Like `prefetch_record` for each of up to [`MAX_CALL_KEYS`] hashes.
    pub prefetch_records:
        unsafe extern "C" fn(*mut InvocationHeader, table: u64, hashes: *const u64, count: usize) -> u32,
    /// Like `get` for each of up to [`MAX_CALL_KEYS`] keys; for a missing record [`RawRecord::ABSENT`] is written. At
    /// the first key that is refused it ends with that status, and the records written so far mean nothing.
    pub get_many: unsafe extern "C" fn(
        *mut InvocationHeader,
        table: u64,
        keys: *const RawKey,
        hashes: *const u64,
        count: usize,
        out: *mut RawRecord,
    ) -> u32,
    /// Makes all changes at one moment at which all reads still hold, ranges included, or makes none. With null for the
    /// changes, it only checks whether all reads still hold. `STATUS_CONFLICT`: they do not, and the library answers
    /// [`POLL_AGAIN`]. `STATUS_CONTENDED`: nor is it to be tried again. After `STATUS_OK` for changes the library
    /// answers [`POLL_DONE`] without another call, and any further one of this gets `STATUS_INVALID`. (Since version 4;
    /// ranges since version 5.)
    pub commit: unsafe extern "C" fn(
        *mut InvocationHeader,
        reads: *const RawRead,
        reads_len: usize,
        ranges: *const RawRangeRead,
        ranges_len: usize,
        changes: *const RawChange,
        changes_len: usize,
    ) -> u32,
    /// Fills up to `limit` records, of [`MAX_CALL_RECORDS`] at most, from the rest of a range of an ordered table, in
    /// its order. Moves the end of the range behind the last record that it has looked at, and writes the number of
    /// filled ones: possibly none, though something is left. Keys that it moves an end to stay as long as the
    /// invocation. (Since version 5.)
    pub range: unsafe extern "C" fn(
        *mut InvocationHeader,
        table: u64,
        range: *mut RawRange,
        out: *mut RawRecord,
        limit: usize,
        filled: *mut usize,
    ) -> u32,
    /// Copies the first keys of a range of an ordered table, of [`MAX_CALL_RECORDS`] at most, as far as there is room
    /// for them. It looks for no records: some keys may have none. Reports whether that was all
    /// ([`RawRange::finished`]), and moves no end. None, though something is left: the next key needs more room. (Since
    /// version 6.)
    pub range_keys:
        unsafe extern "C" fn(*mut InvocationHeader, table: u64, range: *mut RawRange, out: *mut RawKeys) -> u32,
    /// Counts the keys of a range of an ordered table, in logarithmic time. It looks for no records: some keys may have
    /// none. (This one and all that follow since version 7.)
    pub count: unsafe extern "C" fn(*mut InvocationHeader, table: u64, range: *const RawRange, count: *mut u64) -> u32,
    /// Copies the key of an ordered table before which there are `position` others, counted as by `count`.
    /// `STATUS_NOT_FOUND`: there are not so many. None, though the status is `STATUS_OK`: it needs more room.
    pub nth: unsafe extern "C" fn(*mut InvocationHeader, table: u64, position: u64, out: *mut RawKeys) -> u32,
    /// Writes the milliseconds since the Unix epoch from which on a record counts as absent; 0: never. `hash` is as in
    /// `get`.
    pub expiry: unsafe extern "C" fn(
        *mut InvocationHeader,
        table: u64,
        hash: u64,
        key: *const u8,
        key_len: usize,
        expires_at_ms: *mut u64,
    ) -> u32,
    /// Lets a record expire after so many milliseconds from now (0: never). It gets a new version, and keeps its value
    /// and flags.
    pub touch:
        unsafe extern "C" fn(*mut InvocationHeader, table: u64, key: *const u8, key_len: usize, ttl_ms: u64) -> u32,
    /// Fills up to [`MAX_RANDOM_BYTES`] with random bytes, of a generator that the kernel has seeded for this
    /// invocation alone.
    pub random: unsafe extern "C" fn(*mut InvocationHeader, bytes: *mut u8, len: usize) -> u32,
    /// Returns the microseconds since the Unix epoch, at this moment.
    pub now_us: unsafe extern "C" fn(*mut InvocationHeader) -> u64,
    /// Copies a secret of the tenant, of [`MAX_SECRET_BYTES`] at most, and writes its length. `STATUS_NOT_FOUND`: there
    /// is none of that name. `STATUS_TOO_LARGE`: it is longer than `capacity`, and nothing but the length was written.
    pub secret: unsafe extern "C" fn(
        *mut InvocationHeader,
        name: *const u8,
        name_len: usize,
        to: *mut u8,
        capacity: usize,
        len: *mut usize,
    ) -> u32,
    /// Hands a line to the tenant's log: its level (1: error, 2: warn, 3: info, 4: debug), and its text, of which the
    /// first [`LOG_LINE_BYTES`] are kept. A line that is not kept, by its level or because there are too many, is
    /// answered `STATUS_OK`, too. `STATUS_INVALID`: there is no such level. (Since version 8.)
    pub log_line: unsafe extern "C" fn(*mut InvocationHeader, level: u32, text: *const u8, len: usize) -> u32,
    /// Asks for a call of another extension of the tenant, on this invocation's budget. It begins when this one yields,
    /// which is polled again when it has ended. The notes are the transaction so far, in a form of the library's own;
    /// empty: there is none. `STATUS_BUSY`: another call is under way, or its outcome has not been taken.
    /// `STATUS_TOO_LARGE`: arguments or notes have more than `CALL_BYTES`. (This one and all that follow since
    /// version 8.)
    pub call_begin: unsafe extern "C" fn(
        *mut InvocationHeader,
        name: *const u8,
        name_len: usize,
        args: *const u8,
        args_len: usize,
        notes: *const u8,
        notes_len: usize,
    ) -> u32,
    /// Writes the outcome of the call that has ended, once: 0, the kind of its error, or [`STATUS_KILLED`].
    /// `STATUS_NOT_FOUND`: none has ended. With null for the code it forgets the call.
    pub call_end: unsafe extern "C" fn(*mut InvocationHeader, code: *mut u32) -> u32,
    /// Copies a part of the call whose outcome was taken last, or of this invocation: one of the `CALL_*` constants. It
    /// writes its length in any case. `STATUS_TOO_LARGE`: that is more than `capacity`, and nothing was copied.
    pub call_part:
        unsafe extern "C" fn(*mut InvocationHeader, part: u32, to: *mut u8, capacity: usize, len: *mut usize) -> u32,
    /// Hands the transaction of an invocation that was called back to its caller, in place of a commit.
    pub call_return: unsafe extern "C" fn(*mut InvocationHeader, notes: *const u8, len: usize) -> u32,
}

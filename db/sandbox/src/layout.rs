//! Where a sandboxed invocation's memory lies, relative to the base that the `gs` register holds while its code runs.
//!
//! ```text
//!  -4 KiB  the addresses of the host's functions, which code may call and neither read nor write
//!  -3.5    the module's variables, read and written by fixed addresses
//!   0      the module's memory: stack, data, arguments, future, arena
//!   2 GiB  the record window: copies of the records that the invocation was given
//!   3 GiB  nothing
//!   6 GiB  the end of the reserved addresses: no access of verified code reaches further
//! ```
//!
//! Only what the invocation was granted is mapped. Every other access faults, and ends the invocation.

/// Bytes of a page of the processor.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a page of WebAssembly.
pub const WASM_PAGE_BYTES: usize = 64 << 10;
/// Where the addresses of the host's functions begin, relative to the base. They share a page with the variables: each
/// page that a call touches costs it a walk of the page tables where hundreds of calls are under way.
pub const CONTROL_AT: i32 = -(PAGE_BYTES as i32);
/// Bytes of those addresses, and of what else is the host's.
pub const CONTROL_BYTES: usize = 512;
/// Where the module's variables begin, relative to the base, which is where they end.
pub const VARIABLES_AT: i32 = CONTROL_AT + CONTROL_BYTES as i32;
/// Bytes of a variable.
pub const VARIABLE_BYTES: usize = 8;
/// Variables that a module may have. The rest of their page passes the results of functions that have more than one.
pub const MAX_VARIABLES: usize = 384;
/// Results beside the first that a function may have.
pub const MAX_FURTHER_RESULTS: usize = (PAGE_BYTES - CONTROL_BYTES) / VARIABLE_BYTES - MAX_VARIABLES;
/// Bytes of memory that a module may have: below the record window.
pub const MEMORY_MAX_BYTES: usize = 2 << 30;
/// Where the record window begins.
pub const RECORDS_AT: usize = 2 << 30;
/// Where the record window ends.
pub const RECORDS_END: usize = 3 << 30;
/// Reserved addresses below the base.
pub const RESERVED_BELOW_BYTES: usize = PAGE_BYTES;
/// Reserved addresses from the base on: a register's 32 bits and the largest constant offset.
pub const RESERVED_BYTES: usize = 6 << 30;
/// Constant offset that an access may have beside its register, bytes; less, so that the last access is inside.
pub const MAX_OFFSET: u32 = (2 << 30) - 64;

const _: () = assert!(u32::MAX as usize + MAX_OFFSET as usize + 64 < RESERVED_BYTES + 1);

/// Where a variable lies, relative to the base.
pub fn variable_at(index: usize) -> i32 {
    VARIABLES_AT + (index * VARIABLE_BYTES) as i32
}

/// Where a function's further result lies, relative to the base: the first one has index 0.
pub fn further_result_at(index: usize) -> i32 {
    variable_at(MAX_VARIABLES + index)
}

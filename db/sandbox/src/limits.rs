//! Limits of this crate: name, default, unit, reason.

/// Bytes of address space that an image's constants and code take at most: as a native library's.
pub const CODE_MAX_BYTES: usize = 16 << 20;
/// Bytes of data that a module's memory holds at the start. They are copied when an invocation begins in memory that
/// ran something else before, or did not end well: within a slice.
pub const DATA_MAX_BYTES: usize = 512 << 10;
/// Bytes of data that a module of the server's builder may change, `.bss` among them: each call begins with their being
/// as they were, which takes about 10 us.
pub const RESTORED_MAX_BYTES: usize = 128 << 10;
/// Bytes of the stack below the data of a module of the server's builder: as much as a native extension's.
pub const STACK_MAX_BYTES: usize = 1 << 20;
/// Where the data of a module of the server's builder ends at the latest: behind its stack and all kinds of data, with
/// what lies between them for their alignment.
pub const DATA_END_MAX_BYTES: usize = STACK_MAX_BYTES + DATA_MAX_BYTES + RESTORED_MAX_BYTES + (64 << 10);
/// Data segments of a module.
pub const DATA_SEGMENTS_MAX: usize = 4_096;
/// Stack that one function may take, bytes: less than the guard below a guest stack (64 KiB), so that a call always
/// touches the guard before it passes it.
pub const FRAME_MAX_BYTES: usize = 32 << 10;
/// Instructions of an image, so that verification ends in time: 100 million a second were verified in a prototype.
pub const INSTRUCTIONS_MAX: usize = 4 << 20;

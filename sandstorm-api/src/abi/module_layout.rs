//! The layout of modules, which the host reads and writes from outside: sizes in bytes, and the places of the fields
//! that the host fills.

use core::mem::{offset_of, size_of};

use super::*;

const _: () = {
    assert!(size_of::<InvocationHeader>() == 152 && align_of::<InvocationHeader>() == 8);
    assert!(offset_of!(InvocationHeader, host) == 0 && offset_of!(InvocationHeader, args) == 4);
    assert!(offset_of!(InvocationHeader, args_len) == 8 && offset_of!(InvocationHeader, now_ms) == 16);
    assert!(offset_of!(InvocationHeader, interleave) == 24 && offset_of!(InvocationHeader, transaction) == 28);
    assert!(offset_of!(InvocationHeader, arena) == 32 && offset_of!(InvocationHeader, notes) == 140);
    assert!(offset_of!(InvocationHeader, log_level) == 144 && offset_of!(InvocationHeader, nested) == 148);
    assert!(size_of::<InvocationArena>() == 108 && align_of::<InvocationArena>() == 4);
    assert!(offset_of!(InvocationArena, next) == 0 && offset_of!(InvocationArena, end) == 4);
    assert!(offset_of!(InvocationArena, limit) == 8 && offset_of!(InvocationArena, free) == 12);
    assert!(size_of::<RawRecord>() == 32 && offset_of!(RawRecord, version) == 16);
    assert!(size_of::<RawKey>() == 8);
    assert!(size_of::<RawWrite>() == 24 && offset_of!(RawWrite, version) == 8);
    assert!(size_of::<RawCursor>() == 16);
    assert!(size_of::<RawRange>() == 32 && offset_of!(RawRange, backward) == 16);
    assert!(size_of::<RawKeys>() == 20);
    assert!(size_of::<RawRow>() == 16 && offset_of!(RawRow, version) == 8);
    assert!(size_of::<RawRangeRead>() == 40 && offset_of!(RawRangeRead, rows) == 24);
    assert!(size_of::<RawRead>() == 32 && offset_of!(RawRead, version) == 24);
    assert!(size_of::<RawChange>() == 40 && offset_of!(RawChange, expires_at_ms) == 24);
};

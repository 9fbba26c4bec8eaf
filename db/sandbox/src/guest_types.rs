//! The structs that sandboxed code and the host pass to each other in the module's memory: those of
//! `sandstorm_api::abi` as a 32-bit processor lays them out. Addresses and lengths are 32 bits long.

/// Number of size classes of the arena's allocator: as `sandstorm_api::abi::ARENA_CLASSES`.
pub const ARENA_CLASSES: usize = 24;

/// What an invocation sees of itself: `abi::InvocationHeader`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestHeader {
    /// Always null: the host's functions are imports.
    pub host: u32,
    /// The caller's arguments.
    pub args: u32,
    /// Length of the arguments, bytes.
    pub args_len: u32,
    /// Nothing.
    pub padding: u32,
    /// Milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// 1: an awaited read should prefetch and yield.
    pub interleave: u32,
    /// 1: the extension has begun a transaction.
    pub transaction: u32,
    /// First free byte of the arena.
    pub arena_next: u32,
    /// One past the last byte that may be used now.
    pub arena_end: u32,
    /// One past the last byte that there can ever be.
    pub arena_limit: u32,
    /// Heads of the free lists.
    pub arena_free: [u32; ARENA_CLASSES],
    /// The transaction's log.
    pub notes: u32,
    /// The number of the least severe lines that the tenant's log keeps; 0: none.
    pub log_level: u32,
    /// 1: another extension has called this one.
    pub nested: u32,
}

/// A record: `abi::RawRecord`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestRecord {
    /// First byte of the value; 0 in a record that stands for a missing one.
    pub value: u32,
    /// Length of the value, bytes.
    pub value_len: u32,
    /// First byte of the key.
    pub key: u32,
    /// Length of the key, bytes.
    pub key_len: u32,
    /// Version of the record.
    pub version: u64,
    /// The caller's flags.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// A key, where there are many: `abi::RawKey`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestKey {
    /// First byte.
    pub first: u32,
    /// Length, bytes.
    pub len: u32,
}

/// Options of a write: `abi::RawWrite`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestWrite {
    /// One of the `CONDITION_*` constants.
    pub condition: u32,
    /// The caller's flags.
    pub flags: u32,
    /// The version that `CONDITION_VERSION` asks for.
    pub version: u64,
    /// Milliseconds until the record expires; 0: never.
    pub ttl_ms: u64,
}

/// Position of a scan: `abi::RawCursor`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestCursor {
    /// The host's own.
    pub position: u64,
    /// 1: the scan has seen the whole table. 2: it waits for the disk.
    pub finished: u64,
}

/// The rest of a range: `abi::RawRange`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestRange {
    /// First byte of the key from which on something is left.
    pub from: u32,
    /// Length of that key, bytes.
    pub from_len: u32,
    /// First byte of the key before which the range ends.
    pub to: u32,
    /// Length of that key, bytes; 0: the range goes on to the end of the table.
    pub to_len: u32,
    /// 1: the largest key comes first.
    pub backward: u32,
    /// 1: `from` itself is no part of it.
    pub past: u32,
    /// 1: nothing is left.
    pub finished: u32,
    /// Zero.
    pub reserved: u32,
}

/// Room for keys: `abi::RawKeys`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestKeys {
    /// Buffer for the keys.
    pub bytes: u32,
    /// Bytes of that buffer.
    pub bytes_len: u32,
    /// Buffer for each key's end.
    pub ends: u32,
    /// Length of that buffer.
    pub ends_len: u32,
    /// Number of keys that the host has copied.
    pub filled: u32,
}

/// A record that a transaction has met in a range: `abi::RawRow`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestRow {
    /// First byte of the key.
    pub key: u32,
    /// Length of the key, bytes.
    pub key_len: u32,
    /// The record's version.
    pub version: u64,
}

/// A range that a transaction has read: `abi::RawRangeRead`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestRangeRead {
    /// The table's id.
    pub table: u64,
    /// First byte of the smallest key.
    pub from: u32,
    /// Length of that key, bytes.
    pub from_len: u32,
    /// First byte of the key at which the range ends.
    pub to: u32,
    /// Length of that key, bytes.
    pub to_len: u32,
    /// The first of the rows.
    pub rows: u32,
    /// Number of rows.
    pub rows_len: u32,
    /// 1: `to` itself is part of it.
    pub included: u32,
    /// 1: the rows begin with the largest key.
    pub backward: u32,
}

/// A read of a transaction: `abi::RawRead`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestRead {
    /// The table's id.
    pub table: u64,
    /// The key's hash, or 0.
    pub hash: u64,
    /// First byte of the key.
    pub key: u32,
    /// Length of the key, bytes.
    pub key_len: u32,
    /// The record's version; 0: there was none.
    pub version: u64,
}

/// A change by a transaction: `abi::RawChange`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestChange {
    /// The table's id.
    pub table: u64,
    /// First byte of the key.
    pub key: u32,
    /// Length of the key, bytes.
    pub key_len: u32,
    /// First byte of the value.
    pub value: u32,
    /// Length of the value, bytes.
    pub value_len: u32,
    /// Milliseconds since the Unix epoch from which on the record counts as absent; 0: never.
    pub expires_at_ms: u64,
    /// The caller's flags.
    pub flags: u32,
    /// One of the `CHANGE_*` constants.
    pub kind: u32,
}

const _: () = {
    assert!(size_of::<GuestHeader>() == 152 && size_of::<GuestRecord>() == 32 && size_of::<GuestKey>() == 8);
    assert!(size_of::<GuestWrite>() == 24 && size_of::<GuestCursor>() == 16 && size_of::<GuestRange>() == 32);
    assert!(size_of::<GuestKeys>() == 20 && size_of::<GuestRow>() == 16 && size_of::<GuestRangeRead>() == 40);
    assert!(size_of::<GuestRead>() == 32 && size_of::<GuestChange>() == 40);
};

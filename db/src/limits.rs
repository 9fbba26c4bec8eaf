//! Every limit of the server: name, default, unit, reason.

// ---- extensions ----

/// CPU time of one poll of an invocation, microseconds. A worker's other tasks wait as long.
pub const SLICE_US: u64 = 1_000;
/// CPU time of a whole invocation, microseconds. Bounds how long it pins records that others have replaced.
pub const TOTAL_US: u64 = 10_000;
/// Memory of an invocation, bytes: arguments, future, allocations.
pub const ARENA_BYTES: usize = 4 << 20;
/// Largest memory quota of an invocation that can be asked for, bytes: address space is reserved for it.
pub const ARENA_MAX_BYTES: usize = 1 << 30;
/// Length of an invocation's reply, bytes: the largest value and a little.
pub const REPLY_BYTES: usize = 8 << 20;
/// Length of a library's file, bytes. Examples are 6-33 KB.
pub const LIBRARY_MAX_BYTES: usize = 16 << 20;
/// Address space that a library may take, bytes.
pub const LIBRARY_MAX_MAPPED_BYTES: u64 = 64 << 20;
/// Size of an extension's future, bytes; it lies in the invocation's memory.
pub const FUTURE_MAX_BYTES: usize = 1 << 20;
/// Alignment of an extension's future, bytes: a page.
pub const FUTURE_MAX_ALIGN_BYTES: usize = 4096;

// ---- store ----

/// Longest key in bytes. What the wire carries; a record's header has room for twice that.
pub const MAX_KEY_BYTES: usize = 64 << 10;

/// Longest value in bytes. What the wire carries.
pub const MAX_VALUE_BYTES: usize = 8 << 20;

/// Bytes charged against a table's quota for each record beside its own allocation: its slot at middling load (24) and
/// the allocator's word (8).
pub const RECORD_CHARGE_BYTES: u64 = 32;

/// Quota of a table that asks for none, in bytes: as good as none.
pub const DEFAULT_TABLE_QUOTA_BYTES: u64 = 1 << 40;

/// Limits of the directory of tenants. A tenant's own quotas stand in `tenants::Quotas`.
pub mod tenants {
    /// Tenants on one server, by default: bounds what a snapshot costs to rebuild (about 50 ns a tenant).
    pub const TENANTS: usize = 16_384;
    /// Smallest quota of a table in bytes: one growth step of its slots, and room for records.
    pub const MIN_TABLE_BYTES: u64 = 64 << 10;
    /// Quota of a table in bytes if none is given; less if the tenant has not twice as much left.
    pub const DEFAULT_TABLE_BYTES: u64 = 1 << 30;
    /// Kills that are remembered for each tenant: enough to see a pattern, a few kilobytes a tenant.
    pub const RECENT_KILLS: usize = 64;
}

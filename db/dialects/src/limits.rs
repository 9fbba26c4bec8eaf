//! Limits of this crate: name, default, unit, reason.

/// CPU nanoseconds that each operation, and each key of a multiget, counts against its tenant's share of invocations.
/// It is the least time of a plain one, from the packet to the answer. They are not measured one by one: reading the
/// clock takes as long.
pub const REQUEST_NS: u64 = 200;
/// Operations planned (hashed and prefetched) before they are run: as many as the processor has misses in flight,
/// and a little more, since a message may carry several.
pub const PLAN_OPERATIONS: usize = 64;
/// Keys of all multigets of one message, and records that its ranges may return. At 60-90 ns each they take about as
/// long as a slice. One operation is never cut, so other tenants wait for this, and for the vain looks of its ranges
/// (`RANGE_KEYS_PER_MESSAGE` of the store).
pub const MULTIGET_KEYS: u64 = 1_000;

/// Times that a command waits for cold records before it is refused: records that leave memory so soon again belong to
/// a table whose memory is too small for its clients.
pub const COLD_TRIES: u32 = 8;

pub mod bits;
pub mod protocols;
pub mod redis;
use std::time::Duration;

/// Least time between two log lines about browsers' requests: a page that tries again and again cannot fill a disk.
pub const HTTP_LOG_EVERY: Duration = Duration::from_secs(1);

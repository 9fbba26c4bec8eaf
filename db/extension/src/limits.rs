//! Limits of this crate: name, default, unit, reason.

/// CPU time of one poll of an invocation, microseconds; past it the invocation is switched out. A worker's other tasks
/// wait as long, and a switch took 2 us in a prototype.
pub const SLICE_US: u64 = 100;
/// The slice while another tenant has asked the worker for something within `CONTENTION_WINDOW_US`, at most. That
/// tenant waits for half a slice on average, and for a whole one at worst. Each switch costs the computation about 2 us
/// and the worker a look at the network.
pub const CONTENDED_SLICE_US: u64 = 50;
/// CPU time of a whole invocation, microseconds. With `LIFE_PER_TOTAL` it bounds how long the invocation pins replaced
/// records.
pub const TOTAL_US: u64 = 10_000;
/// The burst of a slowed extension's calls, nanoseconds: its calls may run so far ahead of its rate. A tenth of a
/// second's calls come at once.
pub const CALLS_BURST_NS: u64 = 100_000_000;
/// Memory of an invocation, bytes: arguments, future, allocations.
pub const ARENA_BYTES: usize = 4 << 20;
/// Largest memory quota that an invocation can ask for, bytes: address space is reserved for it.
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
/// Calls of an extension on a worker without a poll that exceeded its slice, after which the watchdog naps while only
/// such extensions run. A tenant that saves up for one long poll has thus given up more time than it gains,
/// `WATCHDOG_NAP_US`.
pub const TRUSTED_AFTER_CALLS: u64 = 8_192;
/// The same for shorter naps (`WATCHDOG_SHORT_NAP_US`), which are a quarter as long.
pub const KNOWN_AFTER_CALLS: u64 = 2_048;
/// Calls of an extension on a worker that count at once for all extensions with the same library.
pub const LIBRARY_TRUST_STEP: u64 = 256;
/// The number of stripes of an extension's counters. Each worker has its own, so that no other thread writes there;
/// workers beyond this number share the last.
pub const COUNTER_STRIPES: usize = 16;

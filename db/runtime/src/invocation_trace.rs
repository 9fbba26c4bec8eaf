//! What an invocation did, for the explanation of a slow call.

use sandstorm_accounts::CallPauses;

/// How an invocation waited for records that were not in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ColdWaits {
    /// How often.
    pub(crate) waits: u32,
    /// For how long for those on the disk, and for those behind their table, nanoseconds.
    pub(crate) disk_ns: u64,
    pub(crate) backing_ns: u64,
}

/// What an invocation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InvocationTrace {
    /// Its polls.
    pub polls: u32,
    /// Those of them that ended by a switch, because it computed past its slice.
    pub switches: u32,
    /// Records that it read.
    pub reads: u64,
    /// Bytes of their values.
    pub read_bytes: u64,
    /// Time since the beginning of its first poll; 0: it was not polled.
    pub since_begun_ns: u64,
    /// Time since the end of its first poll; 0: it was not polled.
    pub since_first_poll_ns: u64,
    /// How often it waited for records that were not in memory.
    pub cold_waits: u32,
    /// For how long for those on the disk, nanoseconds.
    pub disk_ns: u64,
    /// For how long for those behind their table, in a backing, nanoseconds.
    pub backing_ns: u64,
    /// Calls of other extensions that it has begun.
    pub nested_calls: u32,
    /// Their CPU time, which is part of its own, nanoseconds.
    pub nested_cpu_ns: u64,
    /// What it waited for between its polls, and within them.
    pub pauses: CallPauses,
    /// Its number in the tenant's log; 0: it has written no line.
    pub log_call: u64,
}

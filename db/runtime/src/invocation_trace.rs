//! What an invocation did, for the explanation of a slow call.

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
    /// Time since the end of its first poll; 0: it was not polled.
    pub since_first_poll_ns: u64,
    /// How often it waited for records that were not in memory.
    pub cold_waits: u32,
    /// For how long, nanoseconds.
    pub cold_ns: u64,
    /// Its number in the tenant's log; 0: it has written no line.
    pub log_call: u64,
}

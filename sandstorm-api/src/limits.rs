//! The limits that the server and its stand-in for tests share: name, unit, reason.

/// Keys that one transaction may read. A commit looks at each again in one go: about as long as a slice.
pub const TRANSACTION_READS: usize = 1024;

/// Keys that one transaction may write. As many puts as one message may hold, for the same reason: they are made in one
/// go.
pub const TRANSACTION_WRITES: usize = 256;

/// Bytes of keys and values that one transaction may write, and of keys that it may read. They are copied and compared
/// while writers of the same stripes wait.
pub const TRANSACTION_BYTES: usize = 1 << 20;

/// Bytes of room for the keys that one call of the host copies, at first: enough for 32 short ones. A longer key
/// doubles it.
pub const KEY_BUFFER_BYTES: usize = 1 << 10;
/// Records that one range may ask for: all of them must fit in an invocation's memory, or in an answer.
pub const RANGE_LIMIT: usize = 10_000;

/// Ranges that one transaction may read. Each is looked up in the table's order again while its writers wait.
pub const TRANSACTION_RANGES: usize = 256;

/// Records that the ranges of one transaction may meet together, at least one whole range. A commit looks at each again
/// while the tables' writers wait on all workers: about a millisecond, and more where keys are long.
pub const TRANSACTION_ROWS: usize = 10_240;

/// Bytes of keys that the ranges of one transaction may meet together, those of their ends included: they are compared
/// again.
pub const TRANSACTION_ROW_BYTES: usize = 4 << 20;

/// Extensions that call each other, one inside of the other, the first not counted. Each has a memory of its own.
pub const CALL_DEPTH: u32 = 8;

/// Bytes of the arguments of a call between extensions, of its reply, and of a transaction that goes along: each is
/// copied in one go, which takes about as long as a slice.
pub const CALL_BYTES: usize = 256 << 10;

/// Runs of an invocation, its first included, while its transaction meets the writes of others. When it runs again it
/// does not yield, so that only other workers can come between.
pub const TRANSACTION_TRIES: u32 = 16;

//! The limits that the server and its stand-in for tests share: name, unit, reason.

/// Keys that one transaction may read. A commit looks at each again in one go: about as long as a slice.
pub const TRANSACTION_READS: usize = 1024;

/// Keys that one transaction may write. As many puts as one message may hold, for the same reason: they are made in one go.
pub const TRANSACTION_WRITES: usize = 256;

/// Bytes of keys and values that one transaction may write, and of keys that it may read: they are copied and compared while writers of
/// the same stripes wait.
pub const TRANSACTION_BYTES: usize = 1 << 20;

/// Times that an invocation is run, its first included, while its transaction meets the writes of others. Again it runs
/// without giving its turn away, so that only other workers can come between.
pub const TRANSACTION_TRIES: u32 = 16;

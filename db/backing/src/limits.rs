//! The limits of tables with a backing, with their reasons.

use std::time::Duration;

/// Threads that load and write, for all tables together. Each has one object under way, so these are the objects under
/// way, and with the longest value the bytes: 16 of 8 MiB.
pub const BACKING_THREADS: usize = 16;

/// Requests of one table under way: a table whose backing hangs leaves threads to the others.
pub const REQUESTS_PER_TABLE: usize = 6;

/// Loads of one table that wait for a thread; further ones fail at once.
pub const LOADS_PER_TABLE: usize = 16 * 1024;

/// Longest time that one request to a backing takes.
pub const REQUEST_MOST: Duration = Duration::from_secs(5);

/// Tries after which answers that wait for a write say that its outcome is unknown. The record stays, and is tried
/// again.
pub const TRIES_BEFORE_ANSWER: u32 = 3;

/// Failures one after the other from which on a backing counts as down: it is asked once in a while, and what needs it
/// is refused at once.
pub const FAILURES_UNTIL_DOWN: u32 = 3;

/// Time until the first repetition after a failure; it doubles with each further one.
pub const RETRY_FIRST_MS: u64 = 100;

/// Longest time until a repetition.
pub const RETRY_MOST_MS: u64 = 10_000;

/// Keys that a table knows to be absent, per shard: 16 times as many a table. When there are more, some are forgotten.
pub const ABSENT_KEYS_PER_SHARD: usize = 4 * 1024;

/// What a dirty key counts beside its key and value: its entry here, and its mark with the key once more.
pub const DIRTY_KEY_BYTES: u64 = 256;

/// Time between two looks for records whose time to be written has come.
pub const TICK: Duration = Duration::from_millis(10);

/// Longest name of an object that is made of a key's letters; longer keys have a digest. A file's name has 255 bytes.
pub const NAME_BYTES: usize = 200;

/// Default bytes that may wait to be written to the backing of a table.
pub const DEFAULT_DIRTY_BYTES: u64 = 64 << 20;

/// Default time for which a dirty record gathers further changes before it is written, with write-back.
pub const DEFAULT_FLUSH_AFTER_MS: u64 = 1_000;

/// Default time for which an absent key is remembered.
pub const DEFAULT_ABSENT_MS: u64 = 5_000;

/// Least time for which an absent key is remembered: a request that waited for the load runs again within that.
pub const LEAST_ABSENT_MS: u64 = 1_000;

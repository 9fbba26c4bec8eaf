//! Limits of this crate: name, default, unit, reason.

use std::time::Duration;

/// Memory that the invocations of a tenant may hold together, by default, bytes: 64 arenas of full size.
pub const INVOCATION_MEMORY_BYTES: u64 = 256 << 20;
/// Kills of one extension within [`KILL_WINDOW_S`] after which its calls are slowed down, by default: nearly two a
/// second.
pub const SLOW_AFTER_KILLS: u32 = 100;
/// Kills in the same window after which the extension is suspended, by default.
pub const SUSPEND_AFTER_KILLS: u32 = 500;
/// Fraction of an extension's calls that kills must be in order to count: one in this many.
pub const KILLS_ONE_IN: u64 = 100;
/// Least rate of admitted calls of a slowed extension, calls a second: enough to see whether it has been repaired.
pub const SLOWED_CALLS_PER_S: u32 = 10;
/// Milliseconds between two checks of the kills. At full speed a tenant has hundreds more within that time, at its own
/// cost.
pub const KILL_POLICY_INTERVAL_MS: u64 = 250;
/// Seconds for which kills count, by default: time for an operator to notice them, and for a tenant to push a repaired
/// version.
pub const KILL_WINDOW_S: u32 = 60;
/// How often a server that starts tries to lock its state directory again if it is locked, …
pub const LOCK_RETRIES: u32 = 10;
/// … and the time between two tries: longer than anything but a server has the lock.
pub const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which a failed journal is written again without any change. A disk with space is noticed within seconds,
/// and a full one is tried rarely.
pub const JOURNAL_RETRY: Duration = Duration::from_secs(5);
/// Duration of an attempt (many tenants, a slow disk) above which it is not repeated for each refused change.
pub const JOURNAL_SLOW_ATTEMPT: Duration = Duration::from_millis(10);
/// Pause after such an attempt, as a multiple of its duration: attempts take a twentieth of the time at most.
pub const JOURNAL_BACKOFF_FACTOR: u32 = 20;
/// Least time between two log lines about refused changes: the log must not fill a full disk.
pub const JOURNAL_LOG_EVERY: Duration = Duration::from_secs(60);
/// Files with bytes that were cut off the journal, at most; the oldest is removed first. Each loss of power makes one
/// at most.
pub const TRUNCATED_FILES: usize = 8;
/// Bytes of such a file, at most: a line with all of ten thousand tenants.
pub const TRUNCATED_FILE_BYTES: usize = 16 << 20;
/// Versions of an extension that are kept, the one that is called among them: enough to go back past a bad week, and
/// few enough that their code (some 30 KiB each, 1 MiB at most) stays mapped, so that going back is one swap.
pub const KEPT_VERSIONS: usize = 5;
/// Tenants with which a tenant may share an extension by their names: a line of the journal has them all.
pub const SHARED_WITH: usize = 1_024;
/// Tenants on one server, by default: bounds what a snapshot costs to rebuild (about 50 ns a tenant).
pub const TENANTS: usize = 16_384;
/// Smallest quota of a table in bytes: one growth step of its slots, and room for records.
pub const MIN_TABLE_BYTES: u64 = 64 << 10;
/// Part of its tenant's `memory_bytes` that a table gets if no quota is given, one in this many: each of the first
/// eight the same, whichever is made first.
pub const DEFAULT_TABLE_ONE_IN: u64 = 8;
/// Quota of a table in bytes if none is given, at most.
pub const DEFAULT_TABLE_BYTES: u64 = 1 << 30;
/// Longest grace period of an old token: 30 days. A token that is needed for longer has not been replaced.
pub const OLD_TOKEN_GRACE_MAX: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);
/// Tables that one tenant may grant to another one: a quarter of what a tenant receives by default, so that no single
/// tenant can fill another's list.
pub const GRANTS_PER_RECEIVER: usize = 16;
/// Secrets of a tenant: a key for each service that it may talk to. Each is in memory, in each line of the tenant in
/// the journal, and in each snapshot's list.
pub const SECRETS: usize = 64;
/// Bytes of a secret: a private key with its certificates. It is copied by one call of the host.
pub const SECRET_BYTES: usize = 4 << 10;
/// Least length at which the journal is replaced by one with the current state: some ten thousand changes, read in a
/// fraction of a second.
pub const JOURNAL_MIN_BYTES: u64 = 4 << 20;
/// The same for a server with many tenants, as a multiple of the length after the last replacement. So a replacement
/// costs each change a third of its own bytes, on average.
pub const JOURNAL_GROWTH: u64 = 4;
/// Threads that restore records, beside the one that reads the log, at most. On two processors, which the reader and
/// one of them fill, a start with two takes a fifth longer; on more it is not measured yet.
pub const RESTORE_THREADS: usize = 1;
/// Times that the change of a record is tried again whose place in its growing table is crowded: the table has grown
/// long before.
pub const RESTORE_ATTEMPTS: u32 = 10_000;
/// Bytes of changes that a thread is given at once: they stay in its cache.
pub const RESTORE_BATCH_BYTES: usize = 64 << 10;
/// Changes whose places in their tables are asked for together: as many reads as a processor has under way.
pub const RESTORE_GROUP: usize = 16;
/// Such batches that wait for a thread, at most: 2 MiB, or as many of the largest values.
pub const RESTORE_BATCHES: usize = 32;
/// Longest time that a change of a table's durability waits for the log's disk, and for the checkpoint that has the
/// table's records: one of some ten GiB.
pub const CHANGE_DURABILITY_MOST: std::time::Duration = std::time::Duration::from_secs(120);
/// Time between two lines of the log while records are restored, so that a long start is seen to go on.
pub const RESTORE_LOG_EVERY: std::time::Duration = std::time::Duration::from_secs(2);
/// Times that a change is made anew because another server of the cluster was faster. Each time one of them succeeds.
pub const AGREEMENT_TRIES: usize = 32;
/// Notes about damage of the log that wait to become events, at most. They are read each second or so.
pub const SCRUB_NOTES: usize = 64;

//! Limits of this crate: name, default, unit, reason.

use std::time::Duration;

/// Memory that the invocations of a tenant may hold together, by default, bytes: 64 arenas of full size.
pub const INVOCATION_MEMORY_BYTES: u64 = 256 << 20;
/// Kills of one extension within [`KILL_WINDOW_S`] after which its calls are slowed down, by default: nearly two a
/// second.
pub const SLOW_AFTER_KILLS: u32 = 100;
/// Kills, counted so, after which the extension is suspended, by default.
pub const SUSPEND_AFTER_KILLS: u32 = 500;
/// Part of an extension's calls that kills have to be in order to count: one in so many.
pub const KILLS_ONE_IN: u64 = 100;
/// Calls a second that are let in of an extension that is slowed down, at the least: enough to see whether it has been
/// repaired.
pub const SLOWED_CALLS_PER_S: u32 = 10;
/// Milliseconds between two looks at the kills: at full speed a tenant has hundreds more within that time, which cost
/// itself.
pub const KILL_POLICY_INTERVAL_MS: u64 = 250;
/// Seconds for which kills count, by default: time for an operator to see them, and for a tenant to push a repaired
/// version.
pub const KILL_WINDOW_S: u32 = 60;
/// After a failure, the journal is written again this often although nobody changes anything: a disk with room is
/// noticed within seconds, and a full one is asked rarely.
pub const JOURNAL_RETRY: Duration = Duration::from_secs(5);
/// An attempt that takes longer than this (many tenants, a slow disk) is not repeated for each change that is refused.
pub const JOURNAL_SLOW_ATTEMPT: Duration = Duration::from_millis(10);
/// How many times its own length passes after such an attempt before the next: attempts take a twentieth of the time at
/// most.
pub const JOURNAL_BACKOFF_FACTOR: u32 = 20;
/// Between two log lines about changes that are refused, at least: a disk that is full is not filled by saying so.
pub const JOURNAL_LOG_EVERY: Duration = Duration::from_secs(60);
/// Files with bytes that were cut off the journal, at most; the oldest leaves first. A machine that loses power makes
/// one each time at most.
pub const TRUNCATED_FILES: usize = 8;
/// Bytes of such a file, at most: a line that holds all of ten thousand tenants.
pub const TRUNCATED_FILE_BYTES: usize = 16 << 20;
/// Tenants on one server, by default: bounds what a snapshot costs to rebuild (about 50 ns a tenant).
pub const TENANTS: usize = 16_384;
/// Smallest quota of a table in bytes: one growth step of its slots, and room for records.
pub const MIN_TABLE_BYTES: u64 = 64 << 10;
/// Quota of a table in bytes if none is given; less if the tenant has not twice as much left.
pub const DEFAULT_TABLE_BYTES: u64 = 1 << 30;
/// The same at most: 30 days. A token that is needed for longer has not been replaced.
pub const OLD_TOKEN_GRACE_MAX: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);
/// Tables that one tenant may grant to one other: a quarter of what a tenant receives by default, so that no one
/// tenant can fill another's list.
pub const GRANTS_PER_RECEIVER: usize = 16;
/// Bytes that the journal of tenants may have before it is replaced by one that holds what there is: some ten thousand
/// changes, read in a fraction of a second.
pub const JOURNAL_MIN_BYTES: u64 = 4 << 20;
/// The same for a server with many tenants, as a multiple of what there was when it was replaced last: so replacing
/// costs a change a third of its own bytes, on average.
pub const JOURNAL_GROWTH: u64 = 4;

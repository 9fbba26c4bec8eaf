//! Limits of the state directory: what happens while its disk takes nothing, and what is kept of a journal that was cut.

use std::time::Duration;

/// After a failure, the journal is written again this often although nobody changes anything: a disk with room is noticed
/// within seconds, and a full one is asked rarely.
pub const JOURNAL_RETRY: Duration = Duration::from_secs(5);
/// An attempt that takes longer than this (many tenants, a slow disk) is not repeated for each change that is refused.
pub const JOURNAL_QUICK: Duration = Duration::from_millis(10);
/// How many times its own length passes after such an attempt before the next: attempts take a twentieth of the time at most.
pub const JOURNAL_REST: u32 = 20;
/// Between two log lines about changes that are refused, at least: a disk that is full is not filled by saying so.
pub const JOURNAL_LOG_EVERY: Duration = Duration::from_secs(60);
/// Files with bytes that were cut off the journal, at most; the oldest leaves first. A machine that loses power makes one each
/// time at most.
pub const CUT_FILES: usize = 8;
/// Bytes of such a file, at most: a line that holds all of ten thousand tenants.
pub const CUT_BYTES: usize = 16 << 20;

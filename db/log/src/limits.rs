//! Limits of this crate: name, default, unit, reason.

use std::time::Duration;

/// Bytes of a segment. It is filled with zeros before its first use, which takes some tens of milliseconds of a thread
/// that no answer waits for. A checkpoint frees whole segments.
pub const SEGMENT_BYTES: u64 = 32 << 20;
/// Bytes to which frames are aligned: what disks write at once at least, so no write touches an acknowledged frame.
pub const BLOCK_BYTES: u64 = 4096;
/// Most bytes of changes in a frame. A larger one is not written faster.
pub const FRAME_PAYLOAD_BYTES: usize = (1 << 20) - 64;
/// Most bytes of changes that are appended, or about to be, and not written yet: two of the largest values with their
/// keys, with room for others. It is less than a segment, so a spare segment has room for all of them.
pub const PENDING_BYTES: u64 = 24 << 20;
/// Most bytes of one unit, which happens as a whole: more than can be pending, so a longer one is damage.
pub const UNIT_BYTES: usize = 64 << 20;
/// Most bytes of a key that a change may have: twice what the wire carries.
pub const CHANGE_KEY_BYTES: usize = 128 << 10;
/// Longest time that changes without a waiting answer are gathered before they are written: half of the 100 ms that
/// are promised, since the write itself takes some.
pub const GATHER_TIME: Duration = Duration::from_millis(50);
/// The same for changes of tables that a trigger or a feed follows: a call is to begin within a millisecond of its
/// write, of which the disk takes some tenths. Each write of the disk stands for all changes of that time.
pub const FOLLOWED_GATHER_TIME: Duration = Duration::from_micros(300);
/// Bytes of gathered changes from which they are written at once. A larger write is not faster, and memory for more
/// would have to be found each time.
pub const GATHER_BYTES: usize = 1 << 20;
/// Time without a change after which an empty frame says how far the log is durable. Thereby the last acknowledged
/// frame cannot vanish unseen.
pub const SEAL_AFTER: Duration = Duration::from_millis(10);
/// Time between two looks whether a disk that was full has room for a spare segment.
pub const SPARE_RETRY: Duration = Duration::from_millis(500);
/// Longest time between two attempts to make a spare segment on a disk that reported room, and had none: a quota, or a
/// faster writer. Each attempt writes up to a segment and removes it.
pub const SPARE_RETRY_MOST: Duration = Duration::from_secs(30);
/// Bytes that a spare segment leaves free on the disk, for what the file system and the server's other files need.
pub const SPARE_MARGIN_BYTES: u64 = 4 << 20;
/// Bytes of zeros that are written at once to a new segment: the log's own writes wait behind no more than that.
pub const ZERO_WRITE_BYTES: usize = 1 << 20;
/// Writes of the log that are kept in memory for copies and tails, which read them at once.
pub const RECENT_WRITES: usize = 8;
/// Bytes of such a write, at most: larger ones are read from the disk, at its bandwidth.
pub const RECENT_WRITE_BYTES: usize = 64 << 10;
/// Bytes of zeros that a copy's segment is filled with at once, ahead of its frames: some hundred small ones. The
/// answer to one of them waits for it.
pub const REPLICA_ZERO_BYTES: u64 = 1 << 20;
/// Bytes of buffered changes from which a checkpoint writes a frame.
pub const CHECKPOINT_FRAME_BYTES: usize = 256 << 10;
/// Bytes of a checkpoint after which it is synced: the log's own writes wait behind no more than that.
pub const CHECKPOINT_SYNC_BYTES: u64 = 1 << 20;
/// Longest time that the disk may take for one write with its sync: beyond it changes are refused, and answers that
/// wait say that they do not know. Disks that move a bad block, and networks that fail over, take some seconds; clients
/// have given up by then. It also bounds what a crash takes of tables that do not wait.
pub const STALL_AFTER: Duration = Duration::from_secs(5);
/// Bytes of the log that stay behind a checkpoint, for feeds of changes: a client that follows one may be away for a
/// while.
pub const FEED_BYTES: u64 = 64 << 20;
/// Bytes of frames in a batch for a replica; it ends with the frame that exceeds them. About a millisecond of a network
/// of 10 Gbit/s, and of a disk.
pub const SHIPPED_BYTES: usize = 1 << 20;
/// Bytes of a checkpoint that go with each batch: changes that a client waits for come first.
pub const SHIPPED_CHECKPOINT_BYTES: usize = 512 << 10;
/// Bytes of the log that stay at most for what reads it slowly, such as triggers that are paused: the disk is not
/// theirs.
pub const RETAINED_BYTES: u64 = 1 << 30;

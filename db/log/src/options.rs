//! The options of a log.

use std::time::Duration;

use crate::limits::{FEED_BYTES, GATHER_TIME, RETAINED_BYTES, SEGMENT_BYTES};

/// The options of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of the log that stay behind a checkpoint, for feeds of changes.
    pub feed_bytes: u64,
    /// Bytes of the log that stay at most for what reads it slowly.
    pub retained_bytes: u64,
    /// How long changes are gathered that no answer waits for, of tables that no trigger follows.
    pub gather_time: Duration,
    /// Called by the thread that writes before its first write: it is to run as soon as the disk has answered.
    pub writer_begins: fn(),
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            segment_bytes: SEGMENT_BYTES,
            feed_bytes: FEED_BYTES,
            retained_bytes: RETAINED_BYTES,
            gather_time: GATHER_TIME,
            writer_begins: || {},
        }
    }
}

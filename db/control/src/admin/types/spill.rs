//! The part of a table of mode `spill` that is on the disk, in responses.

use sandstorm_store::spill::SpillStats;
use serde::Serialize;

/// What of a table of mode `spill` is on the disk. Counts are since the server's start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SpillResponse {
    /// Records whose values are on the disk only.
    pub cold_records: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Cold records that were read.
    pub reads: u64,
    /// Bytes of the blocks that were read.
    pub read_bytes: u64,
    /// Microseconds that the reads took together, until the records were in memory.
    pub read_us: u64,
    /// Reads that failed, or found a damaged block.
    pub read_errors: u64,
    /// Requests and calls that waited for a cold record.
    pub waits: u64,
    /// Reads that waited for the tenant's quota.
    pub held_by_quota: u64,
    /// Records that left memory.
    pub spilled: u64,
    /// Times that a record stayed in memory, since the file had as many bytes as it may have.
    pub refused_by_quota: u64,
    /// Why the file cannot be written, if that is so.
    pub failure: Option<String>,
}

impl From<SpillStats> for SpillResponse {
    fn from(stats: SpillStats) -> SpillResponse {
        SpillResponse {
            cold_records: stats.cold_records,
            file_bytes: stats.file_bytes,
            reads: stats.reads,
            read_bytes: stats.read_bytes,
            read_us: stats.read_us,
            read_errors: stats.read_errors,
            waits: stats.waits,
            held_by_quota: stats.held_by_quota,
            spilled: stats.spilled,
            refused_by_quota: stats.refused_by_quota,
            failure: stats.failure.map(|failure| failure.to_string()),
        }
    }
}

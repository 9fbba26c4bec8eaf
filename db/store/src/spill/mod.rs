//! Tables larger than memory: cold records' values lie in a file of their own for each table.
//!
//! - `format`: runs of blocks with their own address under a checksum.
//! - `segments`: the room of a file.
//! - [`device`]: the seam to the disk.
//! - `file`: adding, writing, reading, copying; `block_range`: several runs at once.
//! - [`pool`]: the threads that read and write, fair between tenants.
//! - `table_spill`: a table's side; [`cold_miss`]: what met a cold record, and waits for it.
//!
//! See "Tables larger than memory" in the crate's README.

mod block_range;
pub mod cold_miss;
pub mod device;
mod file;
mod format;
pub mod pool;
mod segments;
#[cfg(any(test, feature = "testing"))]
pub mod simulated;
mod table_spill;
#[cfg(test)]
mod tests;

pub(crate) use self::block_range::{BlockRange, near_runs};
pub(crate) use self::cold_miss::ColdSource;
pub use self::cold_miss::{ColdMiss, ColdTicket};
pub use self::device::{SpillDevice, SpillFolderFile};
pub use self::file::{SpillReadError, SpillRefusal};
pub use self::format::BLOCK_BYTES;
pub(crate) use self::format::{SpillAddress, SpillRecord};
pub use self::pool::{ColdReadCounts, SpillPool, SpillQuota};
pub(crate) use self::segments::AppendCause;
pub use self::table_spill::SpillStats;
pub(crate) use self::table_spill::{ColdTable, TableSpill};

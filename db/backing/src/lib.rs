//! Tables in front of a backing: reads that miss, changed records, and the places of objects.
//!
//! - [`BackedTable`]: a table's side: which keys are dirty, clean or absent; loads, writes, conflicts.
//! - [`BackingPool`]: the threads that ask backings.
//! - [`ObjectStore`]: the interface of object stores, with its implementations: memory, a folder, S3, another table.
//!
//! Workers wait for none of it: see `sandstorm_store::backed`.
#![forbid(unsafe_code)]

mod admission;
mod backed_table;
#[cfg(any(test, feature = "testing"))]
pub mod fake_s3;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
mod folder;
mod format;
mod key_states;
pub mod limits;
mod marks;
mod memory;
mod moved_slots;
mod object_store;
mod pool;
mod requests;
mod s3;
mod settings;
#[cfg(test)]
mod tests;
mod url;

pub use self::backed_table::{BackedTable, NewBackedTable};
pub use self::folder::FolderObjects;
pub use self::format::{ObjectRecord, object_name};
pub use self::memory::{MemoryObjects, too_long};
pub use self::moved_slots::DirtySlots;
pub use self::object_store::{BackingError, ObjectStore, StoredObject, UnreachableObjects, WriteCondition};
pub use self::pool::BackingPool;
pub use self::s3::S3Objects;
pub use self::settings::{BackingPolicy, BackingSettings, BackingStats, ConflictChoice, FlushError};
pub use self::url::{BackingOpenError, BackingUrl, OtherTable, TableOpener, open_objects, open_s3, set_table_opener};

/// Milliseconds since the Unix epoch, by the clock of tables.
fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    sandstorm_store::clock_ms(now.map_or(0, |since| since.as_millis() as u64))
}

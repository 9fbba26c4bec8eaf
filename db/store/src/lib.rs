//! The store: tables of records that any number of threads read without a lock, and the reclamation of what was
//! replaced.
//!
//! - [`RecordTable`]: one tenant's named map. Readers take no lock and write nothing; writers take the lock of a
//!   stripe.
//! - [`RecordRef`]: a borrowed record; key and value are slices of the record itself.
//! - `slabs`: the memory of records.
//! - [`Epochs`], [`Participant`], [`EpochGuard`], [`EpochPin`]: the threads and invocations that may still read
//!   replaced records.
//!
//! A thread registers once ([`Epochs::register`]), announces a quiescent point once a loop turn
//! ([`Participant::quiescent`]), and reads under a [`EpochGuard`]. An invocation holds a [`EpochPin`] for its life
//! instead.
#![deny(unsafe_code)]

pub mod backed;
mod broken_rules;
mod change_positions;
mod clock;
mod epochs;
pub mod limits;
mod lock_waits;
mod noted_locks;
mod record;
mod shown_position;
mod slabs;
pub mod slots;
pub mod spill;
mod table;
#[cfg(test)]
mod tests;
pub mod transactions;
mod types;
mod unit_of_changes;

#[cfg(any(test, feature = "testing"))]
pub use clock::set_fixed_ms as fix_clock;
pub use clock::{clock_ms, expiry_ms};
pub use epochs::{EpochGuard, EpochPin, EpochStats, Epochs, GracePeriod, Participant};
pub use lock_waits::LockWaits;
pub use record::RecordRef;
pub use shown_position::ShownPosition;
pub use slabs::release_free_memory;
pub use slabs::{set_extent_source, slab_bytes, slab_free_bytes};
pub use table::{
    AccessReport, AccessedKey, ColdRecord, ExclusiveStripes, HeatRange, HeatReport, HotKey, KeyRange, NewValue,
    NotOrdered, PREFETCH_BATCH, RangeProgress, RecordHead, RecordTable, RecordUpdate, RestoredRecord, SampledAccess,
    ScanBudget, ScannedRecord, SlotWalk, SlotWalkError, SpilledTable, StripeSet, TableLogging, UpdateValue, WalkBudget,
    WatchedState, bucket_array_bytes,
};
pub use types::{RecordMarks, StorageMode, StoreCondition, StoreError, TableConfig, TableStats, WriteOptions};

//! The store: tables of records that any number of threads read without a lock, and the reclamation of what was replaced.
//!
//! - [`Table`]: one tenant's named map. Readers take no lock and write nothing; writers take the lock of a stripe.
//! - [`RecordRef`]: a borrowed record; key and value are slices of the record itself.
//! - `slabs`: the memory of records.
//! - [`Epochs`], [`Participant`], [`Guard`], [`Pin`]: who may still be reading what was replaced.
//!
//! A thread registers once ([`Epochs::register`]), announces a quiescent point once a loop turn
//! ([`Participant::quiescent`]), and reads under a [`Guard`]. An invocation holds a [`Pin`] for its life instead.
#![deny(unsafe_code)]

mod clock;
mod epochs;
pub mod limits;
mod record;
mod slabs;
mod table;
#[cfg(test)]
mod tests;
pub mod transactions;
mod types;

#[cfg(any(test, feature = "testing"))]
pub use clock::fix as fix_clock;
pub use clock::{clock_ms, ends_ms};
pub use epochs::{EpochStats, Epochs, Guard, Participant, Pin};
pub use record::RecordRef;
pub use slabs::give_back_free;
pub use slabs::{slab_bytes, slab_free_bytes, take_extents_from};
pub use table::{
    BATCH_AHEAD, Change, Exclusive, Looks, NotOrdered, Progress, Seen, Span, Stripes, Table, Tablet, Value,
    bucket_array_bytes,
};
pub use types::{Condition, Marks, Mode, StoreError, TableConfig, TableStats, Write};

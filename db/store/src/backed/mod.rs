//! The interface between a table and its backing, for a table that is a cache in front of something else. The crate
//! `sandstorm-backing` has the other side. A table asks and tells it here, under a stripe's lock for a change.
//!
//! A read of a key that is not in memory, and not known to be absent, is a miss, as a cold record is
//! ([`crate::spill::ColdMiss`]): the caller waits and asks again. A change marks its key as dirty before it is made.
//! Where the policy has answers wait for the backing, the change has a *wait* ([`waits`]), which the answer takes along
//! in place of a position of the log.

pub(crate) mod refusal;
mod table;
pub mod waits;

use std::fmt::Debug;
use std::sync::Arc;

pub use self::refusal::BackingRefusal;
pub use self::table::LoadedRecord;
use crate::Participant;
use crate::spill::ColdTicket;

/// What a table does with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackedRead {
    /// What is in memory holds; the answer waits for this wait (0: for none).
    Show(u64),
    /// The backing has to be asked first.
    Load,
}

/// A change that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackedChange {
    /// The bytes of key and value that are put; `None`: the record is deleted.
    pub put_bytes: Option<usize>,
    /// Milliseconds since the Unix epoch from which on the record counts as absent; 0: never.
    pub expires_at_ms: u64,
}

/// A change of a key that is about to be made, together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackedKeyChange<'k> {
    /// [`crate::RecordTable::hash`] of the key.
    pub hash: u64,
    /// The key.
    pub key: &'k [u8],
    /// What becomes of it.
    pub change: BackedChange,
}

/// What lies behind a table.
pub trait TableBackend: Debug + Send + Sync {
    /// Decides whether what is in memory of a key may be shown: the record of `version`, or that there is none.
    fn on_read(self: Arc<Self>, hash: u64, key: &[u8], version: Option<u64>, now_ms: u64) -> BackedRead;

    /// Has a record loaded; the ticket is told when memory has it, or that it is absent, or why not.
    fn load(self: Arc<Self>, hash: u64, key: &[u8], ticket: &Arc<ColdTicket>);

    /// Marks a key as dirty, or refuses the change that is about to be made under the lock of its stripe.
    ///
    /// # Errors
    /// [`BackingRefusal`], or that of the log which keeps the marks.
    fn admit(
        &self,
        participant: &Participant,
        hash: u64,
        key: &[u8],
        change: BackedChange,
    ) -> Result<(), crate::StoreError>;

    /// Admits changes of several keys, or none of them, whose stripes the caller holds until it calls
    /// [`TableBackend::release`] for each. Until then [`TableBackend::admit`] refuses none of them, unless it puts more
    /// bytes than were said, or the log does not take its mark.
    ///
    /// # Errors
    /// As [`TableBackend::admit`]; nothing is admitted then.
    fn admit_all(&self, participant: &Participant, changes: &[BackedKeyChange<'_>]) -> Result<(), crate::StoreError>;

    /// Ends what [`TableBackend::admit_all`] has promised for a key. A change that has not been made is not expected
    /// any more.
    fn release(&self, hash: u64, key: &[u8]);

    /// Notes that an admitted change is certain. Returns the wait of its answer (0: none).
    fn note_change(&self, hash: u64, key: &[u8], version: u64, bytes: usize) -> u64;

    /// Returns whether the backing does not have the key's last change yet: then its record stays in memory.
    fn is_dirty(&self, hash: u64, key: &[u8]) -> bool;

    /// Notes that the record of a hash leaves memory.
    fn note_gone(&self, hash: u64);
}

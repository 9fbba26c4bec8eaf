//! How far the log has to be on the disk before what a thread, or an invocation, has seen may be shown.

use std::cell::{Cell, RefCell};

use crate::backed::waits::later_of;
use crate::limits::COLD_MISSES_PER_OPERATION;
use crate::lock_waits::LockWaits;
use crate::spill::{ColdMiss, SpillReadError};

/// The highest position of the log among the changes that its owner has made or read, in tables whose changes are
/// awaited. 0: none.
#[derive(Debug, Default)]
pub struct ShownPosition {
    position: Cell<u64>,
    /// Locks of several stripes that the owner holds: what it has changed there has no position yet.
    held: Cell<u32>,
    /// Whether `cold` has any.
    has_cold: Cell<bool>,
    /// Why a cold record that the owner waited for could not be read.
    cold_failed: Cell<Option<SpillReadError>>,
    /// Cold records that the owner has met since it last asked. It has neither seen nor changed them.
    cold: RefCell<Vec<ColdMiss>>,
    /// Whether `lock_waits` has any.
    has_lock_waits: Cell<bool>,
    /// How the owner has waited for other threads that write.
    lock_waits: Cell<LockWaits>,
}

impl ShownPosition {
    /// Returns the position.
    #[inline]
    pub fn get(&self) -> u64 {
        self.position.get()
    }

    /// Returns the position, and begins anew.
    #[inline]
    pub fn take(&self) -> u64 {
        self.position.take()
    }

    /// Adds a position of the log, or a wait for a backing.
    #[inline]
    pub fn raise(&self, position: u64) {
        self.position.set(later_of(self.position.get(), position));
    }

    pub(crate) fn begin_holding(&self) {
        self.held.set(self.held.get() + 1);
    }

    pub(crate) fn end_holding(&self) {
        self.held.set(self.held.get().saturating_sub(1));
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.held.get() > 0
    }

    /// Returns whether a cold record was met: then what the operation returned is no answer.
    #[inline]
    pub fn has_cold(&self) -> bool {
        self.has_cold.get()
    }

    /// Returns the cold records that were met, and begins anew.
    pub fn take_cold(&self) -> Vec<ColdMiss> {
        self.has_cold.set(false);
        self.cold.take()
    }

    #[cold]
    pub(crate) fn note_cold(&self, miss: ColdMiss) {
        self.has_cold.set(true);
        let mut cold = self.cold.borrow_mut();
        if cold.len() < COLD_MISSES_PER_OPERATION {
            cold.push(miss);
        }
    }

    /// Takes what another one has met.
    #[inline]
    pub fn take_cold_of(&self, other: &ShownPosition) {
        if other.has_cold() {
            other.take_cold().into_iter().for_each(|miss| self.note_cold(miss));
        }
    }

    /// Returns whether the owner has waited for other threads that write, since it last asked.
    #[inline]
    pub fn has_lock_waits(&self) -> bool {
        self.has_lock_waits.get()
    }

    /// Returns how the owner has waited for other threads that write, and begins anew.
    #[cold]
    pub fn take_lock_waits(&self) -> LockWaits {
        self.has_lock_waits.set(false);
        self.lock_waits.take()
    }

    /// Adds waits for other threads that write.
    #[cold]
    pub fn note_lock_waits(&self, waits: LockWaits) {
        let mut sum = self.lock_waits.get();
        sum.add(waits);
        self.lock_waits.set(sum);
        self.has_lock_waits.set(true);
    }

    /// Returns how the owner has waited for other threads that write so far.
    pub fn lock_waits(&self) -> LockWaits {
        self.lock_waits.get()
    }

    /// Notes why a cold record that the owner waited for could not be read.
    pub fn set_cold_failed(&self, why: SpillReadError) {
        self.cold_failed.set(Some(why));
    }

    /// Returns what is noted of that.
    pub fn cold_failure(&self) -> Option<SpillReadError> {
        self.cold_failed.get()
    }

    /// Returns whether anything is noted of that, and forgets it.
    #[inline]
    pub fn take_cold_failed(&self) -> bool {
        self.cold_failed.take().is_some()
    }
}

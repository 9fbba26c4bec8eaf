//! How far the log has to be on the disk before what a thread, or an invocation, has seen may be shown.

use std::cell::Cell;

/// The highest position of the log among the changes that its owner has made or read, in tables whose changes are
/// awaited. 0: none.
#[derive(Debug, Default)]
pub struct ShownPosition {
    position: Cell<u64>,
    /// Locks of several stripes that the owner holds: what it has changed there has no position yet.
    held: Cell<u32>,
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

    /// Adds a position.
    #[inline]
    pub fn raise(&self, position: u64) {
        self.position.set(self.position.get().max(position));
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
}

//! A worker's view of how far the log is, for answers that wait for it, and how the log's thread wakes waiting workers.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use sandstorm_log::{COPIED_BIT, ChangeLog, PositionState};
use sandstorm_store::backed::waits::{self, WaitState};

use super::shared::SharedWorkerState;

/// A worker's view of the log of tables with durability.
#[derive(Default)]
pub(super) struct LogWatch {
    log: OnceCell<Arc<ChangeLog>>,
    /// The highest position that an answer of this worker waits for.
    wanted: Cell<u64>,
}

impl LogWatch {
    /// Whether the log is on the disk, and on those of its copies if it waits for them, up to a position that a table
    /// of this server has given.
    #[inline]
    pub(super) fn state_of(&self, shared: &SharedWorkerState, position: u64) -> PositionState {
        if position == 0 { PositionState::OnDisk } else { self.state_in_log(shared, position) }
    }

    fn state_in_log(&self, shared: &SharedWorkerState, position: u64) -> PositionState {
        if waits::is_wait(position) {
            return match waits::state_of(position) {
                WaitState::Waits => PositionState::Waits,
                WaitState::Ended(position) => self.state_of(shared, position),
                WaitState::Failed => PositionState::Uncertain,
            };
        }
        if self.log.get().is_none()
            && let Some(log) = shared.directory.change_log()
        {
            let _once = self.log.set(log);
        }
        // A position comes from a log.
        self.log.get().map_or(PositionState::Uncertain, |log| log.state_of(position))
    }

    /// Notes that an answer waits for a position.
    pub(super) fn want(&self, position: u64) {
        self.wanted.set(self.wanted.get().max(waits::log_position(position) & !COPIED_BIT));
    }

    /// Has the log written up to what is waited for.
    #[inline]
    pub(super) fn request(&self) {
        if self.wanted.get() > 0
            && let Some(log) = self.log.get()
        {
            log.request(self.wanted.take());
        }
    }
}

impl SharedWorkerState {
    /// Notes that a port has answers that wait, and wakes its worker if they need not wait any more.
    pub(super) fn mark_holding_port(&self, port: usize, is_over: impl FnOnce() -> bool) {
        let bit = 1 << port;
        if self.holding_ports.load(Relaxed) & bit == 0 {
            self.holding_ports.fetch_or(bit, SeqCst);
        }
        // The log's thread may have looked for sleeping workers just before. The worker itself looks before it sleeps.
        if self.idle.load(SeqCst) & bit != 0 && is_over() {
            self.ports[port].waker.wake();
        }
    }

    /// Wakes the sleeping workers that hold answers.
    pub(super) fn wake_holders(&self) {
        let holding = self.holding_ports.load(SeqCst) | self.holding_connections.load(SeqCst);
        let mut sleeping = holding & self.idle.load(SeqCst);
        while sleeping != 0 {
            self.ports[sleeping.trailing_zeros() as usize].waker.wake();
            sleeping &= sleeping - 1;
        }
    }
}

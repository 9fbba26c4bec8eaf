//! The end of a worker: what is under way is finished, and whoever asks for more is told that the server is shutting
//! down, for as long as somebody asks and up to a limit. A client that heard nothing would wait until its deadline.

use super::Worker;
use super::ingress::IngressScheduler;
use crate::limits::ports::{DRAIN_ANSWERS_US, DRAIN_MAX_US, DRAIN_QUIET_US};

impl Worker {
    /// Serves until the worker has nothing under way and nobody asks any more.
    pub(super) fn drain(&mut self, intake: &mut IngressScheduler) {
        self.stops = true;
        let begun_us = self.shared.epoch.elapsed().as_micros() as u64;
        // A worker that nobody has asked anything of late has nobody to tell.
        let mut asked_us = if self.was_busy { begun_us } else { self.idle_since_us };
        loop {
            // Budgets bound how long invocations take: one ends or is ended.
            let done = self.turn(intake);
            if done > 0 {
                asked_us = self.now_us;
            }
            let is_over = self.now_us >= begun_us + DRAIN_MAX_US || self.now_us >= asked_us + DRAIN_QUIET_US;
            if is_over && self.live == 0 && self.offered.is_empty() {
                // Invocations that another worker has taken answer here.
                let is_late = self.now_us >= begun_us + DRAIN_ANSWERS_US;
                if is_late || !self.connections.as_ref().is_some_and(|connections| connections.has_invoking()) {
                    break;
                }
            }
            if done == 0 {
                std::thread::yield_now();
            }
        }
        // The last answers: those of invocations that ended in the last turn.
        self.serve_connections();
    }
}

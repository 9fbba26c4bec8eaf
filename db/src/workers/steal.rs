//! Stealing: a worker with more than it can soon run offers invocations; an idle one takes them, or serves the port of a
//! neighbour that is held up.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crossbeam_deque::Steal;

use super::Worker;
use super::intake::Intake;
use crate::limits::{INTERLEAVED, OFFERED_TURNS, STEAL_BATCH, STEAL_LOOK_MS};

impl Worker {
    /// Offers what this worker will not come to within its next turn, if somebody is idle to take it.
    pub(super) fn offer_tasks(&mut self) {
        let backlog = self.queue.waiting();
        if !self.shared.steal || backlog <= 1 || self.shared.idle.load(SeqCst) == 0 || !self.offered.is_empty() {
            return;
        }
        // Long invocations are worth sharing at once; short ones are done before a thief has woken.
        let surplus = if self.last_turn_was_long { backlog / 2 } else { backlog.saturating_sub(INTERLEAVED) };
        let (offered, live, worker) = (&self.offered, &mut self.live, self.index);
        self.queue.surrender(surplus.min(STEAL_BATCH), |task| {
            *live -= 1;
            task.count_place(worker, -1);
            offered.push(task);
        });
        self.offered_turns = 0;
        if surplus > 0 {
            self.wake_an_idle_one();
        }
    }

    /// Takes tasks back that nobody took although there was time: while they are on offer it is nobody's turn to run them,
    /// and others of the same tenants go on.
    pub(super) fn take_back_offered(&mut self) {
        if self.offered.is_empty() {
            return;
        }
        self.offered_turns += 1;
        if self.offered_turns > OFFERED_TURNS || self.shared.idle.load(Relaxed) == 0 {
            while let Some(task) = self.offered.pop() {
                self.take_task(task);
            }
        }
    }

    /// Has an idle worker look around while this one is in its tasks: packets may come that it will not get to.
    pub(super) fn rouse(&mut self) {
        if self.shared.steal
            && self.shared.idle.load(Relaxed) != 0
            && self.now_us.saturating_sub(self.roused_us) > STEAL_LOOK_MS * 1000
        {
            self.roused_us = self.now_us;
            self.wake_an_idle_one();
        }
    }

    /// Wakes one sleeping worker, if there is one.
    fn wake_an_idle_one(&self) {
        let idle = self.shared.idle.load(SeqCst) & !(1 << self.index);
        if idle != 0 {
            self.shared.ports[idle.trailing_zeros() as usize].waker.wake();
        }
    }

    /// Looks for work at the neighbours: invocations that they offer, then packets that they do not come to. Tells how
    /// much was found.
    pub(super) fn steal(&mut self, intake: &mut Intake) -> usize {
        if !self.shared.steal {
            return 0;
        }
        let shared = Arc::clone(&self.shared);
        let workers = shared.ports.len();
        for step in 1..workers {
            let victim = (self.index + step) % workers;
            match shared.stealers[victim].steal() {
                Steal::Success(task) => {
                    self.take_task(task);
                    self.counters.steals.add(1);
                    return 1;
                }
                Steal::Empty | Steal::Retry => {}
            }
        }
        for step in 1..workers {
            let victim = (self.index + step) % workers;
            // A neighbour that turns its loop will come to its packets itself.
            if !shared.held_up[victim].load(Relaxed) {
                continue;
            }
            let packets = self.serve(victim, intake);
            if packets > 0 {
                self.counters.packet_steals.add(packets as u64);
                return packets;
            }
        }
        0
    }
}

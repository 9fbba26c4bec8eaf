//! Stealing: a worker with more than it can soon run offers invocations; an idle one takes them, or serves the port of
//! a neighbour that is held up.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crossbeam_deque::Steal;

use super::Worker;
use super::ingress::IngressScheduler;
use super::run_queue::RunQueue;
use crate::limits::{MAX_INTERLEAVED, STEAL_BATCH, STEAL_OFFER_TURNS, STEAL_POLL_MS};

/// What a worker has on offer, and for how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StealOffer {
    /// Turns since then.
    turns: u32,
    /// They take long.
    long: bool,
}

impl StealOffer {
    /// Begins an offer by a worker with so many waiting invocations, and tells of how many. Long ones are worth sharing
    /// at once, short ones are done before a thief has woken.
    fn begin(&mut self, waiting: usize, long: bool) -> usize {
        *self = StealOffer { turns: 0, long };
        let surplus = if long { waiting / 2 } else { waiting.saturating_sub(MAX_INTERLEAVED) };
        surplus.min(STEAL_BATCH)
    }

    /// Whether the worker takes one back to run it itself. A thief that was asleep comes some polls later: until then
    /// long ones wait for it while there is anything else to do, since of two that are in each other's way both take
    /// twice as long.
    #[inline]
    pub(super) fn should_reclaim<T>(&self, queue: &RunQueue<T>) -> bool {
        if self.long { !queue.is_active() } else { queue.has_room() }
    }

    /// Counts a turn; whether there was time enough for a thief.
    fn has_expired(&mut self) -> bool {
        self.turns += 1;
        self.turns > STEAL_OFFER_TURNS
    }
}

impl Worker {
    /// Offers what this worker will not come to within its next turn, if somebody is idle to take it.
    pub(super) fn offer_tasks(&mut self) {
        if !self.shared.steal || self.shared.idle.load(SeqCst) == 0 || !self.offered.is_empty() {
            return;
        }
        let surplus = self.steal_offer.begin(self.queue.waiting(), self.was_last_turn_long);
        let (offered, live, worker) = (&self.offered, &mut self.live, self.index);
        self.queue.take_from_back(surplus, |task| {
            *live -= 1;
            task.count_live(worker, -1);
            offered.push(task);
        });
        if surplus > 0 {
            self.wake_one_idle();
        }
    }

    /// Takes tasks back that nobody took although there was time: while they are on offer it is nobody's turn to run
    /// them, and others of the same tenants go on.
    pub(super) fn reclaim_offered(&mut self) {
        if self.offered.is_empty() {
            return;
        }
        if self.steal_offer.has_expired() || self.shared.idle.load(Relaxed) == 0 {
            while let Some(task) = self.offered.pop() {
                self.enqueue_task(task);
            }
        }
    }

    /// Has an idle worker look around while this one is in its tasks: packets may come that it will not get to.
    pub(super) fn rouse(&mut self) {
        if self.shared.steal
            && self.shared.idle.load(Relaxed) != 0
            && self.now_us.saturating_sub(self.neighbour_woken_us) > STEAL_POLL_MS * 1000
        {
            self.neighbour_woken_us = self.now_us;
            self.wake_one_idle();
        }
    }

    /// Wakes one sleeping worker, if there is one.
    fn wake_one_idle(&self) {
        let idle = self.shared.idle.load(SeqCst) & !(1 << self.index);
        if idle != 0 {
            self.shared.ports[idle.trailing_zeros() as usize].waker.wake();
        }
    }

    /// Looks for work at the neighbours: invocations that they offer, then packets that they do not come to. Tells how
    /// much was found.
    pub(super) fn steal(&mut self, intake: &mut IngressScheduler) -> usize {
        if !self.shared.steal {
            return 0;
        }
        let shared = Arc::clone(&self.shared);
        let workers = shared.ports.len();
        for step in 1..workers {
            let victim = (self.index + step) % workers;
            match shared.stealers[victim].steal() {
                Steal::Success(task) => {
                    self.enqueue_task(task);
                    self.counters.steals.add(1);
                    return 1;
                }
                Steal::Empty | Steal::Retry => {}
            }
        }
        for step in 1..workers {
            let victim = (self.index + step) % workers;
            // A neighbour that turns its loop will come to its packets itself.
            if !shared.in_guest_code[victim].load(Relaxed) {
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

#[cfg(test)]
mod tests;

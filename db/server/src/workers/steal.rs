//! The invocations that a worker offers to its neighbours because it will not soon run them itself.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crossbeam_deque::Worker as Deque;

use super::context::WorkerContext;
use super::run_queue::RunQueue;
use super::tasks::InvocationTask;
use crate::limits::{MAX_INTERLEAVED, STEAL_BATCH, STEAL_OFFER_TURNS, STEAL_POLL_MS};

/// The offered invocations, and the policy of one offer.
pub(super) struct StealOffer {
    tasks: Deque<InvocationTask>,
    policy: OfferPolicy,
    /// When an idle neighbour was last woken to look for work.
    neighbour_woken_us: u64,
}

/// How many invocations an offer has, and how long it stands.
#[derive(Clone, Copy, Debug, Default)]
struct OfferPolicy {
    /// Turns since the offer began.
    turns: u32,
    /// The offered invocations take long.
    is_long: bool,
}

impl OfferPolicy {
    /// Begins an offer by a worker with so many waiting invocations, and tells of how many. Long ones are worth sharing
    /// at once, short ones are done before a thief has woken.
    fn begin(&mut self, waiting: usize, is_long: bool) -> usize {
        *self = OfferPolicy { turns: 0, is_long };
        let surplus = if is_long { waiting / 2 } else { waiting.saturating_sub(MAX_INTERLEAVED) };
        surplus.min(STEAL_BATCH)
    }

    /// Whether the worker takes one back to run it itself. A thief that was asleep comes some polls later: until then
    /// long ones wait for it while there is anything else to do, since of two that are in each other's way both take
    /// twice as long.
    #[inline]
    fn should_reclaim<T>(&self, queue: &RunQueue<T>) -> bool {
        if self.is_long { !queue.is_active() } else { queue.has_room() }
    }

    /// Counts a turn; whether there was time enough for a thief.
    fn has_expired(&mut self) -> bool {
        self.turns += 1;
        self.turns > STEAL_OFFER_TURNS
    }
}

impl StealOffer {
    pub(super) fn new(tasks: Deque<InvocationTask>) -> StealOffer {
        StealOffer { tasks, policy: OfferPolicy::default(), neighbour_woken_us: 0 }
    }

    /// How many invocations are on offer.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether none is.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Offers what the worker will not come to within its next turn, if a neighbour is idle. Returns how many
    /// invocations it has offered.
    pub(super) fn begin(
        &mut self,
        context: &WorkerContext,
        queue: &mut RunQueue<InvocationTask>,
        was_last_turn_long: bool,
    ) -> usize {
        let shared = &context.shared;
        if !shared.steal || shared.idle.load(SeqCst) == 0 || !self.tasks.is_empty() {
            return 0;
        }
        let surplus = self.policy.begin(queue.waiting(), was_last_turn_long);
        let (tasks, worker, mut offered) = (&self.tasks, context.index, 0);
        queue.take_from_back(surplus, |task| {
            offered += 1;
            task.count_live(worker, -1);
            tasks.push(task);
        });
        if surplus > 0 {
            shared.wake_idle_neighbour(worker);
        }
        offered
    }

    /// Takes one invocation back that no neighbour has taken, if there is room for it in the run queue.
    #[inline]
    pub(super) fn reclaim_one(&mut self, queue: &RunQueue<InvocationTask>) -> Option<InvocationTask> {
        if self.policy.should_reclaim(queue) { self.tasks.pop() } else { None }
    }

    /// Whether all are to be taken back, since no neighbour took them although there was time. While invocations are on
    /// offer none of them runs, and others of the same tenants go on.
    pub(super) fn is_over(&mut self, context: &WorkerContext) -> bool {
        !self.tasks.is_empty() && (self.policy.has_expired() || context.shared.idle.load(Relaxed) == 0)
    }

    /// Takes one back.
    pub(super) fn pop(&mut self) -> Option<InvocationTask> {
        self.tasks.pop()
    }

    /// Wakes an idle neighbour while this worker runs invocations: packets may come that it does not get to.
    pub(super) fn wake_neighbour(&mut self, context: &WorkerContext) {
        let (shared, now_us) = (&context.shared, context.clock.now_us);
        if shared.steal
            && shared.idle.load(Relaxed) != 0
            && now_us.saturating_sub(self.neighbour_woken_us) > STEAL_POLL_MS * 1000
        {
            self.neighbour_woken_us = now_us;
            shared.wake_idle_neighbour(context.index);
        }
    }
}

#[cfg(test)]
mod tests;

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

/// The size and duration of an offer.
#[derive(Clone, Copy, Debug, Default)]
struct OfferPolicy {
    /// Turns since the offer began.
    turns: u32,
    /// Whether the offered invocations take long.
    is_long: bool,
}

impl OfferPolicy {
    /// Begins an offer of a worker with `waiting` invocations. Returns their number. Long ones are shared at once;
    /// short ones end before a thief has woken.
    fn begin(&mut self, waiting: usize, is_long: bool) -> usize {
        *self = OfferPolicy { turns: 0, is_long };
        let surplus = if is_long { waiting / 2 } else { waiting.saturating_sub(MAX_INTERLEAVED) };
        surplus.min(STEAL_BATCH)
    }

    /// Whether the worker takes one back to run it itself. A thief that was asleep comes some polls later. Until then
    /// long ones wait for it while there is other work, since two on one processor both take twice as long.
    #[inline]
    fn should_reclaim<T>(&self, queue: &RunQueue<T>) -> bool {
        if self.is_long { !queue.is_active() } else { queue.has_room() }
    }

    /// Counts a turn. Returns whether a thief has had enough time.
    fn has_expired(&mut self) -> bool {
        self.turns += 1;
        self.turns > STEAL_OFFER_TURNS
    }
}

impl StealOffer {
    pub(super) fn new(tasks: Deque<InvocationTask>) -> StealOffer {
        StealOffer { tasks, policy: OfferPolicy::default(), neighbour_woken_us: 0 }
    }

    /// The number of invocations on offer.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether no invocation is on offer.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Offers the invocations that the worker will not reach within its next turn, if a neighbour is idle. Returns
    /// their number.
    pub(super) fn begin(
        &mut self,
        context: &WorkerContext,
        queue: &mut RunQueue<InvocationTask>,
        last_turn_was_long: bool,
    ) -> usize {
        let shared = &context.shared;
        if !self.has_idle_neighbour(context) || !self.tasks.is_empty() {
            return 0;
        }
        let surplus = self.policy.begin(queue.waiting(), last_turn_was_long);
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

    /// Whether a neighbour is idle, and may take what is offered.
    pub(super) fn has_idle_neighbour(&self, context: &WorkerContext) -> bool {
        context.shared.steal && context.shared.idle.load(SeqCst) != 0
    }

    /// Takes one invocation back that no neighbour has taken, if there is room for it in the run queue.
    #[inline]
    pub(super) fn reclaim_one(&mut self, queue: &RunQueue<InvocationTask>) -> Option<InvocationTask> {
        if self.policy.should_reclaim(queue) { self.tasks.pop() } else { None }
    }

    /// Whether all are to be taken back, since no neighbour took them in time. Invocations on offer do not run, while
    /// others of the same tenants do.
    pub(super) fn is_over(&mut self, context: &WorkerContext) -> bool {
        !self.tasks.is_empty() && (self.policy.has_expired() || context.shared.idle.load(Relaxed) == 0)
    }

    /// Takes one back.
    pub(super) fn pop(&mut self) -> Option<InvocationTask> {
        self.tasks.pop()
    }

    /// Wakes an idle neighbour while this worker runs invocations: it may not reach its packets in time.
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

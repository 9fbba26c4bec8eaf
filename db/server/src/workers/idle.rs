//! A worker without work: the lengths of its spins and its sleeps.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use sandstorm_log::PositionState;
use sandstorm_net::driver::DatagramDriver;

use super::connections::worker_connections::WorkerConnections;
use super::context::WorkerContext;
use super::spin::SpinController;
use crate::limits::STEAL_POLL_MS;

/// The idle state of a worker: see the head of this file.
pub(super) struct IdleController {
    spin: SpinController,
    /// The end of the last turn with work.
    idle_since_us: u64,
    /// Whether the worker has slept since.
    has_slept: bool,
    /// Whether the turn before this one had work: it lasted until now.
    was_busy: bool,
    /// See [`IdleController::note_arrivals`].
    seen_arrivals: u64,
}

impl IdleController {
    pub(super) fn new() -> IdleController {
        IdleController {
            spin: SpinController::new(),
            idle_since_us: 0,
            has_slept: false,
            was_busy: false,
            seen_arrivals: 0,
        }
    }

    /// Notes the cold records that have come up to now: this turn looks after them.
    pub(super) fn note_arrivals(&mut self, context: &WorkerContext) {
        self.seen_arrivals = context.shared.arrivals[context.index].load(SeqCst);
    }

    /// Begins a turn, `passed_us` after the last one, which has ended only now.
    pub(super) fn begin_turn(&mut self, context: &WorkerContext, passed_us: u64) {
        if std::mem::take(&mut self.was_busy) {
            context.counters.busy_us.add(passed_us);
            self.idle_since_us = context.clock.now_us;
        }
    }

    /// Notes that a turn found work.
    pub(super) fn found_work(&mut self, now_us: u64) {
        let idle_us = now_us.saturating_sub(self.idle_since_us);
        self.spin.found_work(now_us, idle_us, std::mem::take(&mut self.has_slept));
        self.was_busy = true;
    }

    /// Whether the worker has spun long enough, after a turn without work, and has nothing more to free.
    pub(super) fn should_sleep(&self, context: &WorkerContext) -> bool {
        let idle_us = context.clock.now_us.saturating_sub(self.idle_since_us);
        !self.spin.goes_on(idle_us) && !context.participant.is_freeing()
    }

    /// The time of the last request, as far as the worker knows; `now_us` if it was in its last turn.
    pub(super) fn last_busy_us(&self, now_us: u64) -> u64 {
        if self.was_busy { now_us } else { self.idle_since_us }
    }

    /// Sleeps in the kernel until a packet, a signal or a timer comes; for `longest_us` at most.
    pub(super) fn sleep(
        &mut self,
        context: &mut WorkerContext,
        connections: Option<&WorkerConnections>,
        longest_us: Option<u64>,
    ) {
        self.has_slept = true;
        let shared = Arc::clone(&context.shared);
        let bit = 1 << context.index;
        let idle = shared.idle.fetch_or(bit, SeqCst) | bit;
        // A neighbour first offers and then checks the marks; so the offers are checked after the mark is set.
        let has_work = shared.stealers.iter().any(|stealer| !stealer.is_empty())
            || shared.inboxes[context.index].has_messages()
            || shared.local_calls.has_calls(context.index)
            || connections.is_some_and(|connections| connections.has_work(context))
            || shared.arrivals[context.index].load(SeqCst) != self.seen_arrivals;
        if !has_work && !shared.stop.load(SeqCst) && shared.directory.generation() == context.snapshot.generation() {
            let all_idle = idle.count_ones() as usize == shared.ports.len();
            wait_for_packets(context, connections, (all_idle, longest_us));
        }
        shared.idle.fetch_and(!bit, SeqCst);
    }
}

/// Waits until a packet, a signal or a timer comes. It does not wait if the port's driver wants another turn before, or
/// a neighbour has left messages there.
fn wait_for_packets(
    context: &mut WorkerContext,
    connections: Option<&WorkerConnections>,
    (all_idle, longest_us): (bool, Option<u64>),
) {
    let (shared, now_us) = (Arc::clone(&context.shared), context.clock.now_us);
    let port = &shared.ports[context.index];
    let (port_timer_us, is_outbox_full) = {
        let mut state = port.open();
        let pending = state.context.pending.first_positions();
        let is_over = |position| context.position_state(position) != PositionState::Waits;
        let has_released = pending.into_iter().flatten().any(is_over) || state.context.pending.has_backed(is_over);
        let has_more = !state.context.left_behind.is_empty() || state.context.cold.has_ready();
        if !state.driver.may_sleep() || has_more || has_released {
            return;
        }
        (state.context.timer_us, !state.context.outbox.is_empty())
    };
    let until = |at_us: u64| at_us.saturating_sub(now_us).max(1);
    let steal_us = (!all_idle && shared.steal).then_some(STEAL_POLL_MS * 1000);
    let connections_us = connections.and_then(WorkerConnections::timer_us).map(until);
    let timeout_us = [port_timer_us.map(until), steal_us, connections_us, longest_us].into_iter().flatten().min();
    let selector = connections.map(|connections| connections.selector().as_fd());
    context.counters.sleeps.add(1);
    context.participant.offline();
    if let Err(error) = port.waiter.wait_with(timeout_us, is_outbox_full, selector) {
        tracing::error!(worker = context.index, %error, "cannot wait for packets");
        std::thread::sleep(std::time::Duration::from_millis(STEAL_POLL_MS));
    }
    context.participant.online();
}

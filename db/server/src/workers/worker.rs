//! The loop of a worker. Read [`Worker::run_once`] first: it is a turn of the loop.

use super::connections::worker_connections::WorkerConnections;
use super::executor::RequestExecutor;
use super::idle::IdleController;
use super::local_caller::{answer_look, begin_local_calls, take_local_connections};
use super::replies::send_replies;
use super::serve::PacketServer;
use crate::limits::ports::{DRAIN_ANSWERS_US, DRAIN_CALLS_US, DRAIN_MAX_US, DRAIN_PENDING_US, DRAIN_QUIET_US};

/// A worker: the two fronts of its requests, its executor, and its idle state.
pub(super) struct Worker {
    pub(super) executor: RequestExecutor,
    pub(super) packets: PacketServer,
    /// None on a server without ports for connections that no other server has sent commands.
    pub(super) connections: Option<Box<WorkerConnections>>,
    pub(super) idle: IdleController,
}

impl Worker {
    /// Serves until the server stops, then finishes its running work.
    pub(super) fn run(mut self) {
        while !self.executor.context.shared.is_stopping() {
            let done = self.run_once();
            let now_us = self.executor.context.clock.now_us;
            if done > 0 {
                self.idle.found_work(now_us);
            } else if !self.executor.context.shared.poll && self.idle.should_sleep(&self.executor.context) {
                let longest_us = self.executor.invocations.longest_sleep_us();
                self.idle.sleep(&mut self.executor.context, self.connections.as_deref(), longest_us);
            } else {
                std::hint::spin_loop();
            }
        }
        self.drain();
        self.packets.publish_counters(&self.executor.context, self.connections.as_deref());
    }

    /// One turn: requests of packets and of connections, then invocations, then a neighbour's surplus. Returns the
    /// amount of work.
    pub(super) fn run_once(&mut self) -> usize {
        self.begin_turn();
        let mut done = self.packets.serve_own_port(&mut self.executor, self.connections.as_deref());
        self.executor.context.log.request();
        done += self.serve_connections() + self.begin_local_calls();
        self.executor.context.log.request();
        done += self.run_invocations();
        self.executor.context.log.request();
        self.packets.flush_deferred(&self.executor.context);
        self.executor.context.participant.quiescent();
        if done == 0 {
            done = self.steal();
            self.executor.context.log.request();
        }
        self.count_turn(done);
        done
    }

    /// Reads the time, and takes the new snapshot if the directory has changed.
    fn begin_turn(&mut self) {
        let passed_us = self.executor.context.clock.advance();
        // What the last turn answered has left by now.
        let now_ns = self.executor.context.clock.now_ns;
        self.executor.context.settle_answered(now_ns);
        self.idle.begin_turn(&self.executor.context, passed_us);
        self.idle.note_arrivals(&self.executor.context);
        self.executor.refresh_snapshot();
    }

    /// Serves the ready connections. Returns their number.
    fn serve_connections(&mut self) -> usize {
        self.connections.as_mut().map_or(0, |connections| connections.turn(&mut self.executor))
    }

    /// Begins calls that come from this process. Returns their number.
    #[inline]
    fn begin_local_calls(&mut self) -> usize {
        let context = &self.executor.context;
        if !context.shared.local_calls.has_calls(context.index) {
            return 0;
        }
        let begun =
            begin_local_calls(&mut self.executor) + take_local_connections(&self.executor, &mut self.connections);
        begun + answer_look(&mut self.executor)
    }

    /// Polls invocations, answers those that ended, and offers the surplus to neighbours. Returns the number of polls.
    fn run_invocations(&mut self) -> usize {
        let RequestExecutor { context, invocations } = &mut self.executor;
        let mut polls = 0;
        if !invocations.is_idle() {
            // Polls take time that is none of the requests' which were answered before.
            if !self.packets.has_deferred() && !context.answered.is_empty() {
                context.settle_answered(context.clock.read_ns());
            }
            polls = invocations.poll(context);
            send_replies(&mut self.executor, self.connections.as_deref_mut());
            let RequestExecutor { context, invocations } = &mut self.executor;
            invocations.offer_surplus(context);
        }
        polls + usize::from(self.executor.invocations.engine.tidy())
    }

    /// Takes over work of the neighbours: an invocation on offer, or waiting packets. Returns the amount of work.
    fn steal(&mut self) -> usize {
        let RequestExecutor { context, invocations } = &mut self.executor;
        if !context.shared.steal {
            0
        } else if invocations.steal(context) {
            1
        } else {
            self.packets.serve_busy_neighbour(&mut self.executor)
        }
    }

    fn count_turn(&self, done: usize) {
        let RequestExecutor { context, invocations } = &self.executor;
        context.counters.turns.add(1);
        if done == 0 {
            context.counters.idle_turns.add(1);
        }
        context.counters.invocations_live.set(invocations.live_or_offered() as u64);
    }

    /// Finishes the running work, and tells clients that the server is shutting down, for as long as any send requests
    /// and up to a limit. A client without an answer would wait until its deadline.
    fn drain(&mut self) {
        self.executor.context.is_draining = true;
        let begun_us = self.executor.context.shared.elapsed_us();
        // A worker that had no requests lately has no clients to tell.
        let mut last_request_us = self.idle.last_busy_us(begun_us);
        loop {
            let done = self.run_once();
            let now_us = self.executor.context.clock.now_us;
            if now_us >= begun_us + DRAIN_CALLS_US {
                self.executor.invocations.stop_calls();
            }
            if done > 0 {
                last_request_us = now_us;
            }
            let is_over = now_us >= begun_us + DRAIN_MAX_US || now_us >= last_request_us + DRAIN_QUIET_US;
            let port = &self.executor.context.shared.ports[self.executor.context.index];
            let own = port.open();
            let has_pending = !own.context.pending.is_empty()
                || !own.context.cold.is_empty()
                || self.connections.as_ref().is_some_and(|connections| connections.has_pending());
            drop(own);
            // The log says of each in time whether it is on the disk.
            let has_pending = has_pending && now_us < begun_us + DRAIN_PENDING_US;
            if is_over && !has_pending && self.executor.invocations.is_idle() {
                // Invocations that another worker has taken answer here.
                let is_late = now_us >= begun_us + DRAIN_ANSWERS_US;
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

//! Continues TLS handshakes, within their budget.

use std::mem;
use std::time::Instant;

use sandstorm_metrics::ConnectionReason;
use sandstorm_net::driver::StreamProgress;

use super::connection_id::ConnectionId;
use super::ready_queue::RETAINED_TENANT_QUEUES;
use super::requests::ServeOutcome;
use super::worker_connections::{WorkerConnections, count_refused};
use crate::workers::executor::RequestExecutor;

impl WorkerConnections {
    /// Continues handshakes that had to wait. Returns how many.
    pub(super) fn resume_handshakes(&mut self, executor: &mut RequestExecutor) -> usize {
        self.handshakes.begun = 0;
        self.drop_closed_handshakes();
        let mut done = 0;
        while self.handshakes.ready.len() > 0
            && self.handshakes.may_begin(executor.context.clock.now_us)
            && let Some(id) = self.handshakes.ready.pop()
        {
            done += 1;
            if let Some(connection) = self.slots.get(id) {
                connection.is_handshake_delayed = false;
                self.continue_handshake(id, executor);
            }
        }
        done
    }

    /// Removes closed connections from the queue, once they are most of it.
    fn drop_closed_handshakes(&mut self) {
        let (ready, slots) = (&mut self.handshakes.ready, &mut self.slots);
        if ready.len() > RETAINED_TENANT_QUEUES + 2 * slots.connections_of(0) {
            ready.retain(|id| slots.get(id).is_some());
        }
    }

    /// Continues the handshake of a connection that has sent something: at once, or in its turn.
    pub(super) fn continue_handshake(&mut self, id: ConnectionId, executor: &mut RequestExecutor) {
        let Some(connection) = self.slots.get(id) else { return };
        if connection.is_handshake_delayed {
            return;
        }
        if !self.handshakes.may_begin(executor.context.clock.now_us) {
            connection.is_handshake_delayed = true;
            let key = self.handshakes.key(connection.permit.map(|permit| permit.origin));
            self.handshakes.ready.push(key, id);
            return self.watch(id);
        }
        let before = (connection.unsent(), connection.buffered());
        let mut received = mem::take(&mut self.received);
        let begun = Instant::now();
        let moved = connection.transport.receive(&mut received);
        self.handshakes.charge(executor.context.clock.now_us, begun.elapsed().as_nanos() as u64);
        let _is_in_what_was_charged = connection.transport.take_work();
        let is_over = !connection.transport.is_handshaking();
        if is_over {
            connection.since_us = executor.context.clock.now_us;
        }
        let outcome = match moved {
            StreamProgress::Bytes(bytes) => {
                executor.refresh_snapshot();
                self.run_input(id, Some(&received[..bytes]), 1, executor)
            }
            // The port may have a fixed tenant, so a session can begin without input.
            StreamProgress::WouldBlock if is_over => self.run_input(id, Some(&[]), 1, executor),
            StreamProgress::WouldBlock => ServeOutcome::Keep,
            StreamProgress::Closed => ServeOutcome::Close,
        };
        self.received = received;
        self.settle(id, before, outcome, &executor.context);
        if moved == StreamProgress::Closed && !is_over {
            count_refused(&executor.context.counters, ConnectionReason::Handshake);
        }
    }
}

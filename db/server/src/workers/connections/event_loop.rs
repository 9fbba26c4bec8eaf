//! A turn of a worker's connections, top to bottom. It takes messages of other workers, finds ready connections and
//! lets them receive, run and answer, by turns between tenants and for a limited time. Then it checks the timeouts.

use std::mem;
use std::sync::Arc;

use sandstorm_dialects::limits::protocols::PIECE_WORK;
use sandstorm_metrics::ConnectionReason;
use sandstorm_net::driver::{SocketInterest, StreamProgress};
use sandstorm_net::limits::EPOLL_EVENTS;

use super::connection::{ClientConnection, ConnectionPhase};
use super::connection_id::ConnectionId;
use super::release::note_sent;
use super::requests::ServeOutcome;
use super::worker_connections::{PORT_TOKEN_FLAG, WorkerConnections};
use crate::limits::connections::{
    AUTHENTICATION_TIMEOUT_US, BATCHES_PER_TURN, FEW_READY, SELECTS_PER_TURN, SLOW_READER_TIMEOUT_US, TIMEOUT_CHECK_US,
    TURN_NS,
};
use crate::limits::ports::TLS_HANDSHAKE_TIMEOUT_US;
use crate::workers::context::WorkerContext;
use crate::workers::executor::RequestExecutor;

impl WorkerConnections {
    /// Serves this worker's connections for a turn. Returns how many were ready.
    pub(in crate::workers) fn turn(&mut self, executor: &mut RequestExecutor) -> usize {
        let shared = Arc::clone(&executor.context.shared);
        let mut done = 0;
        for message in shared.inboxes[executor.context.index].take() {
            done += 1;
            self.take_message(message, &executor.context);
        }
        if done > 0 {
            // A database that was made for a connection is to be found by its next command.
            executor.refresh_snapshot();
        }
        done += self.follow_homes(&executor.context);
        done += self.release_pending(&mut executor.context);
        done += self.resume_fetched(executor.context.clock.now_ns);
        done += self.poll_selector(executor.context.clock.now_ns);
        for index in 0..self.ready_ports.len() {
            self.serve_port(self.ready_ports[index] as usize, executor);
        }
        self.ready_ports.clear();
        for id in mem::take(&mut self.broken) {
            self.end(id, &executor.context);
        }
        done += self.resume_handshakes(executor);
        let batches = if self.ready.len() <= FEW_READY { BATCHES_PER_TURN } else { 1 };
        let mut left = self.ready.len();
        self.pieces = 0;
        // The time of ports is not taken from the connections: otherwise a flood at a port would leave one connection a
        // turn.
        let begun_ns = executor.context.clock.read_ns();
        executor.context.settle_answered(begun_ns);
        executor.context.answered.begin_batch(begun_ns);
        while left > 0
            && let Some(id) = self.ready.pop()
        {
            (done, left) = (done + 1, left - 1);
            self.serve(id, batches, executor);
            // A turn runs one slice of long commands, however many connections have them: new requests may have come
            // meanwhile.
            let now_ns = executor.context.clock.read_ns();
            executor.context.settle_answered(now_ns);
            executor.context.answered.begin_batch(now_ns);
            if now_ns - begun_ns > TURN_NS || self.pieces >= PIECE_WORK {
                break;
            }
        }
        self.check_timeouts(&executor.context);
        executor.context.counters.connections.set(self.slots.live() as u64);
        done
    }

    /// Asks the selector for ready connections, and queues them, as ready since `now_ns`. Returns how many there are.
    fn poll_selector(&mut self, now_ns: u64) -> usize {
        let mut found = 0;
        for _ in 0..SELECTS_PER_TURN {
            let ready = self.selector.look();
            let all = ready.len() < EPOLL_EVENTS;
            found += ready.len();
            for event in ready {
                if event.token & PORT_TOKEN_FLAG != 0 {
                    let port = event.token & !PORT_TOKEN_FLAG;
                    if !self.ready_ports.contains(&port) {
                        self.ready_ports.push(port);
                    }
                    continue;
                }
                let id = ConnectionId::from_u64(event.token);
                let Some(connection) = self.slots.get(id) else { continue };
                // A Unix socket reports that its client is gone while there is still input of it.
                if event.ended || (event.broken && !event.readable) {
                    self.broken.push(id);
                } else if !mem::replace(&mut connection.is_queued, true) {
                    connection.ready_ns.get_or_insert(now_ns);
                    self.ready.push(connection.tenant, id);
                }
            }
            if all {
                break;
            }
        }
        for (index, udp_port) in self.udp_ports.iter().enumerate() {
            let port = (self.stream_ports.len() + index) as u64;
            if udp_port.has_requests() && !self.ready_ports.contains(&port) {
                self.ready_ports.push(port);
                found += 1;
            }
        }
        found
    }

    /// Serves a port: the stream ports are numbered first, then the UDP ports.
    fn serve_port(&mut self, number: usize, executor: &mut RequestExecutor) {
        let Some(number) = number.checked_sub(self.stream_ports.len()) else {
            return self.accept(number, &executor.context);
        };
        let Some(udp_port) = self.udp_ports.get_mut(number) else { return };
        let was_full = udp_port.is_full();
        udp_port.serve(number, executor);
        if udp_port.is_full() != was_full {
            let interest = SocketInterest { writable: !was_full, ..SocketInterest::READ };
            let token = PORT_TOKEN_FLAG | (self.stream_ports.len() + number) as u64;
            let _changed = self.selector.change(&udp_port.driver, token, interest);
        }
    }

    /// Serves a connection that has input, can send answers again, or continues its work.
    fn serve(&mut self, id: ConnectionId, batches: usize, executor: &mut RequestExecutor) {
        let Some(connection) = self.slots.get(id) else { return };
        connection.is_queued = false;
        if connection.transport.is_handshaking() {
            return self.continue_handshake(id, executor);
        }
        connection.pending.note_report();
        let before = (connection.unsent(), connection.buffered());
        let is_there = before.0 == 0 || connection.flush(executor.context.clock.now_us);
        if connection.ready_output.is_some() {
            note_sent(connection, &mut executor.context);
        }
        if !is_there {
            // Its buffers may have changed with what it tried to send.
            return self.settle(id, before, ServeOutcome::Close, &executor.context);
        }
        let mut received = mem::take(&mut self.received);
        let mut outcome = ServeOutcome::Keep;
        if connection.goes_on() {
            if connection.used < connection.input.len() && connection.input.len() - connection.used >= connection.needed
            {
                // Its input had to wait, for other connections or until answers had left.
                outcome = self.run_input(id, None, batches, executor);
            } else {
                let moved = connection.transport.receive(&mut received);
                let work = connection.transport.take_work();
                executor.charge_connection(connection.session.identity(), work);
                if connection.transport.has_rest() {
                    self.pieces = self.pieces.saturating_add(work);
                }
                outcome = match moved {
                    StreamProgress::Bytes(bytes) => {
                        // A client that was told of a deleted token or tenant must not find it here.
                        executor.refresh_snapshot();
                        self.run_input(id, Some(&received[..bytes]), batches, executor)
                    }
                    StreamProgress::WouldBlock => ServeOutcome::Keep,
                    StreamProgress::Closed if connection.unsent() > 0 => {
                        connection.state = ConnectionPhase::Closing;
                        ServeOutcome::Keep
                    }
                    StreamProgress::Closed => ServeOutcome::Close,
                };
            }
        }
        self.received = received;
        self.settle(id, before, outcome, &executor.context);
    }

    /// Closes connections at their timeouts, and accepts again after a pause.
    fn check_timeouts(&mut self, context: &WorkerContext) {
        let now_us = context.clock.now_us;
        if self.accept_paused_until_us.is_some_and(|until_us| now_us >= until_us) {
            self.accept_paused_until_us = None;
            for (index, stream_port) in self.stream_ports.iter().enumerate() {
                let _was_added_before =
                    self.selector.add(&stream_port.listener, PORT_TOKEN_FLAG | index as u64, SocketInterest::READ);
            }
        }
        if now_us.saturating_sub(self.timeouts_checked_us) < TIMEOUT_CHECK_US {
            return;
        }
        self.timeouts_checked_us = now_us;
        if self.unsent == 0 && self.slots.connections_of(0) == 0 {
            return;
        }
        let waits = |connection: &ClientConnection| now_us.saturating_sub(connection.since_us);
        let slow =
            |connection: &ClientConnection| connection.unsent() > 0 && waits(connection) > SLOW_READER_TIMEOUT_US;
        let unauthenticated =
            |connection: &ClientConnection| connection.tenant == 0 && waits(connection) > AUTHENTICATION_TIMEOUT_US;
        let handshaking = |connection: &ClientConnection| {
            connection.transport.is_handshaking() && waits(connection) > TLS_HANDSHAKE_TIMEOUT_US
        };
        for id in self.slots.which(handshaking) {
            self.refuse(id, ConnectionReason::Handshake, context);
        }
        for id in self.slots.which(slow) {
            self.refuse(id, ConnectionReason::SlowReader, context);
        }
        for id in self.slots.which(unauthenticated) {
            self.refuse(id, ConnectionReason::Unauthenticated, context);
        }
    }
}

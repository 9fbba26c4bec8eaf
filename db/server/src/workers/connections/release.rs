//! Answers to connections that wait for the log's disk. A connection whose answers wait is neither read nor run: what
//! it sends meanwhile waits in the kernel. So it holds one turn's answers at most, and they keep their order.

use std::mem;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use sandstorm_log::PositionState;
use sandstorm_store::backed::waits::later_of;

use super::answered::{count_waited, note_answered};
use super::connection::{ClientConnection, ConnectionPhase};
use super::connection_id::ConnectionId;
use super::pending_output::{PendingOutput, ReadyOutput};
use super::udp_port::UdpPort;
use super::uncertain::{ends_in_any_order, uncertain_of};
use super::worker_connections::WorkerConnections;
use crate::limits::connections::RETAINED_BUFFER_BYTES;
use crate::workers::context::WorkerContext;
use crate::workers::waits::add_answer_wait;

impl ClientConnection {
    /// Keeps answers, behind those that wait, until the log is on the disk. `answers` is empty then.
    pub(super) fn hold(&mut self, answers: &mut Vec<u8>, now_ns: u64) {
        if !self.pending.is_some() {
            self.pending.since_ns = now_ns;
        }
        self.pending.position = later_of(self.pending.position, self.shown);
        if self.pending.bytes.is_empty() && answers.capacity() > RETAINED_BUFFER_BYTES {
            self.pending.bytes = mem::take(answers);
        } else {
            self.pending.bytes.append(answers);
        }
    }
}

/// Counts the answers of a connection that were ready, and have left by now: those of commands, whose time ends here,
/// and how long both kinds were sent.
#[cold]
pub(super) fn note_sent(connection: &mut ClientConnection, context: &mut WorkerContext) {
    let ReadyOutput { commands_ns, call } = mem::take(&mut connection.ready_output);
    let now_ns = context.clock.read_ns();
    if let Some((received_ns, ready_ns)) = commands_ns {
        context.answered.begin_batch(ready_ns);
        note_answered(connection, received_ns, context);
        context.answered.note_ready(|| ready_ns);
        connection.session.begin_answers();
        connection.waits = None;
    }
    if let Some(mut call) = call {
        count_waited(&mut call, (connection.shown, now_ns), context);
        context.answered.note_sent_call(*call);
    }
    context.settle_answered(now_ns);
    context.answered.begin_batch(now_ns);
}

impl WorkerConnections {
    /// Notes that the answers of a connection wait.
    pub(super) fn note_pending(&mut self, id: ConnectionId, context: &WorkerContext) {
        let Some(connection) = self.slots.get(id) else { return };
        let position = connection.pending.position;
        if ends_in_any_order(position) {
            self.backed.push_back((position, id));
        } else {
            self.pending.0.push_back((position, id));
        }
        context.mark_holding_connections(position);
    }

    /// Lets the answers go on that need not wait any more. Returns their number.
    pub(super) fn release_pending(&mut self, context: &mut WorkerContext) -> usize {
        let mut released: usize = self.udp_ports.iter_mut().map(|port| port.release_pending(context)).sum();
        // Connections that wait for a table's backing, or for copies, end in any order.
        for _ in 0..self.backed.len() {
            let Some((position, id)) = self.backed.pop_front() else { break };
            if context.position_state(position) == PositionState::Waits {
                self.backed.push_back((position, id));
            } else {
                released += usize::from(self.release_connection(id, context));
            }
        }
        while let Some((position, id)) = self.pending.0.front().copied() {
            if context.position_state(position) == PositionState::Waits {
                return released;
            }
            self.pending.0.pop_front();
            released += usize::from(self.release_connection(id, context));
        }
        let bit = 1 << context.index;
        if context.shared.holding_connections.load(Relaxed) & bit != 0 && !self.has_pending() {
            context.shared.holding_connections.fetch_and(!bit, SeqCst);
        }
        released
    }

    /// Returns whether the connection is there, and its answers go on.
    fn release_connection(&mut self, id: ConnectionId, context: &WorkerContext) -> bool {
        let Some(connection) = self.slots.get(id).filter(|connection| connection.pending.is_some()) else {
            return false;
        };
        let position = connection.pending.position;
        let state = context.position_state(position);
        if state == PositionState::Waits {
            // The result of an invocation has come to it since.
            self.note_pending(id, context);
            return false;
        }
        let (unsent, buffered) = (connection.unsent(), connection.buffered());
        let now_ns = context.clock.now_ns;
        let PendingOutput { bytes: mut answers, since_ns, received_ns, call, .. } = mem::take(&mut connection.pending);
        connection.ready_output.commands_ns = received_ns.map(|received_ns| (received_ns, now_ns));
        if received_ns.is_some() {
            let waits = connection.waits.get_or_insert_default();
            add_answer_wait(waits, position, now_ns.saturating_sub(since_ns));
        }
        connection.ready_output.call = call.map(|mut call| {
            count_waited(&mut call, (position, now_ns), context);
            Box::new(call.again(now_ns))
        });
        if state == PositionState::Uncertain {
            // Which of them are still true is unknown: the client gets one error in place of all, and no more.
            context.counters.answers_not_durable.add(1);
            answers.clear();
            connection.session.not_durable(uncertain_of(position), &mut answers);
            connection.state = ConnectionPhase::Closing;
        }
        connection.append(&mut answers, context.clock.now_us);
        self.unsent += usize::from(unsent == 0 && connection.unsent() > 0);
        let (tenant, now) = (connection.tenant, connection.buffered());
        self.slots.buffered(tenant, buffered, now);
        self.queue(id);
        true
    }

    /// Whether answers that had to wait need not any more.
    pub(super) fn has_released(&self, context: &WorkerContext) -> bool {
        let first = self.pending.0.front().map(|(position, _)| *position);
        let backed = self.backed.iter().map(|(position, _)| *position);
        let datagrams = self.udp_ports.iter().flat_map(UdpPort::pending_positions);
        let mut waits = first.into_iter().chain(backed).chain(datagrams);
        waits.any(|position| context.position_state(position) != PositionState::Waits)
    }

    /// Whether answers wait.
    pub(in crate::workers) fn has_pending(&self) -> bool {
        !self.pending.0.is_empty()
            || !self.backed.is_empty()
            || self.udp_ports.iter().any(|port| port.first_pending().is_some())
    }
}

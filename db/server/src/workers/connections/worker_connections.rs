//! The connections of one worker: their storage, hand-over and closing.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::Arc;

use sandstorm_dialects::{InvocationResult, ProtocolSession};
use sandstorm_log::PositionState;
use sandstorm_metrics::{ConnectionReason, WorkerCounters};
use sandstorm_net::driver::{EpollSelector, SocketInterest};
use sandstorm_store::backed::waits::later_of;
use sandstorm_store::spill::ColdTicket;

use super::answered::count_waited;
use super::connection::{ClientConnection, ConnectionPhase};
use super::connection_id::ConnectionId;
use super::forwarded::count_answers;
use super::handshake_queue::TlsHandshakeQueue;
use super::inbox::InboxMessage;
use super::leaving_connections::LeavingConnections;
use super::pending_output::PendingConnections;
use super::ready_queue::ReadyQueue;
use super::slots::ConnectionSlots;
use super::stream_port::StreamPort;
use super::udp_port::UdpPort;
use crate::limits::connections::ACCEPT_PAUSE_US;
use crate::workers::context::WorkerContext;
use crate::workers::latency_ledger::ReadyCall;
use crate::workers::waits::add_cold_wait;

/// The flag of a port's token for the selector: the stream ports' numbers come first, then the UDP ports'.
pub(super) const PORT_TOKEN_FLAG: u64 = 1 << 63;

/// A connection that waits for cold records.
pub(super) struct FetchingConnection {
    pub(super) ticket: Arc<ColdTicket>,
    pub(super) id: ConnectionId,
    /// Since when, in the workers' nanoseconds.
    pub(super) since_ns: u64,
}

/// The connections of one worker.
pub(in crate::workers) struct WorkerConnections {
    pub(super) selector: EpollSelector,
    pub(super) stream_ports: Vec<StreamPort>,
    pub(super) udp_ports: Vec<UdpPort>,
    pub(super) slots: ConnectionSlots,
    /// Connections that are ready.
    pub(super) ready: ReadyQueue,
    /// Numbers of ports that the selector has reported: the stream ports, then the UDP ports.
    pub(super) ready_ports: Vec<u64>,
    /// Connections that the selector has reported as broken.
    pub(super) broken: Vec<ConnectionId>,
    /// The buffer into which all connections receive.
    pub(super) received: Vec<u8>,
    /// The buffer into which all connections write their answers.
    pub(super) answers: Vec<u8>,
    /// TLS handshakes under way.
    pub(super) handshakes: TlsHandshakeQueue,
    /// Connections with waiting answers.
    pub(super) unsent: usize,
    /// Those whose answers wait for the log.
    pub(super) pending: PendingConnections,
    /// Connections that wait for cold records.
    pub(super) fetching: Vec<FetchingConnection>,
    /// The connections whose answers wait for the backing of a table, which end in any order.
    pub(super) backed: VecDeque<(u64, ConnectionId)>,
    /// Work of this turn on commands that continue in the next, in plain requests.
    pub(super) pieces: u32,
    /// When the timeouts were last checked.
    pub(super) timeouts_checked_us: u64,
    /// Nothing is accepted before this moment.
    pub(super) accept_paused_until_us: Option<u64>,
    /// Connections that are to go where their tenants' homes are.
    pub(super) leaving: LeavingConnections,
}

impl WorkerConnections {
    /// The connections of a worker with these ports; none yet.
    pub(in crate::workers) fn new(
        stream_ports: Vec<StreamPort>,
        udp_ports: Vec<UdpPort>,
    ) -> io::Result<WorkerConnections> {
        let selector = EpollSelector::new()?;
        for (index, stream_port) in stream_ports.iter().enumerate() {
            selector.add(&stream_port.listener, PORT_TOKEN_FLAG | index as u64, SocketInterest::READ)?;
        }
        for (index, udp_port) in udp_ports.iter().enumerate() {
            selector.add(
                &udp_port.driver,
                PORT_TOKEN_FLAG | (stream_ports.len() + index) as u64,
                SocketInterest::READ,
            )?;
        }
        Ok(WorkerConnections {
            selector,
            stream_ports,
            udp_ports,
            slots: ConnectionSlots::default(),
            ready: ReadyQueue::default(),
            ready_ports: Vec::new(),
            broken: Vec::new(),
            received: vec![0; sandstorm_dialects::limits::protocols::RECEIVE_BYTES],
            answers: Vec::new(),
            handshakes: TlsHandshakeQueue::default(),
            unsent: 0,
            pending: PendingConnections::default(),
            fetching: Vec::new(),
            backed: VecDeque::new(),
            pieces: 0,
            timeouts_checked_us: 0,
            accept_paused_until_us: None,
            leaving: LeavingConnections::default(),
        })
    }

    /// Datagrams that were not answered.
    pub(in crate::workers) fn datagrams_dropped(&self) -> u64 {
        self.udp_ports.iter().map(UdpPort::dropped).sum()
    }

    /// The selector that an idle worker waits on besides packets.
    pub(in crate::workers) fn selector(&self) -> &EpollSelector {
        &self.selector
    }

    /// The time at which a turn is needed without any event, in the workers' microseconds.
    pub(in crate::workers) fn timer_us(&self) -> Option<u64> {
        let has_timeouts = self.unsent > 0 || self.slots.connections_of(0) > 0;
        let check_us = has_timeouts.then(|| self.timeouts_checked_us + crate::limits::connections::TIMEOUT_CHECK_US);
        [check_us, self.accept_paused_until_us, self.handshakes.due_us()].into_iter().flatten().min()
    }

    /// Whether some are ready without a report of the selector.
    pub(in crate::workers) fn has_work(&self, context: &WorkerContext) -> bool {
        self.ready.len() > 0 || self.has_released(context) || self.udp_ports.iter().any(UdpPort::has_requests)
    }

    /// Puts a connection into a slot, and its socket into the selector. None if the kernel has no memory for that.
    pub(super) fn admit(&mut self, mut connection: Box<ClientConnection>) -> Option<ConnectionId> {
        self.unsent += usize::from(connection.unsent() > 0);
        // Not the last worker's interest: it changes only with the connection's actions here.
        connection.interest = connection.wanted();
        let interest = connection.interest;
        let id = self.slots.insert(connection);
        let added = self.slots.get(id).map(|connection| self.selector.add(&connection.transport, id.word(), interest));
        if added.is_some_and(|added| added.is_ok()) {
            return Some(id);
        }
        self.release(id);
        None
    }

    /// Removes a connection from here.
    pub(super) fn release(&mut self, id: ConnectionId) -> Option<Box<ClientConnection>> {
        let connection = self.slots.remove(id)?;
        self.selector.remove(&connection.transport);
        self.unsent -= usize::from(connection.unsent() > 0);
        Some(connection)
    }

    /// Queues a ready connection.
    pub(super) fn queue(&mut self, id: ConnectionId) {
        if let Some(connection) = self.slots.get(id)
            && !std::mem::replace(&mut connection.is_queued, true)
        {
            let tenant = connection.tenant;
            self.ready.push(tenant, id);
        }
    }

    /// Whether a connection waits for an invocation to end, or for cold records, or a datagram for other servers.
    pub(in crate::workers) fn has_invoking(&self) -> bool {
        let waits = |state| matches!(state, ConnectionPhase::Invoking | ConnectionPhase::Fetching);
        self.udp_ports.iter().any(UdpPort::has_forwarded)
            || !self.slots.which(|connection| waits(connection.state)).is_empty()
    }

    /// Lets connections go on whose cold records are in memory, or cannot be. Returns their number.
    pub(super) fn resume_fetched(&mut self, now_ns: u64) -> usize {
        if !self.fetching.iter().any(|waiting| waiting.ticket.is_done()) {
            return 0;
        }
        let (done, waiting): (Vec<_>, Vec<_>) =
            mem::take(&mut self.fetching).into_iter().partition(|waiting| waiting.ticket.is_done());
        self.fetching = waiting;
        for FetchingConnection { ticket, id, since_ns } in &done {
            // Another connection may have that slot by now, but not that id.
            let Some(connection) = self.slots.get(*id) else { continue };
            if connection.state == ConnectionPhase::Fetching {
                connection.state = ConnectionPhase::Serving;
                let waits = connection.waits.get_or_insert_default();
                add_cold_wait(waits, ticket, now_ns.saturating_sub(*since_ns));
                ticket.error().into_iter().for_each(|error| connection.session.set_cold_error(error));
                self.queue(*id);
            }
        }
        done.len()
    }

    /// Handles a message of another worker.
    pub(in crate::workers) fn take_message(&mut self, message: InboxMessage, context: &WorkerContext) {
        match message {
            InboxMessage::Connection(connection) => {
                let (tenant, permit) = (connection.tenant, connection.permit);
                let waits = connection.transport.has_ended() || connection.transport.has_rest();
                let has_more = waits || connection.unsent() > 0 || connection.used < connection.input.len();
                match self.admit(connection) {
                    Some(id) => {
                        if self.slots.get(id).is_some_and(|connection| connection.pending.is_some()) {
                            self.note_pending(id, context);
                        }
                        self.publish_count(tenant, context);
                        if let Some(connection) = self.slots.get(id) {
                            let stream = connection.transport.stream();
                            let location = (context.index as u32, id.word());
                            if let Some(permit) = permit {
                                context.shared.connection_budget.assign(permit, (context.index, id));
                            }
                            connection.session.set_location(location, || stream.addresses());
                            if connection.session.is_killed() {
                                // It was killed on its way here.
                                return self.end(id, context);
                            }
                        }
                        self.note_arrival(id, tenant, context);
                        if has_more {
                            self.queue(id);
                        }
                    }
                    None => {
                        context.shared.connection_budget.leave(tenant, permit);
                        count_refused(&context.counters, ConnectionReason::NoFiles);
                    }
                }
            }
            InboxMessage::Forwarded { connection, answers } => {
                count_answers(&answers, &context.counters);
                let tell = |session: &mut ProtocolSession, out: &mut Vec<u8>| session.forwarded(answers, out);
                self.deliver(connection, (tell, 0), None, context);
            }
            InboxMessage::ForwardedDatagram { port, number, answers } => {
                if let Some(udp_port) = self.udp_ports.get_mut(port) {
                    udp_port.note_answers(number, answers, context);
                }
            }
            // Another connection may have that id by now.
            InboxMessage::Close(id) => {
                if self.slots.get(id).is_some_and(|connection| connection.session.is_killed()) {
                    self.end(id, context);
                }
            }
            InboxMessage::Shed(id) => self.shed(id, context),
            InboxMessage::InvocationResult { connection, status, number, value, shown, cost, ready } => {
                let cost = cost.map(|cost| *cost);
                let result = InvocationResult { status, number, value: &value, cost };
                self.deliver_result(connection, (&result, shown), ready, context);
            }
        }
    }

    /// Tells a connection the result of the invocation that it waits for, which shows the log up to a position. It goes
    /// on with the next turn.
    pub(in crate::workers) fn deliver_result(
        &mut self,
        id: ConnectionId,
        (result, shown): (&InvocationResult<'_>, u64),
        ready: Option<Box<ReadyCall>>,
        context: &WorkerContext,
    ) {
        let tell = |session: &mut ProtocolSession, out: &mut Vec<u8>| session.answered(result, out);
        self.deliver(id, (tell, shown), ready, context);
    }

    /// Has the session of a connection continue that waits, with what it waits for, which shows the log up to a
    /// position.
    fn deliver(
        &mut self,
        id: ConnectionId,
        (tell, shown): (impl FnOnce(&mut ProtocolSession, &mut Vec<u8>), u64),
        mut ready: Option<Box<ReadyCall>>,
        context: &WorkerContext,
    ) {
        let mut is_new = false;
        let mut answers = mem::take(&mut self.answers);
        if let Some(connection) = self.slots.get(id)
            && connection.state == ConnectionPhase::Invoking
        {
            let (unsent, buffered) = (connection.unsent(), connection.buffered());
            connection.state = ConnectionPhase::Serving;
            tell(&mut connection.session, &mut answers);
            connection.shown = later_of(connection.shown, shown);
            let had_pending = connection.pending.is_some();
            if had_pending || context.position_state(connection.shown) != PositionState::OnDisk {
                connection.hold(&mut answers, context.clock.now_ns);
                connection.pending.call = ready.take();
                is_new = !had_pending;
            } else {
                connection.append(&mut answers, context.clock.now_us);
                connection.ready_output.call = ready.take();
            }
            self.unsent += usize::from(unsent == 0 && connection.unsent() > 0);
            let (tenant, now) = (connection.tenant, connection.buffered());
            self.slots.buffered(tenant, buffered, now);
            self.queue(id);
        }
        if is_new {
            self.note_pending(id, context);
        }
        if let Some(mut call) = ready {
            // Its connection is gone: nothing is sent.
            count_waited(&mut call, (shown, context.clock.now_ns), context);
        }
        self.answers = answers;
    }

    /// Makes the selector report the events that the connection waits for.
    pub(super) fn watch(&mut self, id: ConnectionId) {
        let Some(connection) = self.slots.get(id) else { return };
        let wanted = connection.wanted();
        if wanted != connection.interest {
            connection.interest = wanted;
            // It was added at its arrival; if the kernel has lost it, its timeout ends it.
            let _changed = self.selector.change(&connection.transport, id.word(), wanted);
        }
    }

    /// Hands a connection over to its home worker.
    pub(super) fn hand_over(&mut self, id: ConnectionId, home: usize, context: &WorkerContext) {
        if let Some(mut connection) = self.release(id) {
            (connection.is_queued, connection.needed) = (false, 1);
            connection.is_handshake_delayed = false;
            self.publish_count(connection.tenant, context);
            context.counters.connections_handed_over.add(1);
            context.shared.send_to_inbox(home, InboxMessage::Connection(connection));
        }
    }

    /// Publishes the number of a tenant's connections here.
    pub(super) fn publish_count(&self, tenant: u32, context: &WorkerContext) {
        if let Some(view) = context.snapshot.tenant(tenant) {
            view.tenant.usage.worker(context.index).connections.set(self.slots.connections_of(tenant) as u64);
        }
    }

    /// Closes a connection.
    pub(super) fn end(&mut self, id: ConnectionId, context: &WorkerContext) {
        if let Some(mut connection) = self.release(id) {
            if connection.transport.is_refused() {
                count_refused(&context.counters, ConnectionReason::Protocol);
            }
            connection.transport.close();
            for mut call in [connection.pending.call.take(), connection.ready_output.call.take()].into_iter().flatten()
            {
                count_waited(&mut call, (connection.shown, context.clock.now_ns), context);
            }
            context.shared.connection_budget.leave(connection.tenant, connection.permit);
            self.publish_count(connection.tenant, context);
        }
    }

    /// Closes a connection, and counts the reason.
    pub(super) fn refuse(&mut self, id: ConnectionId, reason: ConnectionReason, context: &WorkerContext) {
        count_refused(&context.counters, reason);
        self.end(id, context);
    }

    /// Closes a connection whose permit another one has taken, unless it has authenticated meanwhile.
    pub(super) fn shed(&mut self, id: ConnectionId, context: &WorkerContext) {
        if self.slots.get(id).is_some_and(|connection| connection.permit.is_some()) {
            self.refuse(id, ConnectionReason::Full, context);
        }
    }

    /// Pauses accepting.
    pub(super) fn pause(&mut self, now_us: u64) {
        self.accept_paused_until_us = Some(now_us + ACCEPT_PAUSE_US);
        self.stream_ports.iter().for_each(|stream_port| self.selector.remove(&stream_port.listener));
    }
}

/// Counts the reason for closing or refusing a connection.
pub(super) fn count_refused(counters: &WorkerCounters, reason: ConnectionReason) {
    counters.connections_refused[reason as usize].add(1);
}

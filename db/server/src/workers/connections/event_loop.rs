//! A turn of a worker's connections, top to bottom: take what other workers sent, look who has something to say, let
//! them receive, run and answer, by turns between tenants and for a limited time, and see whose time is up.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use sandstorm_net::driver::{SocketInterest, StreamProgress};
use sandstorm_net::limits::EPOLL_EVENTS;
use sandstorm_net::rpc::{OpKind, Operation};

use super::connection::{ClientConnection, ConnectionPhase};
use super::inbox::{ConnectionId, InboxMessage};
use super::{PORT_TOKEN_FLAG, WorkerConnections, count_refused};
use crate::limits::connections::{
    AUTHENTICATION_TIMEOUT_US, BATCHES_PER_TURN, FEW_READY, RETAINED_BUFFER_BYTES, SELECTS_PER_TURN,
    SLOW_READER_TIMEOUT_US, TIMEOUT_CHECK_US, TURN_NS, UNAUTHENTICATED_INPUT_BYTES,
};
use crate::limits::ports::TLS_HANDSHAKE_TIMEOUT_US;
use crate::workers::Worker;
use crate::workers::tasks::ReplyTarget;
use sandstorm_dialects::limits::protocols::{BYTES_PER_REQUEST, CONTENDED_PIECE_WORK, PIECE_WORK};
use sandstorm_dialects::{CommandContext, ConnectionIdentity, InvocationResult, NextAction};
use sandstorm_metrics::ConnectionReason;

/// What becomes of a connection after it was served.
pub(super) enum ServeOutcome {
    /// It stays.
    Keep,
    /// It goes on by itself in the next turn.
    Continue,
    /// It is closed.
    Close,
    /// It moves to that worker.
    HandOver(usize),
}

impl Worker {
    /// Serves this worker's connections, if it has any or a port for them. Tells how many had something to do.
    pub(in crate::workers) fn serve_connections(&mut self) -> usize {
        let Some(mut connections) = self.connections.take() else { return 0 };
        let done = connections.turn(self);
        self.connections = Some(connections);
        done
    }

    /// Tells a connection how the invocation ended that it waits for.
    pub(in crate::workers) fn reply_to_connection(
        &mut self,
        worker: u32,
        name: ConnectionId,
        ended: &InvocationResult<'_>,
    ) {
        if worker as usize == self.index {
            if let Some(connections) = &mut self.connections {
                connections.answered(name, ended, self.now_us);
            }
            return;
        }
        let mail = InboxMessage::InvocationResult {
            name,
            status: ended.status,
            number: ended.number,
            value: ended.value.to_vec(),
        };
        self.shared.send_to_inbox(worker as usize, mail);
    }

    /// What a conversation may use now.
    pub(super) fn context(&self, budget: u32) -> CommandContext<'_> {
        CommandContext {
            participant: &self.participant,
            snapshot: &self.snapshot,
            now_ms: self.now_ms,
            now_us: self.now_us,
            worker: self.index,
            counters: &self.counters,
            facts: &self.shared.facts,
            requests: Default::default(),
            retired: self.participant.retired(),
            budget,
        }
    }

    /// The work of one piece of what a tenant's connections ask for.
    fn piece_budget(&self, tenant: u32) -> u32 {
        if self.asked.beside(tenant, self.now_us) { CONTENDED_PIECE_WORK } else { PIECE_WORK }
    }

    /// Bills what a connection had run.
    pub(super) fn charge_connection(&mut self, identity: Option<&ConnectionIdentity>, requests: u32) {
        if let Some(identity) = identity.filter(|_| requests > 0) {
            self.bill(identity.tenant(), requests);
        }
    }

    /// Begins an invocation that a connection asks for. The answer, if it cannot begin, is given to the conversation.
    fn begin_connection_invocation(
        &mut self,
        connection: &mut ClientConnection,
        name: ConnectionId,
        extension: &[u8],
        args: &[u8],
        out: &mut Vec<u8>,
    ) {
        let snapshot = Arc::clone(&self.snapshot);
        let view = connection.session.identity().and_then(|identity| identity.view(&snapshot));
        let Some(view) = view else {
            connection.state = ConnectionPhase::Closing;
            return;
        };
        let caller = ReplyTarget::Stream { worker: self.index as u32, name };
        let operation = Operation { key: extension, value: args, ..Operation::new(OpKind::Invoke) };
        match self.try_begin(view, &operation, caller) {
            Ok(()) => connection.state = ConnectionPhase::Invoking,
            Err((status, text)) => {
                let ended = InvocationResult { status, number: 0, value: text.as_bytes() };
                connection.session.answered(&ended, out);
            }
        }
    }
}

impl WorkerConnections {
    /// Whether a connection waits for an invocation to end.
    pub(in crate::workers) fn has_invoking(&self) -> bool {
        !self.places.which(|connection| connection.state == ConnectionPhase::Invoking).is_empty()
    }

    fn turn(&mut self, worker: &mut Worker) -> usize {
        let shared = Arc::clone(&worker.shared);
        let mut done = 0;
        for mail in shared.inboxes[worker.index].take() {
            done += 1;
            self.open(mail, worker);
        }
        done += self.look();
        for index in 0..self.ready_ports.len() {
            self.serve_port(self.ready_ports[index] as usize, worker);
        }
        self.ready_ports.clear();
        for name in mem::take(&mut self.broken) {
            self.end(name, worker);
        }
        done += self.resume_handshakes(worker);
        let batches = if self.line.len() <= FEW_READY { BATCHES_PER_TURN } else { 1 };
        let mut left = self.line.len();
        self.pieces = 0;
        // What gates and wickets took is not taken from the line: whoever floods those would have one connection served
        // a turn.
        let begun = Instant::now();
        while left > 0
            && let Some(name) = self.line.pop()
        {
            (done, left) = (done + 1, left - 1);
            self.serve(name, batches, worker);
            // Of long commands a slice is a turn's worth, however many connections have them: others may have come
            // meanwhile.
            if begun.elapsed().as_nanos() as u64 > TURN_NS || self.pieces >= PIECE_WORK {
                break;
            }
        }
        self.check_timeouts(worker);
        worker.counters.connections.set(self.places.live() as u64);
        done
    }

    /// Looks who has something to say, and puts them in the line. Tells how many have.
    fn look(&mut self) -> usize {
        let mut found = 0;
        for _ in 0..SELECTS_PER_TURN {
            let ready = self.selector.look();
            let all = ready.len() < EPOLL_EVENTS;
            found += ready.len();
            for one in ready {
                if one.token & PORT_TOKEN_FLAG != 0 {
                    let gate = one.token & !PORT_TOKEN_FLAG;
                    if !self.ready_ports.contains(&gate) {
                        self.ready_ports.push(gate);
                    }
                    continue;
                }
                let name = ConnectionId::from_u64(one.token);
                let Some(connection) = self.places.get(name) else { continue };
                // A Unix socket says that its client has gone while there is something of it to read.
                if one.ended || (one.broken && !one.readable) {
                    self.broken.push(name);
                } else if !mem::replace(&mut connection.queued, true) {
                    self.line.push(connection.tenant, name);
                }
            }
            if all {
                break;
            }
        }
        for (index, wicket) in self.udp_ports.iter().enumerate() {
            let gate = (self.stream_ports.len() + index) as u64;
            if wicket.waits() && !self.ready_ports.contains(&gate) {
                self.ready_ports.push(gate);
                found += 1;
            }
        }
        found
    }

    /// Takes what another worker has sent.
    pub(super) fn open(&mut self, mail: InboxMessage, worker: &mut Worker) {
        match mail {
            InboxMessage::Connection(connection) => {
                let (tenant, seat) = (connection.tenant, connection.seat);
                let waits = connection.wire.has_ended() || connection.wire.has_rest();
                let has_more = waits || connection.unsent() > 0 || connection.used < connection.input.len();
                match self.admit(connection) {
                    Some(name) => {
                        self.tell(tenant, worker);
                        if let Some(connection) = self.places.get(name) {
                            let stream = connection.wire.stream();
                            let place = (worker.index as u32, name.word());
                            if let Some(seat) = seat {
                                worker.shared.room.seated(seat, (worker.index, name));
                            }
                            connection.session.placed(place, || stream.addresses());
                            if connection.session.is_killed() {
                                // While it was on its way.
                                return self.end(name, worker);
                            }
                        }
                        if has_more {
                            self.queue(name);
                        }
                    }
                    None => {
                        worker.shared.room.leave(tenant, seat);
                        count_refused(&worker.counters, ConnectionReason::NoFiles);
                    }
                }
            }
            // Another may have that name by now.
            InboxMessage::Close(name) => {
                if self.places.get(name).is_some_and(|connection| connection.session.is_killed()) {
                    self.end(name, worker);
                }
            }
            InboxMessage::Shed(name) => self.shed(name, worker),
            InboxMessage::InvocationResult { name, status, number, value } => {
                self.answered(name, &InvocationResult { status, number, value: &value }, worker.now_us);
            }
        }
    }

    /// The invocation has ended that a connection waits for: it goes on with the next turn.
    fn answered(&mut self, name: ConnectionId, ended: &InvocationResult<'_>, now_us: u64) {
        let mut answers = mem::take(&mut self.answers);
        if let Some(connection) = self.places.get(name)
            && connection.state == ConnectionPhase::Invoking
        {
            let (unsent, buffered) = (connection.unsent(), connection.buffered());
            connection.state = ConnectionPhase::Serving;
            connection.session.answered(ended, &mut answers);
            connection.append(&mut answers, now_us);
            self.unsent += usize::from(unsent == 0 && connection.unsent() > 0);
            let (tenant, now) = (connection.tenant, connection.buffered());
            self.places.buffered(tenant, buffered, now);
            self.queue(name);
        }
        self.answers = answers;
    }

    /// Something has come to a gate, or to a wicket: those are counted behind them.
    fn serve_port(&mut self, number: usize, worker: &mut Worker) {
        let Some(number) = number.checked_sub(self.stream_ports.len()) else { return self.accept(number, worker) };
        let Some(wicket) = self.udp_ports.get_mut(number) else { return };
        let was_full = wicket.is_full();
        wicket.serve(worker);
        if wicket.is_full() != was_full {
            let interest = SocketInterest { writable: !was_full, ..SocketInterest::READ };
            let token = PORT_TOKEN_FLAG | (self.stream_ports.len() + number) as u64;
            let _changed = self.selector.change(&wicket.driver, token, interest);
        }
    }

    /// A connection has something to say, or room for answers, or goes on with what it has.
    fn serve(&mut self, name: ConnectionId, batches: usize, worker: &mut Worker) {
        let Some(connection) = self.places.get(name) else { return };
        connection.queued = false;
        if connection.wire.is_handshaking() {
            return self.continue_handshake(name, worker);
        }
        let before = (connection.unsent(), connection.buffered());
        if before.0 > 0 && !connection.flush(worker.now_us) {
            // What it holds may have changed with what it tried to send.
            return self.settle(name, before, ServeOutcome::Close, worker);
        }
        let mut received = mem::take(&mut self.received);
        let mut fate = ServeOutcome::Keep;
        if connection.goes_on() {
            if connection.used < connection.input.len() && connection.input.len() - connection.used >= connection.needed
            {
                // It had to wait, for others or until answers had left.
                fate = self.run_input(name, None, batches, worker);
            } else {
                let moved = connection.wire.receive(&mut received);
                let work = connection.wire.take_work();
                worker.charge_connection(connection.session.identity(), work);
                if connection.wire.has_rest() {
                    self.pieces = self.pieces.saturating_add(work);
                }
                fate = match moved {
                    StreamProgress::Bytes(bytes) => {
                        // Whoever was told that a token or a tenant is no more must not find it here.
                        worker.refresh_snapshot();
                        self.run_input(name, Some(&received[..bytes]), batches, worker)
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
        self.settle(name, before, fate, worker);
    }

    /// Runs what a connection asks for, from what was received just now or, if it had something before, behind that;
    /// sends the answers.
    pub(super) fn run_input(
        &mut self,
        name: ConnectionId,
        received: Option<&[u8]>,
        batches: usize,
        worker: &mut Worker,
    ) -> ServeOutcome {
        let Some(connection) = self.places.get(name) else { return ServeOutcome::Keep };
        if worker.stops {
            return if connection.turn_away(received.unwrap_or_default(), worker.now_us) {
                ServeOutcome::Keep
            } else {
                ServeOutcome::Close
            };
        }
        let mut answers = mem::take(&mut self.answers);
        let bytes = received.map_or(0, <[u8]>::len);
        worker.counters.connection_bytes_in.add(bytes as u64);
        // What is received is copied, whether or not it can be run yet.
        worker.charge_connection(connection.session.identity(), (bytes / BYTES_PER_REQUEST) as u32);
        let whole = connection.input.is_empty();
        let mut worked = 0;
        let fate = match received {
            Some(received) if whole => {
                let (used, fate) =
                    run_batches(connection, name, received, (batches, &mut worked), worker, &mut answers);
                if used < received.len() {
                    connection.keep(&received[used..]);
                }
                fate
            }
            _ => {
                connection.keep(received.unwrap_or_default());
                if connection.input.len() < connection.needed {
                    ServeOutcome::Keep
                } else {
                    let input = mem::take(&mut connection.input);
                    let from = connection.used;
                    let (used, fate) =
                        run_batches(connection, name, &input[from..], (batches, &mut worked), worker, &mut answers);
                    connection.input = input;
                    connection.consume(used);
                    fate
                }
            }
        };
        if matches!(fate, ServeOutcome::Continue) {
            self.pieces = self.pieces.saturating_add(worked);
        }
        if u64::from(worked) > worker.counters.connection_longest_piece.get() {
            worker.counters.connection_longest_piece.set(worked.into());
        }
        worker.counters.connection_bytes_out.add(answers.len() as u64);
        let work = connection.wire.work(received.map_or(0, <[u8]>::len) + answers.len());
        worker.charge_connection(connection.session.identity(), (work / BYTES_PER_REQUEST) as u32);
        let sent = connection.send(&mut answers, worker.now_us);
        debug_assert!(answers.is_empty(), "what one connection is told stays with it");
        answers.clear();
        if answers.capacity() > RETAINED_BUFFER_BYTES {
            answers = Vec::new();
        }
        self.answers = answers;
        if sent { fate } else { ServeOutcome::Close }
    }

    /// Counts what has changed about a connection, and lets it have its fate.
    pub(super) fn settle(
        &mut self,
        name: ConnectionId,
        before: (usize, usize),
        fate: ServeOutcome,
        worker: &mut Worker,
    ) {
        let Some(connection) = self.places.get(name) else { return };
        let (unsent, buffered) = (connection.unsent(), connection.buffered());
        let waiting = connection.input.len() - connection.used;
        let tenant = connection.session.identity().map_or(0, ConnectionIdentity::tenant);
        // Not only what grew while it was served: invocations' answers come between.
        let grew = buffered > mem::replace(&mut connection.checked_bytes, buffered);
        let (counted, seat, ends) = (connection.tenant, connection.seat, connection.state == ConnectionPhase::Closing);
        // The selector does not tell again that the client has said its last, and not of what is to be decrypted.
        let has_more = (connection.wire.has_ended() || connection.wire.has_rest()) && connection.goes_on();
        self.unsent = self.unsent + usize::from(unsent > 0) - usize::from(before.0 > 0);
        self.places.buffered(counted, before.1, buffered);
        if tenant != counted && tenant != 0 {
            if !worker.shared.room.pass(counted, seat, tenant) {
                return self.refuse(name, ConnectionReason::Full, worker);
            }
            self.places.assign_tenant(name, tenant);
            self.tell(counted, worker);
            self.tell(tenant, worker);
        }
        match fate {
            ServeOutcome::Close => return self.end(name, worker),
            ServeOutcome::HandOver(home) => return self.hand_over(name, home, worker),
            ServeOutcome::Keep | ServeOutcome::Continue => {}
        }
        if ends && unsent == 0 {
            return self.end(name, worker);
        }
        if tenant == 0 && waiting > UNAUTHENTICATED_INPUT_BYTES {
            return self.refuse(name, ConnectionReason::Unauthenticated, worker);
        }
        if grew && !self.places.admits_buffers(if tenant == 0 { counted } else { tenant }) {
            return self.refuse(name, ConnectionReason::Memory, worker);
        }
        if matches!(fate, ServeOutcome::Continue) || has_more {
            self.queue(name);
        }
        self.watch(name);
    }

    /// Has the selector look for what the connection waits for.
    pub(super) fn watch(&mut self, name: ConnectionId) {
        let Some(connection) = self.places.get(name) else { return };
        let wanted = connection.wanted();
        if wanted != connection.interest {
            connection.interest = wanted;
            // It was added when it came; if the kernel has lost it, its time will be up.
            let _changed = self.selector.change(&connection.wire, name.word(), wanted);
        }
    }

    /// Gives a connection to its home worker.
    fn hand_over(&mut self, name: ConnectionId, home: usize, worker: &mut Worker) {
        if let Some(mut connection) = self.release(name) {
            // The worker there has its own bytes to give.
            (connection.queued, connection.needed, connection.checked_bytes) = (false, 1, 0);
            connection.held_back = false;
            self.tell(connection.tenant, worker);
            worker.counters.connections_handed_over.add(1);
            worker.shared.send_to_inbox(home, InboxMessage::Connection(connection));
        }
    }

    /// Shows how many connections a tenant has here.
    fn tell(&self, tenant: u32, worker: &Worker) {
        if let Some(view) = worker.snapshot.tenant(tenant) {
            view.tenant.usage.worker(worker.index).connections.set(self.places.held(tenant) as u64);
        }
    }

    fn end(&mut self, name: ConnectionId, worker: &mut Worker) {
        if let Some(mut connection) = self.release(name) {
            if connection.wire.is_refused() {
                count_refused(&worker.counters, ConnectionReason::Protocol);
            }
            connection.wire.close();
            worker.shared.room.leave(connection.tenant, connection.seat);
            self.tell(connection.tenant, worker);
        }
    }

    pub(super) fn refuse(&mut self, name: ConnectionId, reason: ConnectionReason, worker: &mut Worker) {
        count_refused(&worker.counters, reason);
        self.end(name, worker);
    }

    /// Closes connections whose time is up, and accepts again after a pause.
    fn check_timeouts(&mut self, worker: &mut Worker) {
        let now_us = worker.now_us;
        if self.accept_paused_until_us.is_some_and(|until_us| now_us >= until_us) {
            self.accept_paused_until_us = None;
            for (index, gate) in self.stream_ports.iter().enumerate() {
                let _was_added_before =
                    self.selector.add(&gate.listener, PORT_TOKEN_FLAG | index as u64, SocketInterest::READ);
            }
        }
        if now_us.saturating_sub(self.looked_us) < TIMEOUT_CHECK_US {
            return;
        }
        self.looked_us = now_us;
        if self.unsent == 0 && self.places.held(0) == 0 {
            return;
        }
        let waits = |connection: &ClientConnection| now_us.saturating_sub(connection.since_us);
        let slow =
            |connection: &ClientConnection| connection.unsent() > 0 && waits(connection) > SLOW_READER_TIMEOUT_US;
        let strange =
            |connection: &ClientConnection| connection.tenant == 0 && waits(connection) > AUTHENTICATION_TIMEOUT_US;
        let shakes = |connection: &ClientConnection| {
            connection.wire.is_handshaking() && waits(connection) > TLS_HANDSHAKE_TIMEOUT_US
        };
        for name in self.places.which(shakes) {
            self.refuse(name, ConnectionReason::Handshake, worker);
        }
        for name in self.places.which(slow) {
            self.refuse(name, ConnectionReason::SlowReader, worker);
        }
        for name in self.places.which(strange) {
            self.refuse(name, ConnectionReason::Unauthenticated, worker);
        }
    }
}

/// Runs up to so many batches of a connection's input, or a piece's work of them. Tells how much of it was used up, and
/// what that took.
fn run_batches(
    connection: &mut ClientConnection,
    name: ConnectionId,
    input: &[u8],
    (batches, worked): (usize, &mut u32),
    worker: &mut Worker,
    answers: &mut Vec<u8>,
) -> (usize, ServeOutcome) {
    let (mut used, mut left) = (0, batches);
    let budget = worker.piece_budget(connection.tenant);
    connection.needed = 1;
    loop {
        let context = worker.context(budget.saturating_sub(*worked).max(1));
        let (bytes, next) = connection.session.run(&context, &input[used..], answers);
        let requests = context.work_done();
        *worked = worked.saturating_add(requests);
        worker.charge_connection(connection.session.identity(), requests);
        worker.counters.connection_batches.add(1);
        for (home, word) in connection.session.killed() {
            worker.shared.send_to_inbox(home as usize, InboxMessage::Close(ConnectionId::from_u64(word)));
        }
        used += bytes;
        let rest = input.len() - used;
        match next {
            NextAction::NeedMore(needed) => {
                connection.needed = needed.max(1);
                return (used, ServeOutcome::Keep);
            }
            NextAction::Yield => {}
            NextAction::Invoke { extension, args } => {
                worker.begin_connection_invocation(connection, name, &extension, &args, answers);
                if connection.state != ConnectionPhase::Serving {
                    return (used, ServeOutcome::Keep);
                }
            }
            NextAction::HandOver(tenant) => {
                let home = worker.snapshot.tenant(tenant).map(|view| view.tenant.home_worker as usize);
                let home = home.map_or(worker.index, |home| home % worker.shared.ports.len());
                if home != worker.index {
                    return (used, ServeOutcome::HandOver(home));
                }
            }
            NextAction::Close => {
                connection.state = ConnectionPhase::Closing;
                return (used + rest, ServeOutcome::Keep);
            }
        }
        if rest == 0 {
            return (used, ServeOutcome::Keep);
        }
        // Whatever it was: calls that are refused take their time as well.
        left = left.saturating_sub(1);
        if left == 0 || *worked >= budget || answers.len() > RETAINED_BUFFER_BYTES / 4 {
            return (used, ServeOutcome::Continue);
        }
    }
}

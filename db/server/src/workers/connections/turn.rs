//! A turn of a worker's connections, top to bottom: take what other workers sent, look who has something to say, let them receive,
//! run and answer, by turns between tenants and for a limited time, and see whose time is up.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use sandstorm_net::driver::{Interest, Moved};
use sandstorm_net::limits::SELECTED;
use sandstorm_net::rpc::{Op, Operation};

use super::connection::{Connection, State};
use super::inbox::{Mail, Name};
use super::{Connections, GATES, name, note, token};
use crate::limits::connections::{
    BATCHES_AT_ONCE, FEW_READY, KEPT_BUFFER_BYTES, LOOK_US, LOOKS, SLOW_READER_US, STRANGER_INPUT_BYTES, STRANGER_US,
    TURN_NS,
};
use crate::limits::ports::TLS_HANDSHAKE_US;
use crate::workers::Worker;
use crate::workers::tasks::Caller;
use sandstorm_dialects::limits::protocols::{BYTES_PER_REQUEST, PIECE_WORK, SHARED_PIECE_WORK};
use sandstorm_dialects::{Context, Identity, InvocationAnswer, Next};
use sandstorm_metrics::ConnectionReason;

/// What becomes of a connection after it was served.
pub(super) enum Fate {
    /// It stays.
    Stays,
    /// It goes on by itself in the next turn.
    GoesOn,
    /// It is closed.
    Ends,
    /// It moves to that worker.
    Moves(usize),
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
    pub(in crate::workers) fn answer_connection(&mut self, worker: u32, name: Name, ended: &InvocationAnswer<'_>) {
        if worker as usize == self.index {
            if let Some(connections) = &mut self.connections {
                connections.answered(name, ended, self.now_us);
            }
            return;
        }
        let mail = Mail::Answer { name, status: ended.status, number: ended.number, value: ended.value.to_vec() };
        self.shared.send_mail(worker as usize, mail);
    }

    /// What a conversation may use now.
    pub(super) fn context(&self, budget: u32) -> Context<'_> {
        Context {
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
    fn piece_work(&self, tenant: u32) -> u32 {
        if self.asked.beside(tenant, self.now_us) { SHARED_PIECE_WORK } else { PIECE_WORK }
    }

    /// Bills what a connection had run.
    pub(super) fn bill_connection(&mut self, identity: Option<&Identity>, requests: u32) {
        if let Some(identity) = identity.filter(|_| requests > 0) {
            self.bill(identity.tenant(), requests);
        }
    }

    /// Begins an invocation that a connection asks for. The answer, if it cannot begin, is given to the conversation.
    fn begin_for(&mut self, connection: &mut Connection, name: Name, extension: &[u8], args: &[u8], out: &mut Vec<u8>) {
        let snapshot = Arc::clone(&self.snapshot);
        let view = connection.conversation.identity().and_then(|identity| identity.view(&snapshot));
        let Some(view) = view else {
            connection.state = State::Ends;
            return;
        };
        let caller = Caller::Stream { worker: self.index as u32, name };
        let operation = Operation { key: extension, value: args, ..Operation::new(Op::Invoke) };
        match self.try_begin(view, &operation, caller) {
            Ok(()) => connection.state = State::Invokes,
            Err((status, text)) => {
                let ended = InvocationAnswer { status, number: 0, value: text.as_bytes() };
                connection.conversation.answered(&ended, out);
            }
        }
    }
}

impl Connections {
    /// Whether a connection waits for an invocation to end.
    pub(in crate::workers) fn await_answers(&self) -> bool {
        !self.places.which(|connection| connection.state == State::Invokes).is_empty()
    }

    fn turn(&mut self, worker: &mut Worker) -> usize {
        let shared = Arc::clone(&worker.shared);
        let mut done = 0;
        for mail in shared.inboxes[worker.index].take() {
            done += 1;
            self.open(mail, worker);
        }
        done += self.look();
        for index in 0..self.at_gates.len() {
            self.at_gate(self.at_gates[index] as usize, worker);
        }
        self.at_gates.clear();
        for name in mem::take(&mut self.broken) {
            self.end(name, worker);
        }
        done += self.shake_more_hands(worker);
        let batches = if self.line.len() <= FEW_READY { BATCHES_AT_ONCE } else { 1 };
        let mut left = self.line.len();
        self.pieces = 0;
        // What gates and wickets took is not taken from the line: whoever floods those would have one connection served a turn.
        let begun = Instant::now();
        while left > 0
            && let Some(name) = self.line.pop()
        {
            (done, left) = (done + 1, left - 1);
            self.serve(name, batches, worker);
            // Of long commands a slice is a turn's worth, however many connections have them: others may have come meanwhile.
            if begun.elapsed().as_nanos() as u64 > TURN_NS || self.pieces >= PIECE_WORK {
                break;
            }
        }
        self.look_at_times(worker);
        worker.counters.connections.set(self.places.live() as u64);
        done
    }

    /// Looks who has something to say, and puts them in the line. Tells how many have.
    fn look(&mut self) -> usize {
        let mut found = 0;
        for _ in 0..LOOKS {
            let ready = self.selector.look();
            let all = ready.len() < SELECTED;
            found += ready.len();
            for one in ready {
                if one.token & GATES != 0 {
                    let gate = one.token & !GATES;
                    if !self.at_gates.contains(&gate) {
                        self.at_gates.push(gate);
                    }
                    continue;
                }
                let name = name(one.token);
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
        for (index, wicket) in self.wickets.iter().enumerate() {
            let gate = (self.gates.len() + index) as u64;
            if wicket.waits() && !self.at_gates.contains(&gate) {
                self.at_gates.push(gate);
                found += 1;
            }
        }
        found
    }

    /// Takes what another worker has sent.
    pub(super) fn open(&mut self, mail: Mail, worker: &mut Worker) {
        match mail {
            Mail::Connection(connection) => {
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
                            connection.conversation.placed(place, || stream.addresses());
                            if connection.conversation.is_killed() {
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
                        note(&worker.counters, ConnectionReason::NoFiles);
                    }
                }
            }
            // Another may have that name by now.
            Mail::End(name) => {
                if self.places.get(name).is_some_and(|connection| connection.conversation.is_killed()) {
                    self.end(name, worker);
                }
            }
            Mail::Shed(name) => self.shed(name, worker),
            Mail::Answer { name, status, number, value } => {
                self.answered(name, &InvocationAnswer { status, number, value: &value }, worker.now_us);
            }
        }
    }

    /// The invocation has ended that a connection waits for: it goes on with the next turn.
    fn answered(&mut self, name: Name, ended: &InvocationAnswer<'_>, now_us: u64) {
        let mut answers = mem::take(&mut self.answers);
        if let Some(connection) = self.places.get(name)
            && connection.state == State::Invokes
        {
            let (unsent, buffered) = (connection.unsent(), connection.buffered());
            connection.state = State::Talks;
            connection.conversation.answered(ended, &mut answers);
            connection.append(&mut answers, now_us);
            self.unsent += usize::from(unsent == 0 && connection.unsent() > 0);
            let (tenant, now) = (connection.tenant, connection.buffered());
            self.places.buffered(tenant, buffered, now);
            self.queue(name);
        }
        self.answers = answers;
    }

    /// Something has come to a gate, or to a wicket: those are counted behind them.
    fn at_gate(&mut self, number: usize, worker: &mut Worker) {
        let Some(number) = number.checked_sub(self.gates.len()) else { return self.accept(number, worker) };
        let Some(wicket) = self.wickets.get_mut(number) else { return };
        let was_full = wicket.is_full();
        wicket.serve(worker);
        if wicket.is_full() != was_full {
            let interest = Interest { writable: !was_full, ..Interest::READ };
            let token = GATES | (self.gates.len() + number) as u64;
            let _changed = self.selector.change(&wicket.driver, token, interest);
        }
    }

    /// A connection has something to say, or room for answers, or goes on with what it has.
    fn serve(&mut self, name: Name, batches: usize, worker: &mut Worker) {
        let Some(connection) = self.places.get(name) else { return };
        connection.queued = false;
        if connection.wire.is_handshaking() {
            return self.shake_hands(name, worker);
        }
        let before = (connection.unsent(), connection.buffered());
        if before.0 > 0 && !connection.send_waiting(worker.now_us) {
            // What it holds may have changed with what it tried to send.
            return self.settle(name, before, Fate::Ends, worker);
        }
        let mut received = mem::take(&mut self.received);
        let mut fate = Fate::Stays;
        if connection.goes_on() {
            if connection.used < connection.input.len() && connection.input.len() - connection.used >= connection.needed
            {
                // It had to wait, for others or until answers had left.
                fate = self.converse(name, None, batches, worker);
            } else {
                let moved = connection.wire.receive(&mut received);
                let work = connection.wire.take_work();
                worker.bill_connection(connection.conversation.identity(), work);
                if connection.wire.has_rest() {
                    self.pieces = self.pieces.saturating_add(work);
                }
                fate = match moved {
                    Moved::Bytes(bytes) => {
                        // Whoever was told that a token or a tenant is no more must not find it here.
                        worker.take_directory();
                        self.converse(name, Some(&received[..bytes]), batches, worker)
                    }
                    Moved::Later => Fate::Stays,
                    Moved::Ended if connection.unsent() > 0 => {
                        connection.state = State::Ends;
                        Fate::Stays
                    }
                    Moved::Ended => Fate::Ends,
                };
            }
        }
        self.received = received;
        self.settle(name, before, fate, worker);
    }

    /// Runs what a connection asks for, from what was received just now or, if it had something before, behind that; sends
    /// the answers.
    pub(super) fn converse(
        &mut self,
        name: Name,
        received: Option<&[u8]>,
        batches: usize,
        worker: &mut Worker,
    ) -> Fate {
        let Some(connection) = self.places.get(name) else { return Fate::Stays };
        if worker.stops {
            return if connection.turn_away(received.unwrap_or_default(), worker.now_us) {
                Fate::Stays
            } else {
                Fate::Ends
            };
        }
        let mut answers = mem::take(&mut self.answers);
        let bytes = received.map_or(0, <[u8]>::len);
        worker.counters.connection_bytes_in.add(bytes as u64);
        // What is received is copied, whether or not it can be run yet.
        worker.bill_connection(connection.conversation.identity(), (bytes / BYTES_PER_REQUEST) as u32);
        let whole = connection.input.is_empty();
        let mut worked = 0;
        let fate = match received {
            Some(received) if whole => {
                let (used, fate) = run(connection, name, received, (batches, &mut worked), worker, &mut answers);
                if used < received.len() {
                    connection.keep(&received[used..]);
                }
                fate
            }
            _ => {
                connection.keep(received.unwrap_or_default());
                if connection.input.len() < connection.needed {
                    Fate::Stays
                } else {
                    let input = mem::take(&mut connection.input);
                    let from = connection.used;
                    let (used, fate) =
                        run(connection, name, &input[from..], (batches, &mut worked), worker, &mut answers);
                    connection.input = input;
                    connection.use_up(used);
                    fate
                }
            }
        };
        if matches!(fate, Fate::GoesOn) {
            self.pieces = self.pieces.saturating_add(worked);
        }
        if u64::from(worked) > worker.counters.connection_longest_piece.get() {
            worker.counters.connection_longest_piece.set(worked.into());
        }
        worker.counters.connection_bytes_out.add(answers.len() as u64);
        let work = connection.wire.work(received.map_or(0, <[u8]>::len) + answers.len());
        worker.bill_connection(connection.conversation.identity(), (work / BYTES_PER_REQUEST) as u32);
        let sent = connection.send(&mut answers, worker.now_us);
        debug_assert!(answers.is_empty(), "what one connection is told stays with it");
        answers.clear();
        if answers.capacity() > KEPT_BUFFER_BYTES {
            answers = Vec::new();
        }
        self.answers = answers;
        if sent { fate } else { Fate::Ends }
    }

    /// Counts what has changed about a connection, and lets it have its fate.
    pub(super) fn settle(&mut self, name: Name, before: (usize, usize), fate: Fate, worker: &mut Worker) {
        let Some(connection) = self.places.get(name) else { return };
        let (unsent, buffered) = (connection.unsent(), connection.buffered());
        let waiting = connection.input.len() - connection.used;
        let tenant = connection.conversation.identity().map_or(0, Identity::tenant);
        // Not only what grew while it was served: invocations' answers come between.
        let grew = buffered > mem::replace(&mut connection.judged, buffered);
        let (counted, seat, ends) = (connection.tenant, connection.seat, connection.state == State::Ends);
        // The selector does not tell again that the client has said its last, and not of what is to be decrypted.
        let has_more = (connection.wire.has_ended() || connection.wire.has_rest()) && connection.goes_on();
        self.unsent = self.unsent + usize::from(unsent > 0) - usize::from(before.0 > 0);
        self.places.buffered(counted, before.1, buffered);
        if tenant != counted && tenant != 0 {
            if !worker.shared.room.pass(counted, seat, tenant) {
                return self.refuse(name, ConnectionReason::Full, worker);
            }
            self.places.belongs(name, tenant);
            self.tell(counted, worker);
            self.tell(tenant, worker);
        }
        match fate {
            Fate::Ends => return self.end(name, worker),
            Fate::Moves(home) => return self.hand_over(name, home, worker),
            Fate::Stays | Fate::GoesOn => {}
        }
        if ends && unsent == 0 {
            return self.end(name, worker);
        }
        if tenant == 0 && waiting > STRANGER_INPUT_BYTES {
            return self.refuse(name, ConnectionReason::Stranger, worker);
        }
        if grew && !self.places.may_buffer(if tenant == 0 { counted } else { tenant }) {
            return self.refuse(name, ConnectionReason::Memory, worker);
        }
        if matches!(fate, Fate::GoesOn) || has_more {
            self.queue(name);
        }
        self.watch(name);
    }

    /// Has the selector look for what the connection waits for.
    pub(super) fn watch(&mut self, name: Name) {
        let Some(connection) = self.places.get(name) else { return };
        let wanted = connection.wanted();
        if wanted != connection.interest {
            connection.interest = wanted;
            // It was added when it came; if the kernel has lost it, its time will be up.
            let _changed = self.selector.change(&connection.wire, token(name), wanted);
        }
    }

    /// Gives a connection to its home worker.
    fn hand_over(&mut self, name: Name, home: usize, worker: &mut Worker) {
        if let Some(mut connection) = self.release(name) {
            // The worker there has its own bytes to give.
            (connection.queued, connection.needed, connection.judged) = (false, 1, 0);
            connection.held_back = false;
            self.tell(connection.tenant, worker);
            worker.counters.connections_handed_over.add(1);
            worker.shared.send_mail(home, Mail::Connection(connection));
        }
    }

    /// Shows how many connections a tenant has here.
    fn tell(&self, tenant: u32, worker: &Worker) {
        if let Some(view) = worker.snapshot.tenant(tenant) {
            view.tenant.usage.worker(worker.index).connections.set(self.places.held(tenant) as u64);
        }
    }

    fn end(&mut self, name: Name, worker: &mut Worker) {
        if let Some(mut connection) = self.release(name) {
            if connection.wire.is_refused() {
                note(&worker.counters, ConnectionReason::Protocol);
            }
            connection.wire.close();
            worker.shared.room.leave(connection.tenant, connection.seat);
            self.tell(connection.tenant, worker);
        }
    }

    pub(super) fn refuse(&mut self, name: Name, reason: ConnectionReason, worker: &mut Worker) {
        note(&worker.counters, reason);
        self.end(name, worker);
    }

    /// Closes connections whose time is up, and accepts again after a pause.
    fn look_at_times(&mut self, worker: &mut Worker) {
        let now_us = worker.now_us;
        if self.paused_until_us.is_some_and(|until_us| now_us >= until_us) {
            self.paused_until_us = None;
            for (index, gate) in self.gates.iter().enumerate() {
                let _was_added_before = self.selector.add(&gate.listener, GATES | index as u64, Interest::READ);
            }
        }
        if now_us.saturating_sub(self.looked_us) < LOOK_US {
            return;
        }
        self.looked_us = now_us;
        if self.unsent == 0 && self.places.held(0) == 0 {
            return;
        }
        let waits = |connection: &Connection| now_us.saturating_sub(connection.since_us);
        let slow = |connection: &Connection| connection.unsent() > 0 && waits(connection) > SLOW_READER_US;
        let strange = |connection: &Connection| connection.tenant == 0 && waits(connection) > STRANGER_US;
        let shakes = |connection: &Connection| connection.wire.is_handshaking() && waits(connection) > TLS_HANDSHAKE_US;
        for name in self.places.which(shakes) {
            self.refuse(name, ConnectionReason::Handshake, worker);
        }
        for name in self.places.which(slow) {
            self.refuse(name, ConnectionReason::SlowReader, worker);
        }
        for name in self.places.which(strange) {
            self.refuse(name, ConnectionReason::Stranger, worker);
        }
    }
}

/// Runs up to so many batches of a connection's input, or a piece's work of them. Tells how much of it was used up, and what that took.
fn run(
    connection: &mut Connection,
    name: Name,
    input: &[u8],
    (batches, worked): (usize, &mut u32),
    worker: &mut Worker,
    answers: &mut Vec<u8>,
) -> (usize, Fate) {
    let (mut used, mut left) = (0, batches);
    let budget = worker.piece_work(connection.tenant);
    connection.needed = 1;
    loop {
        let context = worker.context(budget.saturating_sub(*worked).max(1));
        let (bytes, next) = connection.conversation.run(&context, &input[used..], answers);
        let requests = context.worked();
        *worked = worked.saturating_add(requests);
        worker.bill_connection(connection.conversation.identity(), requests);
        worker.counters.connection_batches.add(1);
        for (home, word) in connection.conversation.killed() {
            worker.shared.send_mail(home as usize, Mail::End(Name::from_word(word)));
        }
        used += bytes;
        let rest = input.len() - used;
        match next {
            Next::More(needed) => {
                connection.needed = needed.max(1);
                return (used, Fate::Stays);
            }
            Next::Again => {}
            Next::Invoke { extension, args } => {
                worker.begin_for(connection, name, &extension, &args, answers);
                if connection.state != State::Talks {
                    return (used, Fate::Stays);
                }
            }
            Next::HandOver(tenant) => {
                let home = worker.snapshot.tenant(tenant).map(|view| view.tenant.home_worker as usize);
                let home = home.map_or(worker.index, |home| home % worker.shared.ports.len());
                if home != worker.index {
                    return (used, Fate::Moves(home));
                }
            }
            Next::Close => {
                connection.state = State::Ends;
                return (used + rest, Fate::Stays);
            }
        }
        if rest == 0 {
            return (used, Fate::Stays);
        }
        // Whatever it was: calls that are refused take their time as well.
        left = left.saturating_sub(1);
        if left == 0 || *worked >= budget || answers.len() > KEPT_BUFFER_BYTES / 4 {
            return (used, Fate::GoesOn);
        }
    }
}

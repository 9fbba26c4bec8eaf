//! Runs the requests of a connection, and decides whether the connection stays.

use std::mem;
use std::sync::Arc;

use sandstorm_dialects::limits::protocols::BYTES_PER_REQUEST;
use sandstorm_dialects::{ConnectionIdentity, InvocationResult, NextAction, WantedDatabase};
use sandstorm_log::PositionState;
use sandstorm_metrics::ConnectionReason;
use sandstorm_net::call_key::call_key;
use sandstorm_net::rpc::{OpKind, Operation, RpcStatus};
use sandstorm_store::backed::waits::later_of;
use sandstorm_store::spill::{ColdMiss, ColdTicket};

use super::answered::{home_of, note_answered};
use super::connection::{ClientConnection, ConnectionPhase};
use super::connection_id::ConnectionId;
use super::forwarded::begin_forward;
use super::inbox::InboxMessage;
use super::worker_connections::{FetchingConnection, WorkerConnections};
use crate::limits::connections::{RETAINED_BUFFER_BYTES, UNAUTHENTICATED_INPUT_BYTES};
use crate::workers::context::WorkerContext;
use crate::workers::database_queue::DatabaseRequest;
use crate::workers::databases;
use crate::workers::executor::RequestExecutor;
use crate::workers::tasks::{InvocationCaller, ReplyTarget};

/// The decision about a connection after it was served.
pub(super) enum ServeOutcome {
    /// It stays.
    Keep,
    /// It continues by itself in the next turn.
    Continue,
    /// It is closed.
    Close,
    /// It moves to the worker of this number.
    HandOver(usize),
}

impl WorkerConnections {
    /// Runs the requests in a connection's kept input and in the bytes received just now, and sends the answers.
    pub(super) fn run_input(
        &mut self,
        id: ConnectionId,
        received: Option<&[u8]>,
        batches: usize,
        executor: &mut RequestExecutor,
    ) -> ServeOutcome {
        let Some(connection) = self.slots.get(id) else { return ServeOutcome::Keep };
        if executor.context.is_draining {
            return if connection.turn_away(received.unwrap_or_default(), executor.context.clock.now_us) {
                ServeOutcome::Keep
            } else {
                ServeOutcome::Close
            };
        }
        let mut answers = mem::take(&mut self.answers);
        let bytes = received.map_or(0, <[u8]>::len);
        executor.context.counters.connection_bytes_in.add(bytes as u64);
        // Received bytes are copied, whether or not they can be run yet.
        executor.charge_connection(connection.session.identity(), (bytes / BYTES_PER_REQUEST) as u32);
        let whole = connection.input.is_empty();
        let mut worked = 0;
        let outcome = match received {
            Some(received) if whole => {
                let (used, outcome) =
                    run_batches(connection, id, received, (batches, &mut worked), executor, &mut answers);
                if used < received.len() {
                    connection.keep_unread(&received[used..]);
                }
                outcome
            }
            _ => {
                connection.keep_unread(received.unwrap_or_default());
                if connection.input.len() < connection.needed {
                    ServeOutcome::Keep
                } else {
                    let input = mem::take(&mut connection.input);
                    let from = connection.used;
                    let (used, outcome) =
                        run_batches(connection, id, &input[from..], (batches, &mut worked), executor, &mut answers);
                    connection.input = input;
                    connection.consume(used);
                    outcome
                }
            }
        };
        connection.shown = later_of(connection.shown, executor.context.participant.shown().take());
        let waits = !answers.is_empty() && executor.context.position_state(connection.shown) != PositionState::OnDisk;
        note_answers(connection, &outcome, (!answers.is_empty(), waits), &mut executor.context);
        if matches!(outcome, ServeOutcome::Continue) {
            self.pieces = self.pieces.saturating_add(worked);
        }
        if u64::from(worked) > executor.context.counters.connection_longest_piece.get() {
            executor.context.counters.connection_longest_piece.set(worked.into());
        }
        executor.context.counters.connection_bytes_out.add(answers.len() as u64);
        let work = connection.transport.work(received.map_or(0, <[u8]>::len) + answers.len());
        executor.charge_connection(connection.session.identity(), (work / BYTES_PER_REQUEST) as u32);
        let sent = if waits {
            connection.hold(&mut answers, executor.context.clock.now_ns);
            self.note_pending(id, &executor.context);
            true
        } else {
            connection.send(&mut answers, executor.context.clock.now_us)
        };
        debug_assert!(answers.is_empty(), "what one connection is told stays with it");
        answers.clear();
        if answers.capacity() > RETAINED_BUFFER_BYTES {
            answers = Vec::new();
        }
        self.answers = answers;
        if sent { outcome } else { ServeOutcome::Close }
    }

    /// Counts the changes of a connection that was served, and applies the outcome.
    pub(super) fn settle(
        &mut self,
        id: ConnectionId,
        before: (usize, usize),
        outcome: ServeOutcome,
        context: &WorkerContext,
    ) {
        let Some(connection) = self.slots.get(id) else { return };
        if connection.state == ConnectionPhase::Fetching && context.participant.shown().has_cold() {
            let reader = connection.session.identity().map_or(0, ConnectionIdentity::tenant);
            self.fetching.push(FetchingConnection {
                ticket: fetch_cold(context, reader),
                id,
                since_ns: context.clock.read_ns(),
            });
        }
        let (unsent, buffered) = (connection.unsent(), connection.buffered());
        let waiting = connection.input.len() - connection.used;
        let tenant = connection.session.identity().map_or(0, ConnectionIdentity::tenant);
        // Its buffers may have grown before, too: by results of invocations.
        let grew = buffered > mem::replace(&mut connection.checked_bytes, buffered);
        let (counted, permit, is_closing) =
            (connection.tenant, connection.permit, connection.state == ConnectionPhase::Closing);
        let has_pending = connection.pending.is_some();
        // The selector does not report the end of the input again, nor bytes that wait to be decrypted.
        let has_more = (connection.transport.has_ended() || connection.transport.has_rest()) && connection.goes_on();
        self.unsent = self.unsent + usize::from(unsent > 0) - usize::from(before.0 > 0);
        self.slots.buffered(counted, before.1, buffered);
        if tenant != counted && tenant != 0 {
            if !context.shared.connection_budget.pass(counted, permit, tenant) {
                return self.refuse(id, ConnectionReason::Full, context);
            }
            self.slots.assign_tenant(id, tenant);
            self.publish_count(counted, context);
            self.publish_count(tenant, context);
        }
        match outcome {
            ServeOutcome::Close => return self.end(id, context),
            ServeOutcome::HandOver(home) => {
                // Its budget of buffers is its tenant's now, and the worker there has one of its own. A connection that
                // follows its home later keeps what was admitted here.
                self.slots.get(id).into_iter().for_each(|connection| connection.checked_bytes = 0);
                return self.hand_over(id, home, context);
            }
            ServeOutcome::Keep | ServeOutcome::Continue => {}
        }
        if is_closing && unsent == 0 && !has_pending {
            return self.end(id, context);
        }
        if tenant == 0 && waiting > UNAUTHENTICATED_INPUT_BYTES {
            return self.refuse(id, ConnectionReason::Unauthenticated, context);
        }
        if grew && !self.slots.admits_buffers(if tenant == 0 { counted } else { tenant }) {
            return self.refuse(id, ConnectionReason::Memory, context);
        }
        if matches!(outcome, ServeOutcome::Continue) || has_more {
            self.queue(id);
        }
        self.watch(id);
    }
}

/// Has the cold records read that the next command of a connection of the tenant `reader` needs.
#[cold]
fn fetch_cold(context: &WorkerContext, reader: u32) -> Arc<ColdTicket> {
    let (shared, worker) = (Arc::clone(&context.shared), context.index);
    ColdMiss::fetch(context.participant.shown().take_cold(), reader, move || shared.note_arrival(worker))
}

/// When the commands came which came together and are answered now; `None`: they go on. The time of an invocation is
/// counted for its call.
fn answered_since(
    connection: &mut ClientConnection,
    outcome: &ServeOutcome,
    has_answers: bool,
    context: &WorkerContext,
) -> Option<u64> {
    if matches!(outcome, ServeOutcome::Continue) || connection.state == ConnectionPhase::Fetching {
        return None;
    }
    let ready_ns = connection.ready_ns.take();
    let is_counted = has_answers && connection.state != ConnectionPhase::Invoking;
    is_counted.then(|| ready_ns.unwrap_or(context.clock.now_ns))
}

/// Notes the answers of a batch that has any, which are ready, or wait for the log.
fn note_answers(
    connection: &mut ClientConnection,
    outcome: &ServeOutcome,
    (has_answers, waits): (bool, bool),
    context: &mut WorkerContext,
) {
    let received_ns = answered_since(connection, outcome, has_answers, context);
    let goes_on = matches!(outcome, ServeOutcome::Continue) || connection.state == ConnectionPhase::Fetching;
    if waits {
        connection.pending.received_ns = received_ns;
        // What they are about is noted when they leave.
        if received_ns.is_some() {
            return;
        }
    } else if let Some(received_ns) = received_ns {
        note_answered(connection, received_ns, context);
        context.note_ready();
    }
    if !goes_on {
        connection.session.begin_answers();
        connection.waits = None;
    }
}

/// Runs up to `batches` batches of a connection's input, or a piece's work of them. Returns the number of used bytes,
/// and the outcome; adds to `worked`.
fn run_batches(
    connection: &mut ClientConnection,
    id: ConnectionId,
    input: &[u8],
    (batches, worked): (usize, &mut u32),
    executor: &mut RequestExecutor,
    answers: &mut Vec<u8>,
) -> (usize, ServeOutcome) {
    let (mut used, mut left) = (0, batches);
    let budget = executor.piece_budget(connection.tenant);
    connection.needed = 1;
    loop {
        let context = executor.command_context(budget.saturating_sub(*worked).max(1));
        let (bytes, next) = connection.session.run(&context, &input[used..], answers);
        let requests = context.work_done();
        *worked = worked.saturating_add(requests);
        executor.charge_connection(connection.session.identity(), requests);
        executor.count_connection_work(connection.session.identity(), requests);
        executor.context.counters.connection_batches.add(1);
        for (home, word) in connection.session.killed() {
            executor.context.shared.send_to_inbox(home as usize, InboxMessage::Close(ConnectionId::from_u64(word)));
        }
        used += bytes;
        let rest = input.len() - used;
        match next {
            NextAction::NeedMore(needed) => {
                connection.needed = needed.max(1);
                return (used, ServeOutcome::Keep);
            }
            NextAction::Yield => {}
            NextAction::FetchCold => {
                connection.state = ConnectionPhase::Fetching;
                return (used, ServeOutcome::Keep);
            }
            NextAction::Invoke { extension, version, args, key, with_cost } => {
                let key = key.map(|key| call_key(&key));
                begin_invocation(connection, (id, key, with_cost), (&extension, version, &args), executor, answers);
                if connection.state != ConnectionPhase::Serving {
                    return (used, ServeOutcome::Keep);
                }
            }
            NextAction::Forward(batch) => {
                begin_forward(connection, id, *batch, executor, answers);
                if connection.state != ConnectionPhase::Serving {
                    return (used, ServeOutcome::Keep);
                }
            }
            NextAction::MakeDatabase(wanted) => {
                begin_database(connection, id, wanted, executor, answers);
                if connection.state != ConnectionPhase::Serving {
                    return (used, ServeOutcome::Keep);
                }
            }
            NextAction::HandOver(tenant) => {
                let home = home_of(tenant, &executor.context);
                if home != executor.context.index {
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
        // Calls that are refused take their time as well.
        left = left.saturating_sub(1);
        if left == 0 || *worked >= budget || answers.len() > RETAINED_BUFFER_BYTES / 4 {
            return (used, ServeOutcome::Continue);
        }
    }
}

/// Begins an invocation for a connection. If it cannot begin, the session writes the answer.
fn begin_invocation(
    connection: &mut ClientConnection,
    (id, key, with_cost): (ConnectionId, Option<u64>, bool),
    (extension, version, args): (&[u8], u64, &[u8]),
    executor: &mut RequestExecutor,
    answers: &mut Vec<u8>,
) {
    let RequestExecutor { context, invocations } = executor;
    let view = connection.session.identity().and_then(|identity| identity.view(&context.snapshot));
    let Some(view) = view else {
        connection.state = ConnectionPhase::Closing;
        return;
    };
    let target = ReplyTarget::Stream { worker: context.index as u32, connection: id, with_cost };
    let operation = Operation { key: extension, number: version, value: args, ..Operation::new(OpKind::Invoke) };
    let peer = key.unwrap_or(id.word()) as u32;
    let caller = InvocationCaller { target, peer, key, received_ns: context.clock.now_ns };
    match invocations.begin(context, view, &operation, &caller) {
        Ok(()) => connection.state = ConnectionPhase::Invoking,
        Err((status, text)) => {
            let result = InvocationResult { status, number: 0, value: text.as_bytes(), cost: None };
            connection.session.answered(&result, answers);
        }
    }
}

/// Has a table made for a connection. If it cannot be made, the session writes the answer.
fn begin_database(
    connection: &mut ClientConnection,
    id: ConnectionId,
    wanted: WantedDatabase,
    executor: &RequestExecutor,
    answers: &mut Vec<u8>,
) {
    let Some(identity) = connection.session.identity() else {
        connection.state = ConnectionPhase::Closing;
        return;
    };
    let context = &executor.context;
    let request = DatabaseRequest { worker: context.index, connection: id, tenant: identity.tenant(), wanted };
    match databases::request(&context.shared, request) {
        Ok(()) => connection.state = ConnectionPhase::Invoking,
        Err(error) => {
            let text = format!("the server has no thread to make a table: {error}");
            let result =
                InvocationResult { status: RpcStatus::Overloaded, number: 0, value: text.as_bytes(), cost: None };
            connection.session.answered(&result, answers);
        }
    }
}

//! Serves the packets of a port, top to bottom. It receives a burst and admits its messages (parses, finds the tenant,
//! authenticates, excludes repeats). It plans their operations (finds the table, hashes, prefetches), runs
//! the plain ones, begins the invocations, and sends the answers.
//!
//! Work is run in pieces ([`super::piece_budget`]): messages that have not finished then wait.
//!
//! A turn touches only state of the worker, or of a port. The port's lock is held only while no tenant code runs.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

use arrayvec::ArrayVec;
use sandstorm_catalog::DirectorySnapshot;
use sandstorm_net::driver::DatagramDriver;
use sandstorm_net::rpc::RpcStatus;

use super::admission::IncomingRequest;
use super::cold_messages;
use super::connections::worker_connections::WorkerConnections;
use super::context::WorkerContext;
use super::early_drop::EarlyDropController;
use super::executor::RequestExecutor;
use super::ingress::IngressScheduler;
use super::ingress::classifier::DatagramClassifier;
use super::ingress::flows::BatchCosts;
use super::message_pieces::refuse_postponed;
use super::message_server::MessageServer;
use super::piece_budget::{PieceBudget, copy_cost_gets};
use super::port::{MalformedDatagram, PortContext, WorkerPortState};
use super::postponed_message::PostponedMessage;
use crate::limits::{BEGUN_INVOCATIONS_PER_TURN, BURST, COUNTER_PUBLISH_TURNS, DEFER_REPLIES_UP_TO_LIVE, SERVE_NS};

/// The answer to a postponed message that exceeds the limit of waiting bytes.
const NO_ROOM_TEXT: &str =
    "too many bytes of requests wait for their turn; this was not run: ask again, with less under way at a time";

/// Serves packets: those of the worker's own port, and those of a busy neighbour.
pub(super) struct PacketServer {
    ingress: IngressScheduler,
    early_drop: EarlyDropController,
    /// Turns with packets since the port's counters were published.
    uncounted_turns: usize,
    /// Whether answers of this turn wait for those of short invocations.
    is_transmit_deferred: bool,
    messages: MessageServer,
}

impl PacketServer {
    pub(super) fn new() -> PacketServer {
        PacketServer {
            ingress: IngressScheduler::new(),
            early_drop: EarlyDropController::new(),
            uncounted_turns: 0,
            is_transmit_deferred: false,
            messages: MessageServer::new(),
        }
    }

    /// Serves the datagrams of the worker's own port. Returns their number. It stops at its time limit, or when many
    /// invocations have begun; the rest waits in the ingress queues while invocations are polled.
    pub(super) fn serve_own_port(
        &mut self,
        executor: &mut RequestExecutor,
        connections: Option<&WorkerConnections>,
    ) -> usize {
        let shared = Arc::clone(&executor.context.shared);
        let mut state = shared.ports[executor.context.index].open();
        let released = state.context.release_pending(&mut executor.context);
        let served = self.serve(executor, &mut state) + released;
        let invocations = &executor.invocations;
        let few = (1..=DEFER_REPLIES_UP_TO_LIVE).contains(&invocations.live());
        self.is_transmit_deferred = few && invocations.has_short_polls() && connections.is_none();
        // What leaves later, with the replies of calls, is ready as well.
        executor.context.note_ready();
        if !self.is_transmit_deferred {
            state.transmit();
        }
        self.update_early_drop(&executor.context, &mut state);
        self.uncounted_turns += usize::from(served > 0);
        // A busy worker does not publish each turn: that takes as long as some requests. One without work has published
        // all.
        if served == 0 || self.uncounted_turns >= COUNTER_PUBLISH_TURNS {
            self.publish_port_counters(&executor.context, connections, &state);
        }
        served
    }

    /// Serves packets of a neighbour that is running invocations. Returns the number of datagrams.
    pub(super) fn serve_busy_neighbour(&mut self, executor: &mut RequestExecutor) -> usize {
        let shared = Arc::clone(&executor.context.shared);
        let workers = shared.ports.len();
        for step in 1..workers {
            let victim = (executor.context.index + step) % workers;
            // A neighbour that runs no invocations will serve its packets itself.
            if !shared.in_guest_code[victim].load(Relaxed) {
                continue;
            }
            let Some(mut state) = shared.ports[victim].try_open() else { continue };
            // A late thief would take packets, and their interrupt, from a neighbour that is about to sleep until that
            // interrupt.
            if !shared.in_guest_code[victim].load(SeqCst) {
                continue;
            }
            let released = state.context.release_pending(&mut executor.context);
            let served = self.serve(executor, &mut state) + released;
            executor.context.note_ready();
            state.transmit();
            if served > 0 {
                executor.context.counters.packet_steals.add(served as u64);
                return served;
            }
        }
        0
    }

    /// Receives the datagrams of a port and answers those that can be answered at once, by turns between tenants.
    /// Returns the number of datagrams.
    fn serve(&mut self, executor: &mut RequestExecutor, state: &mut WorkerPortState) -> usize {
        let (now_us, own) = (executor.context.clock.now_us, state.context.index == executor.context.index);
        let snapshot = Arc::clone(&executor.context.snapshot);
        let PortContext { verified_peers, rx_budget, .. } = &mut state.context;
        let classifier = DatagramClassifier {
            snapshot: &snapshot,
            verified_peers,
            now_us,
            rx_budget: rx_budget.as_deref(),
            last: None,
        };
        let now_ns = executor.context.clock.now_ns;
        self.ingress.begin_turn(now_ns, executor.context.clock.arrivals);
        self.ingress.receive(&mut state.driver, classifier, own);
        // After the packets: a client that was told of a new tenant or table may use it at once.
        executor.refresh_snapshot();
        let current = &executor.context.snapshot;
        let snapshot = if Arc::ptr_eq(&snapshot, current) { snapshot } else { Arc::clone(current) };
        let PacketServer { ingress, messages, .. } = self;
        if own && !state.context.cold.is_empty() {
            let ready = state.context.cold.take_ready();
            postpone(executor, ready, false, ingress, &mut state.context);
        }
        if own && !state.context.left_behind.is_empty() {
            let left_behind = mem::take(&mut state.context.left_behind);
            postpone(executor, left_behind, false, ingress, &mut state.context);
        }
        let (mut begun, mut spent_ns, mut served) = (None, 0, 0);
        let mut piece = PieceBudget::new(true);
        while ingress.next_batch() {
            // Most turns find nothing, or datagrams that are served at once and charged to no flow: they are not timed.
            if ingress.is_timed() {
                begun.get_or_insert_with(Instant::now);
            }
            executor.context.answered.begin_batch(now_ns + spent_ns);
            let mut costs = BatchCosts::default();
            // All datagrams that are served of a neighbour's port are one piece: the worker's own packets wait.
            if own {
                piece = PieceBudget::new(executor.context.recent_tenants.is_shared(now_us));
            }
            serve_batch(executor, &snapshot, (ingress, messages), (&mut piece, &mut costs), &mut state.context);
            let since_ns = begun.map_or(0, |begun: Instant| begun.elapsed().as_nanos() as u64);
            served += ingress.finish_batch(since_ns - spent_ns, &costs);
            spent_ns = since_ns;
            if own && (spent_ns > SERVE_NS || executor.invocations.live() >= BEGUN_INVOCATIONS_PER_TURN) {
                break;
            }
        }
        state.context.run_timers(now_us);
        served
    }

    /// Whether answers of this turn have not left yet.
    pub(super) fn has_deferred(&self) -> bool {
        self.is_transmit_deferred
    }

    /// Sends the answers that waited for those of invocations, and have not left with them.
    pub(super) fn flush_deferred(&mut self, context: &WorkerContext) {
        if mem::take(&mut self.is_transmit_deferred) {
            context.shared.ports[context.index].open().transmit();
        }
    }

    /// Publishes the counts of the worker's own port.
    pub(super) fn publish_counters(&mut self, context: &WorkerContext, connections: Option<&WorkerConnections>) {
        let state = context.shared.ports[context.index].open();
        self.publish_port_counters(context, connections, &state);
    }

    /// Decides at intervals which flows are dropped early.
    fn update_early_drop(&mut self, context: &WorkerContext, state: &mut WorkerPortState) {
        if !self.early_drop.is_due(context.clock.now_us) {
            return;
        }
        let (snapshot, worker) = (&context.snapshot, context.index);
        self.early_drop.end_window(
            context.clock.now_us,
            &mut self.ingress,
            &state.context.verified_peers,
            &mut state.driver,
            |flow, window, admit_fraction| {
                if let Some(view) = flow.and_then(|tenant| snapshot.tenant(tenant)) {
                    let counters = view.tenant.usage.worker(worker);
                    counters.packets_shed.add(window.shed + window.dropped_early);
                    counters.dropped_early_per_mille.set((1000.0 - 1000.0 * admit_fraction) as u64);
                }
            },
        );
        let counters = &context.counters;
        counters.packets_shed.set(self.ingress.shed());
        counters.packets_dropped_early.set(self.early_drop.pressure.thrown_away);
        counters.throttled.set(self.early_drop.throttled() as u64);
        state.driver.details(&mut |name, count| counters.set_detail(name, count));
        state.context.throttle_check_us = self.early_drop.timer_us();
    }

    fn publish_port_counters(
        &mut self,
        context: &WorkerContext,
        connections: Option<&WorkerConnections>,
        state: &WorkerPortState,
    ) {
        let counters = &context.counters;
        counters.bursts.add(std::mem::take(&mut self.uncounted_turns) as u64);
        let driver = state.driver.counters();
        counters.packets_in.set(driver.received);
        counters.packets_out.set(driver.sent);
        counters.bytes_in.set(driver.received_bytes);
        counters.bytes_out.set(driver.sent_bytes);
        counters.packets_unsent.set(state.context.outbox.dropped());
        counters.packets_unsegmented.set(driver.unsegmented);
        counters.refusals_unsent.set(state.context.rejections.unsent());
        let endpoint = state.context.endpoint.counters();
        let at_udp_ports = connections.map_or(0, WorkerConnections::datagrams_dropped);
        counters.packets_dropped.set(endpoint.malformed.total() + driver.truncated + at_udp_ports);
        counters.retransmissions.set(endpoint.retransmissions);
        counters.sessions.set(state.context.reply_cache.sessions() as u64);
        counters.sealed_sessions.set(state.context.seal.sessions() as u64);
        let seal = state.context.seal.counters();
        counters.handshakes.set(seal.handshakes);
        for (counter, (_, refused)) in counters.sealed_refused.iter().zip(seal.refused_by_reason()) {
            counter.set(refused);
        }
    }
}

/// Serves a batch: datagrams, or messages that continue. Messages beyond the piece wait.
#[inline]
fn serve_batch(
    executor: &mut RequestExecutor,
    snapshot: &DirectorySnapshot,
    (ingress, messages): (&mut IngressScheduler, &mut MessageServer),
    (piece, costs): (&mut PieceBudget, &mut BatchCosts),
    port: &mut PortContext,
) {
    let resumed = ingress.take_resumed();
    let has_waited = !resumed.is_empty();
    let waits = if has_waited {
        messages.resume(executor, snapshot, resumed, (piece, costs), port)
    } else {
        serve_datagrams(executor, snapshot, (ingress, messages), (piece, costs), port)
    };
    let longest = &executor.context.counters.longest_piece;
    if piece.requests() > longest.get() {
        longest.set(piece.requests());
    }
    if !waits.is_empty() {
        postpone(executor, waits, has_waited, ingress, port);
    }
}

/// Opens the datagrams of a batch, and serves the complete messages. Returns those that have not finished.
#[inline]
fn serve_datagrams(
    executor: &mut RequestExecutor,
    snapshot: &DirectorySnapshot,
    (ingress, messages): (&mut IngressScheduler, &mut MessageServer),
    (piece, costs): (&mut PieceBudget, &mut BatchCosts),
    port: &mut PortContext,
) -> Vec<PostponedMessage> {
    let now_us = executor.context.clock.now_us;
    let mut requests: ArrayVec<IncomingRequest<'_>, BURST> = ArrayVec::new();
    ingress.for_each_sealed(|burst, index, slice| {
        costs.add_rejected(slice, port.open_sealed(now_us, burst, index, snapshot));
    });
    for number in 0..ingress.batch_len() {
        let Some((slice, peer, datagram, packet)) = ingress.datagram(number) else { continue };
        match port.receive(now_us, peer, datagram) {
            Ok(Some(request)) => {
                requests.push(IncomingRequest { slice, request, packet, received_ns: ingress.received_ns(number) })
            }
            Ok(None) => costs.add_work(slice, copy_cost_gets(datagram.len())),
            Err(MalformedDatagram) => costs.add_rejected(slice, 1),
        }
    }
    let suspended = messages.serve(executor, snapshot, &requests, (piece, costs), port);
    let mut suspended = suspended.into_iter().peekable();
    let mut waits = Vec::new();
    for (number, incoming) in requests.into_iter().enumerate() {
        match suspended.next_if(|suspended| suspended.number == number) {
            Some(suspended) => waits.push(PostponedMessage { message: incoming.request.message.into_vec(), suspended }),
            None => port.endpoint.recycle(incoming.request.message),
        }
    }
    waits
}

/// Makes messages wait for a further turn of their tenants' flows; those that have waited before continue first. A
/// worker that serves a neighbour's port leaves them there.
fn postpone(
    executor: &mut RequestExecutor,
    messages: Vec<PostponedMessage>,
    has_waited: bool,
    ingress: &mut IngressScheduler,
    port: &mut PortContext,
) {
    let context = &mut executor.context;
    context.counters.messages_postponed.add(messages.len() as u64);
    let (cold, messages): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| message.suspended.cold.is_cold());
    for message in cold {
        if let Err(message) = port.cold.push(message) {
            refuse_postponed(context, *message, (RpcStatus::Overloaded, cold_messages::NO_ROOM_TEXT), port);
        }
    }
    if port.index != context.index {
        port.left_behind.extend(messages);
    } else if has_waited {
        messages.into_iter().rev().for_each(|message| ingress.postpone_again(message));
    } else {
        for message in messages {
            if let Err(message) = ingress.postpone(message) {
                refuse_postponed(context, *message, (RpcStatus::Overloaded, NO_ROOM_TEXT), port);
            }
        }
    }
}

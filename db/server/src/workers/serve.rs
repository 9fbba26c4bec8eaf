//! Serves the packets of a port, top to bottom: receives a burst, admits its messages (parses, finds the tenant,
//! authenticates, keeps out what ran before), plans their operations (finds the table and tablet, hashes, prefetches),
//! runs the plain ones, begins the invocations, and sends the answers.
//!
//! A turn touches only state of the worker, or of a port. The port's lock is held only while no tenant code runs.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

use arrayvec::ArrayVec;
use sandstorm_catalog::{DirectorySnapshot, TableEntry, TenantView};
use sandstorm_dialects::limits::PLAN_OPERATIONS;
use sandstorm_net::driver::DatagramDriver;
use sandstorm_net::rpc::{HelloResponse, OpKind, Operation, RpcStatus, encode_operation};
use sandstorm_net::shared_bytes::SharedBytes;
use sandstorm_store::PREFETCH_BATCH;

use super::admission::{AdmissionContext, AdmissionDecision, AdmittedRequest, IncomingRequest, admit};
use super::connections::worker_connections::WorkerConnections;
use super::context::{WorkerContext, count};
use super::early_drop::EarlyDropController;
use super::executor::RequestExecutor;
use super::ingress::IngressScheduler;
use super::ingress::classifier::DatagramClassifier;
use super::ingress::flows::BatchCosts;
use super::operation_response::{RESPONSE_FULL_TEXT, encode_refusal, has_room};
use super::port::{MalformedDatagram, PortContext, ResponseBuffer, WorkerPortState, shrink_to_pool};
use super::record_operations;
use super::record_operations::operation_context::OperationContext;
use super::response_assembly::{RequestOrigin, start_response};
use super::rx_zero_copy::ZeroCopyPacket;
use super::tasks::ReplyTarget;
use crate::limits::{
    BEGUN_INVOCATIONS_PER_TURN, BURST, COPY_BYTES_PER_GET, COUNTER_PUBLISH_TURNS, DEFER_REPLIES_UP_TO_LIVE, SERVE_NS,
};

// `run_plan` keeps a bit for each.
const _: () = assert!(PLAN_OPERATIONS <= PREFETCH_BATCH);

/// The number of plain gets that take as long as copying so many bytes.
fn copy_cost_gets(bytes: usize) -> u32 {
    (bytes / COPY_BYTES_PER_GET) as u32
}

/// An operation whose cache lines are being fetched.
struct PlannedOperation<'p> {
    message: &'p AdmittedRequest<'p>,
    /// Its index in the message.
    index: usize,
    operation: Operation<'p>,
    /// The table that a plain operation names, if the tenant may access it so.
    table: Option<&'p TableEntry>,
    hash: u64,
}

impl PlannedOperation<'_> {
    /// Whether its answer is the end of a response that is sent once and not remembered.
    fn ends_response(&self) -> bool {
        let origin = &self.message.origin;
        self.index + 1 == usize::from(origin.header.operations) && !origin.remembered
    }
}

/// Serves packets: those of the worker's own port, and of a neighbour that is busy.
pub(super) struct PacketServer {
    ingress: IngressScheduler,
    early_drop: EarlyDropController,
    /// Turns with packets since the port's counters were published.
    uncounted_turns: usize,
    /// Answers of this turn wait for those of short invocations.
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

    /// Serves what has come to the worker's own port. Returns how many datagrams that was. It stops when its time is
    /// up, or many invocations are begun: the rest waits in the ingress queues while invocations are polled.
    pub(super) fn serve_own_port(
        &mut self,
        executor: &mut RequestExecutor,
        connections: Option<&WorkerConnections>,
    ) -> usize {
        let shared = Arc::clone(&executor.context.shared);
        let mut state = shared.ports[executor.context.index].open();
        let served = self.serve(executor, &mut state);
        let invocations = &executor.invocations;
        let few = (1..=DEFER_REPLIES_UP_TO_LIVE).contains(&invocations.live());
        self.is_transmit_deferred = few && invocations.has_short_polls() && connections.is_none();
        if !self.is_transmit_deferred {
            state.transmit();
        }
        self.update_early_drop(&executor.context, &mut state);
        self.uncounted_turns += usize::from(served > 0);
        // A busy worker does not publish each turn: that takes as long as some requests. One that finds nothing to do
        // has published all.
        if served == 0 || self.uncounted_turns >= COUNTER_PUBLISH_TURNS {
            self.publish_port_counters(&executor.context, connections, &state);
        }
        served
    }

    /// Serves packets of a neighbour that is running invocations. Returns how many datagrams that was.
    pub(super) fn serve_busy_neighbour(&mut self, executor: &mut RequestExecutor) -> usize {
        let shared = Arc::clone(&executor.context.shared);
        let workers = shared.ports.len();
        for step in 1..workers {
            let victim = (executor.context.index + step) % workers;
            // A neighbour that turns its loop will come to its packets itself.
            if !shared.in_guest_code[victim].load(Relaxed) {
                continue;
            }
            let Some(mut state) = shared.ports[victim].try_open() else { continue };
            // A thief that comes late would take packets, and their interrupt, from a neighbour that is about to sleep
            // until that.
            if !shared.in_guest_code[victim].load(SeqCst) {
                continue;
            }
            let served = self.serve(executor, &mut state);
            state.transmit();
            if served > 0 {
                executor.context.counters.packet_steals.add(served as u64);
                return served;
            }
        }
        0
    }

    /// Receives what has come to a port and answers what can be answered at once, by turns between tenants. Returns how
    /// many datagrams it went through.
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
        self.ingress.receive(&mut state.driver, classifier, own);
        // After the packets: a client that was told of a new tenant or table may use it at once.
        executor.refresh_snapshot();
        let current = &executor.context.snapshot;
        let snapshot = if Arc::ptr_eq(&snapshot, current) { snapshot } else { Arc::clone(current) };
        let PacketServer { ingress, messages, .. } = self;
        let (mut begun, mut spent_ns, mut served) = (None, 0, 0);
        while ingress.next_batch() {
            // Most looks find nothing, or what is served at once and charged to no flow: they are not timed.
            if ingress.is_timed() {
                begun.get_or_insert_with(Instant::now);
            }
            let mut requests: ArrayVec<IncomingRequest<'_>, BURST> = ArrayVec::new();
            let mut costs = BatchCosts::default();
            ingress.for_each_sealed(|burst, index, slice| {
                costs.add_rejected(slice, state.context.open_sealed(now_us, burst, index, &snapshot));
            });
            for number in 0..ingress.batch_len() {
                let Some((slice, peer, datagram, packet)) = ingress.datagram(number) else { continue };
                match state.context.receive(now_us, peer, datagram) {
                    Ok(Some(request)) => requests.push(IncomingRequest { slice, request, packet }),
                    Ok(None) => costs.add_work(slice, copy_cost_gets(datagram.len())),
                    Err(MalformedDatagram) => costs.add_rejected(slice, 1),
                }
            }
            messages.serve(executor, &snapshot, &requests, &mut costs, &mut state.context);
            requests.into_iter().for_each(|incoming| state.context.endpoint.recycle(incoming.request.message));
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

    /// Sends the answers that waited for those of invocations, and did not leave with them.
    pub(super) fn flush_deferred(&mut self, context: &WorkerContext) {
        if mem::take(&mut self.is_transmit_deferred) {
            context.shared.ports[context.index].open().transmit();
        }
    }

    /// Publishes what the worker's own port has counted.
    pub(super) fn publish_counters(&mut self, context: &WorkerContext, connections: Option<&WorkerConnections>) {
        let state = context.shared.ports[context.index].open();
        self.publish_port_counters(context, connections, &state);
    }

    /// Decides now and then which flows are dropped early.
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

/// Serves the messages of a batch.
struct MessageServer {
    /// A response buffer for each message of a batch.
    responses: Vec<ResponseBuffer>,
    /// The buffer in which the answer of one operation is put together.
    answer: Vec<u8>,
}

impl MessageServer {
    fn new() -> MessageServer {
        MessageServer { responses: (0..BURST).map(|_| ResponseBuffer::default()).collect(), answer: Vec::new() }
    }

    /// Admits the messages of a batch, plans all their operations, runs them, and answers.
    fn serve<'d>(
        &mut self,
        executor: &mut RequestExecutor,
        snapshot: &'d DirectorySnapshot,
        requests: &'d [IncomingRequest<'d>],
        costs: &mut BatchCosts,
        port: &mut PortContext,
    ) {
        let mut admitted: ArrayVec<AdmittedRequest<'d>, BURST> = ArrayVec::new();
        self.admit_all(executor, snapshot, requests, &mut admitted, costs, port);
        self.run_admitted(executor, &admitted, port);
        let now_us = executor.context.clock.now_us;
        for message in &admitted {
            if message.ranges.owed() > 0 {
                executor.charge_requests(message.view.tenant.id, message.ranges.owed());
            }
            let response = &mut self.responses[message.number];
            let answered = response.bytes.len() + response.tail.as_deref().map_or(0, <[u8]>::len);
            match response.tail.take() {
                _ if message.response_id.is_some() => {}
                Some(tail) => port.respond_shared(now_us, &message.origin, &response.bytes, tail),
                None => port.respond(now_us, &message.origin, &response.bytes),
            }
            let IncomingRequest { slice, request, .. } = &requests[message.number];
            let bytes = request.message.len() + answered;
            let operations = message.requests.saturating_add(message.ranges.owed());
            costs.add_work(*slice, operations.saturating_sub(1).saturating_add(copy_cost_gets(bytes)));
        }
        let used = self.responses.iter_mut().take(requests.len());
        used.for_each(|response| shrink_to_pool(&mut response.bytes));
    }

    /// Admits the messages of a batch, and answers those that are not to be run.
    #[inline]
    fn admit_all<'d>(
        &mut self,
        executor: &mut RequestExecutor,
        snapshot: &'d DirectorySnapshot,
        requests: &'d [IncomingRequest<'d>],
        admitted: &mut ArrayVec<AdmittedRequest<'d>, BURST>,
        costs: &mut BatchCosts,
        port: &mut PortContext,
    ) {
        let counters = Arc::clone(&executor.context.counters);
        let (now_us, worker) = (executor.context.clock.now_us, executor.context.index);
        let admission = AdmissionContext {
            snapshot,
            last: Cell::new(None),
            counters: &counters,
            worker,
            now_us,
            allow_plaintext: executor.context.shared.allow_plaintext,
            is_draining: executor.context.is_draining,
        };
        for (number, (incoming, response)) in requests.iter().zip(&mut self.responses).enumerate() {
            let IncomingRequest { slice, request, .. } = incoming;
            let decision = admit(&admission, (number, incoming), port, &mut response.bytes, admitted);
            costs.add_rejected(*slice, mem::take(&mut port.rejected));
            match decision {
                AdmissionDecision::Run => {
                    if let Some(AdmittedRequest { origin: RequestOrigin { header, .. }, requests, .. }) =
                        admitted.last()
                    {
                        executor.charge_requests(header.tenant, *requests);
                        start_response(header, header.operations, &mut response.bytes);
                    }
                }
                AdmissionDecision::Reply(origin) => {
                    costs.add_work(*slice, copy_cost_gets(request.message.len() + response.bytes.len()));
                    port.respond(now_us, &origin, &response.bytes);
                }
                AdmissionDecision::Reject(origin) => {
                    costs.add_work(*slice, copy_cost_gets(request.message.len() + response.bytes.len()));
                    port.reject(&origin, &response.bytes);
                }
                AdmissionDecision::Drop => {}
            }
        }
    }

    /// Plans the operations of admitted messages, and runs each plan when it is full, and the last one.
    #[inline]
    fn run_admitted(
        &mut self,
        executor: &mut RequestExecutor,
        admitted: &[AdmittedRequest<'_>],
        port: &mut PortContext,
    ) {
        let mut plan: ArrayVec<PlannedOperation<'_>, PLAN_OPERATIONS> = ArrayVec::new();
        let mut last_table = TableLookupCache::default();
        for message in admitted {
            let mut operation = message.first;
            let mut others = message.others.clone().flatten();
            for index in 0.. {
                let (table, hash) = locate_record(message.view, &operation, &mut last_table);
                plan.push(PlannedOperation { message, index, operation, table, hash });
                if plan.is_full() {
                    self.run_plan(executor, &mut plan, port);
                    // A grant may have ended meanwhile.
                    last_table = TableLookupCache::default();
                }
                let Some(next) = others.next() else { break };
                operation = next;
            }
        }
        self.run_plan(executor, &mut plan, port);
    }

    /// Runs what was planned, in order. By now the buckets are in the cache; the records come next.
    fn run_plan(
        &mut self,
        executor: &mut RequestExecutor,
        plan: &mut ArrayVec<PlannedOperation<'_>, PLAN_OPERATIONS>,
        port: &mut PortContext,
    ) {
        prefetch_records(&executor.context, plan);
        for planned in plan.iter() {
            let context = &executor.context;
            count(&context.counters.requests, planned.operation.op as usize);
            let Some(response_id) = planned.message.response_id else {
                let ResponseBuffer { bytes, tail } = &mut self.responses[planned.message.number];
                let tail = (context.shared.zero_copy && planned.ends_response()).then_some(tail);
                let packet = zero_copy_packet(context, planned, port);
                let status = run_plain(context, planned, packet, bytes, tail);
                count(&context.counters.responses, status as usize);
                continue;
            };
            self.answer.clear();
            let status = match planned.operation.op {
                OpKind::Invoke => {
                    let (port, operation) = (port.index as u32, planned.index as u32);
                    let target = ReplyTarget::Datagram { port, operation, response: response_id };
                    let RequestExecutor { context, invocations } = executor;
                    let begun = invocations.begin(context, planned.message.view, &planned.operation, target);
                    begun
                        .err()
                        .map(|(status, text)| encode_refusal(&planned.operation, status, &text, &mut self.answer))
                }
                _ => {
                    let packet = zero_copy_packet(context, planned, port);
                    Some(run_plain(context, planned, packet, &mut self.answer, None))
                }
            };
            if let Some(status) = status {
                let (context, answer) = (&executor.context, &self.answer);
                count(&context.counters.responses, status as usize);
                let write = |response: &mut Vec<u8>| response.extend_from_slice(answer);
                port.deliver(context.clock.now_us, response_id, planned.index, write);
            }
        }
        plan.clear();
    }
}

/// Fetches the cache lines of the records that a plan's operations will touch.
#[inline]
fn prefetch_records(context: &WorkerContext, plan: &[PlannedOperation<'_>]) {
    let guard = context.participant.guard();
    let mut chained = 0_u64;
    for (at, planned) in plan.iter().enumerate() {
        if let Some(entry) = planned.table {
            chained |= u64::from(entry.table.prefetch_record(&guard, planned.hash)) << at;
        }
    }
    while chained != 0 {
        if let Some(planned) = plan.get(chained.trailing_zeros() as usize)
            && let Some(entry) = planned.table
        {
            entry.table.prefetch_chained(&guard, planned.hash);
        }
        chained &= chained - 1;
    }
}

/// The packet that an operation came in, if a value of it may stay there. The buffers are those of the port's queue,
/// whichever worker serves it.
fn zero_copy_packet<'p>(
    context: &'p WorkerContext,
    planned: &PlannedOperation<'p>,
    port: &'p PortContext,
) -> Option<ZeroCopyPacket<'p>> {
    let (message, rx_budget) = (planned.message, port.rx_budget.as_ref()?);
    let (packet, usage) = (message.packet?, &message.view.tenant.usage);
    let refused = &usage.worker(context.index).not_kept;
    let has_stored_value = &message.has_stored_value;
    Some(ZeroCopyPacket { packet, has_stored_value, rx_budget, port: port.index, usage, refused })
}

/// Runs one operation that needs no tenant code, and appends its answer; a value that is to be sent from where it is
/// stored goes to `tail`, if there is one.
fn run_plain(
    context: &WorkerContext,
    planned: &PlannedOperation<'_>,
    packet: Option<ZeroCopyPacket<'_>>,
    response: &mut Vec<u8>,
    tail: Option<&mut Option<SharedBytes>>,
) -> RpcStatus {
    let operation = &planned.operation;
    match operation.op {
        OpKind::Ping if !has_room(response, operation.encoded_len()) => {
            encode_refusal(operation, RpcStatus::TooLarge, RESPONSE_FULL_TEXT, response)
        }
        OpKind::Ping => {
            encode_operation(&Operation { value: operation.value, ..Operation::new(OpKind::Ping) }, response);
            RpcStatus::Ok
        }
        OpKind::Hello => encode_hello(context, planned.message.view, response),
        OpKind::Get
        | OpKind::MultiGet
        | OpKind::Put
        | OpKind::Delete
        | OpKind::Increment
        | OpKind::Range
        | OpKind::Invoke => {
            let Some(entry) = planned.table else {
                return record_operations::encode_table_error(planned.message.view, operation, response);
            };
            let context = OperationContext {
                participant: &context.participant,
                now_ms: context.clock.now_ms,
                counters: &context.counters,
                ranges: &planned.message.ranges,
                packet,
            };
            record_operations::run(&context, &entry.table, operation, planned.hash, (response, tail))
        }
    }
}

/// Tells a client which worker it has reached, how many there are, and which is its tenant's home.
fn encode_hello(context: &WorkerContext, view: &TenantView, response: &mut Vec<u8>) -> RpcStatus {
    let shared = &context.shared;
    let value = HelloResponse { workers: shared.ports.len() as u32, home: view.tenant.home_worker }.encode();
    let (number, user_flags) = (context.index as u64, shared.start);
    let answer = Operation { number, user_flags, value: &value, ..Operation::new(OpKind::Hello) };
    encode_operation(&answer, response);
    RpcStatus::Ok
}

/// The table that was looked up last, and for what access: most operations of a plan name the same.
#[derive(Default)]
struct TableLookupCache<'v>(Option<(&'v TenantView, u64, bool, Option<&'v TableEntry>)>);

impl<'v> TableLookupCache<'v> {
    /// The table of this id, if the tenant may access it so.
    #[inline]
    fn table(&mut self, view: &'v TenantView, id: u64, write: bool) -> Option<&'v TableEntry> {
        if let Some((of, last, written, entry)) = self.0
            && std::ptr::eq(of, view)
            && (last, written) == (id, write)
        {
            return entry;
        }
        let entry = view.reach(id, write).ok();
        self.0 = Some((view, id, write, entry));
        entry
    }
}

/// Finds the table that a plain operation names, and starts fetching what the operation will touch there.
#[inline]
fn locate_record<'v>(
    view: &'v TenantView,
    operation: &Operation<'_>,
    last_table: &mut TableLookupCache<'v>,
) -> (Option<&'v TableEntry>, u64) {
    if matches!(operation.op, OpKind::Ping | OpKind::Hello | OpKind::Invoke) {
        return (None, 0);
    }
    let table = last_table.table(view, operation.table, record_operations::writes(operation.op));
    let hash = match table {
        Some(entry) if !matches!(operation.op, OpKind::MultiGet | OpKind::Range) => {
            let hash = entry.table.hash(operation.key);
            entry.table.prefetch_bucket(hash);
            hash
        }
        _ => 0,
    };
    (table, hash)
}

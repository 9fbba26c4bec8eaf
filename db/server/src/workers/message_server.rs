//! Runs messages: admits them, plans their operations (finds the table, hashes, prefetches), runs the plain
//! ones, begins the invocations, and answers. It stops between two operations when a piece is over
//! ([`super::piece_budget`]).

use std::cell::Cell;
use std::mem;
use std::sync::Arc;

use arrayvec::ArrayVec;
use sandstorm_catalog::{DirectorySnapshot, TableEntry, TenantView};
use sandstorm_dialects::limits::PLAN_OPERATIONS;
use sandstorm_net::rpc::{
    HelloResponse, OP_FLAG_CALL_KEY, OP_FLAG_COST, OP_FLAG_NEAR, OpKind, Operation, RpcStatus, encode_operation,
};
use sandstorm_net::shared_bytes::SharedBytes;
use sandstorm_net::slots::SLOTS;
use sandstorm_store::PREFETCH_BATCH;
use sandstorm_store::backed::waits::later_of;

use super::admission::{AdmissionContext, AdmissionDecision, AdmittedRequest, IncomingRequest, admit};
use super::cold_progress::can_foresee;
use super::context::{WorkerContext, count};
use super::executor::RequestExecutor;
use super::ingress::flows::BatchCosts;
use super::latency_ledger::{AnswerLatency, class_of, subject_of};
use super::message_pieces::{refuse_postponed, resume, suspend};
use super::operation_response::{RESPONSE_FULL_TEXT, encode_refusal, has_room};
use super::piece_budget::{PieceBudget, PieceEnd, copy_cost_gets, operation_requests};
use super::port::{PortContext, ResponseBuffer, shrink_to_pool};
use super::postponed_message::{PostponedMessage, SuspendedMessage};
use super::record_operations;
use super::record_operations::operation_context::OperationContext;
use super::response_assembly::{RequestOrigin, start_response};
use super::rx_zero_copy::ZeroCopyPacket;
use super::tasks::{InvocationCaller, ReplyTarget, peer_number};
use crate::limits::BURST;

/// The answer to a message whose tenant was deleted while it waited.
const TENANT_GONE_TEXT: &str = "the tenant was deleted while the message waited for its turn; this was not run";

// `run_plan` keeps a bit for each.
const _: () = assert!(PLAN_OPERATIONS <= PREFETCH_BATCH);

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

impl AdmittedRequest<'_> {
    /// Notes how far the log has to be on the disk for what the worker has just changed or read.
    #[inline]
    fn note_shown(&self, context: &WorkerContext) {
        self.shown.set(later_of(self.shown.get(), context.participant.shown().take()));
    }
}

impl PlannedOperation<'_> {
    /// Whether its answer is the end of a response that is sent once and not remembered.
    fn ends_response(&self) -> bool {
        let origin = &self.message.origin;
        self.index + 1 == usize::from(origin.header.operations) && !origin.remembered
    }
}

/// The message server: see the head of this file.
pub(super) struct MessageServer {
    /// A response buffer for each message of a batch.
    responses: Vec<ResponseBuffer>,
    /// The buffer in which the answer of one operation is written.
    answer: Vec<u8>,
}

impl MessageServer {
    pub(super) fn new() -> MessageServer {
        MessageServer { responses: (0..BURST).map(|_| ResponseBuffer::default()).collect(), answer: Vec::new() }
    }

    /// Admits the messages of a batch, plans and runs their operations until the piece is over, and answers. Returns
    /// the messages that have not finished, in their order.
    pub(super) fn serve<'d>(
        &mut self,
        executor: &mut RequestExecutor,
        snapshot: &'d DirectorySnapshot,
        requests: &'d [IncomingRequest<'d>],
        (piece, costs): (&mut PieceBudget, &mut BatchCosts),
        port: &mut PortContext,
    ) -> Vec<SuspendedMessage> {
        let mut admitted: ArrayVec<AdmittedRequest<'d>, BURST> = ArrayVec::new();
        let replayed_bytes = self.admit_all(executor, snapshot, requests, &mut admitted, costs, port);
        piece.spend(0, replayed_bytes);
        let end = self.run_admitted(executor, &admitted, piece, port);
        self.finish(executor, &admitted, end, costs, port);
        let suspended = suspend(&executor.context, port.index, admitted, end, &mut self.responses);
        let used = self.responses.iter_mut().take(requests.len());
        used.for_each(|response| shrink_to_pool(&mut response.bytes));
        suspended
    }

    /// Continues messages of a tenant in its turn. Returns those that have not finished, in their order.
    pub(super) fn resume(
        &mut self,
        executor: &mut RequestExecutor,
        snapshot: &DirectorySnapshot,
        waited: Vec<PostponedMessage>,
        (piece, costs): (&mut PieceBudget, &mut BatchCosts),
        port: &mut PortContext,
    ) -> Vec<PostponedMessage> {
        let mut current = Vec::with_capacity(waited.len());
        for mut message in waited {
            match snapshot.tenant(message.tenant()) {
                Some(view) => {
                    message.suspended.view = Arc::clone(view);
                    current.push(message);
                }
                None => {
                    refuse_postponed(&mut executor.context, message, (RpcStatus::UnknownTenant, TENANT_GONE_TEXT), port)
                }
            }
        }
        let now_ns = executor.context.clock.now_ns;
        let in_progress = current.iter_mut().zip(&mut self.responses).enumerate();
        let admitted: ArrayVec<AdmittedRequest<'_>, BURST> = in_progress
            .filter_map(|(number, (message, response))| resume(message, (number, now_ns), &mut response.bytes))
            .collect();
        let end = self.run_admitted(executor, &admitted, piece, port);
        self.finish(executor, &admitted, end, costs, port);
        let suspended = suspend(&executor.context, port.index, admitted, end, &mut self.responses);
        self.responses.iter_mut().for_each(|response| shrink_to_pool(&mut response.bytes));
        let mut messages: Vec<Option<Vec<u8>>> = current.into_iter().map(|waited| Some(waited.message)).collect();
        let again = suspended.into_iter().filter_map(|suspended| {
            let message = messages.get_mut(suspended.number)?.take()?;
            Some(PostponedMessage { message, suspended })
        });
        again.collect()
    }

    /// Answers messages that were run to their end, and charges their slices for the work of each.
    #[inline]
    fn finish(
        &mut self,
        executor: &mut RequestExecutor,
        admitted: &[AdmittedRequest<'_>],
        end: Option<PieceEnd>,
        costs: &mut BatchCosts,
        port: &mut PortContext,
    ) {
        let mut is_done = true;
        for message in admitted {
            is_done &= end.is_none_or(|end| end.number != message.number);
            let deferred_requests = message.ranges.take_deferred();
            if deferred_requests > 0 {
                executor.charge_requests(message.view.tenant.id, deferred_requests);
            }
            let requests = message.work.requests().saturating_add(deferred_requests);
            let copies = copy_cost_gets(message.work.bytes());
            costs.add_work(message.slice, requests.saturating_sub(1).saturating_add(copies));
            if !is_done || message.response_id.is_some() || message.cold.parked_at().is_some() {
                continue;
            }
            let (origin, class) = (&message.origin, class_of(message.first.op));
            let response = &mut self.responses[message.number];
            let answer = (&response.bytes[..], response.tail.take());
            let (first, waits) = (Some(&message.first), message.cold.waited());
            let (shown, latency) = (message.shown.get(), AnswerLatency { class, first, waits });
            let calls = &mut Vec::new();
            let has_left = port.respond_when_durable(&executor.context, origin, answer, shown, latency, calls);
            if let Some(class) = class.filter(|_| has_left) {
                let first = &message.first;
                let subject = || subject_of(first);
                executor.context.answered.note(origin.header.tenant, class, origin.received_ns, subject);
                if let Some(waits) = waits {
                    executor.context.answered.note_waits(*waits);
                }
            }
        }
    }

    /// Admits the messages of a batch, and answers those that are not run. Returns the bytes of repeated answers.
    #[inline]
    fn admit_all<'d>(
        &mut self,
        executor: &mut RequestExecutor,
        snapshot: &'d DirectorySnapshot,
        requests: &'d [IncomingRequest<'d>],
        admitted: &mut ArrayVec<AdmittedRequest<'d>, BURST>,
        costs: &mut BatchCosts,
        port: &mut PortContext,
    ) -> usize {
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
            replayed_bytes: Cell::new(0),
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
        admission.replayed_bytes.get()
    }

    /// Plans the operations of admitted messages, and runs each full plan, and the last one, until the piece is over.
    /// Returns where it ended.
    #[inline]
    fn run_admitted(
        &mut self,
        executor: &mut RequestExecutor,
        admitted: &[AdmittedRequest<'_>],
        piece: &mut PieceBudget,
        port: &mut PortContext,
    ) -> Option<PieceEnd> {
        let mut plan: ArrayVec<PlannedOperation<'_>, PLAN_OPERATIONS> = ArrayVec::new();
        let mut last_table = TableLookupCache::default();
        for message in admitted {
            let mut operation = message.first;
            let mut others = message.others.clone().flatten();
            for index in message.from.. {
                let (table, hash) = locate_record(message.view, &operation, &mut last_table);
                plan.push(PlannedOperation { message, index, operation, table, hash });
                if plan.is_full() {
                    let end = self.run_plan(executor, &mut plan, piece, port);
                    if end.is_some() {
                        return end;
                    }
                    // A grant may have ended meanwhile.
                    last_table = TableLookupCache::default();
                }
                let Some(next) = others.next() else { break };
                operation = next;
            }
        }
        self.run_plan(executor, &mut plan, piece, port)
    }

    /// Runs the planned operations in order until the piece is over. Returns where it ended, if it did. By now the
    /// buckets are in the cache; the records come next.
    fn run_plan(
        &mut self,
        executor: &mut RequestExecutor,
        plan: &mut ArrayVec<PlannedOperation<'_>, PLAN_OPERATIONS>,
        piece: &mut PieceBudget,
        port: &mut PortContext,
    ) -> Option<PieceEnd> {
        prefetch_records(&executor.context, plan);
        let mut end = None;
        for planned in plan.iter() {
            if piece.is_over() {
                end = Some(PieceEnd { number: planned.message.number, index: planned.index });
                break;
            }
            if planned.message.cold.parked_at().is_some() {
                foresee(&executor.context, planned);
                piece.spend(1, 0);
                continue;
            }
            let (message, request_bytes) = (planned.message, planned.operation.encoded_len());
            let deferred_requests = message.ranges.deferred_requests();
            let (status, copied, shared) = self.run_planned(executor, planned, port);
            if planned.message.cold.parked_at().is_none() {
                count(&executor.context.counters.requests, planned.operation.op as usize);
            }
            if let Some(status) = status {
                count(&executor.context.counters.responses, status as usize);
            }
            let requests = operation_requests(&planned.operation);
            piece.spend(
                requests.saturating_add(message.ranges.deferred_requests() - deferred_requests),
                request_bytes + copied,
            );
            message.work.add(requests, request_bytes + copied + shared);
        }
        plan.clear();
        end
    }

    /// Runs one operation. Returns its status if it has ended, the copied bytes of its answer, and those that are sent
    /// from their record.
    #[inline]
    fn run_planned(
        &mut self,
        executor: &mut RequestExecutor,
        planned: &PlannedOperation<'_>,
        port: &mut PortContext,
    ) -> (Option<RpcStatus>, usize, usize) {
        let context = &executor.context;
        let Some(response_id) = planned.message.response_id else {
            let ResponseBuffer { bytes, tail } = &mut self.responses[planned.message.number];
            let before = bytes.len();
            let mut tail = (context.shared.zero_copy && planned.ends_response()).then_some(tail);
            let packet = zero_copy_packet(context, planned, port);
            let ran = run_plain(context, planned, packet, bytes, tail.as_deref_mut());
            let status = settle_cold(context, planned, ran, (bytes, before));
            planned.message.note_shown(context);
            let shared = tail.and_then(|tail| tail.as_deref()).map_or(0, <[u8]>::len);
            return (status, bytes.len() - before, shared);
        };
        self.answer.clear();
        let status = match planned.operation.op {
            OpKind::Invoke if let Some(status) = refuse_elsewhere(context, &planned.operation, &mut self.answer) => {
                Some(status)
            }
            OpKind::Invoke => {
                let (port, operation) = (port.index as u32, planned.index as u32);
                let with_cost = planned.operation.flags & OP_FLAG_COST != 0;
                let target = ReplyTarget::Datagram { port, operation, with_cost, response: response_id };
                let origin = &planned.message.origin;
                let key = (planned.operation.flags & OP_FLAG_CALL_KEY != 0).then_some(planned.operation.table);
                let peer = peer_number(origin.peer);
                let caller = InvocationCaller { target, peer, key, received_ns: origin.received_ns };
                let RequestExecutor { context, invocations } = executor;
                let begun = invocations.begin(context, planned.message.view, &planned.operation, &caller);
                begun.err().map(|(status, text)| encode_refusal(&planned.operation, status, &text, &mut self.answer))
            }
            _ => {
                let packet = zero_copy_packet(context, planned, port);
                let ran = run_plain(context, planned, packet, &mut self.answer, None);
                settle_cold(context, planned, ran, (&mut self.answer, 0))
            }
        };
        planned.message.note_shown(&executor.context);
        if status.is_some() {
            let answer = &self.answer;
            let write = |response: &mut Vec<u8>| response.extend_from_slice(answer);
            let shown = planned.message.shown.get();
            port.deliver_plain(&mut executor.context, (response_id, planned.index), shown, write);
        }
        (status, self.answer.len(), 0)
    }
}

/// Refuses a call that is to run where a slot is which another server of the cluster owns, or which is none.
fn refuse_elsewhere(context: &WorkerContext, operation: &Operation<'_>, response: &mut Vec<u8>) -> Option<RpcStatus> {
    if operation.flags & OP_FLAG_NEAR == 0 {
        return None;
    }
    let slot = u16::try_from(operation.user_flags).ok().filter(|slot| *slot < SLOTS);
    let Some(slot) = slot else {
        return Some(encode_refusal(operation, RpcStatus::Malformed, "user flags that are no slot", response));
    };
    let own = context.snapshot.slots()?;
    if own.owns_slot(slot) {
        return None;
    }
    let (number, text) = own.wrong_server_of(slot);
    let answer = operation.answer(RpcStatus::WrongServer);
    encode_operation(&Operation { number, value: text.as_bytes(), ..answer }, response);
    Some(RpcStatus::WrongServer)
}

/// Takes the answer back of an operation that has met cold records, and parks its message; or refuses the operation.
/// Returns its status if it has ended.
#[inline]
fn settle_cold(
    context: &WorkerContext,
    planned: &PlannedOperation<'_>,
    status: RpcStatus,
    (response, before): (&mut Vec<u8>, usize),
) -> Option<RpcStatus> {
    let cold = &planned.message.cold;
    if !context.participant.shown().has_cold() {
        cold.passed();
        return Some(status);
    }
    response.truncate(before);
    let refusal = cold.park(&context.participant, planned.index);
    refusal.map(|(status, text)| encode_refusal(&planned.operation, status, &text, response))
}

/// Notes the cold record that a get behind a parked operation of its message will meet: all of them are read together.
#[cold]
fn foresee(context: &WorkerContext, planned: &PlannedOperation<'_>) {
    if let Some(entry) = planned.table.filter(|_| can_foresee(planned.operation.op)) {
        let _found =
            entry.table.get(&context.participant.guard(), planned.hash, planned.operation.key, context.clock.now_ms);
        planned.message.cold.foresee(&context.participant);
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

/// The packet of an operation, if one of its values may stay there. The buffers are those of the port's queue,
/// whichever worker serves it.
fn zero_copy_packet<'p>(
    context: &'p WorkerContext,
    planned: &PlannedOperation<'p>,
    port: &'p PortContext,
) -> Option<ZeroCopyPacket<'p>> {
    let (message, rx_budget) = (planned.message, port.rx_budget.as_ref()?);
    let (packet, usage) = (message.packet?, &message.view.tenant.usage);
    let refused = &usage.worker(context.index).rx_copied;
    let has_stored_value = &message.has_stored_value;
    Some(ZeroCopyPacket { packet, has_stored_value, rx_budget, port: port.index, usage, refused })
}

/// Runs one operation that needs no tenant code, and appends its answer. A value that is sent from its record goes to
/// `tail`, if there is one.
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
        | OpKind::Commit
        | OpKind::Count
        | OpKind::Rank
        | OpKind::Nth
        | OpKind::Ttl
        | OpKind::Touch
        | OpKind::Invoke => {
            let context = OperationContext {
                participant: &context.participant,
                now_ms: context.clock.now_ms,
                counters: &context.counters,
                ranges: &planned.message.ranges,
                packet,
            };
            if operation.op == OpKind::Commit {
                return record_operations::commit::run(&context, planned.message.view, operation, response);
            }
            let Some(entry) = planned.table else {
                return record_operations::encode_table_error(planned.message.view, operation, response);
            };
            record_operations::run(&context, &entry.table, operation, planned.hash, (response, tail))
        }
    }
}

/// Tells a client the number of its worker, the number of workers, and its tenant's home.
fn encode_hello(context: &WorkerContext, view: &TenantView, response: &mut Vec<u8>) -> RpcStatus {
    let shared = &context.shared;
    let value = HelloResponse { workers: shared.ports.len() as u32, home: view.tenant.home_worker }.encode();
    let (number, user_flags) = (context.index as u64, shared.start);
    let answer = Operation { number, user_flags, value: &value, ..Operation::new(OpKind::Hello) };
    encode_operation(&answer, response);
    RpcStatus::Ok
}

/// The table that was looked up last, with the access: most operations of a plan name the same table.
#[derive(Default)]
struct TableLookupCache<'v>(Option<(&'v TenantView, u64, bool, Option<&'v TableEntry>)>);

impl<'v> TableLookupCache<'v> {
    /// The table of this id, if the tenant has this access.
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

/// Finds the table of a plain operation, and prefetches the memory that it will touch there.
#[inline]
fn locate_record<'v>(
    view: &'v TenantView,
    operation: &Operation<'_>,
    last_table: &mut TableLookupCache<'v>,
) -> (Option<&'v TableEntry>, u64) {
    if matches!(operation.op, OpKind::Ping | OpKind::Hello | OpKind::Invoke | OpKind::Commit) {
        return (None, 0);
    }
    let table = last_table.table(view, operation.table, record_operations::writes(operation.op));
    let hash = match table {
        Some(entry) if !matches!(operation.op, OpKind::MultiGet | OpKind::Range) && !operation.op.is_of_positions() => {
            let hash = entry.table.hash(operation.key);
            entry.table.prefetch_bucket(hash);
            hash
        }
        _ => 0,
    };
    (table, hash)
}

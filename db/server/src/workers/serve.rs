//! The way of a request, top to bottom: receive a burst, admit its messages (parse, find the tenant, authenticate, keep
//! out what was run before), plan their operations (find the table and tablet, hash, prefetch), run the plain ones,
//! make tasks of the invocations, transmit, poll tasks, answer, transmit.
//!
//! [`Worker::turn`] is one round of it. What a turn touches is this worker's own, or a port's, whose lock it holds only
//! while no tenant code runs.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

use arrayvec::ArrayVec;
use sandstorm_net::driver::DatagramDriver;
use sandstorm_net::rpc::{HelloResponse, OpKind, Operation, RpcStatus, encode_operation};
use sandstorm_net::shared_bytes::SharedBytes;

use super::Worker;
use super::admission::{AdmissionContext, AdmissionDecision, AdmittedRequest, IncomingRequest, admit, count};
use super::ingress::{BatchCosts, DatagramClassifier, IngressScheduler};
use super::port::{MalformedDatagram, PortContext, ResponseBuffer, WorkerPortState, shrink_to_pool};
use super::record_operations;
use super::response_assembly::{RequestOrigin, start_response};
use super::rx_zero_copy::ZeroCopyPacket;
use super::tasks::ReplyTarget;
use crate::limits::{
    BEGUN_INVOCATIONS_PER_TURN, BURST, COPY_BYTES_PER_GET, COUNTER_PUBLISH_TURNS, DEFER_REPLIES_UP_TO_LIVE,
    POLLS_PER_TURN, SERVE_NS, SHORT_POLL_NS, TURN_CPU_NS,
};
use sandstorm_catalog::{DirectorySnapshot, TableEntry, TenantView};
use sandstorm_dialects::limits::{PLAN_OPERATIONS, REQUEST_NS};
use sandstorm_extension::limits::CONTENDED_SLICE_US;
use sandstorm_store::PREFETCH_BATCH;

// `run_plan` keeps a bit for each.
const _: () = assert!(PLAN_OPERATIONS <= PREFETCH_BATCH);

/// How many plain gets take as long as copying so many bytes.
fn copy_cost_gets(bytes: usize) -> u32 {
    (bytes / COPY_BYTES_PER_GET) as u32
}

/// An operation on its way: the cache lines that it will touch are being fetched.
struct PlannedOperation<'p> {
    message: &'p AdmittedRequest<'p>,
    part: usize,
    operation: Operation<'p>,
    /// The table that a plain operation names, if the tenant reaches it so.
    table: Option<&'p TableEntry>,
    hash: u64,
}

impl PlannedOperation<'_> {
    /// Whether its answer is the end of a response that is sent once and forgotten.
    fn ends_response(&self) -> bool {
        let origin = &self.message.origin;
        self.part + 1 == usize::from(origin.header.operations) && !origin.remembered
    }
}

impl Worker {
    /// One round: requests, of packets and of connections, then tasks, then what a neighbour has too much of. Tells how
    /// much there was to do.
    pub(super) fn turn(&mut self, intake: &mut IngressScheduler) -> usize {
        self.refresh();
        let received = self.serve(self.index, intake) + self.serve_connections();
        let polled = self.poll_tasks() + usize::from(self.engine.tidy());
        self.flush_deferred();
        self.participant.quiescent();
        let stolen = if received + polled == 0 { self.steal(intake) } else { 0 };
        self.count_turn(received + polled + stolen);
        received + polled + stolen
    }

    /// Receives what has come to a port and answers what can be answered at once, by turns between tenants. Tells how
    /// many datagrams it went through. At the own port it stops when its time is up, or many invocations are begun:
    /// what is left waits in the intake while tasks are polled.
    pub(super) fn serve(&mut self, port: usize, intake: &mut IngressScheduler) -> usize {
        let shared = Arc::clone(&self.shared);
        let own = port == self.index;
        let Some(mut state) = shared.ports[port].open(own) else { return 0 };
        // A thief that comes late would take packets, and their interrupt, from a neighbour that is about to sleep
        // until that.
        if !own && !shared.in_guest_code[port].load(SeqCst) {
            return 0;
        }
        let state = &mut *state;
        let (snapshot, now_us) = (Arc::clone(&self.snapshot), self.now_us);
        let PortContext { known, kept, .. } = &mut state.context;
        let sorter = DatagramClassifier { snapshot: &snapshot, known, now_us, kept: kept.as_deref(), last: None };
        intake.receive(&mut state.driver, sorter, own);
        // After the packets: whoever was told that a tenant or table is there may use it at once.
        self.refresh_snapshot();
        let snapshot = if Arc::ptr_eq(&snapshot, &self.snapshot) { snapshot } else { Arc::clone(&self.snapshot) };
        let (mut begun, mut spent_ns, mut went_through) = (None, 0, 0);
        while intake.next_batch() {
            // Most looks find nothing, or what is served at once and charged to nobody: they are not timed.
            if intake.is_timed() {
                begun.get_or_insert_with(Instant::now);
            }
            let mut requests: ArrayVec<IncomingRequest<'_>, BURST> = ArrayVec::new();
            let mut bills = BatchCosts::default();
            intake.for_each_sealed(|burst, index, share| {
                bills.add_rejected(share, state.context.open_sealed(now_us, burst, index, &snapshot));
            });
            for number in 0..intake.batch_len() {
                let Some((share, peer, datagram, packet)) = intake.datagram(number) else { continue };
                match state.context.receive(now_us, peer, datagram) {
                    Ok(Some(request)) => requests.push(IncomingRequest { share, request, packet }),
                    Ok(None) => bills.add_work(share, copy_cost_gets(datagram.len())),
                    Err(MalformedDatagram) => bills.add_rejected(share, 1),
                }
            }
            self.serve_messages(&snapshot, &requests, &mut bills, port, &mut state.context);
            requests.into_iter().for_each(|incoming| state.context.endpoint.recycle(incoming.request.message));
            let since_ns = begun.map_or(0, |begun: Instant| begun.elapsed().as_nanos() as u64);
            went_through += intake.finish_batch(since_ns - spent_ns, &bills);
            spent_ns = since_ns;
            if own && (spent_ns > SERVE_NS || self.live >= BEGUN_INVOCATIONS_PER_TURN) {
                break;
            }
        }
        state.context.run_timers(now_us);
        let few = (1..=DEFER_REPLIES_UP_TO_LIVE).contains(&self.live);
        self.is_transmit_deferred = own && few && self.has_short_polls && self.connections.is_none();
        if !self.is_transmit_deferred {
            state.transmit();
        }
        if own {
            self.update_early_drop(intake, state);
            self.uncounted_turns += usize::from(went_through > 0);
            // Of the turns of a worker that is busy not each: to take over what was counted takes as long as some
            // requests. One that sleeps, or looks in vain, has told all.
            if went_through == 0 || self.uncounted_turns >= COUNTER_PUBLISH_TURNS {
                self.publish_port_counters(state);
            }
        }
        went_through
    }

    /// Sends what has waited for the answers of invocations, and did not leave with them.
    fn flush_deferred(&mut self) {
        if mem::take(&mut self.is_transmit_deferred)
            && let Some(mut state) = self.shared.ports[self.index].open(true)
        {
            state.transmit();
        }
    }

    /// Decides now and then who is dropped early.
    fn update_early_drop(&mut self, intake: &mut IngressScheduler, state: &mut WorkerPortState) {
        if !self.overload.is_due(self.now_us) {
            return;
        }
        let (snapshot, worker) = (&self.snapshot, self.index);
        self.overload.end_window(
            self.now_us,
            intake,
            &state.context.known,
            &mut state.driver,
            |class, window, keep| {
                if let Some(view) = class.and_then(|tenant| snapshot.tenant(tenant)) {
                    let counters = view.tenant.usage.worker(worker);
                    counters.packets_shed.add(window.shed + window.dropped_early);
                    counters.dropped_early_per_mille.set((1000.0 - 1000.0 * keep) as u64);
                }
            },
        );
        let counters = &self.counters;
        counters.packets_shed.set(intake.shed());
        counters.packets_dropped_early.set(self.overload.pressure.thrown_away);
        counters.throttled.set(self.overload.throttled() as u64);
        state.driver.details(&mut |name, count| counters.set_detail(name, count));
        state.context.throttle_check_us = self.overload.timer_us();
    }

    /// Admits the messages of a burst, plans all their operations, and runs them.
    fn serve_messages<'d>(
        &mut self,
        snapshot: &'d DirectorySnapshot,
        requests: &'d [IncomingRequest<'d>],
        bills: &mut BatchCosts,
        port: usize,
        context: &mut PortContext,
    ) {
        let mut responses = mem::take(&mut self.responses);
        let counters = Arc::clone(&self.counters);
        let (now_us, allow_plaintext, stops) = (self.now_us, self.shared.allow_plaintext, self.stops);
        let (worker, last) = (self.index, Cell::new(None));
        let door = AdmissionContext { snapshot, last, counters: &counters, worker, now_us, allow_plaintext, stops };
        let mut admitted: ArrayVec<AdmittedRequest<'d>, BURST> = ArrayVec::new();
        for (number, (incoming, response)) in requests.iter().zip(&mut responses).enumerate() {
            let IncomingRequest { share, request, .. } = incoming;
            let verdict = admit(&door, (number, incoming), context, &mut response.bytes, &mut admitted);
            bills.add_rejected(*share, mem::take(&mut context.refused));
            match verdict {
                AdmissionDecision::Run => {
                    if let Some(AdmittedRequest { origin: RequestOrigin { header, .. }, requests, .. }) =
                        admitted.last()
                    {
                        self.bill(header.tenant, *requests);
                        start_response(header, header.operations, &mut response.bytes);
                    }
                }
                AdmissionDecision::Reply(origin) => {
                    bills.add_work(*share, copy_cost_gets(request.message.len() + response.bytes.len()));
                    context.answer(self.now_us, &origin, &response.bytes);
                }
                AdmissionDecision::Reject(origin) => {
                    bills.add_work(*share, copy_cost_gets(request.message.len() + response.bytes.len()));
                    context.refuse(&origin, &response.bytes);
                }
                AdmissionDecision::Drop => {}
            }
        }
        let mut plan: ArrayVec<PlannedOperation<'_>, PLAN_OPERATIONS> = ArrayVec::new();
        let mut reached = TableLookupCache::default();
        for message in &admitted {
            let mut operation = message.first;
            let mut others = message.others.clone().flatten();
            for part in 0.. {
                let (table, hash) = locate_record(message.view, &operation, &mut reached);
                plan.push(PlannedOperation { message, part, operation, table, hash });
                if plan.is_full() {
                    self.run_plan(&mut plan, &mut responses, port, context);
                    // A grant may have ended meanwhile.
                    reached = TableLookupCache::default();
                }
                let Some(next) = others.next() else { break };
                operation = next;
            }
        }
        self.run_plan(&mut plan, &mut responses, port, context);
        for message in &admitted {
            if message.ranges.owed() > 0 {
                self.bill(message.view.tenant.id, message.ranges.owed());
            }
            let response = &mut responses[message.number];
            let answered = response.bytes.len() + response.tail.as_deref().map_or(0, <[u8]>::len);
            match response.tail.take() {
                _ if message.ticket.is_some() => {}
                Some(tail) => context.respond_shared(self.now_us, &message.origin, &response.bytes, tail),
                None => context.answer(self.now_us, &message.origin, &response.bytes),
            }
            let IncomingRequest { share, request, .. } = &requests[message.number];
            let bytes = request.message.len() + answered;
            let operations = message.requests.saturating_add(message.ranges.owed());
            bills.add_work(*share, operations.saturating_sub(1).saturating_add(copy_cost_gets(bytes)));
        }
        responses.iter_mut().take(requests.len()).for_each(|response| shrink_to_pool(&mut response.bytes));
        self.responses = responses;
    }

    /// Notes which tenant asks, and charges requests to its share of the CPU, where invocations are waiting for theirs.
    pub(super) fn bill(&mut self, tenant: u32, requests: u32) {
        self.asked.note(tenant, self.now_us);
        if self.queue.is_active()
            && let Some(view) = self.snapshot.tenant(tenant)
        {
            self.queue.bill(tenant, view.tenant.quotas.weight, u64::from(requests) * REQUEST_NS);
        }
    }

    /// Runs what was planned, in order. By now the buckets are in the cache; the records come next.
    fn run_plan(
        &mut self,
        plan: &mut ArrayVec<PlannedOperation<'_>, PLAN_OPERATIONS>,
        responses: &mut [ResponseBuffer],
        port: usize,
        context: &mut PortContext,
    ) {
        let guard = self.participant.guard();
        let mut further = 0_u64;
        for (at, planned) in plan.iter().enumerate() {
            if let Some(entry) = planned.table {
                further |= u64::from(entry.table.prefetch_record(&guard, planned.hash)) << at;
            }
        }
        while further != 0 {
            if let Some(planned) = plan.get(further.trailing_zeros() as usize)
                && let Some(entry) = planned.table
            {
                entry.table.prefetch_chained(&guard, planned.hash);
            }
            further &= further - 1;
        }
        for planned in plan.iter() {
            count(&self.counters.requests, planned.operation.op as usize);
            let Some(ticket) = planned.message.ticket else {
                let ResponseBuffer { bytes, tail } = &mut responses[planned.message.number];
                let tail = (self.shared.zero_copy && planned.ends_response()).then_some(tail);
                let packet = self.packet(planned, port, context);
                let status = self.run_plain(planned, packet, bytes, tail);
                count(&self.counters.responses, status as usize);
                continue;
            };
            let mut answer = mem::take(&mut self.answer);
            answer.clear();
            let status = match planned.operation.op {
                OpKind::Invoke => {
                    let caller = ReplyTarget::Datagram { port: port as u32, part: planned.part as u32, ticket };
                    self.begin_task(planned.message.view, &planned.operation, caller, &mut answer)
                }
                _ => {
                    let packet = self.packet(planned, port, context);
                    Some(self.run_plain(planned, packet, &mut answer, None))
                }
            };
            if let Some(status) = status {
                count(&self.counters.responses, status as usize);
                context.deliver(self.now_us, ticket, planned.part, |response| response.extend_from_slice(&answer));
            }
            self.answer = answer;
        }
        plan.clear();
    }

    /// The packet that an operation came in, if a value of it may stay there. Whoever serves, the buffers are those of
    /// the port's queue.
    fn packet<'p>(
        &self,
        planned: &PlannedOperation<'p>,
        port: usize,
        context: &'p PortContext,
    ) -> Option<ZeroCopyPacket<'p>> {
        let (message, kept) = (planned.message, context.kept.as_ref()?);
        let (share, usage) = (message.packet?, &message.view.tenant.usage);
        let refused = &usage.worker(self.index).rx_copied;
        Some(ZeroCopyPacket { share, has_stored_value: &message.has_stored_value, kept, port, usage, refused })
    }

    /// Runs one operation that needs no tenant code, and appends its answer: to `tail`, if there is one, a value that
    /// is to be sent from where it is stored.
    fn run_plain(
        &self,
        planned: &PlannedOperation<'_>,
        packet: Option<ZeroCopyPacket<'_>>,
        response: &mut Vec<u8>,
        tail: Option<&mut Option<SharedBytes>>,
    ) -> RpcStatus {
        let operation = &planned.operation;
        match operation.op {
            OpKind::Ping if !record_operations::has_room(response, operation.encoded_len()) => {
                record_operations::encode_refusal(
                    operation,
                    RpcStatus::TooLarge,
                    record_operations::RESPONSE_FULL_TEXT,
                    response,
                )
            }
            OpKind::Ping => {
                encode_operation(&Operation { value: operation.value, ..Operation::new(OpKind::Ping) }, response);
                RpcStatus::Ok
            }
            OpKind::Hello => self.hello(planned.message.view, response),
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
                let context = record_operations::OperationContext {
                    participant: &self.participant,
                    now_ms: self.now_ms,
                    counters: &self.counters,
                    ranges: &planned.message.ranges,
                    packet,
                };
                record_operations::run(&context, &entry.table, operation, planned.hash, (response, tail))
            }
        }
    }

    /// Tells a client which worker it has reached, how many there are, and which is its tenant's home.
    fn hello(&self, view: &TenantView, response: &mut Vec<u8>) -> RpcStatus {
        let value = HelloResponse { workers: self.shared.ports.len() as u32, home: view.tenant.home_worker }.encode();
        let (number, user_flags) = (self.index as u64, self.shared.start);
        let answer = Operation { number, user_flags, value: &value, ..Operation::new(OpKind::Hello) };
        encode_operation(&answer, response);
        RpcStatus::Ok
    }

    /// Polls ready tasks, round robin over tenants, for one turn, then answers those that ended. Tells how many polls.
    pub(super) fn poll_tasks(&mut self) -> usize {
        let (mut polls, mut cpu_ns) = (0, 0);
        if self.live == 0 && self.offered.is_empty() {
            return 0;
        }
        self.shared.in_guest_code[self.index].store(true, Relaxed);
        self.rouse();
        self.engine.turn();
        self.reclaim_offered();
        // A part of the answers is worth sending alone, if not too small: whoever waits for them goes on meanwhile.
        let enough = (self.live / 4).max(BURST);
        while polls < POLLS_PER_TURN && cpu_ns < TURN_CPU_NS && self.ended.len() < enough {
            let Some(mut next) = self.next_task() else { break };
            // It is likely to take its whole slice: neither answers that are ready nor packets that have come are to
            // wait for that.
            if polls > 0 && next.task.invocation.is_preempted() {
                self.queue.put_back(next);
                break;
            }
            let shared = self.asked.beside(self.queue.tenant(&next), self.now_us);
            self.engine.limit_slices(shared.then_some(CONTENDED_SLICE_US));
            let interleave = self.queue.has_interleaved() && self.shared.interleave;
            if interleave {
                let engine = &mut self.engine;
                cpu_ns += self.queue.prefetch_ahead(|ahead, is_last| {
                    engine.prefetch_awaited(&mut ahead.invocation, &next.task.invocation, is_last)
                });
            }
            let before_ns = next.task.invocation.cpu_ns();
            let polled = self.engine.poll(&self.participant, &mut next.task.invocation, self.now_ms, interleave);
            let used_ns = next.task.invocation.cpu_ns() - before_ns;
            self.queue.charge(&next, used_ns);
            cpu_ns += used_ns;
            polls += 1;
            self.after_poll(next, polled);
        }
        self.shared.in_guest_code[self.index].store(false, Relaxed);
        self.was_last_turn_long = cpu_ns >= TURN_CPU_NS;
        self.has_short_polls = cpu_ns <= polls as u64 * SHORT_POLL_NS;
        if self.was_last_turn_long {
            self.queue.requeue();
        }
        self.counters.polls.add(polls as u64);
        self.counters.invocation_cpu_ns.add(cpu_ns);
        self.send_finished();
        self.offer_tasks();
        polls
    }
}

/// The table that was named last, as it was reached: operations of a plan mostly name the same.
#[derive(Default)]
struct TableLookupCache<'v>(Option<(&'v TenantView, u64, bool, Option<&'v TableEntry>)>);

impl<'v> TableLookupCache<'v> {
    /// The table of this id, if the tenant reaches it so.
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
    reached: &mut TableLookupCache<'v>,
) -> (Option<&'v TableEntry>, u64) {
    if matches!(operation.op, OpKind::Ping | OpKind::Hello | OpKind::Invoke) {
        return (None, 0);
    }
    let table = reached.table(view, operation.table, record_operations::writes(operation.op));
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

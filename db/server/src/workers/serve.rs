//! The way of a request, top to bottom: receive a burst, admit its messages (parse, find the tenant, authenticate, keep
//! out what was run before), plan their operations (find the table and tablet, hash, prefetch), run the plain ones, make
//! tasks of the invocations, transmit, poll tasks, answer, transmit.
//!
//! [`Worker::turn`] is one round of it. What a turn touches is this worker's own, or a port's, whose lock it holds only
//! while no tenant code runs.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

use arrayvec::ArrayVec;
use sandstorm_net::driver::Driver;
use sandstorm_net::rpc::{HelloAnswer, Op, Operation, Status, encode_operation};
use sandstorm_net::share::Share;

use super::Worker;
use super::admit::{Admitted, Door, Incoming, Verdict, admit, count};
use super::assembly::{Origin, start_response};
use super::intake::{Bills, Intake, Sorter};
use super::kept::Packet;
use super::plain;
use super::port::{Desk, PortState, Response, ThrownOut, pooled};
use super::tasks::Caller;
use crate::limits::{
    ANSWERED_TOGETHER, BEGUN_AT_ONCE, BURST, BYTES_OF_A_GET, COUNT_TURNS, POLLS_PER_TURN, SERVE_NS, SHORT_POLL_NS,
    TURN_CPU_NS,
};
use sandstorm_catalog::{Snapshot, TableEntry, TenantView};
use sandstorm_dialects::limits::{PLAN, REQUEST_NS};
use sandstorm_extension::limits::SHARED_SLICE_US;
use sandstorm_store::BATCH_AHEAD;

// `run_plan` keeps a bit for each.
const _: () = assert!(PLAN <= BATCH_AHEAD);

/// How many plain gets take as long as copying so many bytes.
fn gets_of_bytes(bytes: usize) -> u32 {
    (bytes / BYTES_OF_A_GET) as u32
}

/// An operation on its way: the cache lines that it will touch are being fetched.
struct Planned<'p> {
    message: &'p Admitted<'p>,
    part: usize,
    operation: Operation<'p>,
    /// The table that a plain operation names, if the tenant reaches it so.
    table: Option<&'p TableEntry>,
    hash: u64,
}

impl Planned<'_> {
    /// Whether its answer is the end of a response that is sent once and forgotten.
    fn ends_an_answer(&self) -> bool {
        let origin = &self.message.origin;
        self.part + 1 == usize::from(origin.header.operations) && !origin.remembered
    }
}

impl Worker {
    /// One round: requests, of packets and of connections, then tasks, then what a neighbour has too much of. Tells how much there was to do.
    pub(super) fn turn(&mut self, intake: &mut Intake) -> usize {
        self.look_around();
        let received = self.serve(self.index, intake) + self.serve_connections();
        let polled = self.poll_tasks() + usize::from(self.engine.tidy());
        self.send_kept_back();
        self.participant.quiescent();
        let stolen = if received + polled == 0 { self.steal(intake) } else { 0 };
        self.count_turn(received + polled + stolen);
        received + polled + stolen
    }

    /// Receives what has come to a port and answers what can be answered at once, by turns between tenants. Tells how many
    /// datagrams it went through. At the own port it stops when its time is up, or many invocations are begun: what is left
    /// waits in the intake while tasks are polled.
    pub(super) fn serve(&mut self, port: usize, intake: &mut Intake) -> usize {
        let shared = Arc::clone(&self.shared);
        let own = port == self.index;
        let Some(mut state) = shared.ports[port].open(own) else { return 0 };
        // A thief that comes late would take packets, and their interrupt, from a neighbour that is about to sleep until that.
        if !own && !shared.held_up[port].load(SeqCst) {
            return 0;
        }
        let state = &mut *state;
        let (snapshot, now_us) = (Arc::clone(&self.snapshot), self.now_us);
        let Desk { known, kept, .. } = &mut state.desk;
        let sorter = Sorter { snapshot: &snapshot, known, now_us, kept: kept.as_deref(), last: None };
        intake.receive(&mut state.driver, sorter, own);
        // After the packets: whoever was told that a tenant or table is there may use it at once.
        self.take_directory();
        let snapshot = if Arc::ptr_eq(&snapshot, &self.snapshot) { snapshot } else { Arc::clone(&self.snapshot) };
        let (mut begun, mut spent_ns, mut went_through) = (None, 0, 0);
        while intake.next_part() {
            // Most looks find nothing, or what is served at once and charged to nobody: they are not timed.
            if intake.is_timed() {
                begun.get_or_insert_with(Instant::now);
            }
            let mut requests: ArrayVec<Incoming<'_>, BURST> = ArrayVec::new();
            let mut bills = Bills::default();
            intake.each_sealed(|burst, index, share| {
                bills.add_refused(share, state.desk.open_sealed(now_us, burst, index, &snapshot));
            });
            for number in 0..intake.part_len() {
                let Some((share, peer, datagram, packet)) = intake.datagram(number) else { continue };
                match state.desk.receive(now_us, peer, datagram) {
                    Ok(Some(request)) => requests.push(Incoming { share, request, packet }),
                    Ok(None) => bills.add_work(share, gets_of_bytes(datagram.len())),
                    Err(ThrownOut) => bills.add_refused(share, 1),
                }
            }
            self.serve_messages(&snapshot, &requests, &mut bills, port, &mut state.desk);
            requests.into_iter().for_each(|incoming| state.desk.endpoint.recycle(incoming.request.message));
            let since_ns = begun.map_or(0, |begun: Instant| begun.elapsed().as_nanos() as u64);
            went_through += intake.finish_part(since_ns - spent_ns, &bills);
            spent_ns = since_ns;
            if own && (spent_ns > SERVE_NS || self.live >= BEGUN_AT_ONCE) {
                break;
            }
        }
        state.desk.timers(now_us);
        let few = (1..=ANSWERED_TOGETHER).contains(&self.live);
        self.kept_back = own && few && self.polls_are_short && self.connections.is_none();
        if !self.kept_back {
            state.transmit();
        }
        if own {
            self.look_at_overload(intake, state);
            self.uncounted += usize::from(went_through > 0);
            // Of the turns of a worker that is busy not each: to take over what was counted takes as long as some requests. One that sleeps, or looks in
            // vain, has told all.
            if went_through == 0 || self.uncounted >= COUNT_TURNS {
                self.count_port(state);
            }
        }
        went_through
    }

    /// Sends what has waited for the answers of invocations, and did not leave with them.
    fn send_kept_back(&mut self) {
        if mem::take(&mut self.kept_back)
            && let Some(mut state) = self.shared.ports[self.index].open(true)
        {
            state.transmit();
        }
    }

    /// Decides now and then who is dropped early.
    fn look_at_overload(&mut self, intake: &mut Intake, state: &mut PortState) {
        if !self.overload.is_due(self.now_us) {
            return;
        }
        let (snapshot, worker) = (&self.snapshot, self.index);
        self.overload.end_window(self.now_us, intake, &state.desk.known, &mut state.driver, |class, window, keep| {
            if let Some(view) = class.and_then(|tenant| snapshot.tenant(tenant)) {
                let counters = view.tenant.usage.worker(worker);
                counters.packets_shed.add(window.shed + window.sieved);
                counters.dropped_early_per_mille.set((1000.0 - 1000.0 * keep) as u64);
            }
        });
        let counters = &self.counters;
        counters.packets_shed.set(intake.shed());
        counters.packets_dropped_early.set(self.overload.pressure.thrown_away);
        counters.throttled.set(self.overload.throttled() as u64);
        state.driver.details(&mut |name, count| counters.set_detail(name, count));
        state.desk.lift_us = self.overload.timer_us();
    }

    /// Admits the messages of a burst, plans all their operations, and runs them.
    fn serve_messages<'d>(
        &mut self,
        snapshot: &'d Snapshot,
        requests: &'d [Incoming<'d>],
        bills: &mut Bills,
        port: usize,
        desk: &mut Desk,
    ) {
        let mut responses = mem::take(&mut self.responses);
        let counters = Arc::clone(&self.counters);
        let (now_us, allow_plaintext, stops) = (self.now_us, self.shared.allow_plaintext, self.stops);
        let (worker, last) = (self.index, Cell::new(None));
        let door = Door { snapshot, last, counters: &counters, worker, now_us, allow_plaintext, stops };
        let mut admitted: ArrayVec<Admitted<'d>, BURST> = ArrayVec::new();
        for (number, (incoming, response)) in requests.iter().zip(&mut responses).enumerate() {
            let Incoming { share, request, .. } = incoming;
            let verdict = admit(&door, (number, incoming), desk, &mut response.bytes, &mut admitted);
            bills.add_refused(*share, mem::take(&mut desk.refused));
            match verdict {
                Verdict::Run => {
                    if let Some(Admitted { origin: Origin { header, .. }, requests, .. }) = admitted.last() {
                        self.bill(header.tenant, *requests);
                        start_response(header, header.operations, &mut response.bytes);
                    }
                }
                Verdict::Answer(origin) => {
                    bills.add_work(*share, gets_of_bytes(request.message.len() + response.bytes.len()));
                    desk.answer(self.now_us, &origin, &response.bytes);
                }
                Verdict::Refuse(origin) => {
                    bills.add_work(*share, gets_of_bytes(request.message.len() + response.bytes.len()));
                    desk.refuse(&origin, &response.bytes);
                }
                Verdict::Silence => {}
            }
        }
        let mut plan: ArrayVec<Planned<'_>, PLAN> = ArrayVec::new();
        let mut reached = Reached::default();
        for message in &admitted {
            let mut operation = message.first;
            let mut others = message.others.clone().flatten();
            for part in 0.. {
                let (table, hash) = look_up(message.view, &operation, &mut reached);
                plan.push(Planned { message, part, operation, table, hash });
                if plan.is_full() {
                    self.run_plan(&mut plan, &mut responses, port, desk);
                    // A grant may have ended meanwhile.
                    reached = Reached::default();
                }
                let Some(next) = others.next() else { break };
                operation = next;
            }
        }
        self.run_plan(&mut plan, &mut responses, port, desk);
        for message in &admitted {
            if message.ranges.owed() > 0 {
                self.bill(message.view.tenant.id, message.ranges.owed());
            }
            let response = &mut responses[message.number];
            let answered = response.bytes.len() + response.tail.as_deref().map_or(0, <[u8]>::len);
            match response.tail.take() {
                _ if message.ticket.is_some() => {}
                Some(tail) => desk.answer_shared(self.now_us, &message.origin, &response.bytes, tail),
                None => desk.answer(self.now_us, &message.origin, &response.bytes),
            }
            let Incoming { share, request, .. } = &requests[message.number];
            let bytes = request.message.len() + answered;
            let operations = message.requests.saturating_add(message.ranges.owed());
            bills.add_work(*share, operations.saturating_sub(1).saturating_add(gets_of_bytes(bytes)));
        }
        responses.iter_mut().take(requests.len()).for_each(|response| pooled(&mut response.bytes));
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
        plan: &mut ArrayVec<Planned<'_>, PLAN>,
        responses: &mut [Response],
        port: usize,
        desk: &mut Desk,
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
                entry.table.prefetch_further(&guard, planned.hash);
            }
            further &= further - 1;
        }
        for planned in plan.iter() {
            count(&self.counters.requests, planned.operation.op as usize);
            let Some(ticket) = planned.message.ticket else {
                let Response { bytes, tail } = &mut responses[planned.message.number];
                let tail = (self.shared.zero_copy && planned.ends_an_answer()).then_some(tail);
                let packet = self.packet(planned, port, desk);
                let status = self.run_plain(planned, packet, bytes, tail);
                count(&self.counters.responses, status as usize);
                continue;
            };
            let mut answer = mem::take(&mut self.answer);
            answer.clear();
            let status = match planned.operation.op {
                Op::Invoke => {
                    let caller = Caller::Datagram { port: port as u32, part: planned.part as u32, ticket };
                    self.begin_task(planned.message.view, &planned.operation, caller, &mut answer)
                }
                _ => {
                    let packet = self.packet(planned, port, desk);
                    Some(self.run_plain(planned, packet, &mut answer, None))
                }
            };
            if let Some(status) = status {
                count(&self.counters.responses, status as usize);
                desk.deliver(self.now_us, ticket, planned.part, |response| response.extend_from_slice(&answer));
            }
            self.answer = answer;
        }
        plan.clear();
    }

    /// The packet that an operation came in, if a value of it may stay there. Whoever serves, the buffers are those of the port's queue.
    fn packet<'p>(&self, planned: &Planned<'p>, port: usize, desk: &'p Desk) -> Option<Packet<'p>> {
        let (message, kept) = (planned.message, desk.kept.as_ref()?);
        let (share, usage) = (message.packet?, &message.view.tenant.usage);
        let refused = &usage.worker(self.index).not_kept;
        Some(Packet { share, is_stored: &message.is_stored, kept, port, usage, refused })
    }

    /// Runs one operation that needs no tenant code, and appends its answer: to `tail`, if there is one, a value that is to be sent from where it
    /// is stored.
    fn run_plain(
        &self,
        planned: &Planned<'_>,
        packet: Option<Packet<'_>>,
        response: &mut Vec<u8>,
        tail: Option<&mut Option<Share>>,
    ) -> Status {
        let operation = &planned.operation;
        match operation.op {
            Op::Ping if !plain::has_room(response, operation.encoded_len()) => {
                plain::refuse(operation, Status::TooLarge, plain::FULL, response)
            }
            Op::Ping => {
                encode_operation(&Operation { value: operation.value, ..Operation::new(Op::Ping) }, response);
                Status::Ok
            }
            Op::Hello => self.hello(planned.message.view, response),
            Op::Get | Op::MultiGet | Op::Put | Op::Delete | Op::Increment | Op::Range | Op::Invoke => {
                let Some(entry) = planned.table else {
                    return plain::refuse_table(planned.message.view, operation, response);
                };
                let context = plain::Context {
                    participant: &self.participant,
                    now_ms: self.now_ms,
                    counters: &self.counters,
                    ranges: &planned.message.ranges,
                    packet,
                };
                plain::run(&context, &entry.table, operation, planned.hash, (response, tail))
            }
        }
    }

    /// Tells a client which worker it has reached, how many there are, and which is its tenant's home.
    fn hello(&self, view: &TenantView, response: &mut Vec<u8>) -> Status {
        let value = HelloAnswer { workers: self.shared.ports.len() as u32, home: view.tenant.home_worker }.encode();
        let (number, user_flags) = (self.index as u64, self.shared.start);
        let answer = Operation { number, user_flags, value: &value, ..Operation::new(Op::Hello) };
        encode_operation(&answer, response);
        Status::Ok
    }

    /// Polls ready tasks, round robin over tenants, for one turn, then answers those that ended. Tells how many polls.
    pub(super) fn poll_tasks(&mut self) -> usize {
        let (mut polls, mut cpu_ns) = (0, 0);
        if self.live == 0 && self.offered.is_empty() {
            return 0;
        }
        self.shared.held_up[self.index].store(true, Relaxed);
        self.rouse();
        self.engine.turn();
        self.take_back_offered();
        // A part of the answers is worth sending alone, if not too small: whoever waits for them goes on meanwhile.
        let enough = (self.live / 4).max(BURST);
        while polls < POLLS_PER_TURN && cpu_ns < TURN_CPU_NS && self.ended.len() < enough {
            let Some(mut next) = self.next_task() else { break };
            // It is likely to take its whole slice: neither answers that are ready nor packets that have come are to wait for that.
            if polls > 0 && next.task.invocation.is_switched_out() {
                self.queue.put_back(next);
                break;
            }
            let shared = self.asked.beside(self.queue.tenant(&next), self.now_us);
            self.engine.limit_slices(shared.then_some(SHARED_SLICE_US));
            let interleave = self.queue.interleaves() && self.shared.interleave;
            if interleave {
                let engine = &mut self.engine;
                cpu_ns += self.queue.look_ahead(|ahead, is_last| {
                    engine.fetch_ahead(&mut ahead.invocation, &next.task.invocation, is_last)
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
        self.shared.held_up[self.index].store(false, Relaxed);
        self.last_turn_was_long = cpu_ns >= TURN_CPU_NS;
        self.polls_are_short = cpu_ns <= polls as u64 * SHORT_POLL_NS;
        if self.last_turn_was_long {
            self.queue.requeue();
        }
        self.counters.polls.add(polls as u64);
        self.counters.invocation_cpu_ns.add(cpu_ns);
        self.answer_ended();
        self.offer_tasks();
        polls
    }
}

/// The table that was named last, as it was reached: operations of a plan mostly name the same.
#[derive(Default)]
struct Reached<'v>(Option<(&'v TenantView, u64, bool, Option<&'v TableEntry>)>);

impl<'v> Reached<'v> {
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
fn look_up<'v>(
    view: &'v TenantView,
    operation: &Operation<'_>,
    reached: &mut Reached<'v>,
) -> (Option<&'v TableEntry>, u64) {
    if matches!(operation.op, Op::Ping | Op::Hello | Op::Invoke) {
        return (None, 0);
    }
    let table = reached.table(view, operation.table, plain::writes(operation.op));
    let hash = match table {
        Some(entry) if !matches!(operation.op, Op::MultiGet | Op::Range) => {
            let hash = entry.table.hash(operation.key);
            entry.table.prefetch_bucket(hash);
            hash
        }
        _ => 0,
    };
    (table, hash)
}

//! memcached over UDP: requests of one datagram each, answered in one or more, for the tenant of the port. In a cluster
//! those for keys of other servers are answered once these have answered.

use std::collections::VecDeque;
use std::sync::Arc;

use sandstorm_log::PositionState;
use sandstorm_net::driver::{Burst, DatagramDriver, Outbox, UdpDriver};
use sandstorm_net::forwarding::ForwardedAnswer;
use sandstorm_net::memcached::udp::{MemcachedUdpHeader, split_response};
use sandstorm_net::r2p2::DatagramSink;

use super::forwarded_datagrams::{DatagramOrigin, ForwardedDatagrams};
use super::uncertain::{ends_in_any_order, uncertain_of};
use crate::limits::PENDING_DATAGRAM_BYTES;
use crate::limits::connections::{RETAINED_BUFFER_BYTES, TURN_NS};
use crate::workers::context::WorkerContext;
use crate::workers::executor::RequestExecutor;
use crate::workers::waits::add_answer_wait;
use sandstorm_accounts::{RequestSubject, RequestWaits};
use sandstorm_dialects::PortService;
use sandstorm_dialects::limits::protocols::DATAGRAM_WORK;
use sandstorm_dialects::memcached::{MemcachedSession, SHUTTING_DOWN};
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_store::backed::waits::later_of;

/// A socket of one worker, on an address that all workers share.
pub(in crate::workers) struct UdpPort {
    pub(super) driver: UdpDriver,
    burst: Burst,
    /// The first of its datagrams without an answer.
    next: usize,
    /// When they were taken, in the workers' nanoseconds.
    taken_ns: u64,
    requests: DatagramRequests,
}

/// The requests of a port's datagrams, and their answers.
struct DatagramRequests {
    /// The session of all senders: the datagrams are independent.
    session: MemcachedSession,
    /// Datagrams that were no requests.
    dropped: u64,
    outbox: Outbox,
    answer: Vec<u8>,
    /// Datagrams that wait for other servers of the cluster.
    forwarded: ForwardedDatagrams,
    /// Answers that wait for the log.
    pending: VecDeque<PendingDatagram>,
    /// Bytes of these.
    pending_bytes: usize,
}

/// An answer that waits for the log.
struct PendingDatagram {
    position: u64,
    origin: DatagramOrigin,
    answer: Vec<u8>,
    /// Its tenant, and what it is about.
    tenant: u32,
    subject: RequestSubject,
    /// Since when its answer waits, in the workers' nanoseconds.
    since_ns: u64,
}

impl UdpPort {
    pub(in crate::workers) fn new(driver: UdpDriver, service: &Arc<PortService>) -> UdpPort {
        let burst = driver.burst();
        let requests = DatagramRequests {
            session: MemcachedSession::new(service),
            dropped: 0,
            outbox: Outbox::default(),
            answer: Vec::new(),
            forwarded: ForwardedDatagrams::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
        };
        UdpPort { driver, burst, next: 0, taken_ns: 0, requests }
    }

    /// Datagrams that were not answered.
    pub(super) fn dropped(&self) -> u64 {
        self.requests.dropped + self.driver.counters().truncated
    }

    /// Whether answers wait for the socket.
    pub(super) fn is_full(&self) -> bool {
        !self.requests.outbox.is_empty()
    }

    /// Whether there are requests that can be answered.
    pub(super) fn has_requests(&self) -> bool {
        self.next < self.burst.len() || self.requests.forwarded.has_answered()
    }

    /// Whether some wait for other servers of the cluster.
    pub(super) fn has_forwarded(&self) -> bool {
        self.requests.forwarded.has_waiting()
    }

    /// Notes what other servers have answered to a datagram's commands.
    pub(super) fn note_answers(&mut self, number: u64, answers: Vec<ForwardedAnswer>, context: &WorkerContext) {
        self.requests.forwarded.note_answers(number, answers, context);
    }

    /// The position that the first answer waits for.
    pub(super) fn first_pending(&self) -> Option<u64> {
        self.requests.pending.front().map(|pending| pending.position)
    }

    /// The positions of which one may be reached before the others: the first one, and those that wait
    /// for backings or for copies.
    pub(super) fn pending_positions(&self) -> impl Iterator<Item = u64> {
        let others = self.requests.pending.iter().skip(1).map(|pending| pending.position);
        self.first_pending().into_iter().chain(others.filter(|position| ends_in_any_order(*position)))
    }

    /// Sends the answers that need not wait any more. Returns their number.
    pub(super) fn release_pending(&mut self, context: &mut WorkerContext) -> usize {
        let released = self.requests.release_pending(context);
        if released > 0 {
            context.note_ready();
            self.driver.transmit(&mut self.requests.outbox);
        }
        released
    }

    /// Answers requests, for a limited time, and sends waiting answers. `port` is the port's number at its worker.
    pub(super) fn serve(&mut self, port: usize, executor: &mut RequestExecutor) {
        if self.next >= self.burst.len() {
            self.driver.receive(&mut self.burst);
            self.next = 0;
            self.taken_ns = executor.context.clock.now_ns;
            executor.refresh_snapshot();
        }
        let begun_ns = executor.context.clock.read_ns();
        let arrivals = executor.context.clock.arrivals;
        executor.context.answered.begin_batch(begun_ns);
        let mut work = self.requests.resume(port, begun_ns, executor);
        for (index, (peer, datagram)) in self.burst.iter().enumerate().skip(self.next) {
            if executor.context.clock.read_ns() - begun_ns > TURN_NS {
                break;
            }
            self.next += 1;
            executor.context.counters.connection_bytes_in.add(datagram.len() as u64);
            let Some((header, payload)) =
                MemcachedUdpHeader::decode(datagram).filter(|(_, payload)| !looks_like_response(payload))
            else {
                self.requests.dropped += 1;
                continue;
            };
            let taken_ns = self.taken_ns;
            let received_ns = self.burst.arrival_unix_ns(index).map(|ns| arrivals.received_ns(ns, taken_ns));
            let received_ns = received_ns.unwrap_or(taken_ns);
            let origin = DatagramOrigin { peer, request: header.request, received_ns, taken_ns };
            work = work.saturating_add(self.requests.run(origin, (header.count, payload), port, executor));
        }
        executor.charge_connection(self.requests.session.identity(), work);
        executor.context.note_ready();
        self.driver.transmit(&mut self.requests.outbox);
        if self.requests.answer.capacity() > RETAINED_BUFFER_BYTES {
            self.requests.answer = Vec::new();
        }
    }
}

impl DatagramRequests {
    /// Runs the request of a datagram, the first of `count`, and answers it or sets it aside. Returns its work, in
    /// plain requests.
    fn run(
        &mut self,
        origin: DatagramOrigin,
        (count, payload): (u16, &[u8]),
        port: usize,
        executor: &mut RequestExecutor,
    ) -> u32 {
        self.answer.clear();
        let (mut work, mut subject) = (0, None);
        if executor.context.is_draining {
            self.session.reply_closing(payload, SHUTTING_DOWN, &mut self.answer);
        } else if count == 1 {
            let context = executor.command_context(DATAGRAM_WORK);
            let forwarded = self.session.run_datagram(&context, payload, &mut self.answer);
            work = context.work_done();
            if let Some(forwarded) = forwarded {
                let shown = executor.context.participant.shown().take();
                let origin_shown = (origin, shown, false);
                if let Some(forwarded) = self.forwarded.begin(origin_shown, forwarded, port, &executor.context) {
                    self.session.give_up_datagram(forwarded, &mut self.answer);
                    self.reply(origin, self.subject(), shown, &mut executor.context);
                }
                return work;
            }
            subject = self.subject();
        } else {
            self.answer.extend_from_slice(b"SERVER_ERROR multi-packet request not supported\r\n");
        }
        let position = executor.context.participant.shown().take();
        self.reply(origin, subject, position, &mut executor.context);
        work
    }

    /// Goes on with datagrams for which other servers have answered, for a limited time. Returns the work.
    fn resume(&mut self, port: usize, begun_ns: u64, executor: &mut RequestExecutor) -> u32 {
        let mut work = 0u32;
        while executor.context.clock.read_ns() - begun_ns <= TURN_NS
            && let Some((waiting, answers)) = self.forwarded.take_answered(&executor.context)
        {
            self.answer.clear();
            let forwarded = match executor.context.is_draining {
                true => {
                    self.session.stop_datagram(waiting.suspended, answers, &mut self.answer);
                    None
                }
                false => {
                    let context = executor.command_context(DATAGRAM_WORK);
                    let forwarded =
                        self.session.resume_datagram(&context, waiting.suspended, answers, &mut self.answer);
                    work = work.saturating_add(context.work_done());
                    forwarded
                }
            };
            let shown = later_of(waiting.shown, executor.context.participant.shown().take());
            let origin = waiting.origin;
            if let Some(forwarded) = forwarded {
                let begun = self.forwarded.begin((origin, shown, true), forwarded, port, &executor.context);
                // What has run keeps its answers.
                let Some(given_up) = begun else { continue };
                self.session.give_up_datagram(given_up, &mut self.answer);
            }
            self.reply(origin, self.subject(), shown, &mut executor.context);
        }
        work
    }

    /// Whose the last request was, and what it was about.
    fn subject(&self) -> Option<(u32, RequestSubject)> {
        self.session.identity().map(|identity| (identity.tenant(), self.session.first_command()))
    }

    /// Sends the answer to a datagram, once the log is on the disk up to `position`.
    fn reply(
        &mut self,
        origin: DatagramOrigin,
        subject: Option<(u32, RequestSubject)>,
        position: u64,
        context: &mut WorkerContext,
    ) {
        if self.answer.is_empty() {
            return;
        }
        context.counters.connection_bytes_out.add(self.answer.len() as u64);
        if context.position_state(position) == PositionState::OnDisk {
            send(&mut self.outbox, origin, &self.answer);
            if let Some((tenant, subject)) = subject {
                context.answered.note(tenant, RequestClass::Memcached, origin.received_ns, || subject);
            }
            return;
        }
        if self.pending_bytes + self.answer.len() > PENDING_DATAGRAM_BYTES {
            self.dropped += 1;
            return;
        }
        let answer = self.answer.clone();
        self.pending_bytes += answer.len();
        let (tenant, subject) = subject.unwrap_or((0, RequestSubject::of("memcached")));
        let since_ns = context.clock.now_ns;
        self.pending.push_back(PendingDatagram { position, origin, answer, tenant, subject, since_ns });
        context.mark_holding_connections(position);
    }

    /// Puts those answers into the outbox that need not wait for the log any more. Returns their number.
    fn release_pending(&mut self, context: &mut WorkerContext) -> usize {
        let (mut released, now_ns) = (0, context.clock.now_ns);
        // A datagram's answer has no order, and one that waits for a backing is not to hold up the others.
        for _ in 0..self.pending.len() {
            let Some(pending) = self.pending.pop_front() else { break };
            let state = context.position_state(pending.position);
            if state == PositionState::Waits {
                self.pending.push_back(pending);
                continue;
            }
            self.pending_bytes -= pending.answer.len();
            let (origin, mut answer) = (pending.origin, pending.answer);
            if state == PositionState::Uncertain {
                context.counters.answers_not_durable.add(1);
                let in_vain = std::mem::take(&mut answer);
                MemcachedSession::datagram_not_durable(&in_vain, uncertain_of(pending.position), &mut answer);
            }
            send(&mut self.outbox, origin, &answer);
            context.answered.begin_batch(now_ns);
            context.answered.note(pending.tenant, RequestClass::Memcached, origin.received_ns, || pending.subject);
            let mut waits = RequestWaits::default();
            add_answer_wait(&mut waits, pending.position, now_ns.saturating_sub(pending.since_ns));
            context.answered.note_waits(waits);
            released += 1;
        }
        released
    }
}

/// Puts the datagrams of an answer into the outbox, with the request's number.
fn send(outbox: &mut Outbox, origin: DatagramOrigin, answer: &[u8]) {
    for (header, part) in split_response(origin.request, answer).into_iter().flatten() {
        outbox.send(origin.peer, &[&header, part]);
    }
}

/// Whether a datagram begins as answers do. Answers are never answered: else two servers with forged addresses of each
/// other would exchange errors for ever.
fn looks_like_response(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| first.is_ascii_uppercase() || first.is_ascii_digit())
}

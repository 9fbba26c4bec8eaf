//! memcached over UDP: requests of one datagram each, answered in one or more, for the tenant of the port.

use std::collections::VecDeque;
use std::sync::Arc;

use sandstorm_log::PositionState;
use sandstorm_net::driver::{Burst, DatagramDriver, Outbox, UdpDriver};
use sandstorm_net::memcached::udp::{MemcachedUdpHeader, split_response};
use sandstorm_net::r2p2::{DatagramSink, PeerAddr};

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

/// A socket of one worker, on an address that all workers share.
pub(in crate::workers) struct UdpPort {
    pub(super) driver: UdpDriver,
    /// The session of all senders: the datagrams are independent.
    session: MemcachedSession,
    burst: Burst,
    /// The first of its datagrams without an answer.
    next: usize,
    /// When they were received, in the workers' nanoseconds.
    received_ns: u64,
    /// Datagrams that were no requests.
    dropped: u64,
    outbox: Outbox,
    answer: Vec<u8>,
    /// Answers that wait for the log.
    pending: VecDeque<PendingDatagram>,
    /// Bytes of these.
    pending_bytes: usize,
}

/// An answer that waits for the log.
struct PendingDatagram {
    position: u64,
    peer: PeerAddr,
    request: u16,
    answer: Vec<u8>,
    /// Its tenant, and what it is about.
    tenant: u32,
    subject: RequestSubject,
    /// When it was received, and since when its answer waits, in the workers' nanoseconds.
    received_ns: u64,
    since_ns: u64,
}

impl UdpPort {
    pub(in crate::workers) fn new(driver: UdpDriver, service: &Arc<PortService>) -> UdpPort {
        let (session, burst) = (MemcachedSession::new(service), driver.burst());
        UdpPort {
            driver,
            session,
            burst,
            next: 0,
            received_ns: 0,
            dropped: 0,
            outbox: Outbox::default(),
            answer: Vec::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
        }
    }

    /// Datagrams that were not answered.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped + self.driver.counters().truncated
    }

    /// Whether answers wait for the socket.
    pub(super) fn is_full(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether there are requests that are not answered yet.
    pub(super) fn has_requests(&self) -> bool {
        self.next < self.burst.len()
    }

    /// The position that the first answer waits for.
    pub(super) fn first_pending(&self) -> Option<u64> {
        self.pending.front().map(|pending| pending.position)
    }

    /// The positions of which one may be reached before the others: the first one, and those that wait
    /// for backings or for copies.
    pub(super) fn pending_positions(&self) -> impl Iterator<Item = u64> {
        let backed =
            self.pending.iter().skip(1).map(|pending| pending.position).filter(|position| ends_in_any_order(*position));
        self.first_pending().into_iter().chain(backed)
    }

    /// Sends the answers that need not wait any more. Returns their number.
    pub(super) fn release_pending(&mut self, context: &mut WorkerContext) -> usize {
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
            let mut answer = pending.answer;
            if state == PositionState::Uncertain {
                context.counters.answers_not_durable.add(1);
                answer.clear();
                self.session.not_durable(uncertain_of(pending.position), &mut answer);
            }
            for (header, part) in split_response(pending.request, &answer).into_iter().flatten() {
                self.outbox.send(pending.peer, &[&header, part]);
            }
            context.answered.begin_batch(now_ns);
            context.answered.note(pending.tenant, RequestClass::Memcached, pending.received_ns, || pending.subject);
            let mut waits = RequestWaits::default();
            add_answer_wait(&mut waits, pending.position, now_ns.saturating_sub(pending.since_ns));
            context.answered.note_waits(waits);
            released += 1;
        }
        if released > 0 {
            context.note_ready();
            self.driver.transmit(&mut self.outbox);
        }
        released
    }

    /// Answers requests, for a limited time, and sends waiting answers.
    pub(super) fn serve(&mut self, executor: &mut RequestExecutor) {
        if !self.has_requests() {
            self.driver.receive(&mut self.burst);
            self.next = 0;
            self.received_ns = executor.context.clock.now_ns;
            executor.refresh_snapshot();
        }
        let (begun_ns, received_ns, mut requests) = (executor.context.clock.read_ns(), self.received_ns, 0u32);
        executor.context.answered.begin_batch(begun_ns);
        for (peer, datagram) in self.burst.iter().skip(self.next) {
            if executor.context.clock.read_ns() - begun_ns > TURN_NS {
                break;
            }
            self.next += 1;
            executor.context.counters.connection_bytes_in.add(datagram.len() as u64);
            let Some((header, payload)) =
                MemcachedUdpHeader::decode(datagram).filter(|(_, payload)| !looks_like_response(payload))
            else {
                self.dropped += 1;
                continue;
            };
            self.answer.clear();
            let mut subject = None;
            if executor.context.is_draining {
                self.session.reply_closing(payload, SHUTTING_DOWN, &mut self.answer);
            } else if header.count == 1 {
                let context = executor.command_context(DATAGRAM_WORK);
                self.session.run_datagram(&context, payload, &mut self.answer);
                requests = requests.saturating_add(context.work_done());
                subject = self.session.identity().map(|identity| (identity.tenant(), self.session.first_command()));
            } else {
                self.answer.extend_from_slice(b"SERVER_ERROR multi-packet request not supported\r\n");
            }
            executor.context.counters.connection_bytes_out.add(self.answer.len() as u64);
            let position = executor.context.participant.shown().take();
            if !self.answer.is_empty() && executor.context.position_state(position) != PositionState::OnDisk {
                if self.pending_bytes + self.answer.len() <= PENDING_DATAGRAM_BYTES {
                    let answer = self.answer.clone();
                    self.pending_bytes += answer.len();
                    let (tenant, subject) = subject.unwrap_or((0, RequestSubject::of("memcached")));
                    let request = header.request;
                    let since_ns = executor.context.clock.now_ns;
                    let pending =
                        PendingDatagram { position, peer, request, answer, tenant, subject, received_ns, since_ns };
                    self.pending.push_back(pending);
                    executor.context.mark_holding_connections(position);
                } else {
                    self.dropped += 1;
                }
                continue;
            }
            for (header, part) in split_response(header.request, &self.answer).into_iter().flatten() {
                self.outbox.send(peer, &[&header, part]);
            }
            if let Some((tenant, subject)) = subject.filter(|_| !self.answer.is_empty()) {
                executor.context.answered.note(tenant, RequestClass::Memcached, received_ns, || subject);
            }
        }
        executor.charge_connection(self.session.identity(), requests);
        executor.context.note_ready();
        self.driver.transmit(&mut self.outbox);
        if self.answer.capacity() > RETAINED_BUFFER_BYTES {
            self.answer = Vec::new();
        }
    }
}

/// Whether a datagram begins as answers do. Answers are never answered: else two servers with forged addresses of each
/// other would exchange errors for ever.
fn looks_like_response(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| first.is_ascii_uppercase() || first.is_ascii_digit())
}

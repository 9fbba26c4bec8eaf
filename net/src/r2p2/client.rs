//! The client's side: requests go out, responses come in. One endpoint per server port.

use super::header::{
    AckReport, MessageFragment, MtuProbeStep, R2p2Body, R2p2Kind, R2p2Packet, report_packet, single_header,
};
use super::in_flight::{InFlightRequest, SendState, TaggedRequest};
use super::mtu_probe::MtuProber;
use super::transfer::{ChunkLayout, PartialMessage, WindowSender, announce, is_newer_incarnation};
use super::{
    DatagramSink, MalformedCounters, MessageBufferPool, PeerAddr, ReceivedMessage, clamp_datagram_len, message_ident,
    session_and_sequence,
};
use crate::limits::{ClientLimits, MAX_REQUEST_LIFETIME_US, MAX_RTO_US, TIMER_GRANULARITY_US, WINDOW};
use crate::rpc::MESSAGE_HEADER_LEN;
use std::collections::VecDeque;
use thiserror::Error;

/// The reason why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// As many requests or bytes are in flight as allowed.
    #[error("as many requests or bytes are in flight as the limits allow; wait for an answer")]
    Busy,
    /// The message is longer than the limit.
    #[error("message of {0} bytes is longer than the limit of {1}")]
    TooLarge(usize, usize),
    /// The message has no RPC header.
    #[error("message of {0} bytes is shorter than an RPC header")]
    TooShort(usize),
}

/// The reason why a request ended without an answer. It may or may not have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestFailure {
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// No answer in time, and the last that the server said was that it has no room.
    #[error("the server had no room for the request until its time was up")]
    Refused,
}

/// A request that ended without an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct FailedRequest<K = ()> {
    /// The request.
    pub request_id: u16,
    /// The request.
    pub request: TaggedRequest<K>,
    /// The reason.
    pub failure: RequestFailure,
}

/// The answer to a request. Its session and sequence have been compared with the request's.
#[derive(Debug, PartialEq, Eq)]
pub struct R2p2Response<'p, K = ()> {
    /// The request.
    pub request_id: u16,
    /// The request.
    pub request: TaggedRequest<K>,
    /// The RPC message.
    pub message: ReceivedMessage<'p>,
}

/// An endpoint's counters since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct R2p2ClientCounters {
    /// Datagrams taken.
    pub datagrams: u64,
    /// Datagrams that were no packets for a client.
    pub malformed: MalformedCounters,
    /// Requests sent.
    pub requests: u64,
    /// Responses delivered.
    pub responses: u64,
    /// Packets resent.
    pub retransmissions: u64,
    /// Packets of a response that had been received before.
    pub duplicates: u64,
    /// Packets for no request in flight, or with another session or sequence than the request of that id.
    pub stray: u64,
    /// Packets of a response for which there was no room, or whose message is over the limit.
    pub no_room: u64,
    /// Drops received: the server had no room.
    pub refusals: u64,
    /// Requests that ended without an answer.
    pub timed_out: u64,
    /// Acks sent.
    pub acks_sent: u64,
}

/// Memory in use by an endpoint; all zero when nothing is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientUsage {
    /// Requests in flight.
    pub requests: usize,
    /// Their bytes.
    pub request_bytes: usize,
    /// Bytes of responses under reassembly.
    pub response_bytes: usize,
}

#[derive(Debug)]
struct RequestSlot<K> {
    generation: u16,
    /// Its place in [`ClientEndpoint::busy`] while it has a request.
    place: u16,
    flight: Option<InFlightRequest<K>>,
}

/// The client's side of the transport to one server port. `K` is the caller's tag of a request, returned when it ends.
#[derive(Debug)]
pub struct ClientEndpoint<K = ()> {
    server: PeerAddr,
    limits: ClientLimits,
    /// Slot `id % slots.len()` holds the request; the bits above are its generation. Free slots are used in rotation,
    /// so an id comes again only after 65,536 requests, or fewer when many are in flight.
    slots: Vec<RequestSlot<K>>,
    free: VecDeque<u16>,
    /// Slots with a request, in no order: timers look at these alone.
    busy: Vec<u16>,
    usage: ClientUsage,
    mtu_prober: MtuProber,
    buffers: MessageBufferPool,
    incarnation: u32,
    due_us: u64,
    counters: R2p2ClientCounters,
}

const NEVER: u64 = u64::MAX;
/// First waits that make a long one: 160 ms.
const LONG_WAIT_RTOS: u64 = 8;

impl ClientEndpoint {
    /// Sends a copy of a request, with the default timeout. `message` is an RPC message, named by its session and
    /// sequence.
    ///
    /// # Errors
    /// [`RequestError`]; nothing was sent then.
    pub fn request(&mut self, now_us: u64, message: &[u8], tx: &mut impl DatagramSink) -> Result<u16, RequestError> {
        self.request_with_timeout(now_us, self.limits.timeout_us, message, tx)
    }

    /// The same for a request that lives `timeout_us` microseconds (at most [`MAX_REQUEST_LIFETIME_US`]).
    ///
    /// # Errors
    /// [`RequestError`]; nothing was sent then.
    pub fn request_with_timeout(
        &mut self,
        now_us: u64,
        timeout_us: u64,
        message: &[u8],
        tx: &mut impl DatagramSink,
    ) -> Result<u16, RequestError> {
        let mut bytes = self.buffers.take(message.len());
        bytes.clear();
        bytes.extend_from_slice(message);
        let request = TaggedRequest { message: bytes, tag: () };
        self.send_tagged(now_us, timeout_us, request, tx).map_err(|(_, error)| error)
    }
}

impl<K> ClientEndpoint<K> {
    /// An endpoint towards `server` with nothing in flight. Settings out of range are brought into it.
    pub fn new(server: PeerAddr, mut limits: ClientLimits) -> ClientEndpoint<K> {
        limits.max_datagram = clamp_datagram_len(limits.max_datagram);
        limits.largest_datagram = clamp_datagram_len(limits.largest_datagram).max(limits.max_datagram);
        limits.window = if limits.window == 0 { WINDOW } else { limits.window };
        limits.first_rto_us = limits.first_rto_us.clamp(1, MAX_RTO_US);
        limits.in_flight = limits.in_flight.clamp(1, 4096).next_power_of_two();
        let slots = (0..limits.in_flight).map(|_| RequestSlot { generation: 0, place: 0, flight: None }).collect();
        ClientEndpoint {
            server,
            limits,
            free: (0..limits.in_flight as u16).collect(),
            slots,
            busy: Vec::new(),
            usage: ClientUsage::default(),
            mtu_prober: MtuProber::new(limits.max_datagram, limits.largest_datagram),
            buffers: MessageBufferPool::new(limits.pooled_bytes),
            incarnation: 0,
            due_us: NEVER,
            counters: R2p2ClientCounters::default(),
        }
    }

    /// The server's address: only datagrams from there may be given to [`ClientEndpoint::receive`].
    pub fn server(&self) -> PeerAddr {
        self.server
    }

    /// Returns the counters.
    pub fn counters(&self) -> &R2p2ClientCounters {
        &self.counters
    }

    /// Returns the memory in use.
    pub fn usage(&self) -> ClientUsage {
        self.usage
    }

    /// Begins to ask the server with the next request whether larger datagrams come through, if the limits allow those.
    /// From now on the server knows the tenant of this endpoint.
    pub fn start_mtu_probing(&mut self, now_us: u64) {
        self.mtu_prober.begin(now_us);
    }

    /// Bytes of the largest datagram that is sent, as far as is known now.
    pub fn datagram(&self) -> usize {
        self.mtu_prober.most()
    }

    /// Sends a request that lives `timeout_us` microseconds (at most [`MAX_REQUEST_LIFETIME_US`]). Its message is an
    /// RPC message, named by its session and sequence; the caller gets it back when the request has ended.
    ///
    /// # Errors
    /// The request, and the reason; nothing was sent then.
    pub fn send_tagged(
        &mut self,
        now_us: u64,
        timeout_us: u64,
        request: TaggedRequest<K>,
        tx: &mut impl DatagramSink,
    ) -> Result<u16, (TaggedRequest<K>, RequestError)> {
        let most = self.seek(now_us, tx);
        let (shape, index) = match self.reserve_slot(request.message.len(), most) {
            Ok(found) => found,
            Err(error) => return Err((request, error)),
        };
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return Err((request, RequestError::Busy)) };
        slot.generation = slot.generation.wrapping_add(1);
        slot.place = self.busy.len() as u16;
        self.busy.push(index);
        let request_id = slot.generation.wrapping_mul(self.limits.in_flight as u16) | index;
        self.incarnation = self.incarnation.wrapping_add(1);
        let (size, rto_us, head) =
            (request.message.len(), self.limits.first_rto_us, single_header(R2p2Kind::Request, request_id));
        let is_single = head.len() + size <= most;
        if is_single {
            tx.send(self.server, &[&head, &request.message]);
        }
        let flight = slot.flight.insert(InFlightRequest {
            ident: message_ident(&request.message),
            incarnation: self.incarnation,
            request,
            send_state: SendState::Single,
            due_us: now_us + rto_us,
            rto_us,
            ends_us: now_us + timeout_us.min(MAX_REQUEST_LIFETIME_US),
            refused: false,
            partial: None,
        });
        if !is_single {
            announce(&flight.name(request_id), &shape, self.server, tx);
            flight.send_state =
                SendState::Announced(Box::new(WindowSender::new(shape, self.limits.window, rto_us, now_us)));
        }
        self.due_us = self.due_us.min(flight.due_us).min(flight.ends_us).min(self.mtu_prober.due_us());
        self.usage.requests += 1;
        self.usage.request_bytes += size;
        self.counters.requests += 1;
        Ok(request_id)
    }

    /// Returns the layout in which a message of so many bytes is cut, and a slot for it.
    #[inline]
    fn reserve_slot(&mut self, size: usize, most: usize) -> Result<(ChunkLayout, u16), RequestError> {
        if size < MESSAGE_HEADER_LEN {
            return Err(RequestError::TooShort(size));
        }
        let shape = ChunkLayout::of(size, most).filter(|_| size <= self.limits.max_message);
        let shape = shape.ok_or(RequestError::TooLarge(size, self.limits.max_message))?;
        if self.usage.request_bytes + size > self.limits.request_bytes && self.usage.requests > 0 {
            return Err(RequestError::Busy);
        }
        self.free.pop_front().map(|index| (shape, index)).ok_or(RequestError::Busy)
    }

    /// The requests in flight.
    pub fn in_flight(&self) -> impl Iterator<Item = (u16, &TaggedRequest<K>)> {
        let count = self.limits.in_flight as u16;
        self.slots.iter().zip(0..).filter_map(move |(slot, index)| {
            let id = slot.generation.wrapping_mul(count) | index;
            slot.flight.as_ref().map(|flight| (id, &flight.request))
        })
    }

    /// Gives up a request; its answer will be ignored. It may or may not run.
    pub fn cancel(&mut self, request_id: u16) -> Option<TaggedRequest<K>> {
        self.end(request_id).map(|(request, _)| request)
    }

    /// The slot of a request, if it has been used for none since.
    #[inline]
    fn slot(&mut self, request_id: u16) -> Option<&mut RequestSlot<K>> {
        let count = self.limits.in_flight as u16;
        let slot = self.slots.get_mut(usize::from(request_id & (count - 1)))?;
        let current = slot.generation.wrapping_mul(count) == request_id & !(count - 1);
        current.then_some(slot)
    }

    fn flight(&mut self, request_id: u16) -> Option<&mut InFlightRequest<K>> {
        self.slot(request_id)?.flight.as_mut()
    }

    /// Removes a request. Returns the request, and the received part of its response.
    fn end(&mut self, request_id: u16) -> Option<(TaggedRequest<K>, Option<Box<PartialMessage>>)> {
        self.finish_if(request_id, |_| true)
    }

    /// The same, if it is so.
    #[inline]
    fn finish_if(
        &mut self,
        request_id: u16,
        is_so: impl FnOnce(&InFlightRequest<K>) -> bool,
    ) -> Option<(TaggedRequest<K>, Option<Box<PartialMessage>>)> {
        let slot = self.slot(request_id)?;
        let InFlightRequest { request, partial, .. } = slot.flight.take_if(|flight| is_so(flight))?;
        let place = slot.place;
        self.busy.swap_remove(usize::from(place));
        if let Some(moved) = self.busy.get(usize::from(place)).and_then(|moved| self.slots.get_mut(usize::from(*moved)))
        {
            moved.place = place;
        }
        self.free.push_back(request_id & (self.limits.in_flight as u16 - 1));
        self.usage.requests -= 1;
        self.usage.request_bytes -= request.message.len();
        if let Some(partial) = &partial {
            self.usage.response_bytes -= partial.shape.message_len as usize;
        }
        Some((request, partial))
    }

    /// Takes one datagram that came from the server. Returns the response that it completes, if it does.
    #[inline]
    pub fn receive<'p>(
        &mut self,
        now_us: u64,
        datagram: &'p [u8],
        tx: &mut impl DatagramSink,
    ) -> Option<R2p2Response<'p, K>> {
        self.counters.datagrams += 1;
        let packet = match R2p2Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(bad) => {
                self.counters.malformed.count(bad);
                return None;
            }
        };
        let request_id = packet.request_id;
        match (packet.kind, packet.body) {
            (R2p2Kind::Response, R2p2Body::Single(message)) => {
                let whole = message.len() >= MESSAGE_HEADER_LEN;
                let is_it = |flight: &InFlightRequest<K>| {
                    whole && session_and_sequence(&flight.request.message) == session_and_sequence(message)
                };
                let Some((request, _)) = self.finish_if(request_id, is_it) else {
                    self.counters.stray += 1;
                    return None;
                };
                self.counters.responses += 1;
                Some(R2p2Response { request_id, request, message: ReceivedMessage::Datagram(message) })
            }
            (R2p2Kind::Response, R2p2Body::Fragment(part)) => {
                let (request, message) = self.receive_fragment(now_us, request_id, &part, tx)?;
                Some(R2p2Response { request_id, request, message: ReceivedMessage::Reassembled(message) })
            }
            (R2p2Kind::Ack, R2p2Body::Report(report)) => {
                self.receive_ack(now_us, request_id, &report, tx);
                None
            }
            (R2p2Kind::Drop, R2p2Body::Report(report)) => {
                self.receive_drop(now_us, request_id, &report);
                None
            }
            (R2p2Kind::MtuProbe, R2p2Body::MtuProbe(packet)) if packet.step == MtuProbeStep::Echo => {
                self.mtu_prober.on_packet(now_us, &packet, self.server, tx);
                None
            }
            _ => {
                self.counters.malformed.kind += 1;
                None
            }
        }
    }

    fn receive_fragment(
        &mut self,
        now_us: u64,
        request_id: u16,
        part: &MessageFragment<'_>,
        tx: &mut impl DatagramSink,
    ) -> Option<(TaggedRequest<K>, Vec<u8>)> {
        let shape = ChunkLayout::of_fragment(part);
        let size = shape.message_len as usize;
        let room = self.limits.response_bytes.saturating_sub(self.usage.response_bytes);
        let max_message = self.limits.max_message;
        let server = self.server;
        let Some(flight) = self.flight(request_id).filter(|flight| flight.ident == part.ident) else {
            // Answered or given up: without this ack the server would resend until its time is up.
            self.counters.stray += 1;
            self.counters.acks_sent += 1;
            let whole = AckReport { ident: part.ident, incarnation: part.incarnation, next: part.count, map: 0 };
            tx.send(server, &[&report_packet(R2p2Kind::Ack, request_id, &whole)]);
            return None;
        };
        let mut freed = 0;
        if let Some(old) = &flight.partial
            && (old.incarnation != part.incarnation || old.shape != shape)
        {
            // A stalled response may be of a server that has restarted since: the present one counts from elsewhere on.
            if !is_newer_incarnation(part.incarnation, old.incarnation) && !old.is_idle(now_us) {
                self.counters.duplicates += 1;
                return None;
            }
            freed = old.shape.message_len as usize;
            flight.partial = None;
        }
        if flight.partial.is_none() {
            if size > max_message || size > room + freed {
                self.usage.response_bytes -= freed;
                self.counters.no_room += 1;
                return None;
            }
            let buffer = self.buffers.take(size);
            let partial = PartialMessage::new(shape, part.incarnation, 0, buffer, now_us);
            self.flight(request_id)?.partial = Some(Box::new(partial));
            self.usage.response_bytes = self.usage.response_bytes - freed + size;
        }
        let flight = self.flight(request_id)?;
        // The response is under way: asking again can wait.
        flight.due_us = now_us + flight.rto_us;
        let ident = flight.ident;
        self.mtu_prober.on_message_received(now_us, shape.datagram_len(), server, tx);
        let flight = self.flight(request_id)?;
        let partial = flight.partial.as_mut()?;
        let taken = partial.take(part, now_us);
        if taken.ack {
            let fields = partial.report(ident);
            tx.send(server, &[&report_packet(R2p2Kind::Ack, request_id, &fields)]);
        }
        self.counters.acks_sent += u64::from(taken.ack);
        self.counters.duplicates += u64::from(!taken.new);
        if taken.complete { self.finish_reassembled(request_id) } else { None }
    }

    fn finish_reassembled(&mut self, request_id: u16) -> Option<(TaggedRequest<K>, Vec<u8>)> {
        let request = self.flight(request_id).map(|flight| session_and_sequence(&flight.request.message))?;
        let answered = self.flight(request_id)?.partial.as_ref().map(|partial| session_and_sequence(&partial.bytes))?;
        if request != answered {
            // The digest was the same, the message is another: start over.
            let partial = self.flight(request_id)?.partial.take()?;
            self.usage.response_bytes -= partial.shape.message_len as usize;
            self.counters.stray += 1;
            return None;
        }
        let (request, partial) = self.end(request_id)?;
        self.counters.responses += 1;
        partial.map(|partial| (request, partial.bytes))
    }

    fn receive_ack(&mut self, now_us: u64, request_id: u16, report: &AckReport, tx: &mut impl DatagramSink) {
        let (server, first_rto_us) = (self.server, self.limits.first_rto_us);
        let known = self.flight(request_id);
        let matches =
            |flight: &&mut InFlightRequest<K>| flight.ident == report.ident && flight.incarnation == report.incarnation;
        let Some(flight) = known.filter(matches) else {
            self.counters.stray += 1;
            return;
        };
        let name = flight.name(request_id);
        let (send_state, resent) = match std::mem::replace(&mut flight.send_state, SendState::Single) {
            SendState::Single => (SendState::Single, 0),
            SendState::Acked(sender) => (SendState::Acked(sender), 0),
            SendState::Announced(sender) => {
                flight.advance(sender, true, report, first_rto_us, now_us, |sender, message| {
                    sender.pump(&name, server, message, tx)
                })
            }
            SendState::Sending(sender) => {
                flight.advance(sender, false, report, first_rto_us, now_us, |sender, message| {
                    sender.pump(&name, server, message, tx)
                })
            }
        };
        flight.send_state = send_state;
        let due_us = flight.due_us;
        self.due_us = self.due_us.min(due_us);
        self.counters.retransmissions += resent;
    }

    fn receive_drop(&mut self, now_us: u64, request_id: u16, report: &AckReport) {
        let Some(flight) = self.flight(request_id).filter(|flight| flight.ident == report.ident) else {
            self.counters.stray += 1;
            return;
        };
        flight.refused = true;
        // The server forgot its part of the request: begin anew, after a wait.
        flight.send_state = match std::mem::replace(&mut flight.send_state, SendState::Single) {
            SendState::Single => SendState::Single,
            SendState::Announced(mut sender) | SendState::Sending(mut sender) | SendState::Acked(mut sender) => {
                sender.restart();
                SendState::Announced(sender)
            }
        };
        flight.due_us = now_us + flight.rto_us;
        self.counters.refusals += 1;
    }

    /// Resends what is due, and reports requests whose time is up. Costs one comparison when nothing is due. Returns
    /// the time of the next timer, if there is one.
    #[inline]
    pub fn poll_timers(
        &mut self,
        now_us: u64,
        tx: &mut impl DatagramSink,
        ended: &mut impl FnMut(FailedRequest<K>),
    ) -> Option<u64> {
        if now_us >= self.due_us {
            self.run_timers(now_us, tx, ended);
        }
        (self.due_us != NEVER).then_some(self.due_us)
    }

    /// Goes on with the search for larger datagrams, if it is time; bytes of the largest that may be sent now.
    #[inline]
    fn seek(&mut self, now_us: u64, tx: &mut impl DatagramSink) -> usize {
        if self.mtu_prober.is_due(now_us) {
            self.mtu_prober.work(now_us, self.server, tx);
        }
        self.mtu_prober.most().min(tx.most(self.server))
    }

    #[cold]
    fn run_timers(&mut self, now_us: u64, tx: &mut impl DatagramSink, ended: &mut impl FnMut(FailedRequest<K>)) {
        let (count, window, first_rto_us) =
            (self.limits.in_flight as u16, self.limits.window, self.limits.first_rto_us);
        let (most, mut long) = (self.seek(now_us, tx), false);
        let mut due_us = NEVER;
        // From the end: a request that ends leaves its place to one that was looked at.
        for place in (0..self.busy.len()).rev() {
            let Some(index) = self.busy.get(place).copied() else { continue };
            let Some(slot) = self.slots.get_mut(usize::from(index)) else { break };
            let request_id = slot.generation.wrapping_mul(count) | index;
            let Some(flight) = slot.flight.as_mut() else { continue };
            if flight.ends_us <= now_us {
                let failure = if flight.refused { RequestFailure::Refused } else { RequestFailure::TimedOut };
                if let Some((request, _)) = self.end(request_id) {
                    self.counters.timed_out += 1;
                    ended(FailedRequest { request_id, request, failure });
                }
                continue;
            }
            if flight.due_us <= now_us {
                long |= flight.rto_us >= LONG_WAIT_RTOS * first_rto_us;
                if let Some(shape) = flight.narrower_layout(most) {
                    self.incarnation = self.incarnation.wrapping_add(1);
                    flight.incarnation = self.incarnation;
                    flight.send_state =
                        SendState::Announced(Box::new(WindowSender::new(shape, window, first_rto_us, now_us)));
                }
                self.counters.retransmissions += flight.resend(now_us, request_id, self.server, tx);
            }
            due_us = due_us.min(flight.due_us).min(flight.ends_us);
        }
        if long {
            self.mtu_prober.reprobe(now_us, self.server, tx);
        }
        self.due_us = due_us.min(self.mtu_prober.due_us()).max(now_us + TIMER_GRANULARITY_US);
    }

    /// Takes back the buffer of a request that has ended, for another one.
    #[inline]
    pub fn reuse(&mut self, request: TaggedRequest<K>) {
        self.buffers.give(request.message);
    }

    /// Takes back the buffer of a response that has been dealt with.
    #[inline]
    pub fn recycle(&mut self, message: ReceivedMessage<'_>) {
        if let ReceivedMessage::Reassembled(buffer) = message {
            self.buffers.give(buffer);
        }
    }
}

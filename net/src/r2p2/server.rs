//! The server's side: requests come in, responses go out. One endpoint per port.

mod timers;

use super::budget::{MessageBudget, MessageBudgetLimits};
use super::completed::CompletedRequests;
use super::counters::{R2p2ServerCounters, ServerUsage};
use super::header::{
    AckReport, MessageFragment, MtuProbePacket, MtuProbeStep, R2p2Body, R2p2Kind, R2p2Packet, report_packet,
    single_header,
};
use super::legacy_clients::answer_legacy;
use super::mtu_probe::{self, PeerDatagramSizes};
use super::outgoing::{MessageKey, OutgoingResponse};
use super::transfer::{ChunkLayout, PartialMessage, TransferId, WindowSender, is_newer_incarnation};
use super::{
    DatagramSink, MessageBufferPool, PeerAddr, ReceivedMessage, clamp_datagram_len, message_ident, message_tenant,
};
use crate::limits::{
    MAX_REQUEST_LIFETIME_US, MAX_RTO_US, MIN_PATH_DATAGRAM, STALL_SCAN_INTERVAL_US, STALLED_TIMERS, ServerLimits,
    TIMER_GRANULARITY_US, WINDOW,
};
use crate::rate_limiter::RateLimiter;
use crate::seal::{peer_session, seal_overhead};
use crate::shared_bytes::SharedBytes;
use hashbrown::HashMap;

/// A complete request. The caller answers each with [`ServerEndpoint::respond`] or [`ServerEndpoint::refuse`], or
/// forgets it ([`ServerEndpoint::forget`]). The repeats of a longer request are only acked as long as it is remembered
/// as complete (10 s), since its answer is expected.
#[derive(Debug, PartialEq, Eq)]
pub struct R2p2Request<'p> {
    /// The sender.
    pub peer: PeerAddr,
    /// The request's id, to be given to [`ServerEndpoint::respond`].
    pub request_id: u16,
    /// The RPC message. A repeated request comes again: see [`crate::reply_cache`].
    pub message: ReceivedMessage<'p>,
}

/// The server's side of one port.
#[derive(Debug)]
pub struct ServerEndpoint {
    limits: ServerLimits,
    partials: HashMap<MessageKey, PartialMessage>,
    outgoing: HashMap<MessageKey, OutgoingResponse>,
    completed: CompletedRequests,
    incoming_budget: MessageBudget,
    outgoing_budget: MessageBudget,
    sizes: PeerDatagramSizes,
    buffers: MessageBufferPool,
    legacy_drops: RateLimiter,
    incarnation: u32,
    due_us: u64,
    /// The earliest time of the next look for stalled messages.
    next_stall_scan_us: u64,
    scratch: Vec<MessageKey>,
    counters: R2p2ServerCounters,
}

const NEVER: u64 = u64::MAX;
/// Owner of what unauthenticated peers hold; no tenant has this id.
const UNAUTHENTICATED_OWNER: u32 = 0;

impl ServerEndpoint {
    /// An endpoint that holds nothing. Settings out of range are brought into it: a datagram to
    /// [`crate::limits::MIN_DATAGRAM`]`..=`[`crate::limits::MAX_DATAGRAM_CEILING`], a window to 1..=64, timeouts to
    /// [`MAX_REQUEST_LIFETIME_US`].
    pub fn new(mut limits: ServerLimits) -> ServerEndpoint {
        limits.max_datagram = clamp_datagram_len(limits.max_datagram);
        limits.largest_datagram = clamp_datagram_len(limits.largest_datagram).max(limits.max_datagram);
        for timeout_us in
            [&mut limits.partial_timeout_us, &mut limits.outgoing_timeout_us, &mut limits.completed_timeout_us]
        {
            *timeout_us = (*timeout_us).min(MAX_REQUEST_LIFETIME_US);
        }
        limits.first_rto_us = limits.first_rto_us.clamp(1, MAX_RTO_US);
        limits.window = if limits.window == 0 { WINDOW } else { limits.window };
        ServerEndpoint {
            limits,
            partials: HashMap::new(),
            outgoing: HashMap::new(),
            completed: CompletedRequests::default(),
            incoming_budget: MessageBudget::new(MessageBudgetLimits {
                messages: limits.partials,
                bytes: limits.partial_bytes,
                peer_messages: limits.partials_per_peer,
                peer_bytes: limits.partial_bytes_per_peer,
            }),
            outgoing_budget: MessageBudget::new(MessageBudgetLimits {
                messages: limits.outgoing,
                bytes: limits.outgoing_bytes,
                peer_messages: limits.outgoing,
                peer_bytes: limits.outgoing_bytes_per_peer,
            }),
            sizes: PeerDatagramSizes::default(),
            buffers: MessageBufferPool::new(limits.pooled_bytes),
            legacy_drops: RateLimiter::default(),
            incarnation: 0,
            due_us: NEVER,
            next_stall_scan_us: 0,
            scratch: Vec::new(),
            counters: R2p2ServerCounters::default(),
        }
    }

    /// The endpoint of that start of a server, a random number: no transmission of it is taken for one of another
    /// start.
    #[must_use]
    pub fn with_server_start(mut self, start: u32) -> ServerEndpoint {
        self.incarnation = start.wrapping_mul(0x9E37_79B1);
        self
    }

    /// Returns the counters.
    pub fn counters(&self) -> &R2p2ServerCounters {
        &self.counters
    }

    /// Returns the memory in use.
    pub fn usage(&self) -> ServerUsage {
        let (incoming, outgoing) = (&self.incoming_budget, &self.outgoing_budget);
        ServerUsage {
            partials: self.partials.len(),
            partial_bytes: incoming.bytes(),
            outgoing: self.outgoing.len(),
            outgoing_bytes: outgoing.bytes(),
            completed: self.completed.len(),
            peers: incoming.peers().count() + outgoing.peers().filter(|peer| !incoming.knows(peer)).count(),
        }
    }

    /// Takes one datagram from `peer`. Returns the request that it completes, if it does; acks and drops go to `tx`.
    /// Longer messages received so share their room with those of all unauthenticated peers.
    #[inline]
    pub fn receive<'p>(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        datagram: &'p [u8],
        tx: &mut impl DatagramSink,
    ) -> Option<R2p2Request<'p>> {
        self.receive_for_owner(now_us, peer, datagram, tx, || UNAUTHENTICATED_OWNER)
    }

    /// Like [`ServerEndpoint::receive`], from a peer that acts for the tenant that `owner` returns, 0 for none. `owner`
    /// is called only where room has to be found for a longer message. A sealed session acts for its tenant.
    ///
    /// The path of a request of one packet touches no table, copies nothing and allocates nothing.
    #[inline]
    pub fn receive_for_owner<'p>(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        datagram: &'p [u8],
        tx: &mut impl DatagramSink,
        owner: impl FnOnce() -> u32,
    ) -> Option<R2p2Request<'p>> {
        self.counters.datagrams += 1;
        match R2p2Packet::parse(datagram) {
            Ok(R2p2Packet { kind: R2p2Kind::Request, request_id, body: R2p2Body::Single(message) }) => {
                self.counters.single_requests += 1;
                Some(R2p2Request { peer, request_id, message: ReceivedMessage::Datagram(message) })
            }
            Ok(packet) => self.receive_slow_path(now_us, peer, &packet, tx, owner),
            Err(bad) => {
                self.counters.malformed.count(bad);
                answer_legacy(&mut self.legacy_drops, now_us, peer, datagram, tx);
                None
            }
        }
    }

    #[cold]
    fn receive_slow_path(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        packet: &R2p2Packet<'_>,
        tx: &mut impl DatagramSink,
        owner: impl FnOnce() -> u32,
    ) -> Option<R2p2Request<'static>> {
        match (packet.kind, packet.body) {
            (R2p2Kind::Request, R2p2Body::Fragment(part)) => {
                let message = self.receive_fragment(now_us, peer, packet.request_id, &part, tx, owner)?;
                self.counters.long_requests += 1;
                Some(R2p2Request {
                    peer,
                    request_id: packet.request_id,
                    message: ReceivedMessage::Reassembled(message),
                })
            }
            (R2p2Kind::Ack, R2p2Body::Report(report)) => {
                self.receive_ack(
                    now_us,
                    MessageKey { peer, request_id: packet.request_id, ident: report.ident },
                    &report,
                    tx,
                );
                None
            }
            (R2p2Kind::MtuProbe, R2p2Body::MtuProbe(packet)) => {
                self.receive_mtu_probe(peer, &packet, tx, owner);
                None
            }
            _ => {
                self.counters.malformed.kind += 1;
                None
            }
        }
    }

    /// Handles a peer's question, or statement, about datagram sizes. An unauthenticated peer gets no answer.
    fn receive_mtu_probe(
        &mut self,
        peer: PeerAddr,
        packet: &MtuProbePacket,
        tx: &mut impl DatagramSink,
        owner: impl FnOnce() -> u32,
    ) {
        let owner = peer_session(peer).map_or_else(owner, |(tenant, _)| tenant);
        let most = self.limits.largest_datagram - seal_overhead(peer);
        let bytes = (packet.bytes as usize).min(most).min(tx.most(peer)) as u32;
        match packet.step {
            MtuProbeStep::Echo => self.counters.malformed.kind += 1,
            _ if owner == UNAUTHENTICATED_OWNER => {}
            MtuProbeStep::Probe => {
                mtu_probe::send_probe_packet(MtuProbePacket { step: MtuProbeStep::Echo, bytes, ..*packet }, peer, tx)
            }
            MtuProbeStep::Confirm => {
                let is_large = bytes as usize > self.limits.max_datagram - seal_overhead(peer);
                self.sizes.note(owner, peer, is_large.then_some(bytes));
            }
        }
    }

    /// Bytes of a datagram to this peer.
    #[inline]
    fn most(&self, peer: PeerAddr, tx: &mut impl DatagramSink) -> usize {
        self.sizes.most(peer, &self.limits, tx)
    }

    fn receive_fragment(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        request_id: u16,
        part: &MessageFragment<'_>,
        tx: &mut impl DatagramSink,
        owner: impl FnOnce() -> u32,
    ) -> Option<Vec<u8>> {
        let key = MessageKey { peer, request_id, ident: part.ident };
        if self.is_complete(now_us, &key, part, tx) {
            return None;
        }
        let shape = ChunkLayout::of_fragment(part);
        if let Some(old) = self.partials.get(&key)
            && (old.incarnation != part.incarnation || old.shape != shape)
        {
            if !is_newer_incarnation(part.incarnation, old.incarnation) {
                self.counters.outdated += 1;
                return None;
            }
            self.end_reassembly(&key);
        }
        let owner = || peer_session(peer).map_or_else(owner, |(tenant, _)| tenant);
        if !self.partials.contains_key(&key) && !self.begin_reassembly(now_us, key, shape, part.incarnation, owner()) {
            self.counters.requests_dropped += 1;
            send_report(
                tx,
                R2p2Kind::Drop,
                &key,
                AckReport { ident: key.ident, incarnation: part.incarnation, next: 0, map: 0 },
            );
            return None;
        }
        let partial = self.partials.get_mut(&key)?;
        let taken = partial.take(part, now_us);
        if !taken.new && !part.chunk.is_empty() {
            self.counters.duplicates += 1;
        }
        if taken.ack {
            self.counters.acks_sent += 1;
            send_report(tx, R2p2Kind::Ack, &key, partial.report(key.ident));
        }
        if !taken.complete {
            return None;
        }
        let done = self.end_reassembly(&key)?;
        if message_ident(&done.bytes) != key.ident {
            // Under its own name it would be neither answered again nor forgotten.
            self.counters.malformed.ident += 1;
            self.buffers.give(done.bytes);
            return None;
        }
        self.completed.remember(now_us, key, (done.incarnation, part.count), &self.limits);
        self.due_us = self.due_us.min(now_us + self.limits.completed_timeout_us);
        Some(done.bytes)
    }

    /// Answers a packet of a request that is complete already.
    fn is_complete(
        &mut self,
        now_us: u64,
        key: &MessageKey,
        part: &MessageFragment<'_>,
        tx: &mut impl DatagramSink,
    ) -> bool {
        let Some(completed) = self.completed.get_mut(key) else { return false };
        if completed.incarnation != part.incarnation {
            if is_newer_incarnation(part.incarnation, completed.incarnation) {
                return false;
            }
            self.counters.outdated += 1;
            return true;
        }
        self.counters.repeated += 1;
        let head = single_header(R2p2Kind::Response, key.request_id);
        let narrow = |response: &mut Vec<u8>| head.len() + response.len() > self.sizes.most(key.peer, &self.limits, tx);
        if let Some(response) = completed.response.take_if(narrow) {
            // The path has become narrower since it was sent as one packet.
            self.respond_multi_packet(now_us, key.peer, key.request_id, (&response, None), tx);
        } else if let Some(response) = &completed.response {
            tx.send(key.peer, &[&head, response]);
            if completed.consume_replay() {
                self.completed.remove(key);
            }
        } else {
            let whole = AckReport { ident: key.ident, incarnation: part.incarnation, next: completed.count, map: 0 };
            self.counters.acks_sent += 1;
            send_report(tx, R2p2Kind::Ack, key, whole);
        }
        true
    }

    /// Room is short: gives up stalled messages in either direction. Otherwise a few peers that announce messages and
    /// never send them, or never ack, would take the room of all others. Scans at most once in
    /// [`STALL_SCAN_INTERVAL_US`].
    #[cold]
    fn drop_stalled(&mut self, now_us: u64) {
        if now_us < self.next_stall_scan_us {
            return;
        }
        self.next_stall_scan_us = now_us + STALL_SCAN_INTERVAL_US;
        let mut over = std::mem::take(&mut self.scratch);
        over.extend(self.partials.iter().filter(|(_, partial)| partial.is_stalled(now_us)).map(|(key, _)| *key));
        for key in over.drain(..) {
            self.counters.partials_timed_out += 1;
            if let Some(partial) = self.end_reassembly(&key) {
                self.buffers.give(partial.bytes);
            }
        }
        let stalled = |outgoing: &OutgoingResponse| outgoing.sender.stalls >= STALLED_TIMERS;
        over.extend(self.outgoing.iter().filter(|(_, outgoing)| stalled(outgoing)).map(|(key, _)| *key));
        for key in over.drain(..) {
            self.counters.responses_timed_out += 1;
            self.end_outgoing(&key);
            self.completed.remove(&key);
        }
        self.scratch = over;
    }

    /// Takes room for one more message from the owner that holds most, as long as that is more than `owner` would hold:
    /// its newest message begins anew. Returns whether there is room now.
    #[cold]
    fn evict_incoming(&mut self, owner: u32, size: usize) -> bool {
        while !self.incoming_budget.admits_owner(owner, size) {
            let Some(largest) = self.incoming_budget.largest_owner_above(owner, size) else { return false };
            let own = self.partials.iter().filter(|(_, partial)| partial.owner == largest);
            let newest = own.map(|(key, partial)| (partial.begun_us, *key)).max();
            let Some(partial) = newest.and_then(|(_, key)| self.end_reassembly(&key)) else { return false };
            self.buffers.give(partial.bytes);
            self.counters.evicted += 1;
        }
        true
    }

    /// The same for a response.
    #[cold]
    fn evict_outgoing(&mut self, owner: u32, size: usize) {
        while !self.outgoing_budget.admits_owner(owner, size) {
            let Some(largest) = self.outgoing_budget.largest_owner_above(owner, size) else { return };
            let own = self.outgoing.iter().filter(|(_, outgoing)| outgoing.owner == largest);
            let Some((_, newest)) = own.map(|(key, outgoing)| (outgoing.begun_us, *key)).max() else { return };
            self.end_outgoing(&newest);
            self.completed.remove(&newest);
            self.counters.evicted += 1;
        }
    }

    fn begin_reassembly(
        &mut self,
        now_us: u64,
        key: MessageKey,
        shape: ChunkLayout,
        incarnation: u32,
        owner: u32,
    ) -> bool {
        let size = shape.message_len as usize;
        if size > self.limits.max_message || !self.incoming_budget.admits_peer(key.peer, size) {
            return false;
        }
        if !self.incoming_budget.admits_owner(owner, size) {
            self.drop_stalled(now_us);
            if !self.evict_incoming(owner, size) {
                return false;
            }
        }
        self.incoming_budget.take(key.peer, owner, size);
        let buffer = self.buffers.take(size);
        self.partials.insert(key, PartialMessage::new(shape, incarnation, owner, buffer, now_us));
        self.due_us = self.due_us.min(now_us + self.limits.partial_timeout_us);
        true
    }

    fn end_reassembly(&mut self, key: &MessageKey) -> Option<PartialMessage> {
        let partial = self.partials.remove(key)?;
        self.incoming_budget.give_back(key.peer, partial.owner, partial.shape.message_len as usize);
        Some(partial)
    }

    fn receive_ack(&mut self, now_us: u64, key: MessageKey, report: &AckReport, tx: &mut impl DatagramSink) {
        let Some(outgoing) = self.outgoing.get_mut(&key).filter(|out| out.incarnation == report.incarnation) else {
            self.counters.stray_acks += 1;
            return;
        };
        if !outgoing.sender.ack(report, now_us) {
            return;
        }
        outgoing.ends_us = (now_us + self.limits.outgoing_timeout_us).min(outgoing.begun_us + MAX_REQUEST_LIFETIME_US);
        if outgoing.sender.done() {
            self.end_outgoing(&key);
            self.completed.remove(&key);
            return;
        }
        let name = TransferId {
            kind: R2p2Kind::Response,
            request_id: key.request_id,
            ident: key.ident,
            incarnation: outgoing.incarnation,
        };
        let (sender, text) = outgoing.parts();
        self.counters.retransmissions += sender.pump(&name, key.peer, text, tx);
        self.due_us = self.due_us.min(outgoing.sender.due_us);
    }

    /// Sends the response to a request: an RPC message that mirrors the request's session and sequence. A response
    /// longer than a packet is copied, and resent until the client acks it; if there is no room for that, a drop is
    /// sent and the client asks again later.
    #[inline]
    pub fn respond(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        request_id: u16,
        message: &[u8],
        tx: &mut impl DatagramSink,
    ) {
        let head = single_header(R2p2Kind::Response, request_id);
        let len = head.len() + message.len();
        if len > self.limits.max_datagram.min(MIN_PATH_DATAGRAM) - seal_overhead(peer) && len > self.most(peer, tx) {
            return self.respond_multi_packet(now_us, peer, request_id, (message, None), tx);
        }
        self.counters.single_responses += 1;
        tx.send(peer, &[&head, message]);
        if !self.completed.is_empty() {
            self.completed
                .store_response(&MessageKey { peer, request_id, ident: message_ident(message) }, [message, &[]]);
        }
    }

    /// Sends the response to an unauthenticated sender's request as one packet: once, keeping nothing of it. A response
    /// that does not fit one packet of the path is dropped. (A longer request is not to be remembered, either:
    /// [`ServerEndpoint::forget`].)
    pub fn respond_without_retry(
        &mut self,
        peer: PeerAddr,
        request_id: u16,
        message: &[u8],
        tx: &mut impl DatagramSink,
    ) {
        let head = single_header(R2p2Kind::Response, request_id);
        if head.len() + message.len() > self.most(peer, tx) {
            self.counters.responses_dropped += 1;
            return;
        }
        self.counters.single_responses += 1;
        tx.send(peer, &[&head, message]);
    }

    /// Forgets that a request came: its repeat has to bring all of it, and comes to the server again.
    #[inline]
    pub fn forget(&mut self, request: &R2p2Request<'_>) {
        if let ReceivedMessage::Reassembled(message) = &request.message {
            let (peer, request_id) = (request.peer, request.request_id);
            self.completed.remove(&MessageKey { peer, request_id, ident: message_ident(message) });
        }
    }

    /// Like [`ServerEndpoint::respond`] for a message that ends with shared bytes. These are not copied: they are kept
    /// until all of them were sent for the last time. Like copied ones, they count as bytes of a response that waits
    /// for its ack.
    pub fn respond_shared(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        request_id: u16,
        (message, tail): (&[u8], SharedBytes),
        tx: &mut impl DatagramSink,
    ) {
        let head = single_header(R2p2Kind::Response, request_id);
        if head.len() + message.len() + tail.len() > self.most(peer, tx) {
            return self.respond_multi_packet(now_us, peer, request_id, (message, Some(tail)), tx);
        }
        self.counters.single_responses += 1;
        tx.send_shared(peer, [&head, message], &tail, 0..tail.len());
        if !self.completed.is_empty() {
            self.completed
                .store_response(&MessageKey { peer, request_id, ident: message_ident(message) }, [message, &tail]);
        }
    }

    #[cold]
    fn respond_multi_packet(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        request_id: u16,
        (message, tail): (&[u8], Option<SharedBytes>),
        tx: &mut impl DatagramSink,
    ) {
        let key = MessageKey { peer, request_id, ident: message_ident(message) };
        if self.outgoing.contains_key(&key) {
            self.counters.responses_in_flight += 1;
            return;
        }
        let (size, owner) = (message.len() + tail.as_deref().map_or(0, <[u8]>::len), message_tenant(message));
        if !self.outgoing_budget.admits_owner(owner, size) {
            self.drop_stalled(now_us);
            self.evict_outgoing(owner, size);
        }
        let shape = ChunkLayout::of(size, self.most(peer, tx)).filter(|_| {
            size <= self.limits.max_message
                && self.outgoing_budget.admits_owner(owner, size)
                && self.outgoing_budget.admits_peer(peer, size)
        });
        let Some(shape) = shape else {
            self.counters.responses_dropped += 1;
            // The request may come again, and must then reach the server again.
            self.completed.remove(&key);
            send_report(tx, R2p2Kind::Drop, &key, AckReport { ident: key.ident, incarnation: 0, next: 0, map: 0 });
            return;
        };
        self.counters.long_responses += 1;
        self.incarnation = self.incarnation.wrapping_add(1);
        self.outgoing_budget.take(peer, owner, size);
        let mut bytes = self.buffers.take(message.len());
        bytes.clear();
        bytes.extend_from_slice(message);
        let sender = WindowSender::new(shape, self.limits.window, self.limits.first_rto_us, now_us);
        let ends_us = now_us + self.limits.outgoing_timeout_us;
        let incarnation = self.incarnation;
        let mut outgoing = OutgoingResponse { sender, owner, incarnation, bytes, tail, begun_us: now_us, ends_us };
        let name = TransferId { kind: R2p2Kind::Response, request_id, ident: key.ident, incarnation };
        let (sender, text) = outgoing.parts();
        sender.pump(&name, peer, text, tx);
        self.due_us = self.due_us.min(sender.due_us);
        self.outgoing.insert(key, outgoing);
    }

    fn end_outgoing(&mut self, key: &MessageKey) {
        let Some(outgoing) = self.outgoing.remove(key) else { return };
        self.outgoing_budget.give_back(key.peer, outgoing.owner, outgoing.sender.shape.message_len as usize);
        self.buffers.give(outgoing.bytes);
    }

    /// Tells the client that there is no room for its request now. It asks again later, until its time is up.
    pub fn refuse(&mut self, peer: PeerAddr, request_id: u16, message: &[u8], tx: &mut impl DatagramSink) {
        let key = MessageKey { peer, request_id, ident: message_ident(message) };
        self.counters.requests_dropped += 1;
        self.completed.remove(&key);
        send_report(tx, R2p2Kind::Drop, &key, AckReport { ident: key.ident, incarnation: 0, next: 0, map: 0 });
    }

    /// Takes back the buffer of a request that has been dealt with.
    #[inline]
    pub fn recycle(&mut self, message: ReceivedMessage<'_>) {
        if let ReceivedMessage::Reassembled(buffer) = message {
            self.buffers.give(buffer);
        }
    }
}

fn send_report(tx: &mut impl DatagramSink, kind: R2p2Kind, key: &MessageKey, fields: AckReport) {
    tx.send(key.peer, &[&report_packet(kind, key.request_id, &fields)]);
}

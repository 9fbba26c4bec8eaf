//! A port: one worker's socket, or queues of a device, with the state of its peers. Its worker serves it; an idle
//! neighbour may, too, under the same lock. The lock is never held while tenant code runs.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use parking_lot::{Mutex, MutexGuard};
use sandstorm_accounts::RequestSubject;
use sandstorm_log::PositionState;
use sandstorm_metrics::histogram::{REQUEST_CLASSES, RequestClass};
use sandstorm_net::driver::{AnyDriver, Burst, DatagramDriver, DriverWaiter, DriverWaker, Outbox};
use sandstorm_net::r2p2::{PeerAddr, R2p2Request, ServerEndpoint};
use sandstorm_net::reply_cache::ReplyCache;
use sandstorm_net::rx_budget::RxBufferBudget;
use sandstorm_net::seal::{ServerSeal, TokenSource, TokenVerifier, peer_session, requires_opening};
use sandstorm_net::shared_bytes::SharedBytes;

use super::context::WorkerContext;
use super::held_answers::{HeldAnswers, not_durable_response};
use super::postponed_message::PostponedMessage;
use super::rejections::RejectionLimiter;
use super::response_assembly::{RequestOrigin, ResponseAssembler, ResponseId, start_response};
use super::sessions::AuthenticatedSessions;
use super::verified_peers::VerifiedPeers;
use crate::limits::{POOLED_RESPONSE_BYTES, SESSIONS_PER_PORT};
use sandstorm_catalog::DirectorySnapshot;

/// A response that is being written.
#[derive(Default)]
pub(super) struct ResponseBuffer {
    pub(super) bytes: Vec<u8>,
    /// The value behind them, if it is sent from its record.
    pub(super) tail: Option<SharedBytes>,
}

/// A port's state: its driver, and all that belongs to its peers.
pub(super) struct WorkerPortState {
    pub(super) driver: AnyDriver,
    pub(super) context: PortContext,
}

/// Everything of a port but its driver: the state for admission and for responses.
pub(super) struct PortContext {
    /// The number of the port, which is that of its worker.
    pub(super) index: usize,
    pub(super) endpoint: ServerEndpoint,
    pub(super) reply_cache: ReplyCache,
    /// Seals and opens the packets of peers that are sealed sessions.
    pub(super) seal: ServerSeal,
    pub(super) sessions: AuthenticatedSessions<PeerAddr>,
    pub(super) assembly: ResponseAssembler<PeerAddr>,
    pub(super) outbox: Outbox,
    /// Addresses that have shown a token: for ingress scheduling.
    pub(super) verified_peers: VerifiedPeers,
    /// Limits the answers to unauthenticated senders.
    pub(super) rejections: RejectionLimiter,
    /// Messages that admission has rejected since this was last read.
    pub(super) rejected: u64,
    /// Messages that a neighbour has begun, or admitted, when it served this port: its own worker continues them.
    pub(super) left_behind: Vec<PostponedMessage>,
    /// The device buffers of its queue in which values may stay; none for other drivers.
    pub(super) rx_budget: Option<Arc<RxBufferBudget>>,
    /// The number of malformed packets that the endpoint had dropped when it was last asked.
    malformed: u64,
    /// When early drop is to be updated again, in the workers' microseconds.
    pub(super) throttle_check_us: Option<u64>,
    /// When the endpoint's timers are due next, in the workers' microseconds.
    pub(super) timer_us: Option<u64>,
    /// Answers that wait for the log.
    pub(super) held: HeldAnswers,
    /// The buffer in which a response of several operations is put together.
    response: Vec<u8>,
    /// The buffer in which an answer is written.
    answer: Vec<u8>,
}

/// One worker's socket, shared with the workers that may steal from it.
pub(super) struct WorkerPort {
    state: Mutex<WorkerPortState>,
    /// Waits until a packet or a signal comes.
    pub(super) waiter: DriverWaiter,
    /// Ends that wait.
    pub(super) waker: DriverWaker,
}

impl WorkerPort {
    pub(super) fn new(driver: AnyDriver, context: PortContext) -> WorkerPort {
        WorkerPort {
            waiter: driver.waiter(),
            waker: driver.waker(),
            state: Mutex::new(WorkerPortState { driver, context }),
        }
    }

    /// Locks the port for its own worker, which waits for a neighbour to finish.
    pub(super) fn open(&self) -> MutexGuard<'_, WorkerPortState> {
        self.state.lock()
    }

    /// Locks the port for a neighbour, which does not wait.
    pub(super) fn try_open(&self) -> Option<MutexGuard<'_, WorkerPortState>> {
        self.state.try_lock()
    }
}

impl PortContext {
    pub(super) fn new(
        index: usize,
        endpoint: ServerEndpoint,
        reply_cache: ReplyCache,
        seal: ServerSeal,
        sessions: AuthenticatedSessions<PeerAddr>,
        outbox: Outbox,
        rx_budget: Option<Arc<RxBufferBudget>>,
    ) -> PortContext {
        PortContext {
            index,
            endpoint,
            reply_cache,
            seal,
            sessions,
            assembly: ResponseAssembler::new(),
            outbox,
            verified_peers: VerifiedPeers::new(SESSIONS_PER_PORT),
            rejections: RejectionLimiter::default(),
            rejected: 0,
            left_behind: Vec::new(),
            rx_budget,
            malformed: 0,
            throttle_check_us: None,
            timer_us: None,
            held: HeldAnswers::default(),
            response: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// Sends a response, and remembers it if its request must not run twice.
    pub(super) fn respond(&mut self, now_us: u64, origin: &RequestOrigin<PeerAddr>, response: &[u8]) {
        if origin.remembered {
            let header = &origin.header;
            self.reply_cache.complete(origin.peer, header.tenant, header.session, header.sequence, response);
        }
        let tx = &mut self.seal.through(&mut self.outbox);
        self.endpoint.respond(now_us, origin.peer, origin.request_id, response, tx);
    }

    /// Sends a response once the log is on the disk up to `shown`; if that is in doubt, an error instead. Returns
    /// whether it has left by now.
    #[inline]
    pub(super) fn respond_when_durable(
        &mut self,
        context: &WorkerContext,
        origin: &RequestOrigin<PeerAddr>,
        (response, tail): (&[u8], Option<SharedBytes>),
        shown: u64,
        class: Option<RequestClass>,
    ) -> bool {
        match context.position_state(shown) {
            PositionState::OnDisk => self.respond_whole(context.clock.now_us, origin, response, tail),
            PositionState::Waits => return self.hold(context, origin, (response, tail), shown, class),
            PositionState::Uncertain => {
                context.counters.answers_not_durable.add(1);
                let instead = not_durable_response(&origin.header, response);
                self.respond(context.clock.now_us, origin, &instead);
            }
        }
        true
    }

    fn respond_whole(
        &mut self,
        now_us: u64,
        origin: &RequestOrigin<PeerAddr>,
        response: &[u8],
        tail: Option<SharedBytes>,
    ) {
        match tail {
            Some(tail) => self.respond_shared(now_us, origin, response, tail),
            None => self.respond(now_us, origin, response),
        }
    }

    /// Keeps an answer until the log is on the disk. Its request counts as one that is being run.
    #[cold]
    fn hold(
        &mut self,
        context: &WorkerContext,
        origin: &RequestOrigin<PeerAddr>,
        (response, tail): (&[u8], Option<SharedBytes>),
        shown: u64,
        class: Option<RequestClass>,
    ) -> bool {
        if !self.held.push(shown, origin, response, tail, class) {
            context.counters.answers_not_durable.add(1);
            let instead = not_durable_response(&origin.header, response);
            self.respond(context.clock.now_us, origin, &instead);
            return true;
        }
        context.counters.answers_held.add(1);
        self.assembly.queries.begin(origin.query);
        context.log.want(shown);
        let is_over = || context.position_state(shown) != PositionState::Waits;
        context.shared.mark_holding_port(self.index, is_over);
        false
    }

    /// Sends the answers that need not wait any more, and notes each. Returns their number.
    pub(super) fn release_held(&mut self, context: &mut WorkerContext) -> usize {
        let mut released = 0;
        while let Some(position) = self.held.first_position() {
            let state = context.position_state(position);
            if state == PositionState::Waits {
                return released;
            }
            let Some(answer) = self.held.pop() else { break };
            self.assembly.queries.end(answer.origin.query);
            let now_us = context.clock.now_us;
            if state == PositionState::OnDisk {
                self.respond_whole(now_us, &answer.origin, &answer.bytes, answer.tail);
            } else {
                context.counters.answers_not_durable.add(1);
                let instead = not_durable_response(&answer.origin.header, &answer.bytes);
                self.respond(now_us, &answer.origin, &instead);
            }
            if let Some(class) = answer.class {
                context.answered.begin_batch(context.clock.now_ns);
                let subject = || RequestSubject::of(REQUEST_CLASSES[class as usize]);
                context.answered.note(answer.origin.header.tenant, class, answer.origin.received_ns, subject);
            }
            self.held.recycle(answer.bytes);
            released += 1;
        }
        let bit = 1 << self.index;
        if context.shared.holding_ports.load(Relaxed) & bit != 0 {
            context.shared.holding_ports.fetch_and(!bit, SeqCst);
        }
        released
    }

    /// Sends a rejection to an unauthenticated sender: once, and nothing of it is kept for a retry.
    pub(super) fn reject(&mut self, origin: &RequestOrigin<PeerAddr>, response: &[u8]) {
        let tx = &mut self.seal.through(&mut self.outbox);
        self.endpoint.respond_without_retry(origin.peer, origin.request_id, response, tx);
    }

    /// Sends a response that ends with a value in its record. Nothing of it is remembered.
    pub(super) fn respond_shared(
        &mut self,
        now_us: u64,
        origin: &RequestOrigin<PeerAddr>,
        response: &[u8],
        tail: SharedBytes,
    ) {
        debug_assert!(!origin.remembered, "it would be remembered without its end");
        let tx = &mut self.seal.through(&mut self.outbox);
        self.endpoint.respond_shared(now_us, origin.peer, origin.request_id, (response, tail), tx);
    }

    /// Writes the answer to one operation of a waiting response, which shows the log up to `shown`; sends the response
    /// if no other answer is missing.
    pub(super) fn deliver(
        &mut self,
        context: &WorkerContext,
        (id, operation): (ResponseId, usize),
        shown: u64,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut answer = std::mem::take(&mut self.answer);
        if let Some(origin) = self.assembly.take_single(id) {
            start_response(&origin.header, 1, &mut answer);
            write(&mut answer);
            self.respond_when_durable(context, &origin, (&answer, None), shown, None);
        } else {
            answer.clear();
            write(&mut answer);
            let mut response = std::mem::take(&mut self.response);
            if let Some((origin, shown)) = self.assembly.part(id, (operation, shown), &answer, &mut response) {
                self.respond_when_durable(context, &origin, (&response, None), shown, None);
            }
            shrink_to_pool(&mut response);
            self.response = response;
        }
        shrink_to_pool(&mut answer);
        self.answer = answer;
    }

    /// Receives a datagram, which was opened if it had been sealed. Returns the request that it completes, if it does.
    ///
    /// # Errors
    /// It was dropped as malformed.
    #[inline(always)]
    pub(super) fn receive<'p>(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        datagram: &'p [u8],
    ) -> Result<Option<R2p2Request<'p>>, MalformedDatagram> {
        let owner = || self.verified_peers.tenant_of(peer, now_us).unwrap_or(0);
        let request =
            self.endpoint.receive_for_owner(now_us, peer, datagram, &mut self.seal.through(&mut self.outbox), owner);
        if request.is_none() {
            let malformed = self.endpoint.counters().malformed.total();
            if std::mem::replace(&mut self.malformed, malformed) != malformed {
                return Err(MalformedDatagram);
            }
        }
        Ok(request)
    }

    /// Runs the timers: the endpoint resends unacknowledged packets, and handshakes go on.
    pub(super) fn run_timers(&mut self, now_us: u64) {
        self.seal.work(now_us, &mut self.outbox);
        let resend_us = self.endpoint.poll_timers(now_us, &mut self.seal.through(&mut self.outbox));
        self.timer_us = [resend_us, self.seal.timer_us(now_us), self.throttle_check_us].into_iter().flatten().min();
    }

    /// Opens a sealed packet of a burst in place, if it is one. From here on it comes from its session's address, from
    /// which no other packet may come. Returns how many were dropped, which is one at most.
    #[inline]
    pub(super) fn open_sealed(
        &mut self,
        now_us: u64,
        burst: &mut Burst,
        index: usize,
        snapshot: &DirectorySnapshot,
    ) -> u64 {
        let sealed = burst.get(index).is_some_and(|(peer, datagram)| requires_opening(peer, datagram));
        if !sealed {
            return 0;
        }
        let before = self.seal.counters().refused();
        burst.open(index, |peer, datagram| {
            if peer_session(peer).is_some() {
                return None;
            }
            let opened = self.seal.receive(now_us, peer, datagram, &SnapshotTokens(snapshot), &mut self.outbox)?;
            if let Some((tenant, _)) = peer_session(opened.0) {
                self.verified_peers.note(peer, tenant, now_us);
            }
            Some(opened)
        });
        self.seal.counters().refused() - before
    }
}

/// A datagram that was no valid R2P2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedDatagram;

/// Gives sealed sessions the tokens of a snapshot's tenants.
struct SnapshotTokens<'s>(&'s DirectorySnapshot);

impl TokenSource for SnapshotTokens<'_> {
    fn verifier(&self, tenant: u32, which: usize) -> Option<(TokenVerifier, u64)> {
        let (credential, token) = self.0.tenant(tenant)?.tenant.verifiers().nth(which)?;
        Some((*token.verifier(), credential))
    }
}

impl WorkerPortState {
    /// Sends what is queued.
    pub(super) fn transmit(&mut self) {
        if !self.context.outbox.is_empty() {
            self.driver.transmit(&mut self.context.outbox);
        }
    }
}

/// Makes a buffer ready for its next use, no larger than what most responses take.
pub(super) fn shrink_to_pool(buffer: &mut Vec<u8>) {
    if buffer.capacity() > POOLED_RESPONSE_BYTES {
        buffer.clear();
        buffer.shrink_to(POOLED_RESPONSE_BYTES);
    }
}

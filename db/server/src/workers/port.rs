//! A port: one worker's socket, or queues of a device, with the state of its peers. Its worker serves it; an idle
//! neighbour may, too, under the same lock. The lock is never held while tenant code runs.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sandstorm_net::driver::{AnyDriver, Burst, DatagramDriver, DriverWaiter, DriverWaker, Outbox};
use sandstorm_net::r2p2::{PeerAddr, R2p2Request, ServerEndpoint};
use sandstorm_net::reply_cache::ReplyCache;
use sandstorm_net::rpc::{MESSAGE_FLAG_OTHER_HOME, MessageHeader};
use sandstorm_net::rx_budget::RxBufferBudget;
use sandstorm_net::seal::{ServerSeal, TokenSource, TokenVerifier, peer_session, requires_opening};
use sandstorm_net::shared_bytes::SharedBytes;

use super::cold_messages::ColdMessages;
use super::pending_answers::PendingAnswers;
use super::postponed_message::PostponedMessage;
use super::rejections::RejectionLimiter;
use super::response_assembly::{RequestOrigin, ResponseAssembler};
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
    pub(super) pending: PendingAnswers,
    /// Messages that wait for cold records.
    pub(super) cold: ColdMessages,
    /// The buffer in which a response of several operations is put together.
    pub(super) response: Vec<u8>,
    /// The buffer in which an answer is written.
    pub(super) answer: Vec<u8>,
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
            pending: PendingAnswers::default(),
            cold: ColdMessages::default(),
            response: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// The header of a request, which is its response's: a response says whether the tenant's home is at another port.
    #[inline]
    pub(super) fn note_home(&self, header: MessageHeader, home: u32) -> MessageHeader {
        let is_elsewhere = if home as usize == self.index { 0 } else { MESSAGE_FLAG_OTHER_HOME };
        MessageHeader { flags: header.flags & !MESSAGE_FLAG_OTHER_HOME | is_elsewhere, ..header }
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

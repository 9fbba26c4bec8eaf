//! A server's side of its clients' sealed sessions, on one port.

use super::aead::{OpenError, SessionKeys, seal_small};
use super::cookie::{CookieIssuer, HelloCookie};
use super::counters::SealCounters;
use super::handshake::NoiseResponder;
use super::keys::TokenVerifier;
use super::limits::{HEADER_LEN, HELLO_LEN, HELLO_LIFETIME_MS, SealLimits};
use super::packet::{
    RejectReason, SEAL_OVERHEAD, SealHeader, SealPacketError, SealPacketKind, peer_session, session_peer,
};
use super::replay_window::ReplayError;
use super::session_table::{KeyGeneration, SealSessionId, SealedSession, SealedSessionTable, UnconfirmedKeys};
use crate::limits::FIRST_RTO_US;
use crate::r2p2::header::SINGLE_HEADER_LEN;
use crate::r2p2::{DatagramSink, PeerAddr};
use crate::rate_limiter::{RateLimit, RateLimiter};
use crate::shared_bytes::SharedBytes;
use hashbrown::{HashMap, HashSet};
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::VecDeque;
use std::ops::Range;

/// Sessions checked for idleness in one turn.
const IDLE_SWEEP_SLOTS: usize = 4;

/// Replaces the verifier of an unknown tenant. A packet that opens under it is refused all the same.
const DUMMY_VERIFIER: TokenVerifier = TokenVerifier { psk: [0; 32], public: [9; 32] };

/// Knows the tenants' tokens.
pub trait TokenSource {
    /// Returns the verifier of the tenant's token number `which`, and a number that names the token as long as it is
    /// good. Token 0 is the present one; there are more while an old one is still good. `None` beyond the last one, and
    /// for an unknown tenant.
    fn verifier(&self, tenant: u32, which: usize) -> Option<(TokenVerifier, u64)>;
}

/// A handshake whose hello was good and that waits for its curve operations.
struct QueuedHandshake {
    responder: NoiseResponder,
    name: SealSessionId,
    epoch: u64,
    hello_tag: [u8; 16],
    credential: u64,
    from: PeerAddr,
}

/// The sealed sessions of one port.
pub struct ServerSeal {
    limits: SealLimits,
    /// The time in milliseconds since 1970 at which `now_us` is 0.
    clock_ms: u64,
    table: SealedSessionTable,
    waiting: VecDeque<QueuedHandshake>,
    /// Ends of the hellos that were good: of this period of a hello's life, and of the one before.
    hellos: [HashSet<[u8; 16]>; 2],
    rotated_us: u64,
    checks_left: u32,
    /// The same for those that bring a cookie.
    cookie_checks_left: u32,
    checks: RateLimiter,
    cookies: CookieIssuer,
    cookie_limiter: RateLimiter,
    rejects: RateLimiter,
    handshakes: HashMap<u32, RateLimiter>,
    handshake_limiter: RateLimiter,
    random: SystemRandom,
    counters: SealCounters,
    /// Fixes the ephemeral keys, for documentation and tests.
    ephemeral: Option<[u8; 32]>,
}

impl ServerSeal {
    /// No sessions. `clock_ms` is the time in milliseconds since 1970 at which `now_us` is 0.
    pub fn new(limits: SealLimits, clock_ms: u64) -> ServerSeal {
        ServerSeal {
            limits,
            clock_ms,
            table: SealedSessionTable::default(),
            waiting: VecDeque::new(),
            hellos: Default::default(),
            rotated_us: 0,
            checks_left: limits.checks_per_turn,
            cookie_checks_left: limits.checks_per_turn,
            checks: RateLimiter::default(),
            cookies: CookieIssuer::new(RateLimit::per_second(limits.checks_per_address_s.into())),
            cookie_limiter: RateLimiter::default(),
            rejects: RateLimiter::default(),
            handshakes: HashMap::new(),
            handshake_limiter: RateLimiter::default(),
            random: SystemRandom::new(),
            counters: SealCounters::default(),
            ephemeral: None,
        }
    }

    /// Uses ephemeral keys that are no secret: for documentation and tests only.
    #[doc(hidden)]
    #[must_use]
    pub fn with_ephemeral_for_documentation_only(mut self, ephemeral: [u8; 32]) -> ServerSeal {
        self.ephemeral = Some(ephemeral);
        self
    }

    /// Returns the counters.
    pub fn counters(&self) -> &SealCounters {
        &self.counters
    }

    /// Sessions that are known.
    pub fn sessions(&self) -> usize {
        self.table.len()
    }

    /// Bytes of answers that wait for their clients' addresses to be proven.
    pub fn used_bytes(&self) -> usize {
        self.table.queued.all()
    }

    /// Returns which of its tenant's tokens the session under this address was opened with.
    pub fn credential(&mut self, peer: PeerAddr) -> Option<u64> {
        Some(self.table.get(peer_session(peer)?)?.credential)
    }

    /// Forgets the session under this address: its token is not good any more.
    pub fn end(&mut self, peer: PeerAddr) {
        if peer_session(peer).is_some_and(|name| self.table.remove(name)) {
            self.counters.ended += 1;
        }
    }

    /// When [`ServerSeal::work`] should be called at the latest; `None`: whenever.
    pub fn timer_us(&self, now_us: u64) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(now_us)
    }

    /// Takes a datagram of a sealed session. A genuine packet is opened in place; returns the session's address and the
    /// R2P2 packet's range in the datagram.
    pub fn receive(
        &mut self,
        now_us: u64,
        from: PeerAddr,
        datagram: &mut [u8],
        tokens: &impl TokenSource,
        tx: &mut impl DatagramSink,
    ) -> Option<(PeerAddr, Range<usize>)> {
        let head = match SealHeader::parse(datagram) {
            Ok(head) => head,
            Err(bad) => {
                match bad {
                    SealPacketError::Cut => self.counters.cut += 1,
                    SealPacketError::Magic | SealPacketError::Form => self.counters.malformed += 1,
                }
                return None;
            }
        };
        match head.kind {
            SealPacketKind::ToServer | SealPacketKind::Proof => self.sealed(now_us, from, head, datagram, tx),
            SealPacketKind::Hello => {
                self.hello(now_us, from, head, datagram, tokens, tx);
                None
            }
            SealPacketKind::ToClient
            | SealPacketKind::Welcome
            | SealPacketKind::Reject
            | SealPacketKind::Probe
            | SealPacketKind::Retry => {
                self.counters.malformed += 1;
                None
            }
        }
    }

    fn sealed(
        &mut self,
        now_us: u64,
        from: PeerAddr,
        head: SealHeader,
        datagram: &mut [u8],
        tx: &mut impl DatagramSink,
    ) -> Option<(PeerAddr, Range<usize>)> {
        let name = (head.tenant, head.session);
        let found = self.table.get(name).map(|session| (session.current.is_none(), session));
        let Some((unconfirmed, session)) = found else {
            return self.unknown(now_us, from, head, tx);
        };
        let Some((keys, under)) = session.keys(head.flags, now_us) else {
            return self.unknown(now_us, from, head, tx);
        };
        let opened = keys.open(head.number, datagram);
        let newest = keys.window.next() == head.number.saturating_add(1);
        let length = match opened {
            Ok(length) => length,
            Err(why) => {
                match why {
                    OpenError::Replay(ReplayError::Replayed) => self.counters.replayed += 1,
                    OpenError::Replay(ReplayError::TooOld) => self.counters.too_old += 1,
                    OpenError::KeyExhausted => self.counters.spent += 1,
                    OpenError::BadTag => self.counters.bad_tag += 1,
                }
                if unconfirmed && why == OpenError::BadTag {
                    // The keys may be those of a hello that was replayed after we had restarted.
                    self.reject(now_us, from, head, RejectReason::Session, tx);
                }
                return None;
            }
        };
        self.counters.opened += 1;
        session.last_used_us = now_us;
        if under == KeyGeneration::Unconfirmed {
            session.confirm(now_us, from);
        }
        let inner = HEADER_LEN..HEADER_LEN + length;
        if head.kind == SealPacketKind::Proof {
            // The packet may leave from any port: the owner of these bytes receives where they were sent.
            let path = &mut session.path;
            if datagram.get(inner).is_some_and(|echoed| path.challenged_us.is_some() && *echoed == path.challenge) {
                path.proven = true;
                session.home = Some(path.peer);
                self.send_queued(name, tx);
            }
            return None;
        }
        if from != session.path.peer && newest && under != KeyGeneration::Previous {
            session.migrate(from, session.home == Some(from));
            self.counters.moved += 1;
        }
        if from == session.path.peer && !session.path.proven {
            session.path.credit += datagram.len();
            probe_path(now_us, session, &self.random, tx);
        }
        if session.path.proven && !session.queued.is_empty() {
            self.send_queued(name, tx);
        }
        Some((session_peer(name.0, name.1), inner))
    }

    /// Sends the answers that have waited for a client's address to be proven.
    #[cold]
    fn send_queued(&mut self, name: SealSessionId, tx: &mut impl DatagramSink) {
        let Some((session, in_all)) = self.table.get_with_queued_bytes(name) else { return };
        for packet in session.queued.take(name.0, in_all) {
            self.send(session_peer(name.0, name.1), &[&packet], tx);
        }
    }

    /// Nothing is known of a packet's session, or of its keys.
    #[cold]
    fn unknown(
        &mut self,
        now_us: u64,
        from: PeerAddr,
        head: SealHeader,
        tx: &mut impl DatagramSink,
    ) -> Option<(PeerAddr, Range<usize>)> {
        self.counters.unknown += 1;
        self.reject(now_us, from, head, RejectReason::Session, tx);
        None
    }

    /// Says why a packet is refused, in less bytes than it had.
    #[cold]
    fn reject(
        &mut self,
        now_us: u64,
        to: PeerAddr,
        head: SealHeader,
        reason: RejectReason,
        tx: &mut impl DatagramSink,
    ) {
        if self.rejects.admit(&RateLimit::per_second(self.limits.rejects_per_s.into()), now_us) {
            self.counters.rejects += 1;
            let head = SealHeader { kind: SealPacketKind::Reject, flags: reason as u8, ..head };
            tx.send(to, &[&head.encode(), &self.clock_ms(now_us).to_le_bytes()]);
        }
    }

    fn clock_ms(&self, now_us: u64) -> u64 {
        self.clock_ms.wrapping_add(now_us / 1000)
    }

    #[cold]
    fn hello(
        &mut self,
        now_us: u64,
        from: PeerAddr,
        head: SealHeader,
        datagram: &[u8],
        tokens: &impl TokenSource,
        tx: &mut impl DatagramSink,
    ) {
        let (name, bytes) = ((head.tenant, head.session), head.encode());
        let Some((hello, cookie)) = datagram.split_at_checked(HELLO_LEN) else { return };
        let Some((message, hello_tag)) = hello.get(HEADER_LEN..).zip(hello.last_chunk::<16>().copied()) else {
            return;
        };
        if let Some(session) = self.table.get(name) {
            if let Some(next) = session.next.as_mut().filter(|next| next.hello_tag == hello_tag) {
                next.from = next.from.filter(|first| *first == from);
                return tx.send(from, &[&next.welcome]);
            }
            if head.number <= session.epoch() {
                self.counters.old_hello += 1;
                return;
            }
        }
        if self.hellos.iter().any(|known| known.contains(&hello_tag)) {
            self.counters.old_hello += 1;
            return;
        }
        if !self.may_check(now_us, from, head, cookie.first_chunk(), tx) {
            return;
        }
        let mut known = (0..).map_while(|which| tokens.verifier(head.tenant, which));
        let mut none = true;
        let read = known.find_map(|(verifier, credential)| {
            none = false;
            let read = NoiseResponder::read(&verifier, &bytes, message, self.ephemeral.as_ref());
            read.map(|(responder, payload)| (responder, payload, credential))
        });
        if none {
            // The same answer after the same work as for a wrong token: else ids could be tried until one is a
            // tenant's.
            let _same_time = std::hint::black_box(
                NoiseResponder::read(&DUMMY_VERIFIER, &bytes, message, self.ephemeral.as_ref()).is_some(),
            );
        }
        let Some((responder, payload, credential)) = read else {
            self.counters.bad_hello += 1;
            return self.reject(now_us, from, head, RejectReason::Token, tx);
        };
        let hello_ms = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| payload[at]));
        if hello_ms.abs_diff(self.clock_ms(now_us)) > HELLO_LIFETIME_MS {
            self.counters.clock += 1;
            return self.reject(now_us, from, head, RejectReason::Clock, tx);
        }
        let same_tenant = self.waiting.iter().filter(|waits| waits.name.0 == name.0).count();
        let limits = &self.limits;
        let own = RateLimit::per_second(limits.handshakes_per_s.into());
        let total = RateLimit::per_second(limits.total_handshakes_per_s.into());
        let rate = self.handshakes.entry(name.0).or_default();
        let room = self.waiting.len() < limits.waiting && same_tenant < limits.queued_handshakes_per_tenant;
        if !room || !rate.admit(&own, now_us) || !self.handshake_limiter.admit(&total, now_us) {
            self.counters.rate += 1;
            return;
        }
        self.remember(now_us, hello_tag);
        self.waiting.push_back(QueuedHandshake { responder, name, epoch: head.number, hello_tag, credential, from });
    }

    /// Decides whether a hello's token is to be checked now. Hellos with a cookie have a turn's checks of their own,
    /// and half of a second's. When the others are used up, a hello without one is answered with a cookie, in less than
    /// half of the bytes that it sent.
    fn may_check(
        &mut self,
        now_us: u64,
        from: PeerAddr,
        head: SealHeader,
        cookie: Option<&HelloCookie>,
        tx: &mut impl DatagramSink,
    ) -> bool {
        let name = (head.tenant, head.session);
        let checks = RateLimit::per_second(self.limits.checks_per_s.into());
        if self.checks_left > 0 && self.checks.admit_above_half(&checks, now_us) {
            self.checks_left -= 1;
            return true;
        }
        if cookie.is_some_and(|cookie| self.cookies.knows(now_us, from, name, cookie)) {
            let may = self.cookie_checks_left > 0
                && self.cookies.may_check(now_us, from)
                && self.checks.admit(&checks, now_us);
            self.cookie_checks_left -= u32::from(may);
            self.counters.rate += u64::from(!may);
            return may;
        }
        let may_send = self.cookie_limiter.admit(&RateLimit::per_second(self.limits.cookies_per_s.into()), now_us);
        let sent = may_send.then(|| self.cookies.make(now_us, from, name, &self.random)).flatten();
        if let Some(cookie) = sent {
            self.counters.no_cookie += 1;
            tx.send(from, &[&SealHeader { kind: SealPacketKind::Retry, flags: 0, ..head }.encode(), &cookie]);
        } else {
            self.counters.rate += 1;
        }
        false
    }

    /// Remembers a good hello for as long as its time would be accepted: it may be up to a lifetime early, and is good
    /// for another one then. The tenants' rates of handshakes bound what is remembered.
    fn remember(&mut self, now_us: u64, hello_tag: [u8; 16]) {
        if now_us.saturating_sub(self.rotated_us) > 2 * HELLO_LIFETIME_MS * 1000 {
            self.rotated_us = now_us;
            self.hellos.swap(0, 1);
            self.hellos[0].clear();
        }
        self.hellos[0].insert(hello_tag);
    }

    /// Completes waiting handshakes, as many as a turn has time for, and forgets idle sessions. Call once a turn.
    pub fn work(&mut self, now_us: u64, tx: &mut impl DatagramSink) {
        (self.checks_left, self.cookie_checks_left) = (self.limits.checks_per_turn, self.limits.checks_per_turn);
        for _ in 0..self.limits.handshakes_per_turn {
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.welcome(now_us, waiting, tx);
        }
        if let Some(before_us) = now_us.checked_sub(self.limits.idle_us) {
            self.counters.ended += self.table.sweep(IDLE_SWEEP_SLOTS, before_us);
        }
        if self.handshakes.len() > self.table.len() + self.limits.waiting {
            self.handshakes.retain(|_, rate| !rate.is_at_rest(now_us));
        }
    }

    #[cold]
    fn welcome(&mut self, now_us: u64, waiting: QueuedHandshake, tx: &mut impl DatagramSink) {
        let QueuedHandshake { responder, name, epoch, hello_tag, credential, from } = waiting;
        let known = self.table.get(name);
        if known.is_some_and(|session| epoch <= session.epoch()) {
            // A later hello of the same session was faster.
            self.counters.old_hello += 1;
            return;
        }
        let head =
            SealHeader { kind: SealPacketKind::Welcome, flags: 0, tenant: name.0, session: name.1, number: epoch };
        let answered = responder.answer(&head.encode(), &self.clock_ms(now_us).to_le_bytes());
        let Some((welcome, split)) = answered else {
            self.counters.bad_hello += 1;
            return;
        };
        let Some(keys) = SessionKeys::for_server(epoch, &split, now_us) else { return };
        self.counters.handshakes += 1;
        let next = UnconfirmedKeys { keys, hello_tag, welcome, from: Some(from), credential };
        tx.send(from, &[&next.welcome]);
        match self.table.get(name) {
            Some(session) => session.next = Some(next),
            None => {
                let evicted = self.table.insert(SealedSession::new(name, next, from, now_us), self.limits.sessions);
                self.counters.evicted += u64::from(evicted);
            }
        }
    }

    /// Seals a packet for the session under `peer` and sends it to where its client is.
    #[inline]
    pub fn send(&mut self, peer: PeerAddr, parts: &[&[u8]], tx: &mut impl DatagramSink) {
        let Some((tenant, number)) = peer_session(peer) else { return };
        let session = self.table.get_with_queued_bytes((tenant, number));
        let found = session.and_then(|(SealedSession { path, current, queued, .. }, in_all)| {
            Some((path, current.as_mut()?, queued, in_all))
        });
        let Some((path, keys, queued, in_all)) = found else {
            self.counters.no_session += 1;
            return;
        };
        if !path.proven {
            let length: usize = parts.iter().map(|part| part.len()).sum::<usize>() + SEAL_OVERHEAD;
            let Some(left) = path.credit.checked_sub(length) else {
                // Longer messages are sent again by themselves.
                let is_whole = parts.first().and_then(|head| head.get(1)) == Some(&(SINGLE_HEADER_LEN as u8));
                if !is_whole || !queued.push(tenant, parts, in_all) {
                    self.counters.unproven += 1;
                }
                return;
            };
            path.credit = left;
        }
        let Some(packet) = keys.next_packet_number() else {
            self.counters.spent += 1;
            return;
        };
        let head =
            SealHeader { kind: SealPacketKind::ToClient, flags: keys.phase(), tenant, session: number, number: packet }
                .encode();
        super::send_sealed(path.peer, &head, parts, tx, &mut |datagram| keys.seal(packet, datagram));
        self.counters.sealed += 1;
    }

    /// Returns the sink that a server's endpoint sends through: it seals packets to sealed sessions, and no others.
    pub fn through<'s, T: DatagramSink>(&'s mut self, tx: &'s mut T) -> ServerSealSink<'s, T> {
        ServerSealSink { seal: self, tx }
    }
}

/// Asks a client to show that it receives where its packets seem to come from, if that costs no more than came from
/// there.
#[cold]
fn probe_path(now_us: u64, session: &mut SealedSession, random: &SystemRandom, tx: &mut impl DatagramSink) {
    let SealedSession { path, current, name, .. } = session;
    let Some(keys) = current else { return };
    if path.challenged_us.is_some_and(|challenged_us| now_us.saturating_sub(challenged_us) < FIRST_RTO_US) {
        return;
    }
    let Some(credit) = path.credit.checked_sub(SEAL_OVERHEAD + 8) else { return };
    if path.challenged_us.is_none() && random.fill(&mut path.challenge).is_err() {
        return;
    }
    let head = SealHeader { kind: SealPacketKind::Probe, flags: 0, tenant: name.0, session: name.1, number: 0 };
    if let Some(probe) = seal_small(keys, head, path.challenge) {
        (path.credit, path.challenged_us) = (credit, Some(now_us));
        tx.send(path.peer, &[&probe]);
    }
}

/// See [`ServerSeal::through`].
pub struct ServerSealSink<'s, T> {
    seal: &'s mut ServerSeal,
    tx: &'s mut T,
}

impl<T: DatagramSink> DatagramSink for ServerSealSink<'_, T> {
    #[inline]
    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]) {
        if peer_session(peer).is_some() {
            self.seal.send(peer, parts, self.tx);
        } else {
            self.tx.send(peer, parts);
        }
    }

    #[inline]
    fn most(&mut self, peer: PeerAddr) -> usize {
        let Some(name) = peer_session(peer) else { return self.tx.most(peer) };
        let to = self.seal.table.get(name).map_or(peer, |session| session.path.peer);
        self.tx.most(to).saturating_sub(SEAL_OVERHEAD)
    }

    /// Sealing copies the bytes from where they lie into the outbox.
    #[inline]
    fn send_shared(&mut self, peer: PeerAddr, parts: [&[u8]; 2], share: &SharedBytes, range: Range<usize>) {
        if peer_session(peer).is_some() {
            let [head, own] = parts;
            self.seal.send(peer, &[head, own, share.get(range).unwrap_or_default()], self.tx);
        } else {
            self.tx.send_shared(peer, parts, share, range);
        }
    }
}

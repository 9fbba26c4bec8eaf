//! A client's side of a sealed session towards one server port.

use super::aead::{OpenError, SessionKeys, seal_small};
use super::cookie::HelloCookie;
use super::counters::ClientSealCounters;
use super::handshake::NoiseInitiator;
use super::keys::TokenKeys;
use super::limits::{
    HEADER_LEN, HELLO_LEN, MAX_CLOCK_CORRECTIONS, MAX_COOKIE_HELLOS, MIN_REHANDSHAKE_INTERVAL_US,
    PREVIOUS_KEYS_LIFETIME_US, REFUSAL_GRACE_US,
};
use super::packet::{RejectReason, SEAL_OVERHEAD, SealHeader, SealPacketError, SealPacketKind};
use crate::limits::{FIRST_RTO_US, MAX_RTO_US};
use crate::r2p2::{DatagramSink, PeerAddr};
use std::ops::Range;

/// The reason why there is no session and will be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeRefusal {
    /// The server has no tenant of this id and this token.
    Token,
    /// It has no such tenant: only older servers tell.
    Tenant,
}

/// A handshake under way.
struct PendingHandshake {
    initiator: NoiseInitiator,
    hello: [u8; HELLO_LEN],
    epoch: u64,
    due_us: u64,
    rto_us: u64,
    clock_tries: u32,
    /// The cookie that the hello is to bring. The counter below counts the hellos that were resent at once for one.
    cookie: Option<HelloCookie>,
    cookie_tries: u32,
    /// The reason that a reject gave, and its time: see [`REFUSAL_GRACE_US`].
    refused: Option<(HandshakeRefusal, u64)>,
}

impl PendingHandshake {
    fn send(&self, server: PeerAddr, tx: &mut impl DatagramSink) {
        match &self.cookie {
            Some(cookie) => tx.send(server, &[&self.hello, cookie]),
            None => tx.send(server, &[&self.hello]),
        }
    }
}

/// One client's sealed session. It stays the same session when its keys are renewed, the server forgets it, or the
/// client's address changes. So what is remembered under its name (see [`crate::reply_cache`]) stays true.
pub struct ClientSeal {
    tenant: u32,
    server: PeerAddr,
    session: u64,
    token: TokenKeys,
    /// Difference of the server's clock to `now_us / 1000`, milliseconds.
    clock_ms: u64,
    epoch: u64,
    current: Option<Box<SessionKeys>>,
    /// Keys that may still open packets under way, and the time until which they may.
    previous: Option<(Box<SessionKeys>, u64)>,
    pending: Option<PendingHandshake>,
    /// The time at which the last handshake began.
    handshake_started_us: Option<u64>,
    counters: ClientSealCounters,
    /// Fixes the ephemeral keys, for documentation and tests.
    ephemeral: Option<[u8; 32]>,
}

impl ClientSeal {
    /// A session that has not shaken hands yet. `session` is a random number; `clock_ms` is the time in milliseconds
    /// since 1970 at which `now_us` is 0.
    pub fn new(server: PeerAddr, tenant: u32, token: &[u8], session: u64, clock_ms: u64) -> ClientSeal {
        ClientSeal {
            tenant,
            server,
            session,
            token: TokenKeys::of(token),
            clock_ms,
            epoch: 0,
            current: None,
            previous: None,
            pending: None,
            handshake_started_us: None,
            counters: ClientSealCounters::default(),
            ephemeral: None,
        }
    }

    /// Uses ephemeral keys that are no secret: for documentation and tests only.
    #[doc(hidden)]
    #[must_use]
    pub fn with_ephemeral_for_documentation_only(mut self, ephemeral: [u8; 32]) -> ClientSeal {
        self.ephemeral = Some(ephemeral);
        self
    }

    /// Returns whether packets can be sealed.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.current.is_some()
    }

    /// The session's number.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Returns the counters.
    pub fn counters(&self) -> &ClientSealCounters {
        &self.counters
    }

    /// Begins a handshake, unless one is under way.
    pub fn begin(&mut self, now_us: u64, tx: &mut impl DatagramSink) {
        if self.pending.is_none() {
            self.hello(now_us, 0, tx);
        }
    }

    fn hello(&mut self, now_us: u64, clock_tries: u32, tx: &mut impl DatagramSink) {
        self.epoch += 1;
        let epoch = self.epoch;
        let head = SealHeader {
            kind: SealPacketKind::Hello,
            flags: 0,
            tenant: self.tenant,
            session: self.session,
            number: epoch,
        };
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&self.clock_ms.wrapping_add(now_us / 1000).to_le_bytes());
        let made = NoiseInitiator::new(&self.token, &head.encode(), &payload, self.ephemeral.as_ref());
        let Some((initiator, hello)) = made else { return };
        tx.send(self.server, &[&hello]);
        self.counters.hellos += 1;
        self.handshake_started_us = Some(now_us);
        let (due_us, rto_us) = (now_us + FIRST_RTO_US, FIRST_RTO_US);
        let (cookie, cookie_tries, refused) = (None, 0, None);
        self.pending = Some(PendingHandshake {
            initiator,
            hello,
            epoch,
            due_us,
            rto_us,
            clock_tries,
            cookie,
            cookie_tries,
            refused,
        });
    }

    /// Renews old keys, and repeats the hello if `wanted` (a request waits for the session). Returns when to call
    /// again.
    pub fn poll(&mut self, now_us: u64, wanted: bool, tx: &mut impl DatagramSink) -> Option<u64> {
        if self.previous.as_ref().is_some_and(|(_, until_us)| *until_us <= now_us) {
            self.previous = None;
        }
        if wanted && self.pending.is_none() && self.current.as_ref().is_some_and(|keys| keys.need_rekey(now_us)) {
            self.begin(now_us, tx);
        }
        let pending = self.pending.as_mut().filter(|_| wanted)?;
        if pending.due_us <= now_us {
            pending.send(self.server, tx);
            self.counters.hellos += 1;
            pending.rto_us = (pending.rto_us * 2).min(MAX_RTO_US);
            pending.due_us = now_us + pending.rto_us;
        }
        let give_up_us = pending.refused.map(|(_, since_us)| since_us + REFUSAL_GRACE_US);
        Some(give_up_us.map_or(pending.due_us, |give_up_us| give_up_us.min(pending.due_us)))
    }

    /// Returns the reason why there will be no session, once that is certain enough. The handshake ends with it;
    /// another may begin.
    pub fn take_refusal(&mut self, now_us: u64) -> Option<HandshakeRefusal> {
        let (refusal, since_us) = self.pending.as_ref()?.refused?;
        if now_us.saturating_sub(since_us) < REFUSAL_GRACE_US {
            return None;
        }
        (self.pending, self.current, self.previous) = (None, None, None);
        Some(refusal)
    }

    /// Takes a datagram from the server's port. If there is an R2P2 packet in it: where it stands in `opened`, which is
    /// overwritten.
    pub fn receive(
        &mut self,
        now_us: u64,
        datagram: &[u8],
        opened: &mut Vec<u8>,
        tx: &mut impl DatagramSink,
    ) -> Option<Range<usize>> {
        let head = match SealHeader::parse(datagram) {
            Ok(head) => head,
            Err(bad) => {
                match bad {
                    SealPacketError::Cut => self.counters.cut += 1,
                    SealPacketError::Magic => self.counters.plain += 1,
                    SealPacketError::Form => self.counters.malformed += 1,
                }
                return None;
            }
        };
        if (head.tenant, head.session) != (self.tenant, self.session) {
            self.counters.foreign += 1;
            return None;
        }
        match head.kind {
            SealPacketKind::ToClient | SealPacketKind::Probe => {
                opened.clear();
                opened.extend_from_slice(datagram);
                self.sealed(now_us, head, opened, tx)
            }
            SealPacketKind::Welcome => {
                self.welcome(now_us, head, datagram);
                None
            }
            SealPacketKind::Reject => {
                self.rejected(now_us, head, datagram, tx);
                None
            }
            SealPacketKind::Retry => {
                self.cookie(head, datagram, tx);
                None
            }
            SealPacketKind::ToServer | SealPacketKind::Hello | SealPacketKind::Proof => {
                self.counters.malformed += 1;
                None
            }
        }
    }

    fn sealed(
        &mut self,
        now_us: u64,
        head: SealHeader,
        datagram: &mut [u8],
        tx: &mut impl DatagramSink,
    ) -> Option<Range<usize>> {
        let current = self.current.as_mut().filter(|keys| keys.phase() == head.flags);
        let previous = self.previous.as_mut().filter(|(keys, until)| keys.phase() == head.flags && *until > now_us);
        let Some(keys) = current.or(previous.map(|(keys, _)| keys)) else {
            self.counters.foreign += 1;
            return None;
        };
        match keys.open(head.number, datagram) {
            Ok(len) => {
                self.counters.opened += 1;
                if head.kind == SealPacketKind::ToClient {
                    return Some(HEADER_LEN..HEADER_LEN + len);
                }
                let challenge = *datagram.get(HEADER_LEN..)?.first_chunk()?;
                self.answer_probe(challenge, tx);
            }
            Err(OpenError::Replay(_)) => self.counters.replayed += 1,
            Err(OpenError::KeyExhausted) => self.counters.spent += 1,
            Err(OpenError::BadTag) => self.counters.bad_tag += 1,
        }
        None
    }

    /// Proves to the server that we receive at the address that it has asked about.
    fn answer_probe(&mut self, challenge: [u8; 8], tx: &mut impl DatagramSink) {
        let Some(keys) = &mut self.current else { return };
        let head =
            SealHeader { kind: SealPacketKind::Proof, flags: 0, tenant: self.tenant, session: self.session, number: 0 };
        if let Some(proof) = seal_small(keys, head, challenge) {
            tx.send(self.server, &[&proof]);
        }
    }

    fn welcome(&mut self, now_us: u64, head: SealHeader, datagram: &[u8]) {
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.epoch == head.number) else {
            self.counters.foreign += 1;
            return;
        };
        let read = datagram.get(HEADER_LEN..).and_then(|message| pending.initiator.read(message));
        let Some((split, _)) = read else {
            self.counters.bad_tag += 1;
            return;
        };
        let Some(keys) = SessionKeys::for_client(head.number, &split, now_us) else { return };
        self.pending = None;
        self.counters.handshakes += 1;
        if let Some(old) = self.current.replace(keys) {
            self.previous = Some((old, now_us + PREVIOUS_KEYS_LIFETIME_US));
        }
    }

    /// The server wants the hello to bring a cookie.
    fn cookie(&mut self, head: SealHeader, datagram: &[u8], tx: &mut impl DatagramSink) {
        self.counters.cookies += 1;
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.epoch == head.number) else { return };
        pending.cookie = datagram.get(HEADER_LEN..).and_then(|cookie| cookie.first_chunk().copied());
        if pending.cookie_tries < MAX_COOKIE_HELLOS {
            pending.cookie_tries += 1;
            pending.send(self.server, tx);
            self.counters.hellos += 1;
        }
    }

    /// Handles a reject. It is not sealed, so it is only a hint: it begins a handshake, or shortens one that gets no
    /// genuine answer, and never ends the present session.
    fn rejected(&mut self, now_us: u64, head: SealHeader, datagram: &[u8], tx: &mut impl DatagramSink) {
        self.counters.rejects += 1;
        let server_ms =
            datagram.get(HEADER_LEN..).and_then(|rest| rest.first_chunk()).map(|ms| u64::from_le_bytes(*ms));
        let (Some(reason), Some(server_ms)) = (RejectReason::from_byte(head.flags), server_ms) else { return };
        if reason == RejectReason::Session {
            let sent = self.current.as_ref().is_some_and(|keys| head.number < keys.sent);
            let rested = self.handshake_started_us.is_none_or(|handshake_started_us| {
                now_us.saturating_sub(handshake_started_us) >= MIN_REHANDSHAKE_INTERVAL_US
            });
            if sent && rested {
                self.begin(now_us, tx);
            }
            return;
        }
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.epoch == head.number) else { return };
        match reason {
            RejectReason::Clock if pending.clock_tries < MAX_CLOCK_CORRECTIONS => {
                let tries = pending.clock_tries + 1;
                self.clock_ms = server_ms.wrapping_sub(now_us / 1000);
                self.hello(now_us, tries, tx);
            }
            RejectReason::Token => drop(pending.refused.get_or_insert((HandshakeRefusal::Token, now_us))),
            RejectReason::Tenant => drop(pending.refused.get_or_insert((HandshakeRefusal::Tenant, now_us))),
            RejectReason::Clock | RejectReason::Session => {}
        }
    }

    /// Seals an R2P2 packet and sends it. Without keys it is dropped and counted, as a network would.
    #[inline]
    pub fn send(&mut self, parts: &[&[u8]], tx: &mut impl DatagramSink) {
        let Some(keys) = &mut self.current else {
            self.counters.unsealed += 1;
            return;
        };
        let Some(number) = keys.next_packet_number() else {
            self.counters.spent += 1;
            return;
        };
        let (tenant, session, flags) = (self.tenant, self.session, keys.phase());
        let head = SealHeader { kind: SealPacketKind::ToServer, flags, tenant, session, number }.encode();
        super::send_sealed(self.server, &head, parts, tx, &mut |datagram| keys.seal(number, datagram));
        self.counters.sealed += 1;
    }

    /// Returns the sink that [`crate::r2p2::ClientEndpoint`] sends through: it seals each packet.
    pub fn through<'s, T: DatagramSink>(&'s mut self, tx: &'s mut T) -> ClientSealSink<'s, T> {
        ClientSealSink { seal: self, tx }
    }
}

/// See [`ClientSeal::through`].
pub struct ClientSealSink<'s, T> {
    seal: &'s mut ClientSeal,
    tx: &'s mut T,
}

impl<T: DatagramSink> DatagramSink for ClientSealSink<'_, T> {
    #[inline]
    fn send(&mut self, _peer: PeerAddr, parts: &[&[u8]]) {
        self.seal.send(parts, self.tx);
    }

    fn most(&mut self, peer: PeerAddr) -> usize {
        self.tx.most(peer).saturating_sub(SEAL_OVERHEAD)
    }
}

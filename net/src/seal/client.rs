//! A client's side of a sealed session towards one server port.

use super::cookie::Cookie;
use super::counters::ClientSealCounters;
use super::crypt::{Keys, NotOpened, seal_small};
use super::handshake::Initiator;
use super::keys::TokenKeys;
use super::limits::{CLOCK_TRIES, COOKIE_TRIES, HELLO_LEN, OLD_KEYS_US, REFUSAL_PATIENCE_US, REJECT_GAP_US};
use super::packet::{BadSeal, HEADER_LEN, Head, Kind, OVERHEAD, Reason};
use crate::limits::{FIRST_RTO_US, MAX_RTO_US};
use crate::r2p2::{Peer, Transmit};
use std::ops::Range;

/// Why there is no session and will be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server has no tenant of this id and this token.
    Token,
    /// It has no such tenant: only older servers tell.
    Tenant,
}

/// A handshake under way.
struct Pending {
    initiator: Initiator,
    hello: [u8; HELLO_LEN],
    epoch: u64,
    due_us: u64,
    rto_us: u64,
    clock_tries: u32,
    /// What the server has sent for the hello to bring, and how often it was sent again at once for that.
    cookie: Option<Cookie>,
    cookie_tries: u32,
    /// What a reject said, and since when: see [`REFUSAL_PATIENCE_US`].
    refused: Option<(Refusal, u64)>,
}

impl Pending {
    fn send(&self, server: Peer, tx: &mut impl Transmit) {
        match &self.cookie {
            Some(cookie) => tx.send(server, &[&self.hello, cookie]),
            None => tx.send(server, &[&self.hello]),
        }
    }
}

/// One client's sealed session. It stays the same session when its keys are renewed, the server forgets it, or the client's
/// address changes; so what is remembered under its name (see [`crate::once`]) stays true.
pub struct ClientSeal {
    tenant: u32,
    server: Peer,
    session: u64,
    token: TokenKeys,
    /// What to add to `now_us / 1000` for the server's clock, milliseconds.
    clock_ms: u64,
    epoch: u64,
    current: Option<Box<Keys>>,
    /// Keys that may still open what is under way, and until when.
    previous: Option<(Box<Keys>, u64)>,
    pending: Option<Pending>,
    /// When the last handshake began.
    began_us: Option<u64>,
    counters: ClientSealCounters,
    /// Fixes the ephemeral keys, for documentation and tests.
    ephemeral: Option<[u8; 32]>,
}

impl ClientSeal {
    /// A session that has not shaken hands yet. `session` is a random number; `clock_ms` is the time in milliseconds since 1970 at
    /// which `now_us` is 0.
    pub fn new(server: Peer, tenant: u32, token: &[u8], session: u64, clock_ms: u64) -> ClientSeal {
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
            began_us: None,
            counters: ClientSealCounters::default(),
            ephemeral: None,
        }
    }

    /// With ephemeral keys that are no secret: for documentation and tests alone.
    #[doc(hidden)]
    #[must_use]
    pub fn with_ephemeral_for_documentation_only(mut self, ephemeral: [u8; 32]) -> ClientSeal {
        self.ephemeral = Some(ephemeral);
        self
    }

    /// Whether packets can be sealed.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.current.is_some()
    }

    /// The session's number.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// What has been counted.
    pub fn counters(&self) -> &ClientSealCounters {
        &self.counters
    }

    /// Shakes hands, unless that is under way.
    pub fn begin(&mut self, now_us: u64, tx: &mut impl Transmit) {
        if self.pending.is_none() {
            self.hello(now_us, 0, tx);
        }
    }

    fn hello(&mut self, now_us: u64, clock_tries: u32, tx: &mut impl Transmit) {
        self.epoch += 1;
        let epoch = self.epoch;
        let head = Head { kind: Kind::Hello, flags: 0, tenant: self.tenant, session: self.session, number: epoch };
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&self.clock_ms.wrapping_add(now_us / 1000).to_le_bytes());
        let made = Initiator::new(&self.token, &head.encode(), &payload, self.ephemeral.as_ref());
        let Some((initiator, hello)) = made else { return };
        tx.send(self.server, &[&hello]);
        self.counters.hellos += 1;
        self.began_us = Some(now_us);
        let (due_us, rto_us) = (now_us + FIRST_RTO_US, FIRST_RTO_US);
        let (cookie, cookie_tries, refused) = (None, 0, None);
        self.pending =
            Some(Pending { initiator, hello, epoch, due_us, rto_us, clock_tries, cookie, cookie_tries, refused });
    }

    /// Renews old keys, and repeats the hello if `wanted` (somebody waits for the session). Returns when to call again.
    pub fn poll(&mut self, now_us: u64, wanted: bool, tx: &mut impl Transmit) -> Option<u64> {
        if self.previous.as_ref().is_some_and(|(_, until_us)| *until_us <= now_us) {
            self.previous = None;
        }
        if wanted && self.pending.is_none() && self.current.as_ref().is_some_and(|keys| keys.are_old(now_us)) {
            self.begin(now_us, tx);
        }
        let pending = self.pending.as_mut().filter(|_| wanted)?;
        if pending.due_us <= now_us {
            pending.send(self.server, tx);
            self.counters.hellos += 1;
            pending.rto_us = (pending.rto_us * 2).min(MAX_RTO_US);
            pending.due_us = now_us + pending.rto_us;
        }
        let told_us = pending.refused.map(|(_, since_us)| since_us + REFUSAL_PATIENCE_US);
        Some(told_us.map_or(pending.due_us, |told_us| told_us.min(pending.due_us)))
    }

    /// Why there will be no session, once that is certain enough. The handshake ends with it; another may begin.
    pub fn take_refusal(&mut self, now_us: u64) -> Option<Refusal> {
        let (refusal, since_us) = self.pending.as_ref()?.refused?;
        if now_us.saturating_sub(since_us) < REFUSAL_PATIENCE_US {
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
        tx: &mut impl Transmit,
    ) -> Option<Range<usize>> {
        let head = match Head::parse(datagram) {
            Ok(head) => head,
            Err(bad) => {
                match bad {
                    BadSeal::Cut => self.counters.cut += 1,
                    BadSeal::Magic => self.counters.plain += 1,
                    BadSeal::Form => self.counters.malformed += 1,
                }
                return None;
            }
        };
        if (head.tenant, head.session) != (self.tenant, self.session) {
            self.counters.foreign += 1;
            return None;
        }
        match head.kind {
            Kind::ToClient | Kind::Probe => {
                opened.clear();
                opened.extend_from_slice(datagram);
                self.sealed(now_us, head, opened, tx)
            }
            Kind::Welcome => {
                self.welcome(now_us, head, datagram);
                None
            }
            Kind::Reject => {
                self.rejected(now_us, head, datagram, tx);
                None
            }
            Kind::Retry => {
                self.cookie(head, datagram, tx);
                None
            }
            Kind::ToServer | Kind::Hello | Kind::Proof => {
                self.counters.malformed += 1;
                None
            }
        }
    }

    fn sealed(&mut self, now_us: u64, head: Head, datagram: &mut [u8], tx: &mut impl Transmit) -> Option<Range<usize>> {
        let current = self.current.as_mut().filter(|keys| keys.phase() == head.flags);
        let previous = self.previous.as_mut().filter(|(keys, until)| keys.phase() == head.flags && *until > now_us);
        let Some(keys) = current.or(previous.map(|(keys, _)| keys)) else {
            self.counters.foreign += 1;
            return None;
        };
        match keys.open(head.number, datagram) {
            Ok(len) => {
                self.counters.opened += 1;
                if head.kind == Kind::ToClient {
                    return Some(HEADER_LEN..HEADER_LEN + len);
                }
                let asked = *datagram.get(HEADER_LEN..)?.first_chunk()?;
                self.prove(asked, tx);
            }
            Err(NotOpened::Seen(_)) => self.counters.replayed += 1,
            Err(NotOpened::Spent) => self.counters.spent += 1,
            Err(NotOpened::Tag) => self.counters.bad_tag += 1,
        }
        None
    }

    /// Tells the server that we are where it has asked.
    fn prove(&mut self, asked: [u8; 8], tx: &mut impl Transmit) {
        let Some(keys) = &mut self.current else { return };
        let head = Head { kind: Kind::Proof, flags: 0, tenant: self.tenant, session: self.session, number: 0 };
        if let Some(proof) = seal_small(keys, head, asked) {
            tx.send(self.server, &[&proof]);
        }
    }

    fn welcome(&mut self, now_us: u64, head: Head, datagram: &[u8]) {
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.epoch == head.number) else {
            self.counters.foreign += 1;
            return;
        };
        let read = datagram.get(HEADER_LEN..).and_then(|message| pending.initiator.read(message));
        let Some((split, _)) = read else {
            self.counters.bad_tag += 1;
            return;
        };
        let Some(keys) = Keys::of_client(head.number, &split, now_us) else { return };
        self.pending = None;
        self.counters.handshakes += 1;
        if let Some(old) = self.current.replace(keys) {
            self.previous = Some((old, now_us + OLD_KEYS_US));
        }
    }

    /// The server wants the hello to bring a cookie.
    fn cookie(&mut self, head: Head, datagram: &[u8], tx: &mut impl Transmit) {
        self.counters.cookies += 1;
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.epoch == head.number) else { return };
        pending.cookie = datagram.get(HEADER_LEN..).and_then(|cookie| cookie.first_chunk().copied());
        if pending.cookie_tries < COOKIE_TRIES {
            pending.cookie_tries += 1;
            pending.send(self.server, tx);
            self.counters.hellos += 1;
        }
    }

    /// A reject is not sealed, so it is a hint alone: it begins a handshake, or shortens one that gets no genuine answer, and never
    /// ends the session that there is.
    fn rejected(&mut self, now_us: u64, head: Head, datagram: &[u8], tx: &mut impl Transmit) {
        self.counters.rejects += 1;
        let server_ms =
            datagram.get(HEADER_LEN..).and_then(|rest| rest.first_chunk()).map(|ms| u64::from_le_bytes(*ms));
        let (Some(reason), Some(server_ms)) = (Reason::from_byte(head.flags), server_ms) else { return };
        if reason == Reason::Session {
            let sent = self.current.as_ref().is_some_and(|keys| head.number < keys.sent);
            let rested = self.began_us.is_none_or(|began_us| now_us.saturating_sub(began_us) >= REJECT_GAP_US);
            if sent && rested {
                self.begin(now_us, tx);
            }
            return;
        }
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.epoch == head.number) else { return };
        match reason {
            Reason::Clock if pending.clock_tries < CLOCK_TRIES => {
                let tries = pending.clock_tries + 1;
                self.clock_ms = server_ms.wrapping_sub(now_us / 1000);
                self.hello(now_us, tries, tx);
            }
            Reason::Token => drop(pending.refused.get_or_insert((Refusal::Token, now_us))),
            Reason::Tenant => drop(pending.refused.get_or_insert((Refusal::Tenant, now_us))),
            Reason::Clock | Reason::Session => {}
        }
    }

    /// Seals an R2P2 packet and sends it. Without keys it is dropped and counted, as a network would.
    #[inline]
    pub fn send(&mut self, parts: &[&[u8]], tx: &mut impl Transmit) {
        let Some(keys) = &mut self.current else {
            self.counters.unsealed += 1;
            return;
        };
        let Some(number) = keys.take_number() else {
            self.counters.spent += 1;
            return;
        };
        let (tenant, session, flags) = (self.tenant, self.session, keys.phase());
        let head = Head { kind: Kind::ToServer, flags, tenant, session, number }.encode();
        super::send_sealed(self.server, &head, parts, tx, &mut |datagram| keys.seal(number, datagram));
        self.counters.sealed += 1;
    }

    /// What [`crate::r2p2::ClientEndpoint`] sends through: seals each packet.
    pub fn through<'s, T: Transmit>(&'s mut self, tx: &'s mut T) -> Through<'s, T> {
        Through { seal: self, tx }
    }
}

/// See [`ClientSeal::through`].
pub struct Through<'s, T> {
    seal: &'s mut ClientSeal,
    tx: &'s mut T,
}

impl<T: Transmit> Transmit for Through<'_, T> {
    #[inline]
    fn send(&mut self, _peer: Peer, parts: &[&[u8]]) {
        self.seal.send(parts, self.tx);
    }

    fn most(&mut self, peer: Peer) -> usize {
        self.tx.most(peer).saturating_sub(OVERHEAD)
    }
}

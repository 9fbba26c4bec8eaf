//! A server's side of its clients' sealed sessions, on one port.

use super::cookie::{Cookie, Cookies};
use super::counters::SealCounters;
use super::crypt::{Keys, NotOpened, seal_small};
use super::handshake::Responder;
use super::keys::Verifier;
use super::limits::{HELLO_LEN, HELLO_LIFE_MS, SealLimits};
use super::packet::{BadSeal, HEADER_LEN, Head, Kind, OVERHEAD, Reason, session_of, session_peer};
use super::rate::Rate;
use super::table::{Name, Next, Session, Table, Under};
use super::window::Seen;
use crate::limits::FIRST_RTO_US;
use crate::r2p2::header::SINGLE_HEADER_LEN;
use crate::r2p2::{Peer, Transmit};
use crate::share::Share;
use hashbrown::{HashMap, HashSet};
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::VecDeque;
use std::ops::Range;

/// Sessions looked at for being idle in one turn.
const SWEEP: usize = 4;

/// Stands in for the verifier of a tenant that there is not. What opens under it is refused all the same.
const NOBODY: Verifier = Verifier { psk: [0; 32], public: [9; 32] };

/// Knows the tenants' tokens.
pub trait Doorkeeper {
    /// The verifier of the tenant's token number `which` (0: the present one; more while an old one is still good), and a
    /// number that names the token as long as it is good. `None` beyond the last one, and for an unknown tenant.
    fn verifier(&self, tenant: u32, which: usize) -> Option<(Verifier, u64)>;
}

/// A handshake whose hello was good and that waits for its curve operations.
struct Waiting {
    responder: Responder,
    name: Name,
    epoch: u64,
    hello_tag: [u8; 16],
    credential: u64,
    from: Peer,
}

/// The sealed sessions of one port.
pub struct ServerSeal {
    limits: SealLimits,
    /// The time in milliseconds since 1970 at which `now_us` is 0.
    clock_ms: u64,
    table: Table,
    waiting: VecDeque<Waiting>,
    /// Ends of the hellos that were good: of this period of a hello's life, and of the one before.
    hellos: [HashSet<[u8; 16]>; 2],
    turned_us: u64,
    checks_left: u32,
    /// The same for those that bring a cookie.
    proven_left: u32,
    checks: Rate,
    cookies: Cookies,
    cookies_sent: Rate,
    rejects: Rate,
    handshakes: HashMap<u32, Rate>,
    all_handshakes: Rate,
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
            table: Table::default(),
            waiting: VecDeque::new(),
            hellos: Default::default(),
            turned_us: 0,
            checks_left: limits.checks_per_turn,
            proven_left: limits.checks_per_turn,
            checks: Rate::new(limits.checks_per_s),
            cookies: Cookies::new(limits.checks_per_address_s),
            cookies_sent: Rate::new(limits.cookies_per_s),
            rejects: Rate::new(limits.rejects_per_s),
            handshakes: HashMap::new(),
            all_handshakes: Rate::new(limits.all_handshakes_per_s),
            random: SystemRandom::new(),
            counters: SealCounters::default(),
            ephemeral: None,
        }
    }

    /// With ephemeral keys that are no secret: for documentation and tests alone.
    #[doc(hidden)]
    #[must_use]
    pub fn with_ephemeral_for_documentation_only(mut self, ephemeral: [u8; 32]) -> ServerSeal {
        self.ephemeral = Some(ephemeral);
        self
    }

    /// What has been counted.
    pub fn counters(&self) -> &SealCounters {
        &self.counters
    }

    /// Sessions that are known.
    pub fn sessions(&self) -> usize {
        self.table.len()
    }

    /// Bytes of answers that wait for their clients' addresses to be proven.
    pub fn held_bytes(&self) -> usize {
        self.table.held_bytes
    }

    /// Which of its tenant's tokens the session under this address was opened with.
    pub fn credential(&mut self, peer: Peer) -> Option<u64> {
        Some(self.table.get(session_of(peer)?)?.credential)
    }

    /// Forgets the session under this address: its token is not good any more.
    pub fn end(&mut self, peer: Peer) {
        if session_of(peer).is_some_and(|name| self.table.remove(name)) {
            self.counters.ended += 1;
        }
    }

    /// When [`ServerSeal::work`] should be called at the latest; `None`: whenever.
    pub fn timer_us(&self, now_us: u64) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(now_us)
    }

    /// Takes a datagram of a sealed session. If it is a genuine packet, it is opened in place: the session's address and
    /// where in the datagram the R2P2 packet stands.
    pub fn receive(
        &mut self,
        now_us: u64,
        from: Peer,
        datagram: &mut [u8],
        door: &impl Doorkeeper,
        tx: &mut impl Transmit,
    ) -> Option<(Peer, Range<usize>)> {
        let head = match Head::parse(datagram) {
            Ok(head) => head,
            Err(bad) => {
                match bad {
                    BadSeal::Cut => self.counters.cut += 1,
                    BadSeal::Magic | BadSeal::Form => self.counters.malformed += 1,
                }
                return None;
            }
        };
        match head.kind {
            Kind::ToServer | Kind::Proof => self.sealed(now_us, from, head, datagram, tx),
            Kind::Hello => {
                self.hello(now_us, from, head, datagram, door, tx);
                None
            }
            Kind::ToClient | Kind::Welcome | Kind::Reject | Kind::Probe | Kind::Retry => {
                self.counters.malformed += 1;
                None
            }
        }
    }

    fn sealed(
        &mut self,
        now_us: u64,
        from: Peer,
        head: Head,
        datagram: &mut [u8],
        tx: &mut impl Transmit,
    ) -> Option<(Peer, Range<usize>)> {
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
                    NotOpened::Seen(Seen::Replayed) => self.counters.replayed += 1,
                    NotOpened::Seen(Seen::TooOld) => self.counters.too_old += 1,
                    NotOpened::Spent => self.counters.spent += 1,
                    NotOpened::Tag => self.counters.bad_tag += 1,
                }
                if unconfirmed && why == NotOpened::Tag {
                    // The keys may be those of a hello that somebody repeated after we had restarted.
                    self.reject(now_us, from, head, Reason::Session, tx);
                }
                return None;
            }
        };
        self.counters.opened += 1;
        session.used_us = now_us;
        if under == Under::Next {
            session.confirm(now_us, from);
        }
        let inner = HEADER_LEN..HEADER_LEN + length;
        if head.kind == Kind::Proof {
            // Whatever port it leaves from: who has these bytes receives where they were sent.
            let path = &mut session.path;
            if datagram.get(inner).is_some_and(|said| path.asked_us.is_some() && *said == path.asked) {
                path.proven = true;
                session.home = Some(path.peer);
                self.send_held(name, tx);
            }
            return None;
        }
        if from != session.path.peer && newest && under != Under::Previous {
            session.go_to(from, session.home == Some(from));
            self.counters.moved += 1;
        }
        if from == session.path.peer && !session.path.proven {
            session.path.credit += datagram.len();
            probe(now_us, session, &self.random, tx);
        }
        if session.path.proven && !session.held.is_empty() {
            self.send_held(name, tx);
        }
        Some((session_peer(name.0, name.1), inner))
    }

    /// Sends what has waited for a client's address to be proven.
    #[cold]
    fn send_held(&mut self, name: Name, tx: &mut impl Transmit) {
        let Some((session, in_all)) = self.table.with_held(name) else { return };
        for packet in session.held.take(in_all) {
            self.send(session_peer(name.0, name.1), &[&packet], tx);
        }
    }

    /// Nothing is known of a packet's session, or of its keys.
    #[cold]
    fn unknown(&mut self, now_us: u64, from: Peer, head: Head, tx: &mut impl Transmit) -> Option<(Peer, Range<usize>)> {
        self.counters.unknown += 1;
        self.reject(now_us, from, head, Reason::Session, tx);
        None
    }

    /// Says why a packet is refused, in less bytes than it had.
    #[cold]
    fn reject(&mut self, now_us: u64, to: Peer, head: Head, reason: Reason, tx: &mut impl Transmit) {
        if self.rejects.take(now_us) {
            self.counters.rejects += 1;
            let head = Head { kind: Kind::Reject, flags: reason as u8, ..head };
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
        from: Peer,
        head: Head,
        datagram: &[u8],
        door: &impl Doorkeeper,
        tx: &mut impl Transmit,
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
        let mut known = (0..).map_while(|which| door.verifier(head.tenant, which));
        let mut none = true;
        let read = known.find_map(|(verifier, credential)| {
            none = false;
            let read = Responder::read(&verifier, &bytes, message, self.ephemeral.as_ref());
            read.map(|(responder, payload)| (responder, payload, credential))
        });
        if none {
            // The same answer after the same work as for a wrong token: else ids could be tried until one is a tenant's.
            let _same_time =
                std::hint::black_box(Responder::read(&NOBODY, &bytes, message, self.ephemeral.as_ref()).is_some());
        }
        let Some((responder, payload, credential)) = read else {
            self.counters.bad_hello += 1;
            return self.reject(now_us, from, head, Reason::Token, tx);
        };
        let told_ms = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| payload[at]));
        if told_ms.abs_diff(self.clock_ms(now_us)) > HELLO_LIFE_MS {
            self.counters.clock += 1;
            return self.reject(now_us, from, head, Reason::Clock, tx);
        }
        let same_tenant = self.waiting.iter().filter(|waits| waits.name.0 == name.0).count();
        let limits = &self.limits;
        let rate = self.handshakes.entry(name.0).or_insert_with(|| Rate::new(limits.handshakes_per_s));
        let room = self.waiting.len() < limits.waiting && same_tenant < limits.waiting_per_tenant;
        if !room || !rate.take(now_us) || !self.all_handshakes.take(now_us) {
            self.counters.rate += 1;
            return;
        }
        self.remember(now_us, hello_tag);
        self.waiting.push_back(Waiting { responder, name, epoch: head.number, hello_tag, credential, from });
    }

    /// Whether a hello's token is to be checked now. Those that bring a cookie have a turn's checks of their own, and half of a
    /// second's; whoever comes without one when the others are used up is sent one, in less than half of the bytes that it sent.
    fn may_check(
        &mut self,
        now_us: u64,
        from: Peer,
        head: Head,
        cookie: Option<&Cookie>,
        tx: &mut impl Transmit,
    ) -> bool {
        let name = (head.tenant, head.session);
        if self.checks_left > 0 && self.checks.take_of_half(now_us) {
            self.checks_left -= 1;
            return true;
        }
        if cookie.is_some_and(|cookie| self.cookies.knows(now_us, from, name, cookie)) {
            let may = self.proven_left > 0 && self.cookies.may_check(now_us, from) && self.checks.take(now_us);
            self.proven_left -= u32::from(may);
            self.counters.rate += u64::from(!may);
            return may;
        }
        let sent =
            self.cookies_sent.take(now_us).then(|| self.cookies.make(now_us, from, name, &self.random)).flatten();
        if let Some(cookie) = sent {
            self.counters.no_cookie += 1;
            tx.send(from, &[&Head { kind: Kind::Retry, flags: 0, ..head }.encode(), &cookie]);
        } else {
            self.counters.rate += 1;
        }
        false
    }

    /// Remembers a good hello for as long as its time would be accepted: it may be up to a life early, and is good for
    /// another one then. What is remembered is bounded by the tenants' rates of handshakes.
    fn remember(&mut self, now_us: u64, hello_tag: [u8; 16]) {
        if now_us.saturating_sub(self.turned_us) > 2 * HELLO_LIFE_MS * 1000 {
            self.turned_us = now_us;
            self.hellos.swap(0, 1);
            self.hellos[0].clear();
        }
        self.hellos[0].insert(hello_tag);
    }

    /// Ends waiting handshakes, as many as a turn has time for, and forgets what is idle. Call once a turn.
    pub fn work(&mut self, now_us: u64, tx: &mut impl Transmit) {
        (self.checks_left, self.proven_left) = (self.limits.checks_per_turn, self.limits.checks_per_turn);
        for _ in 0..self.limits.handshakes_per_turn {
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.welcome(now_us, waiting, tx);
        }
        if let Some(before_us) = now_us.checked_sub(self.limits.idle_us) {
            self.counters.ended += self.table.sweep(SWEEP, before_us);
        }
        if self.handshakes.len() > self.table.len() + self.limits.waiting {
            self.handshakes.retain(|_, rate| !rate.is_full(now_us));
        }
    }

    #[cold]
    fn welcome(&mut self, now_us: u64, waiting: Waiting, tx: &mut impl Transmit) {
        let Waiting { responder, name, epoch, hello_tag, credential, from } = waiting;
        let known = self.table.get(name);
        if known.is_some_and(|session| epoch <= session.epoch()) {
            // A later hello of the same session was faster.
            self.counters.old_hello += 1;
            return;
        }
        let head = Head { kind: Kind::Welcome, flags: 0, tenant: name.0, session: name.1, number: epoch };
        let answered = responder.answer(&head.encode(), &self.clock_ms(now_us).to_le_bytes());
        let Some((welcome, split)) = answered else {
            self.counters.bad_hello += 1;
            return;
        };
        let Some(keys) = Keys::of_server(epoch, &split, now_us) else { return };
        self.counters.handshakes += 1;
        let next = Next { keys, hello_tag, welcome, from: Some(from), credential };
        tx.send(from, &[&next.welcome]);
        match self.table.get(name) {
            Some(session) => session.next = Some(next),
            None => {
                let evicted = self.table.insert(Session::new(name, next, from, now_us), self.limits.sessions);
                self.counters.evicted += u64::from(evicted);
            }
        }
    }

    /// Seals a packet for the session under `peer` and sends it to where its client is.
    #[inline]
    pub fn send(&mut self, peer: Peer, parts: &[&[u8]], tx: &mut impl Transmit) {
        let Some((tenant, number)) = session_of(peer) else { return };
        let session = self.table.with_held((tenant, number));
        let found = session
            .and_then(|(Session { path, current, held, .. }, in_all)| Some((path, current.as_mut()?, held, in_all)));
        let Some((path, keys, held, in_all)) = found else {
            self.counters.homeless += 1;
            return;
        };
        if !path.proven {
            let length: usize = parts.iter().map(|part| part.len()).sum::<usize>() + OVERHEAD;
            let Some(left) = path.credit.checked_sub(length) else {
                // Longer messages are sent again by themselves.
                let is_whole = parts.first().and_then(|head| head.get(1)) == Some(&(SINGLE_HEADER_LEN as u8));
                if !is_whole || !held.push(parts, in_all) {
                    self.counters.unproven += 1;
                }
                return;
            };
            path.credit = left;
        }
        let Some(packet) = keys.take_number() else {
            self.counters.spent += 1;
            return;
        };
        let head = Head { kind: Kind::ToClient, flags: keys.phase(), tenant, session: number, number: packet }.encode();
        super::send_sealed(path.peer, &head, parts, tx, &mut |datagram| keys.seal(packet, datagram));
        self.counters.sealed += 1;
    }

    /// What a server's endpoint sends through: seals what goes to sealed sessions, and nothing else.
    pub fn through<'s, T: Transmit>(&'s mut self, tx: &'s mut T) -> Sealing<'s, T> {
        Sealing { seal: self, tx }
    }
}

/// Asks a client to show that it receives where its packets seem to come from, if that costs no more than came from there.
#[cold]
fn probe(now_us: u64, session: &mut Session, random: &SystemRandom, tx: &mut impl Transmit) {
    let Session { path, current, name, .. } = session;
    let Some(keys) = current else { return };
    if path.asked_us.is_some_and(|asked_us| now_us.saturating_sub(asked_us) < FIRST_RTO_US) {
        return;
    }
    let Some(credit) = path.credit.checked_sub(OVERHEAD + 8) else { return };
    if path.asked_us.is_none() && random.fill(&mut path.asked).is_err() {
        return;
    }
    let head = Head { kind: Kind::Probe, flags: 0, tenant: name.0, session: name.1, number: 0 };
    if let Some(probe) = seal_small(keys, head, path.asked) {
        (path.credit, path.asked_us) = (credit, Some(now_us));
        tx.send(path.peer, &[&probe]);
    }
}

/// See [`ServerSeal::through`].
pub struct Sealing<'s, T> {
    seal: &'s mut ServerSeal,
    tx: &'s mut T,
}

impl<T: Transmit> Transmit for Sealing<'_, T> {
    #[inline]
    fn send(&mut self, peer: Peer, parts: &[&[u8]]) {
        if session_of(peer).is_some() {
            self.seal.send(peer, parts, self.tx);
        } else {
            self.tx.send(peer, parts);
        }
    }

    #[inline]
    fn most(&mut self, peer: Peer) -> usize {
        let Some(name) = session_of(peer) else { return self.tx.most(peer) };
        let to = self.seal.table.get(name).map_or(peer, |session| session.path.peer);
        self.tx.most(to).saturating_sub(OVERHEAD)
    }

    /// What is sealed is copied by that: out of where it lies into the outbox.
    #[inline]
    fn send_shared(&mut self, peer: Peer, parts: [&[u8]; 2], share: &Share, range: Range<usize>) {
        if session_of(peer).is_some() {
            let [head, own] = parts;
            self.seal.send(peer, &[head, own, share.get(range).unwrap_or_default()], self.tx);
        } else {
            self.tx.send_shared(peer, parts, share, range);
        }
    }
}

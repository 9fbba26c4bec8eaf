//! The promises of sealed sessions, tested without a network. With one: `sim/tests.rs`.

use super::limits::{HELLO_LEN, HELLO_LIFETIME_MS, PACKETS_PER_KEY, REFUSAL_GRACE_US, REKEY_AFTER_US, WELCOME_LEN};
use super::*;
use crate::r2p2::header::{R2p2Kind as R2p2, single_header};

mod cookies;
mod moving;

const TENANT: u32 = 7;
const TOKEN: &[u8] = b"the token of tenant seven";
const CLOCK_MS: u64 = 1_700_000_000_000;

type Sent = Vec<(PeerAddr, Vec<u8>)>;

fn address(last: u8) -> PeerAddr {
    PeerAddr::from(([192, 0, 2, last], 9000))
}

/// Tenants 7 and 8, each with a token, and a second one of tenant 7 when it is being replaced.
struct Tokens {
    old_token_is_good: bool,
}

impl TokenSource for Tokens {
    fn verifier(&self, tenant: u32, which: usize) -> Option<(TokenVerifier, u64)> {
        let token: &[u8] = match (tenant, which) {
            (TENANT, 0) => TOKEN,
            (TENANT, 1) if self.old_token_is_good => b"the one before",
            (8, 0) => b"the token of tenant eight",
            _ => return None,
        };
        Some((TokenKeys::of(token).verifier(), u64::from(tenant) * 10 + which as u64))
    }
}

const TOKENS: Tokens = Tokens { old_token_is_good: false };

/// A server, a client, and what they have sent and not delivered.
struct Pair {
    now_us: u64,
    server: ServerSeal,
    client: ClientSeal,
    at: PeerAddr,
}

impl Pair {
    fn new() -> Pair {
        Pair::with(SealLimits::default(), TENANT, TOKEN)
    }

    fn with(limits: SealLimits, tenant: u32, token: &[u8]) -> Pair {
        let client = ClientSeal::new(address(1), tenant, token, 0xABCD_EF01_2345_6789, CLOCK_MS);
        Pair { now_us: 0, server: ServerSeal::new(limits, CLOCK_MS), client, at: address(2) }
    }

    /// A pair that has shaken hands.
    fn ready() -> Pair {
        let mut pair = Pair::new();
        pair.shake();
        assert!(pair.client.is_ready());
        pair
    }

    fn hello(&mut self) -> Vec<u8> {
        let mut sent = Sent::new();
        self.client.begin(self.now_us, &mut sent);
        assert_eq!(sent.len(), 1);
        sent.remove(0).1
    }

    fn shake(&mut self) {
        let hello = self.hello();
        for (to, welcome) in self.deliver(&hello).1 {
            assert_eq!(to, self.at);
            self.bring(&welcome);
        }
    }

    /// Delivers a datagram to the server. Returns the packet that was in it, and the datagrams that the server sent.
    fn deliver(&mut self, datagram: &[u8]) -> (Option<(PeerAddr, Vec<u8>)>, Sent) {
        let (mut bytes, mut sent) = (datagram.to_vec(), Sent::new());
        let opened = self.server.receive(self.now_us, self.at, &mut bytes, &TOKENS, &mut sent);
        let opened = opened.map(|(peer, part)| (peer, bytes[part].to_vec()));
        self.server.work(self.now_us, &mut sent);
        (opened, sent)
    }

    fn bring(&mut self, datagram: &[u8]) -> (Option<Vec<u8>>, Sent) {
        let mut sent = Sent::new();
        let mut opened = Vec::new();
        let part = self.client.receive(self.now_us, datagram, &mut opened, &mut sent);
        (part.map(|part| opened[part].to_vec()), sent)
    }

    fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        let mut sent = Sent::new();
        self.client.send(&[&single_header(R2p2::Request, 1), inner], &mut sent);
        assert_eq!(sent.len(), 1);
        sent.remove(0).1
    }

    fn answer(&mut self, peer: PeerAddr, inner: &[u8]) -> Sent {
        let mut sent = Sent::new();
        self.server.send(peer, &[&single_header(R2p2::Response, 1), inner], &mut sent);
        sent
    }

    /// Sends a packet to the server and one back.
    fn talk(&mut self) {
        let request = self.seal(b"request");
        let (opened, _) = self.deliver(&request);
        let (peer, inner) = opened.expect("a genuine packet");
        assert!(inner.ends_with(b"request"));
        let (to, answer) = self.answer(peer, b"answer").remove(0);
        assert_eq!(to, self.at);
        assert!(self.bring(&answer).0.expect("a genuine packet").ends_with(b"answer"));
    }
}

#[test]
fn a_session_carries_packets_both_ways_and_shows_nothing_of_them() {
    let mut pair = Pair::ready();
    let request = pair.seal(b"a value that nobody else may read");
    assert_eq!(request.len(), SEAL_OVERHEAD + 8 + 33);
    assert!(!request.windows(5).any(|five| five == b"value"));
    let (opened, sent) = pair.deliver(&request);
    let (peer, inner) = opened.unwrap();
    assert_eq!((peer_session(peer), sent.len()), (Some((TENANT, pair.client.session())), 0));
    assert!(inner.ends_with(b"a value that nobody else may read"));
    for _ in 0..5000 {
        pair.talk();
    }
    assert_eq!((pair.server.counters().handshakes, pair.server.counters().refused()), (1, 0));
    assert_eq!(pair.server.credential(peer), Some(70));
}

#[test]
fn every_byte_of_every_packet_matters() {
    let mut pair = Pair::new();
    let hello = pair.hello();
    assert_eq!(hello.len(), HELLO_LEN);
    for at in 0..hello.len() {
        let mut forged = hello.clone();
        forged[at] ^= 1 << (at % 8);
        // A fresh server for each, so that none is refused for having seen too many.
        let mut server = ServerSeal::new(SealLimits::default(), CLOCK_MS);
        let mut sent = Sent::new();
        assert!(server.receive(0, pair.at, &mut forged, &TOKENS, &mut sent).is_none());
        server.work(0, &mut sent);
        assert_eq!((server.counters().handshakes, server.sessions()), (0, 0), "byte {at}");
        assert!(sent.iter().all(|(_, reject)| reject.len() == REJECT_LEN), "no answer but a reject");
    }
    let (_, sent) = pair.deliver(&hello);
    let welcome = sent[0].1.clone();
    assert_eq!(welcome.len(), WELCOME_LEN);
    for at in 0..welcome.len() {
        let mut forged = welcome.clone();
        forged[at] ^= 1 << (at % 8);
        pair.bring(&forged);
        assert!(!pair.client.is_ready(), "byte {at}");
    }
    pair.bring(&welcome);
    assert!(pair.client.is_ready(), "what was forged has not disturbed the handshake");
    let request = pair.seal(b"request");
    for at in 0..request.len() {
        let mut forged = request.clone();
        forged[at] ^= 1 << (at % 8);
        assert!(pair.deliver(&forged).0.is_none(), "byte {at}");
    }
    let (peer, _) = pair.deliver(&request).0.expect("and the genuine one is still taken");
    let (_, answer) = pair.answer(peer, b"answer").remove(0);
    for at in 0..answer.len() {
        let mut forged = answer.clone();
        forged[at] ^= 1 << (at % 8);
        assert!(pair.bring(&forged).0.is_none(), "byte {at}");
    }
    assert!(pair.bring(&answer).0.is_some());
    pair.talk();
}

#[test]
fn packets_cut_anywhere_or_made_longer_are_refused() {
    let mut pair = Pair::new();
    let hello = pair.hello();
    let (_, sent) = pair.deliver(&hello);
    let welcome = sent[0].1.clone();
    for cut in 0..welcome.len() {
        pair.bring(&welcome[..cut]);
    }
    pair.bring(&[&welcome[..], &[0]].concat());
    assert!(!pair.client.is_ready());
    pair.bring(&welcome);
    let request = pair.seal(b"request");
    for packet in [&hello, &request] {
        for cut in 0..packet.len() {
            let (opened, sent) = pair.deliver(&packet[..cut]);
            assert!(opened.is_none(), "cut at {cut}");
            assert!(sent.iter().all(|(_, answer)| answer.len() < cut), "an answer is shorter than its cause");
        }
        assert!(pair.deliver(&[&packet[..], &[0]].concat()).0.is_none());
    }
    assert!(pair.deliver(&request).0.is_some());
    assert_eq!(pair.server.sessions(), 1);
}

#[test]
fn a_packet_is_taken_once_in_any_order() {
    let mut pair = Pair::ready();
    let packets: Vec<Vec<u8>> = (0..3000).map(|_| pair.seal(b"request")).collect();
    assert!(pair.deliver(&packets[5]).0.is_some());
    for packet in packets[..1000].iter().rev() {
        let (opened, _) = pair.deliver(packet);
        assert_eq!(opened.is_some(), *packet != packets[5]);
        assert!(pair.deliver(packet).0.is_none(), "the second time it is refused");
    }
    assert_eq!(pair.server.counters().replayed, 1001);
    assert!(pair.deliver(&packets[2999]).0.is_some());
    assert!(pair.deliver(&packets[952]).0.is_none() && pair.deliver(&packets[1000]).0.is_some());
    assert!(pair.server.counters().replayed == 1002 && pair.server.counters().too_old == 0);
    let far = (0..2000).map(|_| pair.seal(b"request")).last().unwrap();
    assert!(pair.deliver(&far).0.is_some() && pair.deliver(&packets[2000]).0.is_none());
    assert_eq!(pair.server.counters().too_old, 1);
    pair.talk();
}

#[test]
fn packets_of_one_session_mean_nothing_in_another() {
    let mut one = Pair::ready();
    let request = one.seal(b"request");
    let mut other = Pair::with(SealLimits::default(), 8, b"the token of tenant eight");
    other.shake();
    assert!(other.client.is_ready());
    assert!(other.deliver(&request).0.is_none(), "another server does not know the session");
    // The same packet under the other session's name.
    let mut renamed = request.clone();
    renamed[4] = 8;
    assert!(other.deliver(&renamed).0.is_none());
    assert_eq!(other.server.counters().bad_tag, 1);
    // A packet of the client's own, sent back to it.
    let (opened, _) = one.bring(&request);
    assert!(opened.is_none());
    let mut turned = request;
    turned[1] = SealPacketKind::ToClient as u8;
    assert!(one.bring(&turned).0.is_none());
    assert_eq!(one.client.counters().bad_tag, 1);
}

#[test]
fn a_hello_that_comes_again_costs_no_handshake() {
    let mut pair = Pair::new();
    let hello = pair.hello();
    let (_, first) = pair.deliver(&hello);
    for _ in 0..10 {
        let (_, again) = pair.deliver(&hello);
        assert_eq!(again, first, "the same bytes as long as the client may not have them");
    }
    pair.bring(&first[0].1);
    pair.talk();
    for _ in 0..10 {
        assert!(pair.deliver(&hello).1.is_empty(), "nothing afterwards");
    }
    // Even of a session that is gone.
    pair.server.end(session_peer(TENANT, pair.client.session()));
    assert!(pair.deliver(&hello).1.is_empty());
    assert_eq!((pair.server.counters().handshakes, pair.server.counters().old_hello), (1, 11));
}

#[test]
fn a_recorded_hello_is_worth_nothing_later_and_to_another_server() {
    let mut pair = Pair::new();
    let hello = pair.hello();
    let mut restarted = ServerSeal::new(SealLimits::default(), CLOCK_MS + 2 * HELLO_LIFETIME_MS);
    let mut sent = Sent::new();
    assert!(restarted.receive(0, pair.at, &mut hello.clone(), &TOKENS, &mut sent).is_none());
    restarted.work(0, &mut sent);
    assert_eq!((restarted.counters().handshakes, restarted.counters().clock), (0, 1));
    // Replayed to a server that has restarted early enough, it makes unused keys, and the client makes new ones.
    pair.deliver(&hello);
    pair.shake_again_after_restart(&hello);
}

impl Pair {
    fn shake_again_after_restart(&mut self, recorded: &[u8]) {
        let (_, sent) = self.deliver(recorded);
        self.bring(&sent[0].1);
        self.talk();
        self.server = ServerSeal::new(SealLimits::default(), CLOCK_MS);
        self.now_us += 1_000_000;
        let (_, sent) = self.deliver(recorded);
        assert_eq!(sent.len(), 1, "it answers the recorded hello");
        let request = self.seal(b"request");
        let (opened, sent) = self.deliver(&request);
        assert!(opened.is_none(), "it has other keys under the same number");
        let hello = self.bring(&sent[0].1).1;
        let (_, sent) = self.deliver(&hello[0].1);
        self.bring(&sent[0].1);
        self.talk();
    }
}

#[test]
fn a_client_whose_clock_is_wrong_is_told_the_time() {
    for wrong_ms in [CLOCK_MS - 86_400_000, CLOCK_MS + 86_400_000, 0, u64::MAX] {
        let mut pair = Pair::new();
        pair.client = ClientSeal::new(address(1), TENANT, TOKEN, 1, wrong_ms);
        let hello = pair.hello();
        let (_, rejects) = pair.deliver(&hello);
        assert_eq!(rejects[0].1.len(), REJECT_LEN);
        let (_, hellos) = pair.bring(&rejects[0].1);
        let (_, welcome) = pair.deliver(&hellos[0].1);
        pair.bring(&welcome[0].1);
        assert!(pair.client.is_ready());
        pair.talk();
    }
}

#[test]
fn a_wrong_token_is_refused_without_a_curve_operation_and_told_soon() {
    let mut told = Vec::new();
    // The server does not tell whether there is such a tenant.
    for tenant in [TENANT, 99] {
        let mut pair = Pair::with(SealLimits::default(), tenant, b"not the token");
        let hello = pair.hello();
        let (_, rejects) = pair.deliver(&hello);
        assert_eq!(RejectReason::from_byte(rejects[0].1[3]), Some(RejectReason::Token));
        let mut answer = rejects[0].1.clone();
        SealHeader::encode(&SealHeader { tenant: 0, session: 0, ..SealHeader::parse(&answer).expect("a packet") })
            .iter()
            .zip(&mut answer)
            .for_each(|(byte, answered)| *answered = *byte);
        told.push(answer);
        assert_eq!((pair.server.counters().handshakes, pair.server.counters().bad_hello), (0, 1));
        pair.bring(&rejects[0].1);
        assert_eq!(pair.client.take_refusal(pair.now_us), None, "a genuine welcome may still come");
        assert_eq!(pair.client.take_refusal(pair.now_us + REFUSAL_GRACE_US), Some(HandshakeRefusal::Token));
    }
    assert_eq!(told[0], told[1], "byte for byte, but for the names that the client chose");
}

#[test]
fn forged_rejects_end_nothing() {
    let mut pair = Pair::ready();
    pair.talk();
    let head = SealHeader {
        kind: SealPacketKind::Reject,
        flags: 0,
        tenant: TENANT,
        session: pair.client.session(),
        number: 0,
    };
    let reject = |flags: u8, number: u64| [&SealHeader { flags, number, ..head }.encode()[..], &[0; 8]].concat();
    for round in 0..100 {
        pair.now_us += 10_000;
        for flags in 0..6 {
            pair.bring(&reject(flags, round % 3));
        }
        pair.talk();
    }
    assert!(pair.client.counters().hellos < 10, "and cost little");
    // During a handshake a forged refusal gives way to the genuine welcome.
    let mut pair = Pair::new();
    let hello = pair.hello();
    let head = SealHeader { session: pair.client.session(), number: 1, ..head };
    pair.bring(&[&SealHeader { flags: RejectReason::Token as u8, ..head }.encode()[..], &[0; 8]].concat());
    let (_, sent) = pair.deliver(&hello);
    pair.bring(&sent[0].1);
    assert!(pair.client.is_ready() && pair.client.take_refusal(u64::MAX).is_none());
}

#[test]
fn a_server_that_forgot_the_session_is_greeted_anew_under_the_same_name() {
    let mut pair = Pair::ready();
    pair.talk();
    pair.server = ServerSeal::new(SealLimits::default(), CLOCK_MS);
    pair.now_us += 1_000_000;
    let before = pair.client.session();
    let request = pair.seal(b"request");
    let (opened, rejects) = pair.deliver(&request);
    assert!(opened.is_none() && rejects[0].1.len() < request.len());
    let (_, hellos) = pair.bring(&rejects[0].1);
    let (_, welcome) = pair.deliver(&hellos[0].1);
    pair.bring(&welcome[0].1);
    pair.talk();
    assert_eq!(pair.client.session(), before);
}

#[test]
fn keys_are_renewed_while_packets_are_under_way() {
    let mut pair = Pair::with(SealLimits { idle_us: u64::MAX, ..SealLimits::default() }, TENANT, TOKEN);
    pair.shake();
    pair.talk();
    let late = pair.seal(b"late");
    pair.now_us += REKEY_AFTER_US;
    let mut sent = Sent::new();
    assert!(pair.client.poll(pair.now_us, false, &mut sent).is_none() && sent.is_empty(), "not while nobody asks");
    assert!(pair.client.poll(pair.now_us, true, &mut sent).is_some());
    let (_, welcome) = pair.deliver(&sent[0].1);
    pair.talk();
    let peer = session_peer(TENANT, pair.client.session());
    let under_way = pair.answer(peer, b"under way").remove(0).1;
    pair.bring(&welcome[0].1);
    assert!(pair.bring(&under_way).0.is_some(), "old keys open what is under way");
    pair.talk();
    assert!(pair.deliver(&late).0.is_some() && pair.deliver(&late).0.is_none());
    pair.now_us += limits::PREVIOUS_KEYS_LIFETIME_US;
    assert_eq!((pair.client.counters().handshakes, pair.server.counters().handshakes), (2, 2));
    pair.talk();
}

#[test]
fn no_number_is_used_twice_and_none_beyond_the_last() {
    let split = aead::DirectionKeys { from_client: [1; 32], from_server: [2; 32] };
    let mut client = aead::SessionKeys::for_client(1, &split, 0).unwrap();
    let mut server = aead::SessionKeys::for_server(1, &split, 0).unwrap();
    client.sent = PACKETS_PER_KEY - 3;
    let numbers: Vec<u64> = std::iter::from_fn(|| client.next_packet_number()).collect();
    assert_eq!(numbers, [PACKETS_PER_KEY - 3, PACKETS_PER_KEY - 2, PACKETS_PER_KEY - 1]);
    assert!(client.need_rekey(0));
    let mut packet = [0; SEAL_OVERHEAD + 8];
    client.seal(PACKETS_PER_KEY, &mut packet);
    assert_eq!(server.open(PACKETS_PER_KEY, &mut packet), Err(aead::OpenError::KeyExhausted));
}

#[test]
fn a_client_that_moves_is_followed_and_cannot_be_used_to_flood_others() {
    let mut pair = Pair::ready();
    pair.talk();
    let peer = session_peer(TENANT, pair.client.session());
    pair.at = address(3);
    let request = pair.seal(b"from elsewhere");
    let (opened, probe) = pair.deliver(&request);
    assert_eq!(opened.unwrap().0, peer, "the session stays the same");
    assert_eq!((probe.len(), probe[0].0), (1, address(3)));
    let long = [0; 1400];
    assert!(pair.answer(peer, &long).is_empty(), "not more than came from there");
    let (_, proof) = pair.bring(&probe[0].1);
    // The bytes to repeat were sent only there, so they prove that address, even if the client's port has changed.
    pair.at = address(4);
    let (_, queued) = pair.deliver(&proof[0].1);
    assert!(queued.len() == 1 && queued[0].0 == address(3), "what has waited for the proof goes there");
    assert_eq!(pair.answer(peer, &long)[0].0, address(3));
    pair.at = address(3);
    // An old packet from another address moves no client.
    let (early, late) = (pair.seal(b"early"), pair.seal(b"late"));
    pair.deliver(&late);
    pair.at = address(5);
    assert!(pair.deliver(&early).0.is_some());
    assert_eq!(pair.answer(peer, &long)[0].0, address(3));
    // Back to where it is known to be, it needs no proof.
    let moved = pair.seal(b"moved");
    pair.deliver(&moved);
    pair.at = address(3);
    let back = pair.seal(b"back");
    pair.deliver(&back);
    assert_eq!(pair.answer(peer, &long)[0].0, address(3));
}

#[test]
fn a_hello_in_the_name_of_another_address_proves_nothing() {
    let mut pair = Pair::new();
    let hello = pair.hello();
    pair.at = address(66);
    pair.deliver(&hello);
    pair.at = address(2);
    let (_, welcome) = pair.deliver(&hello);
    assert_eq!(welcome[0].0, address(2), "the client gets its welcome all the same");
    pair.bring(&welcome[0].1);
    let request = pair.seal(b"request");
    pair.at = address(66);
    let (opened, _) = pair.deliver(&request);
    assert!(opened.is_some() && pair.answer(opened.unwrap().0, &[0; 1400]).is_empty());
}

#[test]
fn a_flood_of_hellos_costs_no_more_than_its_share() {
    let limits = SealLimits::default();
    let mut pair = Pair::with(limits, TENANT, TOKEN);
    let hellos: Vec<Vec<u8>> = (0..10_000u64)
        .map(|session| {
            // Most are made without the token: any sender can make those cheaply.
            let token: &[u8] = if session % 50 == 0 { TOKEN } else { b"a guess" };
            pair.client = ClientSeal::new(address(1), TENANT, token, session, CLOCK_MS);
            if session < 500 { pair.hello() } else { [&session.to_le_bytes()[..], &[0; 80]].concat() }
        })
        .collect();
    let (mut sent, mut turns) = (Sent::new(), 0);
    for (number, hello) in hellos.iter().cycle().take(10_000).enumerate() {
        let mut hello = hello.clone();
        hello[0] = MAGIC;
        hello[1] = SealPacketKind::Hello as u8;
        hello[2] = VERSION;
        pair.server.receive(0, pair.at, &mut hello, &TOKENS, &mut sent);
        if number % 32 == 31 {
            pair.server.work(0, &mut sent);
            turns += 1;
        }
    }
    let counters = *pair.server.counters();
    assert!(counters.handshakes <= turns * u64::from(limits.handshakes_per_turn) && counters.handshakes > 0);
    let checked = counters.bad_hello + counters.handshakes;
    assert!(checked <= (turns + 1) * u64::from(limits.checks_per_turn), "{counters:?}");
    assert!(counters.no_cookie > 0 && sent.len() < 10_000, "{counters:?}");
    let bytes: usize = sent.iter().map(|(_, datagram)| datagram.len()).sum();
    assert!(bytes < 10_000 * HELLO_LEN);
    // A client with the token still gets in, if not at once.
    pair.now_us = 2_000_000;
    (0..limits.waiting).for_each(|_| pair.server.work(pair.now_us, &mut sent));
    pair.client = ClientSeal::new(address(1), TENANT, TOKEN, 77_777, CLOCK_MS);
    pair.shake();
    pair.talk();
}

#[test]
fn a_tenant_that_opens_sessions_without_end_loses_its_own() {
    let limits = SealLimits { sessions: 8, handshakes_per_s: 1000, ..SealLimits::default() };
    let mut pair = Pair::with(limits, 8, b"the token of tenant eight");
    pair.shake();
    pair.talk();
    let quiet = std::mem::replace(&mut pair.client, ClientSeal::new(address(1), TENANT, TOKEN, 0, CLOCK_MS));
    for session in 0..100 {
        pair.now_us += 1000;
        pair.client = ClientSeal::new(address(1), TENANT, TOKEN, session, CLOCK_MS);
        pair.shake();
        pair.talk();
    }
    assert_eq!((pair.server.sessions(), pair.server.counters().evicted), (8, 93));
    pair.client = quiet;
    pair.talk();
    pair.now_us += limits.idle_us + 1;
    for _ in 0..10 {
        pair.server.work(pair.now_us, &mut Sent::new());
    }
    assert_eq!(pair.server.sessions(), 0, "idle sessions are forgotten");
}

#[test]
fn a_replaced_token_is_valid_as_long_as_the_token_source_says() {
    let mut pair = Pair::with(SealLimits::default(), TENANT, b"the one before");
    let hello = pair.hello();
    let tokens = Tokens { old_token_is_good: true };
    let mut sent = Sent::new();
    pair.server.receive(0, pair.at, &mut hello.clone(), &tokens, &mut sent);
    pair.server.work(0, &mut sent);
    pair.bring(&sent[0].1);
    let request = pair.seal(b"request");
    let (peer, _) = pair.deliver(&request).0.expect("a session");
    assert_eq!(pair.server.credential(peer), Some(71), "and the server knows with which");
    pair.server.end(peer);
    let request = pair.seal(b"request");
    assert!(pair.deliver(&request).0.is_none());
}

#[test]
fn the_address_of_a_session_is_of_no_other_session() {
    let peer = session_peer(u32::MAX, u64::MAX);
    assert_eq!(peer_session(peer), Some((u32::MAX, u64::MAX)));
    for other in ["127.0.0.1:1", "[::1]:1", "[100:0:0:1::]:1", "[fe80::1]:7", "1.0.0.0:1", "[::ffff:100:0]:0"] {
        assert_eq!(peer_session(other.parse().unwrap()), None, "{other}");
    }
    assert!(session_peer(1, 2) != session_peer(2, 2) && session_peer(1, 2) != session_peer(1, 3));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 100, ..Default::default() })]
    /// A bounded run of the fuzz target.
    #[test]
    fn bytes_of_any_kind_open_nothing_that_was_not_sealed(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..2000)) {
        crate::fuzzing::seal(&bytes);
    }
}

//! A session's promises, tested against a network that answers as scripted.

use super::*;
use proptest::prelude::*;
use sandstorm_net::limits::FIRST_RTO_US;
use sandstorm_net::r2p2::header::{R2p2Kind, SINGLE_HEADER_LEN, single_header};
use sandstorm_net::rpc::{
    MESSAGE_FLAG_RESPONSE, MessageHeader, OpKind, Operation, RpcStatus, STALE_PREVIOUS_START, encode_message,
};
use sandstorm_net::seal::{SealLimits, ServerSeal, TokenKeys, TokenSource, TokenVerifier};

const SERVER: &str = "127.0.0.1:7000";

/// An event of the simulated network.
#[derive(Clone, Copy, Debug)]
enum Event {
    Submit,
    /// Answers one of the requests that were sent.
    Answer(usize),
    /// Answers it with "unauthenticated", as a server that forgot the session does.
    Forget(usize),
    /// This number of milliseconds passes.
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Submit),
        4 => any::<usize>().prop_map(Event::Answer),
        1 => any::<usize>().prop_map(Event::Forget),
        1 => (1u64..400).prop_map(Event::Pass),
    ]
}

fn answer(datagram: &[u8], status: RpcStatus) -> Vec<u8> {
    numbered(datagram, status, 0, 0)
}

/// An answer with that number; of a hello, the server's start.
fn numbered(datagram: &[u8], status: RpcStatus, number: u64, user_flags: u32) -> Vec<u8> {
    let (head, message) = datagram.split_at(SINGLE_HEADER_LEN);
    let request_id = u16::from_be_bytes([head[4], head[5]]);
    let (header, mut operations) = MessageHeader::decode(message).unwrap();
    let sent = operations.next().unwrap().unwrap();
    let value = if sent.op == OpKind::Hello { &[1, 0, 0, 0, 0, 0, 0, 0][..] } else { &[] };
    let done = Operation { status, value, number, user_flags, ..Operation::new(sent.op) };
    let mut bytes = single_header(R2p2Kind::Response, request_id).to_vec();
    encode_message(&MessageHeader { flags: MESSAGE_FLAG_RESPONSE, ..header }, &[done], &mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_window_holds_and_every_request_ends_once(
        events in proptest::collection::vec(event(), 1..300),
        window in 1usize..20,
    ) {
        let login = LoginCredentials { tenant: 1, token: String::new(), sealed_clock_ms: None };
        let mut session = ClientSession::new(SERVER.parse().unwrap(), login, window);
        let (mut now_us, mut submitted) = (0, 0u64);
        let mut ends = std::collections::HashMap::<u64, u32>::new();
        let mut sent: Vec<(PeerAddr, Vec<u8>)> = Vec::new();
        let mut seen = 0;
        for event in events {
            let mut out = |tag, _: Result<SessionResponse<'_>, Error>| *ends.entry(tag).or_default() += 1;
            match event {
                Event::Submit => {
                    let mut message = Message::new();
                    message.increment(1, b"n", 1);
                    let message = message.finish(1).unwrap();
                    let deadline = Duration::from_millis(500);
                    session.submit(now_us, submitted, message, deadline, &mut sent, &mut out).unwrap();
                    submitted += 1;
                }
                Event::Answer(which) | Event::Forget(which) if !sent.is_empty() => {
                    let forget = matches!(event, Event::Forget(_));
                    let status = if forget { RpcStatus::Unauthenticated } else { RpcStatus::Ok };
                    let datagram = answer(&sent[which % sent.len()].1, status);
                    session.receive(now_us, &datagram, &mut sent, &mut out);
                }
                Event::Answer(_) | Event::Forget(_) => {}
                Event::Pass(ms) => now_us += ms * 1000,
            }
            session.poll(now_us, &mut sent, &mut out);
            for (_, datagram) in &sent[seen..] {
                let (header, _) = MessageHeader::decode(&datagram[SINGLE_HEADER_LEN..]).unwrap();
                prop_assert!(header.acked < header.sequence && header.sequence - header.acked <= window as u64);
            }
            seen = sent.len();
        }
        for _ in 0..200 {
            now_us += 20_000;
            let mut out = |tag, _: Result<SessionResponse<'_>, Error>| *ends.entry(tag).or_default() += 1;
            session.poll(now_us, &mut sent, &mut out);
        }
        prop_assert_eq!(session.waiting(), 0);
        prop_assert_eq!(ends.len() as u64, submitted, "every request ended");
        prop_assert!(ends.values().all(|times| *times == 1), "and once");
    }
}

/// Returns the messages in sent packets: their sessions, and whether they say hello.
fn messages(sent: &[(PeerAddr, Vec<u8>)]) -> Vec<(u64, bool)> {
    let message = |datagram: &[u8]| {
        let (header, mut operations) = MessageHeader::decode(&datagram[SINGLE_HEADER_LEN..]).unwrap();
        (header.session, operations.next().unwrap().unwrap().op == OpKind::Hello)
    };
    sent.iter().map(|(_, datagram)| message(datagram)).collect()
}

/// A session of a test's, with its time and its network.
struct Lonely {
    session: ClientSession<u32>,
    now_us: u64,
    sent: Vec<(PeerAddr, Vec<u8>)>,
    ended: Vec<bool>,
}

impl Lonely {
    fn new(sealed_clock_ms: Option<u64>) -> Lonely {
        let session = ClientSession::new(
            SERVER.parse().unwrap(),
            LoginCredentials { tenant: 1, token: TOKEN.into(), sealed_clock_ms },
            100,
        );
        Lonely { session, now_us: 0, sent: Vec::new(), ended: Vec::new() }
    }

    fn send(&mut self) {
        let mut message = Message::new();
        message.increment(1, b"n", 1);
        let (message, ended) = (message.finish(1).unwrap(), &mut self.ended);
        let out = &mut |_, result: Result<SessionResponse<'_>, Error>| ended.push(result.is_ok());
        self.session.submit(self.now_us, 0, message, Duration::from_millis(100), &mut self.sent, out).unwrap();
    }

    fn receive(&mut self, datagram: &[u8]) {
        let ended = &mut self.ended;
        let out = &mut |_, result: Result<SessionResponse<'_>, Error>| ended.push(result.is_ok());
        self.session.receive(self.now_us, datagram, &mut self.sent, out);
    }

    /// Lets more time pass than a request has.
    fn pass(&mut self) {
        for _ in 0..20 {
            self.now_us += 10_000;
            let ended = &mut self.ended;
            let out = &mut |_, result: Result<SessionResponse<'_>, Error>| ended.push(result.is_ok());
            self.session.poll(self.now_us, &mut self.sent, out);
        }
    }

    /// Asks, hears the answer to a first hello and, if so, to the request, and lets time pass.
    fn round(&mut self, is_answered: bool) {
        self.send();
        for _ in 0..2 {
            if messages(&self.sent).last().unwrap().1 || is_answered {
                let datagram = answer(&self.sent.last().unwrap().1, RpcStatus::Ok);
                self.receive(&datagram);
            }
        }
        self.pass();
    }
}

const TOKEN: &str = "a token";

/// Session, sequence and acked of the message that was sent last.
fn last(lonely: &Lonely) -> (u64, u64, u64) {
    let (_, datagram) = lonely.sent.last().unwrap();
    let (header, _) = MessageHeader::decode(&datagram[SINGLE_HEADER_LEN..]).unwrap();
    (header.session, header.sequence, header.acked)
}

/// Answers the packet that was sent last.
fn reply(lonely: &mut Lonely, status: RpcStatus, number: u64, start: u32) {
    let datagram = numbered(&lonely.sent.last().unwrap().1, status, number, start);
    lonely.receive(&datagram);
}

#[test]
fn requests_are_bound_to_the_start_that_the_hello_was_told_and_go_on_with_the_next_one() {
    let mut lonely = Lonely::new(None);
    lonely.send();
    let (first, hello, _) = last(&lonely);
    assert_eq!(hello, 1, "a hello is bound to nothing yet");
    reply(&mut lonely, RpcStatus::Ok, 0, 7);
    assert_eq!(last(&lonely), (first, 7 << 32 | 1, 7 << 32));
    reply(&mut lonely, RpcStatus::Ok, 0, 0);
    lonely.send();
    assert_eq!(last(&lonely), (first, 7 << 32 | 2, 7 << 32 | 1));
    // The server has restarted. The message that was sent just now, once, has not run: it is sent again, in a new
    // session.
    reply(&mut lonely, RpcStatus::Stale, STALE_PREVIOUS_START, 0);
    let (second, hello, acked) = last(&lonely);
    assert!(second != first && (hello, acked) == (1, 0));
    reply(&mut lonely, RpcStatus::Ok, 0, 9);
    assert_eq!(last(&lonely), (second, 9 << 32 | 1, 9 << 32));
    reply(&mut lonely, RpcStatus::Ok, 0, 0);
    assert_eq!((lonely.ended.as_slice(), lonely.session.renewals()), (&[true, true][..], 1));
    // A repeated message may have run; so may a message that the same server has forgotten.
    for (number, pause_us) in [(STALE_PREVIOUS_START, FIRST_RTO_US), (0, 0)] {
        lonely.send();
        lonely.now_us += pause_us;
        reply(&mut lonely, RpcStatus::Stale, number, 0);
        assert_eq!(lonely.ended.pop(), Some(false));
        lonely.send();
        assert!(messages(&lonely.sent).last().unwrap().1, "what follows begins with a hello");
        reply(&mut lonely, RpcStatus::Ok, 0, 9);
        reply(&mut lonely, RpcStatus::Ok, 0, 0);
        assert_eq!(lonely.ended.pop(), Some(true));
    }
}

#[test]
fn a_session_whose_numbers_are_used_up_is_followed_by_another() {
    let mut lonely = Lonely::new(None);
    lonely.send();
    reply(&mut lonely, RpcStatus::Ok, 0, 7);
    reply(&mut lonely, RpcStatus::Ok, 0, 0);
    (lonely.session.sequence, lonely.session.acked) = ((8 << 32) - 3, (8 << 32) - 3);
    let first = lonely.session.id;
    for number in [(8 << 32) - 2, (8 << 32) - 1] {
        lonely.send();
        assert_eq!(last(&lonely), (first, number, number - 1));
        if number == (8 << 32) - 2 {
            reply(&mut lonely, RpcStatus::Ok, 0, 0);
        }
    }
    reply(&mut lonely, RpcStatus::Ok, 0, 0);
    lonely.send();
    assert!(last(&lonely).0 != first && messages(&lonely.sent).last().unwrap().1);
    reply(&mut lonely, RpcStatus::Ok, 0, 7);
    assert_eq!(last(&lonely).1, 7 << 32 | 1);
    reply(&mut lonely, RpcStatus::Ok, 0, 0);
    assert_eq!((lonely.ended.as_slice(), lonely.session.renewals()), (&[true; 4][..], 0));
}

#[test]
fn a_session_that_hears_nothing_says_hello_again() {
    // A restarted server says nothing at all while others use up its answers for unknown senders.
    let mut lonely = Lonely::new(None);
    // One or two in a row are loss.
    [true, false, false, true, false, false, true].into_iter().for_each(|answered| lonely.round(answered));
    let first = messages(&lonely.sent);
    assert!(first[0].1 && first[1..].iter().all(|message| *message == (first[0].0, false)), "{first:?}");
    // Neither is more than what one silence ends at once.
    (0..50).for_each(|_| lonely.send());
    lonely.pass();
    lonely.round(true);
    lonely.sent.clear();
    lonely.ended.clear();
    [false, false, false, true].into_iter().for_each(|answered| lonely.round(answered));
    assert_eq!(lonely.ended, [false, false, false, true]);
    let all = messages(&lonely.sent);
    let hellos: Vec<usize> = (0..all.len()).filter(|at| all[*at].1).collect();
    assert!(!hellos.is_empty() && hellos[0] > 2, "{all:?}");
    // It stays the same session: requests that were given up count as answered to a server that is still there.
    assert!(all.iter().all(|(session, _)| *session == first[0].0), "{all:?}");
    assert_eq!((lonely.session.renewals(), lonely.session.waiting()), (0, 0), "nobody said that it was forgotten");
}

/// The token of the one tenant.
struct Door;

impl TokenSource for Door {
    fn verifier(&self, tenant: u32, which: usize) -> Option<(TokenVerifier, u64)> {
        (tenant == 1 && which == 0).then(|| (TokenKeys::of(TOKEN.as_bytes()).verifier(), 1))
    }
}

#[test]
fn a_sealed_session_that_hears_nothing_shakes_hands_again() {
    const CLOCK_MS: u64 = 1_800_000_000_000;
    let client: PeerAddr = "127.0.0.1:9000".parse().unwrap();
    let mut lonely = Lonely::new(Some(CLOCK_MS));
    // Hands over the sent packets; returns the number of messages in them.
    let serve = |lonely: &mut Lonely, server: &mut ServerSeal, answers: bool| {
        let (mut there, mut messages) = (Vec::<(PeerAddr, Vec<u8>)>::new(), 0);
        for (_, mut datagram) in std::mem::take(&mut lonely.sent) {
            if let Some((peer, part)) = server.receive(lonely.now_us, client, &mut datagram, &Door, &mut there) {
                messages += 1;
                let answer = answer(&datagram[part], RpcStatus::Ok);
                server.through(&mut there).send(peer, &[&answer]);
            }
        }
        server.work(lonely.now_us, &mut there);
        there.into_iter().filter(|_| answers).for_each(|(_, datagram)| lonely.receive(&datagram));
        messages
    };
    let mut server = ServerSeal::new(SealLimits::default(), CLOCK_MS);
    lonely.send();
    // Handshake, hello, request.
    let messages: Vec<usize> = (0..4).map(|_| serve(&mut lonely, &mut server, true)).collect();
    assert_eq!((messages, lonely.ended.as_slice()), (vec![0, 1, 1, 0], &[true][..]));
    // The server has restarted, and sends nothing to unknown senders.
    let mut server = ServerSeal::new(SealLimits::default(), CLOCK_MS);
    for _ in 0..limits::TIMEOUTS_BEFORE_HELLO {
        lonely.send();
        lonely.pass();
        if lonely.ended.len() <= limits::TIMEOUTS_BEFORE_HELLO as usize {
            assert_eq!(serve(&mut lonely, &mut server, false), 0, "sealed under keys that are gone");
        }
    }
    lonely.send();
    let messages: Vec<usize> = (0..3).map(|_| serve(&mut lonely, &mut server, true)).collect();
    assert_eq!(messages[0], 0);
    lonely.pass();
    (0..3).for_each(|_| _ = serve(&mut lonely, &mut server, true));
    lonely.send();
    assert!(serve(&mut lonely, &mut server, true) > 0, "there are new keys");
    assert_eq!(lonely.ended.last(), Some(&true), "{:?}", lonely.ended);
}

//! A session's promises against a network that answers as told.

use super::*;
use proptest::prelude::*;
use sandstorm_net::r2p2::header::{Kind, SINGLE_HEADER_LEN, single};
use sandstorm_net::rpc::{FLAG_RESPONSE, MessageHeader, Op, Operation, encode_message};

const SERVER: &str = "127.0.0.1:7000";

/// What the network does next.
#[derive(Clone, Copy, Debug)]
enum Event {
    Submit,
    /// Answers one of the requests that were sent.
    Answer(usize),
    /// Answers it with "unauthenticated", as a server that forgot the session does.
    Forget(usize),
    /// So many milliseconds pass.
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

fn answer(datagram: &[u8], status: Status) -> Vec<u8> {
    let (head, message) = datagram.split_at(SINGLE_HEADER_LEN);
    let request_id = u16::from_be_bytes([head[4], head[5]]);
    let (header, mut operations) = MessageHeader::decode(message).unwrap();
    let asked = operations.next().unwrap().unwrap();
    let value = if asked.op == Op::Hello { &[1, 0, 0, 0, 0, 0, 0, 0][..] } else { &[] };
    let done = Operation { status, value, ..Operation::new(asked.op) };
    let mut bytes = single(Kind::Response, request_id).to_vec();
    encode_message(&MessageHeader { flags: FLAG_RESPONSE, ..header }, &[done], &mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_window_holds_and_every_request_ends_once(
        events in proptest::collection::vec(event(), 1..300),
        window in 1usize..20,
    ) {
        let login = Login { tenant: 1, token: String::new(), sealed_ms: None };
        let mut session = Session::new(SERVER.parse().unwrap(), login, window);
        let (mut now_us, mut submitted) = (0, 0u64);
        let mut ends = std::collections::HashMap::<u64, u32>::new();
        let mut sent: Vec<(Peer, Vec<u8>)> = Vec::new();
        let mut seen = 0;
        for event in events {
            let mut out = |mark, _: Result<Answer<'_>, Error>| *ends.entry(mark).or_default() += 1;
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
                    let status = if forget { Status::Unauthenticated } else { Status::Ok };
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
            let mut out = |mark, _: Result<Answer<'_>, Error>| *ends.entry(mark).or_default() += 1;
            session.poll(now_us, &mut sent, &mut out);
        }
        prop_assert_eq!(session.waiting(), 0);
        prop_assert_eq!(ends.len() as u64, submitted, "every request ended");
        prop_assert!(ends.values().all(|times| *times == 1), "and once");
    }
}

/// The messages of what was sent: their sessions, and whether they say hello.
fn messages(sent: &[(Peer, Vec<u8>)]) -> Vec<(u64, bool)> {
    let message = |datagram: &[u8]| {
        let (header, mut operations) = MessageHeader::decode(&datagram[SINGLE_HEADER_LEN..]).unwrap();
        (header.session, operations.next().unwrap().unwrap().op == Op::Hello)
    };
    sent.iter().map(|(_, datagram)| message(datagram)).collect()
}

#[test]
fn a_session_that_hears_nothing_says_hello_anew() {
    // A server that restarted while others use up the answers that it has for strangers says nothing at all.
    let login = Login { tenant: 1, token: String::new(), sealed_ms: None };
    let mut session = Session::new(SERVER.parse().unwrap(), login, 8);
    let (mut now_us, mut sent, mut ended) = (0, Vec::<(Peer, Vec<u8>)>::new(), Vec::new());
    let mut ask = |session: &mut Session<u32>, now_us: &mut u64, answers: &[bool], sent: &mut Vec<(Peer, Vec<u8>)>| {
        for is_answered in answers {
            let mut message = Message::new();
            message.increment(1, b"n", 1);
            let message = message.finish(1).unwrap();
            let out = &mut |mark, result: Result<Answer<'_>, Error>| ended.push((mark, result.is_ok()));
            session.submit(*now_us, 0, message, Duration::from_millis(100), sent, out).unwrap();
            for _ in 0..2 {
                let (_, last) = sent.last().unwrap();
                let is_hello = messages(&sent[sent.len() - 1..])[0].1;
                if is_hello || *is_answered {
                    let datagram = answer(&last.clone(), Status::Ok);
                    session.receive(*now_us, &datagram, sent, out);
                }
            }
            for _ in 0..20 {
                *now_us += 10_000;
                session.poll(*now_us, sent, out);
            }
        }
        std::mem::take(&mut ended)
    };
    // One or two in a row are loss.
    ask(&mut session, &mut now_us, &[true, false, false, true, false, false, true], &mut sent);
    let first = messages(&sent);
    assert!(first[0].1 && first[1..].iter().all(|message| *message == (first[0].0, false)), "{first:?}");
    sent.clear();
    let ended = ask(&mut session, &mut now_us, &[false, false, false, true], &mut sent);
    assert_eq!(ended, [(0, false), (0, false), (0, false), (0, true)]);
    let all = messages(&sent);
    let hello = all.iter().position(|(_, is_hello)| *is_hello).expect("a hello");
    assert!(all[hello].0 != first[0].0 && all[hello..].iter().all(|(id, _)| *id == all[hello].0), "{all:?}");
    assert_eq!((session.renewed(), session.waiting()), (0, 0), "nobody said that it was forgotten");
}

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

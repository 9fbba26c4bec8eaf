use super::header::{
    AckReport, MessageFragment, R2p2Body, R2p2Kind, R2p2Packet, fragment_header, report_packet, single_header,
};
use super::*;
use crate::fuzzing;
use crate::limits::{COMPLETED_REPLAYS, ClientLimits, ServerLimits};
use crate::rpc::{MessageHeader, OpKind, Operation, encode_message};
use crate::shared_bytes::SharedBytes;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;

proptest! {
    #[test]
    fn no_datagram_panics_a_server_or_takes_its_memory(bytes in vec(any::<u8>(), 0..600)) {
        fuzzing::server(&bytes);
    }

    #[test]
    fn no_datagram_panics_a_client_or_answers_what_was_not_asked(bytes in vec(any::<u8>(), 0..600)) {
        fuzzing::client(&bytes);
    }

    #[test]
    fn packets_come_back_as_they_went(
        id in any::<u16>(), ident in any::<u32>(), incarnation in any::<u32>(), map in any::<u64>(), next in any::<u16>(),
        message_len in 2000u32..9_000_000, chunk_len in 300u16..9000, at in any::<prop::sample::Index>(), payload in vec(any::<u8>(), 0..50)
    ) {
        for kind in [R2p2Kind::Request, R2p2Kind::Response] {
            let packet = [&single_header(kind, id), payload.as_slice()].concat();
            prop_assert_eq!(R2p2Packet::parse(&packet), Ok(R2p2Packet { kind, request_id: id, body: R2p2Body::Single(&payload) }));
            let count = message_len.div_ceil(u32::from(chunk_len)) as u16;
            prop_assume!(count > 1);
            let index = at.index(usize::from(count)) as u16;
            let left = message_len - u32::from(index) * u32::from(chunk_len);
            let chunk = vec![5; left.min(u32::from(chunk_len)) as usize];
            let fields = MessageFragment { ident, incarnation, message_len, chunk_len, index, count, chunk: &chunk };
            let packet = [&fragment_header(kind, id, &fields), chunk.as_slice()].concat();
            prop_assert_eq!(R2p2Packet::parse(&packet), Ok(R2p2Packet { kind, request_id: id, body: R2p2Body::Fragment(fields) }));
            for end in 0..packet.len() {
                let announces = index == 0 && end == header::LONG_HEADER_LEN;
                prop_assert_eq!(R2p2Packet::parse(&packet[..end]).is_ok(), announces, "cut to {} bytes", end);
            }
        }
        for kind in [R2p2Kind::Ack, R2p2Kind::Drop] {
            let fields = AckReport { ident, incarnation, next, map };
            let packet = report_packet(kind, id, &fields);
            prop_assert_eq!(R2p2Packet::parse(&packet), Ok(R2p2Packet { kind, request_id: id, body: R2p2Body::Report(fields) }));
        }
    }
}

type Sent = Vec<(PeerAddr, Vec<u8>)>;

fn message(session: u64, sequence: u64, len: usize) -> Vec<u8> {
    let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session, sequence, acked: 0 };
    let mut message = Vec::new();
    encode_message(&header, &[Operation { value: &vec![9; len], ..Operation::new(OpKind::Ping) }], &mut message);
    message
}

fn pair(server: ServerLimits, client: ClientLimits) -> (ServerEndpoint, ClientEndpoint, PeerAddr) {
    let address = PeerAddr::from(([10, 0, 0, 1], 7000));
    (ServerEndpoint::new(server), ClientEndpoint::new(address, client), PeerAddr::from(([10, 0, 0, 2], 9000)))
}

#[test]
fn a_header_has_the_bytes_of_the_published_layout() {
    assert_eq!(single_header(R2p2Kind::Request, 0x1234), [0xCC, 8, 0x00, 0xC0, 0x12, 0x34, 0, 1]);
    assert_eq!(single_header(R2p2Kind::Response, 1), [0xCC, 8, 0x10, 0xC0, 0, 1, 0, 1]);
    let fields = MessageFragment {
        ident: 1,
        incarnation: 2,
        message_len: 3000,
        chunk_len: 1000,
        index: 0,
        count: 3,
        chunk: &[],
    };
    assert_eq!(fragment_header(R2p2Kind::Request, 1, &fields)[..8], [0xCC, 24, 0x00, 0x80, 0, 1, 0, 3]);
    assert_eq!(
        fragment_header(R2p2Kind::Request, 1, &MessageFragment { index: 1, ..fields })[..8],
        [0xCC, 24, 0x00, 0x00, 0, 1, 0, 1]
    );
    assert_eq!(
        fragment_header(R2p2Kind::Request, 1, &MessageFragment { index: 2, ..fields })[..8],
        [0xCC, 24, 0x00, 0x40, 0, 1, 0, 2]
    );
}

#[test]
fn a_request_of_one_packet_is_delivered_without_a_copy_and_its_answer_ends_it() {
    let (mut server, mut client, peer) = pair(ServerLimits::default(), ClientLimits::default());
    let mut sent = Sent::new();
    let id = client.request(0, &message(7, 1, 10), &mut sent).unwrap();
    let (_, datagram) = sent.pop().unwrap();
    let mut back = Sent::new();
    let request = server.receive(0, peer, &datagram, &mut back).unwrap();
    assert_eq!((request.request_id, &*request.message), (id, &message(7, 1, 10)[..]));
    assert!(matches!(request.message, ReceivedMessage::Datagram(bytes) if std::ptr::eq(bytes, &datagram[8..])));
    server.respond(0, peer, id, &message(7, 1, 20), &mut back);
    let (to, answer) = back.pop().unwrap();
    assert_eq!(to, peer);
    let response = client.receive(1, &answer, &mut sent).unwrap();
    assert_eq!((response.request_id, &*response.message), (id, &message(7, 1, 20)[..]));
    assert_eq!(client.receive(2, &answer, &mut sent), None, "a late duplicate answers nothing");
    assert_eq!((client.counters().stray, client.usage()), (1, Default::default()));
}

#[test]
fn an_old_answer_under_a_request_id_that_is_used_again_is_ignored() {
    let (mut server, mut client, peer) =
        pair(ServerLimits::default(), ClientLimits { in_flight: 1, ..Default::default() });
    let mut sent = Sent::new();
    let first = client.request(0, &message(7, 1, 10), &mut sent).unwrap();
    assert!(client.cancel(first).is_some());
    let mut sequence = 1;
    let again = loop {
        sequence += 1;
        let id = client.request(0, &message(7, sequence, 10), &mut sent).unwrap();
        if id == first {
            break id;
        }
        client.cancel(id);
    };
    assert_eq!(sequence, 65_537, "an id comes again as late as it can");
    for len in [20, 40_000] {
        let mut back = Sent::new();
        server.respond(0, peer, first, &message(7, 1, len), &mut back);
        assert!(back.iter().all(|(_, packet)| client.receive(0, packet, &mut sent).is_none()));
    }
    let mut back = Sent::new();
    server.respond(0, peer, again, &message(7, sequence, 20), &mut back);
    assert!(client.receive(0, &back[0].1, &mut sent).is_some());
}

#[test]
fn a_request_that_the_server_never_has_room_for_ends_as_refused() {
    let none = ServerLimits { partial_bytes: 0, ..ServerLimits::default() };
    let (mut server, mut client, peer) = pair(none, ClientLimits { timeout_us: 500_000, ..Default::default() });
    let (mut sent, mut back, mut ended) = (Sent::new(), Sent::new(), Vec::new());
    let id = client.request(0, &message(7, 1, 5000), &mut sent).unwrap();
    let mut now_us = 0;
    while ended.is_empty() {
        for (_, datagram) in sent.drain(..) {
            assert!(server.receive(now_us, peer, &datagram, &mut back).is_none());
        }
        for (_, datagram) in back.drain(..) {
            assert!(client.receive(now_us, &datagram, &mut sent).is_none());
        }
        now_us = client.poll_timers(now_us, &mut sent, &mut |end| ended.push(end)).unwrap_or(now_us);
    }
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].request_id, ended[0].failure), (id, RequestFailure::Refused));
    assert!(server.counters().requests_dropped > 2 && client.counters().refusals > 2);
}

#[test]
fn limits_are_errors_before_anything_is_sent() {
    let limits = ClientLimits { in_flight: 2, max_message: 1000, request_bytes: 700, ..Default::default() };
    let (_, mut client, _) = pair(ServerLimits::default(), limits);
    let mut sent = Sent::new();
    assert_eq!(client.request(0, &[0; 31], &mut sent), Err(RequestError::TooShort(31)));
    assert_eq!(client.request(0, &[0; 1001], &mut sent), Err(RequestError::TooLarge(1001, 1000)));
    assert!(client.request(0, &[0; 500], &mut sent).is_ok());
    assert_eq!(client.request(0, &[0; 500], &mut sent), Err(RequestError::Busy));
    assert!(client.request(0, &[0; 100], &mut sent).is_ok());
    assert_eq!(client.request(0, &[0; 100], &mut sent), Err(RequestError::Busy));
    assert_eq!(sent.len(), 2);
}

#[test]
fn one_peer_cannot_take_all_the_room_and_abandoned_messages_are_given_up() {
    let limits = ServerLimits { partial_bytes: 100_000, partial_bytes_per_peer: 40_000, ..ServerLimits::default() };
    let (mut server, _, greedy) = pair(limits, ClientLimits::default());
    let (mut sent, mut back) = (Sent::new(), Sent::new());
    for session in 0..10 {
        let mut client = ClientEndpoint::new(PeerAddr::from(([10, 0, 0, 1], 7000)), ClientLimits::default());
        client.request(0, &message(session, 1, 15_000), &mut sent).unwrap();
    }
    for (_, datagram) in &sent {
        server.receive(0, greedy, datagram, &mut back);
    }
    assert_eq!((server.usage().partials, server.counters().requests_dropped), (2, 8));
    let other = PeerAddr::from(([10, 0, 0, 3], 9000));
    server.receive(0, other, &sent[0].1, &mut back);
    assert_eq!(server.usage().partials, 3, "there is room for others");
    server.poll_timers(limits.partial_timeout_us, &mut back);
    assert_eq!((server.usage(), server.counters().partials_timed_out), (ServerUsage::default(), 3));
}

/// Passes datagrams between a client and a server until the client's request arrives; gives the time that it took, if
/// it did.
fn arrives(server: &mut ServerEndpoint, owner: u32, len: usize, from_us: u64, for_us: u64) -> Option<u64> {
    let (address, peer) = (PeerAddr::from(([10, 0, 0, 1], 7000)), PeerAddr::from(([10, 0, 0, 2], 9000)));
    let mut client = ClientEndpoint::new(address, ClientLimits::default());
    let (mut sent, mut back, mut now_us) = (Sent::new(), Sent::new(), from_us);
    client.request(now_us, &message(7, 1, len), &mut sent).unwrap();
    while now_us < from_us + for_us {
        for (_, datagram) in sent.drain(..) {
            if server.receive_for_owner(now_us, peer, &datagram, &mut back, || owner).is_some() {
                return Some(now_us - from_us);
            }
        }
        for (_, datagram) in back.drain(..) {
            assert!(client.receive(now_us, &datagram, &mut sent).is_none());
        }
        if sent.is_empty() {
            let next_us = client.poll_timers(now_us, &mut sent, &mut |_| {}).unwrap_or(now_us + 1000);
            now_us = next_us.max(now_us + 1);
            client.poll_timers(now_us, &mut sent, &mut |_| {});
        }
    }
    None
}

#[test]
fn unauthenticated_senders_of_incomplete_messages_do_not_block_others() {
    let mut server = ServerEndpoint::new(ServerLimits::default());
    let size = 8 << 20;
    let mut back = Sent::new();
    for unknown in 0..20u16 {
        let fields = MessageFragment {
            ident: 1,
            incarnation: 1,
            message_len: size,
            chunk_len: 1448,
            index: 0,
            count: 5794,
            chunk: &[],
        };
        let datagram = fragment_header(R2p2Kind::Request, 1, &fields);
        server.receive(0, PeerAddr::from(([10, 9, 9, 9], 2000 + unknown)), &datagram, &mut back);
    }
    let usage = server.usage();
    assert_eq!(usage.partials, 5, "they hold all the room that strangers have");
    let took_us = arrives(&mut server, 0, size as usize, 1000, 2_000_000);
    assert!(took_us.is_some_and(|took_us| took_us < 1_000_000), "it took {took_us:?}");
    assert!(server.counters().partials_timed_out > 0);
}

/// Like the test above, but they send enough not to be given up.
#[test]
fn slow_messages_from_many_addresses_do_not_block_other_tenants_messages() {
    for slow in [0, 3] {
        let mut server = ServerEndpoint::new(ServerLimits::default());
        let (mut back, chunk) = (Sent::new(), vec![0; 60_000]);
        let mut send = |server: &mut ServerEndpoint, now_us: u64, index: u16| {
            for address in 0..20u16 {
                let (message_len, count) = (8 << 20, 140);
                let fields = MessageFragment {
                    ident: 1,
                    incarnation: 1,
                    message_len,
                    chunk_len: 60_000,
                    index,
                    count,
                    chunk: &chunk,
                };
                let datagram = [&fragment_header(R2p2Kind::Request, 1, &fields)[..], &chunk].concat();
                let peer = PeerAddr::from(([10, 9, 9, 9], 2000 + address));
                server.receive_for_owner(now_us, peer, &datagram, &mut back, || slow);
            }
        };
        (0..20).for_each(|index| send(&mut server, u64::from(index) * 100_000, index));
        assert_eq!((server.usage().partials, server.counters().partials_timed_out), (5, 0));
        assert_eq!(arrives(&mut server, 7, 40_000, 2_000_000, 1_000_000), Some(0), "at once");
        assert_eq!((server.usage().partials, server.counters().partials_timed_out), (5, 0), "and nobody is given up");
    }
}

#[test]
fn many_tenants_that_take_all_the_room_leave_another_its_part() {
    let mut server = ServerEndpoint::new(ServerLimits::default());
    let mut back = Sent::new();
    for tenant in 10..40 {
        for address in 0..80 {
            let (message_len, chunk_len, count) = (1 << 20, 1448, 725);
            let fields =
                MessageFragment { ident: 1, incarnation: 1, message_len, chunk_len, index: 0, count, chunk: &[] };
            let peer = PeerAddr::from(([10, 9, 9, tenant as u8], 2000 + address));
            server.receive_for_owner(0, peer, &fragment_header(R2p2Kind::Request, 1, &fields), &mut back, || tenant);
        }
    }
    let full = server.usage().partials;
    assert!(full > 50, "{full}");
    assert_eq!(arrives(&mut server, 7, 900_000, 1, 10_000), Some(0), "at once");
    assert!(server.counters().evicted > 0 && server.usage().partials >= full - 4, "for little");
}

#[test]
fn slow_acks_from_many_addresses_do_not_block_other_tenants_responses() {
    let mut server = ServerEndpoint::new(ServerLimits::default());
    let (mut sent, size) = (Sent::new(), 8 << 20);
    let of_tenant = |tenant: u32, sequence: u64, len: usize| {
        let mut message = message(1, sequence, len);
        message[4..8].copy_from_slice(&tenant.to_le_bytes());
        message
    };
    let slow = |address: u16| PeerAddr::from(([10, 9, 9, 9], 2000 + address));
    for address in 0..20 {
        server.respond(0, slow(address), 1, &of_tenant(3, 1, size - 100), &mut sent);
    }
    let usage = server.usage();
    assert!((8..=10).contains(&usage.outgoing), "a tenant has two thirds of the room: {usage:?}");
    // They ack a packet each time that they are asked to, and never stand still.
    let ident = super::ident_of(&of_tenant(3, 1, 8));
    for round in 1..20u16 {
        let now_us = u64::from(round) * 15_000;
        for (address, incarnation) in (0..20).zip(1..) {
            let report = AckReport { ident, incarnation, next: round, map: 0 };
            server.receive(now_us, slow(address), &report_packet(R2p2Kind::Ack, 1, &report), &mut sent);
        }
        server.poll_timers(now_us, &mut sent);
        for (tenant, peer) in [(7, PeerAddr::from(([10, 0, 0, 2], 9000))), (8, PeerAddr::from(([10, 0, 0, 3], 9000)))] {
            let before = server.counters().responses_dropped;
            server.respond(now_us, peer, round, &of_tenant(tenant, u64::from(round), 100_000), &mut sent);
            assert_eq!(server.counters().responses_dropped, before, "round {round}");
        }
    }
    assert_eq!(server.counters().responses_timed_out, 0);
}

#[test]
fn unauthenticated_peers_that_never_ack_do_not_block_others_responses() {
    let mut server = ServerEndpoint::new(ServerLimits { outgoing: 64, ..ServerLimits::default() });
    let mut back = Sent::new();
    for unknown in 0..64u16 {
        server.respond(0, PeerAddr::from(([10, 9, 9, 9], 2000 + unknown)), 1, &message(1, 1, 3000), &mut back);
    }
    let peer = PeerAddr::from(([10, 0, 0, 2], 9000));
    let mut now_us = 0;
    while server.counters().responses_timed_out == 0 && now_us < 2_000_000 {
        now_us += 20_000;
        server.poll_timers(now_us, &mut back);
        server.respond(now_us, peer, 1, &message(7, now_us, 3000), &mut back);
    }
    assert!(now_us < 500_000, "room after {now_us} us");
    assert!(server.usage().outgoing <= 64);
}

#[test]
fn any_order_flags_and_lengths_are_refused_without_a_panic() {
    for (order, flags) in [(0xFFFF, 0), (0xFFFF, 0x40), (0xFFFF, 0xC0), (0, 0), (0, 0x80)] {
        for (message_len, chunk_len) in [(3000, 1448), (0, 1448), (u32::MAX, 65_535), (u32::MAX, 232), (1, 0)] {
            let fields = MessageFragment {
                ident: 1,
                incarnation: 1,
                message_len,
                chunk_len,
                index: 0,
                count: 0xFFFF,
                chunk: &[],
            };
            let mut packet = fragment_header(R2p2Kind::Request, 1, &fields);
            packet[3] = flags;
            packet[6..8].copy_from_slice(&u16::to_be_bytes(order));
            assert!(R2p2Packet::parse(&packet).is_err(), "order {order}, flags {flags:#x}, {message_len} bytes");
        }
    }
}

/// An answer with shared bytes, and those bytes.
fn shared_answer(sequence: u64, len: usize) -> (Vec<u8>, Arc<Vec<u8>>) {
    let mut head = message(7, sequence, len);
    let value = Arc::new(head.split_off(64));
    (head, value)
}

#[test]
fn shared_bytes_of_an_answer_are_held_until_it_is_acked_or_given_up_and_arrive_as_they_were() {
    for (len, acked) in [(100, true), (20_000, true), (20_000, false), (300_000, true)] {
        let (mut server, mut client, peer) = pair(ServerLimits::default(), ClientLimits::default());
        let (mut sent, mut back) = (Sent::new(), Sent::new());
        let id = client.request(0, &message(7, 1, 10), &mut sent).unwrap();
        let (head, value) = shared_answer(1, len);
        server.respond_shared(0, peer, id, (&head, SharedBytes::of(Arc::clone(&value))), &mut back);
        let is_long = len > 1000;
        assert_eq!(Arc::strong_count(&value), if is_long { 2 } else { 1 });
        assert_eq!(server.usage().outgoing_bytes, if is_long { 64 + len } else { 0 });
        // The same request again, answered again.
        server.respond_shared(0, peer, id, (&head, SharedBytes::of(Arc::clone(&value))), &mut back);
        assert_eq!(Arc::strong_count(&value), if is_long { 2 } else { 1 });
        let (mut now_us, mut answer) = (0, None);
        while now_us < 20_000_000 {
            now_us += 1000;
            sent.clear();
            for (_, packet) in back.drain(..) {
                let response = client.receive(now_us, &packet, &mut sent);
                answer = answer.or(response.map(|response| response.message.into_vec()));
            }
            let acks = sent.iter().filter(|_| acked);
            acks.for_each(|(_, ack)| assert!(server.receive(now_us, peer, ack, &mut back).is_none()));
            server.poll_timers(now_us, &mut back);
        }
        assert_eq!(answer, Some([&head, value.as_slice()].concat()));
        assert_eq!((Arc::strong_count(&value), server.usage()), (1, ServerUsage::default()), "{len} {acked}");
    }
}

#[test]
fn an_answer_without_room_holds_no_shared_bytes() {
    let little = ServerLimits { outgoing_bytes: 50_000, ..ServerLimits::default() };
    let (mut server, _, peer) = pair(little, ClientLimits::default());
    let mut back = Sent::new();
    let (head, value) = shared_answer(1, 40_000);
    server.respond_shared(0, peer, 1, (&head, SharedBytes::of(Arc::clone(&value))), &mut back);
    assert_eq!((Arc::strong_count(&value), back.len()), (1, 1));
    assert_eq!((server.counters().responses_dropped, server.usage()), (1, ServerUsage::default()));
}

/// Datagrams on a path that bears so many bytes, and loses longer ones.
struct Narrowing {
    sent: Sent,
    most: usize,
}

impl DatagramSink for Narrowing {
    fn send(&mut self, peer: PeerAddr, parts: &[&[u8]]) {
        if parts.concat().len() <= self.most {
            self.sent.push((peer, parts.concat()));
        }
    }

    fn most(&mut self, _peer: PeerAddr) -> usize {
        self.most
    }
}

#[test]
fn a_short_answer_to_a_long_request_that_was_lost_comes_in_smaller_packets_once_its_way_is_narrower() {
    let (mut server, mut client, peer) = pair(ServerLimits::default(), ClientLimits::default());
    let (mut sent, mut back) = (Sent::new(), Narrowing { sent: Sent::new(), most: 600 });
    let id = client.request(0, &message(7, 1, 5000), &mut sent).unwrap();
    let reply = message(7, 1, 1200);
    let (mut now_us, mut answered, mut answer) = (0, 0, None);
    while answer.is_none() && now_us < 5_000_000 {
        now_us += 1000;
        for (_, datagram) in std::mem::take(&mut sent) {
            if server.receive(now_us, peer, &datagram, &mut back).is_some() {
                // It is sent as one packet, and lost.
                let mut wide = Narrowing { sent: Sent::new(), most: 1472 };
                server.respond(now_us, peer, id, &reply, &mut wide);
                assert_eq!(wide.sent.len(), 1);
                answered += 1;
            }
        }
        for (_, datagram) in back.sent.drain(..) {
            let response = client.receive(now_us, &datagram, &mut sent);
            answer = answer.or(response.map(|response| response.message.into_vec()));
        }
        server.poll_timers(now_us, &mut back);
        client.poll_timers(now_us, &mut sent, &mut |_| ());
    }
    assert_eq!((answer, answered), (Some(reply), 1));
}

/// A path that bears packets of 552 bytes, as a client, and the kernel, see it.
#[test]
fn answers_of_any_length_arrive_on_the_narrowest_way() {
    for len in 400..=560 {
        let (mut server, mut client, peer) = pair(ServerLimits::default(), ClientLimits::default());
        let (mut sent, mut back) = (Sent::new(), Narrowing { sent: Sent::new(), most: 524 });
        let id = client.request(0, &message(7, 1, 10), &mut sent).unwrap();
        let answer = message(7, 1, len);
        server.respond(0, peer, id, &answer, &mut back);
        let received = back.sent.drain(..).find_map(|(_, packet)| {
            let response = client.receive(0, &packet, &mut sent)?;
            Some(response.message.into_vec())
        });
        assert_eq!(received, Some(answer), "{len} bytes and headers");
    }
}

/// A question of two packets under this ident: its announcement, and both.
fn in_two(question: &[u8], ident: u32) -> [Vec<u8>; 3] {
    let (message_len, chunk_len, count) = (question.len() as u32, 1448, 2);
    [(0, &question[..0]), (0, &question[..1448]), (1, &question[1448..])].map(|(index, chunk): (u16, &[u8])| {
        let fields = MessageFragment { ident, incarnation: 1, message_len, chunk_len, index, count, chunk };
        [&fragment_header(R2p2Kind::Request, 1, &fields)[..], chunk].concat()
    })
}

#[test]
fn a_question_that_comes_under_anothers_ident_is_none_and_nothing_of_it_is_held() {
    let (mut server, _, peer) = pair(ServerLimits::default(), ClientLimits::default());
    let question = message(7, 1, 1500);
    let [_, first, second] = in_two(&question, super::ident_of(&question) ^ 1);
    for packet in [first, second] {
        assert!(server.receive(0, peer, &packet, &mut Sent::new()).is_none());
    }
    assert_eq!((server.usage(), server.counters().malformed.ident), (ServerUsage::default(), 1));
    let [_, first, second] = in_two(&question, super::ident_of(&question));
    assert!(server.receive(0, peer, &first, &mut Sent::new()).is_none());
    assert!(server.receive(0, peer, &second, &mut Sent::new()).is_some());
}

#[test]
fn a_response_to_an_unauthenticated_sender_is_sent_once_and_uses_no_memory() {
    let (mut server, _, peer) = pair(ServerLimits::default(), ClientLimits::default());
    let question = message(7, 1, 1500);
    let [announced, first, second] = in_two(&question, super::ident_of(&question));
    for (most, datagrams) in [(600, 0), (1472, 1)] {
        let (mut acks, mut back) = (Sent::new(), Narrowing { sent: Sent::new(), most });
        assert!(server.receive(0, peer, &first, &mut acks).is_none());
        let request =
            server.receive(0, peer, &second, &mut acks).expect("all of it came, however often it came before");
        assert_eq!((&*request.message == question.as_slice(), server.usage().completed), (true, 1));
        server.respond_without_retry(peer, request.request_id, &message(7, 1, 1200), &mut back);
        server.forget(&request);
        assert_eq!((back.sent.len(), server.usage()), (datagrams, ServerUsage::default()), "{most}");
        // A client that announces it again, and nothing more, is asked for the rest of it.
        (0..1000).for_each(|_| assert!(server.receive(0, peer, &announced, &mut back).is_none()));
        assert_eq!(back.sent.len(), datagrams + 1000);
        assert!(back.sent.iter().skip(datagrams).all(|(_, packet)| packet.len() <= announced.len()));
    }
    assert_eq!((server.counters().responses_dropped, server.counters().single_responses), (1, 1));
}

#[test]
fn an_announcement_gets_the_answer_to_what_it_announced_a_few_times_and_then_has_to_bring_it_again() {
    let (mut server, mut client, peer) = pair(ServerLimits::default(), ClientLimits::default());
    let (mut sent, mut back) = (Sent::new(), Sent::new());
    let id = client.request(0, &message(7, 1, 5000), &mut sent).unwrap();
    let announced = sent[0].1.clone();
    let mut requests = 0;
    let mut turn = |server: &mut ServerEndpoint, client: &mut ClientEndpoint, sent: &mut Sent| {
        let mut back = Sent::new();
        for (_, datagram) in std::mem::take(sent) {
            let Some(request) = server.receive(0, peer, &datagram, &mut back) else { continue };
            requests += 1;
            server.respond(0, peer, request.request_id, &message(7, 1, 1000), &mut Sent::new());
        }
        back.iter().find_map(|(_, packet)| client.receive(0, packet, sent).map(|response| response.message.len()))
    };
    while !sent.is_empty() {
        assert_eq!(turn(&mut server, &mut client, &mut sent), None, "it is lost");
    }
    (0..1000).for_each(|_| assert!(server.receive(0, peer, &announced, &mut back).is_none()));
    let long = back.iter().filter(|(_, packet)| packet.len() > announced.len()).count();
    assert_eq!((back.len(), long), (1000, COMPLETED_REPLAYS as usize));
    // The client that never got it sends all of it again.
    let (mut now_us, mut answered) = (0, None);
    while answered.is_none() && now_us < 1_000_000 {
        now_us += 1000;
        client.poll_timers(now_us, &mut sent, &mut |_| ());
        answered = turn(&mut server, &mut client, &mut sent);
    }
    assert_eq!((answered, requests, id), (Some(message(7, 1, 1000).len()), 2, id));
}

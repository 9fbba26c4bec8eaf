//! Promises of a stack on a device that the kernel shares. It answers peers that it has heard, at the addresses that it
//! heard them from, and sends nothing else.

use super::super::wire::{EthernetHeader, arp::ArpPacket};
use super::frames::{finish, v4, v6};
use super::*;

/// Other hosts on the network, by the last byte of their Ethernet addresses.
struct Others([MemoryPort; 3]);

const OTHERS: [u8; 3] = [3, 4, 7];

impl Others {
    /// Sends a frame as if it came from one of them.
    fn send(&self, number: u8, mut frame: Vec<u8>) {
        frame[6..12].copy_from_slice(&mac(number).0);
        self.0[0].send_raw(&frame);
    }

    /// Returns all frames that have come to them.
    fn received(&mut self) -> Vec<Vec<u8>> {
        self.0.iter_mut().flat_map(MemoryPort::receive_raw).collect()
    }
}

/// Creates a host whose address the kernel has as well, with so many slots for peers.
fn shared(neighbours: usize) -> (StackDriver<MemoryPort>, Others, Time) {
    let (net, time) = (network(), Time::new());
    let networks =
        options(1).networks.into_iter().map(|network| InterfaceNetwork { gateway: None, ..network }).collect();
    let options = StackOptions { isolated: true, neighbours, networks, ..options(1) };
    let mut one = host(&net, &time, 1, options).remove(0);
    let mut others = Others(OTHERS.map(|number| net.interface(mac(number), 1500, 1).remove(0)));
    nothing(&mut one);
    assert_eq!(others.received(), Vec::<Vec<u8>>::new(), "it is the kernel that announces its addresses");
    (one, others, time)
}

fn request(source: [u8; 4]) -> Vec<u8> {
    finish(v4(source, [10, 0, 0, 1]).udp(5000, 7000), b"asked")
}

/// Returns the Ethernet address that an answer to a peer goes to; none if it is not sent.
fn answered(one: &mut StackDriver<MemoryPort>, others: &mut Others, peer: &str) -> Option<MacAddress> {
    send(one, PeerAddr::new(ip(peer), 5000), b"answer");
    nothing(one);
    let frames = others.received();
    assert!(frames.len() <= 1, "an answer, and no question: {frames:?}");
    let ethernet = frames.first().map(|frame| EthernetHeader::read(frame).unwrap().0)?;
    assert_eq!(ethernet.from, mac(1));
    Some(ethernet.to)
}

#[test]
fn who_has_asked_is_answered_where_the_question_came_from_be_it_a_neighbour_or_behind_a_router() {
    let (mut one, mut others, time) = shared(64);
    for (frame, peer) in [
        (request([10, 0, 0, 2]), "10.0.0.2"),
        (request([192, 0, 2, 9]), "192.0.2.9"),
        (finish(v6("fd00::2", "fd00::1").udp(5000, 7000), b"asked"), "fd00::2"),
        (finish(v6("2001:db8::9", "fd00::1").udp(5000, 7000), b"asked"), "2001:db8::9"),
    ] {
        assert_eq!(answered(&mut one, &mut others, peer), None, "nobody knows where {peer} is");
        others.send(7, frame);
        assert_eq!(receive(&mut one), [(PeerAddr::new(ip(peer), 5000), b"asked".to_vec())]);
        assert_eq!(answered(&mut one, &mut others, peer), Some(mac(7)));
        // The address is still known, however long an answer takes.
        time.pass(3_600_000_000);
        assert_eq!(answered(&mut one, &mut others, peer), Some(mac(7)));
    }
    assert_eq!(one.counters().send_errors, 4, "those that nobody had been heard of for");
    assert_eq!(one.interface().neighbour_counters().questions, 0);
}

#[test]
fn what_is_the_kernels_is_neither_answered_nor_believed() {
    let (mut one, mut others, _time) = shared(64);
    let is_request = |sender: [u8; 4], target: [u8; 4]| {
        let arp = ArpPacket {
            is_request: true,
            sender_mac: mac(2),
            sender: sender.into(),
            target_mac: MacAddress::ZERO,
            target: target.into(),
        };
        arp.frame(MacAddress::BROADCAST).to_vec()
    };
    let (mut echo, mut echo6) = (Vec::new(), Vec::new());
    v4([10, 0, 0, 2], [10, 0, 0, 1]).icmpv4_echo_request(7, 9).write(&mut echo, b"ping").unwrap();
    v6("fd00::2", "fd00::1").icmpv6_echo_request(7, 9).write(&mut echo6, b"ping").unwrap();
    // A question for the address, a claim of it by another host, and echoes.
    let frames = [is_request([10, 0, 0, 2], [10, 0, 0, 1]), is_request([10, 0, 0, 1], [10, 0, 0, 1]), echo, echo6];
    for frame in frames {
        others.send(3, frame);
        nothing(&mut one);
    }
    let ours = others.received().iter().filter(|frame| frame[6..12] == mac(1).0).count();
    assert_eq!(ours, 0);
    let counters = one.stack_counters();
    assert_eq!((counters.refused(FrameDropReason::EtherType), counters.refused(FrameDropReason::Protocol)), (2, 2));
    assert_eq!((one.interface().conflicts(), one.interface().neighbours().len()), (0, 0));
}

#[test]
fn who_forges_an_address_has_it_until_its_owner_is_heard_again() {
    let (mut one, mut others, _time) = shared(64);
    for (sender, goes_to) in [(3, 3), (4, 4), (3, 3)] {
        others.send(sender, request([10, 0, 0, 3]));
        assert_eq!(receive(&mut one).len(), 1);
        assert_eq!(answered(&mut one, &mut others, "10.0.0.3"), Some(mac(goes_to)));
    }
}

/// Sends datagrams of so many senders that were never heard before.
fn flood(one: &mut StackDriver<MemoryPort>, others: &Others, next: &mut u32, senders: u32) {
    for _ in 0..senders {
        *next += 1;
        let [_, a, b, c] = next.to_be_bytes();
        others.send(4, request([172, 16 + a, b, c]));
        assert_eq!(receive(one).len(), 1);
    }
}

#[test]
fn a_flood_of_senders_evicts_no_sender_heard_repeatedly() {
    let (mut one, mut others, time) = shared(64);
    let mut next = 0;
    for _ in 0..2 {
        others.send(3, request([10, 0, 0, 3]));
        assert_eq!(receive(&mut one).len(), 1);
        time.pass(100_000);
    }
    for _ in 0..20 {
        flood(&mut one, &others, &mut next, 2000);
        // The peer's answer reaches it, although it took a while.
        assert_eq!(answered(&mut one, &mut others, "10.0.0.3"), Some(mac(3)));
        time.pass(1_000_000);
    }
    assert!(one.interface().neighbours().len() <= 64);
}

#[test]
fn who_comes_in_the_middle_of_a_flood_is_answered_at_once_and_gives_way_when_it_is_gone() {
    let (mut one, mut others, time) = shared(8);
    let mut next = 0;
    for number in 11..=18 {
        for _ in 0..2 {
            others.send(7, request([10, 0, 0, number]));
            assert_eq!(receive(&mut one).len(), 1);
            time.pass(100_000);
        }
    }
    flood(&mut one, &others, &mut next, 100);
    others.send(3, request([192, 0, 2, 3]));
    assert_eq!(receive(&mut one).len(), 1);
    assert_eq!(answered(&mut one, &mut others, "192.0.2.3"), Some(mac(3)));
    // No peer is heard for a long time; then newcomers take the slots.
    time.pass(3_600_000_000);
    flood(&mut one, &others, &mut next, 8);
    let known =
        (11..=18).filter(|number| answered(&mut one, &mut others, &format!("10.0.0.{number}")).is_some()).count();
    assert_eq!(known, 0);
}

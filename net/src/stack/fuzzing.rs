//! Checks of the stack's fuzz target, shared with the property tests of the normal run. A failed check panics.

use super::interface::StackInterface;
use super::wire::{EthernetHeader, arp::ArpPacket, checksum, ethertype, icmp, ip, nd, protocol};
use super::worker::{RouteOutcome, StackWorker};
use super::{
    ChecksumStatus, FramePort, InterfaceNetwork, MacAddress, NoSharedBuffer, PortOffloads, RxFrame, StackOptions,
    TxFrame,
};
use crate::driver::Burst;
use crate::limits::{CONTROL_FRAMES, GRO_SEGMENTS, UNRESOLVED_DATAGRAMS};
use arrayvec::ArrayVec;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// An interface without a network.
struct NullPort;

const OWN_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const MTU: usize = 1500;
const NEIGHBOUR_SLOTS: usize = 16;

impl FramePort for NullPort {
    type Shared = NoSharedBuffer;

    fn mac(&self) -> MacAddress {
        OWN_MAC
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn listen(&mut self, _groups: &[MacAddress]) -> bool {
        false
    }

    fn receive(&mut self, _most: usize) -> usize {
        0
    }

    fn frame(&self, _index: usize) -> Option<RxFrame<'_>> {
        None
    }

    fn transmit(&mut self, _frames: &[TxFrame<'_>]) -> usize {
        0
    }
}

fn worker(isolated: bool) -> StackWorker {
    let v4 = InterfaceNetwork { address: [10, 0, 0, 1].into(), prefix: 24, gateway: Some([10, 0, 0, 254].into()) };
    let v6 = InterfaceNetwork { address: IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 1]), prefix: 64, gateway: None };
    let options = StackOptions {
        networks: vec![v4, v6],
        workers: 2,
        neighbours: NEIGHBOUR_SLOTS,
        isolated,
        ..StackOptions::new(v4, 7000)
    };
    let interface = StackInterface::new(&NullPort, options, Arc::new(|| 0)).expect("these options are right");
    StackWorker::new(interface, 0, PortOffloads::default())
}

/// Repairs the input so that the stack reads further into it than into random bytes.
fn repair_frame(choice: u8, frame: &mut [u8]) {
    if choice & 1 != 0
        && let Some(head) = frame.get_mut(..14)
    {
        let ethertype =
            [ethertype::IPV4_HEADER_LEN, ethertype::IPV6_HEADER_LEN, ethertype::ARP, ethertype::IPV4_HEADER_LEN]
                [usize::from(choice >> 6)];
        let to = if choice & 2 == 0 { OWN_MAC } else { MacAddress::BROADCAST };
        head.copy_from_slice(&EthernetHeader { to, from: PEER_MAC, ethertype }.bytes());
    }
    let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 1]));
    let Some(packet) = frame.get_mut(14..).filter(|_| choice & 4 != 0) else { return };
    let kind = [protocol::UDP_HEADER_LEN, protocol::ICMP, protocol::ICMPV6, protocol::UDP_HEADER_LEN]
        [usize::from(choice >> 4 & 3)];
    // Sets the addresses and lengths of a packet for this host.
    if choice >> 6 == 1 && packet.len() >= 40 {
        let from = IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 2]);
        ip::write(packet, from, v6, kind, packet.len() - 40, false);
        fill_lengths_and_checksum(from, v6, kind, packet.get_mut(40..).unwrap_or_default());
    } else if choice & 0x80 == 0 && packet.len() >= 20 {
        let from = IpAddr::from([10, 0, 0, 2]);
        ip::write(packet, from, v4, kind, packet.len() - 20, true);
        fill_lengths_and_checksum(from, v4, kind, packet.get_mut(20..).unwrap_or_default());
    }
}

/// Writes the length and the checksum where their protocol has them.
fn fill_lengths_and_checksum(from: IpAddr, to: IpAddr, kind: u8, payload: &mut [u8]) {
    let len = payload.len();
    let at = match kind {
        protocol::UDP_HEADER_LEN => 6,
        _ => 2,
    };
    if len < 8 {
        return;
    }
    if kind == protocol::UDP_HEADER_LEN {
        payload[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        payload[2] = 7000u16.to_be_bytes()[0];
    }
    payload[at..at + 2].fill(0);
    let mut sum = match kind {
        protocol::ICMP => checksum::InternetChecksum::default(),
        _ => checksum::InternetChecksum::pseudo_header(from, to, kind, len),
    };
    sum.add(payload);
    payload[at..at + 2].copy_from_slice(&sum.checksum().to_be_bytes());
}

/// Checks that a frame of the stack itself is sound, comes from its own address, and answers no group.
fn check_stack_frame(frame: &[u8]) {
    assert!(frame.len() <= 14 + MTU, "a frame that is too long");
    let (ethernet, packet) = EthernetHeader::read(frame).expect("a frame of ours has a header");
    assert!(ethernet.from == OWN_MAC && ethernet.to != OWN_MAC);
    match ethernet.ethertype {
        ethertype::ARP => {
            let arp = ArpPacket::read(packet).expect("a packet of ARP");
            assert_eq!(arp.sender_mac, OWN_MAC);
        }
        ethertype::IPV4_HEADER_LEN => {
            let packet = ip::read_ipv4(packet, ChecksumStatus::Unknown).expect("a packet of IPv4");
            if packet.protocol == protocol::ICMP {
                assert!(checksum::is_valid(packet.payload) && !ethernet.to.is_group());
            }
        }
        _ => {
            let packet = ip::read_ipv6(packet).expect("a packet of IPv6");
            if let (protocol::ICMPV6, Ok(icmp::IcmpMessage::Discovery(kind, body))) =
                (packet.protocol, icmp::read(&packet))
                && let (IpAddr::V6(from), IpAddr::V6(to)) = (packet.from, packet.to)
            {
                nd::read(kind, body, from, to).expect("a message of discovery");
            }
        }
    }
}

/// Feeds frames of any kind into a worker's part of the stack, sends datagrams, and lets time pass. Checks that nothing
/// panics, all that is stored is bounded, the stack's own frames are sound, and waiting datagrams end.
pub(crate) fn frames(bytes: &[u8]) {
    // The first byte sets the stack's options.
    let Some((first, bytes)) = bytes.split_first() else { return };
    let isolated = first & 1 != 0;
    let (mut worker, mut burst) = (worker(isolated), Burst::new(32, MTU));
    let (mut now_us, mut rest) = (1_000_000u64, bytes);
    while let Some((choice, after)) = rest.split_first() {
        let (len, after) = after.split_first().map_or((0, after), |(len, after)| (usize::from(*len) * 2, after));
        let (input, after) = after.split_at(len.min(after.len()));
        rest = after;
        now_us += u64::from(*choice) * 5000;
        if choice & 8 != 0 {
            let last = input.first().copied().unwrap_or(3);
            let peer = match choice >> 6 {
                0 => SocketAddr::from(([10, 0, 0, last], 9)),
                1 => SocketAddr::from(([0xFD00, 0, 0, 0, 0, 0, 0, last.into()], 9)),
                _ => SocketAddr::from(([192, 0, 2, last], 9)),
            };
            let mut headers = ArrayVec::new();
            match worker.route(now_us, peer, [input, &[]], &mut None, &mut headers) {
                RouteOutcome::Frame => {
                    let frame = [headers[0].bytes(), input].concat();
                    check_stack_frame(&frame);
                    let to = EthernetHeader::read(&frame).map(|(ethernet, _)| ethernet.to);
                    assert!(!isolated || to == Ok(PEER_MAC), "all that was heard came from one: {to:?}");
                }
                RouteOutcome::AwaitNeighbour(_) if isolated => panic!("nobody answers there"),
                RouteOutcome::AwaitNeighbour(hop) => worker.queue_unresolved(now_us, hop, peer, [input, &[]]),
                RouteOutcome::Dropped(_) => {}
            }
        } else {
            let mut frame = input.to_vec();
            repair_frame(*choice, &mut frame);
            let before = (burst.len(), worker.queue.frames.len());
            // As from a port that hands over frames that the kernel has coalesced.
            let segment = usize::from(*choice >> 5) * 3;
            worker.input(now_us, &RxFrame { segment, ..RxFrame::plain(&frame) }, &mut burst);
            assert!(burst.len() - before.0 <= GRO_SEGMENTS, "{} datagrams in a frame", burst.len() - before.0);
            let answer_bytes: usize = worker.queue.frames.iter().skip(before.1).map(Vec::len).sum();
            // Announcements in defence of an address are seldom.
            assert!(
                answer_bytes <= if isolated { 0 } else { frame.len() + 600 },
                "{answer_bytes} bytes for {}",
                frame.len()
            );
            assert!(burst.iter().skip(before.0).all(|(_, datagram)| datagram.len() + 42 <= frame.len()));
        }
        worker.release(now_us);
        assert!(worker.queue.frames.len() <= CONTROL_FRAMES + UNRESOLVED_DATAGRAMS);
        assert!(worker.interface.neighbours().len() <= NEIGHBOUR_SLOTS);
        if choice & 16 != 0 {
            worker.queue.frames.iter().for_each(|frame| check_stack_frame(frame));
            let count = worker.queue.frames.len();
            worker.queue.advance(count);
        }
        if burst.free_slots() == 0 {
            burst.clear();
        }
    }
    let mut turns = 0;
    while !worker.unresolved.is_empty() {
        now_us += 100_000;
        worker.queue.advance(usize::MAX);
        worker.release(now_us);
        turns += 1;
        assert!(turns < 200, "what waits for a neighbour must come to an end");
    }
}

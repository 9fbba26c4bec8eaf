//! What the fuzz target of the stack checks, shared with the property tests of the normal run. It panics if what it checks does not hold.

use super::interface::Interface;
use super::wire::{Ethernet, arp::Arp, checksum, ethertype, icmp, ip, nd, protocol};
use super::worker::{Out, Worker};
use super::{FramePort, InFrame, Mac, Network, Never, Offload, OutFrame, StackOptions, Verified};
use crate::driver::Burst;
use crate::limits::{CONTROL_FRAMES, GRO_SEGMENTS, HELD_DATAGRAMS};
use arrayvec::ArrayVec;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// An interface without a network.
struct Nowhere;

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);
const MTU: usize = 1500;
const PLACES: usize = 16;

impl FramePort for Nowhere {
    type Shared = Never;

    fn mac(&self) -> Mac {
        OWN
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn listen(&mut self, _groups: &[Mac]) -> bool {
        false
    }

    fn receive(&mut self, _most: usize) -> usize {
        0
    }

    fn frame(&self, _index: usize) -> Option<InFrame<'_>> {
        None
    }

    fn transmit(&mut self, _frames: &[OutFrame<'_>]) -> usize {
        0
    }
}

fn worker(isolated: bool) -> Worker {
    let v4 = Network { address: [10, 0, 0, 1].into(), prefix: 24, gateway: Some([10, 0, 0, 254].into()) };
    let v6 = Network { address: IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 1]), prefix: 64, gateway: None };
    let options = StackOptions {
        networks: vec![v4, v6],
        workers: 2,
        neighbours: PLACES,
        isolated,
        ..StackOptions::new(v4, 7000)
    };
    let interface = Interface::new(&Nowhere, options, Arc::new(|| 0)).expect("these options are right");
    Worker::new(interface, 0, Offload::default())
}

/// Makes the input into a frame that gets further than chance would let it.
fn mend(choice: u8, frame: &mut [u8]) {
    if choice & 1 != 0
        && let Some(head) = frame.get_mut(..14)
    {
        let ethertype = [ethertype::IPV4, ethertype::IPV6, ethertype::ARP, ethertype::IPV4][usize::from(choice >> 6)];
        let to = if choice & 2 == 0 { OWN } else { Mac::BROADCAST };
        head.copy_from_slice(&Ethernet { to, from: OTHER, ethertype }.bytes());
    }
    let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 1]));
    let Some(packet) = frame.get_mut(14..).filter(|_| choice & 4 != 0) else { return };
    let kind = [protocol::UDP, protocol::ICMP, protocol::ICMPV6, protocol::UDP][usize::from(choice >> 4 & 3)];
    // The addresses and lengths that a packet for us has.
    if choice >> 6 == 1 && packet.len() >= 40 {
        let from = IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 2]);
        ip::write(packet, from, v6, kind, packet.len() - 40, false);
        sum_up(from, v6, kind, packet.get_mut(40..).unwrap_or_default());
    } else if choice & 0x80 == 0 && packet.len() >= 20 {
        let from = IpAddr::from([10, 0, 0, 2]);
        ip::write(packet, from, v4, kind, packet.len() - 20, true);
        sum_up(from, v4, kind, packet.get_mut(20..).unwrap_or_default());
    }
}

/// Puts the length and the checksum in, where their protocol has them.
fn sum_up(from: IpAddr, to: IpAddr, kind: u8, payload: &mut [u8]) {
    let len = payload.len();
    let at = match kind {
        protocol::UDP => 6,
        _ => 2,
    };
    if len < 8 {
        return;
    }
    if kind == protocol::UDP {
        payload[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        payload[2] = 7000u16.to_be_bytes()[0];
    }
    payload[at..at + 2].fill(0);
    let mut sum = match kind {
        protocol::ICMP => checksum::Sum::default(),
        _ => checksum::Sum::pseudo(from, to, kind, len),
    };
    sum.add(payload);
    payload[at..at + 2].copy_from_slice(&sum.checksum().to_be_bytes());
}

/// What the stack says by itself is sound, from itself, and no answer to everybody.
fn check_own(frame: &[u8]) {
    assert!(frame.len() <= 14 + MTU, "a frame that is too long");
    let (ethernet, packet) = Ethernet::read(frame).expect("a frame of ours has a header");
    assert!(ethernet.from == OWN && ethernet.to != OWN);
    match ethernet.ethertype {
        ethertype::ARP => {
            let arp = Arp::read(packet).expect("a packet of ARP");
            assert_eq!(arp.sender_mac, OWN);
        }
        ethertype::IPV4 => {
            let packet = ip::read4(packet, Verified::Unknown).expect("a packet of IPv4");
            if packet.protocol == protocol::ICMP {
                assert!(checksum::is_right(packet.payload) && !ethernet.to.is_group());
            }
        }
        _ => {
            let packet = ip::read6(packet).expect("a packet of IPv6");
            if let (protocol::ICMPV6, Ok(icmp::Message::Discovery(kind, body))) = (packet.protocol, icmp::read(&packet))
                && let (IpAddr::V6(from), IpAddr::V6(to)) = (packet.from, packet.to)
            {
                nd::read(kind, body, from, to).expect("a message of discovery");
            }
        }
    }
}

/// Frames of any kind into a worker's part of the stack, with datagrams out and time between: no panic, all that is kept is bounded, what it
/// says is sound, and what waits comes to an end.
pub(crate) fn frames(bytes: &[u8]) {
    // The first byte says how the stack is set up.
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
                Out::Frame => {
                    let frame = [headers[0].bytes(), input].concat();
                    check_own(&frame);
                    let to = Ethernet::read(&frame).map(|(ethernet, _)| ethernet.to);
                    assert!(!isolated || to == Ok(OTHER), "all that was heard came from one: {to:?}");
                }
                Out::Hold(_) if isolated => panic!("nobody answers there"),
                Out::Hold(hop) => worker.hold(now_us, hop, peer, [input, &[]]),
                Out::Dropped(_) => {}
            }
        } else {
            let mut frame = input.to_vec();
            mend(*choice, &mut frame);
            let before = (burst.len(), worker.queue.frames.len());
            // As a port would that hands over what the kernel has coalesced.
            let segment = usize::from(*choice >> 5) * 3;
            worker.input(now_us, &InFrame { segment, ..InFrame::plain(&frame) }, &mut burst);
            assert!(burst.len() - before.0 <= GRO_SEGMENTS, "{} datagrams in a frame", burst.len() - before.0);
            let said: usize = worker.queue.frames.iter().skip(before.1).map(Vec::len).sum();
            // Announcements in defence of an address are seldom.
            assert!(said <= if isolated { 0 } else { frame.len() + 600 }, "{said} bytes for {}", frame.len());
            assert!(burst.iter().skip(before.0).all(|(_, datagram)| datagram.len() + 42 <= frame.len()));
        }
        worker.release(now_us);
        assert!(worker.queue.frames.len() <= CONTROL_FRAMES + HELD_DATAGRAMS);
        assert!(worker.interface.neighbours().len() <= PLACES);
        if choice & 16 != 0 {
            worker.queue.frames.iter().for_each(|frame| check_own(frame));
            let count = worker.queue.frames.len();
            worker.queue.advance(count);
        }
        if burst.room() == 0 {
            burst.clear();
        }
    }
    let mut turns = 0;
    while !worker.held.is_empty() {
        now_us += 100_000;
        worker.queue.advance(usize::MAX);
        worker.release(now_us);
        turns += 1;
        assert!(turns < 200, "what waits for a neighbour must come to an end");
    }
}

//! Promises about paths with a smaller MTU than the interface: a router's message about a sent packet is accepted, and
//! no other.

use super::super::path_mtu::{PathMtuCache, QuotedPacket};
use super::super::wire::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, UDP_HEADER_LEN};
use super::*;
use crate::driver::reduced_mtu::ReducedMtuTable;
use crate::limits::{
    MIN_PATH_DATAGRAM, REDUCED_PATH_GROUPS, REDUCED_PATH_LIFETIME_US, REDUCED_PATHS, REDUCED_PATHS_PER_S,
};
use crate::rate_limiter::{RateLimit, RateLimiter};
use etherparse::{IcmpEchoHeader, Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv4};

/// A host with large packets, its peer, and a router that can send any message.
struct World {
    one: StackDriver<MemoryPort>,
    two: StackDriver<MemoryPort>,
    router: MemoryPort,
    time: Time,
}

const ROUTER: u8 = 9;

fn world() -> World {
    let (net, time) = (network(), Time::new());
    let mut one = host_of(&net, &time, 1, 9000, options(1)).remove(0);
    let mut two = host_of(&net, &time, 2, 9000, options(2)).remove(0);
    let router = net.interface(mac(ROUTER), 9000, 1).remove(0);
    // Both hosts learn each other's address.
    for peer in peers() {
        send(&mut one, peer, b"hello");
    }
    settle(&mut [&mut one, &mut two]);
    World { one, two, router, time }
}

fn peers() -> [PeerAddr; 2] {
    [PeerAddr::new(ip("10.0.0.2"), 7000), PeerAddr::new(ip("fd00::2"), 7000)]
}

/// Returns the headers of a packet with so many bytes in all, as a router quotes them.
fn quote(from: PeerAddr, to: PeerAddr, len: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    let header = if to.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
    let payload = vec![0; len - header - UDP_HEADER_LEN];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => PacketBuilder::ipv4(a.octets(), b.octets(), 9)
            .udp(from.port(), to.port())
            .write(&mut packet, &payload)
            .unwrap(),
        (IpAddr::V6(a), IpAddr::V6(b)) => PacketBuilder::ipv6(a.octets(), b.octets(), 9)
            .udp(from.port(), to.port())
            .write(&mut packet, &payload)
            .unwrap(),
        _ => panic!("two families"),
    }
    packet.truncate(header + UDP_HEADER_LEN);
    packet
}

/// Returns a router's message that packets of `mtu` bytes are the largest.
fn too_big(v4: bool, mtu: u32, quoted: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(ROUTER).0, mac(1).0);
    if v4 {
        let unreachable = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu as u16 };
        let builder = builder.ipv4([10, 0, 0, ROUTER], [10, 0, 0, 1], 20);
        builder.icmpv4(Icmpv4Type::DestinationUnreachable(unreachable)).write(&mut frame, quoted).unwrap();
    } else {
        let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let builder = builder.ipv6(octets("fd00::9"), octets("fd00::1"), 20);
        builder.icmpv6(Icmpv6Type::PacketTooBig { mtu }).write(&mut frame, quoted).unwrap();
    }
    frame
}

fn own(peer: PeerAddr) -> PeerAddr {
    PeerAddr::new(if peer.is_ipv4() { ip("10.0.0.1") } else { ip("fd00::1") }, 7000)
}

#[test]
fn a_routers_word_about_a_packet_of_ours_lowers_what_its_peer_is_sent_for_some_time() {
    for peer in peers() {
        let World { mut one, mut two, router, time } = world();
        let headers = UDP_HEADER_LEN + if peer.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
        let mut outbox = one.outbox();
        assert_eq!(outbox.most(peer), 9000 - headers);
        for (len, mtu) in [(5000, 1400), (1400, 1300)] {
            send(&mut one, peer, &vec![1; len - headers]);
            assert_eq!(settle(&mut [&mut one, &mut two])[1].len(), 1);
            router.send_raw(&too_big(peer.is_ipv4(), mtu, &quote(own(peer), peer, len)));
            nothing(&mut one);
            assert_eq!(outbox.most(peer), mtu as usize - headers);
        }
        let others =
            peers().map(|peer| PeerAddr::new(peer.ip(), 1)).into_iter().filter(|other| other.ip() != peer.ip());
        for other in others.chain([PeerAddr::new(ip("10.0.0.3"), 7000), PeerAddr::new(ip("fd00::3"), 7000)]) {
            assert!(outbox.most(other) > 8900, "only what was told of");
        }
        assert_eq!(one.stack_counters().too_big_received, 2);
        time.pass(REDUCED_PATH_LIFETIME_US - 1);
        assert_eq!(outbox.most(peer), 1300 - headers);
        time.pass(1);
        assert_eq!(outbox.most(peer), 9000 - headers, "it is tried again");
    }
}

#[test]
fn a_word_that_is_forged_or_asks_for_less_than_any_way_is_not_heeded() {
    for peer in peers() {
        let World { mut one, mut two, router, .. } = world();
        let v4 = peer.is_ipv4();
        let headers = UDP_HEADER_LEN + if v4 { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
        send(&mut one, peer, &vec![1; 5000 - headers]);
        // A packet that every path has to bear.
        send(&mut one, peer, &[1; 100]);
        settle(&mut [&mut one, &mut two]);
        let (us, them) = (own(peer), peer);
        let good = |mtu| too_big(v4, mtu, &quote(us, them, 5000));
        let least = if v4 { 576 } else { 1280 };
        let mut wrong_sum = good(1400);
        *wrong_sum.last_mut().unwrap() ^= 1;
        let mut to_all = good(1400);
        to_all[..6].fill(0xFF);
        let mut tcp = quote(us, them, 5000);
        tcp[if v4 { 9 } else { 6 }] = 6;
        let other = PeerAddr::new(if v4 { ip("10.0.0.3") } else { ip("fd00::3") }, 7000);
        let forged = [
            good(least - 1),
            good(1),
            good(5000),
            good(60_000),
            too_big(v4, 1400, &quote(us, them, 4999)),
            too_big(v4, 1400, &quote(us, PeerAddr::new(them.ip(), 7001), 5000)),
            too_big(v4, 1400, &quote(us, other, 5000)),
            too_big(v4, 1400, &quote(PeerAddr::new(us.ip(), 7001), them, 5000)),
            too_big(v4, 1400, &quote(other, them, 5000)),
            too_big(v4, 1400, &quote(us, them, 5000)[..headers - 6]),
            too_big(v4, 1400, &tcp),
            too_big(v4, 1400, b""),
            too_big(v4, 1400, &quote(us, them, 100 + headers)),
            wrong_sum,
            to_all,
        ];
        let mut outbox = one.outbox();
        for (number, frame) in forged.iter().enumerate() {
            let before = one.stack_counters().total_dropped();
            router.send_raw(frame);
            nothing(&mut one);
            for peer in [them, other] {
                assert_eq!(outbox.most(peer), 9000 - headers, "{peer}: number {number}");
            }
            assert_eq!(one.stack_counters().total_dropped(), before + 1, "number {number}");
        }
        assert_eq!(one.stack_counters().too_big_received, 0);
        // The smallest MTU, and a router that does not report one, as very old ones.
        router.send_raw(&good(0));
        nothing(&mut one);
        assert_eq!(outbox.most(peer), least as usize - headers);
    }
}

#[test]
fn such_words_are_heard_at_a_bounded_rate_and_each_packet_is_worth_one() {
    let World { mut one, mut two, router, time } = world();
    let (peer, mut known) = (peers()[0], 4000);
    for learned in [REDUCED_PATHS_PER_S, 2 * REDUCED_PATHS_PER_S] {
        for _ in 0..REDUCED_PATHS_PER_S + 2 {
            send(&mut one, peer, &vec![1; known - IPV4_HEADER_LEN - UDP_HEADER_LEN]);
            settle(&mut [&mut one, &mut two]);
            let before = one.stack_counters().too_big_received;
            for mtu in [known - 10, known - 10, known - 20] {
                router.send_raw(&too_big(true, mtu as u32, &quote(own(peer), peer, known)));
            }
            nothing(&mut one);
            known -= 10 * (one.stack_counters().too_big_received - before) as usize;
        }
        assert_eq!(one.stack_counters().too_big_received, learned);
        time.pass(1_000_000);
    }
    assert_eq!(one.outbox().most(peer), known - IPV4_HEADER_LEN - UDP_HEADER_LEN);
    assert_eq!(one.stack_counters().refused(FrameDropReason::Ignored), 2 * 2 * REDUCED_PATHS_PER_S);
    assert_eq!(one.stack_counters().refused(FrameDropReason::RateLimited), 3 * 2 * 2);
}

#[test]
fn a_peer_with_many_addresses_takes_neither_the_rate_nor_the_slots_of_others() {
    let (path_mtus, time) = (ReducedMtuTable::new(), Time::new());
    let victim = ip("192.0.2.1");
    path_mtus.reduce(time.now_us(), victim, 1400);
    // Except for a network in the same group, which no sender can choose.
    let mut others = (0..100).map(|number| IpAddr::from(std::net::Ipv6Addr::from((0xFD_u128 << 120) + (number << 64))));
    let network = others.find(|network| path_mtus.group(*network) != path_mtus.group(victim)).unwrap();
    let IpAddr::V6(network) = network else { unreachable!() };
    for number in 0..3 * REDUCED_PATHS as u128 {
        time.pass(1);
        path_mtus.reduce(time.now_us(), IpAddr::from(std::net::Ipv6Addr::from(network.to_bits() + number)), 1400);
    }
    assert_eq!(path_mtus.most(time.now_us(), victim), Some(1400));
    assert_eq!(path_mtus.len(), REDUCED_PATHS);
}

#[test]
fn ways_are_remembered_as_long_as_there_is_room_and_those_told_of_first_go_first() {
    let (path_mtus, time) = (ReducedMtuTable::new(), Time::new());
    // Addresses of one network share their group's slots.
    let host = |number: u128| IpAddr::from(std::net::Ipv6Addr::from((0xFD00_u128 << 112) + number));
    for number in 0..3 * REDUCED_PATHS as u128 {
        time.pass(1);
        path_mtus.reduce(time.now_us(), host(number), 1400);
        assert!(path_mtus.len() <= REDUCED_PATHS);
        assert_eq!(path_mtus.most(time.now_us(), host(number)), Some(1400));
    }
    assert_eq!(path_mtus.most(time.now_us(), host(0)), None);
    assert_eq!(path_mtus.most(time.now_us(), host(2 * REDUCED_PATHS as u128)), Some(1400));
}

/// Answers to unauthenticated senders have no more bytes than these. A forger of senders knows what is sent to them,
/// and can quote it.
#[test]
fn nothing_is_believed_of_what_a_forger_has_sent_to_others_and_a_peers_router_is_heard_all_the_same() {
    let (path_mtus, from) = (PathMtuCache::new(), PeerAddr::new(ip("10.0.0.1"), 7000));
    let mut rates: Vec<_> = (0..REDUCED_PATH_GROUPS).map(|_| RateLimiter::default()).collect();
    let limit = RateLimit::per_second(REDUCED_PATHS_PER_S);
    let mut learn = |to: PeerAddr, len: usize, mtu: u16| {
        path_mtus.note(to, len);
        path_mtus.learn(1, &QuotedPacket { from, to, len }, mtu, |group| rates[group].admit(&limit, 1))
    };
    for number in 0..100_000_u32 {
        let v4 = PeerAddr::new(IpAddr::from(std::net::Ipv4Addr::from(0x0B00_0000 + (number << 8))), 7000);
        assert_eq!(learn(v4, MIN_PATH_DATAGRAM + IPV4_HEADER_LEN + UDP_HEADER_LEN, 500), Err(FrameDropReason::Ignored));
        let v6 = PeerAddr::new(
            IpAddr::from(std::net::Ipv6Addr::from((0xFD_u128 << 120) + (u128::from(number) << 64))),
            7000,
        );
        assert_eq!(learn(v6, MIN_PATH_DATAGRAM + IPV6_HEADER_LEN + UDP_HEADER_LEN, 500), Err(FrameDropReason::Ignored));
    }
    for peer in [PeerAddr::new(ip("192.0.2.1"), 7000), PeerAddr::new(ip("fd00::2"), 7000)] {
        assert_eq!(learn(peer, 1500, 1400), Ok(()));
    }
}

/// An echo is not a router's message.
#[test]
fn other_messages_of_icmp_lower_nothing() {
    let World { mut one, mut two, router, .. } = world();
    let peer = peers()[0];
    send(&mut one, peer, &[1; 5000]);
    settle(&mut [&mut one, &mut two]);
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(ROUTER).0, mac(1).0).ipv4([10, 0, 0, ROUTER], [10, 0, 0, 1], 20);
    let echo = Icmpv4Type::EchoReply(IcmpEchoHeader { id: 0, seq: 1400 });
    builder.icmpv4(echo).write(&mut frame, &quote(own(peer), peer, 5028)).unwrap();
    router.send_raw(&frame);
    nothing(&mut one);
    assert_eq!(one.outbox().most(peer), 8972);
}

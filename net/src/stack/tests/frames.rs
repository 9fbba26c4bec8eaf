//! Promises about single frames: which are answered, and why others are dropped. Another library makes the frames.

use super::super::wire::{EthernetHeader, arp::ArpPacket, ethertype, icmp::FrameRoute, nd};
use super::*;
use etherparse::{PacketBuilder, PacketBuilderStep, UdpHeader, ip_number};

type Host = StackDriver<MemoryPort>;

/// Creates a host and a port that puts frames of any kind on its network.
pub(super) fn bench() -> (Host, MemoryPort, Time) {
    let (net, time) = (network(), Time::new());
    let mut one = host(&net, &time, 1, options(1)).remove(0);
    let mut other = net.interface(mac(2), 9000, 1).remove(0);
    nothing(&mut one);
    other.receive_raw();
    (one, other, time)
}

pub(super) fn v4(from: [u8; 4], to: [u8; 4]) -> PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ethernet2(mac(2).0, mac(1).0).ipv4(from, to, 20)
}

pub(super) fn v6(from: &str, to: &str) -> PacketBuilderStep<etherparse::IpHeaders> {
    let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    PacketBuilder::ethernet2(mac(2).0, mac(1).0).ipv6(octets(from), octets(to), 20)
}

pub(super) fn finish(builder: PacketBuilderStep<UdpHeader>, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    frame
}

fn good4() -> Vec<u8> {
    finish(v4([10, 0, 0, 2], [10, 0, 0, 1]).udp(5000, 7000), b"payload")
}

fn good6() -> Vec<u8> {
    finish(v6("fd00::2", "fd00::1").udp(5000, 7000), b"payload")
}

/// Changes bytes and sets IPv4's checksum anew.
fn changed4(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = good4();
    changes.iter().for_each(|(at, byte)| frame[14 + at] = *byte);
    resum(&mut frame);
    frame
}

fn resum(frame: &mut [u8]) {
    let len = usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let sum = super::super::wire::checksum::checksum(&frame[14..14 + len]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn changed6(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = good6();
    changes.iter().for_each(|(at, byte)| frame[14 + at] = *byte);
    frame
}

fn with_mac(mut frame: Vec<u8>, at: usize, mac: MacAddress) -> Vec<u8> {
    frame[at..at + 6].copy_from_slice(&mac.0);
    frame
}

/// IPv6 with a header between its own and UDP's.
fn extended(next: u8, extension: &[u8]) -> Vec<u8> {
    let mut frame = good6();
    frame[20] = next;
    let len = u16::from_be_bytes([frame[18], frame[19]]) + extension.len() as u16;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame.splice(54..54, extension.iter().copied());
    frame
}

/// IPv4 with options.
fn with_options(options: &[u8]) -> Vec<u8> {
    let mut frame = good4();
    frame[14] = 0x45 + (options.len() / 4) as u8;
    let len = u16::from_be_bytes([frame[16], frame[17]]) + options.len() as u16;
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    frame.splice(34..34, options.iter().copied());
    resum(&mut frame);
    frame
}

fn tagged(kind: u16) -> Vec<u8> {
    let mut frame = good4();
    let [a, b] = kind.to_be_bytes();
    frame.splice(12..12, [a, b, 0, 5]);
    frame
}

fn malformed_frames() -> Vec<(FrameDropReason, Vec<u8>)> {
    use FrameDropReason::*;
    let mut ip_sum = good4();
    ip_sum[24] ^= 1;
    vec![
        (Short, Vec::new()),
        (Short, good4()[..13].to_vec()),
        (Short, good4()[..20].to_vec()),
        (Short, good6()[..50].to_vec()),
        (Vlan, tagged(0x8100)),
        (Vlan, tagged(0x88A8)),
        (EthernetAddress, with_mac(good4(), 6, MacAddress::BROADCAST)),
        (EthernetAddress, with_mac(good4(), 6, MacAddress::ZERO)),
        (EthernetAddress, with_mac(good4(), 6, mac(1))),
        (EtherType, [&good4()[..12], &[0x88, 0xCC], &[0; 50][..]].concat()),
        (IpHeader, changed4(&[(0, 0x55)])),
        (IpHeader, changed4(&[(0, 0x44)])),
        (IpHeader, changed6(&[(0, 0x50)])),
        (IpLength, changed4(&[(3, 255)])),
        (IpLength, changed4(&[(3, 19)])),
        (IpLength, changed6(&[(5, 255)])),
        (IpChecksum, ip_sum),
        (Fragment, changed4(&[(6, 0x20)])),
        (Fragment, changed4(&[(7, 1)])),
        (Fragment, extended(44, &[17, 0, 0, 0, 0, 0, 0, 1])),
        (SourceRoute, with_options(&[131, 3, 4, 0])),
        (SourceRoute, with_options(&[1, 137, 3, 4])),
        (SourceRoute, extended(43, &[17, 0, 0, 1, 0, 0, 0, 0])),
        (Options, with_options(&[68, 0, 0, 0])),
        (Options, with_options(&[68, 9, 0, 0])),
        (Options, extended(60, &[17, 0, 0xC1, 4, 0, 0, 0, 0])),
        (Options, extended(60, &[17, 0, 5, 9, 0, 0, 0, 0])),
        (Options, extended(60, &[0, 0, 1, 4, 0, 0, 0, 0])),
        (Options, extended(60, &[60, 0, 1, 4, 0, 0, 0, 0].repeat(5))),
        (Short, extended(60, &[17, 200, 1, 4, 0, 0, 0, 0])),
    ]
}

/// Sound frames that must not be served all the same, and frames with wrong checksums.
fn unwanted_frames() -> Vec<(FrameDropReason, Vec<u8>)> {
    use FrameDropReason::*;
    let mut no_sum = good6();
    no_sum[60..62].fill(0);
    let mut wrong4 = good4();
    wrong4[45] ^= 1;
    let udp_len = |len: u8| {
        let mut frame = good4();
        frame[39] = len;
        frame
    };
    let from4 = |from| finish(v4(from, [10, 0, 0, 1]).udp(5000, 7000), b"x");
    let from6 = |from| finish(v6(from, "fd00::1").udp(5000, 7000), b"x");
    vec![
        (IpSource, from4([127, 0, 0, 1])),
        (IpSource, from4([224, 0, 0, 1])),
        (IpSource, from4([255, 255, 255, 255])),
        (IpSource, from4([0, 0, 0, 0])),
        (IpSource, from4([10, 0, 0, 255])),
        (IpSource, from4([10, 0, 0, 1])),
        (IpSource, from6("::")),
        (IpSource, from6("::1")),
        (IpSource, from6("ff02::1")),
        (IpSource, from6("::ffff:10.0.0.2")),
        (IpSource, from6("fd00::1")),
        (IpDestination, finish(v4([10, 0, 0, 2], [10, 0, 0, 3]).udp(5000, 7000), b"x")),
        (IpDestination, finish(v4([10, 0, 0, 2], [10, 0, 0, 255]).udp(5000, 7000), b"x")),
        (IpDestination, finish(v6("fd00::2", "ff02::1").udp(5000, 7000), b"x")),
        (IpDestination, with_mac(good4(), 0, MacAddress::BROADCAST)),
        (Protocol, changed4(&[(9, 6)])),
        (Protocol, changed6(&[(6, 6)])),
        (UdpLength, udp_len(7)),
        (UdpLength, udp_len(16)),
        (UdpChecksum, wrong4),
        (UdpChecksum, changed6(&[(50, 0)])),
        (NoUdpChecksum, no_sum),
        (Port, finish(v4([10, 0, 0, 2], [10, 0, 0, 1]).udp(5000, 7001), b"x")),
        (Port, finish(v6("fd00::2", "fd00::1").udp(0, 7000), b"x")),
    ]
}

#[test]
fn a_frame_that_is_not_sound_is_dropped_and_counted_under_its_reason() {
    let (mut one, other, _time) = bench();
    for (number, (why, frame)) in malformed_frames().into_iter().chain(unwanted_frames()).enumerate() {
        let before = *one.stack_counters();
        other.send_raw(&frame);
        // A frame too short to reach an interface is passed to the stack directly.
        if frame.len() < 6 {
            one.worker.input(1_000_000, &RxFrame::plain(&frame), &mut crate::driver::Burst::new(1, 1500));
        }
        assert_eq!(receive(&mut one), [], "frame {number}");
        assert_eq!(one.stack_counters().refused(why), before.refused(why) + 1, "frame {number} {why:?}");
        assert_eq!(one.stack_counters().total_dropped(), before.total_dropped() + 1);
    }
    other.send_raw(&good4());
    other.send_raw(&good6());
    assert_eq!(receive(&mut one).len(), 2, "and others are served as before");
}

#[test]
fn whatever_a_port_says_of_vlans_and_checksums_is_believed() {
    let (mut one, ..) = bench();
    let mut take = |frame: RxFrame<'_>| {
        let mut burst = crate::driver::Burst::new(1, 1500);
        one.worker.input(1_000_000, &frame, &mut burst);
        burst.len()
    };
    let (good, mut bad) = (good4(), good4());
    bad[45] ^= 1;
    assert_eq!(take(RxFrame::plain(&good)), 1);
    assert_eq!(take(RxFrame { vlan: true, ..RxFrame::plain(&good) }), 0);
    assert_eq!(take(RxFrame { udp: ChecksumStatus::Invalid, ..RxFrame::plain(&good) }), 0);
    assert_eq!(take(RxFrame { ip: ChecksumStatus::Invalid, ..RxFrame::plain(&good) }), 0);
    assert_eq!(take(RxFrame { udp: ChecksumStatus::Valid, ..RxFrame::plain(&bad) }), 1, "it never left the machine");
    // Over IPv6 a checksum is required, and a port cannot find a missing one good.
    let mut none = good6();
    assert_eq!(take(RxFrame { udp: ChecksumStatus::Valid, ..RxFrame::plain(&none) }), 1);
    none[60..62].fill(0);
    assert_eq!(take(RxFrame { udp: ChecksumStatus::Valid, ..RxFrame::plain(&none) }), 0);
    assert_eq!(one.stack_counters().refused(FrameDropReason::NoUdpChecksum), 1);
}

#[test]
fn no_frame_holds_more_datagrams_than_a_kernel_puts_into_one() {
    let (net, time) = (network(), Time::new());
    let mut one = host(&net, &time, 1, StackOptions { workers: 2, ..options(1) }).remove(0);
    for (port, handed) in [(7000, 0), (7001, 1)] {
        let frame = finish(v4([10, 0, 0, 2], [10, 0, 0, 1]).udp(5000, port), &[7; 1280]);
        let mut take = |segment| {
            let mut burst = crate::driver::Burst::new(1, 1500);
            one.worker.input(1_000_000, &RxFrame { segment, ..RxFrame::plain(&frame) }, &mut burst);
            (
                burst.len() as u64,
                one.stack_counters().handed_over,
                one.stack_counters().refused(FrameDropReason::Segments),
            )
        };
        assert_eq!(take(9), (0, 0, 1 + handed), "143 of them");
        assert_eq!(take(10), (128 * (1 - handed), 128 * handed, 1 + handed));
    }
}

#[test]
fn options_and_extensions_that_may_be_skipped_are() {
    let (mut one, other, _time) = bench();
    let frames = [
        with_options(&[1, 1, 1, 0]),
        with_options(&[68, 4, 5, 0, 148, 4, 0, 0]),
        with_options(&[0, 131, 3, 4]),
        extended(0, &[17, 0, 5, 2, 0, 0, 1, 0]),
        extended(60, &[17, 0, 1, 4, 0, 0, 0, 0]),
        extended(60, &[17, 0, 0, 0, 0, 0, 0, 0]),
        extended(43, &[17, 0, 2, 0, 0, 0, 0, 0]),
        extended(0, &[60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0]),
        // Ethernet fills short frames up.
        [good4(), vec![0xAA; 18]].concat(),
        [good6(), vec![0xAA; 18]].concat(),
    ];
    for frame in frames {
        other.send_raw(&frame);
        let got = receive(&mut one);
        assert_eq!(got.len(), 1, "{frame:?}");
        assert_eq!(got[0].1, b"payload");
    }
}

#[test]
fn a_datagram_over_ipv4_may_have_no_checksum() {
    let (mut one, other, _time) = bench();
    let mut frame = good4();
    frame[40..42].fill(0);
    frame[45] ^= 0xFF;
    other.send_raw(&frame);
    assert_eq!(receive(&mut one).len(), 1);
}

#[test]
fn an_echo_comes_back_whole_and_no_faster_than_its_rate() {
    let (mut one, mut other, time) = bench();
    let body: Vec<u8> = (0..1400).map(|at| at as u8).collect();
    let mut frame = Vec::new();
    v4([10, 0, 0, 2], [10, 0, 0, 1]).icmpv4_echo_request(7, 9).write(&mut frame, &body).unwrap();
    other.send_raw(&frame);
    nothing(&mut one);
    let answer = other.receive_raw().remove(0);
    let parsed = etherparse::SlicedPacket::from_ethernet(&answer).unwrap();
    let Some(etherparse::TransportSlice::Icmpv4(icmp)) = parsed.transport else { panic!("{parsed:?}") };
    assert!(matches!(icmp.icmp_type(), etherparse::Icmpv4Type::EchoReply(head) if head.id == 7 && head.seq == 9));
    assert_eq!(icmp.payload(), body);
    let mut frame6 = Vec::new();
    v6("fd00::2", "fd00::1").icmpv6_echo_request(7, 9).write(&mut frame6, &body).unwrap();
    other.send_raw(&frame6);
    nothing(&mut one);
    let answer = other.receive_raw().remove(0);
    let parsed = etherparse::SlicedPacket::from_ethernet(&answer).unwrap();
    let Some(etherparse::TransportSlice::Icmpv6(icmp)) = parsed.transport else { panic!("{parsed:?}") };
    assert!(icmp.is_checksum_valid(
        "fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets(),
        "fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets()
    ));
    assert_eq!(icmp.payload(), body);
    for _ in 0..3000 {
        other.send_raw(&frame);
        nothing(&mut one);
    }
    let answered = other.receive_raw().len();
    assert!((900..1000).contains(&answered), "{answered}");
    time.pass(100_000);
    other.send_raw(&frame);
    nothing(&mut one);
    assert_eq!(other.receive_raw().len(), 1);
}

#[test]
fn an_echo_that_does_not_fit_a_packet_of_ours_is_not_answered() {
    let (mut one, mut other, _time) = bench();
    for (len, answered) in [(1472, 1), (1473, 1), (4000, 1)] {
        let mut frame = Vec::new();
        v4([10, 0, 0, 2], [10, 0, 0, 1]).icmpv4_echo_request(7, 9).write(&mut frame, &vec![7; len]).unwrap();
        other.send_raw(&frame);
        nothing(&mut one);
        assert_eq!(one.stack_counters().echoes_answered, answered);
    }
    assert_eq!((other.receive_raw().len(), one.counters().send_errors), (1, 0));
    assert_eq!(one.stack_counters().refused(FrameDropReason::Ignored), 2);
}

#[test]
fn arp_is_answered_for_our_address_alone_and_teaches_nothing_else() {
    let (mut one, mut other, _time) = bench();
    let sender: std::net::Ipv4Addr = [10, 0, 0, 2].into();
    let request = |target: [u8; 4]| {
        ArpPacket { is_request: true, sender_mac: mac(2), sender, target_mac: MacAddress::ZERO, target: target.into() }
            .frame(MacAddress::BROADCAST)
    };
    other.send_raw(&request([10, 0, 0, 3]));
    nothing(&mut one);
    assert!(other.receive_raw().is_empty() && one.interface().neighbours().is_empty());
    other.send_raw(&request([10, 0, 0, 1]));
    nothing(&mut one);
    let answer = other.receive_raw().remove(0);
    let parsed = etherparse::SlicedPacket::from_ethernet(&answer).unwrap();
    let Some(etherparse::NetSlice::Arp(arp)) = parsed.net else { panic!("{parsed:?}") };
    assert_eq!(arp.operation(), etherparse::ArpOperation::REPLY);
    assert_eq!((arp.sender_hw_addr(), arp.sender_protocol_addr()), (&mac(1).0[..], &[10, 0, 0, 1][..]));
    assert_eq!((arp.target_hw_addr(), arp.target_protocol_addr()), (&mac(2).0[..], &[10, 0, 0, 2][..]));
    assert_eq!(one.interface().neighbours(), [(ip("10.0.0.2"), mac(2), 0)], "it wants to talk");
    // A host that claims an address, or answers without a question, makes no neighbour; nor do addresses of other
    // networks.
    for (is_request, sender, to) in [
        (true, [10, 0, 0, 9], [10, 0, 0, 9]),
        (false, [10, 0, 0, 8], [10, 0, 0, 1]),
        (true, [192, 0, 2, 1], [10, 0, 0, 1]),
        (true, [10, 0, 0, 255], [10, 0, 0, 1]),
    ] {
        let arp =
            ArpPacket { is_request, sender_mac: mac(2), sender: sender.into(), target_mac: mac(1), target: to.into() };
        other.send_raw(&arp.frame(mac(1)));
    }
    nothing(&mut one);
    assert_eq!(one.interface().neighbours().len(), 1);
}

#[test]
fn who_has_our_address_too_is_noticed_and_contradicted_now_and_then() {
    let (mut one, mut other, time) = bench();
    let own: std::net::Ipv4Addr = [10, 0, 0, 1].into();
    let claim =
        ArpPacket { is_request: true, sender_mac: mac(2), sender: own, target_mac: MacAddress::ZERO, target: own };
    let mut frames = Vec::new();
    let own6: std::net::Ipv6Addr = "fd00::1".parse().unwrap();
    nd::write_advertisement(
        mac(2),
        own6,
        MacAddress([0x33, 0x33, 0, 0, 0, 1]),
        super::super::wire::ALL_NODES,
        &mut frames,
    );
    // By ARP, and by discovery from our own address, as a host that has it sends it.
    for (kind, forged) in
        [(ethertype::ARP, &claim.frame(MacAddress::BROADCAST)[..]), (ethertype::IPV6_HEADER_LEN, &frames)]
    {
        let before = one.interface().conflicts();
        for _ in 0..100 {
            other.send_raw(forged);
            nothing(&mut one);
        }
        assert_eq!(one.interface().conflicts(), before + 100);
        let answers = other.receive_raw();
        assert_eq!(answers.iter().filter(|frame| frame[12..14] == ethertype::ARP.to_be_bytes()).count(), 1, "{kind:x}");
        assert_eq!(answers[0][..6], [0xFF; 6]);
        let own =
            answers.iter().filter(|frame| frame.len() == 86 && frame[54] == 136 && frame[62..78] == own6.octets());
        assert_eq!(own.count(), 1, "{kind:x}");
        time.pass(crate::limits::ADDRESS_DEFENCE_US);
    }
    // Our own address does not become a neighbour either.
    assert!(one.interface().neighbours().is_empty());
}

#[test]
fn neighbour_discovery_is_answered_to_who_asks_on_this_link() {
    let (mut one, mut other, _time) = bench();
    let (asker, own): (std::net::Ipv6Addr, std::net::Ipv6Addr) =
        ("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap());
    let link_local: std::net::Ipv6Addr = "fe80::ff:fe00:1".parse().unwrap();
    for target in [own, link_local] {
        let mut request = Vec::new();
        nd::write_solicitation(mac(2), asker, target, None, &mut request);
        other.send_raw(&request);
        nothing(&mut one);
        let answer = other.receive_raw().remove(0);
        let parsed = etherparse::SlicedPacket::from_ethernet(&answer).unwrap();
        let Some(etherparse::TransportSlice::Icmpv6(icmp)) = parsed.transport else { panic!("{parsed:?}") };
        assert!(icmp.is_checksum_valid(target.octets(), asker.octets()));
        assert_eq!((answer[54], answer[21]), (136, 255));
        assert_eq!((&answer[62..78], &answer[78..86]), (&target.octets()[..], &[2, 1, 2, 0, 0, 0, 0, 1][..]));
        assert_eq!(answer[..6], mac(2).0);
    }
    assert_eq!(one.interface().neighbours(), [(ip("fd00::2"), mac(2), 0)]);
    // The same message from behind a router, with another host's address, or with options that contradict themselves.
    let mut routed = Vec::new();
    nd::write_solicitation(mac(2), asker, own, None, &mut routed);
    routed[21] = 254;
    other.send_raw(&routed);
    let route = FrameRoute { macs: (mac(2), mac(1)), from: asker.into(), to: own.into() };
    for body in [
        &[0; 4][..],
        &[&[0; 4], &own.octets()[..], &[1, 0]].concat(),
        &[&[0; 4], &own.octets()[..], &[1, 4, 0, 0]].concat(),
    ] {
        let mut bad = Vec::new();
        route.write(135, 0, &[body], &mut bad);
        other.send_raw(&bad);
    }
    nothing(&mut one);
    assert!(other.receive_raw().is_empty());
    assert_eq!(one.stack_counters().refused(FrameDropReason::Discovery), 4);
}

#[test]
fn who_looks_for_a_free_address_learns_that_ours_is_not() {
    let (mut one, mut other, _time) = bench();
    let own: std::net::Ipv6Addr = "fd00::1".parse().unwrap();
    let mut request = Vec::new();
    nd::write_solicitation(mac(2), std::net::Ipv6Addr::UNSPECIFIED, own, None, &mut request);
    other.send_raw(&request);
    nothing(&mut one);
    let answer = other.receive_raw().remove(0);
    assert_eq!(
        (&answer[..6], &answer[38..54]),
        (&[0x33, 0x33, 0, 0, 0, 1][..], &super::super::wire::ALL_NODES.octets()[..])
    );
    let probe = ArpPacket {
        is_request: true,
        sender_mac: mac(2),
        sender: std::net::Ipv4Addr::UNSPECIFIED,
        target_mac: MacAddress::ZERO,
        target: [10, 0, 0, 1].into(),
    };
    other.send_raw(&probe.frame(MacAddress::BROADCAST));
    nothing(&mut one);
    assert_eq!(other.receive_raw().len(), 1);
    assert!(one.interface().neighbours().is_empty());
    assert_eq!(one.interface().conflicts(), 2);
}

#[test]
fn who_says_that_it_has_our_ethernet_address_is_not_answered() {
    let (mut one, _other, _time) = bench();
    let own: std::net::Ipv6Addr = "fd00::1".parse().unwrap();
    let mut discovery = Vec::new();
    nd::write_solicitation(mac(1), "fd00::2".parse().unwrap(), own, None, &mut discovery);
    let arp = |sender: [u8; 4]| {
        let target = [10, 0, 0, 1].into();
        let arp = ArpPacket {
            is_request: true,
            sender_mac: mac(1),
            sender: sender.into(),
            target_mac: MacAddress::ZERO,
            target,
        };
        arp.frame(MacAddress::BROADCAST).to_vec()
    };
    for mut frame in [discovery, arp([0; 4]), arp([10, 0, 0, 2])] {
        // The Ethernet frame itself comes from another host.
        frame[6..12].copy_from_slice(&mac(2).0);
        one.worker.input(1_000_000, &RxFrame::plain(&frame), &mut crate::driver::Burst::new(1, 1500));
        assert!(one.worker.queue.frames.is_empty());
    }
    assert_eq!(one.stack_counters().refused(FrameDropReason::Discovery), 1);
    assert_eq!(one.stack_counters().refused(FrameDropReason::Arp), 2);
    assert!(one.interface().neighbours().is_empty());
}

#[test]
fn a_closed_port_answers_with_what_was_sent() {
    let (mut one, mut other, _time) = bench();
    let frame = finish(v4([10, 0, 0, 2], [10, 0, 0, 1]).udp(5000, 7001), &[7; 1400]);
    other.send_raw(&frame);
    other.send_raw(&finish(v6("fd00::2", "fd00::1").udp(5000, 9), &[7; 1400]));
    nothing(&mut one);
    let answers = other.receive_raw();
    let parsed = etherparse::SlicedPacket::from_ethernet(&answers[0]).unwrap();
    let Some(etherparse::TransportSlice::Icmpv4(icmp)) = parsed.transport else { panic!("{parsed:?}") };
    assert_eq!(
        icmp.icmp_type(),
        etherparse::Icmpv4Type::DestinationUnreachable(etherparse::icmpv4::DestUnreachableHeader::Port)
    );
    assert_eq!(icmp.payload(), &frame[14..14 + icmp.payload().len()]);
    assert_eq!(answers[0].len(), 14 + 576);
    let parsed = etherparse::SlicedPacket::from_ethernet(&answers[1]).unwrap();
    let Some(etherparse::TransportSlice::Icmpv6(icmp)) = parsed.transport else { panic!("{parsed:?}") };
    assert_eq!(
        icmp.icmp_type(),
        etherparse::Icmpv6Type::DestinationUnreachable(etherparse::icmpv6::DestUnreachableCode::Port)
    );
    assert_eq!(answers[1].len(), 14 + 1280);
}

#[test]
fn group_membership_is_reported_to_routers_of_the_link_only() {
    let (mut one, mut other, time) = bench();
    let query = |from: &str, hops: u8| {
        let route = FrameRoute { macs: (mac(2), mac(1)), from: ip(from), to: super::super::wire::ALL_NODES.into() };
        let mut frame = Vec::new();
        route.write(130, 0, &[&[0; 20]], &mut frame);
        frame[21] = hops;
        frame
    };
    let mut request = |frame: &[u8]| {
        other.send_raw(frame);
        nothing(&mut one);
        (other.receive_raw().len(), one.stack_counters().refused(FrameDropReason::Discovery))
    };
    assert_eq!(request(&query("fe80::2", 64)), (0, 1), "it has passed a router");
    assert_eq!(request(&query("fd00::2", 1)), (0, 2), "it need not be of this link");
    assert_eq!(request(&query("fe80::2", 1)), (1, 2));
    time.pass(crate::limits::GROUP_REPORT_US - 1);
    assert_eq!(request(&query("fe80::2", 1)), (0, 2), "no faster than its rate");
    time.pass(1);
    assert_eq!(request(&query("fe80::2", 1)), (1, 2));
}

#[test]
fn the_groups_it_listens_to_are_reported_as_listener_discovery_wants_it() {
    let (net, time) = (network(), Time::new());
    let mut other = net.interface(mac(2), 1500, 1).remove(0);
    let mut one = host(&net, &time, 1, options(1)).remove(0);
    nothing(&mut one);
    let frames = other.receive_raw();
    let report = frames
        .iter()
        .find(|frame| frame[12..14] == ethertype::IPV6_HEADER_LEN.to_be_bytes() && frame[20] == 0)
        .unwrap();
    assert_eq!(
        (report[21], report[54], &report[56..60], report[62]),
        (1, ip_number::IPV6_ICMP.0, &[5, 2, 0, 0][..], 143)
    );
    let (_, packet) = EthernetHeader::read(report).unwrap();
    let message = &packet[48..];
    let parts = super::super::wire::ip::read_ipv6(packet).unwrap();
    let mut sum =
        super::super::wire::checksum::InternetChecksum::pseudo_header(parts.from, parts.to, 58, message.len());
    sum.add(message);
    // Both addresses end alike, so one group serves for both.
    assert_eq!((sum.folded(), message[7]), (0xFFFF, 1));
}

#[test]
fn an_interface_without_link_announces_itself_again_with_link() {
    let (net, time) = (network(), Time::new());
    let mut hosts = host(&net, &time, 1, StackOptions { workers: 2, ..options(1) });
    let mut other = net.interface(mac(2), 9000, 1).remove(0);
    hosts.iter_mut().for_each(nothing);
    let first = other.receive_raw();
    assert!(!first.is_empty(), "it says so at the start");
    for (worker, says) in [(0, true), (1, false)] {
        for came_up in [false, true, false] {
            hosts[worker].port_mut().came_up = came_up;
            hosts[worker].pressure();
            hosts.iter_mut().for_each(nothing);
            let wanted = if came_up && says { first.clone() } else { Vec::new() };
            assert_eq!(other.receive_raw(), wanted, "worker {worker}, {came_up}");
        }
    }
}

//! The stack's reading and writing, compared with another library's.

use super::super::wire::checksum::{InternetChecksum, checksum};
use super::super::wire::{ETHERNET_HEADER_LEN, ip, udp};
use super::*;
use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, UdpHeader};
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The sum as its definition states it.
fn plain_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    !(sum as u16)
}

fn addresses() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    let v4 = any::<(u32, u16, u32, u16)>().prop_map(|(from, one, to, two)| {
        (SocketAddr::from((Ipv4Addr::from(from), one)), SocketAddr::from((Ipv4Addr::from(to), two)))
    });
    let v6 = any::<(u128, u16, u128, u16)>().prop_map(|(from, one, to, two)| {
        (SocketAddr::from((Ipv6Addr::from(from), one)), SocketAddr::from((Ipv6Addr::from(to), two)))
    });
    prop_oneof![v4, v6]
}

proptest! {
    #[test]
    fn the_sum_is_what_its_definition_says_however_the_bytes_are_parted(parts in vec(vec(any::<u8>(), 0..40), 0..8)) {
        let mut sum = InternetChecksum::default();
        parts.iter().for_each(|part| sum.add(part));
        let whole = parts.concat();
        prop_assert_eq!(sum.checksum(), plain_sum(&whole));
        prop_assert_eq!(checksum(&whole), plain_sum(&whole));
    }

    #[test]
    fn what_is_written_another_library_reads_alike((from, to) in addresses(), payload in vec(any::<u8>(), 0..1500)) {
        let headers = udp::DatagramHeaders::new((mac(1), mac(2)), from, to, [&payload, &[]], PortOffloads::default()).unwrap();
        let frame = [headers.bytes(), &payload].concat();
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let Some(etherparse::TransportHeader::Udp(header)) = &parsed.transport else { panic!("{parsed:?}") };
        prop_assert_eq!((header.source_port, header.destination_port), (from.port(), to.port()));
        prop_assert_eq!(parsed.payload.slice(), &payload[..]);
        let right = match (parsed.net.unwrap(), from.ip(), to.ip()) {
            (etherparse::NetHeaders::Ipv4(net, _), IpAddr::V4(from), IpAddr::V4(to)) => {
                prop_assert_eq!((net.source, net.destination), (from.octets(), to.octets()));
                prop_assert_eq!(net.calc_header_checksum(), net.header_checksum);
                header.calc_checksum_ipv4(&net, &payload).unwrap()
            }
            (etherparse::NetHeaders::Ipv6(net, _), IpAddr::V6(from), IpAddr::V6(to)) => {
                prop_assert_eq!((net.source, net.destination), (from.octets(), to.octets()));
                header.calc_checksum_ipv6(&net, &payload).unwrap()
            }
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(header.checksum, right);
    }

    #[test]
    fn what_another_library_writes_is_read_alike((from, to) in addresses(), payload in vec(any::<u8>(), 0..1500), hops: u8) {
        let mut bytes = Vec::new();
        let packet_len = (UdpHeader::LEN + payload.len()) as u16;
        let udp_header = match (from.ip(), to.ip()) {
            (IpAddr::V4(one), IpAddr::V4(two)) => {
                let mut net = Ipv4Header::new(packet_len, hops, IpNumber::UDP, one.octets(), two.octets()).unwrap();
                net.header_checksum = net.calc_header_checksum();
                net.write(&mut bytes).unwrap();
                UdpHeader::with_ipv4_checksum(from.port(), to.port(), &net, &payload).unwrap()
            }
            (IpAddr::V6(one), IpAddr::V6(two)) => {
                let net = Ipv6Header {
                    traffic_class: 3,
                    flow_label: Ipv6FlowLabel::try_new(77).unwrap(),
                    payload_length: packet_len,
                    next_header: IpNumber::UDP,
                    hop_limit: hops,
                    source: one.octets(),
                    destination: two.octets(),
                };
                net.write(&mut bytes).unwrap();
                UdpHeader::with_ipv6_checksum(from.port(), to.port(), &net, &payload).unwrap()
            }
            other => panic!("{other:?}"),
        };
        udp_header.write(&mut bytes).unwrap();
        bytes.extend_from_slice(&payload);
        let packet = if from.is_ipv4() { ip::read_ipv4(&bytes, ChecksumStatus::Unknown) } else { ip::read_ipv6(&bytes) }.unwrap();
        prop_assert_eq!((packet.from, packet.to, packet.hops), (from.ip(), to.ip(), hops));
        let datagram = udp::read(&packet, ChecksumStatus::Unknown).unwrap();
        prop_assert_eq!((datagram.from, datagram.port, datagram.payload), (from, to.port(), &payload[..]));
    }

    /// Any bytes: no panic, and the other library finds the same fields in accepted packets.
    #[test]
    fn nonsense_is_refused_or_read_alike(bytes in vec(any::<u8>(), 0..120), first in 0u8..4, next in 0u8..4) {
        let mut bytes = bytes;
        if let Some(byte) = bytes.first_mut() {
            *byte = [0x45, 0x60, 0x46, *byte][usize::from(first)];
        }
        if let Some(byte) = bytes.get_mut(6).filter(|_| first == 1) {
            *byte = [0, 60, 43, 17][usize::from(next)];
        }
        if let (1, Some(byte)) = (first, bytes.get_mut(4..6)) {
            byte[0] = 0;
        }
        // The other library takes a length of zero for an unknown one.
        if let Ok(packet) = ip::read_ipv6(&bytes)
            && bytes[4..6] != [0, 0]
        {
            let parsed = etherparse::IpSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(parsed.source_addr(), packet.from);
            prop_assert_eq!(parsed.payload().ip_number.0, packet.protocol);
            prop_assert_eq!(parsed.payload().payload, packet.payload);
        }
        if let Ok(packet) = ip::read_ipv4(&bytes, ChecksumStatus::Valid) {
            let parsed = etherparse::IpSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(parsed.payload().ip_number.0, packet.protocol);
            prop_assert_eq!(parsed.payload().payload, packet.payload);
        }
    }
}

#[test]
fn a_sum_of_zero_is_written_as_all_ones() {
    // These bytes were found by trying: their checksum over IPv4 would be read as "no checksum".
    let (from, to): (SocketAddr, SocketAddr) = ("10.0.0.1:7000".parse().unwrap(), "10.0.0.2:7000".parse().unwrap());
    let mut seen = false;
    for number in 0..=u16::MAX {
        let payload = number.to_be_bytes();
        let headers =
            udp::DatagramHeaders::new((mac(1), mac(2)), from, to, [&payload, &[]], PortOffloads::default()).unwrap();
        let sum = &headers.bytes()[headers.bytes().len() - 2..];
        assert_ne!(sum, [0, 0]);
        seen |= sum == [0xFF, 0xFF];
        let packet = [&headers.bytes()[ETHERNET_HEADER_LEN..], &payload].concat();
        udp::read(&ip::read_ipv4(&packet, ChecksumStatus::Unknown).unwrap(), ChecksumStatus::Unknown).unwrap();
    }
    assert!(seen);
}

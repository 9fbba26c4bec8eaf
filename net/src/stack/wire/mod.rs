//! The wire formats of Ethernet, ARP, IPv4, IPv6, ICMP and UDP: reading with every check, and writing. The functions
//! have no state, and no input panics.

pub(super) mod arp;
pub(super) mod checksum;
pub(super) mod icmp;
pub(super) mod ip;
pub(super) mod nd;
pub(super) mod udp;

use super::MacAddress;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an Ethernet header without a VLAN tag.
pub(super) const ETHERNET_HEADER_LEN: usize = 14;
/// Bytes of an IPv4 header without options.
pub(super) const IPV4_HEADER_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub(super) const IPV6_HEADER_LEN: usize = 40;
/// Bytes of a UDP header.
pub(super) const UDP_HEADER_LEN: usize = 8;
/// Bytes of the longest headers that a datagram gets: Ethernet, IPv6 and UDP.
pub(super) const MAX_HEADERS_LEN: usize = ETHERNET_HEADER_LEN + IPV6_HEADER_LEN + UDP_HEADER_LEN;

/// Protocols of Ethernet.
pub(super) mod ethertype {
    pub(in crate::stack) const IPV4_HEADER_LEN: u16 = 0x0800;
    pub(in crate::stack) const ARP: u16 = 0x0806;
    pub(in crate::stack) const IPV6_HEADER_LEN: u16 = 0x86DD;
    /// The tags of 802.1Q and 802.1ad.
    pub(in crate::stack) const VLAN: [u16; 2] = [0x8100, 0x88A8];
}

/// Protocols of IP.
pub(super) mod protocol {
    pub(in crate::stack) const HOP_BY_HOP: u8 = 0;
    pub(in crate::stack) const ICMP: u8 = 1;
    pub(in crate::stack) const UDP_HEADER_LEN: u8 = 17;
    pub(in crate::stack) const ROUTING: u8 = 43;
    pub(in crate::stack) const FRAGMENT: u8 = 44;
    pub(in crate::stack) const ICMPV6: u8 = 58;
    pub(in crate::stack) const DESTINATION: u8 = 60;
}

/// The reason why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameDropReason {
    /// A frame shorter than its headers.
    Short,
    /// A frame of a VLAN.
    Vlan,
    /// An impossible Ethernet address of the sender or the receiver.
    EthernetAddress,
    /// An Ethernet protocol that the stack does not speak.
    EtherType,
    /// An IP header of the wrong version or an impossible length.
    IpHeader,
    /// An IP length that the frame does not have.
    IpLength,
    /// A wrong checksum of an IPv4 header.
    IpChecksum,
    /// A fragment of a packet: the stack reassembles none.
    Fragment,
    /// A packet with a source route.
    SourceRoute,
    /// Options or extension headers that are malformed, too many, or not to be skipped by a host that does not know
    /// them.
    Options,
    /// An IP address of the sender that no host can have.
    IpSource,
    /// An IP address of the receiver that is not served here.
    IpDestination,
    /// An IP protocol that the stack does not speak.
    Protocol,
    /// A UDP length that the packet does not have.
    UdpLength,
    /// A wrong checksum of UDP.
    UdpChecksum,
    /// A missing UDP checksum over IPv6.
    NoUdpChecksum,
    /// A UDP port that no worker serves, or a datagram from port 0.
    Port,
    /// An ARP packet that contradicts itself.
    Arp,
    /// A malformed ICMP message, or one with a wrong checksum.
    Icmp,
    /// A malformed message of neighbour or listener discovery, or one that came through a router.
    Discovery,
    /// A message of ICMP that is not acted on.
    Ignored,
    /// Answers to echoes and to closed ports beyond their rate, or beyond what may wait to be sent.
    RateLimited,
    /// A datagram for another worker whose inbox was full.
    HandoverFull,
    /// A datagram longer than the buffer for it.
    BufferTooSmall,
    /// More datagrams in one frame than a kernel coalesces.
    Segments,
}

impl FrameDropReason {
    /// All reasons, in the order of their numbers, with their names.
    pub const ALL: [(FrameDropReason, &'static str); 25] = [
        (FrameDropReason::Short, "short"),
        (FrameDropReason::Vlan, "vlan"),
        (FrameDropReason::EthernetAddress, "ethernet_address"),
        (FrameDropReason::EtherType, "ethertype"),
        (FrameDropReason::IpHeader, "ip_header"),
        (FrameDropReason::IpLength, "ip_length"),
        (FrameDropReason::IpChecksum, "ip_checksum"),
        (FrameDropReason::Fragment, "fragment"),
        (FrameDropReason::SourceRoute, "source_route"),
        (FrameDropReason::Options, "options"),
        (FrameDropReason::IpSource, "ip_source"),
        (FrameDropReason::IpDestination, "ip_destination"),
        (FrameDropReason::Protocol, "protocol"),
        (FrameDropReason::UdpLength, "udp_length"),
        (FrameDropReason::UdpChecksum, "udp_checksum"),
        (FrameDropReason::NoUdpChecksum, "no_udp_checksum"),
        (FrameDropReason::Port, "port"),
        (FrameDropReason::Arp, "arp"),
        (FrameDropReason::Icmp, "icmp"),
        (FrameDropReason::Discovery, "discovery"),
        (FrameDropReason::Ignored, "unheeded"),
        (FrameDropReason::RateLimited, "rate"),
        (FrameDropReason::HandoverFull, "handover"),
        (FrameDropReason::BufferTooSmall, "buffer"),
        (FrameDropReason::Segments, "segments"),
    ];

    /// The names of all reasons, in the same order.
    pub const NAMES: [&'static str; FrameDropReason::ALL.len()] = {
        let (mut names, mut at) = ([""; FrameDropReason::ALL.len()], 0);
        while at < names.len() {
            names[at] = FrameDropReason::ALL[at].1;
            at += 1;
        }
        names
    };

    /// Returns whether a sound network and sound neighbours never send such frames. (A frame that is merely not for
    /// this stack is not malformed.)
    pub fn is_malformed(self) -> bool {
        use FrameDropReason::*;
        !matches!(
            self,
            Vlan | EthernetAddress
                | EtherType
                | Fragment
                | IpDestination
                | Protocol
                | Port
                | Ignored
                | RateLimited
                | HandoverFull
                | BufferTooSmall
        )
    }
}

/// Returns the two bytes at `at`, as a number.
#[inline]
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

/// Returns the Ethernet address at `at`.
#[inline]
pub(super) fn mac_at(bytes: &[u8], at: usize) -> Option<MacAddress> {
    bytes.get(at..at + 6)?.try_into().ok().map(MacAddress)
}

/// Returns the IPv4 address at `at`.
#[inline]
pub(super) fn ipv4_at(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets))
}

/// Returns the IPv6 address at `at`.
#[inline]
pub(super) fn ipv6_at(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets))
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EthernetHeader {
    pub(super) to: MacAddress,
    pub(super) from: MacAddress,
    pub(super) ethertype: u16,
}

impl EthernetHeader {
    /// Splits a frame.
    #[inline]
    pub(super) fn read(frame: &[u8]) -> Result<(EthernetHeader, &[u8]), FrameDropReason> {
        let (Some(to), Some(from), Some(ethertype)) = (mac_at(frame, 0), mac_at(frame, 6), u16_at(frame, 12)) else {
            return Err(FrameDropReason::Short);
        };
        Ok((EthernetHeader { to, from, ethertype }, frame.get(ETHERNET_HEADER_LEN..).unwrap_or_default()))
    }

    /// Returns the header's bytes.
    #[inline]
    pub(super) fn bytes(&self) -> [u8; ETHERNET_HEADER_LEN] {
        let mut bytes = [0; ETHERNET_HEADER_LEN];
        bytes[..6].copy_from_slice(&self.to.0);
        bytes[6..12].copy_from_slice(&self.from.0);
        bytes[12..].copy_from_slice(&self.ethertype.to_be_bytes());
        bytes
    }
}

/// Returns the Ethernet group that stands for a multicast group of IPv6.
pub(super) fn multicast_mac(address: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = address.octets();
    MacAddress([0x33, 0x33, a, b, c, d])
}

/// Returns the group in which hosts ask for an address.
pub(super) fn solicited_node_group(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, a, b, c])
}

/// The group of all hosts.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// Returns whether a host may have this address.
#[inline]
pub(super) fn is_host_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let first = address.octets()[0];
            first != 0 && first != 127 && first < 224
        }
        IpAddr::V6(address) => {
            let segments = address.segments();
            let compatible = segments.iter().take(5).all(|segment| *segment == 0);
            // ::, ::1, and IPv4 addresses written as IPv6.
            !(address.is_multicast() || compatible && matches!(segments[5], 0 | 0xFFFF))
        }
    }
}

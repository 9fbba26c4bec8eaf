//! ICMP and ICMPv6: echoes, and messages about closed ports.

use super::checksum::{InternetChecksum, is_valid};
use super::ip::{self, IpPacket};
use super::{
    EthernetHeader, FrameDropReason, IPV4_HEADER_LEN, IPV6_HEADER_LEN, ethertype, ipv4_at, ipv6_at, protocol, u16_at,
};
use crate::stack::MacAddress;
use crate::stack::path_mtu::QuotedPacket;
use std::net::{IpAddr, SocketAddr};

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) enum IcmpMessage<'f> {
    /// A request to return these bytes (identifier and sequence included).
    Echo(&'f [u8]),
    /// A sent packet was too large for a link on its path, which bears so many bytes (0: the message does not say).
    TooBig(u32, QuotedPacket),
    /// A message of neighbour discovery, checked to have passed no router: its type and its body behind the checksum.
    Discovery(u8, &'f [u8]),
    /// A router of this link asks for the groups that are listened to.
    GroupQuery,
}

mod kind {
    pub(super) const ECHO: u8 = 8;
    pub(super) const ECHO_REPLY: u8 = 0;
    pub(super) const UNREACHABLE: u8 = 3;
    pub(super) const CLOSED_PORT: u8 = 3;
    pub(super) const TOO_BIG: u8 = 4;
    pub(super) const V6_UNREACHABLE: u8 = 1;
    pub(super) const V6_CLOSED_PORT: u8 = 4;
    pub(super) const V6_TOO_BIG: u8 = 2;
    pub(super) const V6_ECHO: u8 = 128;
    pub(super) const V6_ECHO_REPLY: u8 = 129;
    pub(super) const V6_GROUP_QUERY: u8 = 130;
    pub(super) const V6_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;
}

/// Reads the payload of a packet.
pub(in crate::stack) fn read<'f>(packet: &IpPacket<'f>) -> Result<IcmpMessage<'f>, FrameDropReason> {
    let bytes = packet.payload;
    let (Some(kind), Some(code), Some(body)) = (bytes.first(), bytes.get(1), bytes.get(4..)) else {
        return Err(FrameDropReason::Icmp);
    };
    if packet.to.is_ipv4() {
        if !is_valid(bytes) {
            return Err(FrameDropReason::Icmp);
        }
        return match (*kind, *code) {
            (kind::ECHO, 0) if body.len() >= 4 => Ok(IcmpMessage::Echo(body)),
            (kind::ECHO, _) => Err(FrameDropReason::Icmp),
            (kind::UNREACHABLE, kind::TOO_BIG) => {
                let (Some(mtu), Some(quote)) = (u16_at(body, 2), quoted_ipv4(body.get(4..).unwrap_or_default())) else {
                    return Err(FrameDropReason::Icmp);
                };
                Ok(IcmpMessage::TooBig(mtu.into(), quote))
            }
            _ => Err(FrameDropReason::Ignored),
        };
    }
    let mut sum = InternetChecksum::pseudo_header(packet.from, packet.to, protocol::ICMPV6, bytes.len());
    sum.add(bytes);
    if sum.folded() != 0xFFFF {
        return Err(FrameDropReason::Icmp);
    }
    match (*kind, *code) {
        (kind::V6_ECHO, 0) if body.len() >= 4 => Ok(IcmpMessage::Echo(body)),
        (kind::V6_ECHO, _) => Err(FrameDropReason::Icmp),
        (kind::V6_TOO_BIG, _) => {
            let (Some(mtu), Some(quote)) = (body.first_chunk(), quoted_ipv6(body.get(4..).unwrap_or_default())) else {
                return Err(FrameDropReason::Icmp);
            };
            Ok(IcmpMessage::TooBig(u32::from_be_bytes(*mtu), quote))
        }
        (kind::V6_GROUP_QUERY, 0) => {
            let direct = matches!(packet.from, IpAddr::V6(from) if packet.hops == 1 && from.is_unicast_link_local());
            if direct { Ok(IcmpMessage::GroupQuery) } else { Err(FrameDropReason::Discovery) }
        }
        (kind, code) if kind::V6_DISCOVERY.contains(&kind) => {
            let direct = packet.hops == 255 && code == 0;
            if direct { Ok(IcmpMessage::Discovery(kind, body)) } else { Err(FrameDropReason::Discovery) }
        }
        _ => Err(FrameDropReason::Ignored),
    }
}

/// Returns the quoted fields of a datagram that was sent over IPv4, from its header and the ports.
fn quoted_ipv4(packet: &[u8]) -> Option<QuotedPacket> {
    let first = packet.first()?;
    let udp = packet.get(usize::from(first & 15) * 4..)?;
    let is_udp = first >> 4 == 4 && *packet.get(9)? == protocol::UDP_HEADER_LEN;
    let from = SocketAddr::new(ipv4_at(packet, 12)?.into(), u16_at(udp, 0)?);
    let to = SocketAddr::new(ipv4_at(packet, 16)?.into(), u16_at(udp, 2)?);
    is_udp.then_some(QuotedPacket { from, to, len: u16_at(packet, 2)?.into() })
}

/// Returns the same over IPv6.
fn quoted_ipv6(packet: &[u8]) -> Option<QuotedPacket> {
    let udp = packet.get(IPV6_HEADER_LEN..)?;
    let is_udp = packet.first()? >> 4 == 6 && *packet.get(6)? == protocol::UDP_HEADER_LEN;
    let from = SocketAddr::new(ipv6_at(packet, 8)?.into(), u16_at(udp, 0)?);
    let to = SocketAddr::new(ipv6_at(packet, 24)?.into(), u16_at(udp, 2)?);
    is_udp.then_some(QuotedPacket { from, to, len: IPV6_HEADER_LEN + usize::from(u16_at(packet, 4)?) })
}

/// The route of a frame: the Ethernet addresses and the IP addresses, each from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) struct FrameRoute {
    pub(in crate::stack) macs: (MacAddress, MacAddress),
    pub(in crate::stack) from: IpAddr,
    pub(in crate::stack) to: IpAddr,
}

impl FrameRoute {
    /// Writes a frame of ICMP: type, code, and `body` behind the checksum. Empty if the addresses are of two families.
    pub(in crate::stack) fn write(&self, kind: u8, code: u8, body: &[&[u8]], frame: &mut Vec<u8>) {
        let is_v4 = self.to.is_ipv4();
        let (ethertype, protocol) = if is_v4 {
            (ethertype::IPV4_HEADER_LEN, protocol::ICMP)
        } else {
            (ethertype::IPV6_HEADER_LEN, protocol::ICMPV6)
        };
        frame.clear();
        frame.extend_from_slice(&EthernetHeader { from: self.macs.0, to: self.macs.1, ethertype }.bytes());
        let len = 4 + body.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; IPV6_HEADER_LEN];
        let header_len = ip::write(&mut header, self.from, self.to, protocol, len, true);
        if header_len == 0 {
            return frame.clear();
        }
        frame.extend_from_slice(header.get(..header_len).unwrap_or_default());
        let start = frame.len();
        frame.extend_from_slice(&[kind, code, 0, 0]);
        body.iter().for_each(|part| frame.extend_from_slice(part));
        let message = frame.get_mut(start..).unwrap_or_default();
        let mut sum = if is_v4 {
            InternetChecksum::default()
        } else {
            InternetChecksum::pseudo_header(self.from, self.to, protocol, len)
        };
        sum.add(message);
        if let Some(checksum_bytes) = message.get_mut(2..4) {
            checksum_bytes.copy_from_slice(&sum.checksum().to_be_bytes());
        }
    }

    /// Writes the answer to an echo.
    pub(in crate::stack) fn write_echo_reply(&self, body: &[u8], frame: &mut Vec<u8>) {
        let kind = if self.to.is_ipv4() { kind::ECHO_REPLY } else { kind::V6_ECHO_REPLY };
        self.write(kind, 0, &[body], frame);
    }

    /// Writes a "port unreachable" message for `packet` (the whole of it, IP header included). It is quoted as far as
    /// is usual: the answer is no longer than 576 bytes, over IPv6 1280.
    pub(in crate::stack) fn write_closed_port(&self, packet: &[u8], frame: &mut Vec<u8>) {
        let (kind, code, most) = match self.to {
            IpAddr::V4(_) => (kind::UNREACHABLE, kind::CLOSED_PORT, 576 - IPV4_HEADER_LEN - 8),
            IpAddr::V6(_) => (kind::V6_UNREACHABLE, kind::V6_CLOSED_PORT, 1280 - IPV6_HEADER_LEN - 8),
        };
        let quote = packet.get(..most).unwrap_or(packet);
        self.write(kind, code, &[&[0; 4], quote], frame);
    }
}

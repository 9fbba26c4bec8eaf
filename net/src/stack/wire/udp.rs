//! UDP.

use super::checksum::Sum;
use super::ip::Packet;
use super::{ETHERNET, Ethernet, HEADERS, IPV4, Refused, UDP, ethertype, ip, protocol, u16_at};
use crate::stack::{Fill, Mac, Offload, Verified};
use std::net::{IpAddr, SocketAddr};

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) struct Datagram<'f> {
    pub(in crate::stack) from: SocketAddr,
    pub(in crate::stack) port: u16,
    pub(in crate::stack) payload: &'f [u8],
}

/// Reads the payload of a packet.
#[inline]
pub(in crate::stack) fn read<'f>(packet: &Packet<'f>, checked: Verified) -> Result<Datagram<'f>, Refused> {
    let bytes = packet.payload;
    let (Some(from), Some(port), Some(len), Some(sum)) =
        (u16_at(bytes, 0), u16_at(bytes, 2), u16_at(bytes, 4), u16_at(bytes, 6))
    else {
        return Err(Refused::UdpLength);
    };
    let bytes = bytes.get(..usize::from(len)).ok_or(Refused::UdpLength)?;
    let payload = bytes.get(UDP..).ok_or(Refused::UdpLength)?;
    match checked {
        // Over IPv4 a sender may do without. A port may well have found that good; over IPv6, where no other sum has the addresses in it,
        // that is nothing to go by.
        _ if sum == 0 && packet.to.is_ipv6() => return Err(Refused::NoUdpChecksum),
        Verified::Good => {}
        _ if sum == 0 => {}
        Verified::Bad => return Err(Refused::UdpChecksum),
        Verified::Unknown => {
            let mut sum = Sum::pseudo(packet.from, packet.to, protocol::UDP, bytes.len());
            sum.add(bytes);
            if sum.folded() != 0xFFFF {
                return Err(Refused::UdpChecksum);
            }
        }
    }
    Ok(Datagram { from: SocketAddr::new(packet.from, from), port, payload })
}

/// Headers of a datagram, in the order of the wire.
#[derive(Clone, Copy, Debug)]
pub(in crate::stack) struct Headers {
    bytes: [u8; HEADERS],
    len: usize,
    /// Bytes of the IP header.
    pub(in crate::stack) ip: usize,
    /// What the port has to compute.
    pub(in crate::stack) fill: Fill,
}

impl Default for Headers {
    fn default() -> Headers {
        Headers { bytes: [0; HEADERS], len: 0, ip: 0, fill: Fill::default() }
    }
}

impl Headers {
    /// The bytes.
    #[inline]
    pub(in crate::stack) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Headers for a payload, which is in two pieces. None if the addresses are of two families, or the payload longer than UDP can say.
    #[inline]
    pub(in crate::stack) fn new(
        macs: (Mac, Mac),
        from: SocketAddr,
        to: SocketAddr,
        payload: [&[u8]; 2],
        offload: Offload,
    ) -> Option<Headers> {
        let mut headers = Headers::default();
        let len = UDP + payload.map(<[u8]>::len).iter().sum::<usize>();
        let udp_len = u16::try_from(len).ok()?;
        let is_v4 = from.is_ipv4();
        let ethertype = if is_v4 { ethertype::IPV4 } else { ethertype::IPV6 };
        let ethernet = Ethernet { from: macs.0, to: macs.1, ethertype };
        headers.bytes[..ETHERNET].copy_from_slice(&ethernet.bytes());
        let place = headers.bytes.get_mut(ETHERNET..)?;
        let ip = ip::write(place, from.ip(), to.ip(), protocol::UDP, len, !offload.ip_fill);
        if ip == 0 {
            return None;
        }
        let udp = headers.bytes.get_mut(ETHERNET + ip..ETHERNET + ip + UDP)?;
        udp[..2].copy_from_slice(&from.port().to_be_bytes());
        udp[2..4].copy_from_slice(&to.port().to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let none = is_v4 && offload.udp_unneeded;
        let sum = if none { 0 } else { sum(from.ip(), to.ip(), udp, payload, offload.udp_fill) };
        udp[6..].copy_from_slice(&sum.to_be_bytes());
        headers.len = ETHERNET + ip + UDP;
        headers.ip = ip;
        headers.fill = Fill { ip: is_v4 && offload.ip_fill, udp: offload.udp_fill && !none };
        debug_assert!(ip >= IPV4);
        Some(headers)
    }
}

/// What stands in the place of the checksum: it, or the pseudo header's sum for a port that computes the rest.
#[inline]
fn sum(from: IpAddr, to: IpAddr, header: &[u8], payload: [&[u8]; 2], by_port: bool) -> u16 {
    let len = header.len() + payload.map(<[u8]>::len).iter().sum::<usize>();
    let mut sum = Sum::pseudo(from, to, protocol::UDP, len);
    if by_port {
        return sum.folded();
    }
    sum.add(header);
    payload.iter().for_each(|piece| sum.add(piece));
    // Zero would say that there is none.
    match sum.checksum() {
        0 => 0xFFFF,
        sum => sum,
    }
}

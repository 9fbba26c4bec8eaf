//! UDP.

use super::checksum::InternetChecksum;
use super::ip::IpPacket;
use super::{
    ETHERNET_HEADER_LEN, EthernetHeader, FrameDropReason, IPV4_HEADER_LEN, MAX_HEADERS_LEN, UDP_HEADER_LEN, ethertype,
    ip, protocol, u16_at,
};
use crate::stack::{ChecksumFill, ChecksumStatus, MacAddress, PortOffloads};
use std::net::{IpAddr, SocketAddr};

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) struct UdpDatagram<'f> {
    pub(in crate::stack) from: SocketAddr,
    pub(in crate::stack) port: u16,
    pub(in crate::stack) payload: &'f [u8],
}

/// Reads the payload of a packet.
#[inline]
pub(in crate::stack) fn read<'f>(
    packet: &IpPacket<'f>,
    checked: ChecksumStatus,
) -> Result<UdpDatagram<'f>, FrameDropReason> {
    let bytes = packet.payload;
    let (Some(from), Some(port), Some(len), Some(sum)) =
        (u16_at(bytes, 0), u16_at(bytes, 2), u16_at(bytes, 4), u16_at(bytes, 6))
    else {
        return Err(FrameDropReason::UdpLength);
    };
    let bytes = bytes.get(..usize::from(len)).ok_or(FrameDropReason::UdpLength)?;
    let payload = bytes.get(UDP_HEADER_LEN..).ok_or(FrameDropReason::UdpLength)?;
    match checked {
        // Over IPv4 a sender may leave the checksum out, and a port may report that as good. Over IPv6 no other sum
        // covers the addresses, so that report is ignored.
        _ if sum == 0 && packet.to.is_ipv6() => return Err(FrameDropReason::NoUdpChecksum),
        ChecksumStatus::Valid => {}
        _ if sum == 0 => {}
        ChecksumStatus::Invalid => return Err(FrameDropReason::UdpChecksum),
        ChecksumStatus::Unknown => {
            let mut sum =
                InternetChecksum::pseudo_header(packet.from, packet.to, protocol::UDP_HEADER_LEN, bytes.len());
            sum.add(bytes);
            if sum.folded() != 0xFFFF {
                return Err(FrameDropReason::UdpChecksum);
            }
        }
    }
    Ok(UdpDatagram { from: SocketAddr::new(packet.from, from), port, payload })
}

/// Headers of a datagram, in the order of the wire.
#[derive(Clone, Copy, Debug)]
pub(in crate::stack) struct DatagramHeaders {
    bytes: [u8; MAX_HEADERS_LEN],
    len: usize,
    /// Bytes of the IP header.
    pub(in crate::stack) ip: usize,
    /// The checksums that the port has to compute.
    pub(in crate::stack) fill: ChecksumFill,
}

impl Default for DatagramHeaders {
    fn default() -> DatagramHeaders {
        DatagramHeaders { bytes: [0; MAX_HEADERS_LEN], len: 0, ip: 0, fill: ChecksumFill::default() }
    }
}

impl DatagramHeaders {
    /// Returns the headers' bytes.
    #[inline]
    pub(in crate::stack) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Writes the headers for a payload, which is in two pieces. None if the addresses are of two families, or the
    /// payload is longer than UDP allows.
    #[inline]
    pub(in crate::stack) fn new(
        macs: (MacAddress, MacAddress),
        from: SocketAddr,
        to: SocketAddr,
        payload: [&[u8]; 2],
        offload: PortOffloads,
    ) -> Option<DatagramHeaders> {
        let mut headers = DatagramHeaders::default();
        let len = UDP_HEADER_LEN + payload.map(<[u8]>::len).iter().sum::<usize>();
        let udp_len = u16::try_from(len).ok()?;
        let is_v4 = from.is_ipv4();
        let ethertype = if is_v4 { ethertype::IPV4_HEADER_LEN } else { ethertype::IPV6_HEADER_LEN };
        let ethernet = EthernetHeader { from: macs.0, to: macs.1, ethertype };
        headers.bytes[..ETHERNET_HEADER_LEN].copy_from_slice(&ethernet.bytes());
        let out = headers.bytes.get_mut(ETHERNET_HEADER_LEN..)?;
        let ip = ip::write(out, from.ip(), to.ip(), protocol::UDP_HEADER_LEN, len, !offload.ip_fill);
        if ip == 0 {
            return None;
        }
        let udp = headers.bytes.get_mut(ETHERNET_HEADER_LEN + ip..ETHERNET_HEADER_LEN + ip + UDP_HEADER_LEN)?;
        udp[..2].copy_from_slice(&from.port().to_be_bytes());
        udp[2..4].copy_from_slice(&to.port().to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let none = is_v4 && offload.udp_checksum_optional;
        let sum = if none { 0 } else { udp_checksum(from.ip(), to.ip(), udp, payload, offload.udp_fill) };
        udp[6..].copy_from_slice(&sum.to_be_bytes());
        headers.len = ETHERNET_HEADER_LEN + ip + UDP_HEADER_LEN;
        headers.ip = ip;
        headers.fill = ChecksumFill { ip: is_v4 && offload.ip_fill, udp: offload.udp_fill && !none };
        debug_assert!(ip >= IPV4_HEADER_LEN);
        Some(headers)
    }
}

/// Returns the value of the checksum field: the checksum, or the pseudo header's sum for a port that computes the rest.
#[inline]
fn udp_checksum(from: IpAddr, to: IpAddr, header: &[u8], payload: [&[u8]; 2], by_port: bool) -> u16 {
    let len = header.len() + payload.map(<[u8]>::len).iter().sum::<usize>();
    let mut sum = InternetChecksum::pseudo_header(from, to, protocol::UDP_HEADER_LEN, len);
    if by_port {
        return sum.folded();
    }
    sum.add(header);
    payload.iter().for_each(|piece| sum.add(piece));
    // Zero would mean that there is no checksum.
    match sum.checksum() {
        0 => 0xFFFF,
        sum => sum,
    }
}

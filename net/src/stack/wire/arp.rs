//! ARP for IPv4 over Ethernet.

use super::{EthernetHeader, FrameDropReason, ethertype, ipv4_at, mac_at};
use crate::stack::MacAddress;
use std::net::Ipv4Addr;

/// Bytes of a frame with a packet of ARP.
pub(in crate::stack) const ARP_FRAME_LEN: usize = super::ETHERNET_HEADER_LEN + 28;

/// The fields of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) struct ArpPacket {
    /// Whether it is a question; if not, it is an answer.
    pub(in crate::stack) is_request: bool,
    pub(in crate::stack) sender_mac: MacAddress,
    /// The sender's address; unspecified in a probe for an address that its sender would like to have.
    pub(in crate::stack) sender: Ipv4Addr,
    pub(in crate::stack) target_mac: MacAddress,
    pub(in crate::stack) target: Ipv4Addr,
}

/// The first bytes of all ARP packets for IPv4 over Ethernet.
const ARP_PREFIX: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl ArpPacket {
    /// Reads a frame's payload.
    pub(in crate::stack) fn read(packet: &[u8]) -> Result<ArpPacket, FrameDropReason> {
        let (Some(kind), Some(operation)) = (packet.get(..6), super::u16_at(packet, 6)) else {
            return Err(FrameDropReason::Short);
        };
        let (Some(sender_mac), Some(sender), Some(target_mac), Some(target)) =
            (mac_at(packet, 8), ipv4_at(packet, 14), mac_at(packet, 18), ipv4_at(packet, 24))
        else {
            return Err(FrameDropReason::Short);
        };
        if kind != ARP_PREFIX || !matches!(operation, 1 | 2) || !sender_mac.is_unicast() {
            return Err(FrameDropReason::Arp);
        }
        Ok(ArpPacket { is_request: operation == 1, sender_mac, sender, target_mac, target })
    }

    /// Returns a frame with this packet, to `to`.
    pub(in crate::stack) fn frame(&self, to: MacAddress) -> [u8; ARP_FRAME_LEN] {
        let mut frame = [0; ARP_FRAME_LEN];
        let ethernet = EthernetHeader { to, from: self.sender_mac, ethertype: ethertype::ARP };
        frame[..14].copy_from_slice(&ethernet.bytes());
        frame[14..20].copy_from_slice(&ARP_PREFIX);
        frame[21] = if self.is_request { 1 } else { 2 };
        frame[22..28].copy_from_slice(&self.sender_mac.0);
        frame[28..32].copy_from_slice(&self.sender.octets());
        frame[32..38].copy_from_slice(&self.target_mac.0);
        frame[38..42].copy_from_slice(&self.target.octets());
        frame
    }
}

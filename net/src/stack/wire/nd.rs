//! Neighbour discovery of IPv6: questions for an address, and the groups that they are sent to.

use super::checksum::InternetChecksum;
use super::icmp::FrameRoute;
use super::{
    ETHERNET_HEADER_LEN, EthernetHeader, FrameDropReason, IPV6_HEADER_LEN, ethertype, ip, ipv6_at, mac_at,
    multicast_mac, protocol, solicited_node_group,
};
use crate::stack::MacAddress;
use std::net::{IpAddr, Ipv6Addr};

/// The contents of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack) enum NeighbourDiscovery {
    /// A question for the owner of `target`, with the asker's Ethernet address, if given.
    Solicitation { target: Ipv6Addr, mac: Option<MacAddress> },
    /// `target` is at `mac`, as an answer or as an announcement.
    Advertisement { target: Ipv6Addr, mac: Option<MacAddress>, solicited: bool },
}

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// The number of options in one message that are read.
const MAX_OPTIONS: usize = 16;

/// Reads a message: its type, and its body behind the checksum. Router messages are ignored: the operator sets the
/// routes.
pub(in crate::stack) fn read(
    kind: u8,
    body: &[u8],
    from: Ipv6Addr,
    to: Ipv6Addr,
) -> Result<NeighbourDiscovery, FrameDropReason> {
    if !matches!(kind, SOLICITATION | ADVERTISEMENT) {
        return Err(FrameDropReason::Ignored);
    }
    let (Some(flags), Some(target), Some(options)) = (body.first(), ipv6_at(body, 4), body.get(20..)) else {
        return Err(FrameDropReason::Discovery);
    };
    if target.is_multicast() {
        return Err(FrameDropReason::Discovery);
    }
    if kind == SOLICITATION {
        let mac = find_option(options, SOURCE_OPTION)?;
        // A host without an address asks the group, and cannot be answered alone.
        if from.is_unspecified() && (mac.is_some() || to != solicited_node_group(target)) {
            return Err(FrameDropReason::Discovery);
        }
        return Ok(NeighbourDiscovery::Solicitation { target, mac });
    }
    let solicited = flags & SOLICITED != 0;
    if (solicited && to.is_multicast()) || from.is_unspecified() {
        return Err(FrameDropReason::Discovery);
    }
    Ok(NeighbourDiscovery::Advertisement { target, mac: find_option(options, TARGET_OPTION)?, solicited })
}

/// Returns the Ethernet address in an option of this kind.
fn find_option(mut options: &[u8], wanted: u8) -> Result<Option<MacAddress>, FrameDropReason> {
    let mut found = None;
    for _ in 0..MAX_OPTIONS {
        let Some(kind) = options.first() else { return Ok(found) };
        let len = usize::from(*options.get(1).ok_or(FrameDropReason::Discovery)?) * 8;
        if len == 0 || len > options.len() {
            return Err(FrameDropReason::Discovery);
        }
        if *kind == wanted && found.is_none() {
            found = mac_at(options, 2).filter(|mac| mac.is_unicast());
            if found.is_none() {
                return Err(FrameDropReason::Discovery);
            }
        }
        options = options.get(len..).unwrap_or_default();
    }
    if options.is_empty() { Ok(found) } else { Err(FrameDropReason::Discovery) }
}

/// Writes the question for `target`: to the host that had it, or else to the group. `from` may be unspecified, to find
/// out whether an address is free.
pub(in crate::stack) fn write_solicitation(
    mac: MacAddress,
    from: Ipv6Addr,
    target: Ipv6Addr,
    known: Option<MacAddress>,
    frame: &mut Vec<u8>,
) {
    let (to_mac, to) = match known {
        Some(known) => (known, target),
        None => (multicast_mac(solicited_node_group(target)), solicited_node_group(target)),
    };
    let route = FrameRoute { macs: (mac, to_mac), from: from.into(), to: to.into() };
    let source = link_option(SOURCE_OPTION, mac);
    let source = if from.is_unspecified() { &[][..] } else { &source[..] };
    route.write(SOLICITATION, 0, &[&[0; 4], &target.octets(), source], frame);
}

/// Writes that `target` is at `mac`, to the asker or to all hosts.
pub(in crate::stack) fn write_advertisement(
    mac: MacAddress,
    target: Ipv6Addr,
    to_mac: MacAddress,
    to: Ipv6Addr,
    frame: &mut Vec<u8>,
) {
    let flags = if to.is_multicast() { OVERRIDE } else { OVERRIDE | SOLICITED };
    let route = FrameRoute { macs: (mac, to_mac), from: target.into(), to: to.into() };
    route.write(ADVERTISEMENT, 0, &[&[flags, 0, 0, 0], &target.octets(), &link_option(TARGET_OPTION, mac)], frame);
}

fn link_option(kind: u8, mac: MacAddress) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac.0;
    [kind, 1, a, b, c, d, e, f]
}

/// The group of the routers that keep the lists of each group's listeners.
const LISTENER_REPORTS: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 0x16);

/// Writes a report (MLDv2) of the joined groups, for switches that pass a group's frames to its listeners alone.
pub(in crate::stack) fn write_group_report(mac: MacAddress, from: Ipv6Addr, groups: &[Ipv6Addr], frame: &mut Vec<u8>) {
    const REPORT: u8 = 143;
    /// "Excludes no sender".
    const TO_ALL: [u8; 4] = [4, 0, 0, 0];
    /// Hop-by-hop options: for routers to look at, and padding.
    const ROUTER_ALERT: [u8; 8] = [protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0];
    let mut message = vec![REPORT, 0, 0, 0, 0, 0, 0, groups.len() as u8];
    for group in groups {
        message.extend_from_slice(&TO_ALL);
        message.extend_from_slice(&group.octets());
    }
    let mut sum =
        InternetChecksum::pseudo_header(from.into(), LISTENER_REPORTS.into(), protocol::ICMPV6, message.len());
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    let ethernet =
        EthernetHeader { from: mac, to: multicast_mac(LISTENER_REPORTS), ethertype: ethertype::IPV6_HEADER_LEN };
    let mut header = [0; ETHERNET_HEADER_LEN + IPV6_HEADER_LEN];
    header[..ETHERNET_HEADER_LEN].copy_from_slice(&ethernet.bytes());
    let (len, out) = (ROUTER_ALERT.len() + message.len(), &mut header[ETHERNET_HEADER_LEN..]);
    ip::write(out, IpAddr::V6(from), IpAddr::V6(LISTENER_REPORTS), protocol::HOP_BY_HOP, len, false);
    // One hop: a report is for this link.
    header[ETHERNET_HEADER_LEN + 7] = 1;
    frame.clear();
    for part in [&header[..], &ROUTER_ALERT, &message] {
        frame.extend_from_slice(part);
    }
}

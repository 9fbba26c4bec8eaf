//! Handling of received frames.

use super::neighbours::NeighbourEvidence;
use super::path_mtu::{QuotedPacket, min_mtu};
use super::wire::arp::ArpPacket;
use super::wire::icmp::{self, FrameRoute, IcmpMessage};
use super::wire::ip::{self, IpPacket};
use super::wire::nd::{self, NeighbourDiscovery};
use super::wire::{
    ALL_NODES, EthernetHeader, FrameDropReason, ethertype, multicast_mac, protocol, solicited_node_group, udp,
};
use super::worker::StackWorker;
use super::{MacAddress, RxFrame};
use crate::driver::Burst;
use crate::limits::{ADDRESS_DEFENCE_US, GRO_SEGMENTS, GROUP_REPORT_US, REDUCED_PATHS_PER_S};
use crate::rate_limiter::RateLimit;
use crate::seal::is_sealed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl StackWorker {
    /// Takes a frame: puts its datagram into `burst`, or has it answered, or counts the reason why it was dropped.
    #[inline]
    pub(super) fn input(&mut self, now_us: u64, frame: &RxFrame<'_>, burst: &mut Burst) {
        self.counters.frames_in += 1;
        if let Err(why) = self.take(now_us, frame, burst) {
            self.counters.refuse(why);
        }
    }

    #[inline]
    fn take(&mut self, now_us: u64, frame: &RxFrame<'_>, burst: &mut Burst) -> Result<(), FrameDropReason> {
        let (ethernet, bytes) = EthernetHeader::read(frame.bytes)?;
        if frame.vlan || ethertype::VLAN.contains(&ethernet.ethertype) {
            return Err(FrameDropReason::Vlan);
        }
        let mac = self.interface.mac;
        if !ethernet.from.is_unicast() || ethernet.from == mac || (ethernet.to != mac && !ethernet.to.is_group()) {
            return Err(FrameDropReason::EthernetAddress);
        }
        match ethernet.ethertype {
            ethertype::IPV4_HEADER_LEN if self.interface.v4.is_some() => {
                let packet = ip::read_ipv4(bytes, frame.ip)?;
                self.packet(now_us, frame, &ethernet, &packet, burst)
            }
            ethertype::IPV6_HEADER_LEN if self.interface.v6.is_some() => {
                let packet = ip::read_ipv6(bytes)?;
                self.packet(now_us, frame, &ethernet, &packet, burst)
            }
            ethertype::ARP if self.interface.v4.is_some() && !self.interface.options.isolated => {
                self.arp(now_us, &ethernet, &ArpPacket::read(bytes)?)
            }
            _ => Err(FrameDropReason::EtherType),
        }
    }

    #[inline]
    fn packet(
        &mut self,
        now_us: u64,
        frame: &RxFrame<'_>,
        ethernet: &EthernetHeader,
        packet: &IpPacket<'_>,
        burst: &mut Burst,
    ) -> Result<(), FrameDropReason> {
        if packet.protocol == protocol::UDP_HEADER_LEN {
            // A datagram for one host that is sent to an Ethernet group can only be meant to get round a filter.
            if !self.interface.serves(packet.to) || ethernet.to.is_group() {
                return Err(FrameDropReason::IpDestination);
            }
            if !self.interface.may_send(packet.from) {
                return Err(FrameDropReason::IpSource);
            }
            let datagram = udp::read(packet, frame.udp)?;
            return self.datagram(now_us, ethernet, packet, &datagram, (burst, frame));
        }
        let messages = if packet.to.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
        if packet.protocol != messages || self.interface.options.isolated {
            let known = self.interface.is_local(packet.to);
            return Err(if known { FrameDropReason::Protocol } else { FrameDropReason::IpDestination });
        }
        self.message(now_us, ethernet, packet)
    }

    #[inline]
    fn datagram(
        &mut self,
        now_us: u64,
        ethernet: &EthernetHeader,
        packet: &IpPacket<'_>,
        datagram: &udp::UdpDatagram<'_>,
        (burst, frame): (&mut Burst, &RxFrame<'_>),
    ) -> Result<(), FrameDropReason> {
        if self.interface.options.isolated {
            self.interface.neighbours.seen(now_us, packet.from, ethernet.from);
        }
        let segment = frame.segment;
        if segment > 0 && datagram.payload.len().div_ceil(segment) > GRO_SEGMENTS {
            return Err(FrameDropReason::Segments);
        }
        match self.interface.worker_for(datagram.port) {
            // Port 0 cannot be answered.
            _ if datagram.from.port() == 0 => Err(FrameDropReason::Port),
            Some(worker) if worker == self.index => {
                let payload = datagram.payload;
                // A sealed datagram is decrypted in its buffer, so that buffer must not be shared.
                if payload.len() >= self.large_datagram_bytes && segment == 0 && !is_sealed(payload) {
                    let start = payload.as_ptr().addr().saturating_sub(frame.bytes.as_ptr().addr());
                    self.large = Some((datagram.from, start..start + payload.len()));
                    return Ok(());
                }
                if burst.push_segments(datagram.from, datagram.payload, segment) {
                    Ok(())
                } else {
                    Err(FrameDropReason::BufferTooSmall)
                }
            }
            Some(worker) => {
                let batch = self.handover.get_mut(worker).ok_or(FrameDropReason::HandoverFull)?;
                self.has_handover = true;
                let segment = if segment == 0 { datagram.payload.len().max(1) } else { segment };
                // An empty payload is a datagram, too.
                let empty = datagram.payload.is_empty().then_some(&[][..]);
                for datagram_payload in datagram.payload.chunks(segment).chain(empty) {
                    if !batch.push(datagram.from, datagram_payload) {
                        return Err(FrameDropReason::HandoverFull);
                    }
                    self.counters.handed_over += 1;
                }
                Ok(())
            }
            None => {
                let options = &self.interface.options;
                let limit = RateLimit::per_second(options.closed_ports_per_s);
                if options.answer_closed_ports && !options.isolated && self.closed.admit(&limit, now_us) {
                    let route = self.reply_route(ethernet, packet);
                    let sent = self.send_frame(|frame| route.write_closed_port(packet.whole, frame));
                    self.counters.closed_answered += u64::from(sent);
                }
                Err(FrameDropReason::Port)
            }
        }
    }

    /// Returns the route back to the sender, without asking for its Ethernet address.
    fn reply_route(&self, ethernet: &EthernetHeader, packet: &IpPacket<'_>) -> FrameRoute {
        FrameRoute { macs: (self.interface.mac, ethernet.from), from: packet.to, to: packet.from }
    }

    fn message(
        &mut self,
        now_us: u64,
        ethernet: &EthernetHeader,
        packet: &IpPacket<'_>,
    ) -> Result<(), FrameDropReason> {
        let mine = self.interface.is_local(packet.to);
        let to_group = match packet.to {
            IpAddr::V6(to) => {
                to == ALL_NODES || self.interface.ipv6_addresses().any(|own| to == solicited_node_group(own))
            }
            IpAddr::V4(_) => false,
        };
        if !mine && !to_group {
            return Err(FrameDropReason::IpDestination);
        }
        let message = icmp::read(packet)?;
        // A host without an address yet may ask whether one is free.
        let nameless = packet.from == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        // A host that claims this interface's address sends from it.
        let excepted =
            matches!(message, IcmpMessage::Discovery(..)) && (nameless || self.interface.is_local(packet.from));
        if !excepted && !self.interface.may_send(packet.from) {
            return Err(FrameDropReason::IpSource);
        }
        match message {
            IcmpMessage::Echo(body) => {
                // An echo to a group would be answered by all members. The answer to an echo in a larger packet would
                // not fit a packet of this interface.
                if !mine || ethernet.to.is_group() || packet.whole.len() > self.interface.mtu {
                    return Err(FrameDropReason::Ignored);
                }
                let limit = RateLimit::per_second(self.interface.options.echoes_per_s);
                if !self.echoes.admit(&limit, now_us) {
                    return Err(FrameDropReason::RateLimited);
                }
                let route = self.reply_route(ethernet, packet);
                if !self.send_frame(|frame| route.write_echo_reply(body, frame)) {
                    return Err(FrameDropReason::RateLimited);
                }
                self.counters.echoes_answered += 1;
            }
            IcmpMessage::TooBig(mtu, quote) if mine && !ethernet.to.is_group() => self.too_big(now_us, mtu, &quote)?,
            IcmpMessage::TooBig(..) => return Err(FrameDropReason::Ignored),
            IcmpMessage::GroupQuery => {
                if !self.report_limiter.admit(&RateLimit::once_in_us(GROUP_REPORT_US), now_us) {
                    return Err(FrameDropReason::RateLimited);
                }
                self.report_groups();
            }
            IcmpMessage::Discovery(kind, body) => {
                let (IpAddr::V6(from), IpAddr::V6(to)) = (packet.from, packet.to) else {
                    return Err(FrameDropReason::Discovery);
                };
                self.on_discovery(now_us, ethernet, from, nd::read(kind, body, from, to)?)?;
            }
        }
        Ok(())
    }

    /// Handles a router's message that a packet was too large for a link behind it.
    #[cold]
    fn too_big(&mut self, now_us: u64, mtu: u32, quote: &QuotedPacket) -> Result<(), FrameDropReason> {
        let interface = &self.interface;
        let ours = interface.serves(quote.from.ip()) && interface.worker_for(quote.from.port()).is_some();
        let least = min_mtu(quote.to.ip());
        let mtu = if mtu == 0 { least } else { mtu as usize };
        // Rejects a message that lowers nothing, or that goes below what every path bears.
        if !ours || !(least..quote.len).contains(&mtu) {
            return Err(FrameDropReason::Ignored);
        }
        let path_mtu_limiters = &mut self.path_mtu_limiters;
        let limit = RateLimit::per_second(REDUCED_PATHS_PER_S);
        let may = |group: usize| path_mtu_limiters.get_mut(group).is_some_and(|rate| rate.admit(&limit, now_us));
        interface.path_mtus.learn(now_us, quote, mtu as u16, may)?;
        self.counters.too_big_received += 1;
        Ok(())
    }

    fn on_discovery(
        &mut self,
        now_us: u64,
        ethernet: &EthernetHeader,
        from: Ipv6Addr,
        message: NeighbourDiscovery,
    ) -> Result<(), FrameDropReason> {
        let own_mac = self.interface.mac;
        if self.interface.is_local(from.into()) {
            // Another host sends from this address.
            self.conflict();
            self.defend_address(now_us);
            return Ok(());
        }
        match message {
            // A solicitation with this interface's own Ethernet address would make it send to itself.
            NeighbourDiscovery::Solicitation { mac: Some(mac), .. } if mac == own_mac => {
                Err(FrameDropReason::Discovery)
            }
            NeighbourDiscovery::Solicitation { target, .. } if !self.interface.is_local(target.into()) => {
                Err(FrameDropReason::Ignored)
            }
            NeighbourDiscovery::Solicitation { target, .. } if from.is_unspecified() => {
                // Another host would like to have the address.
                let group = multicast_mac(ALL_NODES);
                self.conflict();
                self.answer(|frame| nd::write_advertisement(own_mac, target, group, ALL_NODES, frame));
                Ok(())
            }
            NeighbourDiscovery::Solicitation { target, mac } => {
                if let Some(mac) = mac {
                    self.learn_neighbour(now_us, from.into(), mac, NeighbourEvidence::Request);
                }
                let to_mac = mac.unwrap_or(ethernet.from);
                self.answer(|frame| nd::write_advertisement(own_mac, target, to_mac, from, frame));
                Ok(())
            }
            NeighbourDiscovery::Advertisement { target, .. } if self.interface.is_local(target.into()) => {
                self.conflict();
                self.defend_address(now_us);
                Ok(())
            }
            NeighbourDiscovery::Advertisement { target, mac, solicited } => {
                let how = if solicited && ethernet.to == own_mac {
                    NeighbourEvidence::Reply
                } else {
                    NeighbourEvidence::Announcement
                };
                match mac {
                    Some(mac) => self.learn_neighbour(now_us, target.into(), mac, how),
                    // The answer to a question that was sent to one host may leave its address out.
                    None if how == NeighbourEvidence::Reply => {
                        self.learn_neighbour(now_us, target.into(), ethernet.from, how)
                    }
                    None => {}
                }
                Ok(())
            }
        }
    }

    fn arp(&mut self, now_us: u64, ethernet: &EthernetHeader, arp: &ArpPacket) -> Result<(), FrameDropReason> {
        let own_mac = self.interface.mac;
        let (sender, target) = (IpAddr::V4(arp.sender), IpAddr::V4(arp.target));
        let is_ours = self.interface.serves(target);
        // A packet with this interface's own Ethernet address would make it send to itself.
        if arp.sender_mac == own_mac {
            return Err(FrameDropReason::Arp);
        }
        if self.interface.serves(sender) {
            self.conflict();
            self.defend_address(now_us);
            return Ok(());
        }
        if arp.sender == Ipv4Addr::UNSPECIFIED {
            if !(arp.is_request && is_ours) {
                return Err(FrameDropReason::Ignored);
            }
            // Another host would like to have the address.
            self.conflict();
        } else {
            let near = self.interface.v4.is_some_and(|network| network.reaches(sender));
            if !near || !self.interface.may_send(sender) {
                return Err(FrameDropReason::Arp);
            }
            let how = match (arp.is_request, is_ours) {
                (true, true) => NeighbourEvidence::Request,
                (false, true) if ethernet.to == own_mac => NeighbourEvidence::Reply,
                // Two other hosts talk to each other.
                (true, false) if sender != target => return Err(FrameDropReason::Ignored),
                _ => NeighbourEvidence::Announcement,
            };
            self.learn_neighbour(now_us, sender, arp.sender_mac, how);
        }
        if arp.is_request && is_ours {
            let answer = ArpPacket {
                is_request: false,
                sender_mac: own_mac,
                sender: arp.target,
                target_mac: arp.sender_mac,
                target: arp.sender,
            };
            self.answer(|frame| frame.extend_from_slice(&answer.frame(arp.sender_mac)));
        }
        Ok(())
    }

    fn answer(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let sent = self.send_frame(write);
        self.counters.questions_answered += u64::from(sent);
    }

    /// Records a neighbour's address.
    fn learn_neighbour(&mut self, now_us: u64, ip: IpAddr, mac: MacAddress, how: NeighbourEvidence) {
        let near = self.interface.network_for(ip).is_some_and(|network| network.reaches(ip));
        if !near || mac == self.interface.mac || !self.interface.may_send(ip) {
            return;
        }
        let before = self.interface.neighbours.generation();
        self.interface.neighbours.observe(now_us, ip, mac, how);
        if self.interface.neighbours.generation() != before {
            self.interface.inboxes.iter().for_each(super::handover::HandoverInbox::notify_neighbour_change);
        }
    }

    fn conflict(&self) {
        self.interface.conflicts.fetch_add(1, Relaxed);
    }

    /// Announces the addresses again, at a bounded rate.
    fn defend_address(&mut self, now_us: u64) {
        let interface = Arc::clone(&self.interface);
        let last_us = interface.defended_us.load(Relaxed);
        let due = last_us == 0 || now_us.saturating_sub(last_us) >= ADDRESS_DEFENCE_US;
        if due && interface.defended_us.compare_exchange(last_us, now_us, Relaxed, Relaxed).is_ok() {
            self.announce();
        }
    }
}

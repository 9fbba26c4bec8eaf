//! One worker's part of the stack: frames in, datagrams and answers out. The caller passes the time in, and moves the
//! frames between this and the port.

use super::counters::{SendDropReason, StackCounters};
use super::handover::HandoverBatch;
use super::interface::StackInterface;
use super::neighbours::{NeighbourLookup, ProbeAction};
use super::pending::{FrameQueue, UnresolvedQueue};
use super::wire::udp::DatagramHeaders;
use super::wire::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, MAX_HEADERS_LEN, UDP_HEADER_LEN};
use super::wire::{arp::ArpPacket, nd};
use super::{MacAddress, PortOffloads};
use crate::limits::{BURST, REDUCED_PATH_GROUPS};
use crate::r2p2::PeerAddr;
use crate::rate_limiter::RateLimiter;
use arrayvec::ArrayVec;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

/// The stack of one worker. See the module.
#[derive(Debug)]
pub(super) struct StackWorker {
    pub(super) interface: Arc<StackInterface>,
    pub(super) index: usize,
    pub(super) offload: PortOffloads,
    pub(super) counters: StackCounters,
    /// The number of this worker's datagrams that were sent after they had waited, and their bytes.
    pub(super) late: (u64, u64),
    pub(super) queue: FrameQueue,
    pub(super) unresolved: UnresolvedQueue,
    /// Datagrams that came for other workers in this turn.
    pub(super) handover: Box<[HandoverBatch]>,
    /// Whether a batch is not empty. A client's device has many connections, whose batches are not searched each time.
    pub(super) has_handover: bool,
    pub(super) echoes: RateLimiter,
    pub(super) closed: RateLimiter,
    pub(super) report_limiter: RateLimiter,
    /// The limiters of path MTU messages, one for each group of networks.
    pub(super) path_mtu_limiters: Box<[RateLimiter]>,
    /// Bytes of a datagram from which on it is large: its buffer is worth taking out of the port.
    pub(super) large_datagram_bytes: usize,
    /// The sender of a large datagram that has just come, and where it stands in its frame.
    pub(super) large: Option<(PeerAddr, Range<usize>)>,
}

/// The result of routing a datagram.
#[derive(Debug)]
pub(super) enum RouteOutcome {
    /// It is sent behind the headers that were written.
    Frame,
    /// It waits for its neighbour to be asked, or to answer.
    AwaitNeighbour(IpAddr),
    /// It is dropped; the caller counts the reason.
    Dropped(SendDropReason),
}

impl StackWorker {
    pub(super) fn new(interface: Arc<StackInterface>, index: usize, offload: PortOffloads) -> StackWorker {
        let options = &interface.options;
        StackWorker {
            index,
            offload,
            counters: StackCounters::default(),
            late: (0, 0),
            queue: FrameQueue::default(),
            unresolved: UnresolvedQueue::default(),
            handover: (0..options.workers).map(|_| HandoverBatch::default()).collect(),
            has_handover: false,
            echoes: RateLimiter::default(),
            closed: RateLimiter::default(),
            report_limiter: RateLimiter::default(),
            path_mtu_limiters: (0..REDUCED_PATH_GROUPS).map(|_| RateLimiter::default()).collect(),
            large_datagram_bytes: usize::MAX,
            large: None,
            interface,
        }
    }

    /// Appends a frame of the stack itself to the queue. Returns false if there is no room.
    pub(super) fn send_frame(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        if !self.queue.has_room() {
            self.counters.frames_lost += 1;
            return false;
        }
        self.counters.frames_own += 1;
        self.queue.push(write);
        true
    }

    /// Appends a question to the queue. The caller has checked that there is room.
    fn queue_probe(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.counters.frames_own += 1;
        self.queue.push(write);
    }

    /// Announces this interface's addresses to all hosts, and its groups to switches.
    pub(super) fn announce(&mut self) {
        let interface = Arc::clone(&self.interface);
        if interface.options.isolated {
            return;
        }
        let mac = interface.mac;
        if let Some(IpAddr::V4(address)) = interface.v4.map(|network| network.address) {
            let arp = ArpPacket {
                is_request: true,
                sender_mac: mac,
                sender: address,
                target_mac: MacAddress::ZERO,
                target: address,
            };
            self.send_frame(|frame| frame.extend_from_slice(&arp.frame(MacAddress::BROADCAST)));
        }
        for address in interface.ipv6_addresses() {
            let (to, group) = (super::wire::ALL_NODES, super::wire::multicast_mac(super::wire::ALL_NODES));
            self.send_frame(|frame| nd::write_advertisement(mac, address, group, to, frame));
        }
        self.report_groups();
    }

    /// Reports to switches and routers which groups the interface listens to.
    pub(super) fn report_groups(&mut self) {
        let interface = Arc::clone(&self.interface);
        if let Some(from) = interface.link_local {
            self.send_frame(|frame| nd::write_group_report(interface.mac, from, &interface.ipv6_groups(), frame));
        }
    }

    /// Asks for a neighbour, if it is time to. A question that there is no room for does not count: the next datagram
    /// for this neighbour asks again.
    fn probe_neighbour(&mut self, now_us: u64, hop: IpAddr) {
        if !self.queue.has_room_for_probe() {
            return;
        }
        let interface = Arc::clone(&self.interface);
        let known = match interface.neighbours.probe(now_us, hop) {
            ProbeAction::Skip => return,
            ProbeAction::Broadcast => None,
            ProbeAction::Unicast(mac) => Some(mac),
        };
        let mac = interface.mac;
        match (hop, interface.network_for(hop).map(|network| network.address)) {
            (IpAddr::V4(target), Some(IpAddr::V4(own))) => {
                let arp =
                    ArpPacket { is_request: true, sender_mac: mac, sender: own, target_mac: MacAddress::ZERO, target };
                self.queue_probe(|frame| frame.extend_from_slice(&arp.frame(known.unwrap_or(MacAddress::BROADCAST))));
            }
            (IpAddr::V6(target), Some(IpAddr::V6(own))) => {
                let from = self.probe_source(target, own);
                self.queue_probe(|frame| nd::write_solicitation(mac, from, target, known, frame));
            }
            _ => {}
        }
    }

    /// Returns the address from which a neighbour is asked: of the same scope as its own.
    fn probe_source(&self, target: Ipv6Addr, own: Ipv6Addr) -> Ipv6Addr {
        if target.is_unicast_link_local() { self.interface.link_local.unwrap_or(own) } else { own }
    }

    /// Appends the headers for a datagram to those of a burst, or returns another outcome. It is called again for a
    /// datagram that the port had no room for. `last` is the peer that was found last at this time: most datagrams that
    /// leave together go to one.
    #[inline]
    pub(super) fn route(
        &mut self,
        now_us: u64,
        peer: PeerAddr,
        payload: [&[u8]; 2],
        last: &mut Option<(PeerAddr, MacAddress)>,
        burst: &mut ArrayVec<DatagramHeaders, BURST>,
    ) -> RouteOutcome {
        let header = if peer.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
        if header + UDP_HEADER_LEN + payload.map(<[u8]>::len).iter().sum::<usize>() > self.interface.mtu {
            return RouteOutcome::Dropped(SendDropReason::TooLarge);
        }
        let mac = match last {
            Some((last, mac)) if *last == peer => *mac,
            _ => match self.resolve(now_us, peer) {
                Ok(mac) => {
                    *last = Some((peer, mac));
                    mac
                }
                Err(other) => return other,
            },
        };
        match self.headers(mac, peer, payload, self.offload) {
            Some(headers) => {
                burst.push(headers);
                RouteOutcome::Frame
            }
            None => RouteOutcome::Dropped(SendDropReason::NoRoute),
        }
    }

    /// Returns the Ethernet address of a peer's next hop, or another outcome for the datagram.
    fn resolve(&mut self, now_us: u64, peer: PeerAddr) -> Result<MacAddress, RouteOutcome> {
        let Some(hop) = self.interface.next_hop(peer.ip()).filter(|_| peer.port() != 0) else {
            return Err(RouteOutcome::Dropped(SendDropReason::NoRoute));
        };
        if self.interface.options.isolated {
            let seen = self.interface.neighbours.source_mac(hop);
            return seen.ok_or(RouteOutcome::Dropped(SendDropReason::Unresolved));
        }
        match self.interface.neighbours.find(now_us, hop) {
            NeighbourLookup::Reachable(mac) => Ok(mac),
            NeighbourLookup::Stale(mac) => {
                self.probe_neighbour(now_us, hop);
                Ok(mac)
            }
            NeighbourLookup::Resolving(_) | NeighbourLookup::Unknown => Err(RouteOutcome::AwaitNeighbour(hop)),
            NeighbourLookup::Unreachable => Err(RouteOutcome::Dropped(SendDropReason::Unresolved)),
        }
    }

    #[inline]
    fn headers(
        &self,
        mac: MacAddress,
        peer: PeerAddr,
        payload: [&[u8]; 2],
        offload: PortOffloads,
    ) -> Option<DatagramHeaders> {
        let interface = &self.interface;
        let header = if peer.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
        interface.path_mtus.note(peer, header + UDP_HEADER_LEN + payload.map(<[u8]>::len).iter().sum::<usize>());
        let from = interface.network_for(peer.ip())?.address;
        let from = SocketAddr::new(from, interface.options.port.wrapping_add(self.index as u16));
        DatagramHeaders::new((interface.mac, mac), from, peer, payload, offload)
    }

    /// Queues a datagram until its neighbour is known.
    pub(super) fn queue_unresolved(&mut self, now_us: u64, hop: IpAddr, peer: PeerAddr, payload: [&[u8]; 2]) {
        // It counts as waiting before the question is sent, so that no answer is missed.
        if self.unresolved.is_empty() {
            self.unresolved.seen = self.interface.neighbours.generation();
            self.unresolved.due_us = u64::MAX;
            self.set_awaits_neighbours(true);
        }
        if !self.unresolved.push(hop, peer, payload) {
            // Other datagrams fill the queue; the next one may find its neighbour all the same.
            self.counters.unresolved += 1;
            self.probe_neighbour(now_us, hop);
            return;
        }
        self.counters.awaiting_neighbour += 1;
        self.probe_neighbour(now_us, hop);
        let due_us = match self.interface.neighbours.find(now_us, hop) {
            NeighbourLookup::Resolving(until_us) => until_us,
            _ => now_us,
        };
        self.unresolved.due_us = self.unresolved.due_us.min(due_us);
    }

    fn set_awaits_neighbours(&self, curious: bool) {
        if let Some(inbox) = self.interface.inboxes.get(self.index) {
            inbox.set_awaits_neighbours(curious);
        }
    }

    /// Sends the waiting datagrams that can be sent, asks again for the rest, and gives up those whose neighbour is
    /// silent.
    #[inline]
    pub(super) fn release(&mut self, now_us: u64) {
        if self.unresolved.is_empty() {
            return;
        }
        let generation = self.interface.neighbours.generation();
        if generation == self.unresolved.seen && now_us < self.unresolved.due_us
            || !self.queue.has_room_for_unresolved()
        {
            return;
        }
        self.retry_unresolved_now(now_us, generation);
    }

    #[cold]
    fn retry_unresolved_now(&mut self, now_us: u64, generation: u64) {
        self.unresolved.seen = generation;
        self.unresolved.due_us = u64::MAX;
        for waiting in self.unresolved.take() {
            let mut found = self.interface.neighbours.find(now_us, waiting.hop);
            if found == NeighbourLookup::Unknown {
                self.probe_neighbour(now_us, waiting.hop);
                found = self.interface.neighbours.find(now_us, waiting.hop);
            }
            match found {
                NeighbourLookup::Reachable(mac) | NeighbourLookup::Stale(mac) => {
                    if matches!(found, NeighbourLookup::Stale(_)) {
                        self.probe_neighbour(now_us, waiting.hop);
                    }
                    self.send_resolved(mac, waiting.peer, &waiting.payload);
                }
                NeighbourLookup::Resolving(until_us) => {
                    self.unresolved.due_us = self.unresolved.due_us.min(until_us);
                    self.unresolved.put_back(waiting);
                }
                // There was no room for the question: the port is full.
                NeighbourLookup::Unknown if !self.queue.has_room_for_probe() => {
                    self.unresolved.due_us = now_us;
                    self.unresolved.put_back(waiting);
                }
                // There was no room in the table, or the neighbour is silent.
                NeighbourLookup::Unreachable | NeighbourLookup::Unknown => self.counters.unresolved += 1,
            }
        }
        self.set_awaits_neighbours(!self.unresolved.is_empty());
    }

    fn send_resolved(&mut self, mac: MacAddress, peer: PeerAddr, payload: &[u8]) {
        let Some(headers) = self.headers(mac, peer, [payload, &[]], PortOffloads::default()) else { return };
        self.late.0 += 1;
        self.late.1 += payload.len() as u64;
        self.queue.push(|frame| {
            frame.reserve(MAX_HEADERS_LEN + payload.len());
            frame.extend_from_slice(headers.bytes());
            frame.extend_from_slice(payload);
        });
    }
}

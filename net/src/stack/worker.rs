//! One worker's part of the stack: frames in, datagrams and answers out. It knows the time from what it is told, and no port.

use super::counters::{StackCounters, Unsent};
use super::handover::Batch;
use super::held::{Held, Queue};
use super::interface::Interface;
use super::neighbours::{Ask, Found};
use super::wire::udp::Headers;
use super::wire::{HEADERS, IPV4, IPV6, UDP};
use super::wire::{arp::Arp, nd};
use super::{Mac, Offload};
use crate::driver::rate::Rate;
use crate::limits::{BURST, GROUP_REPORT_US, LOWERED_GROUPS, LOWERED_PER_S};
use crate::r2p2::Peer;
use arrayvec::ArrayVec;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) interface: Arc<Interface>,
    pub(super) index: usize,
    pub(super) offload: Offload,
    pub(super) counters: StackCounters,
    /// Datagrams of this worker that were sent after they had waited, and their bytes.
    pub(super) late: (u64, u64),
    pub(super) queue: Queue,
    pub(super) held: Held,
    /// What came for other workers in this turn.
    pub(super) away: Box<[Batch]>,
    /// There is something in it: a client's device has many connections, whose batches are not looked through each time.
    pub(super) some_away: bool,
    pub(super) echoes: Rate,
    pub(super) closed: Rate,
    pub(super) reports: Rate,
    /// Of each group of networks.
    pub(super) lowered: Box<[Rate]>,
    /// Bytes of a datagram from which on it is large: its buffer is worth taking out of the port.
    pub(super) large_from: usize,
    /// The sender of a large datagram that has just come, and where it stands in its frame.
    pub(super) large: Option<(Peer, Range<usize>)>,
}

/// What becomes of a datagram to be sent.
#[derive(Debug)]
pub(super) enum Out {
    /// It is sent behind the headers that were written.
    Frame,
    /// It waits for its neighbour to be asked, or to answer.
    Hold(IpAddr),
    /// It is dropped: who is done with it counts why.
    Dropped(Unsent),
}

impl Worker {
    pub(super) fn new(interface: Arc<Interface>, index: usize, offload: Offload) -> Worker {
        let options = &interface.options;
        Worker {
            index,
            offload,
            counters: StackCounters::default(),
            late: (0, 0),
            queue: Queue::default(),
            held: Held::default(),
            away: (0..options.workers).map(|_| Batch::default()).collect(),
            some_away: false,
            echoes: Rate::new(options.echoes_per_s),
            closed: Rate::new(options.closed_ports_per_s),
            reports: Rate::once_in(GROUP_REPORT_US),
            lowered: (0..LOWERED_GROUPS).map(|_| Rate::new(LOWERED_PER_S)).collect(),
            large_from: usize::MAX,
            large: None,
            interface,
        }
    }

    /// Puts a frame of the stack itself into the queue. False if there is no room.
    pub(super) fn say(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        if !self.queue.has_room() {
            self.counters.frames_lost += 1;
            return false;
        }
        self.counters.frames_own += 1;
        self.queue.push(write);
        true
    }

    /// Puts a question into the queue. The caller has seen that there is room.
    fn inquire(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.counters.frames_own += 1;
        self.queue.push(write);
    }

    /// Tells everybody who has this interface's addresses, and switches which groups it listens to.
    pub(super) fn announce(&mut self) {
        let interface = Arc::clone(&self.interface);
        if interface.options.isolated {
            return;
        }
        let mac = interface.mac;
        if let Some(IpAddr::V4(address)) = interface.v4.map(|network| network.address) {
            let arp = Arp { asks: true, sender_mac: mac, sender: address, target_mac: Mac::ZERO, target: address };
            self.say(|frame| frame.extend_from_slice(&arp.frame(Mac::BROADCAST)));
        }
        for address in interface.addresses6() {
            let (to, group) = (super::wire::ALL_NODES, super::wire::group_of(super::wire::ALL_NODES));
            self.say(|frame| nd::write_advertisement(mac, address, group, to, frame));
        }
        self.report_groups();
    }

    /// Tells switches and routers which groups are listened to.
    pub(super) fn report_groups(&mut self) {
        let interface = Arc::clone(&self.interface);
        if let Some(from) = interface.link_local {
            self.say(|frame| nd::write_groups(interface.mac, from, &interface.groups6(), frame));
        }
    }

    /// Asks for a neighbour, if it is time to. What there is no room for does not count as asked: the next one who wants it asks again.
    fn ask(&mut self, now_us: u64, hop: IpAddr) {
        if !self.queue.has_room_for_question() {
            return;
        }
        let interface = Arc::clone(&self.interface);
        let known = match interface.neighbours.ask(now_us, hop) {
            Ask::Nothing => return,
            Ask::Everybody => None,
            Ask::One(mac) => Some(mac),
        };
        let mac = interface.mac;
        match (hop, interface.network_of(hop).map(|network| network.address)) {
            (IpAddr::V4(target), Some(IpAddr::V4(own))) => {
                let arp = Arp { asks: true, sender_mac: mac, sender: own, target_mac: Mac::ZERO, target };
                self.inquire(|frame| frame.extend_from_slice(&arp.frame(known.unwrap_or(Mac::BROADCAST))));
            }
            (IpAddr::V6(target), Some(IpAddr::V6(own))) => {
                let from = self.source6(target, own);
                self.inquire(|frame| nd::write_solicitation(mac, from, target, known, frame));
            }
            _ => {}
        }
    }

    /// The address from which a neighbour is asked: of the same kind as its own.
    fn source6(&self, target: Ipv6Addr, own: Ipv6Addr) -> Ipv6Addr {
        if target.is_unicast_link_local() { self.interface.link_local.unwrap_or(own) } else { own }
    }

    /// Appends the headers for a datagram to those of a burst, or tells what else becomes of it. To be called again for one that the port had no
    /// room for. `last` is the peer that was found last at this time: most datagrams that leave together go to one.
    #[inline]
    pub(super) fn route(
        &mut self,
        now_us: u64,
        peer: Peer,
        payload: [&[u8]; 2],
        last: &mut Option<(Peer, Mac)>,
        burst: &mut ArrayVec<Headers, BURST>,
    ) -> Out {
        let header = if peer.is_ipv4() { IPV4 } else { IPV6 };
        if header + UDP + payload.map(<[u8]>::len).iter().sum::<usize>() > self.interface.mtu {
            return Out::Dropped(Unsent::TooLarge);
        }
        let mac = match last {
            Some((last, mac)) if *last == peer => *mac,
            _ => match self.neighbour(now_us, peer) {
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
                Out::Frame
            }
            None => Out::Dropped(Unsent::NoRoute),
        }
    }

    /// The Ethernet address on the way to a peer, or what becomes of a datagram to it.
    fn neighbour(&mut self, now_us: u64, peer: Peer) -> Result<Mac, Out> {
        let Some(hop) = self.interface.next_hop(peer.ip()).filter(|_| peer.port() != 0) else {
            return Err(Out::Dropped(Unsent::NoRoute));
        };
        if self.interface.options.isolated {
            let seen = self.interface.neighbours.seen_at(hop);
            return seen.ok_or(Out::Dropped(Unsent::Unresolved));
        }
        match self.interface.neighbours.find(now_us, hop) {
            Found::Here(mac) => Ok(mac),
            Found::Doubtful(mac) => {
                self.ask(now_us, hop);
                Ok(mac)
            }
            Found::Wait(_) | Found::Unknown => Err(Out::Hold(hop)),
            Found::Nobody => Err(Out::Dropped(Unsent::Unresolved)),
        }
    }

    #[inline]
    fn headers(&self, mac: Mac, peer: Peer, payload: [&[u8]; 2], offload: Offload) -> Option<Headers> {
        let interface = &self.interface;
        let header = if peer.is_ipv4() { IPV4 } else { IPV6 };
        interface.ways.note(peer, header + UDP + payload.map(<[u8]>::len).iter().sum::<usize>());
        let from = interface.network_of(peer.ip())?.address;
        let from = SocketAddr::new(from, interface.options.port.wrapping_add(self.index as u16));
        Headers::new((interface.mac, mac), from, peer, payload, offload)
    }

    /// Lets a datagram wait for its neighbour.
    pub(super) fn hold(&mut self, now_us: u64, hop: IpAddr, peer: Peer, payload: [&[u8]; 2]) {
        // It counts as waiting before anybody is asked, so that no answer is missed.
        if self.held.is_empty() {
            self.held.seen = self.interface.neighbours.news();
            self.held.due_us = u64::MAX;
            self.inbox_be_curious(true);
        }
        if !self.held.push(hop, peer, payload) {
            // Others fill the room; the next one may find its neighbour all the same.
            self.counters.unresolved += 1;
            self.ask(now_us, hop);
            return;
        }
        self.counters.held += 1;
        self.ask(now_us, hop);
        let due_us = match self.interface.neighbours.find(now_us, hop) {
            Found::Wait(until_us) => until_us,
            _ => now_us,
        };
        self.held.due_us = self.held.due_us.min(due_us);
    }

    fn inbox_be_curious(&self, curious: bool) {
        if let Some(inbox) = self.interface.inboxes.get(self.index) {
            inbox.be_curious(curious);
        }
    }

    /// Sends what has waited and can be sent, asks again for the rest, and gives up what nobody answers for.
    #[inline]
    pub(super) fn release(&mut self, now_us: u64) {
        if self.held.is_empty() {
            return;
        }
        let news = self.interface.neighbours.news();
        if news == self.held.seen && now_us < self.held.due_us || !self.queue.has_room_for_held() {
            return;
        }
        self.release_now(now_us, news);
    }

    #[cold]
    fn release_now(&mut self, now_us: u64, news: u64) {
        self.held.seen = news;
        self.held.due_us = u64::MAX;
        for waiting in self.held.take() {
            let mut found = self.interface.neighbours.find(now_us, waiting.hop);
            if found == Found::Unknown {
                self.ask(now_us, waiting.hop);
                found = self.interface.neighbours.find(now_us, waiting.hop);
            }
            match found {
                Found::Here(mac) | Found::Doubtful(mac) => {
                    if matches!(found, Found::Doubtful(_)) {
                        self.ask(now_us, waiting.hop);
                    }
                    self.send_late(mac, waiting.peer, &waiting.payload);
                }
                Found::Wait(until_us) => {
                    self.held.due_us = self.held.due_us.min(until_us);
                    self.held.keep(waiting);
                }
                // There was no room for the question: the port is full.
                Found::Unknown if !self.queue.has_room_for_question() => {
                    self.held.due_us = now_us;
                    self.held.keep(waiting);
                }
                // There was no room in the table, or nobody answered.
                Found::Nobody | Found::Unknown => self.counters.unresolved += 1,
            }
        }
        self.inbox_be_curious(!self.held.is_empty());
    }

    fn send_late(&mut self, mac: Mac, peer: Peer, payload: &[u8]) {
        let Some(headers) = self.headers(mac, peer, [payload, &[]], Offload::default()) else { return };
        self.late.0 += 1;
        self.late.1 += payload.len() as u64;
        self.queue.push(|frame| {
            frame.reserve(HEADERS + payload.len());
            frame.extend_from_slice(headers.bytes());
            frame.extend_from_slice(payload);
        });
    }
}

//! The size of datagrams between a client and a server: the initial one, or a larger one that the path between them has
//! shown to bear, in both directions and without fragments.
//!
//! The client sends a datagram of the size that it would like; the server sends one back that is as large; the client
//! confirms it. So neither believes what it has not seen, and a path that silently loses large datagrams costs some
//! packets. A client that waits for long asks again, and goes back to small datagrams if that is not answered.

use super::header::{LONG_HEADER_LEN, MtuProbePacket, MtuProbeStep, mtu_probe_header};
use super::{DatagramSink, PeerAddr};
use crate::limits::{
    FIRST_RTO_US, MAX_DATAGRAM_CEILING, MTU_PROBE_INTERVAL_US, MTU_PROBE_TRIES, MTU_REPROBE_MIN_US, PEER_SIZE_SETS,
    PEER_SIZES_PER_SET, ServerLimits,
};
use crate::seal::seal_overhead;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Padding of large packets about sizes.
static ZEROS: [u8; MAX_DATAGRAM_CEILING] = [0; MAX_DATAGRAM_CEILING];

/// Sends a packet about sizes that is as large as it says, or short.
pub(super) fn send_probe_packet(fields: MtuProbePacket, peer: PeerAddr, tx: &mut impl DatagramSink) {
    let fill =
        if fields.step == MtuProbeStep::Confirm { 0 } else { (fields.bytes as usize).saturating_sub(LONG_HEADER_LEN) };
    tx.send(peer, &[&mtu_probe_header(&fields), ZEROS.get(..fill).unwrap_or_default()]);
}

/// A server's table of the datagram sizes that its peers get. It is bounded; a sender of many entries pushes out its
/// own, and those of peers that share its set.
#[derive(Debug)]
pub(super) struct PeerDatagramSizes {
    of: HashMap<PeerAddr, u32>,
    /// Peers in the order in which they came, by their owners' numbers.
    sets: Vec<VecDeque<PeerAddr>>,
}

impl Default for PeerDatagramSizes {
    fn default() -> PeerDatagramSizes {
        PeerDatagramSizes { of: HashMap::new(), sets: (0..PEER_SIZE_SETS).map(|_| VecDeque::new()).collect() }
    }
}

impl PeerDatagramSizes {
    /// Returns the size that the peer has said that it gets.
    #[inline]
    fn get(&self, peer: PeerAddr) -> Option<usize> {
        self.of.get(&peer).map(|bytes| *bytes as usize)
    }

    /// Returns the size of a datagram to the peer: the one that it has said that it gets, or else the usual size, as
    /// far as its path bears that.
    #[inline]
    pub(super) fn most(&self, peer: PeerAddr, limits: &ServerLimits, tx: &mut impl DatagramSink) -> usize {
        self.get(peer).unwrap_or(limits.max_datagram - seal_overhead(peer)).min(tx.most(peer))
    }

    /// Notes that a peer of this owner gets datagrams of so many bytes; `None`: of the usual size.
    pub(super) fn note(&mut self, owner: u32, peer: PeerAddr, bytes: Option<u32>) {
        match bytes {
            Some(bytes) if self.of.insert(peer, bytes).is_none() => {
                let sets = self.sets.len() as u32;
                let Some(set) = self.sets.get_mut((owner % sets.max(1)) as usize) else { return };
                set.push_back(peer);
                if set.len() > PEER_SIZES_PER_SET
                    && let Some(oldest) = set.pop_front()
                {
                    self.of.remove(&oldest);
                }
            }
            Some(_) => {}
            None if self.of.remove(&peer).is_some() => {
                // Its owner may be another than when it came.
                self.sets.iter_mut().for_each(|set| set.retain(|other| *other != peer));
            }
            None => {}
        }
    }
}

const NEVER: u64 = u64::MAX;

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
struct MtuProbe {
    bytes: usize,
    left: u32,
    due_us: u64,
    wait_us: u64,
}

/// A client's search.
#[derive(Debug)]
pub(super) struct MtuProber {
    /// The size that is always sent.
    base: usize,
    /// The size that is tried.
    largest: usize,
    /// The size that comes through in both directions.
    known: usize,
    probe: Option<MtuProbe>,
    /// The time at which it is tried at the latest.
    next_probe_us: u64,
    /// The time from which the known size may be doubted, or told, again.
    next_reprobe_us: u64,
    number: u32,
}

impl MtuProber {
    /// Nothing is asked until [`MtuProber::begin`].
    pub(super) fn new(base: usize, largest: usize) -> MtuProber {
        MtuProber { base, largest, known: base, probe: None, next_probe_us: NEVER, next_reprobe_us: 0, number: 0 }
    }

    /// Bytes of a datagram that may be sent.
    #[inline]
    pub(super) fn most(&self) -> usize {
        self.known
    }

    /// Allows questions to the server, which knows our tenant from now on.
    pub(super) fn begin(&mut self, now_us: u64) {
        if self.largest > self.base && self.known == self.base && self.probe.is_none() {
            self.next_probe_us = now_us;
        }
    }

    /// Returns the latest time of the next check.
    #[inline]
    pub(super) fn due_us(&self) -> u64 {
        self.probe.map_or(NEVER, |probe| probe.due_us)
    }

    /// Returns whether there is something to ask.
    #[inline]
    pub(super) fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.due_us() || (now_us >= self.next_probe_us && self.probe.is_none())
    }

    /// Asks, or asks again, or asks for less, or gives up.
    #[cold]
    pub(super) fn work(&mut self, now_us: u64, server: PeerAddr, tx: &mut impl DatagramSink) {
        match self.probe {
            None if now_us >= self.next_probe_us => {
                self.next_probe_us = NEVER;
                self.begin_probe(now_us, self.largest, server, tx);
            }
            Some(probe) if now_us >= probe.due_us && probe.left > 0 => self.send_probe(now_us, probe, server, tx),
            Some(probe) if now_us >= probe.due_us => {
                self.probe = None;
                if self.known > self.base {
                    // It came through once, and does not any more.
                    self.known = self.base;
                    self.send_confirm(server, tx);
                }
                self.begin_probe(now_us, probe.bytes / 2, server, tx);
            }
            _ => {}
        }
    }

    fn begin_probe(&mut self, now_us: u64, bytes: usize, server: PeerAddr, tx: &mut impl DatagramSink) {
        let bytes = bytes.min(tx.most(server));
        if bytes <= self.base {
            // On a larger packet's path there may be another link tomorrow.
            self.next_probe_us = now_us.saturating_add(MTU_PROBE_INTERVAL_US);
            return;
        }
        let probe = MtuProbe { bytes, left: MTU_PROBE_TRIES, due_us: now_us, wait_us: FIRST_RTO_US };
        self.send_probe(now_us, probe, server, tx);
    }

    fn send_probe(&mut self, now_us: u64, probe: MtuProbe, server: PeerAddr, tx: &mut impl DatagramSink) {
        self.number = self.number.wrapping_add(1);
        send_probe_packet(
            MtuProbePacket { step: MtuProbeStep::Probe, number: self.number, bytes: probe.bytes as u32 },
            server,
            tx,
        );
        let (left, wait_us) = (probe.left.saturating_sub(1), probe.wait_us * 2);
        self.probe = Some(MtuProbe { left, due_us: now_us + probe.wait_us, wait_us, ..probe });
    }

    /// The server's answer.
    pub(super) fn on_packet(
        &mut self,
        now_us: u64,
        packet: &MtuProbePacket,
        server: PeerAddr,
        tx: &mut impl DatagramSink,
    ) {
        let bytes = packet.bytes as usize;
        let Some(probe) = self.probe else { return };
        // One of those that were asked of late: an answer may be later than the next question.
        let is_recent = self.number.wrapping_sub(packet.number) < MTU_PROBE_TRIES;
        if !is_recent || bytes > probe.bytes.max(self.known) {
            return;
        }
        self.probe = None;
        self.next_reprobe_us = now_us + MTU_REPROBE_MIN_US;
        self.known = bytes.max(self.base);
        self.send_confirm(server, tx);
    }

    fn send_confirm(&self, server: PeerAddr, tx: &mut impl DatagramSink) {
        send_probe_packet(
            MtuProbePacket { step: MtuProbeStep::Confirm, number: self.number, bytes: self.known as u32 },
            server,
            tx,
        );
    }

    /// Something is not answered for long: perhaps because large datagrams are lost now.
    pub(super) fn reprobe(&mut self, now_us: u64, server: PeerAddr, tx: &mut impl DatagramSink) {
        if self.known > self.base && self.probe.is_none() && now_us >= self.next_reprobe_us {
            self.next_reprobe_us = now_us + MTU_REPROBE_MIN_US;
            self.begin_probe(now_us, self.known, server, tx);
        }
    }

    /// Handles a message in datagrams of so many bytes. A server that sends smaller ones than it was told has forgotten
    /// the size, or never heard it.
    #[inline]
    pub(super) fn on_message_received(
        &mut self,
        now_us: u64,
        bytes: usize,
        server: PeerAddr,
        tx: &mut impl DatagramSink,
    ) {
        if bytes < self.known && self.known > self.base && now_us >= self.next_reprobe_us {
            self.next_reprobe_us = now_us + MTU_REPROBE_MIN_US;
            self.send_confirm(server, tx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(owner: u32, number: u16) -> PeerAddr {
        PeerAddr::new(std::net::Ipv4Addr::from(owner).into(), number)
    }

    #[test]
    fn who_brings_many_pushes_out_its_own_and_the_rest_stays() {
        let mut sizes = PeerDatagramSizes::default();
        sizes.note(1, peer(1, 1), Some(9000));
        sizes.note(2, peer(2, 1), Some(8000));
        for number in 2..2000 {
            sizes.note(2, peer(2, number), Some(8000));
            assert!(sizes.of.len() <= PEER_SIZES_PER_SET + 1);
        }
        assert_eq!((sizes.get(peer(1, 1)), sizes.get(peer(2, 1))), (Some(9000), None));
        sizes.note(2, peer(2, 1999), Some(5000));
        sizes.note(9, peer(2, 1998), None);
        assert_eq!((sizes.get(peer(2, 1999)), sizes.get(peer(2, 1998))), (Some(5000), None));
        for owner in 0..1000 {
            (0..100).for_each(|number| sizes.note(owner, peer(owner, number), Some(9000)));
        }
        assert_eq!(sizes.of.len(), PEER_SIZE_SETS * PEER_SIZES_PER_SET);
        assert_eq!(sizes.of.len(), sizes.sets.iter().map(VecDeque::len).sum::<usize>());
    }
}

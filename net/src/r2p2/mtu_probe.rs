//! How large the datagrams of a client and a server may be: what both begin with, or more where the path between them
//! has shown that it bears it, both ways, with no fragments.
//!
//! The client sends a datagram of the size that it would like; the server sends one back that is as large; the client
//! says that it has come. So neither believes what it has not seen, and a path that loses large datagrams without a
//! word costs some packets. A client that waits for long asks again, and goes back to small ones if that is not
//! answered.

use super::header::{LONG_HEADER_LEN, MtuProbePacket, MtuProbeStep, mtu_probe_header};
use super::{DatagramSink, PeerAddr};
use crate::limits::{
    FIRST_RTO_US, MAX_DATAGRAM_CEILING, MTU_PROBE_INTERVAL_US, MTU_PROBE_TRIES, MTU_REPROBE_MIN_US, PEER_SIZE_SETS,
    PEER_SIZES_PER_SET, ServerLimits,
};
use crate::seal::seal_overhead;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// What large packets about sizes are filled up with.
static ZEROS: [u8; MAX_DATAGRAM_CEILING] = [0; MAX_DATAGRAM_CEILING];

/// Sends a packet about sizes that is as large as it says, or short.
pub(super) fn send_probe_packet(fields: MtuProbePacket, peer: PeerAddr, tx: &mut impl DatagramSink) {
    let fill =
        if fields.step == MtuProbeStep::Confirm { 0 } else { (fields.bytes as usize).saturating_sub(LONG_HEADER_LEN) };
    tx.send(peer, &[&mtu_probe_header(&fields), ZEROS.get(..fill).unwrap_or_default()]);
}

/// What a server knows of its peers: how large datagrams they get. Bounded; whoever brings many pushes out its own, and
/// of those that share its set.
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
    /// What the peer has said that it gets.
    #[inline]
    fn get(&self, peer: PeerAddr) -> Option<usize> {
        self.of.get(&peer).map(|bytes| *bytes as usize)
    }

    /// Bytes of a datagram to the peer: what it has said that it gets, or else the usual size, as far as its way bears
    /// that.
    #[inline]
    pub(super) fn most(&self, peer: PeerAddr, limits: &ServerLimits, tx: &mut impl DatagramSink) -> usize {
        self.get(peer).unwrap_or(limits.max_datagram - seal_overhead(peer)).min(tx.most(peer))
    }

    /// A peer of this owner gets datagrams of so many bytes; none: of the usual size.
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
    /// What is always sent.
    base: usize,
    /// What is tried.
    largest: usize,
    /// What comes through both ways.
    known: usize,
    probe: Option<MtuProbe>,
    /// When it is to be tried, if not before.
    next_probe_us: u64,
    /// When what is known may be doubted, or told, again.
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

    /// The server knows whose we are: it may be asked from now on.
    pub(super) fn begin(&mut self, now_us: u64) {
        if self.largest > self.base && self.known == self.base && self.probe.is_none() {
            self.next_probe_us = now_us;
        }
    }

    /// When to look again at the latest.
    #[inline]
    pub(super) fn due_us(&self) -> u64 {
        self.probe.map_or(NEVER, |probe| probe.due_us)
    }

    /// Whether there is something to ask.
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
                self.ask(now_us, self.largest, server, tx);
            }
            Some(probe) if now_us >= probe.due_us && probe.left > 0 => self.say(now_us, probe, server, tx),
            Some(probe) if now_us >= probe.due_us => {
                self.probe = None;
                if self.known > self.base {
                    // It came through once, and does not any more.
                    self.known = self.base;
                    self.tell(server, tx);
                }
                self.ask(now_us, probe.bytes / 2, server, tx);
            }
            _ => {}
        }
    }

    fn ask(&mut self, now_us: u64, bytes: usize, server: PeerAddr, tx: &mut impl DatagramSink) {
        let bytes = bytes.min(tx.most(server));
        if bytes <= self.base {
            // On a larger packet's way there may be another link tomorrow.
            self.next_probe_us = now_us.saturating_add(MTU_PROBE_INTERVAL_US);
            return;
        }
        let probe = MtuProbe { bytes, left: MTU_PROBE_TRIES, due_us: now_us, wait_us: FIRST_RTO_US };
        self.say(now_us, probe, server, tx);
    }

    fn say(&mut self, now_us: u64, probe: MtuProbe, server: PeerAddr, tx: &mut impl DatagramSink) {
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
    pub(super) fn heard(&mut self, now_us: u64, said: &MtuProbePacket, server: PeerAddr, tx: &mut impl DatagramSink) {
        let bytes = said.bytes as usize;
        let Some(probe) = self.probe else { return };
        // One of those that were asked of late: an answer may be later than the next question.
        let fresh = self.number.wrapping_sub(said.number) < MTU_PROBE_TRIES;
        if !fresh || bytes > probe.bytes.max(self.known) {
            return;
        }
        self.probe = None;
        self.next_reprobe_us = now_us + MTU_REPROBE_MIN_US;
        self.known = bytes.max(self.base);
        self.tell(server, tx);
    }

    fn tell(&self, server: PeerAddr, tx: &mut impl DatagramSink) {
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
            self.ask(now_us, self.known, server, tx);
        }
    }

    /// A message came in datagrams of so many bytes: whoever sends less than was said has forgotten it, or never heard.
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
            self.tell(server, tx);
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

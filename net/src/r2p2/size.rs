//! How large the datagrams of a client and a server may be: what both begin with, or more where the path between them has shown that it bears it,
//! both ways, with no fragments.
//!
//! The client sends a datagram of the size that it would like; the server sends one back that is as large; the client says that it has come.
//! So neither believes what it has not seen, and a path that loses large datagrams without a word costs some packets. A client that waits for long
//! asks again, and goes back to small ones if that is not answered.

use super::header::{LONG_HEADER_LEN, Size, Step, size};
use super::{Peer, Transmit};
use crate::limits::{
    FIRST_RTO_US, MAX_DATAGRAM_CEILING, SIZE_AGAIN_US, SIZE_DOUBT_US, SIZE_SETS, SIZE_TRIES, SIZES_PER_SET,
    ServerLimits,
};
use crate::seal::overhead;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// What large packets about sizes are filled up with.
static ZEROS: [u8; MAX_DATAGRAM_CEILING] = [0; MAX_DATAGRAM_CEILING];

/// Sends a packet about sizes that is as large as it says, or short.
pub(super) fn send(fields: Size, peer: Peer, tx: &mut impl Transmit) {
    let fill = if fields.step == Step::Use { 0 } else { (fields.bytes as usize).saturating_sub(LONG_HEADER_LEN) };
    tx.send(peer, &[&size(&fields), ZEROS.get(..fill).unwrap_or_default()]);
}

/// What a server knows of its peers: how large datagrams they get. Bounded; whoever brings many pushes out its own, and of those that share its
/// set.
#[derive(Debug)]
pub(super) struct Sizes {
    of: HashMap<Peer, u32>,
    /// Peers in the order in which they came, by their owners' numbers.
    sets: Vec<VecDeque<Peer>>,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { of: HashMap::new(), sets: (0..SIZE_SETS).map(|_| VecDeque::new()).collect() }
    }
}

impl Sizes {
    /// What the peer has said that it gets.
    #[inline]
    fn get(&self, peer: Peer) -> Option<usize> {
        self.of.get(&peer).map(|bytes| *bytes as usize)
    }

    /// Bytes of a datagram to the peer: what it has said that it gets, or else the usual size, as far as its way bears that.
    #[inline]
    pub(super) fn most(&self, peer: Peer, limits: &ServerLimits, tx: &mut impl Transmit) -> usize {
        self.get(peer).unwrap_or(limits.max_datagram - overhead(peer)).min(tx.most(peer))
    }

    /// A peer of this owner gets datagrams of so many bytes; none: of the usual size.
    pub(super) fn note(&mut self, owner: u32, peer: Peer, bytes: Option<u32>) {
        match bytes {
            Some(bytes) if self.of.insert(peer, bytes).is_none() => {
                let sets = self.sets.len() as u32;
                let Some(set) = self.sets.get_mut((owner % sets.max(1)) as usize) else { return };
                set.push_back(peer);
                if set.len() > SIZES_PER_SET
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
struct Asking {
    bytes: usize,
    left: u32,
    due_us: u64,
    wait_us: u64,
}

/// A client's search.
#[derive(Debug)]
pub(super) struct Seeker {
    /// What is always sent.
    base: usize,
    /// What is tried.
    largest: usize,
    /// What comes through both ways.
    known: usize,
    asking: Option<Asking>,
    /// When it is to be tried, if not before.
    again_us: u64,
    /// When what is known may be doubted, or told, again.
    doubt_us: u64,
    number: u32,
}

impl Seeker {
    /// Nothing is asked until [`Seeker::begin`].
    pub(super) fn new(base: usize, largest: usize) -> Seeker {
        Seeker { base, largest, known: base, asking: None, again_us: NEVER, doubt_us: 0, number: 0 }
    }

    /// Bytes of a datagram that may be sent.
    #[inline]
    pub(super) fn most(&self) -> usize {
        self.known
    }

    /// The server knows whose we are: it may be asked from now on.
    pub(super) fn begin(&mut self, now_us: u64) {
        if self.largest > self.base && self.known == self.base && self.asking.is_none() {
            self.again_us = now_us;
        }
    }

    /// When to look again at the latest.
    #[inline]
    pub(super) fn due_us(&self) -> u64 {
        self.asking.map_or(NEVER, |asking| asking.due_us)
    }

    /// Whether there is something to ask.
    #[inline]
    pub(super) fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.due_us() || (now_us >= self.again_us && self.asking.is_none())
    }

    /// Asks, or asks again, or asks for less, or gives up.
    #[cold]
    pub(super) fn work(&mut self, now_us: u64, server: Peer, tx: &mut impl Transmit) {
        match self.asking {
            None if now_us >= self.again_us => {
                self.again_us = NEVER;
                self.ask(now_us, self.largest, server, tx);
            }
            Some(asking) if now_us >= asking.due_us && asking.left > 0 => self.say(now_us, asking, server, tx),
            Some(asking) if now_us >= asking.due_us => {
                self.asking = None;
                if self.known > self.base {
                    // It came through once, and does not any more.
                    self.known = self.base;
                    self.tell(server, tx);
                }
                self.ask(now_us, asking.bytes / 2, server, tx);
            }
            _ => {}
        }
    }

    fn ask(&mut self, now_us: u64, bytes: usize, server: Peer, tx: &mut impl Transmit) {
        let bytes = bytes.min(tx.most(server));
        if bytes <= self.base {
            // On a larger packet's way there may be another link tomorrow.
            self.again_us = now_us.saturating_add(SIZE_AGAIN_US);
            return;
        }
        let asking = Asking { bytes, left: SIZE_TRIES, due_us: now_us, wait_us: FIRST_RTO_US };
        self.say(now_us, asking, server, tx);
    }

    fn say(&mut self, now_us: u64, asking: Asking, server: Peer, tx: &mut impl Transmit) {
        self.number = self.number.wrapping_add(1);
        send(Size { step: Step::Ask, number: self.number, bytes: asking.bytes as u32 }, server, tx);
        let (left, wait_us) = (asking.left.saturating_sub(1), asking.wait_us * 2);
        self.asking = Some(Asking { left, due_us: now_us + asking.wait_us, wait_us, ..asking });
    }

    /// The server's answer.
    pub(super) fn heard(&mut self, now_us: u64, said: &Size, server: Peer, tx: &mut impl Transmit) {
        let bytes = said.bytes as usize;
        let Some(asking) = self.asking else { return };
        // One of those that were asked of late: an answer may be later than the next question.
        let fresh = self.number.wrapping_sub(said.number) < SIZE_TRIES;
        if !fresh || bytes > asking.bytes.max(self.known) {
            return;
        }
        self.asking = None;
        self.doubt_us = now_us + SIZE_DOUBT_US;
        self.known = bytes.max(self.base);
        self.tell(server, tx);
    }

    fn tell(&self, server: Peer, tx: &mut impl Transmit) {
        send(Size { step: Step::Use, number: self.number, bytes: self.known as u32 }, server, tx);
    }

    /// Something is not answered for long: perhaps because large datagrams are lost now.
    pub(super) fn doubt(&mut self, now_us: u64, server: Peer, tx: &mut impl Transmit) {
        if self.known > self.base && self.asking.is_none() && now_us >= self.doubt_us {
            self.doubt_us = now_us + SIZE_DOUBT_US;
            self.ask(now_us, self.known, server, tx);
        }
    }

    /// A message came in datagrams of so many bytes: whoever sends less than was said has forgotten it, or never heard.
    #[inline]
    pub(super) fn saw(&mut self, now_us: u64, bytes: usize, server: Peer, tx: &mut impl Transmit) {
        if bytes < self.known && self.known > self.base && now_us >= self.doubt_us {
            self.doubt_us = now_us + SIZE_DOUBT_US;
            self.tell(server, tx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(owner: u32, number: u16) -> Peer {
        Peer::new(std::net::Ipv4Addr::from(owner).into(), number)
    }

    #[test]
    fn who_brings_many_pushes_out_its_own_and_the_rest_stays() {
        let mut sizes = Sizes::default();
        sizes.note(1, peer(1, 1), Some(9000));
        sizes.note(2, peer(2, 1), Some(8000));
        for number in 2..2000 {
            sizes.note(2, peer(2, number), Some(8000));
            assert!(sizes.of.len() <= SIZES_PER_SET + 1);
        }
        assert_eq!((sizes.get(peer(1, 1)), sizes.get(peer(2, 1))), (Some(9000), None));
        sizes.note(2, peer(2, 1999), Some(5000));
        sizes.note(9, peer(2, 1998), None);
        assert_eq!((sizes.get(peer(2, 1999)), sizes.get(peer(2, 1998))), (Some(5000), None));
        for owner in 0..1000 {
            (0..100).for_each(|number| sizes.note(owner, peer(owner, number), Some(9000)));
        }
        assert_eq!(sizes.of.len(), SIZE_SETS * SIZES_PER_SET);
        assert_eq!(sizes.of.len(), sizes.sets.iter().map(VecDeque::len).sum::<usize>());
    }
}

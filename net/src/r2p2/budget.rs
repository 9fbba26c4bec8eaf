//! Room for messages of several packets in one direction. It is bounded in total, for each peer, and for the peers of
//! each owner.
//!
//! Addresses are cheap: an attacker has many, so a bound for each peer does not stop it. Room is therefore divided by
//! owner as well ([`DynamicThreshold`]), so that some is mostly left for the next. If nothing is left, an owner that
//! would have less than another takes room from the one that has most. All unauthenticated peers together are one
//! owner.

use super::PeerAddr;
use crate::dynamic_threshold::DynamicThreshold;
use hashbrown::HashMap;
use std::hash::Hash;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MessageUsage {
    messages: usize,
    bytes: usize,
}

/// The bounds of a room.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageBudgetLimits {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    pub(super) peer_messages: usize,
    pub(super) peer_bytes: usize,
}

/// Counts the room in use, by peer and by owner.
#[derive(Debug)]
pub(super) struct MessageBudget {
    bounds: MessageBudgetLimits,
    all: MessageUsage,
    peers: HashMap<PeerAddr, MessageUsage>,
    owners: HashMap<u32, MessageUsage>,
}

impl MessageBudget {
    pub(super) fn new(bounds: MessageBudgetLimits) -> MessageBudget {
        MessageBudget { bounds, all: MessageUsage::default(), peers: HashMap::new(), owners: HashMap::new() }
    }

    /// Returns the bytes in use.
    pub(super) fn bytes(&self) -> usize {
        self.all.bytes
    }

    /// Returns whether the peer holds anything.
    pub(super) fn knows(&self, peer: &PeerAddr) -> bool {
        self.peers.contains_key(peer)
    }

    /// Returns the peers that hold anything.
    pub(super) fn peers(&self) -> impl Iterator<Item = &PeerAddr> {
        self.peers.keys()
    }

    /// Returns whether a peer may hold one more message of `size` bytes, as far as its own part goes.
    pub(super) fn admits_peer(&self, peer: PeerAddr, size: usize) -> bool {
        let used = self.peers.get(&peer).copied().unwrap_or_default();
        used.messages < self.bounds.peer_messages && used.bytes.saturating_add(size) <= self.bounds.peer_bytes
    }

    /// Returns whether all others leave room for it, and its owner's part does.
    pub(super) fn admits_owner(&self, owner: u32, size: usize) -> bool {
        let own = self.owners.get(&owner).copied().unwrap_or_default();
        DynamicThreshold::of(self.bounds.messages).admits(self.all.messages, own.messages)
            && DynamicThreshold::of(self.bounds.bytes).admits_size(self.all.bytes, own.bytes, size)
    }

    /// The owner that holds most, if that is more than this one would with one more message of `size` bytes.
    pub(super) fn largest_owner_above(&self, owner: u32, size: usize) -> Option<u32> {
        let part = |usage: &MessageUsage| {
            let messages = usage.messages as f64 / self.bounds.messages.max(1) as f64;
            messages.max(usage.bytes as f64 / self.bounds.bytes.max(1) as f64)
        };
        let own = self.owners.get(&owner).copied().unwrap_or_default();
        let own = MessageUsage { messages: own.messages + 1, bytes: own.bytes.saturating_add(size) };
        let others =
            self.owners.iter().filter(|(other, _)| **other != owner).map(|(other, usage)| (part(usage), *other));
        let largest = others.max_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        largest.filter(|(usage, _)| *usage > part(&own)).map(|(_, other)| other)
    }

    pub(super) fn take(&mut self, peer: PeerAddr, owner: u32, size: usize) {
        let usages = [self.peers.entry(peer).or_default(), self.owners.entry(owner).or_default(), &mut self.all];
        for usage in usages {
            usage.messages += 1;
            usage.bytes += size;
        }
    }

    pub(super) fn give_back(&mut self, peer: PeerAddr, owner: u32, size: usize) {
        release_usage(&mut self.peers, peer, size);
        release_usage(&mut self.owners, owner, size);
        self.all.messages -= 1;
        self.all.bytes -= size;
    }
}

fn release_usage<K: Eq + Hash>(all: &mut HashMap<K, MessageUsage>, owner: K, size: usize) {
    let Some(usage) = all.get_mut(&owner) else { return };
    usage.messages -= 1;
    usage.bytes -= size;
    if *usage == MessageUsage::default() {
        all.remove(&owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: MessageBudgetLimits =
        MessageBudgetLimits { messages: 4096, bytes: 64 << 20, peer_messages: 256, peer_bytes: 24 << 20 };

    fn peer(number: usize) -> PeerAddr {
        PeerAddr::from(([10, 0, (number >> 8) as u8, number as u8], 9000))
    }

    /// Owners that take all they can get, one after the other, each from as many addresses as it likes.
    fn filled(owners: u32, size: usize) -> MessageBudget {
        let mut room = MessageBudget::new(BOUNDS);
        let mut peers = (0..).map(peer);
        for owner in 1..=owners {
            while room.admits_owner(owner, size) {
                room.take(peers.next().expect("there is always another"), owner, size);
            }
        }
        room
    }

    #[test]
    fn who_takes_all_he_can_get_leaves_something_or_has_to_give_it_back() {
        for owners in [1, 2, 3, 7, 30] {
            for size in [3000, 100_000, 1 << 20] {
                let room = filled(owners, size);
                let least = room.admits_owner(99, 40_000) || room.largest_owner_above(99, 40_000) == Some(1);
                assert!(least, "{owners} owners of {size} bytes: {:?}", room.all);
                assert!(room.admits_peer(peer(65_000), 8 << 20));
            }
        }
        assert!(filled(1, 8 << 20).admits_owner(99, 8 << 20), "after one, even for the largest");
        assert_eq!(filled(1, 1 << 20).largest_owner_above(1, 1 << 20), None, "nobody takes from himself");
        assert_eq!(filled(2, 1 << 20).largest_owner_above(2, 64 << 20), None, "or from who would hold less");
    }

    #[test]
    fn what_is_given_back_is_as_if_it_had_never_been() {
        let mut room = filled(3, 100_000);
        let peers: Vec<PeerAddr> = room.peers().copied().collect();
        for owner in 1..=3 {
            while room.owners.contains_key(&owner) {
                let peer = peers.iter().find(|peer| room.knows(peer)).copied().expect("one of them");
                room.give_back(peer, owner, 100_000);
            }
        }
        assert_eq!((room.all, room.peers.len(), room.owners.len()), (MessageUsage::default(), 0, 0));
    }
}

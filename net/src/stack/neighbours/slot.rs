//! One slot of the table: written under the table's lock, read without one.

use crate::stack::MacAddress;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// The state of a neighbour's entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NeighbourState {
    /// The slot is free.
    #[default]
    Empty,
    /// The question was sent to all hosts.
    Probing,
    /// Its Ethernet address is known.
    Known,
    /// No host answered.
    Failed,
    /// As known, but another host has claimed the address.
    Disputed,
    /// Nothing is known of it, but the slot is reserved for it.
    Reserved,
}

/// The contents of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NeighbourEntry {
    pub(super) ip: u128,
    pub(super) mac: MacAddress,
    pub(super) state: NeighbourState,
    /// Questions since it was last confirmed. The first [`crate::limits::NEIGHBOUR_UNICAST_PROBES`] of a known
    /// neighbour go to itself; they are left out if it was never confirmed.
    pub(super) probed: u8,
    /// The time when it last answered a question of ours; 0: never.
    pub(super) confirmed_us: u64,
    /// The earliest time of the next action.
    pub(super) next_action_us: u64,
}

/// Returns the key of an address: an IPv4 address is mapped to IPv6.
pub(super) fn ip_key(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

/// Returns the address of an [`ip_key`].
pub(super) fn ip_from_key(number: u128) -> IpAddr {
    let ip = Ipv6Addr::from(number);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

/// Words with a count of their changes, which is odd during one. A reader that has seen the same even count before and
/// after has read one entry.
#[derive(Debug, Default)]
pub(super) struct NeighbourSlot {
    changes: AtomicU64,
    high: AtomicU64,
    low: AtomicU64,
    /// The Ethernet address, state, and number of questions.
    word: AtomicU64,
    confirmed_us: AtomicU64,
    next_action_us: AtomicU64,
}

impl NeighbourSlot {
    /// Returns the entry, if it is of `ip`. None also if it was being changed: look again, or under the lock.
    #[inline]
    pub(super) fn find(&self, ip: u128) -> Option<NeighbourEntry> {
        // Most slots are of other addresses: then one look is enough.
        if self.low.load(Relaxed) != ip as u64 {
            return None;
        }
        let before = self.changes.load(Acquire);
        let entry = self.load();
        fence(Acquire);
        (before.is_multiple_of(2)
            && self.changes.load(Relaxed) == before
            && entry.ip == ip
            && entry.state != NeighbourState::Empty)
            .then_some(entry)
    }

    /// Returns the entry. It is consistent only under the lock.
    pub(super) fn load(&self) -> NeighbourEntry {
        let word = self.word.load(Relaxed);
        let [a, b, c, d, e, f, state, probed] = word.to_le_bytes();
        NeighbourEntry {
            ip: u128::from(self.high.load(Relaxed)) << 64 | u128::from(self.low.load(Relaxed)),
            mac: MacAddress([a, b, c, d, e, f]),
            state: match state {
                1 => NeighbourState::Probing,
                2 => NeighbourState::Known,
                3 => NeighbourState::Failed,
                4 => NeighbourState::Disputed,
                5 => NeighbourState::Reserved,
                _ => NeighbourState::Empty,
            },
            probed,
            confirmed_us: self.confirmed_us.load(Relaxed),
            next_action_us: self.next_action_us.load(Relaxed),
        }
    }

    /// Changes the entry; to be called under the lock.
    pub(super) fn store(&self, entry: &NeighbourEntry) {
        let changes = self.changes.load(Relaxed);
        self.changes.store(changes.wrapping_add(1), Relaxed);
        fence(Release);
        let [a, b, c, d, e, f] = entry.mac.0;
        self.high.store((entry.ip >> 64) as u64, Relaxed);
        self.low.store(entry.ip as u64, Relaxed);
        self.word.store(u64::from_le_bytes([a, b, c, d, e, f, entry.state as u8, entry.probed]), Relaxed);
        self.confirmed_us.store(entry.confirmed_us, Relaxed);
        self.next_action_us.store(entry.next_action_us, Relaxed);
        self.changes.store(changes.wrapping_add(2), Release);
    }
}

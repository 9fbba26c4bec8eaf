//! One place of the table: written under the table's lock, read by anybody without one.

use crate::stack::MacAddress;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// How far a neighbour is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NeighbourState {
    /// The place is free.
    #[default]
    Empty,
    /// Everybody was asked.
    Probing,
    /// Its Ethernet address is there.
    Known,
    /// Nobody answered.
    Failed,
    /// As known, but somebody else has claimed it.
    Disputed,
    /// Nothing is known of it, but the place is kept for it.
    Reserved,
}

/// What a place holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NeighbourEntry {
    pub(super) ip: u128,
    pub(super) mac: MacAddress,
    pub(super) state: NeighbourState,
    /// Questions since it was last confirmed: the first [`crate::limits::NEIGHBOUR_UNICAST_PROBES`] of a known one to
    /// itself, or left out if it never was.
    pub(super) asked: u8,
    /// When it last answered a question of ours; 0: never.
    pub(super) confirmed_us: u64,
    /// Nothing is to be done about it before.
    pub(super) next_action_us: u64,
}

/// IPv4 addresses as IPv6 has them.
pub(super) fn ip_key(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

/// The address of [`ip_key`].
pub(super) fn ip_from_key(number: u128) -> IpAddr {
    let ip = Ipv6Addr::from(number);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

/// Words with a count of their changes, odd during one. A reader that has seen the same even count before and after has
/// read one entry.
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
    /// The entry, if it is of `ip`. None also if it was being changed: look again, or under the lock.
    #[inline]
    pub(super) fn find(&self, ip: u128) -> Option<NeighbourEntry> {
        // Most places are of others: then one look is enough.
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

    /// The entry. Whole only under the lock.
    pub(super) fn load(&self) -> NeighbourEntry {
        let word = self.word.load(Relaxed);
        let [a, b, c, d, e, f, state, asked] = word.to_le_bytes();
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
            asked,
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
        self.word.store(u64::from_le_bytes([a, b, c, d, e, f, entry.state as u8, entry.asked]), Relaxed);
        self.confirmed_us.store(entry.confirmed_us, Relaxed);
        self.next_action_us.store(entry.next_action_us, Relaxed);
        self.changes.store(changes.wrapping_add(2), Release);
    }
}

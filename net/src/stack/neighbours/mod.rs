//! The Ethernet addresses of neighbours' IP addresses: one table for all workers of an interface. Look-ups take no
//! lock.
//!
//! Claims of other hosts cannot be proved, so they are weighed. A slot is filled by a question of ours, or by a
//! neighbour's question for an address of ours (it wants to talk); no other claim fills one. An answer to a question of
//! ours is believed for half a minute. A claim that contradicts it only raises a doubt. The neighbour is then asked at
//! its old address; if it is silent there, all hosts are asked, and the first answer is taken. An unsolicited address
//! is used until all hosts were asked and one has answered; otherwise the first claim would own an address for good.
//! The table is bounded, its buckets are keyed at random, and unconfirmed entries give way first.
//!
//! On a device that the kernel shares, the stack asks no question and hears no answer. There the table stores which
//! Ethernet address each peer's last datagram came from.

mod slot;
#[cfg(test)]
mod tests;

use super::MacAddress;
use crate::limits::{
    NEIGHBOUR_DISPUTE_US, NEIGHBOUR_FAILED_US, NEIGHBOUR_LOCKS, NEIGHBOUR_PROBE_EVICT_US, NEIGHBOUR_PROBES_PER_S,
    NEIGHBOUR_REACHABLE_US, NEIGHBOUR_REFRESH_US, NEIGHBOUR_RETRIES_US, NEIGHBOUR_UNICAST_PROBES,
    NEIGHBOURS_PER_BUCKET,
};
use crate::rate_limiter::{RateLimit, RateLimiter};
use slot::{NeighbourEntry, NeighbourSlot, NeighbourState, ip_from_key, ip_key};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The result of looking an address up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighbourLookup {
    /// Send to this address.
    Reachable(MacAddress),
    /// Send to this address, and [`NeighbourTable::probe`] whether it is still true.
    Stale(MacAddress),
    /// An answer may come until this time.
    Resolving(u64),
    /// No host answered.
    Unreachable,
    /// Nothing is known: call [`NeighbourTable::probe`].
    Unknown,
}

/// The next question for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeAction {
    /// Ask all hosts.
    Broadcast,
    /// Ask the neighbour that had the address.
    Unicast(MacAddress),
    /// Nothing now.
    Skip,
}

/// The message from which a neighbour's address is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighbourEvidence {
    /// It answered a question.
    Reply,
    /// It asked for an address of ours.
    Request,
    /// It announced its address to all hosts.
    Announcement,
}

/// Counters of the neighbour table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourCounters {
    /// Questions sent.
    pub questions: u64,
    /// Questions not sent because of their rate.
    pub probes_limited: u64,
    /// Answers to questions of ours.
    pub answers: u64,
    /// Claims that contradict what a neighbour has answered.
    pub contradictions: u64,
    /// Addresses that no host answered for.
    pub failures: u64,
    /// Addresses for which there was no room.
    pub no_room: u64,
}

#[derive(Debug)]
struct ProbeState {
    rate: RateLimiter,
    counters: NeighbourCounters,
}

/// The neighbour table.
#[derive(Debug)]
pub(super) struct NeighbourTable {
    slots: Box<[NeighbourSlot]>,
    /// Keys the buckets: two halves of an address are folded with them.
    keys: [u64; 2],
    /// Locked by every thread that changes a slot.
    book: Mutex<ProbeState>,
    /// Grows when an address becomes known that a datagram waits for.
    generation: AtomicU64,
    routers: Vec<u128>,
    /// See [`NeighbourTable::source_lock`].
    seen: [Mutex<()>; NEIGHBOUR_LOCKS],
}

impl NeighbourTable {
    /// Creates a table of at least so many slots. Questions for `routers` have no rate limit, and their slots are
    /// reserved.
    pub(super) fn new(capacity: usize, routers: &[IpAddr]) -> NeighbourTable {
        let buckets = capacity.div_ceil(NEIGHBOURS_PER_BUCKET).next_power_of_two();
        let random = RandomState::new();
        let table = NeighbourTable {
            slots: (0..buckets * NEIGHBOURS_PER_BUCKET).map(|_| NeighbourSlot::default()).collect(),
            keys: [random.hash_one(1), random.hash_one(2)],
            book: Mutex::new(ProbeState { rate: RateLimiter::default(), counters: NeighbourCounters::default() }),
            generation: AtomicU64::new(0),
            routers: routers.iter().copied().map(ip_key).collect(),
            seen: std::array::from_fn(|_| Mutex::new(())),
        };
        for ip in &table.routers {
            if let Some(slot) = table.bucket(*ip).iter().find(|slot| slot.load().state == NeighbourState::Empty) {
                slot.store(&NeighbourEntry { ip: *ip, state: NeighbourState::Reserved, ..NeighbourEntry::default() });
            }
        }
        table
    }

    #[inline]
    fn bucket(&self, ip: u128) -> &[NeighbourSlot] {
        let [one, two] = self.keys;
        let product = u128::from(ip as u64 ^ one) * u128::from((ip >> 64) as u64 ^ two | 1);
        let folded = (product as u64 ^ (product >> 64) as u64).wrapping_mul(one | 1);
        let buckets = self.slots.len() / NEIGHBOURS_PER_BUCKET;
        let at = (folded >> 32) as usize % buckets * NEIGHBOURS_PER_BUCKET;
        self.slots.get(at..at + NEIGHBOURS_PER_BUCKET).unwrap_or_default()
    }

    /// Looks an address up, without a lock.
    #[inline]
    pub(super) fn find(&self, now_us: u64, ip: IpAddr) -> NeighbourLookup {
        let ip = ip_key(ip);
        match self.bucket(ip).iter().find_map(|slot| slot.find(ip)) {
            Some(entry) => lookup_result(now_us, &entry),
            None => NeighbourLookup::Unknown,
        }
    }

    /// Grows when an address becomes known that a datagram waits for.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Returns the counters.
    pub(super) fn counters(&self) -> NeighbourCounters {
        self.lock().counters
    }

    fn lock(&self) -> MutexGuard<'_, ProbeState> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides what to do for an address that is needed now and is unknown or in doubt. The caller sends the question.
    pub(super) fn probe(&self, now_us: u64, ip: IpAddr) -> ProbeAction {
        let ip = ip_key(ip);
        let mut book = self.lock();
        let bucket = self.bucket(ip);
        let found = bucket.iter().find_map(|slot| slot.find(ip).map(|entry| (slot, entry)));
        let (slot, mut entry) = match found {
            Some((slot, entry)) => match lookup_result(now_us, &entry) {
                NeighbourLookup::Reachable(_) | NeighbourLookup::Resolving(_) | NeighbourLookup::Unreachable => {
                    return ProbeAction::Skip;
                }
                // The address was given up, or never asked for: probing begins anew.
                NeighbourLookup::Unknown
                    if matches!(entry.state, NeighbourState::Failed | NeighbourState::Reserved) =>
                {
                    (slot, NeighbourEntry { ip, state: NeighbourState::Probing, ..NeighbourEntry::default() })
                }
                NeighbourLookup::Stale(_) | NeighbourLookup::Unknown => (slot, entry),
            },
            None => match self.slot_for(bucket, now_us, true) {
                Some(slot) => {
                    (slot, NeighbourEntry { ip, state: NeighbourState::Probing, ..NeighbourEntry::default() })
                }
                None => {
                    book.counters.no_room += 1;
                    return ProbeAction::Skip;
                }
            },
        };
        let probes = if matches!(entry.state, NeighbourState::Known | NeighbourState::Disputed) {
            NEIGHBOUR_UNICAST_PROBES
        } else {
            0
        };
        let round = entry.probed.saturating_sub(probes);
        let Some(wait_us) = NEIGHBOUR_RETRIES_US.get(usize::from(round)) else {
            entry =
                NeighbourEntry { state: NeighbourState::Failed, next_action_us: now_us + NEIGHBOUR_FAILED_US, ..entry };
            book.counters.failures += 1;
            slot.store(&entry);
            return ProbeAction::Skip;
        };
        let limit = RateLimit::per_second(NEIGHBOUR_PROBES_PER_S);
        if !self.routers.contains(&ip) && !book.rate.admit(&limit, now_us) {
            book.counters.probes_limited += 1;
            entry.next_action_us = now_us + NEIGHBOUR_PROBE_EVICT_US;
            slot.store(&entry);
            return ProbeAction::Skip;
        }
        let one = entry.probed < probes;
        entry.probed += 1;
        entry.next_action_us = now_us + if one { NEIGHBOUR_RETRIES_US[0] } else { *wait_us };
        book.counters.questions += 1;
        slot.store(&entry);
        if one { ProbeAction::Unicast(entry.mac) } else { ProbeAction::Broadcast }
    }

    /// Records a neighbour's claim of an address. The caller has checked that it can be a neighbour's address.
    pub(super) fn observe(&self, now_us: u64, ip: IpAddr, mac: MacAddress, how: NeighbourEvidence) {
        let ip = ip_key(ip);
        let mut book = self.lock();
        let bucket = self.bucket(ip);
        let found = bucket.iter().find_map(|slot| slot.find(ip).map(|entry| (slot, entry)));
        let Some((slot, entry)) = found.filter(|(_, entry)| entry.state != NeighbourState::Reserved) else {
            if how == NeighbourEvidence::Request
                && let Some(slot) = found.map(|(slot, _)| slot).or_else(|| self.slot_for(bucket, now_us, false))
            {
                slot.store(&unsolicited_entry(ip, mac, 0, now_us));
            }
            return;
        };
        let confirmed = NeighbourEntry {
            ip,
            mac,
            state: NeighbourState::Known,
            probed: 0,
            confirmed_us: now_us,
            next_action_us: now_us,
        };
        match (entry.state, how) {
            (NeighbourState::Empty | NeighbourState::Reserved, _) => {}
            // From the neighbour that was believed, or after a question to all hosts.
            (NeighbourState::Known | NeighbourState::Disputed, NeighbourEvidence::Reply)
                if entry.mac == mac && entry.confirmed_us > 0 || entry.probed > NEIGHBOUR_UNICAST_PROBES =>
            {
                book.counters.answers += 1;
                slot.store(&confirmed);
            }
            (NeighbourState::Known | NeighbourState::Disputed, _) if entry.mac == mac => {}
            (NeighbourState::Known, _) if entry.confirmed_us > 0 && entry.probed == 0 => {
                book.counters.contradictions += 1;
                let next_action_us = now_us.max(entry.confirmed_us + NEIGHBOUR_DISPUTE_US);
                slot.store(&NeighbourEntry { state: NeighbourState::Disputed, next_action_us, ..entry });
            }
            (NeighbourState::Known | NeighbourState::Disputed, _) => book.counters.contradictions += 1,
            (NeighbourState::Probing | NeighbourState::Failed, NeighbourEvidence::Reply) => {
                book.counters.answers += 1;
                slot.store(&confirmed);
                self.generation.fetch_add(1, Release);
            }
            (state, _) => {
                // An answer to a question that was sent meanwhile still counts.
                let rounds = if state == NeighbourState::Probing { entry.probed } else { 0 };
                slot.store(&unsolicited_entry(ip, mac, rounds, now_us));
                self.generation.fetch_add(1, Release);
            }
        }
    }

    /// Records the source of a datagram, on an interface that hears no answers ([`super::StackOptions::isolated`]). The
    /// last sender has the address. A forger loses it to the next datagram of the owner, whose answer is sent after
    /// that.
    #[inline]
    pub(super) fn seen(&self, now_us: u64, ip: IpAddr, mac: MacAddress) {
        let ip = ip_key(ip);
        let is_so = |entry: NeighbourEntry| {
            entry.mac == mac && now_us.saturating_sub(entry.confirmed_us) < NEIGHBOUR_REFRESH_US
        };
        if !self.bucket(ip).iter().find_map(|slot| slot.find(ip)).is_some_and(is_so) {
            self.store_source(now_us, ip, mac);
        }
    }

    #[cold]
    fn store_source(&self, now_us: u64, ip: u128, mac: MacAddress) {
        let bucket = self.bucket(ip);
        let _bucket_lock = self.source_lock(bucket);
        let own = bucket.iter().find(|slot| slot.find(ip).is_some());
        // An address that was heard once, like those of a flood, gives way before one that was heard again. Free slots
        // have the time 0.
        let rank = |slot: &&NeighbourSlot| {
            let NeighbourEntry { probed, confirmed_us, .. } = slot.load();
            let is_of_late = now_us.saturating_sub(confirmed_us) < NEIGHBOUR_REACHABLE_US;
            (probed > 0 && is_of_late, confirmed_us)
        };
        if let Some(slot) = own.or_else(|| bucket.iter().min_by_key(rank)) {
            let probed = u8::from(own.is_some());
            slot.store(&NeighbourEntry {
                ip,
                mac,
                state: NeighbourState::Known,
                probed,
                confirmed_us: now_us,
                next_action_us: now_us,
            });
        }
    }

    /// Locks a bucket on an interface that asks no questions. Every new sender takes such a lock, so the buckets do not
    /// all share the table's.
    fn source_lock(&self, bucket: &[NeighbourSlot]) -> MutexGuard<'_, ()> {
        let offset = bucket.as_ptr().addr().wrapping_sub(self.slots.as_ptr().addr());
        let number = offset / (size_of::<NeighbourSlot>() * NEIGHBOURS_PER_BUCKET) % self.seen.len();
        self.seen[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the Ethernet address that the last datagram of this address came from.
    #[inline]
    pub(super) fn source_mac(&self, ip: IpAddr) -> Option<MacAddress> {
        let ip = ip_key(ip);
        let bucket = self.bucket(ip);
        let find = || bucket.iter().find_map(|slot| slot.find(ip)).map(|entry| entry.mac);
        find().or_else(|| {
            // The entry may be changing just now.
            let _bucket_lock = self.source_lock(bucket);
            find()
        })
    }

    /// Returns a slot in a bucket for a newcomer, which is `wanted` by a datagram of ours or came by itself. None if no
    /// other entry may be replaced.
    fn slot_for<'b>(&self, bucket: &'b [NeighbourSlot], now_us: u64, wanted: bool) -> Option<&'b NeighbourSlot> {
        // The least valuable entry goes first; among equals, the one touched longest ago.
        let rank = |entry: &NeighbourEntry| {
            let idle_us = now_us.saturating_sub(entry.next_action_us.max(entry.confirmed_us));
            match entry.state {
                _ if self.routers.contains(&entry.ip) => None,
                NeighbourState::Empty => Some((0, 0)),
                NeighbourState::Failed if idle_us > 0 => Some((1, entry.next_action_us)),
                NeighbourState::Known if entry.confirmed_us == 0 && entry.probed <= NEIGHBOUR_UNICAST_PROBES => {
                    Some((2, entry.next_action_us))
                }
                // The neighbour was asked and has not answered.
                NeighbourState::Known if entry.confirmed_us == 0 && wanted && now_us >= entry.next_action_us => {
                    Some((3, entry.next_action_us))
                }
                NeighbourState::Probing
                    if wanted && now_us.saturating_sub(last_probe_us(entry)) >= NEIGHBOUR_PROBE_EVICT_US =>
                {
                    Some((3, entry.next_action_us))
                }
                NeighbourState::Known | NeighbourState::Disputed if wanted && idle_us >= NEIGHBOUR_REACHABLE_US => {
                    Some((4, entry.confirmed_us))
                }
                _ => None,
            }
        };
        let ranked = bucket.iter().filter_map(|slot| rank(&slot.load()).map(|rank| (rank, slot)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, slot)| slot)
    }

    /// Returns all known neighbours, with the time of their last answer (0: none yet).
    pub(super) fn list(&self) -> Vec<(IpAddr, MacAddress, u64)> {
        let _book = self.lock();
        let _seen: Vec<_> = self.seen.iter().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner)).collect();
        let entries = self
            .slots
            .iter()
            .map(NeighbourSlot::load)
            .filter(|entry| matches!(entry.state, NeighbourState::Known | NeighbourState::Disputed));
        entries.map(|entry| (ip_from_key(entry.ip), entry.mac, entry.confirmed_us)).collect()
    }
}

/// Returns the entry of a host that has claimed `mac` unasked. It is used at once; all hosts were asked `rounds` times.
fn unsolicited_entry(ip: u128, mac: MacAddress, rounds: u8, now_us: u64) -> NeighbourEntry {
    NeighbourEntry {
        ip,
        mac,
        state: NeighbourState::Known,
        probed: NEIGHBOUR_UNICAST_PROBES + rounds,
        confirmed_us: 0,
        next_action_us: now_us,
    }
}

/// Returns what an entry means at this time.
#[inline]
fn lookup_result(now_us: u64, entry: &NeighbourEntry) -> NeighbourLookup {
    let quiet = now_us < entry.next_action_us;
    match entry.state {
        NeighbourState::Disputed => {
            if quiet {
                NeighbourLookup::Reachable(entry.mac)
            } else {
                NeighbourLookup::Stale(entry.mac)
            }
        }
        NeighbourState::Known => {
            let is_recent =
                entry.confirmed_us > 0 && now_us.saturating_sub(entry.confirmed_us) < NEIGHBOUR_REACHABLE_US;
            if is_recent || quiet { NeighbourLookup::Reachable(entry.mac) } else { NeighbourLookup::Stale(entry.mac) }
        }
        NeighbourState::Probing if quiet => NeighbourLookup::Resolving(entry.next_action_us),
        NeighbourState::Failed if quiet => NeighbourLookup::Unreachable,
        _ => NeighbourLookup::Unknown,
    }
}

/// Returns the time of the last question.
fn last_probe_us(entry: &NeighbourEntry) -> u64 {
    let round = usize::from(entry.probed.saturating_sub(1)).min(NEIGHBOUR_RETRIES_US.len() - 1);
    entry.next_action_us.saturating_sub(NEIGHBOUR_RETRIES_US.get(round).copied().unwrap_or(0))
}

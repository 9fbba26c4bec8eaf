//! Which Ethernet address a neighbour's IP address has: one table for all workers of an interface. Looking up takes no lock.
//!
//! What others say cannot be proved, so it is weighed. A place is made by a question of ours, or by a neighbour's question for an address of
//! ours (it wants to talk); whatever else is claimed makes none. An answer to a question of ours is believed for half a minute. A claim
//! that contradicts it only raises a doubt: the neighbour is asked at its old address, and only if it is silent there is everybody asked, and
//! the first answer taken. What a neighbour has said unasked is used until everybody was asked and one has answered: else who speaks first
//! would have an address for good. The table is bounded, its buckets are keyed at random, and what nobody has confirmed gives way first.
//!
//! On a device that the kernel shares, nobody is asked, and no answer is heard: there the table has where each peer's last datagram came from.

mod slot;
#[cfg(test)]
mod tests;

use super::Mac;
use crate::driver::rate::Rate;
use crate::limits::{
    NEIGHBOUR_HOLD_US, NEIGHBOUR_LOCK_US, NEIGHBOUR_LOCKS, NEIGHBOUR_PROBES, NEIGHBOUR_QUESTIONS_PER_S,
    NEIGHBOUR_REACHABLE_US, NEIGHBOUR_RETRIES_US, NEIGHBOUR_SEEN_US, NEIGHBOUR_YIELD_US, NEIGHBOURS_PER_BUCKET,
};
use slot::{Entry, Slot, State, address, number};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the table says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Send there.
    Here(Mac),
    /// Send there, and [`Neighbours::ask`] whether it is still true.
    Doubtful(Mac),
    /// An answer is waited for until this time.
    Wait(u64),
    /// Nobody answered.
    Nobody,
    /// [`Neighbours::ask`].
    Unknown,
}

/// What is to be done for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Ask everybody.
    Everybody,
    /// Ask the one who had it.
    One(Mac),
    /// Nothing now.
    Nothing,
}

/// How a neighbour's address was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It answered who had asked.
    Answer,
    /// It asked for an address of ours.
    Question,
    /// It told everybody.
    Claim,
}

/// What the table has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourCounters {
    /// Questions sent.
    pub questions: u64,
    /// Questions not sent because of their rate.
    pub questions_saved: u64,
    /// Answers to questions of ours.
    pub answers: u64,
    /// Claims that contradict what a neighbour has answered.
    pub contradictions: u64,
    /// Addresses that nobody answered for.
    pub failures: u64,
    /// Addresses for which there was no room.
    pub no_room: u64,
}

#[derive(Debug)]
struct Book {
    rate: Rate,
    counters: NeighbourCounters,
}

/// The table.
#[derive(Debug)]
pub(super) struct Neighbours {
    slots: Box<[Slot]>,
    /// Keys the buckets: two halves of an address are folded with them.
    keys: [u64; 2],
    /// Whoever changes a slot has this.
    book: Mutex<Book>,
    /// Grows when an address becomes known that somebody waits for.
    news: AtomicU64,
    routers: Vec<u128>,
    /// See [`Neighbours::seen_lock`].
    seen: [Mutex<()>; NEIGHBOUR_LOCKS],
}

impl Neighbours {
    /// A table of at least so many places. Questions for `routers` have no rate, and their places are nobody else's.
    pub(super) fn new(places: usize, routers: &[IpAddr]) -> Neighbours {
        let buckets = places.div_ceil(NEIGHBOURS_PER_BUCKET).next_power_of_two();
        let random = RandomState::new();
        let table = Neighbours {
            slots: (0..buckets * NEIGHBOURS_PER_BUCKET).map(|_| Slot::default()).collect(),
            keys: [random.hash_one(1), random.hash_one(2)],
            book: Mutex::new(Book {
                rate: Rate::new(NEIGHBOUR_QUESTIONS_PER_S),
                counters: NeighbourCounters::default(),
            }),
            news: AtomicU64::new(0),
            routers: routers.iter().copied().map(number).collect(),
            seen: std::array::from_fn(|_| Mutex::new(())),
        };
        for ip in &table.routers {
            if let Some(slot) = table.bucket(*ip).iter().find(|slot| slot.load().state == State::Empty) {
                slot.store(&Entry { ip: *ip, state: State::Reserved, ..Entry::default() });
            }
        }
        table
    }

    #[inline]
    fn bucket(&self, ip: u128) -> &[Slot] {
        let [one, two] = self.keys;
        let product = u128::from(ip as u64 ^ one) * u128::from((ip >> 64) as u64 ^ two | 1);
        let folded = (product as u64 ^ (product >> 64) as u64).wrapping_mul(one | 1);
        let buckets = self.slots.len() / NEIGHBOURS_PER_BUCKET;
        let at = (folded >> 32) as usize % buckets * NEIGHBOURS_PER_BUCKET;
        self.slots.get(at..at + NEIGHBOURS_PER_BUCKET).unwrap_or_default()
    }

    /// Looks an address up, without a lock.
    #[inline]
    pub(super) fn find(&self, now_us: u64, ip: IpAddr) -> Found {
        let ip = number(ip);
        match self.bucket(ip).iter().find_map(|slot| slot.find(ip)) {
            Some(entry) => judge(now_us, &entry),
            None => Found::Unknown,
        }
    }

    /// Grows when an address becomes known that somebody waits for.
    #[inline]
    pub(super) fn news(&self) -> u64 {
        self.news.load(Acquire)
    }

    /// What was counted.
    pub(super) fn counters(&self) -> NeighbourCounters {
        self.lock().counters
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to do for an address that is not known, or in doubt, and is wanted now. Who is told to ask does.
    pub(super) fn ask(&self, now_us: u64, ip: IpAddr) -> Ask {
        let ip = number(ip);
        let mut book = self.lock();
        let bucket = self.bucket(ip);
        let found = bucket.iter().find_map(|slot| slot.find(ip).map(|entry| (slot, entry)));
        let (slot, mut entry) = match found {
            Some((slot, entry)) => match judge(now_us, &entry) {
                Found::Here(_) | Found::Wait(_) | Found::Nobody => return Ask::Nothing,
                // It was given up once, or never asked: it begins anew.
                Found::Unknown if matches!(entry.state, State::Failed | State::Reserved) => {
                    (slot, Entry { ip, state: State::Asking, ..Entry::default() })
                }
                Found::Doubtful(_) | Found::Unknown => (slot, entry),
            },
            None => match self.place(bucket, now_us, true) {
                Some(slot) => (slot, Entry { ip, state: State::Asking, ..Entry::default() }),
                None => {
                    book.counters.no_room += 1;
                    return Ask::Nothing;
                }
            },
        };
        let probes = if matches!(entry.state, State::Known | State::Doubted) { NEIGHBOUR_PROBES } else { 0 };
        let round = entry.asked.saturating_sub(probes);
        let Some(wait_us) = NEIGHBOUR_RETRIES_US.get(usize::from(round)) else {
            entry = Entry { state: State::Failed, quiet_us: now_us + NEIGHBOUR_HOLD_US, ..entry };
            book.counters.failures += 1;
            slot.store(&entry);
            return Ask::Nothing;
        };
        if !self.routers.contains(&ip) && !book.rate.take(now_us) {
            book.counters.questions_saved += 1;
            entry.quiet_us = now_us + NEIGHBOUR_YIELD_US;
            slot.store(&entry);
            return Ask::Nothing;
        }
        let one = entry.asked < probes;
        entry.asked += 1;
        entry.quiet_us = now_us + if one { NEIGHBOUR_RETRIES_US[0] } else { *wait_us };
        book.counters.questions += 1;
        slot.store(&entry);
        if one { Ask::One(entry.mac) } else { Ask::Everybody }
    }

    /// Takes note of what a neighbour said. The caller has checked that it can be a neighbour's address.
    pub(super) fn heard(&self, now_us: u64, ip: IpAddr, mac: Mac, how: Heard) {
        let ip = number(ip);
        let mut book = self.lock();
        let bucket = self.bucket(ip);
        let found = bucket.iter().find_map(|slot| slot.find(ip).map(|entry| (slot, entry)));
        let Some((slot, entry)) = found.filter(|(_, entry)| entry.state != State::Reserved) else {
            if how == Heard::Question
                && let Some(slot) = found.map(|(slot, _)| slot).or_else(|| self.place(bucket, now_us, false))
            {
                slot.store(&unasked(ip, mac, 0, now_us));
            }
            return;
        };
        let confirmed = Entry { ip, mac, state: State::Known, asked: 0, confirmed_us: now_us, quiet_us: now_us };
        match (entry.state, how) {
            (State::Empty | State::Reserved, _) => {}
            // From the one who was believed; or after a question to everybody.
            (State::Known | State::Doubted, Heard::Answer)
                if entry.mac == mac && entry.confirmed_us > 0 || entry.asked > NEIGHBOUR_PROBES =>
            {
                book.counters.answers += 1;
                slot.store(&confirmed);
            }
            (State::Known | State::Doubted, _) if entry.mac == mac => {}
            (State::Known, _) if entry.confirmed_us > 0 && entry.asked == 0 => {
                book.counters.contradictions += 1;
                let quiet_us = now_us.max(entry.confirmed_us + NEIGHBOUR_LOCK_US);
                slot.store(&Entry { state: State::Doubted, quiet_us, ..entry });
            }
            (State::Known | State::Doubted, _) => book.counters.contradictions += 1,
            (State::Asking | State::Failed, Heard::Answer) => {
                book.counters.answers += 1;
                slot.store(&confirmed);
                self.news.fetch_add(1, Release);
            }
            (state, _) => {
                // An answer to what was asked meanwhile still counts.
                let rounds = if state == State::Asking { entry.asked } else { 0 };
                slot.store(&unasked(ip, mac, rounds, now_us));
                self.news.fetch_add(1, Release);
            }
        }
    }

    /// Takes note of where a datagram came from, on an interface that hears no answers ([`super::StackOptions::isolated`]). Who was heard last has the
    /// address: whoever forges it loses it to the next datagram of its owner, whose answer is sent after that.
    #[inline]
    pub(super) fn seen(&self, now_us: u64, ip: IpAddr, mac: Mac) {
        let ip = number(ip);
        let is_so = |entry: Entry| entry.mac == mac && now_us.saturating_sub(entry.confirmed_us) < NEIGHBOUR_SEEN_US;
        if !self.bucket(ip).iter().find_map(|slot| slot.find(ip)).is_some_and(is_so) {
            self.now_seen(now_us, ip, mac);
        }
    }

    #[cold]
    fn now_seen(&self, now_us: u64, ip: u128, mac: Mac) {
        let bucket = self.bucket(ip);
        let _nobody_else_changes_it = self.seen_lock(bucket);
        let own = bucket.iter().find(|slot| slot.find(ip).is_some());
        // Who was heard once gives way before who was heard again, as those of a flood are not; free places have the time 0.
        let rank = |slot: &&Slot| {
            let Entry { asked, confirmed_us, .. } = slot.load();
            let is_of_late = now_us.saturating_sub(confirmed_us) < NEIGHBOUR_REACHABLE_US;
            (asked > 0 && is_of_late, confirmed_us)
        };
        if let Some(slot) = own.or_else(|| bucket.iter().min_by_key(rank)) {
            let asked = u8::from(own.is_some());
            slot.store(&Entry { ip, mac, state: State::Known, asked, confirmed_us: now_us, quiet_us: now_us });
        }
    }

    /// Where nobody is asked, each bucket has one of these locks, not all of them that of the book: every new sender takes it.
    fn seen_lock(&self, bucket: &[Slot]) -> MutexGuard<'_, ()> {
        let offset = bucket.as_ptr().addr().wrapping_sub(self.slots.as_ptr().addr());
        let number = offset / (size_of::<Slot>() * NEIGHBOURS_PER_BUCKET) % self.seen.len();
        self.seen[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the last datagram of this address came from.
    #[inline]
    pub(super) fn seen_at(&self, ip: IpAddr) -> Option<Mac> {
        let ip = number(ip);
        let bucket = self.bucket(ip);
        let look = || bucket.iter().find_map(|slot| slot.find(ip)).map(|entry| entry.mac);
        look().or_else(|| {
            // It may be changing just now.
            let _nobody_changes_it = self.seen_lock(bucket);
            look()
        })
    }

    /// A place in a bucket for a newcomer, `wanted` by us or else by itself. None if all others have more right to theirs.
    fn place<'b>(&self, bucket: &'b [Slot], now_us: u64, wanted: bool) -> Option<&'b Slot> {
        // What has least right goes first; among equals, what was touched longest ago.
        let rank = |entry: &Entry| {
            let idle_us = now_us.saturating_sub(entry.quiet_us.max(entry.confirmed_us));
            match entry.state {
                _ if self.routers.contains(&entry.ip) => None,
                State::Empty => Some((0, 0)),
                State::Failed if idle_us > 0 => Some((1, entry.quiet_us)),
                State::Known if entry.confirmed_us == 0 && entry.asked <= NEIGHBOUR_PROBES => Some((2, entry.quiet_us)),
                // It was asked and has not answered.
                State::Known if entry.confirmed_us == 0 && wanted && now_us >= entry.quiet_us => {
                    Some((3, entry.quiet_us))
                }
                State::Asking if wanted && now_us.saturating_sub(asked_us(entry)) >= NEIGHBOUR_YIELD_US => {
                    Some((3, entry.quiet_us))
                }
                State::Known | State::Doubted if wanted && idle_us >= NEIGHBOUR_REACHABLE_US => {
                    Some((4, entry.confirmed_us))
                }
                _ => None,
            }
        };
        let ranked = bucket.iter().filter_map(|slot| rank(&slot.load()).map(|rank| (rank, slot)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, slot)| slot)
    }

    /// All neighbours that are known, with the time of their last answer (0: none yet).
    pub(super) fn list(&self) -> Vec<(IpAddr, Mac, u64)> {
        let _book = self.lock();
        let _seen: Vec<_> = self.seen.iter().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner)).collect();
        let entries =
            self.slots.iter().map(Slot::load).filter(|entry| matches!(entry.state, State::Known | State::Doubted));
        entries.map(|entry| (address(entry.ip), entry.mac, entry.confirmed_us)).collect()
    }
}

/// Who has said unasked that it is at `mac`: used at once, and everybody asked, which was done `rounds` times.
fn unasked(ip: u128, mac: Mac, rounds: u8, now_us: u64) -> Entry {
    Entry { ip, mac, state: State::Known, asked: NEIGHBOUR_PROBES + rounds, confirmed_us: 0, quiet_us: now_us }
}

/// What an entry says at this time.
#[inline]
fn judge(now_us: u64, entry: &Entry) -> Found {
    let quiet = now_us < entry.quiet_us;
    match entry.state {
        State::Doubted => {
            if quiet {
                Found::Here(entry.mac)
            } else {
                Found::Doubtful(entry.mac)
            }
        }
        State::Known => {
            let fresh = entry.confirmed_us > 0 && now_us.saturating_sub(entry.confirmed_us) < NEIGHBOUR_REACHABLE_US;
            if fresh || quiet { Found::Here(entry.mac) } else { Found::Doubtful(entry.mac) }
        }
        State::Asking if quiet => Found::Wait(entry.quiet_us),
        State::Failed if quiet => Found::Nobody,
        _ => Found::Unknown,
    }
}

/// When the last question was asked.
fn asked_us(entry: &Entry) -> u64 {
    let round = usize::from(entry.asked.saturating_sub(1)).min(NEIGHBOUR_RETRIES_US.len() - 1);
    entry.quiet_us.saturating_sub(NEIGHBOUR_RETRIES_US.get(round).copied().unwrap_or(0))
}

//! How many connections the whole server has, and whose they are; of those that have not shown that, where they come
//! from.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::seat::{At, Origin, Seat};
use super::slots::dynamic_threshold_admits;
use crate::limits::connections::{MAX_CONNECTIONS, OTHER_FILES, STRANGERS_OF_ADDRESS, STRANGERS_OF_ADDRESS_ONE_IN};

/// How many connections the server has, and may have.
pub(in crate::workers) struct ConnectionBudget {
    held: Mutex<ConnectionCounts>,
    limit: usize,
}

/// Connections, whatever worker has them or will have.
#[derive(Default)]
struct ConnectionCounts {
    live: usize,
    /// Of each tenant; 0: of those that have not shown whose they are.
    of: HashMap<u32, usize>,
    /// Those, by where they come from, and where they are as soon as that is known.
    seats: HashMap<Origin, BTreeMap<u64, Option<At>>>,
    /// The same by how many come from there, then by who of them came last: the last is who has most.
    most: BTreeSet<(usize, Reverse<u64>, Origin)>,
    seated: u64,
}

impl ConnectionCounts {
    fn add(&mut self, tenant: u32) {
        self.live += 1;
        *self.of.entry(tenant).or_default() += 1;
    }

    fn remove(&mut self, tenant: u32) {
        self.live = self.live.saturating_sub(1);
        if let Some(held) = self.of.get_mut(&tenant) {
            *held -= 1;
            if *held == 0 {
                self.of.remove(&tenant);
            }
        }
    }

    fn of(&self, tenant: u32) -> usize {
        self.of.get(&tenant).copied().unwrap_or(0)
    }

    /// Changes what comes from one address.
    fn change<T>(&mut self, origin: Origin, f: impl FnOnce(&mut BTreeMap<u64, Option<At>>) -> T) -> T {
        let seats = self.seats.entry(origin).or_default();
        let rank = |seats: &BTreeMap<u64, Option<At>>| {
            seats.first_key_value().map(|(oldest, _)| (seats.len(), Reverse(*oldest), origin))
        };
        let before = rank(seats);
        let result = f(seats);
        let now = rank(seats);
        if before != now {
            before.map(|before| self.most.remove(&before));
            self.most.extend(now);
        }
        if now.is_none() {
            self.seats.remove(&origin);
        }
        result
    }

    /// Takes a seat's connection away; false: it has none any more.
    fn leave(&mut self, seat: Seat) -> bool {
        let was_there = self.change(seat.origin, |seats| seats.remove(&seat.number).is_some());
        if was_there {
            self.remove(0);
        }
        was_there
    }

    /// Takes the oldest away of the address that has most, if it has more than `own`.
    fn shed(&mut self, own: usize) -> Option<At> {
        let (_, _, origin) = *self.most.last().filter(|(count, ..)| *count > own)?;
        let seats = self.seats.get(&origin)?;
        // One that has come just now and is nowhere yet is passed by.
        let (number, at) = seats.iter().find_map(|(number, at)| at.map(|at| (*number, at)))?;
        self.leave(Seat { origin, number });
        Some(at)
    }
}

impl ConnectionBudget {
    /// Room for as many as the process may have files open; the limit of those is raised as far as it can be.
    pub(in crate::workers) fn new() -> ConnectionBudget {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let files = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: files.maximum, maximum: files.maximum };
        let may = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => files.maximum,
            Err(_) => files.current,
        };
        let may = may.map_or(usize::MAX, |may| usize::try_from(may).unwrap_or(usize::MAX));
        ConnectionBudget::of(ConnectionBudget::within(may))
    }

    /// Connections where so many files may be open: half of them at most, where they are few.
    fn within(files: usize) -> usize {
        (files - OTHER_FILES.min(files / 2)).clamp(1, MAX_CONNECTIONS)
    }

    fn of(limit: usize) -> ConnectionBudget {
        ConnectionBudget { held: Mutex::default(), limit }
    }

    /// Connections that there may be.
    pub(in crate::workers) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes a place for one of a tenant, if it may have one more.
    pub(super) fn take(&self, tenant: u32) -> bool {
        let mut held = self.held.lock();
        let may = dynamic_threshold_admits(self.limit, held.live, held.of(tenant));
        if may {
            held.add(tenant);
        }
        may
    }

    /// Takes a place for one that has not shown whose it is, if its address may have one more; and tells whose place
    /// that was, where all were taken: of the address that has most, the oldest. Nobody counts that one any more.
    pub(super) fn take_stranger(&self, origin: Origin) -> Option<(Seat, Option<At>)> {
        let mut held = self.held.lock();
        let own = held.seats.get(&origin).map_or(0, BTreeMap::len);
        if own >= (self.limit / STRANGERS_OF_ADDRESS_ONE_IN).clamp(1, STRANGERS_OF_ADDRESS) {
            return None;
        }
        let goes =
            if dynamic_threshold_admits(self.limit, held.live, held.of(0)) { None } else { Some(held.shed(own)?) };
        held.seated += 1;
        let seat = Seat { origin, number: held.seated };
        held.add(0);
        held.change(origin, |seats| seats.insert(seat.number, None));
        Some((seat, goes))
    }

    /// Tells where the connection is that has a seat.
    pub(super) fn seated(&self, seat: Seat, at: At) {
        let mut held = self.held.lock();
        if let Some(found) = held.seats.get_mut(&seat.origin).and_then(|seats| seats.get_mut(&seat.number)) {
            *found = Some(at);
        }
    }

    /// One has shown whose it is, that was counted for `before`, or had a seat until it had to go. Whether that tenant
    /// may have one more; if not, it still counts as it did.
    pub(super) fn pass(&self, before: u32, seat: Option<Seat>, tenant: u32) -> bool {
        let mut held = self.held.lock();
        let is_seated =
            |seat: &Seat| held.seats.get(&seat.origin).is_some_and(|seats| seats.contains_key(&seat.number));
        let counts = seat.as_ref().is_none_or(is_seated);
        let may = dynamic_threshold_admits(self.limit, held.live.saturating_sub(usize::from(counts)), held.of(tenant));
        if may {
            match seat {
                Some(seat) => {
                    held.leave(seat);
                }
                None => held.remove(before),
            }
            held.add(tenant);
        }
        may
    }

    /// One of a tenant is gone, or one that had a seat.
    pub(super) fn leave(&self, tenant: u32, seat: Option<Seat>) {
        let mut held = self.held.lock();
        match seat {
            Some(seat) => {
                held.leave(seat);
            }
            None => held.remove(tenant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection_id::ConnectionId;
    use super::*;

    #[test]
    fn however_few_files_may_be_open_some_are_left_for_everything_else() {
        for (files, connections) in [(0, 1), (64, 32), (1_024, 512), (4_096, 3_072), (1 << 20, MAX_CONNECTIONS)] {
            assert_eq!(ConnectionBudget::within(files), connections);
        }
        assert_eq!(ConnectionBudget::within(usize::MAX), MAX_CONNECTIONS);
    }

    #[test]
    fn a_tenant_gets_two_thirds_whatever_worker_has_its_connections() {
        let room = ConnectionBudget::of(300);
        let taken = (0..300).take_while(|_| room.take(7)).count();
        assert_eq!(taken, 200);
        let (seat, _) = room.take_stranger(Origin(None)).expect("there is room for others");
        assert!(!room.take(7) && room.take(8));
        assert!(!room.pass(0, Some(seat), 7) && room.pass(0, Some(seat), 8));
        (0..200).for_each(|_| room.leave(7, None));
        assert!(room.take(7));
        (0..3).for_each(|_| room.leave(if room.held.lock().of.contains_key(&7) { 7 } else { 8 }, None));
        let held = room.held.lock();
        assert_eq!((held.live, held.of.len(), held.seats.len(), held.most.len()), (0, 0, 0, 0));
    }

    fn come(room: &ConnectionBudget, from: u128, place: u32) -> Option<(Seat, Option<At>)> {
        let (seat, goes) = room.take_stranger(Origin(Some(from)))?;
        room.seated(seat, (0, ConnectionId { slot: place, generation: 0 }));
        Some((seat, goes))
    }

    #[test]
    fn whoever_has_most_strangers_gives_way_and_one_address_has_a_share() {
        let room = ConnectionBudget::of(60);
        let seats: Vec<Seat> = (0..60).map_while(|place| come(&room, 1, place)).map(|(seat, _)| seat).collect();
        assert_eq!(seats.len(), 60 / STRANGERS_OF_ADDRESS_ONE_IN, "one address");
        for (from, count) in [(2, 15), (3, 10)] {
            assert_eq!(
                (0..count).map_while(|place| come(&room, from, 100 * from as u32 + place)).count(),
                count as usize
            );
        }
        assert_eq!(room.held.lock().live, 40, "two thirds are theirs");
        // A newcomer takes the oldest's place of an address that has most; that one is counted no longer, however it
        // ends.
        let (_, goes) = come(&room, 9, 900).expect("a seat");
        assert_eq!(goes.map(|(_, name)| name.slot), Some(0));
        assert_eq!(room.held.lock().live, 40);
        room.leave(0, seats.first().copied());
        assert_eq!(room.held.lock().live, 40);
        // One that shows whose it is while it has to go counts for its tenant.
        let (_, goes) = come(&room, 9, 901).expect("a seat");
        assert_eq!(goes.map(|(_, name)| name.slot), Some(200), "by turns");
        let (_, goes) = come(&room, 9, 902).expect("a seat");
        assert_eq!(goes.map(|(_, name)| name.slot), Some(1));
        assert!(room.pass(0, seats.get(1).copied(), 7));
        let counts = |held: &ConnectionCounts| (held.live, held.of(7));
        assert_eq!(counts(&room.held.lock()), (41, 1));
        // Who has most itself waits for its own.
        let all = std::iter::from_fn(|| come(&room, 9, 903)).count();
        assert!(all < 15 && room.held.lock().live == 41, "{all}");
        let largest = room.held.lock().seats.values().map(BTreeMap::len).max();
        assert!(largest.is_some_and(|largest| largest <= 14), "{largest:?}");
    }
}

//! The connections of the whole server: their number, by tenant, and by address for unauthenticated clients.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use parking_lot::Mutex;
use sandstorm_net::dynamic_threshold::DynamicThreshold;

use super::permit::{ConnectionLocation, Origin, UnauthenticatedPermit};
use crate::limits::connections::{
    MAX_CONNECTIONS, OTHER_FILES, UNAUTHENTICATED_PER_ADDRESS, UNAUTHENTICATED_PER_ADDRESS_ONE_IN,
};

/// The number of connections of the server, and its limit.
pub(in crate::workers) struct ConnectionBudget {
    counts: Mutex<ConnectionCounts>,
    limit: usize,
}

/// The counts of connections, at any worker.
#[derive(Default)]
struct ConnectionCounts {
    live: usize,
    /// By tenant; 0: unauthenticated.
    of: HashMap<u32, usize>,
    /// The unauthenticated ones by origin, each with its worker and id as soon as these are known.
    permits: HashMap<Origin, BTreeMap<u64, Option<ConnectionLocation>>>,
    /// The same origins by the number of their connections, then by the age of the oldest. The last has most.
    most: BTreeSet<(usize, Reverse<u64>, Origin)>,
    assign: u64,
}

impl ConnectionCounts {
    fn add(&mut self, tenant: u32) {
        self.live += 1;
        *self.of.entry(tenant).or_default() += 1;
    }

    fn remove(&mut self, tenant: u32) {
        self.live = self.live.saturating_sub(1);
        if let Some(count) = self.of.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&tenant);
            }
        }
    }

    fn of(&self, tenant: u32) -> usize {
        self.of.get(&tenant).copied().unwrap_or(0)
    }

    /// Changes the permits of one origin, and its rank.
    fn change<T>(&mut self, origin: Origin, f: impl FnOnce(&mut BTreeMap<u64, Option<ConnectionLocation>>) -> T) -> T {
        let permits = self.permits.entry(origin).or_default();
        let rank = |permits: &BTreeMap<u64, Option<ConnectionLocation>>| {
            permits.first_key_value().map(|(oldest, _)| (permits.len(), Reverse(*oldest), origin))
        };
        let before = rank(permits);
        let result = f(permits);
        let now = rank(permits);
        if before != now {
            before.map(|before| self.most.remove(&before));
            self.most.extend(now);
        }
        if now.is_none() {
            self.permits.remove(&origin);
        }
        result
    }

    /// Removes a permit. Returns false if it was removed before.
    fn leave(&mut self, permit: UnauthenticatedPermit) -> bool {
        let existed = self.change(permit.origin, |permits| permits.remove(&permit.number).is_some());
        if existed {
            self.remove(0);
        }
        existed
    }

    /// Removes the oldest permit of the origin with most connections, if that has more than `own`.
    fn shed(&mut self, own: usize) -> Option<ConnectionLocation> {
        let (_, _, origin) = *self.most.last().filter(|(count, ..)| *count > own)?;
        let permits = self.permits.get(&origin)?;
        // A connection without a known worker and id is skipped.
        let (number, at) = permits.iter().find_map(|(number, at)| at.map(|at| (*number, at)))?;
        self.leave(UnauthenticatedPermit { origin, number });
        Some(at)
    }
}

impl ConnectionBudget {
    /// Allows as many as the process may have files open; raises the limit of open files as far as possible.
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

    /// The limit for a process with so many files: at most half of them if they are few.
    fn within(files: usize) -> usize {
        (files - OTHER_FILES.min(files / 2)).clamp(1, MAX_CONNECTIONS)
    }

    fn of(limit: usize) -> ConnectionBudget {
        ConnectionBudget { counts: Mutex::default(), limit }
    }

    /// The number of connections that there may be.
    pub(in crate::workers) fn limit(&self) -> usize {
        self.limit
    }

    /// Reserves a connection for a tenant, if it may have one more.
    pub(super) fn take(&self, tenant: u32) -> bool {
        let mut counts = self.counts.lock();
        let may = DynamicThreshold::of(self.limit).admits(counts.live, counts.of(tenant));
        if may {
            counts.add(tenant);
        }
        may
    }

    /// Reserves a permit for an unauthenticated connection, if its origin may have one more. At the limit, the oldest
    /// connection of the origin with most loses its permit. It is returned, and no longer counted.
    pub(super) fn take_unauthenticated(
        &self,
        origin: Origin,
    ) -> Option<(UnauthenticatedPermit, Option<ConnectionLocation>)> {
        let mut counts = self.counts.lock();
        let own = counts.permits.get(&origin).map_or(0, BTreeMap::len);
        if own >= (self.limit / UNAUTHENTICATED_PER_ADDRESS_ONE_IN).clamp(1, UNAUTHENTICATED_PER_ADDRESS) {
            return None;
        }
        let displaced = if DynamicThreshold::of(self.limit).admits(counts.live, counts.of(0)) {
            None
        } else {
            Some(counts.shed(own)?)
        };
        counts.assign += 1;
        let permit = UnauthenticatedPermit { origin, number: counts.assign };
        counts.add(0);
        counts.change(origin, |permits| permits.insert(permit.number, None));
        Some((permit, displaced))
    }

    /// Notes the worker and id of the connection with a permit.
    pub(super) fn assign(&self, permit: UnauthenticatedPermit, at: ConnectionLocation) {
        let mut counts = self.counts.lock();
        if let Some(found) = counts.permits.get_mut(&permit.origin).and_then(|permits| permits.get_mut(&permit.number))
        {
            *found = Some(at);
        }
    }

    /// Counts a connection that has authenticated for its tenant; it was counted for `before` or had a permit. Returns
    /// whether the tenant may have one more; if not, nothing changes.
    pub(super) fn pass(&self, before: u32, permit: Option<UnauthenticatedPermit>, tenant: u32) -> bool {
        let mut counts = self.counts.lock();
        let has_permit = |permit: &UnauthenticatedPermit| {
            counts.permits.get(&permit.origin).is_some_and(|permits| permits.contains_key(&permit.number))
        };
        let is_counted = permit.as_ref().is_none_or(has_permit);
        let may = DynamicThreshold::of(self.limit)
            .admits(counts.live.saturating_sub(usize::from(is_counted)), counts.of(tenant));
        if may {
            match permit {
                Some(permit) => {
                    counts.leave(permit);
                }
                None => counts.remove(before),
            }
            counts.add(tenant);
        }
        may
    }

    /// Releases a tenant's connection, or one with a permit.
    pub(super) fn leave(&self, tenant: u32, permit: Option<UnauthenticatedPermit>) {
        let mut counts = self.counts.lock();
        match permit {
            Some(permit) => {
                counts.leave(permit);
            }
            None => counts.remove(tenant),
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
        let budget = ConnectionBudget::of(300);
        let taken = (0..300).take_while(|_| budget.take(7)).count();
        assert_eq!(taken, 200);
        let (permit, _) = budget.take_unauthenticated(Origin(None)).expect("there is room for others");
        assert!(!budget.take(7) && budget.take(8));
        assert!(!budget.pass(0, Some(permit), 7) && budget.pass(0, Some(permit), 8));
        (0..200).for_each(|_| budget.leave(7, None));
        assert!(budget.take(7));
        (0..3).for_each(|_| budget.leave(if budget.counts.lock().of.contains_key(&7) { 7 } else { 8 }, None));
        let counts = budget.counts.lock();
        assert_eq!((counts.live, counts.of.len(), counts.permits.len(), counts.most.len()), (0, 0, 0, 0));
    }

    fn connect(
        budget: &ConnectionBudget,
        from: u128,
        index: u32,
    ) -> Option<(UnauthenticatedPermit, Option<ConnectionLocation>)> {
        let (permit, displaced) = budget.take_unauthenticated(Origin(Some(from)))?;
        budget.assign(permit, (0, ConnectionId::new(index, 0)));
        Some((permit, displaced))
    }

    #[test]
    fn the_address_with_most_unauthenticated_connections_loses_one_and_each_has_a_limit() {
        let budget = ConnectionBudget::of(60);
        let permits: Vec<UnauthenticatedPermit> =
            (0..60).map_while(|index| connect(&budget, 1, index)).map(|(permit, _)| permit).collect();
        assert_eq!(permits.len(), 60 / UNAUTHENTICATED_PER_ADDRESS_ONE_IN, "one address");
        for (from, count) in [(2, 15), (3, 10)] {
            assert_eq!(
                (0..count).map_while(|index| connect(&budget, from, 100 * from as u32 + index)).count(),
                count as usize
            );
        }
        assert_eq!(budget.counts.lock().live, 40, "two thirds are theirs");
        // A newcomer takes the permit of the oldest connection of an origin with most. That one is no longer counted,
        // however it ends.
        let (_, displaced) = connect(&budget, 9, 900).expect("a permit");
        assert_eq!(displaced.map(|(_, name)| name.slot()), Some(0));
        assert_eq!(budget.counts.lock().live, 40);
        budget.leave(0, permits.first().copied());
        assert_eq!(budget.counts.lock().live, 40);
        // A connection that authenticates after it lost its permit counts for its tenant.
        let (_, displaced) = connect(&budget, 9, 901).expect("a permit");
        assert_eq!(displaced.map(|(_, name)| name.slot()), Some(200), "by turns");
        let (_, displaced) = connect(&budget, 9, 902).expect("a permit");
        assert_eq!(displaced.map(|(_, name)| name.slot()), Some(1));
        assert!(budget.pass(0, permits.get(1).copied(), 7));
        let counts = |counts: &ConnectionCounts| (counts.live, counts.of(7));
        assert_eq!(counts(&budget.counts.lock()), (41, 1));
        // An origin with most connections has to wait for its own.
        let all = std::iter::from_fn(|| connect(&budget, 9, 903)).count();
        assert!(all < 15 && budget.counts.lock().live == 41, "{all}");
        let largest = budget.counts.lock().permits.values().map(BTreeMap::len).max();
        assert!(largest.is_some_and(|largest| largest <= 14), "{largest:?}");
    }
}

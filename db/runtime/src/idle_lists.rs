//! Idle invocations and memories of sandboxed code that an engine keeps, by the tenant that used each last.
//!
//! A tenant's next call in one of its own needs no clearing, and finds what it needs in place. So hundreds of tenants
//! that take turns keep theirs, each. Of more tenants than there is room for, most of those that come anew hand a few
//! on among each other ([`Newcomers`]).

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::newcomers::Newcomers;

/// Tenants in the order of which some may have none left; with more, those are forgotten. It exceeds twice what an
/// engine keeps, so that each look at all of them is preceded by as many calls.
const QUEUED_TENANTS: usize = 2_048;

/// Those of one tenant.
#[derive(Debug)]
struct TenantList<T> {
    idle: Vec<T>,
    /// Whether the tenant is in the order, or one of the newcomers.
    is_queued: bool,
}

impl<T> Default for TenantList<T> {
    fn default() -> TenantList<T> {
        TenantList { idle: Vec::new(), is_queued: false }
    }
}

/// Idle values, by tenant.
#[derive(Debug)]
pub(super) struct IdleLists<T> {
    /// The tenant that was asked for last, and its own.
    last_tenant: u64,
    last: TenantList<T>,
    /// Those of the others.
    lists: HashMap<u64, TenantList<T>>,
    /// Tenants, each once: the first one's go to others first. Some have none left.
    order: VecDeque<u64>,
    /// Tenants that came while there was no room, each once, the last one last. Others get what they leave before they
    /// get anything of those in the order.
    newcomers: VecDeque<u64>,
    len: usize,
    /// How many there were when one was last asked for another tenant: then there is no room for more, until it is said
    /// that there is ([`IdleLists::note_room`]).
    full_at: usize,
    counted: Newcomers,
}

impl<T> IdleLists<T> {
    pub(super) fn new() -> IdleLists<T> {
        IdleLists {
            last_tenant: 0,
            last: TenantList::default(),
            lists: HashMap::new(),
            order: VecDeque::new(),
            newcomers: VecDeque::new(),
            len: 0,
            full_at: usize::MAX,
            counted: Newcomers::default(),
        }
    }

    /// The number of all.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes one of this tenant's. Returns also the ones that it will take next, to be prefetched.
    #[inline]
    pub(super) fn take_own(&mut self, tenant: u64) -> Option<(T, &[T])> {
        let own = self.list(tenant);
        let taken = own.idle.pop()?;
        self.len -= 1;
        Some((taken, &self.last.idle))
    }

    /// Takes one for a tenant that has none of its own, where there is no room for more. It is the latest that such a
    /// tenant has left, if any.
    pub(super) fn take_for_another(&mut self) -> Option<T> {
        self.full_at = self.len;
        self.take_newcomers().or_else(|| self.take_any())
    }

    /// Notes that a new one is made for a tenant that has none of its own: there is room, so what it leaves stays its
    /// own. There may have been none before, where other engines had what all of them share.
    pub(super) fn note_room(&mut self) {
        self.full_at = usize::MAX;
    }

    /// Takes the latest that a newcomer has left.
    fn take_newcomers(&mut self) -> Option<T> {
        while let Some(tenant) = self.newcomers.pop_back() {
            let (taken, has_more) = self.take_queued(tenant);
            if has_more {
                self.newcomers.push_back(tenant);
            }
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// Takes one of any tenant's: of the newcomer that has waited longest, so that the others find their own. Where
    /// there are no newcomers it is of one tenant after the other.
    pub(super) fn take_any(&mut self) -> Option<T> {
        while let Some(tenant) = self.newcomers.pop_front() {
            let (taken, has_more) = self.take_queued(tenant);
            if has_more {
                self.newcomers.push_front(tenant);
            }
            if taken.is_some() {
                return taken;
            }
        }
        while let Some(tenant) = self.order.pop_front() {
            let (taken, has_more) = self.take_queued(tenant);
            if has_more {
                self.order.push_back(tenant);
            }
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// Takes one of a tenant that was just taken from its queue, and returns whether it has more. A tenant that has
    /// lost its last one comes anew: it is in no queue any more.
    fn take_queued(&mut self, tenant: u64) -> (Option<T>, bool) {
        let list = if tenant == self.last_tenant { Some(&mut self.last) } else { self.lists.get_mut(&tenant) };
        let Some(list) = list else { return (None, false) };
        let (taken, has_more) = (list.idle.pop(), !list.idle.is_empty());
        if !has_more {
            list.is_queued = false;
            self.lists.remove(&tenant);
        }
        self.len -= usize::from(taken.is_some());
        (taken, has_more)
    }

    /// Keeps one that this tenant ran in.
    #[inline]
    pub(super) fn keep(&mut self, tenant: u64, idle: T) {
        let own = self.list(tenant);
        own.idle.push(idle);
        if !std::mem::replace(&mut own.is_queued, true) {
            self.queue(tenant);
        }
        self.len += 1;
    }

    fn queue(&mut self, tenant: u64) {
        if self.len + 1 >= self.full_at && !self.counted.next_stays() {
            self.newcomers.push_back(tenant);
        } else {
            self.order.push_back(tenant);
        }
        if self.order.len() + self.newcomers.len() > QUEUED_TENANTS {
            self.forget_tenants_without();
        }
    }

    /// Changes each.
    pub(super) fn for_each(&mut self, mut change: impl FnMut(&mut T)) {
        let others = self.lists.values_mut().flat_map(|list| &mut list.idle);
        self.last.idle.iter_mut().chain(others).for_each(&mut change);
    }

    /// Makes this tenant's list the last one.
    #[inline]
    fn list(&mut self, tenant: u64) -> &mut TenantList<T> {
        if self.last_tenant != tenant {
            let next = self.lists.remove(&tenant).unwrap_or_default();
            let last = std::mem::replace(&mut self.last, next);
            let last_tenant = std::mem::replace(&mut self.last_tenant, tenant);
            if last.is_queued {
                self.lists.insert(last_tenant, last);
            }
        }
        &mut self.last
    }

    /// Forgets tenants that have none: of those that are deleted nothing stays.
    #[cold]
    fn forget_tenants_without(&mut self) {
        let IdleLists { last_tenant, last, lists, order, newcomers, .. } = self;
        lists.retain(|_, list| !list.idle.is_empty());
        last.is_queued = !last.idle.is_empty();
        let last_is_queued = last.is_queued;
        let has_some = |tenant: &u64| if tenant == last_tenant { last_is_queued } else { lists.contains_key(tenant) };
        order.retain(has_some);
        newcomers.retain(has_some);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::NEWCOMERS_PER_RESIDENT;

    /// A small generator; nothing here depends on its quality.
    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    #[test]
    fn it_is_as_a_list_of_all_from_which_each_takes_its_own_last_one() {
        let (mut idle, mut model, mut state) = (IdleLists::new(), Vec::<(u64, u32)>::new(), 7);
        for number in 0..200_000_u32 {
            let tenant = 1 + random(&mut state, 12);
            let is_for_another = random(&mut state, 2) == 0;
            match random(&mut state, 5) {
                0 | 1 => {
                    idle.keep(tenant, (tenant, number));
                    model.push((tenant, number));
                }
                2 | 3 => {
                    let own = model.iter().rposition(|(owner, _)| *owner == tenant).map(|at| model.remove(at));
                    assert_eq!(idle.take_own(tenant).map(|(taken, _)| taken), own);
                }
                _ => match if is_for_another { idle.take_for_another() } else { idle.take_any() } {
                    // Of each tenant it is the last one.
                    Some(taken) => {
                        let at = model.iter().rposition(|(owner, _)| *owner == taken.0).expect("it was kept");
                        assert_eq!(model.remove(at), taken);
                    }
                    None => assert!(model.is_empty()),
                },
            }
            assert_eq!(idle.len(), model.len());
        }
        let mut all = Vec::new();
        idle.for_each(|kept| all.push(*kept));
        all.sort_unstable();
        model.sort_unstable();
        assert_eq!(all, model);
    }

    #[test]
    fn those_of_all_tenants_go_to_others_in_turn() {
        let mut idle = IdleLists::new();
        for number in 0..30 {
            idle.keep(1 + number % 3, number);
        }
        let taken: Vec<u64> = std::iter::from_fn(|| idle.take_any()).map(|number| number % 3).collect();
        assert!(taken.chunks(3).all(|of_each| of_each == [0, 1, 2]), "{taken:?}");
        assert!(taken.len() == 30 && idle.len() == 0);
    }

    /// Runs a call of a tenant where so many idle ones are kept; returns whether it found its own.
    fn call(idle: &mut IdleLists<u64>, room: usize, tenant: u64) -> bool {
        let own = idle.take_own(tenant).map(|(own, _)| own);
        let taken = own.or_else(|| if idle.len() >= room { idle.take_for_another() } else { None });
        idle.keep(tenant, tenant);
        assert!(idle.len() <= room, "there is no more than there is room for");
        taken == Some(tenant)
    }

    #[test]
    fn of_twice_as_many_tenants_by_turns_as_there_is_room_for_nearly_half_find_their_own() {
        const ROOM: usize = 1_024;
        let mut idle = IdleLists::new();
        let mut round = || (1..=2 * ROOM as u64).filter(|tenant| call(&mut idle, ROOM, *tenant)).count();
        round();
        for _ in 0..20 {
            let found = round();
            assert!(found > ROOM * 8 / 10, "{found}: none would find its own if the one that waits longest went");
        }
    }

    #[test]
    fn those_that_come_anew_get_room_though_others_had_it_all() {
        const ROOM: usize = 64;
        let mut idle = IdleLists::new();
        (1..=ROOM as u64).for_each(|stale| assert!(!call(&mut idle, ROOM, stale)));
        for come in [1_000, 2_000, 3_000] {
            let tenants = come..come + 8;
            for _ in 0..8 * NEWCOMERS_PER_RESIDENT {
                for tenant in tenants.clone() {
                    call(&mut idle, ROOM, tenant);
                }
            }
            assert!(tenants.clone().all(|tenant| call(&mut idle, ROOM, tenant)), "they find their own from then on");
        }
    }

    #[test]
    fn what_is_given_up_is_a_newcomers_before_it_is_that_of_a_tenant_with_room_for_good() {
        const ROOM: usize = 8;
        let mut idle = IdleLists::new();
        (1..=ROOM as u64).for_each(|resident| assert!(!call(&mut idle, ROOM, resident)));
        // One of the residents', which has waited longest, is a newcomer's from now on.
        call(&mut idle, ROOM, 100);
        assert_eq!(idle.take_any(), Some(100));
        assert!((2..=ROOM as u64).all(|resident| idle.take_any() == Some(resident)), "then one after the other");
        assert_eq!(idle.take_any(), None);
    }

    #[test]
    fn tenants_that_get_new_ones_are_no_newcomers_though_there_was_no_room_before() {
        let mut idle = IdleLists::new();
        (1..=4).for_each(|tenant| assert!(!call(&mut idle, 2, tenant)));
        assert_eq!((idle.len(), idle.newcomers.len()), (2, 1), "the last one used another's");
        for tenant in 10..40 {
            assert!(idle.take_own(tenant).is_none());
            idle.note_room();
            idle.keep(tenant, tenant);
        }
        assert_eq!((idle.newcomers.len(), idle.order.len()), (1, 31));
        // What newcomers hand on from now on is no one's of these.
        for newcomer in 100..100 + u64::from(NEWCOMERS_PER_RESIDENT) / 2 {
            call(&mut idle, 32, newcomer);
        }
        assert!((10..40).all(|tenant| call(&mut idle, 32, tenant)), "they find their own");
    }

    #[test]
    fn tenants_that_come_and_go_leave_nothing_behind() {
        let mut idle = IdleLists::new();
        for tenant in 1..=100_000 {
            idle.keep(tenant, ());
            assert!(idle.take_own(tenant).is_some());
        }
        assert!(idle.order.len() <= QUEUED_TENANTS && idle.lists.len() <= QUEUED_TENANTS);
        assert!(idle.take_any().is_none() && idle.lists.is_empty() && idle.order.is_empty());
        // The same where there is no room.
        for tenant in 1..=100_000 {
            idle.keep(tenant, ());
            assert!(idle.take_for_another().is_some());
        }
        assert!(idle.newcomers.len() + idle.order.len() <= QUEUED_TENANTS && idle.lists.len() <= QUEUED_TENANTS);
        assert!(idle.take_any().is_none() && idle.lists.is_empty() && idle.newcomers.is_empty());
    }
}

//! Idle invocations and memories of sandboxed code that an engine keeps, by the tenant that used each last.
//!
//! A tenant's next call reuses its own: nothing has to be cleared, and its pages are in place. So hundreds of tenants
//! that take turns keep one each.

use std::collections::VecDeque;

use hashbrown::HashMap;

/// Tenants in the order of which some may have none left; with more, those are forgotten. It exceeds twice what an
/// engine keeps, so that each look at all of them is preceded by as many calls.
const QUEUED_TENANTS: usize = 2_048;

/// Those of one tenant.
#[derive(Debug)]
struct TenantList<T> {
    idle: Vec<T>,
    /// Whether the tenant is in the order.
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
    len: usize,
}

impl<T> IdleLists<T> {
    pub(super) fn new() -> IdleLists<T> {
        let (last, lists, order) = (TenantList::default(), HashMap::new(), VecDeque::new());
        IdleLists { last_tenant: 0, last, lists, order, len: 0 }
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

    /// Takes one of any tenant's, of one after the other.
    pub(super) fn take_any(&mut self) -> Option<T> {
        while let Some(tenant) = self.order.pop_front() {
            let list = if tenant == self.last_tenant { Some(&mut self.last) } else { self.lists.get_mut(&tenant) };
            let Some(list) = list else { continue };
            if let Some(taken) = list.idle.pop() {
                self.order.push_back(tenant);
                self.len -= 1;
                return Some(taken);
            }
            list.is_queued = false;
            self.lists.remove(&tenant);
        }
        None
    }

    /// Keeps one that this tenant ran in.
    #[inline]
    pub(super) fn keep(&mut self, tenant: u64, idle: T) {
        let own = self.list(tenant);
        own.idle.push(idle);
        if !std::mem::replace(&mut own.is_queued, true) {
            self.order.push_back(tenant);
            if self.order.len() > QUEUED_TENANTS {
                self.forget_tenants_without();
            }
        }
        self.len += 1;
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
        let IdleLists { last_tenant, last, lists, order, .. } = self;
        lists.retain(|_, list| !list.idle.is_empty());
        last.is_queued = !last.idle.is_empty();
        let last_is_queued = last.is_queued;
        order.retain(|tenant| if tenant == last_tenant { last_is_queued } else { lists.contains_key(tenant) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            match random(&mut state, 5) {
                0 | 1 => {
                    idle.keep(tenant, (tenant, number));
                    model.push((tenant, number));
                }
                2 | 3 => {
                    let own = model.iter().rposition(|(owner, _)| *owner == tenant).map(|at| model.remove(at));
                    assert_eq!(idle.take_own(tenant).map(|(taken, _)| taken), own);
                }
                _ => match idle.take_any() {
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

    #[test]
    fn tenants_that_come_and_go_leave_nothing_behind() {
        let mut idle = IdleLists::new();
        for tenant in 1..=100_000 {
            idle.keep(tenant, ());
            assert!(idle.take_own(tenant).is_some());
        }
        assert!(idle.order.len() <= QUEUED_TENANTS && idle.lists.len() <= QUEUED_TENANTS);
        assert!(idle.take_any().is_none() && idle.lists.is_empty() && idle.order.is_empty());
    }
}

//! Limits how many requests of a kind are under way at a time: of all tenants and of each, or of all addresses.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts the requests of a kind that are under way, by owner: a tenant's id, unless it says otherwise.
#[derive(Debug)]
pub(super) struct RequestLimiter<Owner: Copy + Eq + Hash = u32> {
    all: usize,
    per_owner: usize,
    under_way: Mutex<HashMap<Owner, usize>>,
}

/// One of the requests; it counts until this is dropped.
pub(super) struct RequestPermit<Owner: Copy + Eq + Hash = u32> {
    limiter: Arc<RequestLimiter<Owner>>,
    owner: Owner,
}

impl<Owner: Copy + Eq + Hash> RequestLimiter<Owner> {
    /// A limiter with a bound on the requests of all owners, and one for each.
    pub(super) fn new(all: usize, per_owner: usize) -> Arc<RequestLimiter<Owner>> {
        Arc::new(RequestLimiter { all, per_owner, under_way: Mutex::default() })
    }

    /// Begins a request of an owner. `None`: the limit is reached.
    pub(super) fn begin(self: &Arc<Self>, owner: Owner) -> Option<RequestPermit<Owner>> {
        let mut under_way = self.under_way.lock();
        let (all, own) = (under_way.values().sum::<usize>(), under_way.get(&owner).copied().unwrap_or(0));
        if own >= self.per_owner || all >= self.all {
            return None;
        }
        under_way.insert(owner, own + 1);
        Some(RequestPermit { limiter: Arc::clone(self), owner })
    }

    /// Requests of an owner that are under way.
    #[cfg(test)]
    pub(super) fn under_way(&self, owner: Owner) -> usize {
        self.under_way.lock().get(&owner).copied().unwrap_or(0)
    }
}

impl<Owner: Copy + Eq + Hash> Drop for RequestPermit<Owner> {
    fn drop(&mut self) {
        let mut under_way = self.limiter.under_way.lock();
        if let Some(own) = under_way.get_mut(&self.owner) {
            *own -= 1;
            if *own == 0 {
                under_way.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_are_under_way_and_those_of_a_tenant_are_fewer() {
        let limiter = RequestLimiter::<u32>::new(32, 4);
        let mut permits = Vec::new();
        for tenant in 0..100 {
            permits.extend(std::iter::from_fn(|| limiter.begin(tenant)));
        }
        assert_eq!((permits.len(), limiter.under_way(0), limiter.under_way(99)), (32, 4, 0));
        permits.clear();
        assert!(limiter.under_way.lock().is_empty());
    }
}

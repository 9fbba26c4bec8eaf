//! How many requests of a kind are under way at a time: of all tenants, and of each.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts the requests of a kind that are under way, by tenant.
#[derive(Debug)]
pub(super) struct RequestLimiter {
    all: usize,
    per_tenant: usize,
    under_way: Mutex<HashMap<u32, usize>>,
}

/// One of the requests; it counts until this is dropped.
pub(super) struct RequestPermit {
    limiter: Arc<RequestLimiter>,
    tenant: u32,
}

impl RequestLimiter {
    /// A limiter for so many requests of all tenants, and so many of each.
    pub(super) fn new(all: usize, per_tenant: usize) -> Arc<RequestLimiter> {
        Arc::new(RequestLimiter { all, per_tenant, under_way: Mutex::default() })
    }

    /// Begins a request of a tenant. `None`: as many as may be are under way.
    pub(super) fn begin(self: &Arc<Self>, tenant: u32) -> Option<RequestPermit> {
        let mut under_way = self.under_way.lock();
        let (all, own) = (under_way.values().sum::<usize>(), under_way.get(&tenant).copied().unwrap_or(0));
        if own >= self.per_tenant || all >= self.all {
            return None;
        }
        under_way.insert(tenant, own + 1);
        Some(RequestPermit { limiter: Arc::clone(self), tenant })
    }

    /// Requests of a tenant that are under way.
    #[cfg(test)]
    pub(super) fn under_way(&self, tenant: u32) -> usize {
        self.under_way.lock().get(&tenant).copied().unwrap_or(0)
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut under_way = self.limiter.under_way.lock();
        if let Some(own) = under_way.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                under_way.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_are_under_way_and_those_of_a_tenant_are_fewer() {
        let limiter = RequestLimiter::new(32, 4);
        let mut permits = Vec::new();
        for tenant in 0..100 {
            permits.extend(std::iter::from_fn(|| limiter.begin(tenant)));
        }
        assert_eq!((permits.len(), limiter.under_way(0), limiter.under_way(99)), (32, 4, 0));
        permits.clear();
        assert!(limiter.under_way.lock().is_empty());
    }
}

//! The permits to keep a side stack while switched out, divided among tenants. Where no stack is left an invocation
//! cannot be switched out any more, and blocks its worker until its total is spent. So no tenant may take them all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::limits::SUSPENDED_STACKS;
use sandstorm_accounts::TenantUsage;
use sandstorm_net::dynamic_threshold::DynamicThreshold;

/// Counts the stacks of switched-out invocations, of one watchdog's engines: of the process.
#[derive(Debug)]
pub(super) struct StackQuota {
    parked: AtomicUsize,
    limit: AtomicUsize,
}

impl Default for StackQuota {
    fn default() -> StackQuota {
        StackQuota { parked: AtomicUsize::new(0), limit: AtomicUsize::new(SUSPENDED_STACKS) }
    }
}

/// A tenant's permit for one stack; dropping it releases the permit.
#[derive(Debug)]
pub(super) struct StackPermit {
    lot: Arc<StackQuota>,
    usage: Arc<TenantUsage>,
}

impl StackQuota {
    /// Takes a permit for a stack of the tenant with this usage; `None` if it has reached its limit.
    pub(super) fn take(self: &Arc<StackQuota>, usage: &Arc<TenantUsage>) -> Option<StackPermit> {
        let parked = self.parked.fetch_add(1, Relaxed);
        let held = usage.parked.fetch_add(1, Relaxed);
        // From here on dropping it gives back what was taken.
        let place = StackPermit { lot: Arc::clone(self), usage: Arc::clone(usage) };
        self.allows(parked, held).then_some(place)
    }

    /// Returns whether one more of the tenant's invocations could be switched out.
    pub(super) fn has_permit_for(&self, usage: &TenantUsage) -> bool {
        let held = usage.parked.load(Relaxed);
        held == 0 || self.allows(self.parked.load(Relaxed), held)
    }

    fn allows(&self, parked: usize, held: usize) -> bool {
        DynamicThreshold::of(self.limit.load(Relaxed)).admits(parked, held)
    }

    /// Sets the number of permits from now on.
    #[cfg(test)]
    pub(super) fn set_limit(&self, places: usize) {
        self.limit.store(places, Relaxed);
    }

    /// Returns the number of permits taken.
    #[cfg(test)]
    pub(super) fn parked(&self) -> usize {
        self.parked.load(Relaxed)
    }
}

impl Drop for StackPermit {
    fn drop(&mut self) {
        self.usage.parked.fetch_sub(1, Relaxed);
        self.lot.parked.fetch_sub(1, Relaxed);
    }
}

//! Permits for what the process has a fixed number of, divided among tenants: side stacks of switched-out invocations,
//! and memories of sandboxed code. Without a free stack an invocation cannot be switched out, and blocks its worker
//! until its total is spent. Without a free memory none begins. So no tenant may take them all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::limits::{GUEST_MEMORIES, SUSPENDED_STACKS};
use sandstorm_accounts::TenantUsage;
use sandstorm_net::dynamic_threshold::DynamicThreshold;

/// The permits of one watchdog's engines: of the process.
#[derive(Debug)]
pub(super) struct ProcessPermits {
    /// For the stacks of switched-out invocations.
    pub(super) stacks: Arc<PermitPool>,
    /// For the memories of sandboxed code, in use or kept.
    pub(super) memories: Arc<PermitPool>,
}

impl Default for ProcessPermits {
    fn default() -> ProcessPermits {
        ProcessPermits {
            stacks: PermitPool::new(SUSPENDED_STACKS, |usage| &usage.parked),
            memories: PermitPool::new(GUEST_MEMORIES, |usage| &usage.guest_memories),
        }
    }
}

/// Counts the permits of one kind.
#[derive(Debug)]
pub(super) struct PermitPool {
    taken: AtomicUsize,
    limit: AtomicUsize,
    /// A tenant's own count.
    of_tenant: fn(&TenantUsage) -> &AtomicUsize,
}

/// A tenant's permit for one; dropping it releases the permit.
#[derive(Debug)]
pub(super) struct TenantPermit {
    pool: Arc<PermitPool>,
    usage: Arc<TenantUsage>,
}

impl PermitPool {
    fn new(limit: usize, of_tenant: fn(&TenantUsage) -> &AtomicUsize) -> Arc<PermitPool> {
        Arc::new(PermitPool { taken: AtomicUsize::new(0), limit: AtomicUsize::new(limit), of_tenant })
    }

    /// Takes a permit for the tenant with this usage; `None` if it has reached its limit.
    pub(super) fn take(self: &Arc<PermitPool>, usage: &Arc<TenantUsage>) -> Option<TenantPermit> {
        let taken = self.taken.fetch_add(1, Relaxed);
        let own = (self.of_tenant)(usage).fetch_add(1, Relaxed);
        // From here on dropping it gives back what was taken.
        let permit = TenantPermit { pool: Arc::clone(self), usage: Arc::clone(usage) };
        self.allows(taken, own).then_some(permit)
    }

    /// Returns whether the tenant could have one more.
    pub(super) fn has_permit_for(&self, usage: &TenantUsage) -> bool {
        let own = (self.of_tenant)(usage).load(Relaxed);
        own == 0 || self.allows(self.taken(), own)
    }

    /// Returns whether the tenant could have one more once another's permit is back.
    pub(super) fn has_permit_once_one_is_back(&self, usage: &TenantUsage) -> bool {
        self.allows(self.taken().saturating_sub(1), (self.of_tenant)(usage).load(Relaxed))
    }

    fn allows(&self, taken: usize, own: usize) -> bool {
        DynamicThreshold::of(self.limit.load(Relaxed)).admits(taken, own)
    }

    /// Returns whether more than half of them are taken.
    pub(super) fn is_half_taken(&self) -> bool {
        self.taken() > self.limit.load(Relaxed) / 2
    }

    /// Returns whether more than half of them will be taken soon: as many fewer as calls take that are under way.
    pub(super) fn is_nearly_half_taken(&self) -> bool {
        let limit = self.limit.load(Relaxed);
        self.taken() > limit / 2 - limit / 32
    }

    /// Sets the number of permits from now on.
    #[cfg(test)]
    pub(super) fn set_limit(&self, permits: usize) {
        self.limit.store(permits, Relaxed);
    }

    /// Returns the number of permits taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }
}

impl Drop for TenantPermit {
    fn drop(&mut self) {
        (self.pool.of_tenant)(&self.usage).fetch_sub(1, Relaxed);
        self.pool.taken.fetch_sub(1, Relaxed);
    }
}

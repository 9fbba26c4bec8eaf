//! The memories of sandboxed invocations that an engine keeps, each for the tenant that ran in it: that tenant's next
//! call finds its pages in place and needs no clearing.
//!
//! What an ended invocation had beyond an idle memory goes back to the kernel a piece at a time, since megabytes at
//! once would delay the worker. Its tenant stays charged for it meanwhile.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::guest_memory::GuestMemory;
use super::idle_lists::IdleLists;
use super::sandbox_switch::host_stub;
use super::tenant_permits::{PermitPool, TenantPermit};
use crate::limits::{GUEST_MEMORIES_CACHED, GUEST_MEMORIES_FOR_OWNERS};
use sandstorm_catalog::TenantView;

/// A memory that is handed on by its pointer: each call takes one and gives it back.
pub(super) type PooledMemory = Box<GuestMemory>;

/// A charge for memory that an ended invocation had; dropping it gives it back.
#[derive(Debug)]
pub(super) struct MemoryCharge {
    view: Arc<TenantView>,
    units: u32,
}

impl MemoryCharge {
    /// Takes over a charge of `units` (see [`sandstorm_accounts::memory_units`]) from an invocation of the tenant.
    pub(super) fn new(view: Arc<TenantView>, units: u32) -> MemoryCharge {
        MemoryCharge { view, units }
    }

    /// Hands the charge on to another invocation.
    pub(super) fn into_units(mut self) -> u32 {
        std::mem::take(&mut self.units)
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        if self.units > 0 {
            self.view.tenant.uncharge_memory(self.units);
        }
    }
}

/// A memory for an invocation, and what its tenant is charged for that is in it already.
#[derive(Debug)]
pub(super) struct TakenMemory {
    pub(super) memory: PooledMemory,
    pub(super) charge: Option<MemoryCharge>,
}

/// A memory that is larger than an idle one may be, and how much of it may stay.
#[derive(Debug)]
struct DirtyMemory {
    memory: PooledMemory,
    hot_len: usize,
    charge: Option<MemoryCharge>,
}

/// An engine's memories.
#[derive(Debug)]
pub(super) struct GuestMemoryPool {
    permits: Arc<PermitPool>,
    idle: IdleLists<PooledMemory>,
    /// [`GUEST_MEMORIES_FOR_OWNERS`], but for tests.
    for_owners: usize,
    /// Memories that it has made.
    #[cfg(test)]
    pub(super) made: usize,
    /// The one that has waited longest comes first.
    dirty: VecDeque<DirtyMemory>,
}

impl GuestMemoryPool {
    /// A pool whose memories are some of those that the permits are for.
    pub(super) fn new(permits: Arc<PermitPool>) -> GuestMemoryPool {
        GuestMemoryPool {
            permits,
            idle: IdleLists::new(),
            for_owners: GUEST_MEMORIES_FOR_OWNERS,
            #[cfg(test)]
            made: 0,
            dirty: VecDeque::new(),
        }
    }

    /// Idle memories.
    #[cfg(test)]
    pub(super) fn idle_len(&self) -> usize {
        self.idle.len()
    }

    /// Gives tenants one another's memories from now on, rather than new ones, where so many are idle.
    #[cfg(test)]
    pub(super) fn make_no_more_than(&mut self, for_owners: usize) {
        self.for_owners = for_owners;
    }

    /// Takes a memory for a tenant: one that it ran in, or a new one, or that of another tenant, which it wipes.
    /// `None`: the limit is reached, and the tenant has its share.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn take(&mut self, view: &TenantView) -> io::Result<Option<TakenMemory>> {
        let tenant = view.tenant.serial;
        if let Some((memory, next)) = self.idle.take_own(tenant) {
            // The memories taken next, if more calls begin: after hundreds they were used long ago.
            if let [.., after, next] = next {
                after.prefetch();
                next.prefetch_first_lines();
            }
            return Ok(Some(TakenMemory { memory, charge: None }));
        }
        let is_own = |dirty: &DirtyMemory| dirty.memory.owner == tenant && dirty.memory.is_ready(dirty.hot_len);
        if let Some(DirtyMemory { memory, charge, .. }) =
            self.dirty.iter().rposition(is_own).and_then(|own| self.dirty.remove(own))
        {
            return Ok(Some(TakenMemory { memory, charge }));
        }
        let Some((permit, handed_on)) = self.take_permit(view) else { return Ok(None) };
        // Before so many are taken that this one would be given up at its end.
        let is_full = self.idle.len() >= self.for_owners || self.permits.is_nearly_half_taken();
        let handed_on = handed_on.or_else(|| is_full.then(|| self.idle.take_for_another()).flatten());
        let mut memory = match handed_on {
            // Clearing one costs less than making one.
            Some(mut other) => {
                other.wipe()?;
                other
            }
            None => {
                if !is_full {
                    self.idle.note_room();
                }
                self.make()?
            }
        };
        memory.permit = Some(permit);
        Ok(Some(TakenMemory { memory, charge: None }))
    }

    /// Takes a permit for a tenant. Where none is left, an idle memory of this pool loses its own, if the tenant may
    /// have one then: it is the memory that the tenant gets, once it is wiped.
    fn take_permit(&mut self, view: &TenantView) -> Option<(TenantPermit, Option<PooledMemory>)> {
        let usage = &view.tenant.usage;
        if let Some(permit) = self.permits.take(usage) {
            return Some((permit, None));
        }
        if !self.permits.has_permit_once_one_is_back(usage) {
            return None;
        }
        let mut other = self.idle.take_for_another()?;
        drop(other.permit.take());
        // Another worker may have been faster.
        Some((self.permits.take(usage)?, Some(other)))
    }

    fn make(&mut self) -> io::Result<PooledMemory> {
        #[cfg(test)]
        {
            self.made += 1;
        }
        Ok(Box::new(GuestMemory::new(host_stub)?))
    }

    /// Keeps a memory for its tenant's next call, or what of it an idle memory may have. `charge` hands on the charge
    /// for so many bytes of it.
    pub(super) fn keep(
        &mut self,
        memory: PooledMemory,
        hot_len: usize,
        charge: impl FnOnce(usize) -> Option<MemoryCharge>,
    ) {
        match memory.unreclaimed_bytes(hot_len) {
            _ if !memory.is_usable() => {}
            0 => self.keep_idle(memory),
            bytes => self.dirty.push_back(DirtyMemory { memory, hot_len, charge: charge(bytes) }),
        }
    }

    fn keep_idle(&mut self, memory: PooledMemory) {
        if self.permits.is_half_taken() && self.idle.len() > 0 {
            // The other half is for invocations that are under way.
            return;
        }
        self.idle.keep(memory.owner, memory);
        if self.idle.len() > GUEST_MEMORIES_CACHED {
            drop(self.idle.take_any());
        }
    }

    /// Gives up to `bytes` of the memory that has waited longest back to the kernel; returns whether there was one.
    pub(super) fn reclaim(&mut self, bytes: usize) -> bool {
        let Some(mut dirty) = self.dirty.pop_front() else { return false };
        let mut left = bytes;
        while left > 0 {
            let before = dirty.memory.unreclaimed_bytes(dirty.hot_len);
            if before == 0 {
                break;
            }
            if dirty.memory.reclaim(dirty.hot_len, left).is_err() {
                // The kernel has no memory to split its own bookkeeping: the whole reservation goes.
                return true;
            }
            let done = before.saturating_sub(dirty.memory.unreclaimed_bytes(dirty.hot_len));
            left = left.saturating_sub(done.max(1));
        }
        if dirty.memory.unreclaimed_bytes(dirty.hot_len) > 0 {
            self.dirty.push_front(dirty);
        } else {
            self.keep_idle(dirty.memory);
        }
        true
    }
}

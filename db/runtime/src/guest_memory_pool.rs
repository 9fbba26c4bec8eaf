//! The memories of sandboxed invocations that an engine keeps, each for the tenant that ran in it: that tenant's next
//! call finds its pages in place and needs no clearing.

use std::collections::VecDeque;
use std::io;

use hashbrown::HashMap;

use super::guest_memory::GuestMemory;
use super::sandbox_switch::host_stub;
use crate::limits::{GUEST_MEMORIES_CACHED, GUEST_MEMORIES_RECENT, MAX_DIRTY_INVOCATIONS};

/// A memory that is larger than an idle one may be, and how much of it may stay.
#[derive(Debug)]
struct DirtyMemory {
    memory: GuestMemory,
    hot_len: usize,
}

/// An engine's memories.
#[derive(Debug, Default)]
pub(super) struct GuestMemoryPool {
    /// Those that were used last.
    recent: Vec<GuestMemory>,
    /// Others, by tenant.
    kept: HashMap<u64, Vec<GuestMemory>>,
    kept_len: usize,
    /// Tenant and count of those, the one kept longest first; and of some that were taken since.
    order: VecDeque<(u64, u64)>,
    dirty: Vec<DirtyMemory>,
    /// The counter of kept memories.
    clock: u64,
}

impl GuestMemoryPool {
    /// Takes a memory for a tenant: one that it ran in, or a new one, or that of another tenant, which it wipes.
    pub(super) fn take(&mut self, tenant: u64) -> io::Result<GuestMemory> {
        if let Some(own) = self.recent.iter().rposition(|memory| memory.owner == tenant) {
            return Ok(self.recent.swap_remove(own));
        }
        if let Some(own) = self.dirty.iter().rposition(|dirty| dirty.memory.owner == tenant) {
            return Ok(self.dirty.swap_remove(own).memory);
        }
        if let Some(own) = self.kept.get_mut(&tenant).and_then(Vec::pop) {
            self.kept_len -= 1;
            if self.kept.get(&tenant).is_some_and(Vec::is_empty) {
                self.kept.remove(&tenant);
            }
            return Ok(own);
        }
        if self.kept_len + self.recent.len() < GUEST_MEMORIES_CACHED
            && let Ok(new) = GuestMemory::new(host_stub)
        {
            return Ok(new);
        }
        let mut other = match self.evict().or_else(|| self.recent.pop()) {
            Some(other) => other,
            None => GuestMemory::new(host_stub)?,
        };
        other.wipe()?;
        Ok(other)
    }

    /// Keeps a memory for its tenant's next call. What exceeds an idle memory goes back to the kernel in
    /// [`GuestMemoryPool::reclaim`]: megabytes at a time would delay the worker.
    pub(super) fn keep(&mut self, mut memory: GuestMemory, hot_len: usize) {
        if memory.unreclaimed_bytes(hot_len) > 0 {
            if self.dirty.len() >= MAX_DIRTY_INVOCATIONS {
                self.reclaim(usize::MAX);
            }
            self.dirty.push(DirtyMemory { memory, hot_len });
            return;
        }
        self.clock += 1;
        memory.kept_at = self.clock;
        if self.recent.len() >= GUEST_MEMORIES_RECENT {
            for older in self.recent.drain(..GUEST_MEMORIES_RECENT / 2) {
                self.order.push_back((older.owner, older.kept_at));
                self.kept.entry(older.owner).or_default().push(older);
                self.kept_len += 1;
            }
            while self.kept_len > GUEST_MEMORIES_CACHED {
                drop(self.evict());
            }
            self.forget_taken();
        }
        self.recent.push(memory);
    }

    /// Gives up to `bytes` of the memory that was put aside last back to the kernel; returns whether there was one.
    pub(super) fn reclaim(&mut self, bytes: usize) -> bool {
        let Some(mut dirty) = self.dirty.pop() else { return false };
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
            self.dirty.push(dirty);
        } else {
            self.keep(dirty.memory, dirty.hot_len);
        }
        true
    }

    /// Takes the one kept longest out.
    fn evict(&mut self) -> Option<GuestMemory> {
        while let Some((tenant, kept_at)) = self.order.pop_front() {
            let Some(memories) = self.kept.get_mut(&tenant) else { continue };
            let Some(at) = memories.iter().position(|memory| memory.kept_at == kept_at) else { continue };
            let oldest = memories.swap_remove(at);
            if memories.is_empty() {
                self.kept.remove(&tenant);
            }
            self.kept_len -= 1;
            return Some(oldest);
        }
        None
    }

    /// Shortens the list of the order where most of it was taken since.
    fn forget_taken(&mut self) {
        if self.order.len() > 2 * GUEST_MEMORIES_CACHED {
            let kept = &self.kept;
            self.order.retain(|(tenant, kept_at)| {
                kept.get(tenant).is_some_and(|memories| memories.iter().any(|memory| memory.kept_at == *kept_at))
            });
        }
    }
}

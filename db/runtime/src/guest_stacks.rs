//! The side stacks of one engine: the current one, those that it keeps for tenants which ran here, and blank ones.
//!
//! A stack belongs to one tenant until it is wiped, so no content that a tenant's code leaves there reaches another's.
//! The current one stays as long as the tenant does. At a change of tenant it is kept, and the next tenant gets its own
//! kept stack, or a blank one. An invocation that is switched out takes its stack along.
//!
//! Those of sandboxed code begin closed but for their uppermost part: what lies below faults when it is touched, and is
//! opened then. So it is known of most calls that they have touched no more, and their stacks are wiped by writing
//! zeroes over that part. Others go back to the kernel, which takes microseconds, and a page fault for each page that is
//! used again.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use super::mapping::GuardedMapping;
use crate::limits::{
    CLEAN_STACKS_CACHED, CLOSED_STACK_BYTES, SIDE_STACK_BYTES, SIDE_STACKS, STACK_GUARD_BYTES, STACK_HOT_BYTES,
    TENANT_STACKS_CACHED,
};

/// The number of stacks of the whole process.
static LIVE_STACKS: AtomicUsize = AtomicUsize::new(0);

/// The owner of the stacks that a tenant's code runs on, by the tenant's serial number. Each tier has its own: the
/// host's functions run on the stacks of native code, which cannot read what they leave there. Sandboxed code can.
pub(super) fn stack_owner(tenant: u64, is_sandboxed: bool) -> u64 {
    tenant << 1 | u64::from(is_sandboxed)
}

/// Whether an owner's code is sandboxed.
pub(super) fn is_sandboxed(owner: u64) -> bool {
    owner & 1 != 0
}

/// A side stack.
#[derive(Debug)]
pub(super) struct GuestStack {
    mapping: GuardedMapping,
    /// The tenant that may have left content in it, by its serial number; 0: none.
    owner: u64,
    /// Whether pages below the kept ones may be in memory.
    deep: bool,
    /// Whether nothing but its uppermost [`CLOSED_STACK_BYTES`] was accessible since it was blank.
    is_closed: bool,
    /// The time at which it was kept, in a count of its engine's.
    kept_at: u64,
}

impl GuestStack {
    fn new() -> io::Result<GuestStack> {
        let mapping = GuardedMapping::new(SIDE_STACK_BYTES, STACK_GUARD_BYTES)?;
        LIVE_STACKS.fetch_add(1, Ordering::Relaxed);
        Ok(GuestStack { mapping, owner: 0, deep: false, is_closed: false, kept_at: 0 })
    }

    pub(super) fn mapping(&self) -> &GuardedMapping {
        &self.mapping
    }

    pub(super) fn owner(&self) -> u64 {
        self.owner
    }

    /// Bytes from its lowest one on that are closed.
    pub(super) fn closed_bytes(&self) -> usize {
        if self.is_closed { self.mapping.len() - CLOSED_STACK_BYTES } else { 0 }
    }

    /// Gives it to an owner, closed if its code is sandboxed. Where the kernel does not change it, it stays as it is:
    /// sandboxed code runs on either kind, and native code is ended by its first call of the host on a closed one.
    fn give_to(&mut self, owner: u64) {
        let closes = is_sandboxed(owner);
        if self.owner == 0 && closes != self.is_closed {
            let changed = self.mapping.set_open(self.mapping.len() - CLOSED_STACK_BYTES, !closes);
            self.is_closed = closes == changed.is_ok();
        }
        self.owner = owner;
    }

    /// Wipes the stack.
    fn wipe(&mut self) {
        match self.owner {
            0 => {}
            _ if self.is_closed => self.mapping.clear_from(self.closed_bytes()),
            _ => self.mapping.give_back(0, self.mapping.len()),
        }
        (self.owner, self.deep) = (0, false);
    }

    /// Gives the pages back that only deep recursion needs.
    fn shed(&mut self) {
        if std::mem::take(&mut self.deep) && !self.is_closed {
            self.mapping.give_back(0, self.mapping.len() - STACK_HOT_BYTES);
        }
    }
}

impl Drop for GuestStack {
    fn drop(&mut self) {
        LIVE_STACKS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct GuestStackPool {
    current: GuestStack,
    kept: HashMap<u64, GuestStack>,
    /// Tenant and count of those, the one kept longest first; and of some that were taken since.
    order: VecDeque<(u64, u64)>,
    blank: Vec<GuestStack>,
    /// The counter of kept stacks.
    clock: u64,
    /// Stacks of the process beyond which no new one is made.
    limit: usize,
}

impl GuestStackPool {
    pub(super) fn new() -> io::Result<GuestStackPool> {
        let (current, blank) = (GuestStack::new()?, Vec::with_capacity(CLEAN_STACKS_CACHED));
        Ok(GuestStackPool {
            current,
            kept: HashMap::new(),
            order: VecDeque::new(),
            blank,
            clock: 0,
            limit: SIDE_STACKS,
        })
    }

    /// Stops making new ones.
    #[cfg(test)]
    pub(super) fn stop_making_stacks(&mut self) {
        self.limit = 0;
    }

    /// Returns the stack to run on.
    pub(super) fn current(&self) -> &GuestStack {
        &self.current
    }

    /// Returns the owner of the current one.
    #[inline(always)]
    pub(super) fn owner(&self) -> u64 {
        self.current.owner
    }

    /// Notes that a long poll ran on the current one: it may have gone deep.
    pub(super) fn note_long_poll(&mut self) {
        self.current.deep = true;
    }

    /// Notes that the closed part of the current one was opened: sandboxed code has touched it.
    pub(super) fn note_opened(&mut self) {
        self.current.is_closed = false;
    }

    /// Makes the current one this owner's. Where no other can be had, it is wiped.
    pub(super) fn choose(&mut self, owner: u64) {
        if self.current.owner == owner {
            return;
        }
        let next = match self.kept.remove(&owner) {
            None if self.current.owner == 0 => None,
            // Half of all stacks is for invocations that are switched out.
            None => self.take_blank(self.limit / 2, is_sandboxed(owner)),
            kept => kept,
        };
        match next {
            Some(next) => {
                let last = std::mem::replace(&mut self.current, next);
                self.keep(last);
            }
            None => self.current.wipe(),
        }
        self.current.give_to(owner);
    }

    /// Parks the current one with its content, and puts a blank one in its place; `None` if none can be had. Only its
    /// uppermost `bytes`, which are in use, stay in memory.
    pub(super) fn park(&mut self, bytes: usize) -> Option<GuestStack> {
        let next = self.take_blank(self.limit, is_sandboxed(self.current.owner))?;
        let (closed, mapping) = (self.current.closed_bytes(), &mut self.current.mapping);
        mapping.give_back(closed, mapping.len().saturating_sub(bytes));
        Some(std::mem::replace(&mut self.current, next))
    }

    /// Makes the stack of a switched-out invocation the current one.
    pub(super) fn adopt(&mut self, stack: GuestStack) {
        let last = std::mem::replace(&mut self.current, stack);
        self.keep(last);
    }

    /// Keeps an unused stack for its owner; one is enough for each.
    pub(super) fn keep(&mut self, mut stack: GuestStack) {
        let owner = stack.owner;
        if owner == 0 || owner == self.current.owner || self.kept.contains_key(&owner) {
            if self.blank.len() < CLEAN_STACKS_CACHED {
                stack.wipe();
                self.blank.push(stack);
            }
            return;
        }
        if self.kept.len() >= TENANT_STACKS_CACHED
            && let Some(oldest) = self.evict()
        {
            self.keep_blank(oldest);
        }
        stack.shed();
        self.clock += 1;
        stack.kept_at = self.clock;
        self.order.push_back((owner, self.clock));
        self.kept.insert(owner, stack);
        if self.order.len() > 2 * TENANT_STACKS_CACHED {
            let kept = &self.kept;
            self.order.retain(|(tenant, at)| kept.get(tenant).is_some_and(|stack| stack.kept_at == *at));
        }
    }

    fn keep_blank(&mut self, stack: GuestStack) {
        if self.blank.len() < CLEAN_STACKS_CACHED {
            self.blank.push(stack);
        }
    }

    /// Returns a blank stack: one at hand, a closed one or an open one if there is, a new one while the process has
    /// fewer than `limit`, or the one kept longest.
    fn take_blank(&mut self, limit: usize, closed: bool) -> Option<GuestStack> {
        let fitting = self.blank.iter().rposition(|blank| blank.is_closed == closed);
        if let Some(at) = fitting.or(self.blank.len().checked_sub(1)) {
            return Some(self.blank.swap_remove(at));
        }
        if LIVE_STACKS.load(Ordering::Relaxed) < limit
            && self.kept.len() < TENANT_STACKS_CACHED
            && let Ok(new) = GuestStack::new()
        {
            return Some(new);
        }
        self.evict()
    }

    /// Takes the one kept longest, and wipes it.
    fn evict(&mut self) -> Option<GuestStack> {
        while let Some((tenant, at)) = self.order.pop_front() {
            if self.kept.get(&tenant).is_some_and(|stack| stack.kept_at == at) {
                let mut stack = self.kept.remove(&tenant)?;
                stack.wipe();
                return Some(stack);
            }
        }
        None
    }
}

//! The side stacks of one engine: the current one, those that it keeps for tenants which ran here, and blank ones.
//!
//! A stack belongs to one tenant until it is wiped, so no content that a tenant's code leaves there reaches another's.
//! The current one stays as long as the tenant does. At a change of tenant it is kept, and the next tenant gets its own
//! kept stack, or a blank one. An invocation that is switched out takes its stack along.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use super::mapping::GuardedMapping;
use crate::limits::{
    CLEAN_STACKS_CACHED, SIDE_STACK_BYTES, SIDE_STACKS, STACK_GUARD_BYTES, STACK_HOT_BYTES, TENANT_STACKS_CACHED,
};

/// The number of stacks of the whole process.
static LIVE_STACKS: AtomicUsize = AtomicUsize::new(0);

/// A side stack.
#[derive(Debug)]
pub(super) struct GuestStack {
    mapping: GuardedMapping,
    /// The tenant that may have left content in it, by its serial number; 0: none.
    owner: u64,
    /// Whether pages below the kept ones may be in memory.
    deep: bool,
    /// The time at which it was kept, in a count of its engine's.
    kept_at: u64,
}

impl GuestStack {
    fn new() -> io::Result<GuestStack> {
        let mapping = GuardedMapping::new(SIDE_STACK_BYTES, STACK_GUARD_BYTES)?;
        LIVE_STACKS.fetch_add(1, Ordering::Relaxed);
        Ok(GuestStack { mapping, owner: 0, deep: false, kept_at: 0 })
    }

    pub(super) fn mapping(&self) -> &GuardedMapping {
        &self.mapping
    }

    /// Wipes the stack.
    fn wipe(&mut self) {
        if self.owner != 0 {
            self.mapping.give_back(0, self.mapping.len());
        }
        (self.owner, self.deep) = (0, false);
    }

    /// Gives the pages back that only deep recursion needs.
    fn shed(&mut self) {
        if std::mem::take(&mut self.deep) {
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

    /// Makes the current one this tenant's. Where no other can be had, it is wiped.
    pub(super) fn choose(&mut self, tenant: u64) {
        if self.current.owner == tenant {
            return;
        }
        let next = match self.kept.remove(&tenant) {
            None if self.current.owner == 0 => None,
            // Half of all stacks is for invocations that are switched out.
            None => self.take_blank(self.limit / 2),
            kept => kept,
        };
        match next {
            Some(next) => {
                let last = std::mem::replace(&mut self.current, next);
                self.keep(last);
            }
            None => self.current.wipe(),
        }
        self.current.owner = tenant;
    }

    /// Parks the current one with its content, and puts a blank one in its place; `None` if none can be had. Only its
    /// uppermost `bytes`, which are in use, stay in memory.
    pub(super) fn park(&mut self, bytes: usize) -> Option<GuestStack> {
        let next = self.take_blank(self.limit)?;
        let mapping = &mut self.current.mapping;
        mapping.give_back(0, mapping.len().saturating_sub(bytes));
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

    /// Returns a blank stack: one at hand, a new one while the process has fewer than `limit`, or the one kept longest.
    fn take_blank(&mut self, limit: usize) -> Option<GuestStack> {
        if let Some(blank) = self.blank.pop() {
            return Some(blank);
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

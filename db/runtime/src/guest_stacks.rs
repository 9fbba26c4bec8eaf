//! The side stacks of one engine: the current one, those that it keeps for tenants which ran here, and blank ones.
//!
//! A stack belongs to one tenant until it is wiped, so no content that a tenant's code leaves there reaches another's.
//! The current one stays as long as the tenant does. At a change of tenant it is kept, and the next tenant gets its own
//! kept stack, or a blank one. An invocation that is switched out takes its stack along.
//!
//! Of more tenants than there is room for, most of those that come anew hand a few stacks on among each other, wiped
//! each time ([`Newcomers`]).
//!
//! A tenant's kept stack has a slot, which stays the tenant's while the stack is in use: so a change of tenant is one
//! look into the map of slots. Where slots run out, a hand that goes around takes the first whose stack was not in use
//! since it came by before (second chance, as kernels do with pages).
//!
//! Those of sandboxed code begin closed but for their uppermost part: what lies below faults when it is touched, and is
//! opened then. So it is known of most calls that they have touched no more, and their stacks are wiped by writing
//! zeroes over that part. Others go back to the kernel, which takes microseconds, and a page fault for each page that
//! is used again.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use super::mapping::GuardedMapping;
use super::newcomers::Newcomers;
use crate::limits::{
    CLEAN_STACKS_CACHED, CLOSED_STACK_BYTES, NEWCOMERS_STACKS, SIDE_STACK_BYTES, SIDE_STACKS, STACK_GUARD_BYTES,
    STACK_HOT_BYTES, TENANT_STACKS_CACHED,
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
    /// The slot that it was in last, of an engine: its owner's, if the slot still says so.
    slot: u32,
}

impl GuestStack {
    fn new() -> io::Result<GuestStack> {
        let mapping = GuardedMapping::new(SIDE_STACK_BYTES, STACK_GUARD_BYTES)?;
        LIVE_STACKS.fetch_add(1, Ordering::Relaxed);
        Ok(GuestStack { mapping, owner: 0, deep: false, is_closed: false, slot: 0 })
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

/// The place of a tenant's stack.
#[derive(Debug, Default)]
struct StackSlot {
    /// 0: the slot is free.
    owner: u64,
    /// `None`: its owner's stack is the current one, or was taken along by an invocation.
    stack: Option<GuestStack>,
    /// Whether the stack was in use again since the hand came by.
    was_used: bool,
}

#[derive(Debug)]
pub(super) struct GuestStackPool {
    current: GuestStack,
    slots: Vec<StackSlot>,
    by_owner: HashMap<u64, u32>,
    /// Slots that are free.
    free: Vec<u32>,
    /// Stacks in slots, and how many there may be: [`TENANT_STACKS_CACHED`], but for tests.
    kept: usize,
    room: usize,
    hand: usize,
    blank: Vec<GuestStack>,
    /// Stacks of the process beyond which no new one is made.
    limit: usize,
    /// Owners of each tier, of native and of sandboxed code, that came anew while there was no room: the first one's
    /// stack is the next one's.
    newcomers: [VecDeque<u64>; 2],
    counted: Newcomers,
}

/// The next owner's stack.
enum NextStack {
    /// One of its own, or a blank one.
    Other(GuestStack),
    /// The current one, once it is wiped.
    Current,
}

impl GuestStackPool {
    pub(super) fn new() -> io::Result<GuestStackPool> {
        let (current, blank) = (GuestStack::new()?, Vec::with_capacity(CLEAN_STACKS_CACHED));
        Ok(GuestStackPool {
            current,
            slots: Vec::new(),
            by_owner: HashMap::new(),
            free: Vec::new(),
            kept: 0,
            room: TENANT_STACKS_CACHED,
            hand: 0,
            blank,
            limit: SIDE_STACKS,
            newcomers: Default::default(),
            counted: Newcomers::default(),
        })
    }

    /// Stops making new ones.
    #[cfg(test)]
    pub(super) fn stop_making_stacks(&mut self) {
        self.limit = 0;
    }

    /// Keeps no more than so many, however many other pools have.
    #[cfg(test)]
    pub(super) fn keep_no_more_than(&mut self, room: usize) {
        (self.limit, self.room) = (usize::MAX, room);
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
        let next = match self.take_kept(owner) {
            Some(kept) => NextStack::Other(kept),
            None if self.current.owner == 0 => NextStack::Current,
            None => self.take_for_another(owner),
        };
        match next {
            NextStack::Other(next) => {
                let last = std::mem::replace(&mut self.current, next);
                self.keep(last);
            }
            NextStack::Current => self.current.wipe(),
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
    #[inline]
    pub(super) fn keep(&mut self, mut stack: GuestStack) {
        let owner = stack.owner;
        if owner == 0 || owner == self.current.owner {
            return self.keep_wiped(stack);
        }
        match self.slots.get_mut(stack.slot as usize) {
            Some(slot) if slot.owner == owner && slot.stack.is_none() && self.kept < self.room => {
                stack.shed();
                (slot.stack, slot.was_used) = (Some(stack), true);
                self.kept += 1;
            }
            _ => self.keep_in_new_slot(stack),
        }
    }

    /// Keeps the stack of a tenant that has another slot or none, or while there are as many as may be kept.
    #[cold]
    fn keep_in_new_slot(&mut self, mut stack: GuestStack) {
        let slot = self.by_owner.get(&stack.owner).and_then(|number| self.slots.get(*number as usize));
        if slot.is_some_and(|slot| slot.stack.is_some()) {
            return self.keep_wiped(stack);
        }
        if self.kept >= self.room
            && let Some(wiped) = self.evict()
        {
            self.keep_wiped(wiped);
        }
        stack.shed();
        let owner = stack.owner;
        let number = match self.by_owner.get(&owner) {
            Some(number) => *number,
            None => self.new_slot(owner),
        };
        self.slots[number as usize] = StackSlot { owner, stack: Some(stack), was_used: false };
        self.kept += 1;
    }

    /// Returns a slot for this tenant: of those that have none, only as many are remembered as stacks are kept.
    fn new_slot(&mut self, owner: u64) -> u32 {
        if self.free.is_empty() && self.slots.len() >= 2 * self.room {
            for (number, slot) in (0u32..).zip(&mut self.slots) {
                if slot.stack.is_none() {
                    self.by_owner.remove(&std::mem::take(&mut slot.owner));
                    self.free.push(number);
                }
            }
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(StackSlot::default());
            (self.slots.len() - 1) as u32
        });
        self.by_owner.insert(owner, number);
        number
    }

    /// Takes a tenant's kept stack. Its slot stays its own.
    #[inline]
    fn take_kept(&mut self, tenant: u64) -> Option<GuestStack> {
        let number = *self.by_owner.get(&tenant)?;
        let mut taken = self.slots.get_mut(number as usize)?.stack.take()?;
        taken.slot = number;
        self.kept -= 1;
        Some(taken)
    }

    /// Keeps a stack that may be anyone's next.
    fn keep_wiped(&mut self, mut stack: GuestStack) {
        if self.blank.len() < CLEAN_STACKS_CACHED {
            stack.wipe();
            self.blank.push(stack);
        }
    }

    /// Returns a stack for an owner that has none.
    fn take_for_another(&mut self, owner: u64) -> NextStack {
        let tier = usize::from(is_sandboxed(owner));
        // Half of all stacks is for invocations that are switched out.
        if let Some(unused) = self.take_unused(self.limit / 2, is_sandboxed(owner)) {
            return NextStack::Other(unused);
        }
        if !self.counted.next_stays() {
            let is_enough = self.newcomers[tier].len() >= NEWCOMERS_STACKS;
            self.newcomers[tier].push_back(owner);
            if is_enough && let Some(handed_on) = self.take_newcomers(tier) {
                return handed_on;
            }
        }
        self.evict().map_or(NextStack::Current, NextStack::Other)
    }

    /// Returns the stack of the newcomer of a tier that came first; `None`: it has none any more.
    fn take_newcomers(&mut self, tier: usize) -> Option<NextStack> {
        let first = self.newcomers[tier].pop_front()?;
        if first == self.current.owner {
            return Some(NextStack::Current);
        }
        let mut stack = self.take_kept(first)?;
        self.free_slot(stack.slot);
        stack.wipe();
        Some(NextStack::Other(stack))
    }

    /// Frees the slot of an owner that has lost its stack.
    fn free_slot(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            self.by_owner.remove(&std::mem::take(&mut slot.owner));
            self.free.push(number);
        }
    }

    /// Returns a blank stack: an unused one, or one of those that were not in use for long.
    fn take_blank(&mut self, limit: usize, closed: bool) -> Option<GuestStack> {
        self.take_unused(limit, closed).or_else(|| self.evict())
    }

    /// Returns a blank stack: one at hand, a closed one or an open one if there is, or a new one while the process has
    /// fewer than `limit`.
    fn take_unused(&mut self, limit: usize, closed: bool) -> Option<GuestStack> {
        let fitting = self.blank.iter().rposition(|blank| blank.is_closed == closed);
        if let Some(at) = fitting.or(self.blank.len().checked_sub(1)) {
            return Some(self.blank.swap_remove(at));
        }
        if LIVE_STACKS.load(Ordering::Relaxed) < limit
            && self.kept < self.room
            && let Ok(new) = GuestStack::new()
        {
            return Some(new);
        }
        None
    }

    /// Takes one that was not in use for long, and wipes it.
    fn evict(&mut self) -> Option<GuestStack> {
        // The first time around each gets a second chance.
        for _ in 0..2 * self.slots.len() {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if slot.stack.is_none() || std::mem::take(&mut slot.was_used) {
                continue;
            }
            let mut stack = slot.stack.take()?;
            self.free_slot(self.hand as u32);
            self.kept -= 1;
            stack.wipe();
            return Some(stack);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::NEWCOMERS_PER_RESIDENT;

    /// Whether each slot is its owner's, and each count right.
    fn check(pool: &GuestStackPool) {
        let kept = pool.slots.iter().filter(|slot| slot.stack.is_some()).count();
        assert_eq!((kept, pool.by_owner.len() + pool.free.len()), (pool.kept, pool.slots.len()));
        assert!(kept <= pool.room && pool.slots.len() <= 2 * pool.room);
        for (owner, number) in &pool.by_owner {
            let slot = &pool.slots[*number as usize];
            assert_eq!(slot.owner, *owner);
            assert!(slot.stack.as_ref().is_none_or(|stack| stack.owner == *owner));
        }
        assert!(pool.free.iter().all(|number| pool.slots[*number as usize].owner == 0));
        assert!(pool.blank.iter().all(|stack| stack.owner == 0));
    }

    /// Writes a tenant's number onto the current stack, which shows that of no other tenant.
    fn write(pool: &GuestStackPool, tenant: u64) {
        let found = pool.current().mapping().replace_highest_word(tenant);
        assert!([0, tenant].contains(&found), "tenant {tenant} sees {found}");
    }

    #[test]
    fn each_tenant_gets_its_own_stack_or_a_blank_one_whatever_happened_before() {
        let mut pool = GuestStackPool::new().unwrap();
        // Some are evicted all the time.
        pool.limit = 24;
        let (mut parked, mut state) = (Vec::new(), 11_u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            let tenant = 1 + random(40);
            match random(8) {
                0 if parked.len() < 6 => parked.extend(pool.park(4096)),
                1 if !parked.is_empty() => {
                    let stack: GuestStack = parked.swap_remove(random(parked.len() as u64) as usize);
                    let owner = stack.owner;
                    if random(2) == 0 {
                        pool.adopt(stack)
                    } else {
                        pool.keep(stack)
                    }
                    if pool.owner() == owner && owner != 0 {
                        write(&pool, owner);
                    }
                }
                _ => {
                    pool.choose(tenant);
                    assert_eq!(pool.owner(), tenant);
                    write(&pool, tenant);
                }
            }
            check(&pool);
        }
    }

    #[test]
    fn tenants_that_take_turns_keep_their_stacks_while_others_come_and_go() {
        let mut pool = GuestStackPool::new().unwrap();
        // Other tests have some, too.
        pool.limit = usize::MAX;
        let mut had = Vec::new();
        for round in 0..600 {
            for tenant in 1..=8 {
                pool.choose(tenant);
                had.push((tenant, pool.current().mapping().low()));
            }
            (0..4).for_each(|other| pool.choose(1_000 + 4 * round + other));
        }
        assert_eq!(pool.kept, TENANT_STACKS_CACHED);
        had.sort_unstable();
        had.dedup();
        assert_eq!(had.len(), 8, "stacks of eight tenants");
    }

    /// Stacks that a pool keeps, where a test has many tenants: other tests have some, too.
    const ROOM: usize = 256;

    /// A pool of which other tests take nothing, whose slots are full of stacks of tenants that are gone.
    fn full_pool() -> GuestStackPool {
        let mut pool = GuestStackPool::new().unwrap();
        (pool.limit, pool.room) = (usize::MAX, ROOM);
        (0..=ROOM as u64).for_each(|gone| pool.choose(stack_owner(1_000_000 + gone, true)));
        assert_eq!(pool.kept, ROOM);
        pool
    }

    /// Makes the current stack that of a tenant's sandboxed code, which leaves its number there; returns whether the
    /// tenant found what it had left.
    fn finds_its_own(pool: &mut GuestStackPool, tenant: u64) -> bool {
        pool.choose(stack_owner(tenant, true));
        let found = pool.current().mapping().replace_words(pool.current().closed_bytes(), tenant);
        assert!(found == [0] || found == [tenant], "tenant {tenant} sees {found:?}");
        found == [tenant]
    }

    #[test]
    fn of_twice_as_many_tenants_by_turns_as_there_is_room_for_nearly_half_find_their_own_stacks() {
        let mut pool = full_pool();
        let mut round = || (1..=2 * ROOM as u64).filter(|tenant| finds_its_own(&mut pool, *tenant)).count();
        // Those that are gone lose their stacks first.
        for _ in 0..2 * NEWCOMERS_PER_RESIDENT {
            round();
        }
        for _ in 0..10 {
            let found = round();
            assert!(found > ROOM * 7 / 10, "{found}: none would if the one that waits longest went");
        }
        check(&pool);
    }

    #[test]
    fn those_that_take_turns_keep_their_stacks_meanwhile_though_others_have_all_the_room() {
        let mut pool = full_pool();
        for first in (1..100_000).step_by(1_000) {
            let tenants = first..first + NEWCOMERS_STACKS as u64 - 1;
            // The first polls of their calls, then some more.
            assert!(!tenants.clone().any(|tenant| finds_its_own(&mut pool, tenant)));
            let polls = (0..8).flat_map(|_| tenants.clone());
            let (polled, found) = (polls.clone().count(), polls.filter(|it| finds_its_own(&mut pool, *it)).count());
            // The hand that goes around may meet one of theirs.
            assert!(found * 10 > polled * 9, "{found} of {polled}");
        }
        check(&pool);
    }

    #[test]
    fn tenants_without_stacks_leave_no_slots_behind() {
        let mut pool = GuestStackPool::new().unwrap();
        for tenant in 1..=10_000 {
            pool.choose(tenant);
            // Its slot stays without its stack.
            drop(pool.take_kept(tenant - 1));
        }
        check(&pool);
    }
}

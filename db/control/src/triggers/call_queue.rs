//! The calls that a trigger has to make: in order by key, several keys at a time, each until it has succeeded or its
//! tries are over.
//!
//! Changes of one key follow each other, as do changes whose keys share a slot. A change of the whole table waits for
//! all changes before it, and all changes behind it wait for it.
//!
//! One invocation may have several changes, of any slots; of each slot the first ones. If it fails, none of them counts
//! as tried: each is tried again among half as many, until the failing one is alone. That try counts.
//!
//! In a cluster an invocation has changes of keys that one server owns, and is made there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::call_routes::{CallPlace, CallRoutes};
use crate::limits::{
    TRIGGER_BATCH_BYTES, TRIGGER_MOVED_PAUSE_MS, TRIGGER_PAUSE_MAX_MS, TRIGGER_PAUSE_MIN_MS, TRIGGER_QUEUE_BYTES,
    TRIGGER_QUEUE_CALLS, TRIGGER_QUEUE_NUMBERS, TRIGGER_SLOTS,
};
use sandstorm_api::change::Changes;
use sandstorm_net::slots::slot_of;

/// How an invocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// It succeeded.
    Done,
    /// It ran and failed, or can never run.
    Failed,
    /// It did not run, and that is not its own fault: a suspended tenant, a quota, no such extension yet.
    NotRun,
    /// It failed, or did not run, while the slots of its keys changed their server: that says nothing of it.
    Moved,
}

/// The next step for the calls of an invocation that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TriggerCallOutcome {
    /// So many succeeded; the dead letter that was replayed, which is then the only one.
    Over { calls: usize, letter: Option<u64> },
    /// They are made again later.
    Again,
    /// So many are made again, in smaller batches.
    Split(usize),
    /// The tries of the only one are over.
    GivenUp(TriggerCall),
}

/// A call that is to be made: by itself, or with others in one invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TriggerCall {
    /// Its number: later calls have higher ones.
    pub(crate) number: u64,
    /// Its arguments.
    pub(crate) args: Vec<u8>,
    /// A position of the log before its change; `u64::MAX`: it is no change.
    pub(crate) before: u64,
    /// The position behind its change.
    pub(crate) position: u64,
    /// The dead letter that it replays.
    pub(crate) letter: Option<u64>,
    /// Times that it failed alone.
    pub(crate) failures: u32,
    /// Calls of an invocation that it may be among, at most.
    most_together: usize,
    /// The slot of the cluster that its key has; `None`: it is of no key.
    slot: Option<u16>,
    /// Times in succession that it could not run.
    delays: u32,
    /// Not before this time, in milliseconds since 1970.
    not_before_ms: u64,
}

impl TriggerCall {
    /// A call that is no change of a table. It is made alone.
    pub(crate) fn plain(args: Vec<u8>) -> TriggerCall {
        TriggerCall { most_together: 1, ..TriggerCall::of_change(args, (u64::MAX, 0)) }
    }

    /// A call that replays a dead letter. It is made alone, and what is handled of the log does not wait for it.
    /// `position`: that of the letter, which another failure keeps.
    pub(crate) fn replayed(args: Vec<u8>, letter: u64, position: u64) -> TriggerCall {
        TriggerCall { letter: Some(letter), position, ..TriggerCall::plain(args) }
    }

    /// The same for a key, in whose place of the cluster it is made; `None`: it is made here.
    pub(crate) fn at_slot_of(self, key: Option<&[u8]>) -> TriggerCall {
        self.at_slot(key.map(slot_of))
    }

    /// The same for a slot of the cluster; `None`: it is made here.
    pub(crate) fn at_slot(self, slot: Option<u16>) -> TriggerCall {
        TriggerCall { slot, ..self }
    }

    /// A call for a change between two positions.
    pub(crate) fn of_change(args: Vec<u8>, (before, position): (u64, u64)) -> TriggerCall {
        let (delays, not_before_ms, most_together) = (0, 0, usize::MAX);
        let (number, letter, failures, slot) = (0, None, 0, None);
        TriggerCall { number, args, before, position, letter, failures, most_together, slot, delays, not_before_ms }
    }
}

/// Calls that follow each other.
#[derive(Debug, Default)]
struct CallSlot {
    calls: VecDeque<TriggerCall>,
    /// So many of the first ones are under way, in the invocation of that number.
    under_way: usize,
    invocation: u64,
    /// Of the first slot of an invocation: the bits of all its slots.
    members: u64,
}

/// An invocation that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BegunInvocation {
    /// What [`CallQueue::end`] wants to know of it.
    pub(crate) place: (usize, u64),
    pub(crate) args: Vec<u8>,
    /// Where it is made.
    pub(crate) at: CallPlace,
    /// The cluster's slots of its keys.
    pub(crate) slots: Vec<u16>,
}

/// The calls that are collected for an invocation.
struct CollectedCalls {
    /// Calls that it may have, at most.
    most: usize,
    bytes: usize,
    /// Number, slot and place in the slot of each.
    calls: Vec<(u64, usize, usize)>,
    members: u64,
    /// Where they are made, once there is one.
    at: Option<CallPlace>,
    /// The bits of slots whose next call is made nowhere now.
    later: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct CallQueue {
    slots: Vec<CallSlot>,
    /// The bits of slots that have calls of which none is under way.
    idle: u64,
    next_number: u64,
    next_invocation: u64,
    /// Of each call from the number `first_open` on: the position of the log before its change; `None`: it is over.
    /// Positions grow with numbers, but for calls that are no changes.
    open: VecDeque<Option<u64>>,
    first_open: u64,
    /// The same of calls before that number which are not over: one that waits for its next try while many others
    /// succeed would make the list above long.
    waiting: BTreeMap<u64, u64>,
    /// Calls that are not over.
    open_calls: usize,
    /// Numbers of those that are changes of the whole table.
    barriers: VecDeque<u64>,
    /// Bytes of the arguments of all calls that are not over.
    bytes: usize,
}

// A slot is a bit of a word.
const _: () = assert!(TRIGGER_SLOTS == u64::BITS as usize);

impl Default for CallQueue {
    fn default() -> CallQueue {
        CallQueue {
            slots: (0..TRIGGER_SLOTS).map(|_| CallSlot::default()).collect(),
            idle: 0,
            next_number: 1,
            next_invocation: 1,
            open: VecDeque::new(),
            first_open: 1,
            waiting: BTreeMap::new(),
            open_calls: 0,
            barriers: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl CallQueue {
    /// Whether more changes may be read. Behind a change of the whole table none are until it is over.
    pub(crate) fn has_room(&self) -> bool {
        self.open_calls < TRIGGER_QUEUE_CALLS && self.bytes < TRIGGER_QUEUE_BYTES && self.barriers.is_empty()
    }

    /// The dead letters that calls which are not over replay.
    pub(crate) fn letters(&self) -> BTreeSet<u64> {
        self.slots.iter().flat_map(|slot| &slot.calls).filter_map(|call| call.letter).collect()
    }

    /// Whether there is room for so many changes that it is worth reading them.
    pub(crate) fn has_much_room(&self) -> bool {
        self.has_room() && self.open_calls <= TRIGGER_QUEUE_CALLS / 4 * 3
    }

    /// Calls that are not over.
    pub(crate) fn len(&self) -> usize {
        self.open_calls
    }

    /// Adds a call; `key`: that of its change, `None` for a change of the whole table.
    pub(crate) fn push(&mut self, key: Option<&[u8]>, mut call: TriggerCall) {
        call.number = self.next_number;
        self.next_number += 1;
        self.open.push_back(Some(call.before));
        self.open_calls += 1;
        while self.open.len() > TRIGGER_QUEUE_NUMBERS {
            self.waiting.extend(self.open.pop_front().flatten().map(|before| (self.first_open, before)));
            self.first_open += 1;
        }
        self.bytes += call.args.len();
        if key.is_none() {
            self.barriers.push_back(call.number);
            call.most_together = 1;
        }
        let at = key.map_or(0, |key| hash_of(key) as usize % self.slots.len());
        let slot = &mut self.slots[at];
        slot.calls.push_back(call);
        if slot.under_way == 0 {
            self.idle |= 1 << at;
        }
    }

    /// The next invocation that may begin, whose calls are under way from now on. `together`: the calls that it may
    /// have, at most, which are then put together; `None`: it is one call as it is.
    pub(crate) fn begin(
        &mut self,
        (now_ms, together): (u64, Option<usize>),
        routes: &CallRoutes,
    ) -> Option<BegunInvocation> {
        let most = together.unwrap_or(1).max(1);
        let mut found = CollectedCalls { most, bytes: 0, calls: Vec::new(), members: 0, at: None, later: 0 };
        let mut idle = self.idle;
        while idle != 0 && found.calls.len() < found.most {
            let at = idle.trailing_zeros() as usize;
            idle &= idle - 1;
            self.collect(at, now_ms, routes, &mut found);
        }
        let CollectedCalls { mut calls, members, at, later, .. } = found;
        for at in slots_of(later) {
            let first = self.slots[at].calls.front_mut();
            first.into_iter().for_each(|call| call.not_before_ms = now_ms + TRIGGER_MOVED_PAUSE_MS);
        }
        let at = at.filter(|_| !calls.is_empty())?;
        calls.sort_unstable();
        let of = |(_, slot, place): &(u64, usize, usize)| &self.slots[*slot].calls[*place];
        let args = |call| of(call).args.as_slice();
        let args = if together.is_some() { Changes::join(calls.iter().map(args)) } else { args(&calls[0]).to_vec() };
        let slots = calls.iter().filter_map(|call| of(call).slot).collect();
        let first = members.trailing_zeros() as usize;
        let invocation = self.next_invocation;
        self.next_invocation += 1;
        for (_, slot, _) in calls {
            let slot = &mut self.slots[slot];
            slot.under_way += 1;
            slot.invocation = invocation;
        }
        self.slots[first].members = members;
        self.idle &= !members;
        Some(BegunInvocation { place: (first, invocation), args, at, slots })
    }

    /// Takes those of a slot's first calls into an invocation that may begin and fit.
    fn collect(&self, at: usize, now_ms: u64, routes: &CallRoutes, found: &mut CollectedCalls) {
        let barrier = self.barriers.front().copied();
        let is_first = |number| self.waiting.is_empty() && self.first_open == number;
        let may_begin = |call: &TriggerCall| {
            let is_in_order =
                barrier.is_none_or(|barrier| call.number < barrier || call.number == barrier && is_first(barrier));
            call.not_before_ms <= now_ms && is_in_order
        };
        for (place, call) in self.slots[at].calls.iter().enumerate() {
            let most = found.most.min(call.most_together);
            let fits = found.calls.is_empty()
                || found.calls.len() < most && found.bytes + call.args.len() <= TRIGGER_BATCH_BYTES;
            if !may_begin(call) || !fits {
                break;
            }
            let where_made = routes.place(call.slot);
            if where_made == CallPlace::Later {
                found.later |= u64::from(place == 0) << at;
                break;
            }
            if *found.at.get_or_insert(where_made) != where_made {
                break;
            }
            (found.most, found.bytes, found.members) = (most, found.bytes + call.args.len(), found.members | 1 << at);
            found.calls.push((call.number, at, place));
        }
    }

    /// The time at which a call that waits may begin, in milliseconds since 1970.
    pub(crate) fn next_begin_ms(&self) -> Option<u64> {
        let waiting = self.slots.iter().filter(|slot| slot.under_way == 0).filter_map(|slot| slot.calls.front());
        waiting.map(|call| call.not_before_ms).min()
    }

    /// Notes how an invocation ended. `None`: there is no such one under way any more.
    pub(crate) fn end(
        &mut self,
        (first, invocation): (usize, u64),
        end: CallEnd,
        (retries, now_ms): (u32, u64),
    ) -> Option<TriggerCallOutcome> {
        let leader = self.slots.get(first)?;
        if leader.under_way == 0 || leader.invocation != invocation {
            return None;
        }
        let members = leader.members;
        let calls = slots_of(members).map(|at| self.slots[at].under_way).sum();
        let fate = match end {
            CallEnd::Done => {
                TriggerCallOutcome::Over { calls, letter: self.take_over(members).and_then(|call| call.letter) }
            }
            CallEnd::NotRun => {
                self.each_under_way(members, |call| {
                    call.delays += 1;
                    call.not_before_ms = now_ms + pause_ms(call.delays);
                });
                TriggerCallOutcome::Again
            }
            CallEnd::Moved => {
                self.each_under_way(members, |call| call.not_before_ms = now_ms + TRIGGER_MOVED_PAUSE_MS);
                TriggerCallOutcome::Again
            }
            CallEnd::Failed if calls > 1 => {
                self.each_under_way(members, |call| (call.most_together, call.delays) = (calls.div_ceil(2), 0));
                TriggerCallOutcome::Split(calls)
            }
            CallEnd::Failed => {
                let mut is_given_up = false;
                self.each_under_way(members, |call| {
                    (call.failures, call.delays) = (call.failures + 1, 0);
                    call.not_before_ms = now_ms + pause_ms(call.failures);
                    is_given_up = call.failures > retries;
                });
                let given_up = if is_given_up { self.take_over(members) } else { None };
                given_up.map_or(TriggerCallOutcome::Again, TriggerCallOutcome::GivenUp)
            }
        };
        for at in slots_of(members) {
            let slot = &mut self.slots[at];
            slot.under_way = 0;
            if !slot.calls.is_empty() {
                self.idle |= 1 << at;
            }
        }
        Some(fate)
    }

    fn each_under_way(&mut self, members: u64, mut change: impl FnMut(&mut TriggerCall)) {
        for at in slots_of(members) {
            let under_way = self.slots[at].under_way;
            self.slots[at].calls.iter_mut().take(under_way).for_each(&mut change);
        }
    }

    /// Removes the calls of an invocation, which are over. Returns the last one of them.
    fn take_over(&mut self, members: u64) -> Option<TriggerCall> {
        let mut last = None;
        for at in slots_of(members) {
            for _ in 0..self.slots[at].under_way {
                let Some(call) = self.slots[at].calls.pop_front() else { break };
                self.bytes -= call.args.len();
                self.open_calls -= 1;
                match call.number.checked_sub(self.first_open) {
                    Some(at) => self.open.get_mut(at as usize).into_iter().for_each(|open| *open = None),
                    None => drop(self.waiting.remove(&call.number)),
                }
                if self.barriers.front() == Some(&call.number) {
                    self.barriers.pop_front();
                }
                last = Some(call);
            }
        }
        while let Some(None) = self.open.front() {
            self.open.pop_front();
            self.first_open += 1;
        }
        last
    }

    /// The position up to which all changes are over, if those up to `read` were added.
    pub(crate) fn handled(&self, read: u64) -> u64 {
        // Calls without a change have no position.
        let mut open = self.waiting.values().chain(self.open.iter().flatten()).copied();
        let first = open.find(|before| *before != u64::MAX);
        first.unwrap_or(u64::MAX).min(read)
    }
}

/// The numbers of slots whose bits are set.
fn slots_of(mut members: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (members != 0).then(|| members.trailing_zeros() as usize)?;
        members &= members - 1;
        Some(at)
    })
}

/// The pause before a call is made again, after so many times.
fn pause_ms(times: u32) -> u64 {
    TRIGGER_PAUSE_MIN_MS.saturating_mul(1 << times.saturating_sub(1).min(20)).min(TRIGGER_PAUSE_MAX_MS)
}

/// A hash of a key: any that spreads them.
fn hash_of(key: &[u8]) -> u32 {
    // FNV-1a: keys of a tenant that share a slot only slow that tenant.
    key.iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests;

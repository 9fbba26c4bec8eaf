//! The calls that a trigger has to make: in order by key, several keys at a time, each until it has succeeded or its
//! tries are over.
//!
//! Changes of one key follow each other, as do changes whose keys share a slot. A change of the whole table waits for
//! all before it, and all behind it wait for it.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::{
    TRIGGER_PAUSE_MAX_MS, TRIGGER_PAUSE_MIN_MS, TRIGGER_QUEUE_BYTES, TRIGGER_QUEUE_CALLS, TRIGGER_SLOTS,
};

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// It succeeded.
    Done,
    /// It ran and failed, or can never run.
    Failed,
    /// It did not run, and that is not its own fault: a suspended tenant, a quota, no such extension yet.
    NotRun,
}

/// What becomes of a call that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallFate {
    /// It succeeded; the dead letter that it replayed.
    Over(Option<u64>),
    /// It is made again later.
    Again,
    /// Its tries are over.
    GivenUp(TriggerCall),
}

/// A call that is to be made.
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
    /// Times that it failed.
    pub(crate) failures: u32,
    /// Times in succession that it could not run.
    delays: u32,
    /// Not before this time, in milliseconds since 1970.
    not_before_ms: u64,
    is_running: bool,
}

impl TriggerCall {
    /// A call that is no change of a table.
    pub(crate) fn plain(args: Vec<u8>, letter: Option<u64>) -> TriggerCall {
        TriggerCall::of_change(args, (u64::MAX, 0), letter)
    }

    /// A call for a change between two positions.
    pub(crate) fn of_change(args: Vec<u8>, (before, position): (u64, u64), letter: Option<u64>) -> TriggerCall {
        let (delays, not_before_ms) = (0, 0);
        TriggerCall { number: 0, args, before, position, letter, failures: 0, delays, not_before_ms, is_running: false }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct CallQueue {
    slots: Vec<VecDeque<TriggerCall>>,
    next_number: u64,
    /// Calls that are not over: number, and the position of the log before the change. Both grow together.
    open: BTreeMap<u64, u64>,
    /// Numbers of those that are changes of the whole table.
    barriers: VecDeque<u64>,
    /// Bytes of the arguments of all calls that are not over.
    bytes: usize,
}

impl Default for CallQueue {
    fn default() -> CallQueue {
        let slots = (0..TRIGGER_SLOTS).map(|_| VecDeque::new()).collect();
        CallQueue { slots, next_number: 1, open: BTreeMap::new(), barriers: VecDeque::new(), bytes: 0 }
    }
}

impl CallQueue {
    /// Whether more changes may be read. Behind a change of the whole table none are until it is over.
    pub(crate) fn has_room(&self) -> bool {
        self.open.len() < TRIGGER_QUEUE_CALLS && self.bytes < TRIGGER_QUEUE_BYTES && self.barriers.is_empty()
    }

    /// Calls that are not over.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Adds a call; `key`: that of its change, `None` for a change of the whole table.
    pub(crate) fn push(&mut self, key: Option<&[u8]>, mut call: TriggerCall) {
        call.number = self.next_number;
        self.next_number += 1;
        self.open.insert(call.number, call.before);
        self.bytes += call.args.len();
        if key.is_none() {
            self.barriers.push_back(call.number);
        }
        let slot = key.map_or(0, |key| hash_of(key) as usize % self.slots.len());
        self.slots[slot].push_back(call);
    }

    /// The next call that may begin, which is running from now on, with its slot.
    pub(crate) fn begin(&mut self, now_ms: u64) -> Option<(usize, u64, &[u8])> {
        let (first, barrier) = (*self.open.first_key_value()?.0, self.barriers.front().copied());
        let may_begin = |call: &TriggerCall| {
            let is_in_order =
                barrier.is_none_or(|barrier| call.number < barrier || call.number == barrier && first == barrier);
            !call.is_running && call.not_before_ms <= now_ms && is_in_order
        };
        let slot = self.slots.iter().position(|slot| slot.front().is_some_and(may_begin))?;
        let call = self.slots[slot].front_mut()?;
        call.is_running = true;
        Some((slot, call.number, &call.args))
    }

    /// The time at which a call that waits may begin, in milliseconds since 1970.
    pub(crate) fn next_begin_ms(&self) -> Option<u64> {
        let waiting = self.slots.iter().filter_map(VecDeque::front).filter(|call| !call.is_running);
        waiting.map(|call| call.not_before_ms).min()
    }

    /// Notes how a call ended. `None`: there is no such call under way any more.
    pub(crate) fn end(
        &mut self,
        (slot, number): (usize, u64),
        end: CallEnd,
        (retries, now_ms): (u32, u64),
    ) -> Option<CallFate> {
        let queue = self.slots.get_mut(slot)?;
        let call = queue.front_mut().filter(|call| call.is_running && call.number == number)?;
        let again = match end {
            CallEnd::Done => None,
            CallEnd::NotRun => {
                call.delays += 1;
                Some(call.delays)
            }
            CallEnd::Failed => {
                (call.failures, call.delays) = (call.failures + 1, 0);
                (call.failures <= retries).then_some(call.failures)
            }
        };
        if let Some(times) = again {
            call.is_running = false;
            call.not_before_ms = now_ms + pause_ms(times);
            return Some(CallFate::Again);
        }
        let call = queue.pop_front()?;
        self.bytes -= call.args.len();
        self.open.remove(&number);
        if self.barriers.front() == Some(&number) {
            self.barriers.pop_front();
        }
        Some(if end == CallEnd::Done { CallFate::Over(call.letter) } else { CallFate::GivenUp(call) })
    }

    /// The position up to which all changes are over, if those up to `read` were added.
    pub(crate) fn handled(&self, read: u64) -> u64 {
        // Those that are no changes have no position.
        let first = self.open.values().copied().find(|before| *before != u64::MAX);
        first.unwrap_or(u64::MAX).min(read)
    }
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
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A small generator of numbers.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % end
        }
    }

    /// Changes of 20 keys, of which some calls fail for a while or for ever, and some are of the whole table: of each
    /// key they succeed in their order, whole-table changes come between, and the handled position covers no open
    /// change.
    #[test]
    fn calls_succeed_in_the_order_of_their_keys_whatever_fails() {
        for seed in 0..50 {
            let mut numbers = Numbers(seed);
            let (mut queue, mut now_ms, mut read) = (CallQueue::default(), 1_000, 0_u64);
            let mut running: Vec<(usize, u64, Vec<u8>)> = Vec::new();
            let mut over: Vec<Vec<u8>> = Vec::new();
            let mut pushed: Vec<(Vec<u8>, u64)> = Vec::new();
            let mut given_up = Vec::new();
            while over.len() + given_up.len() < 300 || !running.is_empty() {
                if pushed.len() < 300 && queue.has_room() && numbers.below(2) == 0 {
                    let key = if numbers.below(40) == 0 { None } else { Some([numbers.below(20) as u8]) };
                    let position = read + 1 + numbers.below(50);
                    let args = [key.map_or(255, |key| key[0]), (pushed.len() / 256) as u8, pushed.len() as u8].to_vec();
                    pushed.push((args.clone(), position));
                    queue.push(key.as_ref().map(|key| &key[..]), TriggerCall::of_change(args, (read, position), None));
                    read = position;
                }
                while let Some((slot, number, args)) = queue.begin(now_ms) {
                    let args = args.to_vec();
                    running.push((slot, number, args));
                }
                if !running.is_empty() {
                    let (slot, number, args) = running.swap_remove(numbers.below(running.len() as u64) as usize);
                    let end = match numbers.below(4) {
                        0 => CallEnd::Failed,
                        1 => CallEnd::NotRun,
                        _ => CallEnd::Done,
                    };
                    match queue.end((slot, number), end, (2, now_ms)).expect("it runs") {
                        CallFate::Over(letter) => {
                            assert_eq!(letter, None);
                            over.push(args);
                        }
                        CallFate::GivenUp(call) => {
                            assert_eq!((call.failures, &call.args), (3, &args));
                            given_up.push(args);
                        }
                        CallFate::Again => {}
                    }
                }
                let handled = queue.handled(read);
                let ended = |args: &Vec<u8>| over.contains(args) || given_up.contains(args);
                assert!(pushed.iter().all(|(args, position)| *position > handled || ended(args)), "{seed}");
                now_ms += 50 + numbers.below(TRIGGER_PAUSE_MAX_MS / 8);
            }
            assert_eq!((queue.len(), queue.bytes, queue.handled(read), queue.barriers.len()), (0, 0, read, 0));
            let of = |args: &Vec<u8>| pushed.iter().position(|(pushed, _)| pushed == args).unwrap();
            let mut last: HashMap<u8, usize> = HashMap::new();
            let (mut barrier, mut highest) = (0, 0);
            for args in &over {
                let at = of(args);
                let before = last.insert(args[0], at);
                assert!(before.is_none_or(|before| before < at) && at >= barrier, "{seed}: {args:?}");
                if args[0] == 255 {
                    assert!(highest <= at, "{seed}: all before a change of the table are over");
                    barrier = at;
                }
                highest = highest.max(at);
            }
        }
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_only_failures_are_counted() {
        assert_eq!((pause_ms(1), pause_ms(2), pause_ms(90)), (100, 200, TRIGGER_PAUSE_MAX_MS));
        let mut queue = CallQueue::default();
        queue.push(Some(b"k"), TriggerCall::plain(b"args".to_vec(), Some(7)));
        let mut now_ms = 0;
        for _ in 0..50 {
            let (slot, number, _) = queue.begin(now_ms).expect("it is due");
            assert_eq!(queue.end((slot, number), CallEnd::NotRun, (1, now_ms)), Some(CallFate::Again));
            assert!(queue.begin(now_ms).is_none());
            now_ms = queue.next_begin_ms().expect("it waits");
        }
        let (slot, number, _) = queue.begin(now_ms).expect("it is due");
        assert_eq!(queue.end((slot, number), CallEnd::Failed, (1, now_ms)), Some(CallFate::Again));
        now_ms = queue.next_begin_ms().expect("it waits");
        let (slot, number, _) = queue.begin(now_ms).expect("it is due");
        assert!(matches!(queue.end((slot, number), CallEnd::Failed, (1, now_ms)), Some(CallFate::GivenUp(_))));
        assert_eq!(queue.end((slot, number), CallEnd::Done, (1, now_ms)), None, "it is over");
    }
}

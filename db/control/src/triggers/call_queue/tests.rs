//! Promise: calls succeed at least once in the order of their keys, alone or together, and one that never succeeds
//! is given up alone, after its own tries.

use std::collections::{BTreeMap, HashMap, HashSet};

use sandstorm_api::change::{Change, ChangeOp};

use super::*;

/// A small generator of numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Changes that are made in a simulation.
const CHANGES: u64 = 300;
/// Times that a failed call is made again.
const RETRIES: u32 = 2;

/// A queue, with what its calls are to do and what they have done. The version of a change is its number.
struct Simulation {
    seed: u64,
    numbers: Numbers,
    /// Calls of an invocation at most; `None`: one as it is.
    together: Option<usize>,
    queue: CallQueue,
    now_ms: u64,
    read: u64,
    /// Key of each change, `None` for the whole table, and the position behind it.
    made: Vec<(Option<u8>, u64)>,
    /// Changes whose calls still fail so many times.
    fail: BTreeMap<u64, u32>,
    under_way: Vec<((usize, u64), Vec<u64>)>,
    /// Changes in the order in which they succeeded.
    succeeded: Vec<u64>,
    given_up: Vec<u64>,
    /// Failed invocations by the changes that were in them.
    failed_with: HashMap<u64, u32>,
}

impl Simulation {
    fn new(seed: u64, together: Option<usize>) -> Simulation {
        Simulation {
            seed,
            numbers: Numbers(seed),
            together,
            queue: CallQueue::default(),
            now_ms: 1_000,
            read: 0,
            made: Vec::new(),
            fail: BTreeMap::new(),
            under_way: Vec::new(),
            succeeded: Vec::new(),
            given_up: Vec::new(),
            failed_with: HashMap::new(),
        }
    }

    fn make_change(&mut self) {
        let number = self.made.len() as u64;
        let key = (self.numbers.below(40) != 0).then(|| self.numbers.below(20) as u8);
        let position = self.read + 1 + self.numbers.below(50);
        match self.numbers.below(20) {
            0 => drop(self.fail.insert(number, u32::MAX)),
            1 => drop(self.fail.insert(number, 1 + self.numbers.below(u64::from(RETRIES)) as u32)),
            _ => {}
        }
        let op = if key.is_some() { ChangeOp::Put } else { ChangeOp::Clear };
        let key_bytes = key.map_or(Vec::new(), |key| vec![key]);
        let change = Change { op, key: &key_bytes, value: b"", version: number, expires_at_ms: 0, position };
        let call = TriggerCall::of_change(change.encode(), (self.read, position));
        self.queue.push(key.map(|_| key_bytes.as_slice()), call);
        self.made.push((key, position));
        self.read = position;
    }

    fn begin_all(&mut self) {
        while let Some(BegunInvocation { place, args, .. }) =
            self.queue.begin((self.now_ms, self.together), &CallRoutes::default())
        {
            let is_single = Change::decode(&args).is_ok();
            assert_eq!(is_single, self.together.is_none());
            let changes: Vec<u64> = Changes::decode(&args).expect("changes").map(|change| change.version).collect();
            assert!(!changes.is_empty() && changes.len() <= self.together.unwrap_or(1));
            assert!(changes.is_sorted(), "in the order of the log");
            let has_clear = changes.iter().any(|change| self.made[*change as usize].0.is_none());
            assert!(!has_clear || changes.len() == 1, "a change of the whole table is alone");
            let busy: HashSet<u64> = self.under_way.iter().flat_map(|(_, changes)| changes.iter().copied()).collect();
            let key_of = |change: &u64| self.made[*change as usize].0;
            let busy_keys: HashSet<Option<u8>> = busy.iter().map(key_of).collect();
            assert!(changes.iter().all(|change| !busy_keys.contains(&key_of(change))), "one at a time of each key");
            self.under_way.push((place, changes));
        }
    }

    fn end_one(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let which = self.numbers.below(self.under_way.len() as u64) as usize;
        let (place, changes) = self.under_way.swap_remove(which);
        let fails: Vec<u64> = changes.iter().copied().filter(|change| self.fail.contains_key(change)).collect();
        let end = match self.numbers.below(6) {
            0 => CallEnd::NotRun,
            1 => CallEnd::Moved,
            _ if fails.is_empty() => CallEnd::Done,
            _ => CallEnd::Failed,
        };
        if end == CallEnd::Failed {
            changes.iter().for_each(|change| *self.failed_with.entry(*change).or_default() += 1);
            for change in fails {
                let left = self.fail.remove(&change).expect("it fails");
                if left > 1 {
                    self.fail.insert(change, if left == u32::MAX { left } else { left - 1 });
                }
            }
        }
        let count = changes.len();
        match (end, self.queue.end(place, end, (RETRIES, self.now_ms)).expect("it is under way")) {
            (CallEnd::Done, TriggerCallOutcome::Over { calls, letter: None }) if calls == count => {
                self.succeeded.extend(changes);
            }
            (CallEnd::NotRun | CallEnd::Moved, TriggerCallOutcome::Again) => {}
            (CallEnd::Failed, TriggerCallOutcome::Split(calls)) if calls == count && count > 1 => {}
            (CallEnd::Failed, TriggerCallOutcome::Again) if count == 1 => {}
            (CallEnd::Failed, TriggerCallOutcome::GivenUp(call)) if count == 1 => {
                assert_eq!(call.failures, RETRIES + 1);
                self.given_up.extend(changes);
            }
            (end, fate) => panic!("{}: {end:?} of {count} became {fate:?}", self.seed),
        }
        assert_eq!(self.queue.end(place, CallEnd::Done, (RETRIES, 0)), None, "it is over");
    }

    /// The position that counts as handled covers no change that is open.
    fn check_handled(&self) {
        let handled = self.queue.handled(self.read);
        let over: HashSet<u64> = self.succeeded.iter().chain(&self.given_up).copied().collect();
        for (change, (_, position)) in (0..).zip(&self.made) {
            assert!(*position > handled || over.contains(&change), "{}: {change}", self.seed);
        }
    }

    fn check_end(&self) {
        let queue = &self.queue;
        let left = (queue.len(), queue.bytes, queue.handled(self.read), queue.barriers.len(), queue.open.len());
        assert_eq!(left, (0, 0, self.read, 0, 0));
        assert!(self.fail.values().all(|left| *left == u32::MAX));
        let mut given_up = self.given_up.clone();
        given_up.sort_unstable();
        assert!(given_up.iter().eq(self.fail.keys()), "{}: those that never succeed, and no others", self.seed);
        let (mut last, mut barrier, mut highest) = (HashMap::new(), 0, 0);
        for change in &self.succeeded {
            let key = self.made[*change as usize].0;
            let before = last.insert(key, *change);
            assert!(before.is_none_or(|before| before < *change) && *change >= barrier, "{}: {change}", self.seed);
            if key.is_none() {
                assert!(highest <= *change, "{}: all before a change of the table are over", self.seed);
                barrier = *change;
            }
            highest = highest.max(*change);
        }
        // A batch is halved until it is one change: so a change that always fails fails in few.
        let most = u32::MAX.count_ones() - (self.together.unwrap_or(1) as u32).leading_zeros() + 1 + RETRIES + 1;
        for change in &self.given_up {
            let failed = self.failed_with[change];
            assert!(failed <= most, "{}: {change} failed {failed} times, at most {most}", self.seed);
        }
    }
}

/// Changes of 20 keys, of which some calls fail for a while or for ever, some cannot run, and some are of the whole
/// table.
#[test]
fn calls_succeed_in_the_order_of_their_keys_whatever_fails() {
    for seed in 0..100 {
        let together = [None, Some(1), Some(2), Some(7), Some(64)][seed as usize % 5];
        let mut all = Simulation::new(seed, together);
        while all.made.len() < CHANGES as usize || all.queue.len() > 0 {
            while (all.made.len() as u64) < CHANGES && all.queue.has_room() && all.numbers.below(4) != 0 {
                all.make_change();
            }
            all.begin_all();
            all.end_one();
            all.check_handled();
            all.now_ms += 50 + all.numbers.below(TRIGGER_PAUSE_MAX_MS / 8);
        }
        all.check_end();
    }
}

#[test]
fn a_batch_has_so_many_bytes_at_most_and_a_large_change_goes_alone() {
    let mut queue = CallQueue::default();
    for (number, bytes) in
        [TRIGGER_BATCH_BYTES / 2, TRIGGER_BATCH_BYTES / 2 + 1, 2 * TRIGGER_BATCH_BYTES, 40].into_iter().enumerate()
    {
        let (value, version, position) = (vec![7; bytes], number as u64, number as u64 + 1);
        let change = Change { op: ChangeOp::Put, key: b"k", value: &value, version, expires_at_ms: 0, position };
        queue.push(Some(b"k"), TriggerCall::of_change(change.encode(), (version, position)));
    }
    for count in [1, 1, 1, 1] {
        let begun = queue.begin((0, Some(8)), &CallRoutes::default()).expect("it may begin");
        assert_eq!(Changes::decode(&begun.args).expect("changes").len(), count);
        assert_eq!(queue.begin((0, Some(8)), &CallRoutes::default()), None, "one at a time of a key");
        assert_eq!(
            queue.end(begun.place, CallEnd::Done, (1, 0)),
            Some(TriggerCallOutcome::Over { calls: 1, letter: None })
        );
    }
}

#[test]
fn pauses_grow_up_to_a_bound_and_only_failures_are_counted() {
    assert_eq!((pause_ms(1), pause_ms(2), pause_ms(90)), (100, 200, TRIGGER_PAUSE_MAX_MS));
    let mut queue = CallQueue::default();
    queue.push(Some(b"k"), TriggerCall::replayed(b"args".to_vec(), 7, 3));
    let mut now_ms = 0;
    for _ in 0..50 {
        let place = queue.begin((now_ms, None), &CallRoutes::default()).expect("it is due").place;
        assert_eq!(queue.end(place, CallEnd::NotRun, (1, now_ms)), Some(TriggerCallOutcome::Again));
        assert!(queue.begin((now_ms, None), &CallRoutes::default()).is_none());
        now_ms = queue.next_begin_ms().expect("it waits");
    }
    let place = queue.begin((now_ms, None), &CallRoutes::default()).expect("it is due").place;
    assert_eq!(queue.end(place, CallEnd::Failed, (1, now_ms)), Some(TriggerCallOutcome::Again));
    now_ms = queue.next_begin_ms().expect("it waits");
    let place = queue.begin((now_ms, None), &CallRoutes::default()).expect("it is due").place;
    assert!(matches!(queue.end(place, CallEnd::Failed, (1, now_ms)), Some(TriggerCallOutcome::GivenUp(_))));
    assert_eq!(queue.end(place, CallEnd::Done, (1, now_ms)), None, "it is over");
}

/// The replay of a dead letter is made alone: it has failed before, and is not to fail others.
#[test]
fn a_dead_letter_is_replayed_alone() {
    let mut queue = CallQueue::default();
    let change = |number: u64| Change {
        op: ChangeOp::Put,
        key: b"k",
        value: b"",
        version: number,
        expires_at_ms: 0,
        position: number,
    };
    queue.push(Some(b"k"), TriggerCall::replayed(change(1).encode(), 9, 1));
    queue.push(Some(b"other"), TriggerCall::of_change(change(2).encode(), (1, 2)));
    let mut seen = Vec::new();
    while let Some(begun) = queue.begin((0, Some(8)), &CallRoutes::default()) {
        seen.push(Changes::decode(&begun.args).expect("changes").map(|change| change.version).collect::<Vec<_>>());
        let letter = (seen.last() == Some(&vec![1])).then_some(9);
        assert_eq!(queue.end(begun.place, CallEnd::Done, (1, 0)), Some(TriggerCallOutcome::Over { calls: 1, letter }));
    }
    seen.sort_unstable();
    assert_eq!(seen, [vec![1], vec![2]]);
}

/// One that waits for its next try while others succeed costs the same memory, however many these are.
#[test]
fn a_call_that_waits_keeps_no_list_of_those_that_are_over() {
    let mut queue = CallQueue::default();
    let call = |number: u64| TriggerCall::of_change(Vec::new(), (number, number + 1));
    queue.push(Some(b"k"), call(0));
    let failed = queue.begin((0, None), &CallRoutes::default()).expect("it may begin").place;
    assert_eq!(queue.end(failed, CallEnd::Failed, (1, 0)), Some(TriggerCallOutcome::Again));
    let changes = 3 * TRIGGER_QUEUE_NUMBERS as u64;
    for number in 1..changes {
        queue.push(Some(b"other"), call(number));
        let place = queue.begin((0, None), &CallRoutes::default()).expect("it may begin").place;
        assert!(queue.end(place, CallEnd::Done, (1, 0)).is_some());
        assert!(queue.open.len() <= TRIGGER_QUEUE_NUMBERS + 1);
    }
    assert_eq!((queue.handled(changes), queue.len()), (0, 1));
    // A change of the whole table waits for it all the same.
    queue.push(None, call(changes));
    assert_eq!(queue.begin((0, None), &CallRoutes::default()), None);
    let again = queue.next_begin_ms().expect("it waits").max(TRIGGER_PAUSE_MAX_MS);
    for left in [1, 0] {
        let place = queue.begin((again, None), &CallRoutes::default()).expect("it may begin").place;
        assert_eq!(queue.begin((again, None), &CallRoutes::default()), None, "one behind the other");
        assert!(queue.end(place, CallEnd::Done, (1, again)).is_some());
        assert_eq!(queue.len(), left);
    }
    assert_eq!((queue.handled(changes + 1), queue.waiting.len()), (changes + 1, 0));
}

/// The changes of all invocations that may begin, by the place where they are made.
fn begun_at(queue: &mut CallQueue, now_ms: u64, routes: &CallRoutes) -> Vec<(CallPlace, Vec<u64>, (usize, u64))> {
    let begin = || queue.begin((now_ms, Some(8)), routes);
    std::iter::from_fn(begin)
        .map(|BegunInvocation { place, args, at, slots }| {
            let versions: Vec<u64> = Changes::decode(&args).expect("changes").map(|change| change.version).collect();
            assert_eq!(slots.len(), versions.len());
            (at, versions, place)
        })
        .collect()
}

/// An invocation has changes of keys of one server, and is made there; none has those of a key that is between two.
#[test]
fn changes_are_called_where_their_keys_are() {
    use sandstorm_store::slots::{ClusterServer, SlotMap, SlotOwnership, SlotRange, SlotSpan};

    let own = std::sync::Arc::new(SlotOwnership::new("a".to_owned()));
    // `foo` is in slot 12182, `bar` in 5061, `hello` in 866.
    let servers = vec![ClusterServer::example("a"), ClusterServer::example("b")];
    let range = |first, last, server| SlotRange { first, last, server: Some(server) };
    own.set_map(SlotMap::new(1, servers.clone(), &[range(0, 9_999, 0), range(10_000, 16_383, 1)]));
    own.set_owned(|slot| slot < 10_000);
    own.set_called_elsewhere(Some(SlotSpan { first: 800, last: 900 }));
    let mut queue = CallQueue::default();
    for (version, key) in (1..).zip(["foo", "bar", "hello", "foo", "bar", "hello"]) {
        let change =
            Change { op: ChangeOp::Put, key: key.as_bytes(), value: b"", version, expires_at_ms: 0, position: version };
        let call = TriggerCall::of_change(change.encode(), (version - 1, version));
        queue.push(Some(key.as_bytes()), call.at_slot_of(Some(key.as_bytes())));
    }
    let mut begun = begun_at(&mut queue, 0, &CallRoutes::now(Some(&own)));
    begun.sort_by_key(|(_, versions, _)| versions[0]);
    let shown: Vec<_> = begun.iter().map(|(at, versions, _)| (*at, versions.clone())).collect();
    assert_eq!(shown, [(CallPlace::Server(1), vec![1, 4]), (CallPlace::Here, vec![2, 5])]);
    // The slot of `foo` leaves that server as well, before its call is over: it has no try less, and is made here.
    own.set_map(SlotMap::new(2, servers, &[range(0, 16_383, 0)]));
    own.set_owned(|_| true);
    own.set_called_elsewhere(None);
    let moved = queue.end(begun[0].2, CallEnd::Moved, (0, 0));
    assert_eq!(moved, Some(TriggerCallOutcome::Again));
    assert!(matches!(queue.end(begun[1].2, CallEnd::Done, (0, 0)), Some(TriggerCallOutcome::Over { calls: 2, .. })));
    assert!(queue.next_begin_ms().is_some_and(|at_ms| at_ms <= TRIGGER_MOVED_PAUSE_MS), "soon, and not at once");
    let again = begun_at(&mut queue, TRIGGER_MOVED_PAUSE_MS, &CallRoutes::now(Some(&own)));
    let mut versions: Vec<u64> = again.iter().flat_map(|(_, versions, _)| versions.clone()).collect();
    versions.sort_unstable();
    assert!(again.iter().all(|(at, ..)| *at == CallPlace::Here));
    assert_eq!(versions, [1, 3, 4, 6]);
    again.iter().for_each(|(.., place)| drop(queue.end(*place, CallEnd::Done, (0, 0))));
    assert_eq!((queue.len(), queue.handled(6)), (0, 6));
}

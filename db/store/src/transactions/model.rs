//! Promise: a commit is seen whole or not at all, at one moment, and no write is lost. Loom tries every interleaving
//! (up to so many preemptions) of two or three threads, stale reads included. A test program of its own
//! (`cargo test -p sandstorm-store --test commits`): loom replaces the process's fault handlers, which the tests of
//! extensions need.
//!
//! *Real* here is `protocol.rs`, over loom's atomics: the order of a commit's steps and its fence, and announcing and
//! taking back. So are a get's reason to wait, the test that a stripe is being written to, and the case of a commit
//! without announcement.
//!
//! *Modelled*, as the real code does it: a stripe's lock (loom's mutex, and a word that tells whether it is locked,
//! read as relaxed as parking_lot does). A record is one word: its version (0: none), stored with release under the
//! lock and loaded with acquire, as a slot's pointer is. There are two keys in two tables, in one table, or in one
//! stripe of it. Further modelled: the locks that [`ModelCommit`] takes and their order, and how it checks its reads
//! (`TableLocks::of`, `TableLocks::holds` and `commit` in `mod.rs`). So are a snapshot (`snapshot.rs`, without its last
//! resort), and the retries. A range is one of a key: its stripe stands for all of its table's. There is no growth, no
//! expiry and no quota.
//!
//! Loom remembers the last thread that used a word, and no other. A writer that loads a word before it writes it would
//! hide an earlier reader, and orders would not be tried. So the holder of a word's lock reads it by an exchange, which
//! sees the same there.
//!
//! Each promise has twins that leave out a step and must fail, so that the model is known to test what it claims.
#![cfg(not(miri))]

use std::cell::Cell;

use loom::sync::Arc;
use loom::thread;

mod sync {
    use std::marker::PhantomData;

    use loom::sync::atomic::AtomicBool;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};

    use super::{LEFT_OUT, OmittedStep};

    /// A mutex that tells whether it is locked. A thread that does not take it sees only that word.
    pub(super) struct Lock<T> {
        mutex: loom::sync::Mutex<()>,
        locked: AtomicBool,
        of: PhantomData<T>,
    }

    pub(super) struct ModelLockGuard<'l, T>(&'l Lock<T>, Option<loom::sync::MutexGuard<'l, ()>>);

    impl<T> Lock<T> {
        pub(super) fn new() -> Lock<T> {
            Lock { mutex: loom::sync::Mutex::new(()), locked: AtomicBool::new(false), of: PhantomData }
        }

        pub(super) fn lock(&self) -> ModelLockGuard<'_, T> {
            let guard = self.mutex.lock().ok();
            self.locked.swap(true, Ordering::Acquire);
            ModelLockGuard(self, guard)
        }

        pub(super) fn is_locked(&self) -> bool {
            self.locked.load(Ordering::Relaxed)
        }
    }

    impl<T> Drop for ModelLockGuard<'_, T> {
        fn drop(&mut self) {
            self.0.locked.store(false, Ordering::Release);
            drop(self.1.take());
        }
    }

    pub(super) fn fence(ordering: Ordering) {
        if LEFT_OUT.get() != OmittedStep::Fence || ordering != Ordering::SeqCst {
            loom::sync::atomic::fence(ordering);
        }
    }
}

#[path = "protocol.rs"]
#[allow(dead_code)]
mod protocol;

use self::protocol::{CommitMask, CommitSteps, is_write_locked, needs_no_announcement, run_steps};
use self::sync::{AtomicU64, Lock, ModelLockGuard, Ordering};

/// The step that a twin leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OmittedStep {
    Nothing,
    Fence,
    Announcement,
    /// A get looks without waiting.
    Wait,
    /// Versions are not compared.
    Validation,
    /// No commit checks whether the stripes that it read are locked.
    Writers,
    /// A single change is announced only where a stripe that was read was never locked.
    UnlockReads,
    /// The lock of a range is released when it was checked, before the changes are announced.
    RangeLock,
}

thread_local! {
    static LEFT_OUT: Cell<OmittedStep> = const { Cell::new(OmittedStep::Nothing) };
}

const KEYS: usize = 2;
const X: usize = 0;
const Y: usize = 1;

/// Two keys: their versions, the locks of their stripes, and the announcements of their tables.
struct ModelStore {
    announced: [CommitMask; KEYS],
    versions: [AtomicU64; KEYS],
    locks: [Lock<()>; KEYS],
    placement: KeyPlacement,
}

/// The tables and stripes of the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyPlacement {
    TwoTables,
    TwoStripes,
    OneStripe,
}

/// A transaction: its reads (key, version), as records and as ranges, and its writes (key, version).
#[derive(Default)]
struct ModelCommit {
    reads: Vec<(usize, u64)>,
    ranges: Vec<(usize, u64)>,
    writes: Vec<(usize, u64)>,
}

#[derive(Debug, PartialEq, Eq)]
enum ModelFailure {
    Unsure,
    Conflict,
}

/// The locks that a commit holds, by stripe.
type ModelLocks<'s> = [Option<ModelLockGuard<'s, ()>>; KEYS];

/// An announcement; taken back when dropped.
struct ModelAnnouncement<'s>(&'s CommitMask, u64);

impl<'s> ModelAnnouncement<'s> {
    fn new(announced: &'s CommitMask, stripes: u64) -> ModelAnnouncement<'s> {
        announced.add(stripes);
        ModelAnnouncement(announced, stripes)
    }
}

impl Drop for ModelAnnouncement<'_> {
    fn drop(&mut self) {
        self.0.take_back(self.1);
    }
}

impl ModelStore {
    fn new(versions: [u64; KEYS], placement: KeyPlacement) -> Arc<ModelStore> {
        Arc::new(ModelStore {
            announced: [CommitMask::new(), CommitMask::new()],
            versions: versions.map(AtomicU64::new),
            locks: [Lock::new(), Lock::new()],
            placement,
        })
    }

    fn stripe(&self, key: usize) -> usize {
        if self.placement == KeyPlacement::OneStripe { 0 } else { key }
    }

    fn table(&self, key: usize) -> &CommitMask {
        &self.announced[if self.placement == KeyPlacement::TwoTables { key } else { 0 }]
    }

    fn version_of(&self, key: usize) -> u64 {
        self.versions[key].load(Ordering::Acquire)
    }

    /// As above for the lock's holder.
    fn version_locked(&self, key: usize) -> u64 {
        self.versions[key].fetch_or(0, Ordering::Acquire)
    }

    /// `RecordTable::get`.
    fn get(&self, key: usize) -> u64 {
        if self.table(key).any() && LEFT_OUT.get() != OmittedStep::Wait {
            let stripe = self.stripe(key);
            self.table(key).wait(stripe, &self.locks[stripe]);
        }
        self.version_of(key)
    }

    /// A plain write of one key: `f` makes the new version of the old one.
    fn update(&self, key: usize, f: impl FnOnce(u64) -> u64) {
        let _lock = self.locks[self.stripe(key)].lock();
        self.versions[key].store(f(self.version_locked(key)), Ordering::Release);
    }

    /// Returns all keys of one moment; `None` where other threads wrote meanwhile.
    fn snapshot(&self) -> Option<[u64; KEYS]> {
        let versions = [self.get(X), self.get(Y)];
        let reads = vec![(X, versions[X]), (Y, versions[Y])];
        self.commit(&ModelCommit { reads, ..ModelCommit::default() }).then_some(versions)
    }

    /// Returns whether it was made.
    fn commit(&self, commit: &ModelCommit) -> bool {
        for all in [false, true] {
            match self.attempt(commit, all) {
                Err(ModelFailure::Unsure) => {}
                outcome => return outcome.is_ok(),
            }
        }
        false
    }

    fn attempt(&self, commit: &ModelCommit, all: bool) -> Result<(), ModelFailure> {
        let bit = |key: &usize| 1_u64 << self.stripe(*key);
        let changed = commit.writes.iter().fold(0, |stripes, (key, _)| stripes | bit(key));
        let read = commit.reads.iter().filter(|(_, version)| all || *version == 0);
        let stripes = read.chain(&commit.ranges).fold(changed, |stripes, (key, _)| stripes | bit(key));
        let lock = |stripe: usize| (stripes >> stripe & 1 == 1).then(|| self.locks[stripe].lock());
        let locked: ModelLocks<'_> = [lock(0), lock(1)];
        let kept = if LEFT_OUT.get() == OmittedStep::UnlockReads { stripes } else { changed };
        let reads = commit.reads.iter();
        let reads_locked = reads.map(|(key, _)| kept & bit(key) != 0).chain(commit.ranges.iter().map(|_| false));
        let unannounced = needs_no_announcement(commit.writes.len(), reads_locked);
        run_steps(&mut ModelAttempt { store: self, commit, changed, unannounced, locked })
    }
}

/// `CommitAttempt` in `mod.rs`.
struct ModelAttempt<'s> {
    store: &'s ModelStore,
    commit: &'s ModelCommit,
    /// Stripes, a bit each.
    changed: u64,
    unannounced: bool,
    locked: ModelLocks<'s>,
}

impl<'s> CommitSteps for ModelAttempt<'s> {
    type Announced = Vec<ModelAnnouncement<'s>>;
    type Failure = ModelFailure;

    fn check_locked(&mut self) -> Result<(), ModelFailure> {
        let same = |(key, version): &(usize, u64)| self.store.version_locked(*key) == *version;
        if !self.commit.ranges.iter().all(same) && LEFT_OUT.get() != OmittedStep::Validation {
            return Err(ModelFailure::Conflict);
        }
        if LEFT_OUT.get() == OmittedStep::RangeLock {
            self.let_go();
        }
        Ok(())
    }

    fn announce(&mut self) -> Vec<ModelAnnouncement<'s>> {
        let announces = !self.unannounced && LEFT_OUT.get() != OmittedStep::Announcement;
        let (store, changes) = (self.store, self.commit.writes.iter().filter(|_| announces));
        changes.map(|(key, _)| ModelAnnouncement::new(store.table(*key), 1 << store.stripe(*key))).collect()
    }

    fn check(&mut self) -> Result<(), ModelFailure> {
        for (key, version) in &self.commit.reads {
            let stripe = self.store.stripe(*key);
            let found = match &self.locked[stripe] {
                Some(_) => self.store.version_locked(*key),
                None if LEFT_OUT.get() != OmittedStep::Writers && is_write_locked(&self.store.locks[stripe]) => {
                    return Err(ModelFailure::Unsure);
                }
                None => self.store.version_of(*key),
            };
            if found != *version && LEFT_OUT.get() != OmittedStep::Validation {
                return Err(ModelFailure::Conflict);
            }
        }
        Ok(())
    }

    fn let_go(&mut self) {
        for (stripe, lock) in self.locked.iter_mut().enumerate() {
            if self.changed >> stripe & 1 == 0 {
                *lock = None;
            }
        }
    }

    fn make(&mut self) -> Result<(), ModelFailure> {
        for (key, version) in &self.commit.writes {
            self.store.versions[*key].store(*version, Ordering::Release);
        }
        Ok(())
    }
}

/// Runs threads in every interleaving (of so many preemptions, where that is said), then checks the store's final
/// state.
fn explore(
    left_out: OmittedStep,
    preemptions: Option<usize>,
    store: impl Fn() -> Arc<ModelStore> + Sync + Send + 'static,
    threads: &'static [fn(&ModelStore)],
    at_the_end: fn(&ModelStore),
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let store = store();
        let (first, others) = threads.split_first().expect("there is a thread");
        let others: Vec<_> = (others.iter())
            .map(|body| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    LEFT_OUT.set(left_out);
                    body(&store);
                })
            })
            .collect();
        LEFT_OUT.set(left_out);
        first(&store);
        for other in others {
            other.join().expect("no panic");
        }
        at_the_end(&store);
    });
}

const PLACEMENTS: [KeyPlacement; 3] = [KeyPlacement::TwoTables, KeyPlacement::TwoStripes, KeyPlacement::OneStripe];

/// A commit of both keys, which are at that version.
fn writes_both(store: &ModelStore, before: u64) {
    let reads = vec![(X, before), (Y, before)];
    let made = store.commit(&ModelCommit { reads, writes: vec![(X, 10), (Y, 10)], ..ModelCommit::default() });
    assert!(made, "nobody else writes");
}

fn gets_x_first(store: &ModelStore) {
    let (x, y) = (store.get(X), store.get(Y));
    assert!(x != 10 || y == 10, "the first change was seen, then not the second: {x} {y}");
}

fn gets_y_first(store: &ModelStore) {
    let (y, x) = (store.get(Y), store.get(X));
    assert!(y != 10 || x == 10, "the second change was seen, then not the first: {y} {x}");
}

/// Gets of both keys, one after the other: a reader that has seen the commit sees all of it from then on.
fn all_or_nothing_by_gets(left_out: OmittedStep, placement: KeyPlacement) {
    let at_the_end = |store: &ModelStore| {
        assert_eq!([store.get(X), store.get(Y)], [10, 10]);
        assert!(!store.announced.iter().any(CommitMask::any), "nobody waits any more");
    };
    let pairs: [&[fn(&ModelStore)]; 2] =
        [&[gets_x_first, |store| writes_both(store, 1)], &[gets_y_first, |store| writes_both(store, 1)]];
    for threads in pairs {
        explore(left_out, None, move || ModelStore::new([1, 1], placement), threads, at_the_end);
    }
    if placement == KeyPlacement::TwoTables {
        let threads: &[fn(&ModelStore)] = &[gets_x_first, |store| writes_both(store, 1), gets_y_first];
        explore(left_out, Some(2), move || ModelStore::new([1, 1], placement), threads, at_the_end);
    }
}

#[test]
fn who_gets_one_change_of_a_commit_gets_all_from_then_on() {
    PLACEMENTS.into_iter().for_each(|placement| all_or_nothing_by_gets(OmittedStep::Nothing, placement));
}

#[test]
#[should_panic(expected = "was seen, then not")]
fn without_announcing_half_a_commit_is_seen() {
    all_or_nothing_by_gets(OmittedStep::Announcement, KeyPlacement::TwoStripes);
}

#[test]
#[should_panic(expected = "was seen, then not")]
fn without_waiting_half_a_commit_is_seen() {
    all_or_nothing_by_gets(OmittedStep::Wait, KeyPlacement::TwoTables);
}

/// A snapshot, of keys that are there or come with the commit.
fn all_or_nothing_by_snapshot(left_out: OmittedStep, absent: bool, placement: KeyPlacement) {
    fn snapshot(store: &ModelStore) {
        if let Some(versions) = store.snapshot() {
            assert_eq!(versions[X], versions[Y], "a snapshot of half a commit");
        }
    }
    let present: &[fn(&ModelStore)] = &[snapshot, |store| writes_both(store, 1)];
    let coming: &[fn(&ModelStore)] = &[snapshot, |store| writes_both(store, 0)];
    let threads = if absent { coming } else { present };
    let before = if absent { 0 } else { 1 };
    explore(left_out, Some(3), move || ModelStore::new([before; KEYS], placement), threads, |_| {});
}

#[test]
fn a_snapshot_holds_all_of_a_commit_or_nothing() {
    for placement in PLACEMENTS {
        all_or_nothing_by_snapshot(OmittedStep::Nothing, false, placement);
        all_or_nothing_by_snapshot(OmittedStep::Nothing, true, placement);
    }
}

#[test]
#[should_panic(expected = "a snapshot of half a commit")]
fn without_validation_a_snapshot_holds_half_a_commit() {
    all_or_nothing_by_snapshot(OmittedStep::Validation, false, KeyPlacement::TwoTables);
}

/// Adds one to a key, in a transaction that begins anew where others wrote. Its one change is not announced.
fn adds_one(store: &ModelStore) {
    loop {
        let version = store.get(X);
        let commit =
            ModelCommit { reads: vec![(X, version)], writes: vec![(X, version + 1)], ..ModelCommit::default() };
        if store.commit(&commit) {
            return;
        }
        thread::yield_now();
    }
}

fn additions(left_out: OmittedStep) {
    let threads: &[fn(&ModelStore)] = &[adds_one, adds_one, |store| store.update(X, |version| version + 1)];
    explore(
        left_out,
        Some(2),
        || ModelStore::new([1, 1], KeyPlacement::TwoStripes),
        threads,
        |store| {
            assert_eq!(store.get(X), 4, "an addition was lost");
        },
    );
}

#[test]
fn no_update_is_lost() {
    additions(OmittedStep::Nothing);
}

#[test]
#[should_panic(expected = "an addition was lost")]
fn without_validation_an_update_is_lost() {
    additions(OmittedStep::Validation);
}

/// Each reads the key that the other one writes, as a record or as a range: both cannot have found the other's
/// unchanged.
fn crossed(left_out: OmittedStep, placement: KeyPlacement, before: u64, ranges: usize) {
    let threads: &[fn(&ModelStore)] = match ranges {
        0 => &[|store| crosses(store, X, Y, false), |store| crosses(store, Y, X, false)],
        1 => &[|store| crosses(store, X, Y, false), |store| crosses(store, Y, X, true)],
        _ => &[|store| crosses(store, X, Y, true), |store| crosses(store, Y, X, true)],
    };
    explore(
        left_out,
        None,
        move || ModelStore::new([before; KEYS], placement),
        threads,
        |store| {
            let versions = [store.version_of(X), store.version_of(Y)];
            assert!(versions.contains(&10), "neither was made: {versions:?}");
            assert_ne!(versions, [10, 10], "both have read what the other one replaced");
        },
    );
}

fn crosses(store: &ModelStore, read: usize, written: usize, as_range: bool) {
    let version = store.get(read);
    // Meeting it is no conflict if the other one's change was seen at once.
    if version != 10 {
        let (read, writes) = (vec![(read, version)], vec![(written, 10)]);
        let (ranges, reads) = if as_range { (read, Vec::new()) } else { (Vec::new(), read) };
        store.commit(&ModelCommit { reads, ranges, writes });
    }
}

#[test]
fn of_two_that_read_what_the_other_writes_one_is_made() {
    for placement in PLACEMENTS {
        for ranges in 0..=2 {
            crossed(OmittedStep::Nothing, placement, 1, ranges);
            // Absent keys, which are locked.
            crossed(OmittedStep::Nothing, placement, 0, ranges);
        }
    }
}

#[test]
#[should_panic(expected = "both have read what the other one replaced")]
fn without_looking_at_ranges_both_are_made() {
    crossed(OmittedStep::Validation, KeyPlacement::TwoTables, 1, 2);
}

#[test]
#[should_panic(expected = "both have read what the other one replaced")]
fn without_the_fence_both_are_made() {
    // In two tables: in one, the announcements themselves have an order.
    crossed(OmittedStep::Fence, KeyPlacement::TwoTables, 1, 0);
}

#[test]
#[should_panic(expected = "both have read what the other one replaced")]
fn without_looking_for_writers_both_are_made() {
    crossed(OmittedStep::Writers, KeyPlacement::TwoTables, 1, 0);
}

#[test]
#[should_panic(expected = "both have read what the other one replaced")]
fn without_validation_both_are_made() {
    crossed(OmittedStep::Validation, KeyPlacement::TwoTables, 1, 0);
}

fn writes_y_without_x(store: &ModelStore) {
    store.commit(&ModelCommit { reads: vec![(X, 0)], writes: vec![(Y, 10)], ..ModelCommit::default() });
}

fn writes_y_without_a_range(store: &ModelStore) {
    store.commit(&ModelCommit { ranges: vec![(X, 0)], writes: vec![(Y, 10)], ..ModelCommit::default() });
}

fn writes_x_and_reads_y(store: &ModelStore) {
    store.update(X, |_| 5);
    let y = store.get(Y);
    // A thread that came after X sees what was there then.
    thread::yield_now();
    assert_eq!(store.get(Y), y, "the transaction found X absent and was made after X was written");
}

/// A transaction has found X absent, or an empty range, and writes Y. Another thread writes X, and then looks for Y:
/// the transaction was before, or it did not happen. Its one change has to be announced, since the lock of X is
/// released before it is made.
fn a_single_change(left_out: OmittedStep, placement: KeyPlacement, as_range: bool) {
    let by_key: &[fn(&ModelStore)] = &[writes_y_without_x, writes_x_and_reads_y];
    let by_range: &[fn(&ModelStore)] = &[writes_y_without_a_range, writes_x_and_reads_y];
    let threads = if as_range { by_range } else { by_key };
    explore(
        left_out,
        None,
        move || ModelStore::new([0, 0], placement),
        threads,
        |store| {
            assert!([0, 10].contains(&store.get(Y)));
        },
    );
}

#[test]
fn a_single_change_is_made_at_the_moment_of_what_was_read() {
    for placement in PLACEMENTS {
        [false, true].into_iter().for_each(|as_range| a_single_change(OmittedStep::Nothing, placement, as_range));
    }
}

#[test]
#[should_panic(expected = "was made after X was written")]
fn a_range_that_is_let_go_before_the_changes_are_announced_is_not_what_it_was() {
    a_single_change(OmittedStep::RangeLock, KeyPlacement::TwoStripes, true);
}

#[test]
#[should_panic(expected = "was made after X was written")]
fn a_single_change_that_is_not_announced_is_made_later() {
    a_single_change(OmittedStep::UnlockReads, KeyPlacement::TwoStripes, false);
}

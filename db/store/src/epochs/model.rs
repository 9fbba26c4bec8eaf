//! Promise: nothing is freed while a thread may read it. `protocol` over loom's atomics: every interleaving (up to
//! three preemptions) of a reader, a writer and a thief. A test program of its own
//! (`cargo test -p sandstorm-store --test epochs`): loom replaces the process's fault handlers, which the tests of
//! extensions need.
//!
//! A record is a loom cell: reading it while another thread frees it fails the model. Each promise has twins that break
//! one rule of the protocol and must fail, so that the model is known to test what it claims. The twins have a lag of
//! two, lack fences in coming online and in the step, or do not count a pin. Others have stores that release nothing,
//! or loads that acquire nothing.
#![cfg(not(miri))]

use std::cell::Cell;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

mod sync {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::Ordering;

    use super::{RELAXED_LOADS, RELAXED_STORES};

    /// Loom's, with orderings that a twin may take away.
    #[derive(Debug)]
    pub(super) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub(super) fn new(value: u64) -> AtomicU64 {
            AtomicU64(loom::sync::atomic::AtomicU64::new(value))
        }

        pub(super) fn load(&self, ordering: Ordering) -> u64 {
            self.0.load(if RELAXED_LOADS.get() { Ordering::Relaxed } else { ordering })
        }

        pub(super) fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
            self.0.fetch_add(value, ordering)
        }

        /// Subtracts; a twin takes a part of [`Ordering::AcqRel`] away.
        pub(super) fn fetch_sub(&self, value: u64, ordering: Ordering) -> u64 {
            let ordering = match (RELAXED_STORES.get(), RELAXED_LOADS.get()) {
                (true, _) => Ordering::Acquire,
                (_, true) => Ordering::Release,
                _ => ordering,
            };
            self.0.fetch_sub(value, ordering)
        }

        pub(super) fn store(&self, value: u64, ordering: Ordering) {
            self.0.store(value, if RELAXED_STORES.get() { Ordering::Relaxed } else { ordering });
        }
    }

    pub(super) fn fence(ordering: Ordering) {
        if !super::WITHOUT_FENCES.get() {
            loom::sync::atomic::fence(ordering);
        }
    }

    pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<loom::sync::MutexGuard<'_, T>> {
        mutex.try_lock().ok()
    }

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
        match mutex.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

#[path = "protocol.rs"]
#[allow(dead_code)]
mod protocol;

#[path = "refcount.rs"]
mod refcount;

use self::protocol::{EpochCore, EpochMember, GRACE_EPOCHS};
use self::refcount::RecordRefCount;
use self::sync::Ordering;

thread_local! {
    static WITHOUT_FENCES: Cell<bool> = const { Cell::new(false) };
    static RELAXED_STORES: Cell<bool> = const { Cell::new(false) };
    static RELAXED_LOADS: Cell<bool> = const { Cell::new(false) };
}

/// The orderings that a twin takes away, on each of its threads.
#[derive(Clone, Copy)]
enum WeakenedOrdering {
    Nothing,
    Stores,
    Loads,
}

impl WeakenedOrdering {
    fn apply(self) {
        RELAXED_STORES.set(matches!(self, WeakenedOrdering::Stores));
        RELAXED_LOADS.set(matches!(self, WeakenedOrdering::Loads));
    }
}

/// Two records, the first of which is current; `with_mut` stands for freeing.
struct EpochModel {
    core: EpochCore,
    current: AtomicUsize,
    records: [UnsafeCell<u64>; 2],
}

#[allow(unsafe_code)]
mod cells {
    //! The model's accesses to loom's cells. Loom itself checks the promise of the SAFETY comments.
    pub(super) fn read(cell: &loom::cell::UnsafeCell<u64>) -> u64 {
        // SAFETY: the pointer is valid for the closure; loom fails the model if a write is not ordered against it.
        cell.with(|value| unsafe { *value })
    }

    pub(super) fn free(cell: &loom::cell::UnsafeCell<u64>) {
        // SAFETY: as above.
        cell.with_mut(|value| unsafe { *value = 0 });
    }
}

impl EpochModel {
    fn new() -> Arc<EpochModel> {
        Arc::new(EpochModel {
            core: EpochCore::new(),
            current: AtomicUsize::new(0),
            records: [UnsafeCell::new(1), UnsafeCell::new(2)],
        })
    }

    fn read_current(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }

    fn check(&self, index: usize) {
        assert_eq!(cells::read(&self.records[index]), index as u64 + 1, "the record was freed");
    }

    /// Replaces record 0, then makes steps until it may be freed, or gives up.
    fn replace_and_free(&self, member: &EpochMember, lag: u64) {
        self.current.store(1, Ordering::Release);
        let stamp = member.seen();
        for _ in 0..lag + 1 {
            member.quiescent(&self.core);
            self.core.try_advance();
            if self.core.epoch() >= stamp + lag {
                cells::free(&self.records[0]);
                return;
            }
        }
    }

    /// As above, but gives the reader its turns between the steps.
    fn replace_and_free_in_turns(&self, member: &EpochMember, steps: bool) {
        self.current.store(1, Ordering::Release);
        let stamp = member.seen();
        for _ in 0..2 * GRACE_EPOCHS {
            member.quiescent(&self.core);
            if steps {
                self.core.try_advance();
            }
            if self.core.epoch() >= stamp + GRACE_EPOCHS {
                cells::free(&self.records[0]);
                return;
            }
            thread::yield_now();
        }
    }

    /// Quiescent points of `member` until it has announced another epoch, or gives up.
    fn announce(&self, member: &EpochMember) {
        let before = member.seen();
        for _ in 0..2 {
            member.quiescent(&self.core);
            if member.seen() != before {
                return;
            }
            thread::yield_now();
        }
    }
}

fn explore(f: impl Fn() + Sync + Send + 'static) {
    explore_up_to(3, f);
}

fn explore_up_to(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

fn reader_and_writer(lag: u64) {
    explore(move || {
        let shared = EpochModel::new();
        let writer = shared.core.join();
        writer.online(&shared.core);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let member = shared.core.join();
                member.online(&shared.core);
                shared.core.try_advance();
                member.quiescent(&shared.core);
                let index = shared.read_current();
                shared.check(index);
                member.offline();
            })
        };
        shared.replace_and_free(&writer, lag);
        drop(reader.join());
    });
}

fn coming_online(without_fences: bool) {
    explore(move || {
        WITHOUT_FENCES.set(without_fences);
        let shared = EpochModel::new();
        let (writer, member) = (shared.core.join(), shared.core.join());
        writer.online(&shared.core);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                WITHOUT_FENCES.set(without_fences);
                member.online(&shared.core);
                let index = shared.read_current();
                shared.check(index);
                member.offline();
            })
        };
        shared.replace_and_free(&writer, GRACE_EPOCHS);
        drop(reader.join());
    });
}

fn stolen_pin(counted: bool) {
    explore(move || {
        let shared = EpochModel::new();
        let writer = shared.core.join();
        writer.online(&shared.core);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let owner = shared.core.join();
                owner.online(&shared.core);
                let parity = if counted { owner.pin() } else { 0 };
                let index = shared.read_current();
                shared.core.leave(&owner);
                shared.check(index);
                if counted {
                    shared.core.join().unpin(parity);
                }
            })
        };
        shared.replace_and_free(&writer, GRACE_EPOCHS);
        drop(reader.join());
    });
}

/// A reader that stays online: it announces so many epochs, reads, and announces so many more. Only the writer steps.
fn online_reader(weak: WeakenedOrdering, before: usize, after: usize) {
    explore(move || {
        weak.apply();
        let shared = EpochModel::new();
        let (writer, member) = (shared.core.join(), shared.core.join());
        writer.online(&shared.core);
        member.online(&shared.core);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                weak.apply();
                (0..before).for_each(|_| shared.announce(&member));
                let index = shared.read_current();
                shared.check(index);
                (0..after).for_each(|_| shared.announce(&member));
            })
        };
        shared.replace_and_free_in_turns(&writer, true);
        drop(reader.join());
    });
}

/// A third thread makes the steps; the writer looks at the epoch alone, so that nothing else orders its freeing.
fn unregistered_that_steps(weak: WeakenedOrdering) {
    // Two preemptions: three threads have many more interleavings.
    explore_up_to(2, move || {
        weak.apply();
        let shared = EpochModel::new();
        let (writer, member) = (shared.core.join(), shared.core.join());
        writer.online(&shared.core);
        member.online(&shared.core);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                weak.apply();
                let index = shared.read_current();
                shared.check(index);
                (1..GRACE_EPOCHS).for_each(|_| shared.announce(&member));
            })
        };
        let freer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                weak.apply();
                shared.replace_and_free_in_turns(&writer, false);
            })
        };
        for _ in 0..GRACE_EPOCHS {
            shared.core.try_advance();
            thread::yield_now();
        }
        drop((reader.join(), freer.join()));
    });
}

/// The oldest stamp that a pinned invocation can meet: the writer is an epoch behind. The last read under the pin comes
/// after the last announcement, so only the end of the pin orders it before the freeing.
fn pin_that_ends_last(weak: WeakenedOrdering) {
    explore(move || {
        weak.apply();
        let shared = EpochModel::new();
        let (writer, owner, thief) = (shared.core.join(), shared.core.join(), shared.core.join());
        writer.online(&shared.core);
        assert!(shared.core.try_advance());
        owner.online(&shared.core);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                weak.apply();
                let parity = owner.pin();
                let index = shared.read_current();
                shared.announce(&owner);
                shared.check(index);
                thief.unpin(parity);
            })
        };
        shared.replace_and_free_in_turns(&writer, true);
        drop(reader.join());
    });
}

/// A writer that comes online while the epoch moves: with a stamp of the past it would free at once what others still
/// read.
fn late_writer() {
    explore(move || {
        let shared = EpochModel::new();
        let (late, reader) = (shared.core.join(), shared.core.join());
        reader.online(&shared.core);
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                late.online(&shared.core);
                shared.current.store(1, Ordering::Release);
                if shared.core.epoch() >= late.seen() + GRACE_EPOCHS {
                    cells::free(&shared.records[0]);
                }
            })
        };
        for _ in 0..GRACE_EPOCHS {
            shared.core.try_advance();
            reader.quiescent(&shared.core);
        }
        let index = shared.read_current();
        shared.check(index);
        drop(writer.join());
    });
}

/// A reader that holds the record, and reads it when it is no reader any more; the last to release it frees it.
fn shared_record(weak: WeakenedOrdering, refs_first: bool) {
    explore(move || {
        weak.apply();
        let (shared, refcount) = (EpochModel::new(), Arc::new(RecordRefCount::one()));
        let (writer, member) = (shared.core.join(), shared.core.join());
        writer.online(&shared.core);
        member.online(&shared.core);
        let reader = {
            let (shared, refcount) = (Arc::clone(&shared), Arc::clone(&refcount));
            thread::spawn(move || {
                weak.apply();
                if shared.read_current() != 0 {
                    return;
                }
                if refs_first {
                    refcount.add_ref();
                }
                member.offline();
                if !refs_first {
                    refcount.add_ref();
                }
                shared.check(0);
                if refcount.let_go() {
                    cells::free(&shared.records[0]);
                }
            })
        };
        shared.current.store(1, Ordering::Release);
        let stamp = writer.seen();
        for _ in 0..GRACE_EPOCHS + 1 {
            writer.quiescent(&shared.core);
            shared.core.try_advance();
            if shared.core.epoch() >= stamp + GRACE_EPOCHS {
                if refcount.let_go() {
                    cells::free(&shared.records[0]);
                }
                break;
            }
        }
        drop(reader.join());
    });
}

#[test]
fn a_held_record_stays_when_its_reader_has_gone_and_is_freed_by_the_last() {
    shared_record(WeakenedOrdering::Nothing, true);
}

#[test]
#[should_panic]
fn holding_a_record_that_is_read_no_more_would_not_do() {
    shared_record(WeakenedOrdering::Nothing, false);
}

#[test]
#[should_panic]
fn letting_go_without_releasing_would_not_do() {
    shared_record(WeakenedOrdering::Stores, true);
}

#[test]
#[should_panic]
fn letting_go_without_acquiring_would_not_do() {
    shared_record(WeakenedOrdering::Loads, true);
}

#[test]
fn a_reader_that_stays_online_is_waited_for() {
    online_reader(WeakenedOrdering::Nothing, 0, 2);
    online_reader(WeakenedOrdering::Nothing, 1, 1);
    online_reader(WeakenedOrdering::Nothing, 2, 0);
}

#[test]
#[should_panic]
fn announcements_that_release_nothing_would_not_do() {
    online_reader(WeakenedOrdering::Stores, 0, 2);
}

#[test]
#[should_panic]
fn announcements_that_acquire_nothing_would_not_do() {
    online_reader(WeakenedOrdering::Loads, 2, 0);
}

#[test]
fn the_epoch_alone_tells_that_all_have_let_go() {
    unregistered_that_steps(WeakenedOrdering::Nothing);
}

#[test]
#[should_panic]
fn steps_that_release_nothing_would_not_do() {
    unregistered_that_steps(WeakenedOrdering::Stores);
}

#[test]
#[should_panic]
fn looks_at_the_epoch_that_acquire_nothing_would_not_do() {
    unregistered_that_steps(WeakenedOrdering::Loads);
}

#[test]
fn the_end_of_a_pin_comes_after_what_was_read_under_it() {
    pin_that_ends_last(WeakenedOrdering::Nothing);
}

#[test]
#[should_panic]
fn ends_of_pins_that_release_nothing_would_not_do() {
    pin_that_ends_last(WeakenedOrdering::Stores);
}

#[test]
#[should_panic]
fn counts_of_pins_that_acquire_nothing_would_not_do() {
    pin_that_ends_last(WeakenedOrdering::Loads);
}

#[test]
fn a_writer_that_comes_online_stamps_with_the_epoch_of_now() {
    late_writer();
}

#[test]
fn a_reader_never_meets_a_freed_record() {
    reader_and_writer(GRACE_EPOCHS);
}

#[test]
#[should_panic]
fn a_lag_of_two_would_free_too_early() {
    reader_and_writer(GRACE_EPOCHS - 1);
}

#[test]
fn a_reader_that_comes_online_is_not_missed() {
    coming_online(false);
}

#[test]
#[should_panic]
fn without_fences_a_reader_that_comes_online_is_missed() {
    coming_online(true);
}

#[test]
fn a_pin_keeps_a_record_for_its_thief() {
    stolen_pin(true);
}

#[test]
#[should_panic]
fn without_the_count_of_pins_the_thief_meets_a_freed_record() {
    stolen_pin(false);
}

//! `core` over loom's atomics: every interleaving (up to three preemptions) of a reader, a writer and a thief.
//!
//! A record is a loom cell: reading it while another thread frees it fails the model. Each promise has a twin that
//! breaks one rule of the protocol and must fail, so that the model is known to look at what it claims:
//! a lag of two, no fences in coming online and in the step, a pin that is not counted.

use std::cell::Cell;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

mod sync {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};

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

#[path = "core.rs"]
#[allow(clippy::duplicate_mod, dead_code)]
mod core;

use self::core::{Core, LAG, Member};
use self::sync::Ordering;

thread_local! {
    static WITHOUT_FENCES: Cell<bool> = const { Cell::new(false) };
}

/// Two records, the first of which is current; `with_mut` stands for freeing.
struct Shared {
    core: Core,
    current: AtomicUsize,
    records: [UnsafeCell<u64>; 2],
}

#[allow(unsafe_code)]
mod cells {
    //! What the model does to loom's cells. It is loom that checks the promise of the SAFETY comments.
    pub(super) fn read(cell: &loom::cell::UnsafeCell<u64>) -> u64 {
        // SAFETY: the pointer is valid for the closure; loom fails the model if a write is not ordered against it.
        cell.with(|value| unsafe { *value })
    }

    pub(super) fn free(cell: &loom::cell::UnsafeCell<u64>) {
        // SAFETY: as above.
        cell.with_mut(|value| unsafe { *value = 0 });
    }
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            core: Core::new(),
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
    fn replace_and_free(&self, member: &Member, lag: u64) {
        self.current.store(1, Ordering::Release);
        let stamp = member.seen();
        for _ in 0..lag + 1 {
            member.quiescent(&self.core);
            self.core.try_step();
            if self.core.epoch() >= stamp + lag {
                cells::free(&self.records[0]);
                return;
            }
        }
    }
}

fn explore(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

fn reader_and_writer(lag: u64) {
    explore(move || {
        let shared = Shared::new();
        let writer = shared.core.join();
        writer.online(&shared.core);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let member = shared.core.join();
                member.online(&shared.core);
                shared.core.try_step();
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
        let shared = Shared::new();
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
        shared.replace_and_free(&writer, LAG);
        drop(reader.join());
    });
}

fn stolen_pin(counted: bool) {
    explore(move || {
        let shared = Shared::new();
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
        shared.replace_and_free(&writer, LAG);
        drop(reader.join());
    });
}

#[test]
fn a_reader_never_meets_a_freed_record() {
    reader_and_writer(LAG);
}

#[test]
#[should_panic]
fn a_lag_of_two_would_free_too_early() {
    reader_and_writer(LAG - 1);
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

//! A commit of one change is not announced to readers where no thread could tell the moment of its check from that of
//! its change; otherwise it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// Waits until a condition holds, for as long as a machine that stands still may take.
fn await_that(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come to be");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A key in another stripe than `of`.
fn elsewhere(table: &RecordTable, of: &[u8]) -> [u8; 1] {
    let mut own = crate::StripeSet::default();
    own.add(table.hash(of));
    (0..=255).map(|key| [key]).find(|key| !own.has(table.hash(key))).expect("there are many stripes")
}

/// One has found X absent and writes Y; meanwhile another one writes X and then looks for Y. The first must have been
/// before, so the other one finds Y: it has to wait for it, since the lock of X was released before Y is written. If
/// the change were made by itself because X was locked at the check, the other one would find neither.
#[test]
#[cfg_attr(miri, ignore = "waits by the clock")]
fn a_change_beside_an_absence_that_was_let_go_is_waited_for() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let (participant, tables) = (epochs.register(), Arc::new(tables));
    let (written, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let other = elsewhere(&tables[0], b"x");
    let handle = Arc::new(std::sync::Mutex::new(None));
    let in_the_middle = {
        let (epochs, tables, handle) = (Arc::clone(&epochs), Arc::clone(&tables), Arc::clone(&handle));
        move || {
            let (table, has_written, has_answered) = (Arc::clone(&tables), Arc::clone(&written), Arc::clone(&answered));
            let thread = std::thread::spawn(move || {
                let participant = epochs.register();
                put(&table[0], &participant, b"x", b"1");
                has_written.store(true, Ordering::SeqCst);
                let found = get(&table[0], &participant, &other, 0).is_some();
                has_answered.store(true, Ordering::SeqCst);
                found
            });
            *handle.lock().expect("no panic") = Some(thread);
            await_that(|| written.load(Ordering::SeqCst));
            // Either it waits for this commit, or it does not and has its answer.
            await_that(|| tables[0].is_commit_announced(tables[0].hash(&other)) || answered.load(Ordering::SeqCst));
        }
    };
    pause::next(in_the_middle);
    let reads = [read(&tables[0], b"x", 0)];
    assert_eq!(commit(&participant, &reads, &mut [writes(&tables[0], &other, b"2")], 0), Ok(()));
    let thread = handle.lock().expect("no panic").take().expect("the commit was made in two steps");
    assert!(thread.join().expect("no panic"), "who wrote X after it was found absent has not found Y");
}

/// The same where X is in the stripe of Y: its writer waits, no thread is between, and nothing is announced.
#[test]
fn a_change_beside_what_stays_locked_is_made_by_itself() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let (participant, tables) = (epochs.register(), Arc::new(tables));
    let version = put(&tables[0], &participant, b"key", b"1");
    let was_read = Arc::new(AtomicBool::new(false));
    let (table, has_read) = (Arc::clone(&tables), Arc::clone(&was_read));
    pause::next(move || {
        assert!(!table[0].is_commit_announced(table[0].hash(b"key")), "a change alone costs its readers nothing");
        assert!(table[0].is_write_locked(table[0].hash(b"key")), "nobody else writes it meanwhile");
        has_read.store(true, Ordering::SeqCst);
    });
    let reads = [read(&tables[0], b"key", version)];
    assert_eq!(commit(&participant, &reads, &mut [writes(&tables[0], b"key", b"2")], 0), Ok(()));
    assert!(was_read.load(Ordering::SeqCst));
}

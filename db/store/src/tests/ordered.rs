//! Ordered tables while many threads write: no lasting key is missed, none is shown twice or out of order, and the
//! index equals the table in the end.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::{RecordUpdate, StoreCondition, StripeSet};

/// Keys that come and go, and those that stay, of a thread.
const COMING: u32 = 400;
const STAYING: u32 = 100;

/// Signals when it is dropped, after a failure too, so that threads that wait for that end as well.
struct Says<'a>(&'a AtomicBool);

impl Drop for Says<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Ordered by number, of very different lengths, and each the beginning of others.
fn key_of(number: u32) -> Vec<u8> {
    [&number.to_be_bytes()[..], &b"x".repeat(number as usize % 40)].concat()
}

fn number_of(key: &[u8]) -> u32 {
    u32::from_be_bytes(*key.first_chunk().expect("a key of this test"))
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Writes one of a thread's own keys, or deletes it, in one of all the possible ways.
fn step(table: &RecordTable, participant: &Participant, thread: u32, state: &mut u64) {
    let number = (random(state) as u32 % COMING) * 8 + thread;
    let key = key_of(number);
    let hash = table.hash(&key);
    match random(state) % 8 {
        0..3 => drop(put(table, participant, &key, &key)),
        3 => {
            let expiring = WriteOptions { expires_at_ms: 5, ..WriteOptions::default() };
            table.put(participant, hash, &key, &key, &expiring, 0).expect("there is room");
        }
        4 => {
            let change =
                |_: Option<_>| RecordUpdate::Put { value: (&key[..]).into(), flags: 0, expires_at_ms: 0, answer: () };
            table.update(participant, hash, &key, 0, change).expect("there is room");
        }
        5 => drop(table.update(participant, hash, &key, 0, |_| RecordUpdate::Delete(()))),
        6 => {
            table.delete(participant, hash, &key, StoreCondition::Always, 0).expect("a delete always works");
        }
        _ => {
            table.sweep(participant, 10, 64);
        }
    }
}

/// Checks a range, whatever other threads write meanwhile.
fn check(table: &RecordTable, participant: &Participant, backward: bool, threads: u32) {
    let guard = participant.guard();
    let mut keys = range_all(table, &guard, KeyRange::new(b"", b"", backward), usize::MAX, 0);
    if backward {
        keys.reverse();
    }
    assert!(keys.is_sorted_by(|a, b| a < b), "in order, each once");
    let staying = keys.iter().map(|key| number_of(key)).filter(|number| number % 8 == 7).count() as u32;
    assert_eq!(staying, STAYING * threads, "what stays is never missed");
}

#[test]
fn ranges_miss_nothing_that_stays_while_others_write_and_the_table_grows() {
    let rounds = scaled(6_000, 20);
    let (epochs, table) = table_with(StorageMode::Store, u64::MAX, true);
    let (threads, done) = (3, AtomicBool::new(false));
    let first = epochs.register();
    for number in 0..STAYING * threads {
        put(&table, &first, &key_of(number * 8 + 7), b"stays");
    }
    drop(first);
    std::thread::scope(|scope| {
        let (epochs, table, done) = (&epochs, &table, &done);
        let says = Says(done);
        let write = move |thread: u32| {
            let (mut participant, mut state) = (epochs.register(), u64::from(thread));
            for round in 0..rounds as u32 {
                step(table, &participant, thread, &mut state);
                // Other keys only ever come, so that the table grows under all of it.
                put(table, &participant, &key_of((round + 10_000) * 64 + thread * 8 + 5), b"");
                participant.quiescent();
            }
        };
        let writers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || write(thread))).collect();
        let readers: Vec<_> = [false, true]
            .map(|backward| {
                scope.spawn(move || {
                    let mut participant = epochs.register();
                    while !done.load(Ordering::Acquire) {
                        check(table, &participant, backward, threads);
                        participant.quiescent();
                    }
                })
            })
            .into();
        writers.into_iter().for_each(|writer| writer.join().expect("no writer fails"));
        drop(says);
        readers.into_iter().for_each(|reader| reader.join().expect("no reader fails"));
    });
    let mut participant = epochs.register();
    let scanned: BTreeSet<_> = scan_all(&table, &mut participant, 100, 0).into_iter().collect();
    assert!(table.stats().growths > 0 || cfg!(miri));
    let guard = participant.guard();
    assert!(range_all(&table, &guard, KeyRange::new(b"", b"", false), usize::MAX, 0).iter().eq(&scanned));
    assert!(range_all(&table, &guard, KeyRange::new(b"", b"", true), usize::MAX, 0).iter().eq(scanned.iter().rev()));
}

#[test]
fn nothing_is_left_after_a_clear_with_concurrent_writers() {
    let (epochs, table) = table_with(StorageMode::Store, u64::MAX, true);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (epochs, table, done) = (&epochs, &table, &done);
        let says = Says(done);
        for thread in 0..2 {
            scope.spawn(move || {
                let (mut participant, mut state) = (epochs.register(), u64::from(thread));
                while !done.load(Ordering::Acquire) {
                    step(table, &participant, thread, &mut state);
                    participant.quiescent();
                }
            });
        }
        let mut participant = epochs.register();
        for _ in 0..scaled(200, 5) {
            table.clear(&participant).expect("no log");
            participant.quiescent();
            std::thread::yield_now();
        }
        drop(says);
    });
    let mut participant = epochs.register();
    let mut scanned = scan_all(&table, &mut participant, 100, 0);
    scanned.sort();
    assert_eq!(range_all(&table, &participant.guard(), KeyRange::new(b"", b"", false), usize::MAX, 0), scanned);
    table.clear(&participant).expect("no log");
    assert_eq!(
        range_all(&table, &participant.guard(), KeyRange::new(b"", b"", true), usize::MAX, 0),
        Vec::<Vec<u8>>::new()
    );
    assert_eq!((table.stats().records, table.stats().bytes), (0, 0));
    put(&table, &participant, b"", b"");
    assert_eq!(range_all(&table, &participant.guard(), KeyRange::new(b"", b"", true), usize::MAX, 0), [b""]);
    drop(table);
    settle(&epochs, &mut participant);
}

#[test]
fn a_call_looks_at_a_bounded_number_of_keys_and_goes_on_behind_them() {
    let (epochs, table) = table_with(StorageMode::Store, u64::MAX, true);
    let participant = epochs.register();
    let expired = WriteOptions { expires_at_ms: 1, ..WriteOptions::default() };
    for number in 0..1000 {
        let key = key_of(number);
        table.put(&participant, table.hash(&key), &key, b"", &expired, 0).unwrap();
    }
    put(&table, &participant, &key_of(1000), b"");
    for backward in [false, true] {
        let guard = participant.guard();
        let (mut span, mut calls, mut shown) = (KeyRange::new(b"", b"", backward), 0, 0);
        while table.range(&guard, &mut span, 100, 5, &mut |_| shown += 1).unwrap() == RangeProgress::More {
            calls += 1;
        }
        assert!(shown == 1 && calls >= 10, "{calls} calls for a thousand that have expired");
    }
    // Long keys: few of them a call.
    for number in 0..4_u8 {
        put(&table, &participant, &vec![200 + number; 64 << 10], b"");
    }
    let guard = participant.guard();
    let (mut span, mut shown) = (KeyRange::new(&[200], b"", true), 0);
    let progress = table.range(&guard, &mut span, 100, 5, &mut |_| shown += 1);
    assert_eq!((progress, shown), (Ok(RangeProgress::More), 1));
    assert_eq!(range_all(&table, &guard, span, 100, 5).len(), 3);
}

#[test]
fn keys_of_a_cleared_table_are_not_shown_to_who_writes_under_all_locks() {
    let (epochs, table) = table_with(StorageMode::Store, u64::MAX, true);
    let participant = epochs.register();
    put(&table, &participant, b"a", b"");
    let mut all = table.exclusive(&participant, StripeSet::ALL);
    assert_eq!(all.clear(), Ok(true));
    let make = |_: Option<_>| RecordUpdate::Put { value: (&b"1"[..]).into(), flags: 0, expires_at_ms: 0, answer: () };
    all.update(table.hash(b"b"), b"b", 0, make).unwrap();
    drop(all);
    assert_eq!(range_all(&table, &participant.guard(), KeyRange::new(b"", b"", false), 10, 0), [b"b"]);
}

#[test]
fn a_write_to_an_ordered_cache_evicts_a_bounded_number_and_one_under_all_locks_makes_room_for_its_key_too() {
    let (epochs, table) = table_with(StorageMode::Cache, 1 << 20, true);
    let mut participant = epochs.register();
    for number in 0..8_000_u32 {
        put(&table, &participant, &number.to_be_bytes(), b"");
        participant.quiescent();
    }
    let (before, large) = (table.stats(), vec![7; 512 << 10]);
    let result = table.put(&participant, table.hash(b"large"), b"large", &large, &WriteOptions::default(), 0);
    assert_eq!(result, Err(crate::StoreError::OutOfMemory), "half of all would have to go");
    let evicted = table.stats().evictions - before.evictions;
    assert!((1..=crate::limits::ORDERED_EVICTIONS_PER_WRITE as u64).contains(&evicted), "{evicted} were evicted");
    drop(table);
    // Few records: most stripes have none, and those in a write's own stripe are no help.
    let (epochs, table) = table_with(StorageMode::Cache, 100 << 10, true);
    let participant = epochs.register();
    let mut all = table.exclusive(&participant, StripeSet::ALL);
    for number in 0..100_u32 {
        let key = [&number.to_be_bytes()[..], &[7; 4_000]].concat();
        let make =
            |_: Option<_>| RecordUpdate::Put { value: (&b"1"[..]).into(), flags: 0, expires_at_ms: 0, answer: () };
        all.update(table.hash(&key), &key, 0, make).expect("room is made");
    }
}

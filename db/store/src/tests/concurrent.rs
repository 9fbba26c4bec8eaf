//! Several threads: each value that a reader sees is whole, never goes back, and is never missing while it is there.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::{LockWaits, StoreCondition, StoreError, StripeSet};

/// A value that shows when it is torn or of another record: key, number, length-dependent filling, checksum.
fn sealed(key: u64, number: u64) -> Vec<u8> {
    let mut value = Vec::with_capacity(160);
    value.extend(key.to_le_bytes());
    value.extend(number.to_le_bytes());
    value.resize(16 + (number * 13 % 120) as usize, number as u8);
    let sum = checksum(&value);
    value.extend(sum.to_le_bytes());
    value
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns key and number of a sealed value.
fn unseal(value: &[u8]) -> (u64, u64) {
    let (body, sum) = value.split_at(value.len() - 8);
    assert_eq!(checksum(body).to_le_bytes(), sum, "a torn or freed value");
    let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8 bytes"));
    (word(0), word(8))
}

#[test]
fn readers_see_whole_records_whose_versions_never_go_back() {
    let (epochs, table) = open_table();
    let (keys, writes) = (64u64, scaled(40_000, 60) as u64);
    let first = epochs.register();
    (0..keys).for_each(|key| {
        put(&table, &first, &key.to_le_bytes(), &sealed(key, 0));
    });
    drop(first);
    let writers = AtomicU64::new(2);
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (epochs, table, writers) = (&epochs, &table, &writers);
            scope.spawn(move || {
                let mut participant = epochs.register();
                for number in 1..=writes {
                    let key = number.wrapping_mul(0x9e37_79b9) % (keys / 2) * 2 + half;
                    put(table, &participant, &key.to_le_bytes(), &sealed(key, number));
                    // A new key each time, so that the array grows under the readers.
                    put(table, &participant, &(1_000 + number * 2 + half).to_le_bytes(), b"stranger");
                    participant.quiescent();
                }
                writers.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for reader in 0..2u64 {
            let (epochs, table, writers) = (&epochs, &table, &writers);
            scope.spawn(move || {
                let mut participant = epochs.register();
                let mut last = vec![(0, 0); keys as usize];
                let mut n = reader;
                while writers.load(Ordering::SeqCst) != 0 {
                    let guard = participant.guard();
                    for _ in 0..16 {
                        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let key = (n >> 33) % keys;
                        let bytes = key.to_le_bytes();
                        table.prefetch_bucket(table.hash(&bytes));
                        if table.prefetch_record(&guard, table.hash(&bytes)) {
                            table.prefetch_chained(&guard, table.hash(&bytes));
                        }
                        let record = table.get(&guard, table.hash(&bytes), &bytes, 0);
                        let record = record.expect("a key that is never deleted is never missing");
                        let (of, number) = unseal(record.value());
                        assert_eq!(of, key);
                        let seen = (record.version(), number);
                        let before = &mut last[key as usize];
                        assert!(seen.0 >= before.0 && seen.1 >= before.1, "went back: {before:?} to {seen:?}");
                        *before = seen;
                    }
                    participant.quiescent();
                }
            });
        }
    });
    assert_eq!(table.stats().records, keys + writes * 2);
    let mut participant = epochs.register();
    settle(&epochs, &mut participant);
}

#[test]
fn conditional_writes_and_increments_lose_nothing() {
    let (epochs, table) = open_table();
    let (threads, rounds) = (3, scaled(3_000, 30));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut participant = epochs.register();
                for _ in 0..rounds {
                    let hash = table.hash(b"sum");
                    table.increment(&participant, hash, b"sum", 1, 0).expect("a number");
                    while !add_one_by_version(&table, &participant) {}
                    participant.quiescent();
                }
            });
        }
    });
    let participant = epochs.register();
    let expected = (threads * rounds).to_string().into_bytes();
    assert_eq!(get(&table, &participant, b"sum"), Some(expected.clone()));
    assert_eq!(get(&table, &participant, b"by version"), Some(expected));
}

fn add_one_by_version(table: &RecordTable, participant: &Participant) -> bool {
    let (key, guard) = (b"by version", participant.guard());
    let hash = table.hash(key);
    let (count, condition) = match table.get(&guard, hash, key, 0) {
        None => (0, StoreCondition::Absent),
        Some(record) => {
            let text = std::str::from_utf8(record.value()).expect("digits");
            (text.parse::<u64>().expect("a number"), StoreCondition::Version(record.version()))
        }
    };
    let write = WriteOptions { condition, ..WriteOptions::default() };
    match table.put(participant, hash, key, (count + 1).to_string().as_bytes(), &write, 0) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, StoreError::Conflict);
            false
        }
    }
}

#[test]
fn of_racing_inserts_one_wins_and_of_racing_deletes_one() {
    let (epochs, table) = open_table();
    let (inserts, deletes) = (AtomicU64::new(0), AtomicU64::new(0));
    let highest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut participant = epochs.register();
                let hash = table.hash(b"key");
                for _ in 0..scaled(10_000, 40) {
                    let before = highest.load(Ordering::SeqCst);
                    let write = WriteOptions { condition: StoreCondition::Absent, ..WriteOptions::default() };
                    if let Ok(version) = table.put(&participant, hash, b"key", b"v", &write, 0) {
                        inserts.fetch_add(1, Ordering::SeqCst);
                        assert!(version > before, "a version that was given before came again");
                        highest.fetch_max(version, Ordering::SeqCst);
                    }
                    if table.delete(&participant, hash, b"key", StoreCondition::Present, 0).is_ok() {
                        deletes.fetch_add(1, Ordering::SeqCst);
                    }
                    participant.quiescent();
                }
            });
        }
    });
    let left = inserts.into_inner() - deletes.into_inner();
    assert_eq!(left, table.stats().records);
}

#[test]
fn a_scan_sees_what_stays_while_others_write_and_the_table_grows() {
    let (epochs, table) = open_table();
    let stable = scaled(2_000, 60) as u64;
    let mut scanner = epochs.register();
    (0..stable).for_each(|key| {
        put(&table, &scanner, &key.to_le_bytes(), b"stays");
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for half in 0..2u64 {
            let (epochs, table, done) = (&epochs, &table, &done);
            scope.spawn(move || {
                let mut participant = epochs.register();
                let mut n = 0u64;
                while !done.load(Ordering::SeqCst) && n < 2_000_000 {
                    let key = (stable + n * 2 + half).to_le_bytes();
                    put(table, &participant, &key, b"comes");
                    // Waves: grows to tens of thousands, most of which leave again.
                    if n > 500 && !n.is_multiple_of(8) {
                        let gone = (stable + (n - 500) * 2 + half).to_le_bytes();
                        let _ = table.delete(&participant, table.hash(&gone), &gone, StoreCondition::Always, 0);
                    }
                    n += 1;
                    participant.quiescent();
                }
            });
        }
        for round in 0..scaled(60, 3) {
            let seen = scan_all(&table, &mut scanner, 1 + round * 7 % 100, 0);
            let stays = |key: &Vec<u8>| u64::from_le_bytes(key.as_slice().try_into().expect("8 bytes")) < stable;
            let mut seen: Vec<_> = seen.into_iter().filter(stays).collect();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len() as u64, stable, "round {round}");
        }
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn readers_of_a_cache_that_evicts_and_is_cleared_see_whole_records() {
    let (epochs, table) = table(StorageMode::Cache, 40_000);
    let writes = scaled(60_000, 80) as u64;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for half in 0..2u64 {
            let (epochs, table, done) = (&epochs, &table, &done);
            scope.spawn(move || {
                let mut participant = epochs.register();
                for number in 0..writes {
                    let key = number.wrapping_mul(0x9e37_79b9 + half) % 1_000;
                    // Making room may give up when the other writer holds the stripes that it needs.
                    let value = sealed(key, number);
                    let hash = table.hash(&key.to_le_bytes());
                    let _ = table.put(&participant, hash, &key.to_le_bytes(), &value, &WriteOptions::default(), 0);
                    if number % 20_000 == 19_999 {
                        table.clear(&participant).expect("no log");
                    }
                    participant.quiescent();
                }
                done.store(true, Ordering::SeqCst);
            });
        }
        let mut participant = epochs.register();
        let mut n = 0u64;
        while !done.load(Ordering::SeqCst) {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (n >> 33) % 1_000;
            let guard = participant.guard();
            if let Some(record) = table.get(&guard, table.hash(&key.to_le_bytes()), &key.to_le_bytes(), 0) {
                assert_eq!(unseal(record.value()).0, key);
            }
            participant.quiescent();
        }
    });
    assert!(table.stats().bytes <= 40_000 && table.stats().evictions > 0 || cfg!(miri), "{:?}", table.stats());
}

#[test]
fn a_read_that_waits_for_a_commit_notes_so() {
    let (epochs, table) = open_table();
    let reader = epochs.register();
    put(&table, &reader, b"k", b"v");
    assert_eq!(get(&table, &reader, b"k").as_deref(), Some(&b"v"[..]));
    assert!(!reader.shown().has_lock_waits(), "nobody was in the way");
    // This thread may come so late that the commit is over: then they meet once more.
    let noted = (0..1_000).find_map(|_| {
        let announced = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = epochs.register();
                let _locked = table.exclusive(&writer, StripeSet::ALL);
                let _announcement = table.announce(StripeSet::ALL);
                announced.wait();
                std::thread::sleep(Duration::from_millis(2));
            });
            announced.wait();
            assert_eq!(get(&table, &reader, b"k").as_deref(), Some(&b"v"[..]));
        });
        Some(reader.shown().take_lock_waits()).filter(|waits| *waits != LockWaits::default())
    });
    let waits = noted.expect("it has waited");
    assert!(waits.commits == 1 && waits.commits_ns > 0 && waits.locks == 0, "{waits:?}");
}

//! Held values outlive their records, whatever happens to these, and nothing outlives the last hold.

use super::super::record::COUNTED_SHARED;
use super::*;
use crate::StoreCondition;
use crate::limits::{RETAINED_VALUE_BYTES, RETAINED_VALUE_PER_KEY, ZERO_COPY_MIN_VALUE_BYTES};
use crate::{RecordUpdate, UpdateValue};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_net::shared_bytes::SharedBytes;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Serialises the tests, which share one count of records.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn key(number: u64) -> Vec<u8> {
    format!("held:{number}").into_bytes()
}

/// Returns the value of a version of a key.
fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..len).map(|_| random.random()).collect()
}

fn share(table: &RecordTable, participant: &Participant, key: &[u8]) -> Option<SharedBytes> {
    let guard = participant.guard();
    table.get(&guard, table.hash(key), key, 0)?.share()
}

#[test]
fn only_large_values_are_held_and_none_for_a_key_that_is_longer() {
    let _alone = ONE_AT_A_TIME.lock();
    let (epochs, table) = open_table();
    let participant = epochs.register();
    for (key_len, len, is_shared) in [
        (5, ZERO_COPY_MIN_VALUE_BYTES - 1, false),
        (5, ZERO_COPY_MIN_VALUE_BYTES, true),
        (ZERO_COPY_MIN_VALUE_BYTES, ZERO_COPY_MIN_VALUE_BYTES, true),
        (ZERO_COPY_MIN_VALUE_BYTES + 1, ZERO_COPY_MIN_VALUE_BYTES, false),
        (1, 100_000, true),
    ] {
        for write in [WriteOptions::default(), WriteOptions { flags: 9, expires_at_ms: 5, ..WriteOptions::default() }] {
            let (key, value) = (vec![b'k'; key_len], value(1, len));
            table.put(&participant, table.hash(&key), &key, &value, &write, 0).expect("there is room");
            let shared = share(&table, &participant, &key);
            assert_eq!(shared.is_some(), is_shared, "{key_len} {len}");
            assert!(shared.is_none_or(|shared| *shared == value));
        }
    }
}

#[test]
fn a_record_that_keeps_its_value_holds_the_one_before_and_copies_nothing() {
    let _alone = ONE_AT_A_TIME.lock();
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    for (key_len, len, in_place) in [
        (5, RETAINED_VALUE_BYTES - 1, false),
        (5, RETAINED_VALUE_BYTES, true),
        (5, 20 * RETAINED_VALUE_BYTES, true),
        (RETAINED_VALUE_BYTES / RETAINED_VALUE_PER_KEY, RETAINED_VALUE_BYTES, true),
        (RETAINED_VALUE_BYTES / RETAINED_VALUE_PER_KEY + 1, RETAINED_VALUE_BYTES, false),
    ] {
        let (key, value) = ([&b"held:"[..], &vec![b'k'; key_len - 5]].concat(), value(1, len));
        let hash = table.hash(&key);
        put(&table, &participant, &key, &value);
        let found = |participant: &Participant| {
            let guard = participant.guard();
            let record = table.get(&guard, hash, &key, 0).expect("it is there");
            assert!(record.value() == value);
            (record.value().as_ptr().addr(), record.expires_at_ms(), record.charged_bytes())
        };
        let (address, ..) = found(&participant);
        let mut charged = Vec::new();
        for expires_at_ms in [1_000, 2_000, 3_000] {
            let touched = table.update(&participant, hash, &key, 0, |record| {
                let value = UpdateValue::unchanged(&record.expect("it is there"));
                assert_eq!(value.copied_bytes(), if in_place { 0 } else { len });
                RecordUpdate::Put { value, flags: 7, expires_at_ms, answer: () }
            });
            touched.expect("there is room");
            settle(&epochs, &mut participant);
            let (now, expires, bytes) = found(&participant);
            assert_eq!((now == address, expires), (in_place, expires_at_ms), "{key_len} {len}");
            charged.push((bytes, table.stats().bytes));
            assert_eq!(COUNTED_SHARED.load(Ordering::SeqCst), if in_place { 2 } else { 1 }, "the first and the last");
        }
        assert!(charged.windows(2).all(|two| two[0] == two[1]) && charged[0].0 > len as u64, "{charged:?}");
        let copied = WriteOptions { flags: 7, expires_at_ms: 3_000, ..WriteOptions::default() };
        table.put(&participant, hash, &key, &value, &copied, 0).expect("there is room");
        assert_eq!(found(&participant).2, charged[0].0, "it counts as if it were copied");
        table.clear(&participant).expect("no log");
        settle(&epochs, &mut participant);
        assert_eq!(COUNTED_SHARED.load(Ordering::SeqCst), 0);
    }
}

/// Everything that can happen to records while some of them are held.
fn play(seed: u64, mode: StorageMode) {
    let (epochs, table) = table(mode, 150_000);
    let (mut participant, mut random) = (epochs.register(), SmallRng::seed_from_u64(seed));
    let (mut shared, mut now_ms): (Vec<(SharedBytes, Vec<u8>)>, u64) = (Vec::new(), 0);
    for step in 0..scaled(4_000, 80) as u64 {
        let key = key(random.random_range(0..12));
        match random.random_range(0..20) {
            0..=7 => {
                let len = random.random_range(0..[1_000, 4_000, 20_000][step as usize % 3]);
                let expires_at_ms = if random.random_bool(0.2) { now_ms + random.random_range(1..50) } else { 0 };
                let write = WriteOptions { flags: random.random_range(0..2), expires_at_ms, ..WriteOptions::default() };
                let _full = table.put(&participant, table.hash(&key), &key, &value(step, len), &write, now_ms);
            }
            8 => {
                let _gone = table.delete(&participant, table.hash(&key), &key, StoreCondition::Always, now_ms);
            }
            9 => {
                now_ms += random.random_range(1..40);
                table.sweep(&participant, now_ms, 1_000);
            }
            10 if step % 10 == 0 => table.clear(&participant).expect("no log"),
            11..=15 => {
                let guard = participant.guard();
                if let Some(record) = table.get(&guard, table.hash(&key), &key, now_ms)
                    && let Some(share) = record.share()
                {
                    shared.push((share, record.value().to_vec()));
                }
            }
            16 | 17 if !shared.is_empty() => {
                let (share, value) = shared.swap_remove(random.random_range(0..shared.len()));
                let other = share.clone();
                std::thread::spawn(move || assert!(*other == value)).join().expect("the value is as it was");
            }
            _ => participant.quiescent(),
        }
    }
    drop(table);
    settle(&epochs, &mut participant);
    assert!(shared.iter().all(|(share, value)| **share == *value));
    let mut owners: Vec<&SharedBytes> = Vec::new();
    for (share, _) in &shared {
        if !owners.iter().any(|owner| owner.same_owner(share)) {
            owners.push(share);
        }
    }
    assert!(!owners.is_empty() && COUNTED_SHARED.load(Ordering::SeqCst) == owners.len() as i64);
    drop(shared);
    assert_eq!(COUNTED_SHARED.load(Ordering::SeqCst), 0);
}

#[test]
fn held_values_stay_whatever_becomes_of_their_records() {
    let _alone = ONE_AT_A_TIME.lock();
    for seed in 0..scaled(12, 1) as u64 {
        play(seed, if seed % 2 == 0 { StorageMode::Store } else { StorageMode::Cache });
    }
}

#[test]
fn holders_on_other_threads_and_the_writer_free_each_record_once() {
    let _alone = ONE_AT_A_TIME.lock();
    let (epochs, table) = open_table();
    let rounds = scaled(5_000, 60) as u64;
    let (sender, receiver) = std::sync::mpsc::channel::<SharedBytes>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = epochs.register();
            for round in 0..rounds {
                put(&table, &writer, &key(round % 3), &[round as u8; ZERO_COPY_MIN_VALUE_BYTES + 100]);
                writer.quiescent();
            }
        });
        for _ in 0..2 {
            let (sender, epochs, table) = (sender.clone(), &epochs, &table);
            scope.spawn(move || {
                let mut reader = epochs.register();
                for round in 0..rounds {
                    if let Some(share) = share(table, &reader, &key(round % 3)) {
                        sender.send(share).expect("somebody lets go");
                    }
                    reader.quiescent();
                }
            });
        }
        drop(sender);
        scope.spawn(|| receiver.into_iter().for_each(|share| assert!(share.iter().all(|byte| *byte == share[0]))));
    });
    let mut participant = epochs.register();
    settle(&epochs, &mut participant);
    assert_eq!(COUNTED_SHARED.load(Ordering::SeqCst), 3);
    drop(table);
    settle(&epochs, &mut participant);
    assert_eq!(COUNTED_SHARED.load(Ordering::SeqCst), 0);
}

//! Read-modify-write: against a map, under concurrency, and with stripes held.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::{RecordUpdate, StoreError, StripeSet, UpdateValue};

#[derive(Clone, Debug)]
enum Op {
    Keep,
    Delete,
    /// Puts bytes before and after the present value.
    Surround {
        before: Vec<u8>,
        after: Vec<u8>,
        flags: u32,
        ttl_ms: u64,
    },
    Owned {
        len: usize,
    },
    Wait {
        ms: u64,
    },
}

type Entry = (Vec<u8>, u32, u64);

fn op() -> impl Strategy<Value = Op> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let ttl = || prop_oneof![2 => Just(0), 1 => 1..50u64];
    prop_oneof![
        2 => Just(Op::Keep),
        2 => Just(Op::Delete),
        6 => (bytes(), bytes(), any::<u32>(), ttl())
            .prop_map(|(before, after, flags, ttl_ms)| Op::Surround { before, after, flags, ttl_ms }),
        2 => (0..300usize).prop_map(|len| Op::Owned { len }),
        1 => (0..30u64).prop_map(|ms| Op::Wait { ms }),
    ]
}

/// Returns an entry after an operation.
fn model(op: &Op, old: Option<&Entry>, now_ms: u64) -> Option<Entry> {
    match op {
        Op::Keep | Op::Wait { .. } => old.cloned(),
        Op::Delete => None,
        Op::Owned { len } => Some((vec![7; *len], 0, 0)),
        Op::Surround { before, after, flags, ttl_ms } => {
            let old = old.map_or(&[][..], |(value, ..)| value);
            let expires_at_ms = if *ttl_ms == 0 { 0 } else { now_ms + ttl_ms };
            Some(([before.as_slice(), old, after].concat(), *flags, expires_at_ms))
        }
    }
}

fn change<'a>(op: &'a Op, old: Option<crate::RecordRef<'a>>, now_ms: u64) -> RecordUpdate<'a, bool> {
    let answer = old.is_some();
    match op {
        Op::Keep | Op::Wait { .. } => RecordUpdate::Keep(answer),
        Op::Delete => RecordUpdate::Delete(answer),
        Op::Owned { len } => {
            RecordUpdate::Put { value: UpdateValue::Owned(vec![7; *len]), flags: 0, expires_at_ms: 0, answer }
        }
        Op::Surround { before, after, flags, ttl_ms } => RecordUpdate::Put {
            value: UpdateValue::Parts([before, old.map_or(&[][..], |record| record.value()), after]),
            flags: *flags,
            expires_at_ms: if *ttl_ms == 0 { 0 } else { now_ms + ttl_ms },
            answer,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: scaled(200, 3) as u32, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn an_update_does_what_its_function_says(
        ops in prop::collection::vec((0..12u8, op(), any::<bool>()), 0..scaled(300, 40)),
    ) {
        let (epochs, table) = open_table();
        let mut participant = epochs.register();
        let (mut map, mut now_ms) = (BTreeMap::<u8, Entry>::new(), 1_000);
        let mut versions = BTreeMap::<u8, u64>::new();
        for (key, op, exclusively) in ops {
            if let Op::Wait { ms } = op {
                now_ms += ms;
            }
            map.retain(|_, (_, _, expires_at_ms)| *expires_at_ms == 0 || *expires_at_ms > now_ms);
            let expected = model(&op, map.get(&key), now_ms);
            let bytes = [key];
            let hash = table.hash(&bytes);
            let result = if exclusively {
                let mut stripes = StripeSet::default();
                stripes.add(hash);
                table.exclusive(&participant, stripes).update(hash, &bytes, now_ms, |old| change(&op, old, now_ms))
            } else {
                table.update(&participant, hash, &bytes, now_ms, |old| change(&op, old, now_ms))
            };
            let (was, version) = result.expect("there is room");
            prop_assert_eq!(was, map.contains_key(&key), "the function sees what is there");
            match expected {
                Some(entry) => map.insert(key, entry),
                None => map.remove(&key),
            };
            let guard = participant.guard();
            let found = table.get(&guard, hash, &bytes, now_ms);
            prop_assert_eq!(version, found.map_or(0, |record| record.version()));
            let found = found.map(|record| (record.value().to_vec(), record.flags(), record.expires_at_ms()));
            prop_assert_eq!(found.as_ref(), map.get(&key));
            if !matches!(op, Op::Keep | Op::Wait { .. }) && version != 0 {
                let before = versions.insert(key, version).unwrap_or(0);
                prop_assert!(version > before, "every write has a higher version");
            }
            participant.quiescent();
        }
    }
}

/// Adds to a number of eight bytes.
fn plus<'a>(old: Option<crate::RecordRef<'a>>, delta: i64) -> RecordUpdate<'a, i64> {
    let old = old.map_or(0, |record| i64::from_le_bytes(record.value().try_into().expect("eight bytes")));
    let value = UpdateValue::Owned((old + delta).to_le_bytes().to_vec());
    RecordUpdate::Put { value, flags: 0, expires_at_ms: 0, answer: old + delta }
}

fn number(table: &RecordTable, participant: &Participant, key: &[u8]) -> i64 {
    get(table, participant, key).map_or(0, |value| i64::from_le_bytes(value.try_into().expect("eight bytes")))
}

#[test]
fn racing_updates_lose_nothing_and_stripes_are_held_together() {
    let (epochs, table) = open_table();
    let rounds = scaled(4_000, 20) as i64;
    let keys: Vec<[u8; 1]> = (0..8).map(|key| [key]).collect();
    let done = AtomicU64::new(3);
    std::thread::scope(|scope| {
        // Two move amounts between pairs of keys, all of whose sums stay 0; one counts beside them.
        for seed in 0..2usize {
            let (epochs, table, keys, done) = (&epochs, &table, &keys, &done);
            scope.spawn(move || {
                let mut participant = epochs.register();
                for round in 0..rounds as usize {
                    let (from, to) = (&keys[(round + seed) % 8], &keys[(round * 3 + seed + 1) % 8]);
                    let (of_from, of_to) = (table.hash(from), table.hash(to));
                    let mut stripes = StripeSet::default();
                    stripes.add(of_from);
                    stripes.add(of_to);
                    let mut locked = table.exclusive(&participant, stripes);
                    locked.update(of_from, from, 0, |old| plus(old, -5)).expect("room");
                    locked.update(of_to, to, 0, |old| plus(old, 5)).expect("room");
                    drop(locked);
                    participant.quiescent();
                }
                done.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let (counted, of_done) = (&table, &done);
        let of_epochs = &epochs;
        scope.spawn(move || {
            let mut participant = of_epochs.register();
            for _ in 0..rounds {
                counted.update(&participant, counted.hash(b"count"), b"count", 0, |old| plus(old, 1)).expect("room");
                participant.quiescent();
            }
            of_done.fetch_sub(1, Ordering::SeqCst);
        });
        let mut participant = epochs.register();
        while done.load(Ordering::SeqCst) != 0 {
            let locked = table.exclusive(&participant, StripeSet::ALL);
            let sum: i64 = keys.iter().map(|key| number(&table, &participant, key)).sum();
            assert_eq!(sum, 0, "who holds all stripes sees no half of a transfer");
            drop(locked);
            participant.quiescent();
        }
    });
    let participant = epochs.register();
    assert_eq!(number(&table, &participant, b"count"), rounds);
}

#[test]
fn a_table_grows_and_is_cleared_while_its_stripes_are_held() {
    let (epochs, table) = open_table();
    let keys = scaled(20_000, 1_500) as u64;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut participant = epochs.register();
            let mut n = 0u64;
            while !stop.load(Ordering::SeqCst) && n < 5_000_000 {
                n += 1;
                if n.is_multiple_of(1_000) {
                    table.clear(&participant).expect("no log");
                }
                let (key, write) = ((n % 3_000).to_be_bytes(), WriteOptions::default());
                // All stripes but this one may be held when it has to grow: then there is room when they are let go.
                while let Err(error) = table.put(&participant, table.hash(&key), &key, b"stranger", &write, 0) {
                    assert_eq!(error, StoreError::OutOfMemory);
                    std::thread::yield_now();
                }
                participant.quiescent();
            }
        });
        let mut participant = epochs.register();
        for stripes in [StripeSet::ALL, StripeSet(u64::MAX >> 1)] {
            let mut locked = table.exclusive(&participant, stripes);
            let mut written = Vec::new();
            for n in 0..keys {
                let key = n.to_le_bytes().repeat(2);
                let hash = table.hash(&key);
                if stripes.contains((hash >> 58) as usize) {
                    let put =
                        |_| RecordUpdate::Put { value: b"v".as_slice().into(), flags: 0, expires_at_ms: 0, answer: () };
                    while locked.update(hash, &key, 0, put).is_err() {
                        assert_ne!(stripes, StripeSet::ALL, "the table grows with what is put in");
                        // A thread that clears the table holds its growth lock and waits for these stripes. Written
                        // records may be gone then.
                        drop(locked);
                        written.clear();
                        std::thread::yield_now();
                        locked = table.exclusive(&participant, stripes);
                    }
                    written.push(key);
                }
            }
            assert!(written.iter().all(|key| get(&table, &participant, key).is_some()));
            assert_eq!(locked.clear(), Ok(stripes == StripeSet::ALL));
            assert_eq!(written.iter().any(|key| get(&table, &participant, key).is_some()), stripes != StripeSet::ALL);
            drop(locked);
            participant.quiescent();
        }
        stop.store(true, Ordering::SeqCst);
    });
    let mut participant = epochs.register();
    settle(&epochs, &mut participant);
}

#[test]
fn a_cache_makes_room_from_whichever_stripes_are_held() {
    let (epochs, table) = table(StorageMode::Cache, 60_000);
    let participant = epochs.register();
    for n in 0..2_000u32 {
        put(&table, &participant, &n.to_le_bytes(), &[0; 50]);
    }
    let mut locked = table.exclusive(&participant, StripeSet::ALL);
    for n in 0..100u32 {
        // Ten times what one stripe holds.
        let (key, value) = (n.to_be_bytes(), vec![1; 10_000]);
        let put = |_| RecordUpdate::Put { value: value.as_slice().into(), flags: 0, expires_at_ms: 0, answer: () };
        locked.update(table.hash(&key), &key, 0, put).expect("the cache evicts");
        assert!(table.stats().bytes <= 60_000);
    }
    let too_large =
        |_| RecordUpdate::Put { value: UpdateValue::Owned(vec![1; 70_000]), flags: 0, expires_at_ms: 0, answer: () };
    assert_eq!(locked.update(table.hash(b"k"), b"k", 0, too_large), Err(StoreError::OutOfMemory));
}

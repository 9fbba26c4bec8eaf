//! Reads one at a time and in batches, and reads and writes of a table whose buckets are as full as they can be.

use std::hint::black_box;
use std::time::Instant;

use super::{BenchStore, KEY_BYTES, Shuffle, key_of, median};

/// Rounds of each side, by turns.
const ROUNDS: usize = 2_001;
/// Operations of a round: a tenth of a millisecond, so that most rounds are not interrupted, even on a busy machine.
const ROUND: u64 = 256;
/// Reads that begin together: a burst of the server's.
const BATCH: usize = 32;

/// Nanoseconds of each of [`ROUND`] operations.
fn round_ns(mut operations: impl FnMut(u64) -> u64) -> f64 {
    let start = Instant::now();
    let mut done = 0;
    while done < ROUND {
        done += operations(done);
    }
    start.elapsed().as_nanos() as f64 / done as f64
}

fn batch(store: &BenchStore, shuffle: &mut Shuffle, records: u64) -> u64 {
    let mut keys = [(0u64, [0u8; KEY_BYTES]); BATCH];
    let guard = store.participant.guard();
    for (hash, key) in &mut keys {
        *key = key_of(shuffle.next(records));
        *hash = store.table.hash(key);
        store.table.prefetch_bucket(*hash);
    }
    store.table.prefetch_records(&guard, keys.iter().map(|(hash, _)| *hash));
    for (hash, key) in &keys {
        black_box(store.table.get(&guard, *hash, key, 0).map_or(0, |record| record.value()[0]));
    }
    BATCH as u64
}

/// Reads of random keys, one at a time and in batches, in turn.
pub(super) fn gets(records: u64) {
    let mut store = BenchStore::new();
    (0..records).for_each(|n| store.put(n));
    store.settle();
    let mut shuffle = Shuffle(1);
    let (mut one, mut many, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        one.push(round_ns(|_| u64::from(black_box(store.get(shuffle.next(records))) != 0)));
        many.push(round_ns(|_| batch(&store, &mut shuffle, records)));
        ratios.extend(one.last().zip(many.last()).map(|(one, many)| one / many));
    }
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (ratios[ROUNDS / 10], ratios[ROUNDS * 9 / 10]);
    let ratio = median(ratios);
    println!(
        "one at a time {:.0} ns, in batches of {BATCH} {:.0} ns: {ratio:.2} times the rate ({low:.2} to {high:.2} in eight of ten rounds); target 4: {}",
        median(one),
        median(many),
        if ratio >= 4.0 { "reached" } else { "not reached" },
    );
}

/// Reads and writes of random keys just before the table grows, when collisions are most frequent, and just after.
pub(super) fn full(records: u64) {
    let mut store = BenchStore::new();
    (0..records).for_each(|n| store.put(n));
    store.settle();
    let growths = store.table.stats().growths;
    let mut records = records;
    let capacity = store.table.stats().capacity;
    while records * 4 < capacity * 3 - capacity / 100 && store.table.stats().growths == growths {
        store.put(records);
        records += 1;
    }
    let before = measure(&mut store, records);
    while store.table.stats().growths == growths {
        store.put(records);
        records += 1;
    }
    store.settle();
    let after = measure(&mut store, records);
    for (name, before, after) in [("gets", before[0], after[0]), ("puts", before[1], after[1])] {
        println!("{name}: {before:.0} ns in full buckets, {after:.0} ns after growth: {:.2} times", before / after);
    }
}

fn measure(store: &mut BenchStore, records: u64) -> [f64; 2] {
    let stats = store.table.stats();
    println!("slots {:.1} % used", stats.records as f64 * 100.0 / stats.capacity as f64);
    let mut shuffle = Shuffle(2);
    let (mut gets, mut puts) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        gets.push(round_ns(|_| u64::from(black_box(store.get(shuffle.next(records))) != 0)));
        puts.push(round_ns(|_| {
            store.put(shuffle.next(records));
            1
        }));
    }
    [median(gets), median(puts)]
}

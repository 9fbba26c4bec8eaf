//! Benchmarks of the table alone: reads one at a time and in prefetched batches, writes, writes while it grows, bytes
//! per record, positions in an ordered one.
//!
//! `cargo bench -p sandstorm-experiments --bench table`. Records: 30-byte keys, 100-byte values; 1 million of them, or
//! `SANDSTORM_BENCH_RECORDS`. Keys are asked for uniformly at random, so most reads miss the caches.

#[path = "memory/shuffle.rs"]
mod shuffle;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use sandstorm_store::{Epochs, KeyRange, Participant, RecordTable, StoreCondition, TableConfig, WriteOptions};
use shuffle::Shuffle;

const VALUE: [u8; 100] = [7; 100];
const KEY_BYTES: usize = 30;

fn key_of(n: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    key[..8].copy_from_slice(&n.to_le_bytes());
    key
}

fn put(table: &RecordTable, participant: &Participant, n: u64) {
    let key = key_of(n);
    table.put(participant, table.hash(&key), &key, &VALUE, &WriteOptions::default(), 0).expect("there is room");
}

/// Resident bytes of the process.
fn resident_bytes() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<f64>().ok());
    pages.unwrap_or(f64::NAN) * 4096.0
}

/// Fills a table and prints the duration of single puts while it grew and while it did not.
fn filled(records: u64) -> (Arc<Epochs>, RecordTable, Participant) {
    let before = resident_bytes();
    let epochs = Epochs::new();
    let table = RecordTable::new(TableConfig::default(), Arc::clone(&epochs));
    let mut participant = epochs.register();
    let (mut growing, mut steady) = (Vec::with_capacity(records as usize), Vec::with_capacity(records as usize));
    for n in 0..records {
        let is_growing = table.is_growing(&participant.guard());
        let start = Instant::now();
        put(&table, &participant, n);
        let took_ns = start.elapsed().as_nanos() as u32;
        if is_growing {
            growing.push(took_ns)
        } else {
            steady.push(took_ns)
        }
        if n % 16 == 0 {
            participant.quiescent();
        }
    }
    for (name, mut times_ns) in [("steady", steady), ("while the array grows", growing)] {
        times_ns.sort_unstable();
        let at = |share: f64| times_ns.get((times_ns.len() as f64 * share) as usize).copied().unwrap_or(0);
        let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
        let max = times_ns.last().copied().unwrap_or(0);
        println!("insert, {name}: n {}, p50 {p50} ns, p99 {p99} ns, p99.9 {p999} ns, max {max} ns", times_ns.len());
    }
    (0..100_000).for_each(|_| participant.quiescent());
    let stats = table.stats();
    let overhead = (resident_bytes() - before) / records as f64 - (KEY_BYTES + VALUE.len()) as f64;
    let load = stats.records as f64 / stats.capacity as f64;
    println!(
        "{records} records: {overhead:.1} resident bytes each beside key and value, slots {:.0} % used",
        load * 100.0
    );
    (epochs, table, participant)
}

fn gets(criterion: &mut Criterion, table: &RecordTable, participant: &mut Participant, records: u64) {
    let mut group = criterion.benchmark_group(format!("get/{records}"));
    let mut shuffle = Shuffle(1);
    group.throughput(Throughput::Elements(1));
    group.bench_function("one", |bencher| {
        bencher.iter(|| {
            participant.quiescent();
            let (key, guard) = (key_of(shuffle.next(records)), participant.guard());
            let record = table.get(&guard, table.hash(&key), &key, 0);
            black_box(record.map_or(0, |record| record.value()[0]))
        });
    });
    for batch in [4usize, 8, 16, 32] {
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_with_input(BenchmarkId::new("batch", batch), &batch, |bencher, &batch| {
            bencher.iter(|| {
                participant.quiescent();
                let mut keys = [(0u64, [0u8; KEY_BYTES]); 32];
                let guard = participant.guard();
                for (hash, key) in &mut keys[..batch] {
                    *key = key_of(shuffle.next(records));
                    *hash = table.hash(key);
                    table.prefetch_bucket(*hash);
                }
                table.prefetch_records(&guard, keys[..batch].iter().map(|(hash, _)| *hash));
                let sum = |sum: u64, (hash, key): &(u64, [u8; KEY_BYTES])| {
                    let record = table.get(&guard, *hash, key, 0);
                    sum + u64::from(record.map_or(0, |record| record.value()[0]))
                };
                black_box(keys[..batch].iter().fold(0, sum))
            });
        });
    }
    group.finish();
}

fn puts(criterion: &mut Criterion, table: &RecordTable, participant: &mut Participant, records: u64) {
    let mut group = criterion.benchmark_group(format!("put/{records}"));
    let mut shuffle = Shuffle(2);
    group.throughput(Throughput::Elements(1));
    group.bench_function("overwrite", |bencher| {
        bencher.iter(|| {
            put(table, participant, shuffle.next(records));
            participant.quiescent();
        });
    });
    group.bench_function("quiescent point, nothing waiting", |bencher| {
        (0..1_000).for_each(|_| participant.quiescent());
        bencher.iter_batched(|| (), |()| participant.quiescent(), BatchSize::NumIterations(10_000));
    });
    group.finish();
}

/// An ordered table of so many keys of 16 bytes, as of a leaderboard: points, then a player. Its keys alone are of
/// interest, so its records are empty.
fn positions(criterion: &mut Criterion, records: u64) {
    let epochs = Epochs::new();
    let config = TableConfig { ordered: true, ..TableConfig::default() };
    let table = RecordTable::new(config, Arc::clone(&epochs));
    let mut participant = epochs.register();
    let mut shuffle = Shuffle(3);
    let place = |n: u64| {
        let points = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        u128::from(points) << 64 | u128::from(n)
    };
    let write = |participant: &Participant, key: &[u8]| {
        table.put(participant, table.hash(key), key, b"", &WriteOptions::default(), 0).expect("there is room");
    };
    for n in 0..records {
        write(&participant, &place(n).to_be_bytes());
        participant.quiescent();
    }
    let mut group = criterion.benchmark_group(format!("positions/{records}"));
    group.bench_function("rank", |bencher| {
        bencher.iter(|| {
            let key = place(shuffle.next(records)).to_be_bytes();
            black_box(table.count_keys(&KeyRange::new(b"", &key, false)))
        });
    });
    group.bench_function("nth", |bencher| bencher.iter(|| black_box(table.key_at(shuffle.next(records)))));
    group.bench_function("count of a range", |bencher| {
        bencher.iter(|| {
            let (one, other) = (place(shuffle.next(records)), place(shuffle.next(records)));
            let (from, to) = (one.min(other).to_be_bytes(), one.max(other).to_be_bytes());
            black_box(table.count_keys(&KeyRange::new(&from, &to, false)))
        });
    });
    group.bench_function("a player's points change", |bencher| {
        bencher.iter(|| {
            // It comes to another place, and back.
            let old = place(shuffle.next(records)).to_be_bytes();
            let new = place(records + shuffle.next(records)).to_be_bytes();
            for (gone, come) in [(&old, &new), (&new, &old)] {
                table.delete(&participant, table.hash(gone), gone, StoreCondition::Always, 0).expect("it is there");
                write(&participant, come);
            }
            participant.quiescent();
        });
    });
    group.finish();
}

fn main() {
    let records = std::env::var("SANDSTORM_BENCH_RECORDS").ok().and_then(|text| text.parse().ok());
    let records: u64 = records.unwrap_or(1_000_000);
    let mut criterion = Criterion::default().configure_from_args().sample_size(20);
    let (_epochs, table, mut participant) = filled(records);
    gets(&mut criterion, &table, &mut participant, records);
    puts(&mut criterion, &table, &mut participant, records);
    positions(&mut criterion, records);
    criterion.final_summary();
}

//! The costs of records: bytes of each over key and value, beside memcached's and Redis'; duration of operations while
//! the table doubles; reads one at a time and in batches; reads and writes of full buckets.
//!
//! `cargo bench -p sandstorm-experiments --bench memory`, or `... --bench memory -- PART... [--records N[,N]]` for some
//! of it: `bytes` (1 M and 10 M records; about 2 GB), `peers` (the same; needs memcached and redis-server), `growth`
//! (from 1 M on), `gets` (10 M), `full` (1 M). Records: 30-byte keys, 100-byte values. Each part runs in a process of
//! its own, so that none has another's leftovers.
//!
//! Samples during which the measuring thread was descheduled are counted apart. On a busy machine a p99.9 would show
//! nothing else.

mod growth;
mod peers;
mod reads;
mod shuffle;

use std::process::{Command, ExitCode};
use std::sync::Arc;

use sandstorm_store::{Epochs, Participant, RecordTable, TableConfig, WriteOptions};
use shuffle::Shuffle;

const KEY_BYTES: usize = 30;
const VALUE: [u8; 100] = [7; 100];
const PAYLOAD_BYTES: f64 = (KEY_BYTES + VALUE.len()) as f64;
/// Limit of a record's bytes at this payload: a quarter more than the payload, and 24 bytes.
const TARGET_BYTES: f64 = PAYLOAD_BYTES * 1.25 + 24.0;

/// The text of a key: peers accept no spaces or line ends in it.
fn key_of(n: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    for (digit, byte) in key.iter_mut().take(16).enumerate() {
        *byte = b"0123456789abcdef"[(n >> (4 * digit)) as usize & 15];
    }
    key
}

/// A table and the thread that uses it.
struct BenchStore {
    table: RecordTable,
    participant: Participant,
}

impl BenchStore {
    fn new() -> BenchStore {
        let epochs = Epochs::new();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 7);
        BenchStore { table, participant: epochs.register() }
    }

    fn put(&mut self, n: u64) {
        let key = key_of(n);
        let write = WriteOptions::default();
        self.table.put(&self.participant, self.table.hash(&key), &key, &VALUE, &write, 0).expect("there is room");
        self.participant.quiescent();
    }

    fn get(&self, n: u64) -> u8 {
        let (key, guard) = (key_of(n), self.participant.guard());
        self.table.get(&guard, self.table.hash(&key), &key, 0).map_or(0, |record| record.value()[0])
    }

    fn is_growing(&self) -> bool {
        self.table.is_growing(&self.participant.guard())
    }

    /// Overwrites records until nothing is left to move or to free.
    fn settle(&mut self) {
        let records = self.table.stats().records;
        let mut n = 0;
        while self.is_growing() {
            self.put(n % records);
            n += 1;
        }
        (0..10_000).for_each(|_| self.participant.quiescent());
    }
}

/// Resident bytes of a process.
fn resident_bytes(process: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) * 1024.0
}

/// The median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Fills a table and prints its bytes per record, at the end and on the way there.
fn bytes(records: u64) {
    let before = resident_bytes("self");
    let mut store = BenchStore::new();
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    for n in 0..records {
        store.put(n);
        if n >= records / 2 && n % (records / 64).max(1) == 0 {
            let each = (resident_bytes("self") - before) / (n + 1) as f64;
            (least, most) = (least.min(each), most.max(each));
        }
    }
    (0..10_000).for_each(|_| store.participant.quiescent());
    let stats = store.table.stats();
    let each = (resident_bytes("self") - before) / records as f64;
    println!(
        "{records} records: {each:.1} resident bytes each, {:.1} over the payload; target {TARGET_BYTES:.1}: {}",
        each - PAYLOAD_BYTES,
        if each <= TARGET_BYTES { "reached" } else { "not reached" },
    );
    println!("  while it filled from half of that on: {least:.1} to {most:.1}");
    println!(
        "  charged {:.1} each; slots {:.0} % used; slabs {:.1} each; growing: {}",
        stats.bytes as f64 / records as f64,
        stats.records as f64 * 100.0 / stats.capacity as f64,
        sandstorm_store::slab_bytes() as f64 / records as f64,
        store.is_growing(),
    );
}

fn run(part: &str, records: u64) {
    match part {
        "bytes" => bytes(records),
        "growth" => growth::run(records),
        "gets" => reads::gets(records),
        "full" => reads::full(records),
        "memcached" => peers::memcached(records),
        _ => peers::redis(records),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [only, part, records] = &arguments[..]
        && only == "only"
    {
        run(part, records.parse().unwrap_or(1_000_000));
        return ExitCode::SUCCESS;
    }
    let mut arguments = arguments.into_iter();
    let (mut parts, mut chosen) = (Vec::new(), None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--records" => {
                let counts = arguments.next().unwrap_or_default();
                chosen = Some(counts.split(',').filter_map(|count| count.parse().ok()).collect::<Vec<u64>>());
            }
            "bytes" | "growth" | "gets" | "full" => parts.push(argument),
            "peers" => parts.extend(["memcached".to_string(), "redis".to_string()]),
            _ => {
                eprintln!("error: {argument}: parts are bytes, peers, growth, gets and full; then --records N[,N]");
                return ExitCode::from(2);
            }
        }
    }
    if parts.is_empty() {
        parts = ["bytes", "memcached", "redis", "growth", "gets", "full"].map(String::from).to_vec();
    }
    for part in parts {
        let usual: &[u64] = match part.as_str() {
            "bytes" | "memcached" | "redis" => &[1_000_000, 10_000_000],
            "gets" => &[10_000_000],
            _ => &[1_000_000],
        };
        for records in chosen.as_deref().unwrap_or(usual) {
            println!("-- {part}, {records} records");
            let itself = std::env::current_exe().expect("the path of this program");
            let status = Command::new(itself).args(["only", &part, &records.to_string()]).status();
            if !status.is_ok_and(|status| status.success()) {
                eprintln!("error: {part} failed");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

//! The promises of transactions: all or nothing, at one moment, whatever other threads write meanwhile.

mod history;
mod invariants;
mod phantoms;
mod refusals;
mod single;

use std::sync::Arc;

use super::{
    CommitError, KeyChange, KeyRead, MetInRange, NewRecord, RangeQuery, RangeRead, RangeSlice, commit,
    commit_with_ranges, snapshot, snapshot_range,
};
use crate::{
    EpochGuard, Epochs, KeyRange, Participant, RangeProgress, RecordRef, RecordTable, ScanBudget, StorageMode,
    TableConfig, WriteOptions,
};

/// A test's action in the middle of its thread's next commit: between its check and its changes, when it has unlocked
/// what it only reads.
pub(super) mod pause {
    use std::cell::Cell;

    thread_local! {
        static NEXT: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
        static RANGES: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    }

    /// The point where ranges are checked.
    pub(in crate::transactions) fn at_ranges() {
        if let Some(f) = RANGES.take() {
            f();
        }
    }

    pub(in crate::transactions) fn next_ranges(f: impl FnOnce() + 'static) {
        RANGES.set(Some(Box::new(f)));
    }

    pub(in crate::transactions) fn here() {
        if let Some(f) = NEXT.take() {
            f();
        }
    }

    pub(in crate::transactions) fn next(f: impl FnOnce() + 'static) {
        NEXT.set(Some(Box::new(f)));
    }
}

/// Work is cut down under miri, which is some hundred times slower.
const fn scaled(work: usize, miri: usize) -> usize {
    if cfg!(miri) { miri } else { work }
}

/// Multiplies histories and rounds where `SANDSTORM_DEEP` is set.
fn deep(rounds: usize) -> usize {
    if std::env::var_os("SANDSTORM_DEEP").is_some() { rounds * 25 } else { rounds }
}

fn tables(count: usize, mode: StorageMode, quota_bytes: u64) -> (Arc<Epochs>, Vec<RecordTable>) {
    let epochs = Epochs::new();
    let config = TableConfig { mode, quota_bytes, max_value_len: 1 << 16, ordered: true, ..TableConfig::default() };
    let make = |seed| RecordTable::with_seed(config, Arc::clone(&epochs), seed);
    let tables = (0..count as u64).map(make).collect();
    (epochs, tables)
}

fn put(table: &RecordTable, participant: &Participant, key: &[u8], value: &[u8]) -> u64 {
    table.put(participant, table.hash(key), key, value, &WriteOptions::default(), 0).expect("there is room")
}

/// Returns value and version of the record of `key`.
fn get(table: &RecordTable, participant: &Participant, key: &[u8], now_ms: u64) -> Option<(Vec<u8>, u64)> {
    let guard = participant.guard();
    table.get(&guard, table.hash(key), key, now_ms).map(|record| (record.value().to_vec(), record.version()))
}

/// Returns all records of a span, read as a transaction reads them: in turns, while others write.
fn read_all<'g>(guard: &'g EpochGuard<'_>, table: &'g RecordTable, span: KeyRange<'g>) -> Vec<RecordRef<'g>> {
    let (mut left, mut records) = (span, Vec::new());
    while table.range(guard, &mut left, 3, 0, &mut |record| records.push(record)) == Ok(RangeProgress::More) {
        std::thread::yield_now();
    }
    records
}

/// Returns the beginning of a span as it was at one moment.
fn at_once<'g>(
    participant: &'g Participant,
    guard: &'g EpochGuard<'g>,
    table: &'g RecordTable,
    span: KeyRange<'g>,
    limit: usize,
) -> RangeSlice<'g> {
    let wanted = RangeQuery { participant, guard, table, span, limit, now_ms: 0 };
    snapshot_range(&wanted, &mut { ScanBudget::MESSAGE }, &mut |_, _| true).expect("the table is ordered")
}

fn range_read<'k>(table: &'k RecordTable, span: KeyRange<'k>, records: &[RecordRef<'k>]) -> RangeRead<'k> {
    let rows = records.iter().map(|record| (record.key(), record.version())).collect();
    RangeRead { table, span, met: MetInRange::Records(rows) }
}

fn read<'k>(table: &'k RecordTable, key: &'k [u8], version: u64) -> KeyRead<'k> {
    KeyRead { table, hash: table.hash(key), key, version }
}

fn writes<'k>(table: &'k RecordTable, key: &'k [u8], value: &'k [u8]) -> KeyChange<'k> {
    let becomes = Some(NewRecord { value, flags: 0, expires_at_ms: 0 });
    KeyChange { table, hash: table.hash(key), key, becomes }
}

fn deletes<'k>(table: &'k RecordTable, key: &'k [u8]) -> KeyChange<'k> {
    KeyChange { table, hash: table.hash(key), key, becomes: None }
}

/// Numbers of a small generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

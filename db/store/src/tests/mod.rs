//! The store's promises: against a model, under concurrency, and that nothing is freed early or kept.

mod arrivals;
mod awaited;
mod cold;
mod cold_moves;
mod cold_quotas;
mod cold_scans;
mod concurrent;
mod crowds;
mod expiry;
mod held;
mod logged;
mod model;
mod ordered;
mod outside;
mod reclaim;
mod shape;
mod slots;
mod update;

use std::sync::Arc;

use super::{
    EpochGuard, Epochs, KeyRange, Participant, RangeProgress, RecordTable, StorageMode, TableConfig, WriteOptions,
};

/// Work is cut down under miri, which is some hundred times slower.
const fn scaled(work: usize, miri: usize) -> usize {
    if cfg!(miri) { miri } else { work }
}

fn table(mode: StorageMode, quota_bytes: u64) -> (Arc<Epochs>, RecordTable) {
    table_with(mode, quota_bytes, false)
}

fn table_with(mode: StorageMode, quota_bytes: u64, ordered: bool) -> (Arc<Epochs>, RecordTable) {
    let epochs = Epochs::new();
    let config = TableConfig { mode, quota_bytes, ordered, ..TableConfig::default() };
    (Arc::clone(&epochs), RecordTable::with_seed(config, epochs, 7))
}

fn open_table() -> (Arc<Epochs>, RecordTable) {
    table(StorageMode::Store, u64::MAX)
}

fn put(table: &RecordTable, participant: &Participant, key: &[u8], value: &[u8]) -> u64 {
    table.put(participant, table.hash(key), key, value, &WriteOptions::default(), 0).expect("there is room")
}

fn get(table: &RecordTable, participant: &Participant, key: &[u8]) -> Option<Vec<u8>> {
    let guard = participant.guard();
    table.get(&guard, table.hash(key), key, 0).map(|record| record.value().to_vec())
}

fn scan_all(table: &RecordTable, participant: &mut Participant, limit: usize, now_ms: u64) -> Vec<Vec<u8>> {
    let (mut cursor, mut seen) = (0, Vec::new());
    loop {
        let guard = participant.guard();
        let mut shown = 0;
        let next = table.scan(&guard, cursor, limit, now_ms, &mut |record| {
            shown += 1;
            seen.push(record.key().to_vec());
        });
        assert!(shown <= limit, "a scan shows no more than it was asked for");
        participant.quiescent();
        match next {
            Some(next) => cursor = next,
            None => return seen,
        }
    }
}

/// Returns the keys of a span, `limit` at most, read in as many calls as it takes.
fn range_all(
    table: &RecordTable,
    guard: &EpochGuard<'_>,
    span: KeyRange<'_>,
    limit: usize,
    now_ms: u64,
) -> Vec<Vec<u8>> {
    let (mut left, mut seen) = (span, Vec::new());
    while seen.len() < limit {
        let most = limit - seen.len();
        let before = seen.len();
        let progress = table.range(guard, &mut left, most, now_ms, &mut |record| seen.push(record.key().to_vec()));
        assert!(seen.len() - before <= most, "a range shows no more than it was asked for");
        if progress.expect("the table is ordered") == RangeProgress::Finished {
            break;
        }
    }
    seen
}

/// Announces quiescent points until nothing waits to be freed.
fn settle(epochs: &Epochs, participant: &mut Participant) {
    for _ in 0..10_000 {
        participant.quiescent();
        if epochs.stats().limbo_items == 0 {
            return;
        }
    }
    panic!("still held back: {:?}", epochs.stats());
}

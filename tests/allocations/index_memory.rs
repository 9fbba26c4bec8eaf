//! Promise: deleted records of an ordered table take no memory in its index, whatever ranges went over it. The same
//! holds for records that a clear removed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::alone::ran_alone;
use crate::counting::BYTES;
use sandstorm_store::{
    Epochs, KeyRange, Participant, RangeProgress, RecordTable, StoreCondition, TableConfig, WriteOptions,
};

const KEYS: u16 = 100;
const KEY_BYTES: usize = 40 << 10;
const ROUNDS: usize = 20;

fn key(number: u16) -> Vec<u8> {
    [&number.to_be_bytes()[..], &[7; KEY_BYTES]].concat()
}

/// Walks over all keys; returns their number.
fn range(table: &RecordTable, participant: &Participant, backward: bool) -> usize {
    let guard = participant.guard();
    let (mut span, mut shown) = (KeyRange::new(b"", b"", backward), 0);
    while table.range(&guard, &mut span, 64, 0, &mut |_| shown += 1) == Ok(RangeProgress::More) {}
    shown
}

#[test]
fn deleted_and_cleared_keys_take_no_memory_whatever_went_over_them() {
    if ran_alone(module_path!(), "deleted_and_cleared_keys_take_no_memory_whatever_went_over_them") {
        return;
    }
    let epochs = Epochs::new();
    let config = TableConfig { ordered: true, ..TableConfig::default() };
    let table = RecordTable::with_seed(config, Arc::clone(&epochs), 1);
    let mut participant = epochs.register();
    let mut after = Vec::new();
    for round in 0..ROUNDS {
        for key in (0..KEYS).map(key) {
            table.put(&participant, table.hash(&key), &key, b"", &WriteOptions::default(), 0).expect("room");
        }
        assert_eq!([false, true].map(|backward| range(&table, &participant, backward)), [usize::from(KEYS); 2]);
        if round % 2 == 0 {
            table.clear(&participant).expect("no log");
        }
        for key in (0..KEYS).map(key) {
            let deleted = table.delete(&participant, table.hash(&key), &key, StoreCondition::Always, 0);
            assert_eq!(deleted, Ok(round % 2 == 1));
        }
        while epochs.stats().limbo_items != 0 || after.len() == round {
            participant.quiescent();
            after.resize(round + 1, BYTES.load(Relaxed));
        }
    }
    let (first, last) = (after[1], BYTES.load(Relaxed));
    assert!(last < first + KEY_BYTES * usize::from(KEYS), "from {first} to {last} bytes in {ROUNDS} rounds");
}

//! Promise: a scan that waits for the disk shows every record, with memory for few of them, and waits for no more at
//! once than fit into a part of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cold::{ColdTable, cold_table};
use crate::WriteOptions;
use crate::limits::AWAITED_MEMORY_ONE_IN;
use crate::spill::ColdMiss;

const QUOTA_BYTES: u64 = 256 << 10;
/// Times that one step is made again.
const TRIES: usize = 8;

/// Scans the whole table; returns how often each key was shown, and the most records that one step has waited for.
fn scan(cold: &mut ColdTable, limit: usize) -> (BTreeMap<Vec<u8>, usize>, usize) {
    let (mut next, mut tries, mut most) = (Some(0), 0, 0);
    let mut shown = BTreeMap::<Vec<u8>, usize>::new();
    while let Some(cursor) = next {
        let (table, mut page) = (Arc::clone(&cold.table), Vec::new());
        let guard = cold.participant.guard();
        let after = table.scan_awaited((&guard, cold.participant.shown()), (cursor, limit), 1, &mut |record| {
            page.push(record.key().to_vec());
        });
        let misses = cold.participant.shown().take_cold();
        if misses.is_empty() {
            assert!(page.len() <= limit);
            page.into_iter().for_each(|key| *shown.entry(key).or_default() += 1);
            (next, tries) = (after, 0);
            continue;
        }
        assert!(page.is_empty(), "it waits for the first record alone, and for those behind it");
        (tries, most) = (tries + 1, most.max(misses.len()));
        assert!(tries <= TRIES, "the first record does not stay in memory");
        let ticket = ColdMiss::fetch(misses, 1, || {});
        cold.participant.quiescent();
        cold.pool.drive(&mut cold.participant);
        assert_eq!((ticket.is_done(), ticket.error()), (true, None));
    }
    (shown, most)
}

/// A table that was filled with so many records of so many bytes.
fn filled(records: u32, bytes: usize) -> ColdTable {
    let mut cold = cold_table(QUOTA_BYTES, 128 << 20);
    for number in 0..records {
        cold.put(&number.to_le_bytes(), &vec![number as u8; bytes], &WriteOptions::default(), 1).expect("room");
        cold.pool.drive(&mut cold.participant);
    }
    cold
}

#[test]
fn all_records_are_shown_with_memory_for_a_few_of_them() {
    for (records, bytes) in [(2_000_u32, 300), (300, 20_000), (40, 100_000)] {
        let mut cold = filled(records, bytes);
        let stats = cold.table.spill_stats().expect("a spill file");
        assert!(stats.cold_records > u64::from(records) / 2, "{stats:?}");
        for limit in [1, 64, 1_000] {
            let (shown, most) = scan(&mut cold, limit);
            assert_eq!(shown.len(), records as usize, "{bytes} bytes, {limit} at a time");
            assert!(shown.values().all(|times| *times == 1), "nothing has changed meanwhile");
            let read_bytes = (bytes as u64).next_multiple_of(4_096);
            let fit = (QUOTA_BYTES / AWAITED_MEMORY_ONE_IN / read_bytes).max(1) as usize;
            assert!(most <= fit.min(limit), "{most} at once, {fit} fit");
        }
    }
}

//! The load of each slot of the keys: accesses a second, from accesses that are sampled for some seconds, and bytes of
//! memory, from records that are sampled. [docs/cluster.md](../../../docs/cluster.md#levelling-loads) is the operator's
//! page.
//!
//! A table's rate comes from its samples; a slot has the part of it that it has of the table's samples. So numbers of
//! slots with few accesses are rough, and those of ranges of many slots are near.

use std::collections::BTreeMap;
use std::time::Duration;

use hashbrown::HashMap;
use sandstorm_cluster::slot_balance::SlotLoad;
use sandstorm_net::slots::slot_of;
use sandstorm_store::{Participant, RecordTable, SampledAccess};

use crate::limits::{LOAD_SAMPLES, LOAD_TABLE_PLACES, LOAD_TABLE_RECORDS};
use crate::record_sample::{SampleSize, visit_sample};

/// Accesses that were drawn of a table.
#[derive(Debug, Default)]
struct TableTally {
    accesses: u64,
    took: Duration,
    slots: Vec<u16>,
    /// Whether one was drawn that was asked for before this began: its time says nothing.
    has_begun: bool,
}

/// Accesses that were drawn of all tables, by the ids of the tenant and of the table.
#[derive(Debug, Default)]
pub(crate) struct AccessTally {
    tables: HashMap<(u32, u64), TableTally>,
    samples: u64,
}

impl AccessTally {
    /// Counts one.
    pub(crate) fn add(&mut self, table: (u32, u64), drawn: &SampledAccess) {
        let tally = self.tables.entry(table).or_default();
        if !std::mem::replace(&mut tally.has_begun, true) || self.samples >= LOAD_SAMPLES {
            return;
        }
        self.samples += 1;
        tally.accesses += u64::from(drawn.accesses);
        tally.took += drawn.took;
        tally.slots.push(drawn.slot);
    }

    /// Accesses of each slot a second.
    fn per_s(&self) -> BTreeMap<u16, f64> {
        let mut slots = BTreeMap::new();
        for tally in self.tables.values().filter(|tally| !tally.slots.is_empty()) {
            let table_per_s = tally.accesses as f64 / tally.took.as_secs_f64().max(1e-6);
            let each = table_per_s / tally.slots.len() as f64;
            tally.slots.iter().for_each(|slot| *slots.entry(*slot).or_insert(0.0) += each);
        }
        slots
    }
}

/// Bytes of memory of a table's records by their slots: of all records of a small table, of as many of a large one.
pub(crate) fn add_bytes(
    table: &RecordTable,
    participant: &Participant,
    (seed, now_ms): (u64, u64),
    slots: &mut BTreeMap<u16, f64>,
) {
    let mut seen: HashMap<u16, u64> = HashMap::new();
    let mut seen_bytes = 0;
    let size = SampleSize { records: LOAD_TABLE_RECORDS, places: LOAD_TABLE_PLACES, seed };
    visit_sample(table, participant, size, now_ms, &mut |record| {
        let bytes = (record.key().len() + record.value().len()) as u64 + RECORD_BYTES;
        *seen.entry(slot_of(record.key())).or_default() += bytes;
        seen_bytes += bytes;
    });
    if seen_bytes > 0 {
        let each = table.stats().bytes as f64 / seen_bytes as f64;
        seen.into_iter().for_each(|(slot, bytes)| *slots.entry(slot).or_insert(0.0) += bytes as f64 * each);
    }
}

/// What a record takes besides its key and its value, about: only the proportions of records matter.
const RECORD_BYTES: u64 = 40;

/// The loads of all slots that have any.
pub(crate) fn slot_loads(tally: &AccessTally, bytes: &BTreeMap<u16, f64>) -> Vec<SlotLoad> {
    let mut all: BTreeMap<u16, SlotLoad> = BTreeMap::new();
    for (slot, accesses_per_s) in tally.per_s() {
        all.entry(slot).or_default().accesses_per_s = accesses_per_s;
    }
    for (slot, bytes) in bytes {
        all.entry(*slot).or_default().bytes = *bytes as u64;
    }
    all.into_iter().map(|(slot, load)| SlotLoad { slot, ..load }).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sandstorm_store::{Epochs, TableConfig, WriteOptions};

    use super::*;

    #[test]
    fn rates_of_tables_are_divided_by_the_slots_of_their_draws() {
        let mut tally = AccessTally::default();
        let drawn = |slot, accesses, ms| SampledAccess {
            hash: 1,
            prefix: vec![1],
            key_len: 1,
            slot,
            accesses,
            took: Duration::from_millis(ms),
            is_write: false,
        };
        // The first one was waited for all night.
        tally.add((1, 1), &drawn(9, 5, 10_000_000));
        for _ in 0..30 {
            tally.add((1, 1), &drawn(9, 30, 10));
        }
        for _ in 0..10 {
            tally.add((1, 1), &drawn(11, 30, 10));
        }
        tally.add((2, 1), &drawn(9, 1, 1));
        tally.add((2, 1), &drawn(9, 10, 100));
        tally.add((3, 1), &drawn(77, 1, 1));
        let bytes = [(9, 1000.4), (12, 7.0)].into();
        let loads: Vec<_> = slot_loads(&tally, &bytes)
            .into_iter()
            .map(|load| (load.slot, load.accesses_per_s.round() as u64, load.bytes))
            .collect();
        assert_eq!((tally.samples, loads), (41, vec![(9, 2_350, 1_000), (11, 750, 0), (12, 0, 7)]));
    }

    #[test]
    fn bytes_of_slots_sum_up_to_those_of_the_table_whether_all_is_looked_at_or_a_part() {
        for records in [500, 3 * LOAD_TABLE_RECORDS] {
            let epochs = Epochs::new();
            let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 5);
            let participant = epochs.register();
            for number in 0..records {
                // A tenth is in one slot, and is large.
                let (key, bytes) =
                    if number % 10 == 0 { (format!("{{x}}{number}"), 400) } else { (format!("key{number}"), 20) };
                let hash = table.hash(key.as_bytes());
                table
                    .put(&participant, hash, key.as_bytes(), &vec![b'v'; bytes], &WriteOptions::default(), 1)
                    .expect("room");
            }
            let mut slots = BTreeMap::new();
            add_bytes(&table, &participant, (7, 1), &mut slots);
            let (whole, sum) = (table.stats().bytes as f64, slots.values().sum::<f64>());
            assert!((sum / whole - 1.0).abs() < 1e-6, "{records}: {sum} of {whole}");
            let hot = slots[&slot_of(b"{x}")] / whole;
            assert!((0.3..0.55).contains(&hot), "{records}: {hot}");
        }
    }
}

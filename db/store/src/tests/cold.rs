//! Tables larger than memory against a map: whatever leaves memory, comes back, moves on the disk or is replaced there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use proptest::prelude::*;

use crate::spill::simulated::{SimulatedSpillDevice, SpillFault};
use crate::spill::{ColdMiss, SpillPool, SpillQuota, SpillReadError, SpillRefusal};
use crate::transactions::{KeyRead, commit, snapshot};
use crate::{
    Epochs, Participant, RecordTable, RecordUpdate, ScannedRecord, StorageMode, StoreCondition, StoreError, StripeSet,
    TableConfig, WriteOptions,
};

/// A table of mode `spill` on a simulated disk, whose threads are this one.
pub(super) struct ColdTable {
    pub(super) table: Arc<RecordTable>,
    pub(super) pool: Arc<SpillPool>,
    pub(super) device: SimulatedSpillDevice,
    pub(super) epochs: Arc<Epochs>,
    pub(super) participant: Participant,
}

pub(super) fn cold_table(quota_bytes: u64, limit_bytes: u64) -> ColdTable {
    let epochs = Epochs::new();
    let config = TableConfig { mode: StorageMode::Spill, quota_bytes, ..TableConfig::default() };
    let table = Arc::new(RecordTable::with_seed(config, Arc::clone(&epochs), 7));
    let (pool, device) = (SpillPool::new(), SimulatedSpillDevice::default());
    let owner: Weak<RecordTable> = Arc::downgrade(&table);
    table.attach_spill(owner, Box::new(device.clone()), limit_bytes, (&pool, 1));
    ColdTable { table, pool, device, participant: epochs.register(), epochs }
}

impl ColdTable {
    /// Has the records read that the last operation has met; returns whether there were any.
    fn fetch(&mut self) -> Result<bool, SpillReadError> {
        let misses = self.participant.shown().take_cold();
        if misses.is_empty() {
            return Ok(false);
        }
        let ticket = ColdMiss::fetch(misses, 1, || {});
        self.participant.quiescent();
        self.pool.drive(&mut self.participant);
        assert!(ticket.is_done());
        ticket.error().map_or(Ok(true), Err)
    }

    pub(super) fn get(&mut self, key: &[u8], now_ms: u64) -> Result<Option<(Vec<u8>, u32, u64)>, SpillReadError> {
        let hash = self.table.hash(key);
        for _ in 0..4 {
            let table = Arc::clone(&self.table);
            let found = table
                .get(&self.participant.guard(), hash, key, now_ms)
                .map(|record| (record.value().to_vec(), record.flags(), record.version()));
            if !self.fetch()? {
                return Ok(found);
            }
        }
        panic!("the record does not stay in memory");
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8], write: &WriteOptions, now_ms: u64) -> Result<u64, StoreError> {
        self.table.put(&self.participant, self.table.hash(key), key, value, write, now_ms)
    }

    /// Appends to a value, by reading and writing under the lock.
    fn append(&mut self, key: &[u8], more: &[u8], now_ms: u64) -> Result<(), StoreError> {
        let (table, hash) = (Arc::clone(&self.table), self.table.hash(key));
        for _ in 0..4 {
            let update = table.update(&self.participant, hash, key, now_ms, |found| {
                let (value, flags, expires_at_ms) =
                    found.map_or((&[][..], 0, 0), |old| (old.value(), old.flags(), old.expires_at_ms()));
                RecordUpdate::Put {
                    value: crate::UpdateValue::Parts([value, more, b""]),
                    flags,
                    expires_at_ms,
                    answer: (),
                }
            });
            match update {
                Err(StoreError::Cold) => assert_eq!(self.fetch(), Ok(true)),
                other => return other.map(drop),
            }
        }
        panic!("the record does not stay in memory");
    }
}

#[test]
fn a_table_of_several_times_its_memory_keeps_everything() {
    let mut cold = cold_table(256 << 10, 64 << 20);
    let value = |number: u32| vec![number as u8; 100 + number as usize % 900];
    for number in 0..4_000_u32 {
        cold.put(&number.to_le_bytes(), &value(number), &WriteOptions::default(), 1).expect("room");
    }
    let stats = cold.table.spill_stats().expect("a spill file");
    assert!(stats.cold_records > 3_000, "{stats:?}");
    assert!(cold.table.stats().bytes <= 256 << 10);
    let before = cold.device.counts().0;
    for number in 0..4_000_u32 {
        let found = cold.get(&number.to_le_bytes(), 1).expect("read");
        assert_eq!(found.expect("it is there").0, value(number), "{number}");
    }
    let (reads, after) = (cold.device.counts().0 - before, cold.table.spill_stats().expect("a spill file"));
    assert!(reads <= 4_000 + after.copied, "one read a miss: {reads}");
    assert!(after.spilled_clean > 1_000, "what was only read leaves without a write: {after:?}");
    assert_eq!((after.read_errors, cold.table.stats().records), (0, 4_000));
    let before = cold.device.counts().0;
    for number in 10_000..12_000_u32 {
        assert_eq!(cold.get(&number.to_le_bytes(), 1), Ok(None));
    }
    assert_eq!(cold.device.counts().0, before, "no read for a key that is absent");
}

/// An operation of many keys finds them in memory at one time, whatever was read and written before: records that it
/// has waited for make no room for each other, though some stripes have few others.
#[test]
fn what_one_operation_reads_is_in_memory_together_after_a_few_tries() {
    const RECORDS: u32 = 12_000;
    const KEYS: u32 = 300;
    const TRIES: usize = 8;
    let mut cold = cold_table(2 << 20, 256 << 20);
    for number in 0..RECORDS {
        let value = vec![number as u8; 200 + number as usize % 1_000];
        cold.put(&number.to_le_bytes(), &value, &WriteOptions::default(), 1).expect("room");
        cold.pool.drive(&mut cold.participant);
    }
    let table = Arc::clone(&cold.table);
    for round in 0..100_u32 {
        // One key after another, as in the requests between.
        for number in (0..RECORDS).skip(round as usize % 7).step_by(61) {
            cold.get(&number.to_le_bytes(), 1).expect("read").expect("it is there");
        }
        let keys: Vec<u32> = (0..KEYS).map(|number| (number * 37 + round * 101) % RECORDS).collect();
        let mut misses = Vec::new();
        for _ in 0..TRIES {
            {
                let guard = cold.participant.guard();
                for key in &keys {
                    let key = key.to_le_bytes();
                    let _found = table.get(&guard, table.hash(&key), &key, 1);
                }
            }
            let missed = cold.participant.shown().take_cold();
            misses.push(missed.len());
            if missed.is_empty() {
                break;
            }
            let ticket = ColdMiss::fetch(missed, 1, || {});
            cold.participant.quiescent();
            cold.pool.drive(&mut cold.participant);
            assert!(ticket.is_done() && ticket.error().is_none());
        }
        assert_eq!(misses.last(), Some(&0), "round {round}: {misses:?}");
    }
}

#[test]
fn a_cold_key_takes_sixteen_bytes_beside_its_slot() {
    let mut cold = cold_table(1 << 20, 256 << 20);
    let value = [1; 1_000];
    let mut number = 0_u64;
    // Until only the newest are in memory: then each further key adds what a cold one takes.
    while number < 12_000 {
        cold.put(&number.to_le_bytes(), &value, &WriteOptions::default(), 1).expect("room");
        number += 1;
        cold.pool.drive(&mut cold.participant);
    }
    let stats = cold.table.spill_stats().expect("a spill file");
    let hot = number - stats.cold_records;
    let hot_bytes = hot * crate::record::allocation_bytes(8, 1_000, 0, 0) as u64;
    let slots = number * crate::limits::RECORD_CHARGE_BYTES;
    let rest = cold.table.stats().bytes - hot_bytes - slots;
    // With the overflow buckets.
    assert!(rest <= stats.cold_records * (16 + 8), "{rest} for {}", stats.cold_records);
    assert_eq!(crate::record::cold_allocation_bytes(0), 16);
}

#[test]
fn a_write_that_cannot_make_room_says_why_and_reads_go_on() {
    let mut cold = cold_table(256 << 10, 64 << 20);
    let value = [1; 1_000];
    cold.device.set_fault(Some(SpillFault::NoSpace));
    let refused = (0..100_000_u32).find_map(|number| {
        if number % 16 == 0 {
            cold.pool.drive(&mut cold.participant);
        }
        cold.put(&number.to_le_bytes(), &value, &WriteOptions::default(), 1).err().map(|error| (number, error))
    });
    let Some((first, error)) = refused else { panic!("memory has an end") };
    assert_eq!(error, StoreError::NotSpilled(SpillRefusal::NoSpace));
    for number in 0..first {
        assert!(matches!(cold.get(&number.to_le_bytes(), 1), Ok(Some(_))), "{number} of {first}");
    }
    cold.device.set_fault(None);
    cold.pool.drive(&mut cold.participant);
    cold.put(&first.to_le_bytes(), &value, &WriteOptions::default(), 1).expect("it goes on by itself");
}

#[test]
fn a_damaged_block_is_an_error_for_its_records_alone() {
    let mut cold = cold_table(256 << 10, 64 << 20);
    for number in 0..2_000_u32 {
        cold.put(&number.to_le_bytes(), &[number as u8; 500], &WriteOptions::default(), 1).expect("room");
        cold.pool.drive(&mut cold.participant);
    }
    cold.device.flip(40 * 4096 + 300, 1);
    let mut damaged = 0;
    for number in 0..2_000_u32 {
        match cold.get(&number.to_le_bytes(), 1) {
            Ok(found) => assert_eq!(found.expect("it is there").0, [number as u8; 500]),
            Err(error) => {
                assert_eq!(error, SpillReadError::Checksum);
                damaged += 1;
                // It can be written again.
                cold.put(&number.to_le_bytes(), &[number as u8; 500], &WriteOptions::default(), 1).expect("room");
            }
        }
    }
    assert!((1..=8).contains(&damaged), "{damaged}");
}

#[test]
fn conditions_and_deletes_need_no_read_and_many_wait_for_one() {
    let mut cold = cold_table(256 << 10, 64 << 20);
    let mut versions = Vec::new();
    for number in 0..2_000_u32 {
        versions.push(cold.put(&number.to_le_bytes(), &[1; 500], &WriteOptions::default(), 1).expect("room"));
        cold.pool.drive(&mut cold.participant);
    }
    let before = cold.device.counts().0;
    let with = |condition| WriteOptions { condition, ..WriteOptions::default() };
    assert_eq!(cold.put(&0_u32.to_le_bytes(), b"", &with(StoreCondition::Absent), 1), Err(StoreError::Conflict));
    assert_eq!(cold.put(&1_u32.to_le_bytes(), b"", &with(StoreCondition::Version(0)), 1), Err(StoreError::Conflict));
    assert!(cold.put(&1_u32.to_le_bytes(), b"new", &with(StoreCondition::Version(versions[1])), 1).is_ok());
    let delete = |cold: &ColdTable, number: u32| {
        let key = number.to_le_bytes();
        cold.table.delete(&cold.participant, cold.table.hash(&key), &key, StoreCondition::Always, 1)
    };
    assert_eq!((delete(&cold, 2), delete(&cold, 2)), (Ok(true), Ok(false)));
    assert_eq!(cold.device.counts().0, before);
    // Ten that ask for one record wait for one read.
    let woken = Arc::new(AtomicUsize::new(0));
    let key = 5_u32.to_le_bytes();
    let tickets: Vec<_> = (0..10)
        .map(|_| {
            assert!(cold.table.get(&cold.participant.guard(), cold.table.hash(&key), &key, 1).is_none());
            let woken = Arc::clone(&woken);
            ColdMiss::fetch(cold.participant.shown().take_cold(), 1, move || {
                woken.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    cold.pool.drive(&mut cold.participant);
    assert!(tickets.iter().all(|ticket| ticket.is_done() && ticket.error().is_none()));
    assert_eq!((woken.load(Ordering::Relaxed), cold.device.counts().0), (10, before + 1));
}

#[test]
fn transactions_and_snapshots_see_cold_records() {
    let mut cold = cold_table(256 << 10, 64 << 20);
    for number in 0..2_000_u32 {
        cold.put(&number.to_le_bytes(), &[number as u8; 500], &WriteOptions::default(), 1).expect("room");
        cold.pool.drive(&mut cold.participant);
    }
    let keys: Vec<[u8; 4]> = (0..30_u32).map(|number| (number * 50).to_le_bytes()).collect();
    let table = Arc::clone(&cold.table);
    let hashed: Vec<(u64, &[u8])> = keys.iter().map(|key| (table.hash(key), &key[..])).collect();
    let mut tries = 0;
    loop {
        let read: Vec<Option<Vec<u8>>> = {
            let guard = cold.participant.guard();
            let records = snapshot(&cold.participant, &guard, &table, &hashed, 1);
            records.iter().map(|record| record.map(|record| record.value().to_vec())).collect()
        };
        if !cold.fetch().expect("read") {
            let all = read.iter().zip(0_u32..).all(|(value, at)| value.as_deref() == Some(&[(at * 50) as u8; 500][..]));
            assert!(all);
            break;
        }
        tries += 1;
    }
    assert_eq!(tries, 1, "all of them at once");
    // A version that was read is still valid after its record has left memory.
    let version = cold.get(&keys[0], 1).expect("read").expect("there").2;
    for number in 5_000..6_000_u32 {
        cold.put(&number.to_le_bytes(), &[1; 500], &WriteOptions::default(), 1).expect("room");
        cold.pool.drive(&mut cold.participant);
    }
    let read = |version| KeyRead { table: &table, hash: hashed[0].0, key: hashed[0].1, version };
    assert!(commit(&cold.participant, &[read(version)], &mut [], 1).is_ok());
    assert!(commit(&cold.participant, &[read(version + 1)], &mut [], 1).is_err());
}

/// One step of the model.
#[derive(Clone, Debug)]
enum ColdStep {
    Put(u8, u16, u8),
    Get(u8),
    Delete(u8),
    Append(u8, u8),
    Expiring(u8, u8),
    Pass(u8),
    Filler(u8),
    Clear,
    PutMany(u8),
}

fn cold_step() -> impl Strategy<Value = ColdStep> {
    prop_oneof![
        10 => (any::<u8>(), 0u16..6_000, any::<u8>()).prop_map(|(key, len, byte)| ColdStep::Put(key, len, byte)),
        20 => any::<u8>().prop_map(ColdStep::Get),
        4 => any::<u8>().prop_map(ColdStep::Delete),
        4 => (any::<u8>(), any::<u8>()).prop_map(|(key, byte)| ColdStep::Append(key, byte)),
        4 => (any::<u8>(), 1u8..50).prop_map(|(key, ms)| ColdStep::Expiring(key, ms)),
        4 => (0u8..20).prop_map(ColdStep::Pass),
        4 => any::<u8>().prop_map(ColdStep::Filler),
        1 => Just(ColdStep::Clear),
        2 => any::<u8>().prop_map(ColdStep::PutMany),
    ]
}

/// A record of the model: value, end.
type ModelRecord = (Vec<u8>, u64);

/// Writes two records at once.
fn put_many(
    cold: &mut ColdTable,
    model: &mut BTreeMap<Vec<u8>, ModelRecord>,
    now_ms: u64,
    keys: [Vec<u8>; 2],
) -> Result<(), TestCaseError> {
    let mut stripes = StripeSet::default();
    keys.iter().for_each(|key| stripes.add(cold.table.hash(key)));
    let mut locked = cold.table.exclusive(&cold.participant, stripes);
    let mut is_done = true;
    for key in &keys {
        let hash = cold.table.hash(key);
        let put = locked.update(hash, key, now_ms, |_| RecordUpdate::Put {
            value: b"together"[..].into(),
            flags: 3,
            expires_at_ms: 0,
            answer: (),
        });
        match put {
            Ok(_) => drop(model.insert(key.clone(), (b"together".to_vec(), 0))),
            Err(error) => {
                prop_assert_eq!(error, StoreError::Cold);
                is_done = false;
            }
        }
    }
    drop(locked);
    prop_assert!(is_done != cold.fetch().expect("a sound disk"));
    Ok(())
}

fn apply(
    cold: &mut ColdTable,
    model: &mut BTreeMap<Vec<u8>, ModelRecord>,
    now_ms: &mut u64,
    step: &ColdStep,
) -> Result<(), TestCaseError> {
    let key = |number: u8| vec![b'k', number];
    let write = |expires_at_ms| WriteOptions { flags: 3, expires_at_ms, ..WriteOptions::default() };
    match step {
        ColdStep::Put(number, len, byte) => {
            let value = vec![*byte; usize::from(*len)];
            prop_assert!(cold.put(&key(*number), &value, &write(0), *now_ms).is_ok());
            model.insert(key(*number), (value, 0));
        }
        ColdStep::Expiring(number, ms) => {
            let end = *now_ms + u64::from(*ms);
            prop_assert!(cold.put(&key(*number), b"for a while", &write(end), *now_ms).is_ok());
            model.insert(key(*number), (b"for a while".to_vec(), end));
        }
        ColdStep::Get(number) => {
            let found = cold.get(&key(*number), *now_ms).expect("a sound disk").map(|(value, flags, _)| (value, flags));
            let live = model.get(&key(*number)).filter(|(_, end)| *end == 0 || *end > *now_ms);
            prop_assert_eq!(found, live.map(|(value, _)| (value.clone(), 3)));
        }
        ColdStep::Delete(number) => {
            let (key, live) = (key(*number), model.remove(&key(*number)));
            let live = live.is_some_and(|(_, end)| end == 0 || end > *now_ms);
            let hash = cold.table.hash(&key);
            let deleted = cold.table.delete(&cold.participant, hash, &key, StoreCondition::Always, *now_ms);
            prop_assert_eq!(deleted, Ok(live));
        }
        ColdStep::Append(number, byte) => {
            let live = model.get(&key(*number)).filter(|(_, end)| *end == 0 || *end > *now_ms).cloned();
            let Some((mut value, end)) = live else { return Ok(()) };
            prop_assert!(cold.append(&key(*number), &[*byte; 9], *now_ms).is_ok());
            value.extend([*byte; 9]);
            model.insert(key(*number), (value, end));
        }
        ColdStep::Pass(ms) => {
            *now_ms += u64::from(*ms);
            cold.participant.quiescent();
            cold.table.sweep(&cold.participant, *now_ms, 64);
            cold.pool.drive(&mut cold.participant);
        }
        ColdStep::Filler(round) => {
            // So many keys that the array grows, and all others leave.
            for number in 0..200_u16 {
                let key = [b'f', *round, number as u8];
                prop_assert!(cold.put(&key, &[*round; 300], &write(0), *now_ms).is_ok());
                model.insert(key.to_vec(), (vec![*round; 300], 0));
            }
            cold.pool.drive(&mut cold.participant);
        }
        ColdStep::Clear => {
            prop_assert!(cold.table.clear(&cold.participant).is_ok());
            model.clear();
        }
        ColdStep::PutMany(number) => put_many(cold, model, *now_ms, [key(*number), key(number.wrapping_add(1))])?,
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_table_larger_than_memory_is_a_map(steps in prop::collection::vec(cold_step(), 1..150)) {
        let mut cold = cold_table(192 << 10, 48 << 20);
        let (mut model, mut now_ms) = (BTreeMap::new(), 1_000);
        for step in &steps {
            apply(&mut cold, &mut model, &mut now_ms, step)?;
            prop_assert!(cold.table.stats().bytes <= 192 << 10);
        }
        cold.pool.drive(&mut cold.participant);
        for (key, (value, end)) in &model {
            let found = cold.get(key, now_ms).expect("a sound disk").map(|(value, ..)| value);
            prop_assert_eq!(found, Some(value.clone()).filter(|_| *end == 0 || *end > now_ms));
        }
        // What is on the disk is what the table refers to.
        let table = Arc::clone(&cold.table);
        table.clear(&cold.participant).expect("no log");
        prop_assert_eq!(table.stats().bytes, 0);
    }
}

#[test]
fn cold_records_that_are_read_together_are_those_that_were_met_and_take_few_reads() {
    let mut cold = cold_table(256 << 10, 64 << 20);
    let value =
        |number: u32| vec![number as u8; if number.is_multiple_of(50) { 9_000 } else { 100 + number as usize % 900 }];
    for number in 0..4_000_u32 {
        cold.put(&number.to_le_bytes(), &value(number), &WriteOptions::default(), 1).expect("room");
    }
    let table = Arc::clone(&cold.table);
    let meet = |cold: &ColdTable| {
        let (mut met, mut hot, mut cursor) = (Vec::new(), 0, Some(0));
        while let Some(at) = cursor {
            let guard = cold.participant.guard();
            cursor = table.scan_all(&guard, (at, 100), 1, &mut |_| hot += 1, &mut met);
        }
        (met, hot)
    };
    let (mut met, hot) = meet(&cold);
    assert!(met.len() > 3_000 && met.len() + hot == 4_000);
    let (before, mut found) = (cold.device.counts().0, BTreeMap::new());
    let shown = table.read_cold_together(&mut cold.participant, &mut met, &|| true, &mut |record| {
        let number = u32::from_le_bytes(record.key.try_into().expect("four bytes"));
        assert!(record.value == value(number), "{number}");
        found.insert(number, record.version);
    });
    assert_eq!((shown, found.len()), (Ok(met.len() as u64), met.len()));
    let reads = cold.device.counts().0 - before;
    assert!(reads * 20 < met.len() as u64, "{reads} reads for {} records", met.len());
    // Some are replaced, deleted or moved meanwhile: all others are shown, and those as they were met or not at all.
    cold.participant.online();
    let (mut met, _) = meet(&cold);
    for number in (0..4_000_u32).step_by(7) {
        cold.put(&number.to_le_bytes(), b"other", &WriteOptions::default(), 1).expect("room");
        cold.pool.drive(&mut cold.participant);
        cold.participant.online();
    }
    let mut again = BTreeMap::new();
    let shown = table.read_cold_together(&mut cold.participant, &mut met, &|| true, &mut |record| {
        let number = u32::from_le_bytes(record.key.try_into().expect("four bytes"));
        assert_eq!(found.get(&number), Some(&record.version), "{number}");
        assert!(record.value == value(number), "{number}");
        again.insert(number, ());
    });
    assert_eq!(shown, Ok(again.len() as u64));
    assert!(found.keys().all(|number| number.is_multiple_of(7) || again.contains_key(number)));
    // It ends when it is told to, and says what cannot be read.
    cold.participant.online();
    let (mut met, _) = meet(&cold);
    assert_eq!(table.read_cold_together(&mut cold.participant, &mut met, &|| false, &mut |_| {}), Ok(0));
    cold.device.set_fault(Some(SpillFault::ReadError));
    let failed = table.read_cold_together(&mut cold.participant, &mut met, &|| true, &mut |_| {});
    assert_eq!(failed, Err(SpillReadError::Device));
}

#[test]
fn a_cold_record_that_has_changed_since_it_was_met_is_shown_as_it_is_and_counts_for_the_quota() {
    let mut cold = cold_table(256 << 10, 64 << 20);
    let value = |number: u32| vec![number as u8; 500];
    let put = |cold: &ColdTable, number: u32, value: &[u8]| {
        cold.put(&number.to_le_bytes(), value, &WriteOptions::default(), 1).expect("room");
    };
    (0..2_000).for_each(|number| put(&cold, number, &value(number)));
    let table = Arc::clone(&cold.table);
    let (mut met, mut last_hash) = (Vec::new(), None);
    let mut in_memory = 0;
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let guard = cold.participant.guard();
        cursor = table.scan_each(&guard, (at, 100), 1, &mut |record| {
            let hash = match record {
                ScannedRecord::InMemory(record) => {
                    in_memory += 1;
                    table.hash(record.key())
                }
                ScannedRecord::Cold(record) => {
                    met.push(record);
                    record.hash()
                }
            };
            assert!(last_hash.replace(hash) < Some(hash), "in the order of their hashes");
        });
    }
    assert!(met.len() > 1_000 && met.len() + in_memory == 2_000);
    // All are removed, and the disk's room is given to others; every third one is there again, most of them cold.
    table.clear(&cold.participant).expect("no log");
    for number in (0..6_000_u32).step_by(3) {
        put(&cold, number, b"other");
        cold.pool.drive(&mut cold.participant);
        cold.participant.online();
    }
    let before = table.stats().bytes;
    let (mut shown, mut removed) = (0, 0);
    for record in &met {
        let found = table.read_cold_now(&mut cold.participant, record, &mut |found| {
            let number = u32::from_le_bytes(found.key.try_into().expect("four bytes"));
            assert!(number.is_multiple_of(3) && found.value == b"other", "{number}");
            shown += 1;
        });
        removed += usize::from(!found.expect("a sound disk"));
    }
    assert!(shown > 300 && shown + removed == met.len(), "{shown} shown, {removed} removed of {}", met.len());
    assert_eq!(table.stats().bytes, before, "nothing came back into memory");
    // The reads are those of the tenant that reads: the owner's quota is whole when another one has used up its own.
    let (reads, quota) =
        (cold.table.spill_stats().expect("a file").reads, SpillQuota { reads_per_second: 10, ..SpillQuota::UNLIMITED });
    [1, 2].into_iter().for_each(|tenant| cold.pool.set_quota(tenant, quota));
    let allowed = |reader| met.iter().take_while(|record| table.may_read_cold(record, reader, Instant::now())).count();
    let (by_grantee, by_owner) = (allowed(2), allowed(1));
    assert!((1..100).contains(&by_grantee) && by_owner >= 1, "{by_grantee} and {by_owner} reads of ten a second");
    assert_eq!(table.spill_stats().expect("a file").reads - reads, (by_grantee + by_owner) as u64);
}

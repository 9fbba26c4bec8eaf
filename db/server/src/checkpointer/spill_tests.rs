//! Promise: a table larger than memory with a log comes back as it was, from a checkpoint that reads its cold records
//! from the disk, and from the log behind it. A cold record that cannot be read fails the checkpoint; nothing is lost.

use std::collections::BTreeMap;
use std::sync::Weak;

use proptest::prelude::*;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::disk::simulated::SimulatedDisk;
use sandstorm_log::{ChangeKind, LogOptions, RecoveredLog};
use sandstorm_store::spill::SpillPool;
use sandstorm_store::spill::simulated::{SimulatedSpillDevice, SpillFault};
use sandstorm_store::{
    RestoredRecord, StorageMode, StoreCondition, StoreError, TableConfig, TableLogging, WriteOptions,
};

use super::*;

const NUMBER: u64 = 7;
const KEYS: u32 = 300;

/// A table of mode `spill` on a simulated disk, whose threads are this one.
struct SpillTable {
    table: Arc<RecordTable>,
    pool: Arc<SpillPool>,
    device: SimulatedSpillDevice,
    participant: Participant,
}

impl SpillTable {
    fn new(seed: u64) -> SpillTable {
        let epochs = Epochs::new();
        let config = TableConfig { mode: StorageMode::Spill, quota_bytes: 64 << 10, ..TableConfig::default() };
        let table = Arc::new(RecordTable::with_seed(config, Arc::clone(&epochs), seed));
        let (pool, device) = (SpillPool::new(), SimulatedSpillDevice::default());
        let owner: Weak<RecordTable> = Arc::downgrade(&table);
        table.attach_spill(owner, Box::new(device.clone()), 256 << 20, (&pool, 1));
        SpillTable { table, pool, device, participant: epochs.register() }
    }

    fn put(&mut self, key: u32, value: &[u8]) -> u64 {
        let key = key.to_le_bytes();
        loop {
            let (hash, write) =
                (self.table.hash(&key), WriteOptions { flags: value.len() as u32, ..Default::default() });
            match self.table.put(&self.participant, hash, &key, value, &write, 1) {
                Err(StoreError::NotSpilled(_)) => self.pool.drive(&mut self.participant),
                written => return written.expect("room"),
            }
        }
    }

    fn delete(&mut self, key: u32) -> bool {
        let key = key.to_le_bytes();
        let always = StoreCondition::Always;
        self.table.delete(&self.participant, self.table.hash(&key), &key, always, 1).expect("room")
    }

    /// All records, cold ones too: value, flags, version.
    fn contents(&mut self) -> BTreeMap<Vec<u8>, (Vec<u8>, u32, u64)> {
        let (mut found, mut cold, mut cursor) = (BTreeMap::new(), Vec::new(), Some(0));
        while let Some(at) = cursor {
            let guard = self.participant.guard();
            let hot = &mut |record: RecordRef<'_>| {
                found.insert(record.key().to_vec(), (record.value().to_vec(), record.flags(), record.version()));
            };
            cursor = self.table.scan_all(&guard, (at, 100), 1, hot, &mut cold);
        }
        let table = Arc::clone(&self.table);
        for record in &cold {
            let is_there = table.read_cold(&mut self.participant, record, &mut |record| {
                found.insert(record.key.to_vec(), (record.value.to_vec(), record.flags, record.version));
            });
            assert_eq!(is_there, Ok(true));
        }
        found
    }

    fn cold_records(&self) -> u64 {
        self.table.spill_stats().expect("a spill file").cold_records
    }
}

/// The table that a start makes of a log.
fn restored(disk: &Arc<SimulatedDisk>) -> SpillTable {
    let mut after = SpillTable::new(99);
    let disk = Arc::clone(disk) as Arc<dyn LogDisk>;
    let table = Arc::clone(&after.table);
    let mut waits = 0;
    RecoveredLog::read(disk, LogOptions::default(), &mut |change, _| {
        let LoggedChange { kind, version, expires_at_ms, flags, key, value, .. } = *change;
        assert_eq!(change.table, NUMBER);
        match kind {
            ChangeKind::Put | ChangeKind::Arrive => {
                let record = RestoredRecord { version, key, value, flags, expires_at_ms };
                table.restore_record(&after.participant, &record, 1).expect("room");
            }
            ChangeKind::Delete | ChangeKind::Expire | ChangeKind::Leave => {
                table.restore_delete(&after.participant, key, version).expect("deleted")
            }
            ChangeKind::Clear => table.restore_clear(&mut after.participant, version).expect("cleared"),
            ChangeKind::MakeTable => table.raise_versions(&after.participant, version),
            ChangeKind::DropTable => {}
        }
        after.participant.quiescent();
        waits += 1;
        if waits % 16 == 0 {
            after.pool.drive(&mut after.participant);
        }
        Ok(())
    })
    .expect("sound");
    after
}

fn logged(disk: &Arc<SimulatedDisk>, spill: &SpillTable) -> Arc<ChangeLog> {
    let options = LogOptions { segment_bytes: 64 << 20, feed_bytes: 0, ..LogOptions::default() };
    let disk = Arc::clone(disk) as Arc<dyn LogDisk>;
    let log = RecoveredLog::read(disk, options, &mut |_, _| Ok(())).expect("empty").start().expect("started");
    spill.table.set_logging(&log, NUMBER, TableLogging::AtOnce);
    log
}

fn checkpoint(log: &Arc<ChangeLog>, spill: &mut SpillTable) -> Result<Option<u64>, LogError> {
    let mut writer = CheckpointWriter::begin(log)?;
    let table = Arc::clone(&spill.table);
    match write_table((&table, "a/large"), &mut writer, &mut spill.participant, &AtomicBool::new(false)) {
        Ok(records) => writer.finish().map(|_| records),
        Err(error) => {
            writer.abandon();
            Err(error)
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u32, u8),
    Delete(u32),
    Clear,
    Checkpoint,
    Drive,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => (0..KEYS, any::<u8>()).prop_map(|(key, byte)| Step::Put(key, byte)),
        10 => (0..KEYS).prop_map(Step::Delete),
        1 => Just(Step::Clear),
        2 => Just(Step::Checkpoint),
        2 => Just(Step::Drive),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_is_cold_comes_back(steps in proptest::collection::vec(step(), 400..900)) {
        let (disk, mut spill) = (Arc::new(SimulatedDisk::default()), SpillTable::new(3));
        let log = logged(&disk, &spill);
        let mut model = BTreeMap::new();
        for step in &steps {
            match *step {
                Step::Put(key, byte) => {
                    let value = vec![byte; 200 + usize::from(byte) * 8];
                    let version = spill.put(key, &value);
                    model.insert(key.to_le_bytes().to_vec(), (value.clone(), value.len() as u32, version));
                }
                Step::Delete(key) => {
                    let was_there = model.remove(key.to_le_bytes().as_slice()).is_some();
                    prop_assert_eq!(spill.delete(key), was_there);
                }
                Step::Clear => {
                    spill.table.clear(&spill.participant).expect("room");
                    model.clear();
                }
                Step::Checkpoint => {
                    let written = checkpoint(&log, &mut spill).expect("written");
                    prop_assert_eq!(written, Some(model.len() as u64));
                }
                Step::Drive => spill.pool.drive(&mut spill.participant),
            }
        }
        prop_assert!(log.wait(log.end(), Duration::from_secs(30)));
        prop_assert_eq!(&spill.contents(), &model);
        drop(log);
        let mut after = restored(&disk);
        prop_assert_eq!(&after.contents(), &model);
        let quota = after.table.quota_bytes();
        prop_assert!(after.table.stats().bytes <= quota + quota / 8, "{}", after.table.stats().bytes);
    }
}

#[test]
fn a_checkpoint_fails_by_name_while_a_cold_record_cannot_be_read_and_nothing_is_lost() {
    let (disk, mut spill) = (Arc::new(SimulatedDisk::default()), SpillTable::new(3));
    let log = logged(&disk, &spill);
    for key in 0..KEYS {
        spill.put(key, &[key as u8; 1_000]);
    }
    spill.pool.drive(&mut spill.participant);
    assert!(spill.cold_records() > 100);
    let before = spill.contents();
    spill.device.set_fault(Some(SpillFault::ReadError));
    let error = checkpoint(&log, &mut spill).expect_err("it cannot be read").to_string();
    assert!(error.contains("a/large") && error.contains("cold record"), "{error}");
    assert!(log.wait(log.end(), Duration::from_secs(30)));
    assert_eq!(restored(&disk).contents(), before, "the log has it");
    spill.device.set_fault(None);
    assert_eq!(checkpoint(&log, &mut spill).expect("written"), Some(u64::from(KEYS)));
    assert_eq!(restored(&disk).contents(), before);
}

#[test]
fn a_start_says_that_the_disk_of_cold_records_is_full() {
    let mut after = SpillTable::new(99);
    after.device.set_fault(Some(SpillFault::NoSpace));
    let refused = (0..100_000_u32).find_map(|number| {
        let key = number.to_le_bytes();
        let record = RestoredRecord { version: 1, key: &key, value: &[1; 1_000], flags: 0, expires_at_ms: 0 };
        // As the threads of the pool would.
        after.pool.drive(&mut after.participant);
        after.table.restore_record(&after.participant, &record, 1).err()
    });
    assert!(matches!(refused, Some(StoreError::NotSpilled(_))), "{refused:?}");
}

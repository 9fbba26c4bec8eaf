//! Promise: what a table logs makes the same table again: keys, values, versions, flags, expiry; units of several
//! changes whole or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_log::disk::LogDisk;
use sandstorm_log::disk::simulated::SimulatedDisk;
use sandstorm_log::{ChangeKind, ChangeLog, CheckpointWriter, LogOptions, LoggedChange, RecoveredLog};

use super::{StorageMode, scaled};
use crate::broken_rules::{LogRule, break_rule};
use crate::transactions::{KeyChange, NewRecord, commit};
use crate::{
    Epochs, Participant, RecordTable, RecordUpdate, RestoredRecord, StoreCondition, StoreError, StripeSet, TableConfig,
    TableLogging, WriteOptions,
};

pub(super) const LONG: Duration = Duration::from_secs(60);

/// Value, version, flags and expiry of each key.
pub(super) type TableContent = BTreeMap<Vec<u8>, (Vec<u8>, u64, u32, u64)>;

fn content(table: &RecordTable, participant: &Participant, now_ms: u64) -> TableContent {
    let (guard, mut cursor, mut found) = (participant.guard(), Some(0), TableContent::new());
    while let Some(at) = cursor {
        cursor = table.scan(&guard, at, 100, now_ms, &mut |record| {
            let of = (record.value().to_vec(), record.version(), record.flags(), record.expires_at_ms());
            found.insert(record.key().to_vec(), of);
        });
    }
    found
}

fn restore(
    table: &RecordTable,
    participant: &mut Participant,
    change: &LoggedChange<'_>,
    now_ms: u64,
) -> Result<(), StoreError> {
    let LoggedChange { kind, version, expires_at_ms, flags, key, value, .. } = *change;
    match kind {
        ChangeKind::Put | ChangeKind::Arrive => {
            table.restore_record(participant, &RestoredRecord { version, key, value, flags, expires_at_ms }, now_ms)
        }
        ChangeKind::Delete | ChangeKind::Expire | ChangeKind::Leave => table.restore_delete(participant, key, version),
        ChangeKind::Clear => table.restore_clear(participant, version),
        ChangeKind::MakeTable | ChangeKind::DropTable => {
            table.raise_versions(participant, version);
            Ok(())
        }
    }
}

/// Two tables and the log in a folder, as they are after a start with another seed of the hash.
pub(super) struct LoggedTables {
    pub(super) log: Arc<ChangeLog>,
    pub(super) participant: Participant,
    pub(super) tables: [RecordTable; 2],
}

fn start(disk: &SimulatedDisk, mode: StorageMode, seed: u64) -> LoggedTables {
    start_with(disk, mode, seed, TableLogging::AtOnce)
}

pub(super) fn start_with(disk: &SimulatedDisk, mode: StorageMode, seed: u64, logging: TableLogging) -> LoggedTables {
    start_at(disk, mode, seed, (logging, false, 0))
}

/// As above, at a time, with tables whose log may be told of records whose time is over.
pub(super) fn start_at(
    disk: &SimulatedDisk,
    mode: StorageMode,
    seed: u64,
    (logging, logs_expiry, now_ms): (TableLogging, bool, u64),
) -> LoggedTables {
    let epochs = Epochs::new();
    let mut participant = epochs.register();
    let config = TableConfig { mode, quota_bytes: 60_000, ..TableConfig::default() };
    let tables = [0, 1].map(|number| RecordTable::with_seed(config, Arc::clone(&epochs), seed + number));
    tables.iter().for_each(|table| table.set_expiry_logging(logs_expiry));
    let disk: Arc<dyn LogDisk> = Arc::new(disk.clone());
    let log = RecoveredLog::read(
        disk,
        LogOptions { segment_bytes: 8 << 20, feed_bytes: 0, ..LogOptions::default() },
        &mut |change, _| {
            restore(&tables[change.table as usize - 1], &mut participant, change, now_ms)
                .expect("it was admitted once");
            participant.quiescent();
            Ok(())
        },
    );
    let log = log.expect("sound").start().expect("started");
    for (number, table) in (1..).zip(&tables) {
        let version = table.end_restoring(&participant);
        log.append(&LoggedChange::of_table(ChangeKind::MakeTable, number, version, b"t"), false);
        table.set_logging(&log, number, logging);
    }
    assert!(log.wait(log.end(), LONG));
    LoggedTables { log, participant, tables }
}

impl LoggedTables {
    pub(super) fn contents(&self, now_ms: u64) -> [TableContent; 2] {
        [0, 1].map(|table| content(&self.tables[table], &self.participant, now_ms))
    }

    /// Makes a random change; refusals at the quota are a part of it.
    pub(super) fn change(&mut self, random: &mut SmallRng, now_ms: u64) {
        let LoggedTables { participant, tables, .. } = self;
        let table = &tables[random.random_range(0..2)];
        let key = random.random_range(0..60u32).to_le_bytes();
        let hash = table.hash(&key);
        let value = vec![random.random::<u8>(); random.random_range(0..3_000)];
        let expires_at_ms = if random.random_bool(0.2) { now_ms + random.random_range(1..200) } else { 0 };
        let flags = if random.random_bool(0.3) { random.random() } else { 0 };
        match random.random_range(0..100) {
            0..=39 => {
                let write = WriteOptions { flags, expires_at_ms, ..WriteOptions::default() };
                let _full = table.put(participant, hash, &key, &value, &write, now_ms);
            }
            40..=54 => {
                let _done = table.delete(participant, hash, &key, StoreCondition::Always, now_ms);
            }
            55..=64 => {
                let _done = table.increment(participant, table.hash(&key[..3]), &key[..3], 7, now_ms);
            }
            65..=79 => {
                let _done = table.update(participant, hash, &key, now_ms, |found| match found {
                    Some(_) if value.len() % 2 == 0 => RecordUpdate::Delete(()),
                    _ => RecordUpdate::Put { value: value[..].into(), flags, expires_at_ms, answer: () },
                });
            }
            80..=92 => {
                let becomes = Some(NewRecord { value: &value, flags, expires_at_ms });
                let mut changes = Vec::new();
                for table in tables.iter() {
                    changes.push(KeyChange { table, hash: table.hash(&key), key: &key, becomes });
                    changes.push(KeyChange { table, hash: table.hash(&key[1..]), key: &key[1..], becomes: None });
                }
                let _done = commit(participant, &[], &mut changes, now_ms);
            }
            93..=97 => {
                let mut stripes = StripeSet::default();
                [&key[..], &key[2..]].iter().for_each(|key| stripes.add(table.hash(key)));
                let mut locked = table.exclusive(participant, stripes);
                for key in [&key[..], &key[2..]] {
                    let change = RecordUpdate::Put { value: value[..].into(), flags, expires_at_ms, answer: () };
                    let _done = locked.update(table.hash(key), key, now_ms, |_| change);
                }
            }
            98 => {
                table.sweep(participant, now_ms, 10_000);
            }
            _ => table.clear(participant).expect("there is room in the log"),
        }
        participant.quiescent();
    }
}

#[test]
fn a_table_is_made_again_from_its_log_whatever_was_done_to_it() {
    for (seed, mode) in (0..scaled(12, 1) as u64).zip([StorageMode::Store, StorageMode::Cache].into_iter().cycle()) {
        let (mut disk, mut random) = (SimulatedDisk::default(), SmallRng::seed_from_u64(seed));
        let (mut now_ms, mut before) = (1_000, None);
        for life in 0..4 {
            let mut tables = start(&disk, mode, random.random());
            if let Some(before) = before {
                assert_same(&before, &tables.contents(now_ms), &format!("seed {seed}, life {life}"));
            }
            for step in 0..scaled(800, 40) {
                now_ms += random.random_range(0..3);
                tables.change(&mut random, now_ms);
                if step == 500 && life % 2 == 0 {
                    checkpoint(&mut tables);
                }
            }
            before = Some(tables.contents(now_ms));
            assert!(tables.log.wait(tables.log.end(), LONG));
            disk = disk.after_crash(seed);
            // Nothing of this life reaches the next one's disk.
            tables.log.close();
        }
    }
}

/// Fails with the first key that differs.
fn assert_same(before: &[TableContent; 2], found: &[TableContent; 2], what: &str) {
    for (before, found) in before.iter().zip(found) {
        for key in before.keys().chain(found.keys()) {
            let short = |content: &TableContent| {
                content.get(key).map(|(value, version, flags, at_ms)| (value.len(), *version, *flags, *at_ms))
            };
            assert!(before.get(key) == found.get(key), "{what}, {key:?}: {:?} {:?}", short(before), short(found));
        }
    }
}

/// A checkpoint while nothing else happens.
fn checkpoint(tables: &mut LoggedTables) {
    let mut writer = CheckpointWriter::begin(&tables.log).expect("begun");
    for table in &tables.tables {
        writer.push(&table.settle(&tables.participant, b"t").expect("logged")).expect("room");
        let (guard, mut cursor) = (tables.participant.guard(), Some(0));
        while let Some(at) = cursor {
            cursor = table.scan(&guard, at, 100, 0, &mut |record| {
                writer.push(&table.as_change(record).expect("logged")).expect("room");
            });
        }
    }
    writer.finish().expect("finished");
}

#[test]
fn versions_go_on_behind_those_of_the_log() {
    let disk = SimulatedDisk::default();
    let tables = start(&disk, StorageMode::Store, 1);
    let put = |tables: &LoggedTables, key: &[u8]| {
        let table = &tables.tables[0];
        table.put(&tables.participant, table.hash(key), key, b"v", &WriteOptions::default(), 0).expect("room")
    };
    let last = (0..50).map(|_| put(&tables, b"key")).max();
    let table = &tables.tables[0];
    table.delete(&tables.participant, table.hash(b"key"), b"key", StoreCondition::Always, 0).expect("there");
    assert!(tables.log.wait(tables.log.end(), LONG));
    let next = start(&disk.after_kill(), StorageMode::Store, 2);
    assert!(Some(put(&next, b"key")) > last);
}

#[test]
fn a_table_whose_log_is_closed_refuses_changes_and_serves_reads() {
    let disk = SimulatedDisk::default();
    let tables = start(&disk, StorageMode::Store, 1);
    let (table, participant) = (&tables.tables[0], &tables.participant);
    let put = |key: &[u8]| table.put(participant, table.hash(key), key, b"v", &WriteOptions::default(), 0);
    put(b"a").expect("room");
    (1..40).for_each(|after| disk.fail_after(after, sandstorm_log::disk::simulated::DiskFault::Error));
    assert!(!tables.log.wait(tables.log.end(), LONG));
    let refused = put(b"b").expect_err("closed");
    assert!(matches!(refused, StoreError::NotLogged(_)), "{refused}");
    let deleted = table.delete(participant, table.hash(b"a"), b"a", StoreCondition::Always, 0);
    assert!(deleted.is_err() && table.clear(participant).is_err());
    table.set_expiry_logging(true);
    assert_eq!((table.sweep(participant, u64::MAX, 10_000), table.stats().records), (0, 1), "nothing expires of it");
    let mut change = [KeyChange { table, hash: table.hash(b"a"), key: b"a", becomes: None }];
    assert!(commit(participant, &[], &mut change, 0).is_err());
    assert_eq!(super::get(table, participant, b"a"), Some(b"v".to_vec()));
}

/// A table of `records` restored records, and one more of a higher version if `has_later`.
fn restored_table(epochs: &Arc<Epochs>, participant: &Participant, records: u64, has_later: bool) -> RecordTable {
    let mut table = RecordTable::with_seed(TableConfig::default(), Arc::clone(epochs), 1);
    table.limit_garbage(1_000);
    for version in 1..=records {
        restore_put(&table, participant, version).expect("room");
    }
    if has_later {
        restore_put(&table, participant, records + 10).expect("room");
    }
    table
}

fn restore_put(table: &RecordTable, participant: &Participant, version: u64) -> Result<(), StoreError> {
    let record = RestoredRecord { version, key: &version.to_le_bytes(), value: &[7; 100], flags: 0, expires_at_ms: 0 };
    table.restore_record(participant, &record, 0)
}

/// Makes an older change again behind a record that a checkpoint has seen meanwhile. Returns whether the record stays.
fn a_seen_record_stays(rule: Option<LogRule>, older: &LoggedChange<'_>) -> bool {
    let epochs = Epochs::new();
    let mut participant = epochs.register();
    let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 1);
    let seen = RestoredRecord { version: 5, key: b"key", value: b"seen", flags: 0, expires_at_ms: 0 };
    table.restore_record(&participant, &seen, 0).expect("room");
    break_rule(rule);
    restore(&table, &mut participant, older, 0).expect("room");
    break_rule(None);
    let found = content(&table, &participant, 0);
    found.get(&b"key"[..]).is_some_and(|(value, version, ..)| value == b"seen" && *version == 5)
}

#[test]
fn an_older_change_that_is_made_again_takes_nothing_from_a_newer_one() {
    let put = LoggedChange { kind: ChangeKind::Put, value: b"old", ..LoggedChange::delete(1, 3, b"key") };
    let clear = LoggedChange::of_table(ChangeKind::Clear, 1, 4, b"");
    for older in [put, LoggedChange::delete(1, 4, b"key"), clear] {
        assert!(a_seen_record_stays(None, &older), "{older:?}");
        assert!(!a_seen_record_stays(Some(LogRule::HigherVersionWins), &older), "the rule is checked: {older:?}");
    }
}

#[test]
fn garbage_of_a_restored_clear_refuses_no_restored_record() {
    for has_later in [false, true] {
        let epochs = Epochs::new();
        let (mut participant, reader) = (epochs.register(), epochs.register());
        let table = restored_table(&epochs, &participant, 3_000, has_later);
        // Nothing is given back while this reader is there.
        let _guard = reader.guard();
        table.restore_clear(&mut participant, 3_001).expect("cleared");
        assert_eq!(table.stats().records, u64::from(has_later));
        (3_002..3_100).for_each(|version| restore_put(&table, &participant, version).expect("admitted once"));
        // Replaced ones are garbage, too.
        let again = RestoredRecord { version: 4_000, key: b"k", value: &[7; 5_000], flags: 0, expires_at_ms: 0 };
        for version in 4_000..4_010 {
            table.restore_record(&participant, &RestoredRecord { version, ..again }, 0).expect("admitted once");
        }
    }
}

#[test]
fn a_restored_clear_gives_memory_back_while_it_goes_on() {
    let epochs = Epochs::new();
    let mut participant = epochs.register();
    let table = restored_table(&epochs, &participant, 3_000, true);
    table.restore_clear(&mut participant, 3_001).expect("cleared");
    assert_eq!(table.stats().records, 1);
    // One more point, at which a thread counts what it has retired.
    participant.quiescent();
    let waiting = epochs.stats().limbo_items;
    assert!(waiting < 300, "{waiting} of 3000 records wait");
}

#[test]
fn a_restored_clear_behind_all_changes_looks_at_no_record() {
    let epochs = Epochs::new();
    let (mut participant, reader) = (epochs.register(), epochs.register());
    let table = restored_table(&epochs, &participant, 3_000, false);
    let _guard = reader.guard();
    let before = participant.retired();
    for version in 3_001..4_000 {
        table.restore_clear(&mut participant, version).expect("cleared");
    }
    assert_eq!(table.stats().records, 0);
    assert!(participant.retired() - before < 5, "the array as a whole, once");
}

#[test]
fn an_empty_table_logs_no_clear() {
    let disk = SimulatedDisk::default();
    let tables = start(&disk, StorageMode::Store, 1);
    let (table, participant) = (&tables.tables[0], &tables.participant);
    let end = tables.log.end();
    table.clear(participant).expect("nothing to do");
    assert_eq!(tables.log.end(), end);
    table.put(participant, table.hash(b"a"), b"a", b"v", &WriteOptions::default(), 0).expect("room");
    let end = tables.log.end();
    table.clear(participant).expect("room");
    let cleared = tables.log.end();
    assert!(cleared > end);
    table.clear(participant).expect("nothing to do");
    assert_eq!(tables.log.end(), cleared);
}

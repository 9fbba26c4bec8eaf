//! Promise: a record whose time has come is a change of its own kind in the log of a table that asks for it: once,
//! between the record and what follows it under its key, whatever has met it, and also if no server ran at that time.
//! Other tables log nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_log::disk::simulated::SimulatedDisk;
use sandstorm_log::{ChangeKind, LogOptions, LogTail, RecoveredLog};

use super::cold::cold_table;
use super::logged::{LONG, LoggedTables, start_at};
use super::{StorageMode, scaled};
use crate::{RecordTable, StoreCondition, TableLogging, WriteOptions, fix_clock};

/// What the log says of the records: version and time of each live one, by table and key; and counters.
#[derive(Default)]
struct ChangesSoFar {
    live: BTreeMap<(u64, Vec<u8>), (u64, u64)>,
    last: BTreeMap<(u64, Vec<u8>), u64>,
    expired: usize,
}

impl ChangesSoFar {
    /// Reads the changes behind a position. `times`: the position behind each step, and its time.
    fn read(&mut self, tables: &LoggedTables, from: u64, times: &[(u64, u64)], watched: bool) {
        assert!(tables.log.wait(tables.log.end(), LONG));
        let mut tail = LogTail::at(&tables.log, from).expect("a position of the log");
        while !tail.is_at_end() {
            let read = tail.read(1 << 20, &mut |position, change| {
                let step = times.partition_point(|(end, _)| *end < position);
                let now_ms = times[step].1;
                let of = (change.table, change.key.to_vec());
                let is_over = |(_, at_ms): &(u64, u64)| *at_ms != 0 && *at_ms <= now_ms;
                let before = self.live.get(&of).copied();
                let what = format!("{} of {of:?}, version {} at {now_ms}", change.kind.name(), change.version);
                if matches!(change.kind, ChangeKind::Put | ChangeKind::Delete | ChangeKind::Expire) {
                    let last = self.last.insert(of.clone(), change.version);
                    assert!(last.is_none_or(|last| last < change.version), "{what} behind {last:?}");
                }
                match change.kind {
                    ChangeKind::Put | ChangeKind::Delete if watched => {
                        assert!(!before.is_some_and(|record| is_over(&record)), "{what} in place of {before:?}");
                    }
                    ChangeKind::Expire => {
                        assert!(watched && before.is_some_and(|record| is_over(&record)), "{what}: {before:?}");
                        assert_eq!(before.map(|(_, at_ms)| at_ms), Some(change.expires_at_ms), "{what}");
                        self.expired += 1;
                    }
                    _ => {}
                }
                match change.kind {
                    ChangeKind::Put | ChangeKind::Arrive => {
                        self.live.insert(of, (change.version, change.expires_at_ms));
                    }
                    ChangeKind::Delete | ChangeKind::Expire | ChangeKind::Leave => drop(self.live.remove(&of)),
                    ChangeKind::Clear => {
                        self.live.retain(|(table, _), (version, _)| *table != change.table || *version > change.version)
                    }
                    ChangeKind::MakeTable | ChangeKind::DropTable => {}
                }
                true
            });
            read.expect("sound");
        }
    }
}

/// Sweeps a table once from its beginning to its end.
fn sweep_all(table: &RecordTable, participant: &crate::Participant, now_ms: u64) {
    for round in 0..2 {
        for _ in 0..10_000 {
            table.sweep(participant, now_ms, 256);
            if table.is_swept() {
                break;
            }
        }
        assert!(table.is_swept(), "round {round} came to the end");
    }
}

#[test]
fn each_record_that_expires_is_one_change_whoever_meets_it() {
    for (seed, mode) in (0..scaled(8, 2) as u64).zip([StorageMode::Store, StorageMode::Cache].into_iter().cycle()) {
        let watched = seed % 4 != 3;
        let (mut disk, mut random) = (SimulatedDisk::default(), SmallRng::seed_from_u64(seed));
        let (mut now_ms, mut so_far) = (1_000, ChangesSoFar::default());
        for life in 0..3 {
            fix_clock(Some(now_ms));
            let mut tables = start_at(&disk, mode, random.random(), (TableLogging::AtOnce, watched, now_ms));
            let (from, before) = (tables.log.durable(), so_far.expired);
            let mut times = Vec::new();
            // What expired while no server ran, too.
            for part in 0..scaled(600, 60) {
                if part == 0 {
                    tables.tables.iter().for_each(|table| sweep_all(table, &tables.participant, now_ms));
                } else {
                    now_ms += random.random_range(0..3);
                    fix_clock(Some(now_ms));
                    tables.change(&mut random, now_ms);
                }
                times.push((tables.log.end(), now_ms));
            }
            tables.tables.iter().for_each(|table| sweep_all(table, &tables.participant, now_ms));
            times.push((u64::MAX, now_ms));
            so_far.read(&tables, from, &times, watched);
            if watched {
                let left = so_far.live.values().filter(|(_, at_ms)| *at_ms != 0 && *at_ms <= now_ms).count();
                assert_eq!(left, 0, "seed {seed}, life {life}: a sweep has met all");
                assert!(so_far.expired > before || cfg!(miri), "seed {seed}, life {life}: some did expire");
            }
            disk = disk.after_crash(seed);
            tables.log.close();
            now_ms += 150;
        }
        assert_eq!(so_far.expired > 0, watched, "seed {seed}");
    }
    fix_clock(None);
}

/// A record of a key that expires at 100.
fn expiring(tables: &LoggedTables, key: &[u8]) -> u64 {
    let table = &tables.tables[0];
    let write = WriteOptions { expires_at_ms: 100, ..WriteOptions::default() };
    table.put(&tables.participant, table.hash(key), key, b"v", &write, 1).expect("room")
}

#[test]
fn what_came_to_its_time_while_no_server_ran_is_a_change_of_the_next_one() {
    let disk = SimulatedDisk::default();
    let tables = start_at(&disk, StorageMode::Store, 1, (TableLogging::AtOnce, true, 1));
    let version = expiring(&tables, b"key");
    assert!(tables.log.wait(tables.log.end(), LONG));
    // Twice over: the first of the next servers dies before it has swept.
    let disk = disk.after_kill();
    drop(start_at(&disk, StorageMode::Store, 2, (TableLogging::AtOnce, true, 200)));
    let disk = disk.after_kill();
    let next = start_at(&disk, StorageMode::Store, 3, (TableLogging::AtOnce, true, 300));
    let (table, from) = (&next.tables[0], next.log.durable());
    assert!(table.get(&next.participant.guard(), table.hash(b"key"), b"key", 300).is_none(), "nobody sees it");
    sweep_all(table, &next.participant, 300);
    assert!(next.log.wait(next.log.end(), LONG));
    let (mut tail, mut shown) = (LogTail::at(&next.log, from).expect("the end"), Vec::new());
    let read = tail.read(1 << 20, &mut |_, change| {
        shown.push((change.kind, change.key.to_vec(), change.expires_at_ms, change.version > version));
        true
    });
    read.expect("sound");
    assert_eq!(shown, [(ChangeKind::Expire, b"key".to_vec(), 100, true)]);
    // It is over: the server after that has nothing of it.
    let last = start_at(&disk.after_kill(), StorageMode::Store, 4, (TableLogging::AtOnce, true, 300));
    assert_eq!(last.tables[0].stats().records, 0);
}

#[test]
fn a_delete_of_a_record_after_its_time_finds_none_and_its_expiry_is_the_change() {
    let tables = start_at(&SimulatedDisk::default(), StorageMode::Store, 1, (TableLogging::AtOnce, true, 1));
    let (table, from) = (&tables.tables[0], tables.log.durable());
    expiring(&tables, b"key");
    let deleted = table.delete(&tables.participant, table.hash(b"key"), b"key", StoreCondition::Always, 100);
    assert_eq!(deleted, Ok(false));
    assert!(tables.log.wait(tables.log.end(), LONG));
    let (mut tail, mut shown) = (LogTail::at(&tables.log, from).expect("the end"), Vec::new());
    let read = tail.read(1 << 20, &mut |_, change| {
        shown.push(change.kind);
        true
    });
    read.expect("sound");
    assert_eq!(shown, [ChangeKind::Put, ChangeKind::Expire]);
}

#[test]
fn records_that_expire_on_the_disk_are_changes_with_their_keys() {
    const RECORDS: u32 = 4_000;
    let mut cold = cold_table(256 << 10, 64 << 20);
    let options = LogOptions { segment_bytes: 8 << 20, feed_bytes: 0, ..LogOptions::default() };
    let read = RecoveredLog::read(Arc::new(SimulatedDisk::default()), options, &mut |_, _| Ok(()));
    let log = read.expect("sound").start().expect("started");
    cold.table.set_expiry_logging(true);
    cold.table.set_logging(&log, 1, TableLogging::AtOnce);
    let write = WriteOptions { expires_at_ms: 100, ..WriteOptions::default() };
    for number in 0..RECORDS {
        cold.put(&number.to_le_bytes(), &[7; 500], &write, 1).expect("room");
    }
    assert!(cold.table.spill_stats().expect("a spill file").cold_records > 3_000);
    assert!(log.wait(log.end(), LONG));
    let from = log.durable();
    let (table, mut rounds) = (Arc::clone(&cold.table), 0);
    while table.stats().records > 0 {
        let reads = cold.device.counts().0;
        assert_eq!(table.sweep_logged(&mut cold.participant, 100, (1 << 20, 512)), 0);
        assert!(cold.device.counts().0 - reads <= 512, "no more than it may read");
        cold.participant.quiescent();
        rounds += 1;
        assert!(rounds < 20, "{} records are left", table.stats().records);
    }
    assert!(log.wait(log.end(), LONG));
    let (mut tail, mut keys) = (LogTail::at(&log, from).expect("the end"), BTreeSet::new());
    while !tail.is_at_end() {
        let read = tail.read(1 << 20, &mut |_, change| {
            assert_eq!(change.kind, ChangeKind::Expire);
            assert!(keys.insert(change.key.to_vec()), "once");
            true
        });
        read.expect("sound");
    }
    assert!(keys.into_iter().eq(BTreeSet::from_iter((0..RECORDS).map(|number| number.to_le_bytes().to_vec()))));
}

#[test]
fn expired_records_on_the_disk_that_cannot_be_read_hold_none_up_behind_them() {
    const RECORDS: u32 = 2_000;
    const READS: usize = 64;
    for is_disturbed in [false, true] {
        let mut cold = cold_table(256 << 10, 64 << 20);
        let options = LogOptions { segment_bytes: 8 << 20, feed_bytes: 0, ..LogOptions::default() };
        let read = RecoveredLog::read(Arc::new(SimulatedDisk::default()), options, &mut |_, _| Ok(()));
        let log = read.expect("sound").start().expect("started");
        cold.table.set_expiry_logging(true);
        cold.table.set_logging(&log, 1, TableLogging::AtOnce);
        let write = WriteOptions { expires_at_ms: 100, ..WriteOptions::default() };
        for number in 0..RECORDS {
            cold.put(&number.to_le_bytes(), &[7; 500], &write, 1).expect("room");
        }
        cold.pool.drive(&mut cold.participant);
        // Each second block is damaged, whose records lie anywhere in the table.
        (0..cold.device.len() / 4096).step_by(2).for_each(|block| cold.device.flip(block * 4096 + 100, 1));
        let (table, mut unreadable) = (Arc::clone(&cold.table), 0);
        for round in 0..4 * RECORDS as usize / READS {
            if is_disturbed && round % 3 == 0 {
                // As where a round ends in the middle of the table.
                table.sweep(&cold.participant, 100, 256);
            }
            let failed = table.sweep_logged(&mut cold.participant, 100, (1 << 20, READS));
            assert!(failed <= READS);
            unreadable += failed;
            cold.participant.quiescent();
        }
        let left = table.stats().records as usize;
        assert!(left > 2 * READS && left < RECORDS as usize * 3 / 4, "{left} of {RECORDS} are left");
        assert!(unreadable >= 2 * left, "each was tried more than once: {unreadable} times, {left} are left");
        // Only unreadable records are left.
        let stats = table.spill_stats().expect("a spill file");
        assert_eq!(stats.cold_records as usize, left);
    }
}

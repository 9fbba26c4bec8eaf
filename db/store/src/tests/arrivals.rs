//! Promise: slots that are copied while they are written to arrive as they were left, whichever way they were changed,
//! and a start makes them again. Slots that are given away are written to no more once the writers are waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_log::disk::simulated::SimulatedDisk;
use sandstorm_log::limits::PENDING_BYTES;
use sandstorm_log::{ChangeKind, LogTail, single_unit_bytes};
use sandstorm_net::slots::slot_of;

use super::logged::{LONG, LoggedTables, TableContent, start_at, start_with};
use super::{StorageMode, open_table, put, scaled};
use crate::slots::{SlotOwnership, SlotSpan};
use crate::transactions::{CommitError, KeyChange, KeyRead, NewRecord, commit};
use crate::{
    Participant, RecordTable, RestoredRecord, SlotWalk, SlotWalkError, StoreCondition, StoreError, TableLogging,
    WalkBudget, WriteOptions, fix_clock,
};

const SPAN: SlotSpan = SlotSpan { first: 2_000, last: 9_000 };

/// A copy of two tables' slots to two others, as servers make it.
struct TestCopy {
    source: LoggedTables,
    target: LoggedTables,
    slots: Arc<SlotOwnership>,
    now_ms: u64,
    /// Times that a table was emptied while it was copied.
    emptied: u64,
}

impl TestCopy {
    /// Removes what an earlier attempt has left, and notes changes from here on.
    fn begin(&mut self) {
        self.target.tables.iter().for_each(|table| remove_all(table, &mut self.target.participant));
        self.target.participant.quiescent();
        self.slots.set_copied(Some(SPAN));
        for table in &self.source.tables {
            table.forget_copied_keys();
            table.settle_writers(&self.source.participant);
        }
    }

    /// Copies a page; returns where the next one begins.
    fn page(&self, table: usize, cursor: u64) -> Option<u64> {
        let guard = self.source.participant.guard();
        self.source.tables[table].scan(&guard, cursor, 7, 0, &mut |record| {
            if SPAN.contains(slot_of(record.key())) {
                let (version, key, value) = (record.version(), record.key(), record.value());
                let (flags, expires_at_ms) = (record.flags(), record.expires_at_ms());
                let record = RestoredRecord { version, key, value, flags, expires_at_ms };
                take((&self.target.tables[table], &self.target.participant), key, Some(&record), self.now_ms);
            }
        })
    }

    /// Copies what has changed.
    fn changes(&mut self) {
        let TestCopy { source, target, now_ms, emptied, .. } = self;
        for (number, table) in source.tables.iter().enumerate() {
            let (keys, mut taken) = (table.take_copied_keys(5), 0);
            if table.take_emptied() {
                *emptied += 1;
                remove_all(&target.tables[number], &mut target.participant);
            }
            let shown = table.show_keys(
                &mut source.participant,
                (&keys, WalkBudget { bytes: 5, ..WalkBudget::UNLIMITED }),
                &mut |key, record| {
                    take((&target.tables[number], &target.participant), key, record, *now_ms);
                    taken += 1;
                    taken
                },
            );
            let shown = shown.expect("all are in memory");
            table.return_copied_keys(&source.participant, keys.into_iter().skip(shown));
        }
    }
}

/// Removes all records of the slots.
fn remove_all(table: &RecordTable, participant: &mut Participant) {
    let (mut walk, budget) = (SlotWalk::default(), WalkBudget { records: 16, reads: 1, bytes: 1 << 20 });
    while table.remove_slots(participant, &mut walk, (budget, &[SPAN])).expect("room in the log") {}
    participant.quiescent();
}

/// Makes a key at the target be as it is at the source.
fn take((to, participant): (&RecordTable, &Participant), key: &[u8], found: Option<&RestoredRecord<'_>>, now_ms: u64) {
    let taken = match found {
        Some(record) => to.take_arrival(participant, record, now_ms),
        None => to.take_leaving(participant, key),
    };
    taken.expect("there is room");
}

fn of_span(content: &TableContent) -> TableContent {
    content.iter().filter(|(key, _)| SPAN.contains(slot_of(key))).map(|(key, of)| (key.clone(), of.clone())).collect()
}

#[test]
fn what_is_copied_while_it_changes_arrives_as_it_was_left() {
    let (mut records, mut emptied) = (0, 0);
    for seed in 0..scaled(40, 1) as u64 {
        let mut random = SmallRng::seed_from_u64(seed);
        let disks = [(); 2].map(|()| SimulatedDisk::default());
        let start = |disk: &SimulatedDisk, seed| start_with(disk, StorageMode::Store, seed, TableLogging::AtOnce);
        let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
        let mut copy = TestCopy {
            source: start(&disks[0], seed),
            target: start(&disks[1], seed + 1_000),
            slots,
            now_ms: 1_000,
            emptied: 0,
        };
        copy.source.tables.iter().for_each(|table| table.set_slots(&copy.slots));
        for _ in 0..scaled(200, 20) {
            copy.source.change(&mut random, copy.now_ms);
        }
        loop {
            copy.begin();
            let (mut table, mut cursor) = (0, 0);
            while table < 2 {
                match random.random_range(0..4) {
                    0..=1 => copy.source.change(&mut random, copy.now_ms),
                    2 => copy.changes(),
                    _ => (table, cursor) = copy.page(table, cursor).map_or((table + 1, 0), |next| (table, next)),
                }
                copy.now_ms += random.random_range(0..2);
            }
            copy.changes();
            while copy.slots.noted_bytes() > 0 {
                copy.changes();
            }
            emptied += copy.emptied;
            if !copy.slots.is_copy_spoilt() {
                break;
            }
        }
        let before = copy.source.contents(0).map(|content| of_span(&content));
        assert_eq!(copy.target.contents(0), before, "seed {seed}");
        records += before.iter().map(TableContent::len).sum::<usize>();
        let highest = copy.source.tables[0].highest_version() + 1_000_000_000_000;
        copy.target.tables[0].take_versions(&copy.target.participant, highest, "t").expect("room in the log");
        assert!(copy.target.log.wait(copy.target.log.end(), LONG));
        let disk = disks[1].after_kill();
        let again = start_with(&disk, StorageMode::Store, seed + 2_000, TableLogging::AtOnce);
        assert_eq!(again.contents(0), before, "seed {seed}, after a start");
        assert!(
            put(&again.tables[0], &again.participant, b"new", b"1") > highest,
            "versions go on behind the source's"
        );
    }
    assert!(records > scaled(200, 0) && (emptied > 0 || cfg!(miri)), "{records} records, emptied {emptied} times");
}

#[test]
fn nobody_writes_to_slots_that_were_given_away_once_writers_are_waited_for() {
    for round in 0..scaled(30, 2) {
        let (epochs, table) = open_table();
        let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
        table.set_slots(&slots);
        let (given, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
        // One in the span, one outside of it.
        let [inside, outside] = [b"bar", b"foo"];
        assert!(SPAN.contains(slot_of(inside)) && !SPAN.contains(slot_of(outside)));
        let write = |table: &RecordTable| {
            let participant = epochs.register();
            let mut number = 0;
            while !given.load(Ordering::Acquire) {
                number += 1;
                let done = match number % 2 {
                    0 => table.increment(&participant, table.hash(inside), inside, 1, 0).is_ok(),
                    _ => commit_both(table, &participant, [inside, outside]),
                };
                acknowledged.fetch_add(u64::from(done), Ordering::AcqRel);
            }
        };
        thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| write(&table))));
            (0..round * 20).for_each(|_| thread::yield_now());
            let participant = epochs.register();
            slots.disown(SPAN);
            table.settle_writers(&participant);
            let left = super::get(&table, &participant, inside);
            (0..50).for_each(|_| thread::yield_now());
            assert_eq!(super::get(&table, &participant, inside), left, "round {round}");
            given.store(true, Ordering::Release);
            drop(participant);
        });
        let participant = epochs.register();
        let sum =
            super::get(&table, &participant, inside).map_or(0, |sum| String::from_utf8(sum).unwrap().parse().unwrap());
        assert_eq!(acknowledged.load(Ordering::Acquire), sum, "each that was acknowledged counts, and no other");
    }
}

/// Adds one to the first key, in a transaction that writes the second one as well.
fn commit_both(table: &RecordTable, participant: &Participant, [first, second]: [&[u8]; 2]) -> bool {
    let guard = participant.guard();
    let hash = table.hash(first);
    let (old, version) = table
        .get(&guard, hash, first, 0)
        .map_or((0, 0), |found| (std::str::from_utf8(found.value()).unwrap().parse::<u64>().unwrap(), found.version()));
    let sum = (old + 1).to_string();
    let becomes = |value| Some(NewRecord { value, flags: 0, expires_at_ms: 0 });
    let mut changes = [
        KeyChange { table, hash, key: first, becomes: becomes(sum.as_bytes()) },
        KeyChange { table, hash: table.hash(second), key: second, becomes: becomes(b"x") },
    ];
    commit(participant, &[KeyRead { table, hash, key: first, version }], &mut changes, 0).is_ok()
}

#[test]
fn a_transaction_that_has_read_what_is_given_away_does_not_happen() {
    let (epochs, table) = open_table();
    let participant = epochs.register();
    let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
    table.set_slots(&slots);
    let version = put(&table, &participant, b"bar", b"1");
    slots.disown(SPAN);
    let read = KeyRead { table: &table, hash: table.hash(b"bar"), key: b"bar", version };
    let becomes = Some(NewRecord { value: b"2", flags: 0, expires_at_ms: 0 });
    let mut changes = [KeyChange { table: &table, hash: table.hash(b"foo"), key: b"foo", becomes }];
    let refused = commit(&participant, &[read], &mut changes, 0);
    assert!(matches!(refused, Err(CommitError::Refused(StoreError::WrongServer))), "{refused:?}");
    assert_eq!(super::get(&table, &participant, b"foo"), None);
}

#[test]
fn a_table_to_which_records_come_is_not_emptied() {
    let (epochs, table) = open_table();
    let participant = epochs.register();
    let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
    table.set_slots(&slots);
    slots.disown(SPAN);
    slots.set_arriving(true);
    let record = RestoredRecord { version: 7, key: b"bar", value: b"1", flags: 3, expires_at_ms: 0 };
    table.take_arrival(&participant, &record, 0).expect("there is room");
    assert_eq!(table.clear(&participant), Err(StoreError::WrongServer));
    slots.set_arriving(false);
    slots.set_owned(|_| true);
    let hash = table.hash(b"bar");
    let write = WriteOptions { condition: StoreCondition::Version(7), ..WriteOptions::default() };
    assert_eq!(table.put(&participant, hash, b"bar", b"2", &write, 0), Ok(8), "with its version");
    // Nor one whose records are about to be another server's.
    slots.set_copied(Some(SPAN));
    slots.disown(SPAN);
    assert_eq!(table.clear(&participant), Err(StoreError::WrongServer));
    slots.set_copied(None);
    assert_eq!(table.clear(&participant), Ok(()));
}

#[test]
fn keys_are_noted_until_the_copy_is_spoilt_or_the_table_is_gone() {
    let (epochs, table) = open_table();
    let participant = epochs.register();
    let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
    table.set_slots(&slots);
    slots.set_copied(Some(SPAN));
    put(&table, &participant, b"bar", b"1");
    let noted = slots.noted_bytes();
    assert!(noted > 0);
    slots.spoil_copy();
    put(&table, &participant, b"{bar}2", b"1");
    assert_eq!(slots.noted_bytes(), noted);
    drop(table);
    assert_eq!(slots.noted_bytes(), 0);
}

#[test]
fn what_becomes_of_a_copy_is_no_change_of_the_table() {
    let disk = SimulatedDisk::default();
    // A cache of 60 000 bytes: it evicts some of them, and a sweep meets the end of others.
    let copies = start_at(&disk, StorageMode::Cache, 1, (TableLogging::AtOnce, true, 0));
    let (table, participant) = (&copies.tables[0], &copies.participant);
    let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
    table.set_slots(&slots);
    slots.set_owned(|_| false);
    fix_clock(Some(1_000));
    let from = copies.log.durable();
    for number in 0..150_u64 {
        let key = number.to_string();
        let expires_at_ms = if number % 2 == 0 { 2_000 } else { 0 };
        let value = &[0; 300];
        let record = RestoredRecord { version: number + 1, key: key.as_bytes(), value, flags: 0, expires_at_ms };
        table.take_arrival(participant, &record, 1_000).expect("there is room");
    }
    fix_clock(Some(3_000));
    for _ in 0..100 {
        table.sweep(participant, 3_000, 256);
    }
    // The quota is not checked for what comes, but for what is put.
    slots.set_owned(|slot| slot == slot_of(b"foo"));
    for number in 0..200 {
        let key = format!("{{foo}}{number}");
        assert!(put(table, participant, key.as_bytes(), &[0; 300]) > 0);
    }
    fix_clock(None);
    let stats = table.stats();
    assert!(stats.evictions > 0 && stats.expirations > 0, "{stats:?}");
    assert!(copies.log.wait(copies.log.end(), LONG));
    let mut left = 0;
    let mut tail = LogTail::at(&copies.log, from).expect("a position of the log");
    while !tail.is_at_end() {
        let read = tail.read(1 << 20, &mut |_, change| {
            let is_own = change.key.starts_with(b"{foo}") || change.kind == ChangeKind::MakeTable;
            let is_copy = matches!(change.kind, ChangeKind::Arrive | ChangeKind::Leave);
            assert!(is_own != is_copy, "{} of {:?}", change.kind.name(), change.key);
            left += u64::from(change.kind == ChangeKind::Leave);
            true
        });
        read.expect("sound");
    }
    assert!(left > 0);
}

#[test]
fn what_the_log_does_not_take_for_a_while_is_removed_later() {
    const KEY_BYTES: usize = 5_000;
    let disk = SimulatedDisk::default();
    let mut tables = start_with(&disk, StorageMode::Store, 1, TableLogging::AtOnce);
    let (table, participant) = (&tables.tables[0], &mut tables.participant);
    let put = |key: &[u8]| table.put(participant, table.hash(key), key, b"v", &WriteOptions::default(), 0);
    // The log has room for some of these deletes, and not for all.
    (0..3).for_each(|number| put(&[b'a' + number; KEY_BYTES]).map(drop).expect("room"));
    let last = tables.log.end();
    assert!(tables.log.wait(last, LONG));
    let gate = disk.gate();
    let stopped = gate.lock();
    let left = single_unit_bytes(KEY_BYTES, 0) * 3 / 2;
    let mut most = PENDING_BYTES;
    while tables.log.admit_bytes(most).is_err() {
        most -= left / 8;
    }
    let permit = tables.log.admit_bytes(most - left).expect("less than there is room for");
    let all = SlotSpan { first: 0, last: 16_383 };
    let (mut walk, budget) = (SlotWalk::default(), WalkBudget { records: 16, reads: 1, bytes: 1 << 20 });
    for _ in 0..2 {
        let removed = table.remove_slots(participant, &mut walk, (budget, &[all]));
        assert!(matches!(removed, Err(SlotWalkError::Store(StoreError::NotLogged(_)))), "{removed:?}");
        assert!((1..3).contains(&table.stats().records), "{:?}", table.stats().records);
    }
    drop((permit, stopped));
    while table.remove_slots(participant, &mut walk, (budget, &[all])).expect("room in the log") {}
    assert_eq!(table.stats().records, 0);
}

//! Promise: in a table whose changes are awaited, nothing that was acknowledged is lost by a crash, and nothing that
//! was shown is: each writer and each reader has a position, and once the log is on the disk up to there, it
//! stays. Each rule that this rests on is broken on purpose, and found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_log::PositionState;
use sandstorm_log::disk::simulated::{DiskFault, SimulatedDisk};

use super::logged::{LONG, LoggedTables, TableContent, start_with};
use super::{StorageMode, scaled};
use crate::broken_rules::{LogRule, break_rule};
use crate::transactions::{
    KeyChange, MetInRange, NewRecord, RangeRead, commit, commit_with_ranges, note_counts, snapshot,
};
use crate::{
    KeyRange, Participant, RecordTable, RecordUpdate, StoreCondition, StripeSet, TableConfig, TableLogging,
    WriteOptions,
};

const KEYS: u8 = 12;

/// An answer, as a client would get it: what it shows, and from where on it may.
struct SimulatedAnswer {
    /// The step that made the last change which it shows.
    shows: usize,
    position: u64,
}

/// A run of two clients, whose tables are known after each step.
struct AwaitedRun {
    tables: LoggedTables,
    other: Participant,
    /// The contents after each step; the first are those of the start.
    history: Vec<[TableContent; 2]>,
    /// The last step that changed each key of each table.
    changed: [[usize; KEYS as usize]; 2],
    /// Answers that wait.
    waiting: Vec<SimulatedAnswer>,
    /// The last step that a client knows of.
    known: usize,
}

impl AwaitedRun {
    fn start(disk: &SimulatedDisk, seed: u64) -> AwaitedRun {
        let tables = start_with(disk, StorageMode::Store, seed, TableLogging::Awaited);
        let other = tables.participant.epochs().register();
        let history = vec![tables.contents(0)];
        tables.participant.shown().take();
        AwaitedRun { tables, other, history, changed: Default::default(), waiting: Vec::new(), known: 0 }
    }

    /// One request of a client, and its answer.
    fn step(&mut self, random: &mut SmallRng) {
        let (table, key) = (random.random_range(0..2), random.random_range(0..KEYS));
        let of = &self.tables.tables[table];
        let participant = if random.random_bool(0.5) { &self.tables.participant } else { &self.other };
        let next = self.history.len();
        let (mut shows, all) = (self.changed[table][usize::from(key)], self.changed[table].iter().copied().max());
        let mut changes: Vec<(usize, u8)> = Vec::new();
        let hash = of.hash(&[key]);
        let value = [random.random::<u8>(); 30];
        match random.random_range(0..14) {
            0..=2 => {
                let guard = participant.guard();
                let _shown = of.get(&guard, hash, &[key], 0);
            }
            3 => {
                let guard = participant.guard();
                let others = [(hash, &[key][..]), (of.hash(&[0]), &[0][..])];
                let _shown = snapshot(participant, &guard, of, &others, 0);
                shows = shows.max(self.changed[table][0]);
            }
            4 => {
                let _shown = of.scan(&participant.guard(), 0, 1000, 0, &mut |_| ());
                shows = all.unwrap_or(0);
            }
            5 => {
                let write = WriteOptions { condition: StoreCondition::Absent, ..WriteOptions::default() };
                if of.put(participant, hash, &[key], &value, &write, 0).is_ok() {
                    changes.push((table, key));
                }
            }
            6 => {
                if of.delete(participant, hash, &[key], StoreCondition::Always, 0).is_ok_and(|was_there| was_there) {
                    changes.push((table, key));
                }
            }
            // These look at nothing: a refusal shows nothing.
            7 => {
                changes.extend(self.unit(participant, table, key, &value));
                shows = 0;
            }
            8 => {
                changes.extend(self.transaction(participant, key, &value));
                shows = 0;
            }
            9 if random.random_bool(0.1) => {
                let was_empty = of.stats().records == 0;
                if of.clear(participant).is_ok() && !was_empty {
                    changes.extend((0..KEYS).map(|key| (table, key)));
                }
                shows = 0;
            }
            _ => {
                if of.put(participant, hash, &[key], &value, &WriteOptions::default(), 0).is_ok() {
                    changes.push((table, key));
                }
            }
        }
        let position = participant.shown().take();
        if !changes.is_empty() {
            changes.iter().for_each(|(table, key)| self.changed[*table][usize::from(*key)] = next);
            shows = next;
            self.history.push(self.tables.contents(0));
            // Looking at them is no request.
            self.tables.participant.shown().take();
        }
        self.waiting.push(SimulatedAnswer { shows, position });
    }

    /// Two changes under locks, as a transaction of a cache's protocol makes them.
    fn unit(&self, participant: &Participant, table: usize, key: u8, value: &[u8]) -> Vec<(usize, u8)> {
        let (of, mut stripes, mut made) = (&self.tables.tables[table], StripeSet::default(), Vec::new());
        let keys = [key, (key + 1) % KEYS];
        keys.iter().for_each(|key| stripes.add(of.hash(&[*key])));
        let mut locked = of.exclusive(participant, stripes);
        if locked.reserve_log(2, 2 * (1 + value.len())).is_err() {
            return made;
        }
        for key in keys {
            let put = RecordUpdate::Put { value: value.into(), flags: 0, expires_at_ms: 0, answer: () };
            locked.update(of.hash(&[key]), &[key], 0, |_| put).expect("room was reserved");
            made.push((table, key));
        }
        made
    }

    /// A change in each table, as an extension commits them.
    fn transaction(&self, participant: &Participant, key: u8, value: &[u8]) -> Vec<(usize, u8)> {
        let becomes = Some(NewRecord { value, flags: 0, expires_at_ms: 0 });
        let bytes = [key];
        let change = |table: &'_ RecordTable| (table.hash(&bytes), becomes);
        let [left, right] = &self.tables.tables;
        let mut changes = [left, right].map(|table| {
            let (hash, becomes) = change(table);
            KeyChange { table, hash, key: &bytes, becomes }
        });
        if commit(participant, &[], &mut changes, 0).is_ok() { vec![(0, key), (1, key)] } else { Vec::new() }
    }

    /// Gives the answers that may leave; all of them, once the disk has them, if `is_awaited`.
    fn answer(&mut self, is_awaited: bool) {
        let log = &self.tables.log;
        if is_awaited && let Some(last) = self.waiting.iter().map(|answer| answer.position).max() {
            log.request(last);
            log.wait(last, LONG);
        }
        self.waiting.retain(|answer| match log.state_of(answer.position) {
            PositionState::OnDisk => {
                self.known = self.known.max(answer.shows);
                false
            }
            PositionState::Waits => true,
            PositionState::Uncertain => false,
        });
    }

    /// What a disk has: one of the contents so far, and not from before what a client knows.
    fn check(&self, disk: &SimulatedDisk, what: &str) -> Result<(), String> {
        let found = start_with(disk, StorageMode::Store, 99, TableLogging::Awaited).contents(0);
        let step = self.history.iter().rposition(|content| *content == found);
        let step = step.ok_or_else(|| format!("{what}: no content of the run"))?;
        if step < self.known {
            return Err(format!("{what}: found step {step}, and a client was shown step {}", self.known));
        }
        Ok(())
    }
}

/// Runs with a crash at some operation of the disk, or between two steps.
fn simulate(seed: u64) -> Result<(), String> {
    let (disk, mut random) = (SimulatedDisk::default(), SmallRng::seed_from_u64(seed));
    let mut run = AwaitedRun::start(&disk, seed);
    if random.random_bool(0.7) {
        disk.fail_after(random.random_range(1..25), DiskFault::Crash);
    }
    for _ in 0..random.random_range(5..60) {
        run.step(&mut random);
        run.answer(random.random_bool(0.15));
    }
    let crashed = disk.after_crash(seed);
    // An answer may leave at any moment before the crash, and none after it.
    let result = run.check(&crashed, &format!("seed {seed}"));
    run.tables.log.close();
    result
}

#[test]
fn a_crash_takes_nothing_that_was_acknowledged_or_shown() {
    for seed in 0..scaled(60, 3) as u64 {
        simulate(seed).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn each_rule_broken_on_purpose_is_found() {
    if cfg!(miri) {
        return;
    }
    for rule in [
        LogRule::ReadsAreNoted,
        LogRule::WholeReadsAreNoted,
        LogRule::WritesAreNoted,
        LogRule::RefusalsAreNoted,
        LogRule::UnitsAreNoted,
    ] {
        break_rule(Some(rule));
        let found = (0..200).find_map(|seed| simulate(seed).err());
        break_rule(None);
        assert!(found.is_some(), "{rule:?} may be broken, and nobody notices");
    }
}

/// Has another thread read a key whose record was written under locks that are still held. Returns whether it has
/// waited for them, and for the unit's place in the log.
fn reads_after_the_unit(rule: Option<LogRule>, logging: TableLogging) -> bool {
    let disk = SimulatedDisk::default();
    let tables = start_with(&disk, StorageMode::Store, 1, logging);
    let (table, other) = (&tables.tables[0], tables.participant.epochs().register());
    let (is_released, is_written) = (AtomicBool::new(false), AtomicBool::new(false));
    let key = b"key";
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let other = other;
            break_rule(rule);
            while !is_written.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let guard = other.guard();
            let found = table.get(&guard, table.hash(key), key, 0).map(|record| record.value().to_vec());
            (found, is_released.load(Ordering::Acquire), other.shown().take(), tables.log.end())
        });
        let mut stripes = StripeSet::default();
        stripes.add(table.hash(key));
        let mut locked = table.exclusive(&tables.participant, stripes);
        let put = RecordUpdate::Put { value: b"value"[..].into(), flags: 0, expires_at_ms: 0, answer: () };
        locked.update(table.hash(key), key, 0, |_| put).expect("room");
        is_written.store(true, Ordering::Release);
        // Enough for the reader to come by; it waits, however long this takes.
        std::thread::sleep(std::time::Duration::from_millis(if rule.is_some() { 300 } else { 20 }));
        is_released.store(true, Ordering::Release);
        drop(locked);
        let (found, waited, shown, _end) = reader.join().expect("no fault");
        assert_eq!(found.as_deref(), Some(&b"value"[..]));
        let own = tables.participant.shown().take();
        assert!(!waited || logging == TableLogging::AtOnce || (shown >= own && own > 0), "{shown} {own}");
        waited
    })
}

#[test]
fn a_reader_of_half_a_unit_waits_until_the_unit_is_in_the_log() {
    for logging in [TableLogging::AtOnce, TableLogging::Awaited] {
        assert!(reads_after_the_unit(None, logging));
        assert!(!reads_after_the_unit(Some(LogRule::UnitsAreWaitedFor), logging), "the rule is checked");
    }
}

/// Crashes take all that was shown, twice. Returns whether a version was given twice.
fn gives_a_version_twice(rule: Option<LogRule>) -> bool {
    break_rule(rule);
    let (mut disk, mut given) = (SimulatedDisk::default(), Vec::new());
    for life in 0..4 {
        let tables = start_with(&disk, StorageMode::Store, life, TableLogging::AtOnce);
        let (table, crashed) = (&tables.tables[0], disk.after_crash(life));
        for _ in 0..50 {
            given.push(super::put(table, &tables.participant, b"key", b"value"));
        }
        tables.log.close();
        disk = crashed;
    }
    break_rule(None);
    let all = given.len();
    given.sort_unstable();
    given.dedup();
    given.len() < all
}

#[test]
fn no_version_is_given_twice_though_crashes_take_records_that_were_shown() {
    assert!(!gives_a_version_twice(None));
    assert!(gives_a_version_twice(Some(LogRule::VersionsLeaveAGap)), "the rule is checked");
}

#[test]
fn reads_of_other_keys_do_not_wait() {
    let disk = SimulatedDisk::default();
    let tables = start_with(&disk, StorageMode::Store, 1, TableLogging::Awaited);
    let (table, participant) = (&tables.tables[0], &tables.participant);
    super::put(table, participant, b"written", b"value");
    let position = participant.shown().take();
    assert!(position > 0);
    let waits = (0..100u8).filter(|key| {
        super::get(table, participant, &[*key]);
        participant.shown().take() > 0
    });
    assert!(waits.count() <= 1, "keys share a part by chance");
    super::get(table, participant, b"written");
    assert_eq!(participant.shown().take(), position);
    assert!(tables.log.wait(position, LONG));
    assert_eq!(tables.log.state_of(position), PositionState::OnDisk);
}

/// Has a transaction committed against a count of two keys, of which one went and another came; returns whether its
/// answer waits for that.
fn waits_for_what_was_counted(rule: Option<LogRule>) -> bool {
    let disk = SimulatedDisk::default();
    let log = start_with(&disk, StorageMode::Store, 1, TableLogging::Awaited);
    let LoggedTables { participant, tables: [other, _], .. } = &log;
    let table = RecordTable::new(
        TableConfig { ordered: true, quota_bytes: 60_000, ..TableConfig::default() },
        Arc::clone(participant.epochs()),
    );
    table.set_logging(&log.log, 3, TableLogging::Awaited);
    [b"a", b"b"].iter().for_each(|key| _ = super::put(&table, participant, *key, b""));
    let span = KeyRange::new(b"", b"", false);
    let range = |keys| RangeRead { table: &table, span, met: MetInRange::Keys(keys) };
    assert_eq!(table.count_keys(&span), Ok(2));
    let shown = participant.shown().take();
    table.delete(participant, table.hash(b"a"), b"a", StoreCondition::Always, 0).expect("a delete");
    super::put(&table, participant, b"c", b"");
    let changed = participant.shown().take();
    assert!(shown > 0 && changed > shown);
    // As many as there were, and one that there is not: a refusal shows that.
    let waits = [2, 3].map(|keys| {
        let (ranges, changes) = ([range(keys)], &mut []);
        let outcome = commit_with_ranges(participant, &[], &ranges, changes, 0);
        assert_eq!(outcome.is_ok(), keys == 2);
        assert_eq!(participant.shown().take(), 0, "the commit itself makes no change");
        break_rule(rule);
        note_counts(&ranges, participant.shown());
        break_rule(None);
        participant.shown().take() >= changed
    });
    let none = [RangeRead { table: other, span, met: MetInRange::Records(Vec::new()) }];
    note_counts(&none, participant.shown());
    assert_eq!(participant.shown().take(), 0, "records were awaited when they were read");
    assert_eq!(waits[0], waits[1]);
    waits[0]
}

#[test]
fn a_commit_that_rests_on_a_count_waits_for_what_was_counted() {
    assert!(waits_for_what_was_counted(None));
    assert!(!waits_for_what_was_counted(Some(LogRule::WholeReadsAreNoted)), "the rule is checked");
}

#[test]
fn a_table_may_be_logged_later_and_no_longer() {
    let disk = SimulatedDisk::default();
    let tables = start_with(&disk, StorageMode::Store, 1, TableLogging::Off);
    let (table, participant) = (&tables.tables[0], &tables.participant);
    let put = |value: &[u8]| {
        let before = tables.log.end();
        super::put(table, participant, b"key", value);
        (tables.log.end() > before, participant.shown().take() > 0)
    };
    assert_eq!(put(b"1"), (false, false));
    for (logging, expected) in [
        (TableLogging::AtOnce, (true, false)),
        (TableLogging::Awaited, (true, true)),
        (TableLogging::Off, (false, false)),
        (TableLogging::Awaited, (true, true)),
    ] {
        table.set_logging(&Arc::clone(&tables.log), 1, logging);
        assert_eq!(put(b"2"), expected, "{logging:?}");
    }
}

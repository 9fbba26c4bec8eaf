//! The refusals of a commit, after which nothing has happened.

use super::*;
use crate::limits::COMMIT_AHEAD_MS;
use crate::transactions::{LockScope, TableLocks};
use crate::{StoreCondition, StoreError, StripeSet};

#[test]
fn what_was_read_must_be_so_and_what_is_changed_is_changed_everywhere() {
    let (epochs, tables) = tables(2, StorageMode::Store, u64::MAX);
    let participant = epochs.register();
    let [one, two] = &tables[..] else { unreachable!("two tables") };
    let version = put(one, &participant, b"a", b"1");
    put(two, &participant, b"gone", b"x");
    let reads = [read(one, b"a", version), read(two, b"b", 0)];
    let mut changes = [writes(two, b"b", b"3"), deletes(two, b"gone"), writes(one, b"a", b"2"), deletes(one, b"never")];
    assert_eq!(commit(&participant, &reads, &mut changes, 0), Ok(()));
    let (value, newer) = get(one, &participant, b"a", 0).expect("it was written");
    assert!(value == b"2" && newer > version, "{newer} after {version}");
    assert_eq!(get(two, &participant, b"b", 0).expect("it was made").0, b"3");
    assert_eq!(get(two, &participant, b"gone", 0), None);
    // A read no longer holds: for either reason nothing happens.
    for reads in [[read(one, b"a", version), read(two, b"gone", 0)], [read(one, b"a", newer), read(two, b"b", 0)]] {
        let mut changes = [writes(one, b"a", b"lost"), writes(two, b"gone", b"lost")];
        assert_eq!(commit(&participant, &reads, &mut changes, 0), Err(CommitError::Conflict));
        assert_eq!(commit(&participant, &reads, &mut [], 0), Err(CommitError::Conflict), "reading alone as well");
    }
    assert_eq!(get(one, &participant, b"a", 0), Some((b"2".to_vec(), newer)));
    assert_eq!(get(two, &participant, b"gone", 0), None);
}

#[test]
fn a_record_that_was_deleted_and_made_anew_is_another_one() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let participant = epochs.register();
    let table = &tables[0];
    let version = put(table, &participant, b"key", b"same");
    table.delete(&participant, table.hash(b"key"), b"key", StoreCondition::Always, 0).expect("deleted");
    let (before, after) = ([read(table, b"key", version)], [read(table, b"key", 0)]);
    assert_eq!(commit(&participant, &before, &mut [], 0), Err(CommitError::Conflict));
    assert_eq!(commit(&participant, &after, &mut [writes(table, b"key", b"same")], 0), Ok(()));
    assert_eq!(commit(&participant, &before, &mut [], 0), Err(CommitError::Conflict));
    assert_eq!(commit(&participant, &after, &mut [], 0), Err(CommitError::Conflict));
}

#[test]
fn expiry_is_a_change_too_and_time_does_not_go_back_for_commits() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let participant = epochs.register();
    let table = &tables[0];
    let new = Some(NewRecord { value: b"v", flags: 7, expires_at_ms: 100 });
    let mut change = [KeyChange { becomes: new, ..writes(table, b"key", b"") }];
    assert_eq!(commit(&participant, &[], &mut change, 50), Ok(()));
    let version = get(table, &participant, b"key", 99).expect("it lives").1;
    assert_eq!(commit(&participant, &[read(table, b"key", version)], &mut [], 99), Ok(()));
    assert_eq!(commit(&participant, &[read(table, b"key", version)], &mut [], 100), Err(CommitError::Conflict));
    assert_eq!(commit(&participant, &[read(table, b"key", 0)], &mut [], 100), Ok(()));
    // Another thread's clock is behind: a record that was found expired stays so.
    assert_eq!(commit(&participant, &[read(table, b"key", version)], &mut [], 60), Err(CommitError::Conflict));
    assert_eq!(commit(&participant, &[read(table, b"key", 0)], &mut [writes(table, b"key", b"w")], 60), Ok(()));
    assert_eq!(get(table, &participant, b"key", 200).expect("it was made").0, b"w");
    assert_eq!((table.stats().records, table.stats().expirations), (1, 1));
}

#[test]
fn a_snapshot_goes_by_the_clock_of_commits() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let participant = epochs.register();
    let table = &tables[0];
    let expiring = WriteOptions { expires_at_ms: 1000, ..WriteOptions::default() };
    table.put(&participant, table.hash(b"a"), b"a", b"1", &expiring, 0).expect("there is room");
    put(table, &participant, b"b", b"2");
    epochs.commit_time(1001);
    let keys = [b"a", b"b"].map(|key| (table.hash(key), &key[..]));
    let guard = participant.guard();
    let found = snapshot(&participant, &guard, table, &keys, 999);
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true], "as a transaction has found it");
}

#[test]
fn a_clock_that_was_ahead_and_put_back_is_followed_but_for_a_bound() {
    let epochs = Epochs::new();
    let year_ms = 365 * 24 * 3600 * 1000;
    assert_eq!(epochs.commit_time(1000 + year_ms), 1000 + year_ms);
    assert_eq!(epochs.commit_time(1000), 1000 + COMMIT_AHEAD_MS);
    assert_eq!(epochs.commit_time(2000), 1000 + COMMIT_AHEAD_MS, "until the clock has caught up");
    assert_eq!(epochs.commit_time(1001 + COMMIT_AHEAD_MS), 1001 + COMMIT_AHEAD_MS);
    assert_eq!(epochs.latest_commit_ms(), 1001 + COMMIT_AHEAD_MS);
}

#[test]
fn what_is_only_read_is_let_go_before_changes_are_made() {
    let (epochs, tables) = tables(2, StorageMode::Store, u64::MAX);
    let participant = epochs.register();
    let [one, two] = &tables[..] else { unreachable!("two tables") };
    let changes = [writes(one, b"a", b"1")];
    let other = (0..=255_u8).map(|key| [key]).find(|key| {
        let mut own = StripeSet::default();
        own.add(changes[0].hash);
        !own.has(one.hash(key))
    });
    let other = other.expect("there are many stripes");
    let reads = [read(one, b"a", 0), read(one, &other, 0), read(two, b"b", 0)];
    let mut parts = TableLocks::of(&reads, &[], &changes, LockScope::Necessary);
    parts.iter_mut().for_each(|part| part.locked = Some(part.table.exclusive(&participant, part.stripes)));
    let written = || reads.map(|read| read.table.is_write_locked(read.hash));
    assert_eq!(written(), [true; 3]);
    parts.iter_mut().for_each(TableLocks::unlock_unchanged);
    assert_eq!(written(), [true, false, false]);
    let beside = |read: &KeyRead<'_>| parts.iter().any(|part| part.locks_read(read));
    assert_eq!(
        reads.each_ref().map(beside),
        [true, false, false],
        "then a change is announced, though it is the only one"
    );
    let locked = parts.iter_mut().find_map(|part| part.locked.as_mut()).expect("one table is changed");
    let prepared = locked.prepare(&changes, 0).expect("there is room");
    locked.install(prepared, &changes, 0);
    drop(parts);
    assert_eq!(get(one, &participant, b"a", 0).expect("it was made").0, b"1");
}

#[test]
fn room_is_given_back_when_it_is_certain() {
    let (epochs, tables) = tables(1, StorageMode::Store, 4096);
    let participant = epochs.register();
    let table = &tables[0];
    put(table, &participant, b"a", &[0; 3000]);
    let (before, changes) = (table.stats().bytes, [writes(table, b"a", b"short")]);
    let mut stripes = StripeSet::default();
    stripes.add(changes[0].hash);
    let mut locked = table.exclusive(&participant, stripes);
    let prepared = locked.prepare(&changes, 0).expect("it shrinks");
    assert_eq!(table.stats().bytes, before, "others might take it, and the commit still be refused by another table");
    locked.abandon(prepared);
    assert_eq!(table.stats().bytes, before);
    let prepared = locked.prepare(&changes, 0).expect("it shrinks");
    locked.install(prepared, &changes, 0);
    drop(locked);
    assert!(table.stats().bytes < before - 2900);
    assert_eq!(commit(&participant, &[], &mut [deletes(table, b"a")], 0), Ok(()));
    assert_eq!(table.stats().bytes, 0, "accounted for to the byte");
}

#[test]
fn a_commit_that_does_not_fit_is_refused_whole() {
    let (epochs, tables) = tables(2, StorageMode::Store, 4096);
    let participant = epochs.register();
    let [one, two] = &tables[..] else { unreachable!("two tables") };
    put(one, &participant, b"a", b"1");
    put(two, &participant, b"full", &[0; 3500]);
    let before = (one.stats().bytes, two.stats().bytes);
    let large = [1; 1000];
    let mut changes = [writes(one, b"a", b"2"), writes(one, b"b", &large), writes(two, b"b", &large)];
    let refused = Err(CommitError::Refused(StoreError::OutOfMemory));
    assert_eq!(commit(&participant, &[], &mut changes, 0), refused);
    // Several that fit one by one, but not together.
    let keys: Vec<_> = (0..10u8).map(|key| [key]).collect();
    let mut many: Vec<_> = keys.iter().map(|key| writes(one, key, &large[..500])).collect();
    assert_eq!(commit(&participant, &[], &mut many, 0), refused);
    assert_eq!(get(one, &participant, b"a", 0).expect("it is there").0, b"1");
    assert_eq!((one.stats().records, two.stats().records), (1, 1));
    assert_eq!((one.stats().bytes, two.stats().bytes), before);
    // The commit's own deletes make room.
    let mut changes = [deletes(two, b"full"), writes(two, b"b", &large), writes(one, b"b", &large)];
    assert_eq!(commit(&participant, &[], &mut changes, 0), Ok(()));
    let mut changes = [deletes(two, b"b"), deletes(one, b"b"), deletes(one, b"a")];
    assert_eq!(commit(&participant, &[], &mut changes, 0), Ok(()));
    assert_eq!((one.stats().bytes, two.stats().bytes, one.stats().records), (0, 0, 0), "accounted for to the byte");
}

#[test]
fn a_cache_makes_room_for_a_commit() {
    let (epochs, tables) = tables(1, StorageMode::Cache, 64 << 10);
    let mut participant = epochs.register();
    let (table, value) = (&tables[0], [3; 400]);
    for round in 0..scaled(400, 20) as u32 {
        let keys: Vec<_> = (0..8).map(|key| (round * 5 + key).to_le_bytes()).collect();
        let mut changes: Vec<_> =
            keys.iter().map(|key| writes(table, key, &value[..100 + round as usize % 300])).collect();
        assert_eq!(commit(&participant, &[], &mut changes, 0), Ok(()));
        assert!(keys.iter().all(|key| get(table, &participant, key, 0).is_some()), "none of its own was evicted");
        assert!(table.stats().bytes <= 64 << 10);
        participant.quiescent();
    }
    assert!(table.stats().evictions > 0 || cfg!(miri));
    let keys: Vec<_> = (0..200u32).map(|key| (1 << 20 | key).to_le_bytes()).collect();
    let mut too_many: Vec<_> = keys.iter().map(|key| writes(table, key, &value)).collect();
    assert_eq!(commit(&participant, &[], &mut too_many, 0), Err(CommitError::Refused(StoreError::OutOfMemory)));
    assert!(keys.iter().all(|key| get(table, &participant, key, 0).is_none()));
    table.clear(&participant).expect("no log");
    assert_eq!(table.stats().bytes, 0, "accounted for to the byte");
}

#[test]
fn keys_and_values_are_bounded_and_a_key_is_changed_once() {
    let (epochs, tables) = tables(2, StorageMode::Store, u64::MAX);
    let participant = epochs.register();
    let [one, two] = &tables[..] else { unreachable!("two tables") };
    let (long, value) = (vec![0; (64 << 10) + 1], vec![0; (64 << 10) + 1]);
    let commit = |changes: &mut [KeyChange<'_>]| commit(&participant, &[], changes, 0);
    let too_long = [StoreError::KeyTooLarge, StoreError::ValueTooLarge].map(|error| Err(CommitError::Refused(error)));
    assert_eq!(commit(&mut [writes(one, b"a", b""), writes(one, &long, b"")]), too_long[0]);
    assert_eq!(commit(&mut [writes(one, b"a", b""), writes(two, b"a", &value)]), too_long[1]);
    assert_eq!(commit(&mut [writes(one, b"a", b""), deletes(one, b"a")]), Err(CommitError::DuplicateKey));
    assert_eq!((one.stats().records, two.stats().records), (0, 0));
    assert_eq!(commit(&mut [writes(one, b"a", b""), writes(two, b"a", b"")]), Ok(()), "the same key in two tables");
}

#[test]
fn large_commits_grow_a_table_and_lose_nothing() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let mut participant = epochs.register();
    let table = &tables[0];
    let (rounds, each) = (scaled(40, 2) as u32, 256);
    for round in 0..rounds {
        let keys: Vec<_> = (0..each).map(|key| (round * each + key).to_le_bytes()).collect();
        let mut changes: Vec<_> = keys.iter().map(|key| writes(table, key, key)).collect();
        let reads: Vec<_> = keys.iter().map(|key| read(table, key, 0)).collect();
        assert_eq!(commit(&participant, &reads, &mut changes, 0), Ok(()), "round {round}");
        participant.quiescent();
    }
    assert_eq!(table.stats().records, u64::from(rounds * each));
    for key in 0..rounds * each {
        assert_eq!(get(table, &participant, &key.to_le_bytes(), 0).expect("it is there").0, key.to_le_bytes());
    }
}

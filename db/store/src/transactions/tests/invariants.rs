//! Several threads: sums that no reader ever sees changed, and a token that is always in exactly one of its slots.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const ACCOUNTS: usize = 24;
const EACH: u64 = 1000;

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("8 bytes"))
}

/// The account's table and key.
fn account(tables: &[RecordTable], index: usize) -> (&RecordTable, [u8; 1]) {
    (&tables[index % tables.len()], [index as u8])
}

/// Moves an amount between two accounts; the accounts of one seldom chosen are deleted at zero and made anew.
fn transfer(tables: &[RecordTable], participant: &Participant, random: &mut Random) {
    let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
    let amount = random.below(300) as u64;
    let ((from_table, from), (to_table, to)) = (account(tables, from), account(tables, to));
    let source = get(from_table, participant, &from, 0);
    if random.below(3) == 0 {
        std::thread::yield_now();
    }
    let target = get(to_table, participant, &to, 0);
    let balance = |account: &Option<(Vec<u8>, u64)>| account.as_ref().map_or(0, |(value, _)| number(value));
    if balance(&source) < amount || from == to {
        return;
    }
    let rests = [balance(&source) - amount, balance(&target) + amount].map(u64::to_le_bytes);
    let version = |account: &Option<(Vec<u8>, u64)>| account.as_ref().map_or(0, |(_, version)| *version);
    let reads = [read(from_table, &from, version(&source)), read(to_table, &to, version(&target))];
    let mut changes = [writes(from_table, &from, &rests[0]), writes(to_table, &to, &rests[1])];
    if number(&rests[0]) == 0 {
        changes[0].becomes = None;
    }
    match commit(participant, &reads, &mut changes, 0) {
        Ok(()) | Err(CommitError::Conflict) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_reader_finds_the_sum() {
    let (epochs, tables) = tables(2, StorageMode::Store, u64::MAX);
    let first = epochs.register();
    for index in 0..ACCOUNTS {
        let (table, key) = account(&tables, index);
        put(table, &first, &key, &EACH.to_le_bytes());
    }
    drop(first);
    let (transfers, movers) = (deep(scaled(20_000, 30)), AtomicUsize::new(3));
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (epochs, tables, movers) = (&epochs, &tables, &movers);
            scope.spawn(move || {
                let (mut participant, mut random) = (epochs.register(), Random(seed));
                for _ in 0..transfers {
                    transfer(tables, &participant, &mut random);
                    participant.quiescent();
                }
                movers.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let mut participant = epochs.register();
        let mut reads = 0;
        while movers.load(Ordering::SeqCst) > 0 || reads == 0 {
            reads += usize::from(sum_by_reads(&tables, &participant));
            participant.quiescent();
        }
    });
    let participant = epochs.register();
    assert!(sum_by_reads(&tables, &participant), "nobody writes any more");
}

/// Reads all accounts, checks that they were so at one moment and what they add up to; returns whether they were.
fn sum_by_reads(tables: &[RecordTable], participant: &Participant) -> bool {
    let accounts: Vec<_> = (0..ACCOUNTS).map(|index| account(tables, index)).collect();
    let found: Vec<_> = accounts.iter().map(|(table, key)| get(table, participant, key, 0)).collect();
    let reads: Vec<_> = (accounts.iter().zip(&found))
        .map(|((table, key), found)| read(table, key, found.as_ref().map_or(0, |(_, version)| *version)))
        .collect();
    if commit(participant, &reads, &mut [], 0) == Err(CommitError::Conflict) {
        return false;
    }
    let sum: u64 = found.iter().flatten().map(|(value, _)| number(value)).sum();
    assert_eq!(sum, ACCOUNTS as u64 * EACH);
    true
}

#[test]
fn a_snapshot_finds_the_sum_every_time() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let first = epochs.register();
    for index in 0..ACCOUNTS {
        put(&tables[0], &first, &[index as u8], &EACH.to_le_bytes());
    }
    drop(first);
    let reads = deep(scaled(3_000, 10));
    let lookers = AtomicUsize::new(1);
    std::thread::scope(|scope| {
        for seed in 10..12 {
            let (epochs, tables, lookers) = (&epochs, &tables, &lookers);
            scope.spawn(move || {
                let (mut participant, mut random) = (epochs.register(), Random(seed));
                while lookers.load(Ordering::SeqCst) > 0 {
                    transfer(tables, &participant, &mut random);
                    participant.quiescent();
                }
            });
        }
        let (mut participant, table) = (epochs.register(), &tables[0]);
        let keys: Vec<_> = (0..ACCOUNTS as u8).map(|key| [key]).collect();
        let keys: Vec<_> = keys.iter().map(|key| (table.hash(key), &key[..])).collect();
        for _ in 0..reads {
            let guard = participant.guard();
            let found = snapshot(&participant, &guard, table, &keys, 0);
            let sum: u64 = found.iter().flatten().map(|record| number(record.value())).sum();
            assert_eq!(sum, ACCOUNTS as u64 * EACH);
            participant.quiescent();
        }
        lookers.fetch_sub(1, Ordering::SeqCst);
    });
}

/// A token moves between slots by a delete and a put. Plain gets never find two of it one after the other in the wrong
/// order: a reader that has seen number n in one slot finds nothing older in any.
#[test]
fn plain_gets_see_all_of_a_commit_or_nothing() {
    let (epochs, tables) = tables(2, StorageMode::Store, u64::MAX);
    let first = epochs.register();
    let keys: Vec<_> = (0..8u8).map(|key| [key]).collect();
    for (index, key) in keys.iter().enumerate() {
        put(&tables[index % 2], &first, key, &0u64.to_le_bytes());
    }
    drop(first);
    let (rounds, writing) = (deep(scaled(20_000, 40)) as u64, AtomicUsize::new(1));
    std::thread::scope(|scope| {
        let (epochs, tables, keys, writing) = (&epochs, &tables, &keys, &writing);
        scope.spawn(move || {
            let mut participant = epochs.register();
            for round in 1..=rounds {
                let value = round.to_le_bytes();
                let mut changes: Vec<_> =
                    keys.iter().enumerate().map(|(index, key)| writes(&tables[index % 2], key, &value)).collect();
                commit(&participant, &[], &mut changes, 0).expect("nobody else writes");
                participant.quiescent();
            }
            writing.fetch_sub(1, Ordering::SeqCst);
        });
        for seed in 0..2 {
            scope.spawn(move || {
                let (mut participant, mut random, mut newest) = (epochs.register(), Random(seed), 0);
                while writing.load(Ordering::SeqCst) > 0 {
                    let index = random.below(keys.len());
                    let seen = get(&tables[index % 2], &participant, &keys[index], 0).expect("it is always there");
                    let seen = number(&seen.0);
                    assert!(seen >= newest, "{seen} after {newest}: a commit was seen in part");
                    newest = seen;
                    participant.quiescent();
                }
            });
        }
    });
}

/// Two may be on call, one must: each reads both and leaves if the other is there (write skew). Where neither is, each
/// comes if the other is absent (two absent reads).
#[test]
fn write_skew_is_refused() {
    let (epochs, tables) = tables(2, StorageMode::Store, u64::MAX);
    let participant = epochs.register();
    for round in 0..deep(scaled(2_000, 20)) {
        let present = round % 2 == 0;
        for table in &tables {
            if present {
                put(table, &participant, b"here", b"");
            } else {
                table.delete(&participant, table.hash(b"here"), b"here", Default::default(), 0).expect("deleted");
            }
        }
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for own in 0..2 {
                let (epochs, tables, start) = (&epochs, &tables, &start);
                scope.spawn(move || {
                    let participant = epochs.register();
                    let other = &tables[1 - own];
                    let version = get(other, &participant, b"here", 0).map_or(0, |(_, version)| version);
                    start.wait();
                    let mut change = [writes(&tables[own], b"here", b"")];
                    if present {
                        change[0].becomes = None;
                    }
                    let _either = commit(&participant, &[read(other, b"here", version)], &mut change, 0);
                });
            }
        });
        let here = tables.iter().filter(|table| get(table, &participant, b"here", 0).is_some()).count();
        assert_eq!(here, 1, "round {round}");
    }
}

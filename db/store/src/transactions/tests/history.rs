//! Histories of concurrent transactions, checked for serialisability. The reads and writes of each are recorded, with
//! versions. Then the graph of necessary precedence must have no cycle. One precedes another if it wrote what the other
//! read, was overwritten by the other, read what the other overwrote, or ended before the other of the same thread
//! began.
//!
//! A range is a read of every key that it may contain, absent ones included: the maker of one of them came after.
//!
//! Each value names the transaction that wrote it. A key's versions, as reads have seen them, give the order of its
//! writes. Keys of one kind are only ever made, so that an absent read comes before the one that made the key.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::*;

/// Keys that are always there, and that are made once, in each table.
const KEYS: usize = 6;
const MADE_ONCE: usize = 120;

/// A transaction that was committed, by its number.
#[derive(Debug, Default)]
struct Done {
    id: u64,
    /// Key, version (0: absent), and the number of its writer.
    reads: Vec<(usize, u64, u64)>,
    writes: Vec<usize>,
}

fn name(key: usize) -> [u8; 2] {
    (key as u16).to_le_bytes()
}

fn id_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("8 bytes"))
}

fn table_of(tables: &[RecordTable], key: usize) -> &RecordTable {
    &tables[key % tables.len()]
}

/// Reads some keys, writes some of them and some others.
fn transaction(tables: &[RecordTable], participant: &Participant, random: &mut Random, id: u64) -> Option<Done> {
    let mut done = Done { id, ..Done::default() };
    let guard = participant.guard();
    let ends = [random.below(KEYS + MADE_ONCE), random.below(20)];
    let (from, to) = (name(ends[0]), name(ends[0] + ends[1]));
    let span = KeyRange::new(&from, &to, random.below(2) == 0);
    let ranged = (random.below(3) == 0).then(|| random.below(tables.len()));
    let mut ranges = Vec::new();
    let mut in_range = Vec::new();
    if let Some(index) = ranged {
        let records = read_all(&guard, &tables[index], span);
        ranges.push(range_read(&tables[index], span, &records));
        in_range = seen_in(tables.len(), index, ends[0]..ends[0] + ends[1], &records);
    }
    for _ in 0..random.below(5) {
        let key = if random.below(4) == 0 { KEYS + random.below(MADE_ONCE) } else { random.below(KEYS) };
        if done.reads.iter().all(|(read, ..)| *read != key) {
            let found = get(table_of(tables, key), participant, &name(key), 0);
            done.reads.push(found.map_or((key, 0, 0), |(value, version)| (key, version, id_of(&value))));
        }
        if random.below(2) == 0 {
            std::thread::yield_now();
        }
    }
    for (key, version, _) in &done.reads {
        // A transaction makes such a key only after it has seen that it is absent; some only look.
        if if *key >= KEYS { *version == 0 && random.below(3) != 0 } else { random.below(2) == 0 } {
            done.writes.push(*key);
        }
    }
    let blind = random.below(KEYS);
    if random.below(3) == 0 && !done.writes.contains(&blind) {
        done.writes.push(blind);
    }
    // Such keys are also made after a range has shown that they are absent.
    for _ in 0..if in_range.is_empty() { 0 } else { random.below(3) } {
        let (key, version, _) = in_range[random.below(in_range.len())];
        if (key < KEYS || version == 0) && !done.writes.contains(&key) {
            done.writes.push(key);
        }
    }
    let (names, value) = (done.reads.iter().map(|(key, ..)| name(*key)).collect::<Vec<_>>(), id.to_le_bytes());
    let reads: Vec<_> = (done.reads.iter().zip(&names))
        .map(|((key, version, _), name)| read(table_of(tables, *key), name, *version))
        .collect();
    let names: Vec<_> = done.writes.iter().map(|key| (*key, name(*key))).collect();
    let mut changes: Vec<_> = names.iter().map(|(key, name)| writes(table_of(tables, *key), name, &value)).collect();
    match commit_with_ranges(participant, &reads, &ranges, &mut changes, 0) {
        Ok(()) => {
            done.reads.extend(in_range);
            Some(done)
        }
        Err(CommitError::Conflict) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Returns what a range of a table shows of each key that it may contain.
fn seen_in(tables: usize, table: usize, keys: Range<usize>, records: &[RecordRef<'_>]) -> Vec<(usize, u64, u64)> {
    let of_table = keys.filter(|key| key % tables == table && *key < KEYS + MADE_ONCE);
    let found = |key: &usize| records.iter().find(|record| record.key() == name(*key));
    let seen = of_table.map(|key| match found(&key) {
        Some(record) => (key, record.version(), id_of(record.value())),
        None => (key, 0, 0),
    });
    seen.collect()
}

/// A single write, or reads of one moment, of a client that does not use transactions.
fn plain(tables: &[RecordTable], participant: &Participant, random: &mut Random, id: u64) -> Done {
    let key = random.below(KEYS);
    let mut done = Done { id, ..Done::default() };
    if random.below(2) == 0 {
        put(table_of(tables, key), participant, &name(key), &id.to_le_bytes());
        done.writes.push(key);
        return done;
    }
    let (table, guard) = (table_of(tables, key), participant.guard());
    if random.below(2) == 0 {
        let span = KeyRange::new(b"", b"", random.below(2) == 0);
        let all = at_once(participant, &guard, table, span, 1_000);
        assert_eq!(all.on, None);
        done.reads = seen_in(tables.len(), key % tables.len(), 0..KEYS + MADE_ONCE, &all.records);
        return done;
    }
    let keys: Vec<_> = (0..KEYS + MADE_ONCE).filter(|other| other % tables.len() == key % tables.len()).collect();
    let names: Vec<_> = keys.iter().map(|key| name(*key)).collect();
    let hashed: Vec<_> = names.iter().map(|name| (table.hash(name), &name[..])).collect();
    for (key, record) in keys.into_iter().zip(snapshot(participant, &guard, table, &hashed, 0)) {
        done.reads.push(record.map_or((key, 0, 0), |record| (key, record.version(), id_of(record.value()))));
    }
    done
}

fn run(seed: u64, threads: u64, each: u64) -> Vec<Vec<Done>> {
    let (epochs, tables) = tables(2, StorageMode::Store, u64::MAX);
    let first = epochs.register();
    for key in 0..KEYS {
        put(table_of(&tables, key), &first, &name(key), &0u64.to_le_bytes());
    }
    drop(first);
    std::thread::scope(|scope| {
        let (epochs, tables) = (&epochs, &tables);
        let work = |thread: u64| {
            let (mut participant, mut random) = (epochs.register(), Random(seed * 31 + thread));
            let mut history = Vec::new();
            for number in 1..=each {
                let id = thread << 32 | number;
                let done = match random.below(6) {
                    0 => Some(plain(tables, &participant, &mut random, id)),
                    _ => transaction(tables, &participant, &mut random, id),
                };
                history.extend(done);
                participant.quiescent();
            }
            history
        };
        let running: Vec<_> = (1..=threads).map(|thread| scope.spawn(move || work(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("no thread fails")).collect()
    })
}

/// The necessary precedences, by number; 0 made the initial records.
fn graph(history: &[Vec<Done>]) -> HashMap<u64, Vec<u64>> {
    let mut before: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut versions: HashMap<usize, BTreeMap<u64, u64>> = HashMap::new();
    for (key, version, writer) in history.iter().flatten().flat_map(|done| &done.reads) {
        let known = versions.entry(*key).or_default();
        // Absent is the earlier state of a key that is made once.
        assert_eq!(*known.entry(*version).or_insert(*writer), *writer, "two wrote one version of a key");
    }
    for order in versions.values() {
        for ((_, first), (_, second)) in order.iter().zip(order.iter().skip(1)) {
            before.entry(*first).or_default().push(*second);
        }
    }
    for done in history.iter().flatten() {
        for (key, version, writer) in &done.reads {
            before.entry(*writer).or_default().push(done.id);
            let next = versions[key].range(version + 1..).next();
            if let Some((_, next)) = next.filter(|(_, next)| **next != done.id) {
                before.entry(done.id).or_default().push(*next);
            }
        }
    }
    for thread in history {
        for pair in thread.windows(2) {
            before.entry(pair[0].id).or_default().push(pair[1].id);
        }
    }
    before
}

/// Returns a transaction on a cycle, if there is one: a remainder when all without predecessors are removed, again and
/// again.
fn cycle(before: &HashMap<u64, Vec<u64>>) -> Option<u64> {
    let mut predecessors: HashMap<u64, usize> = before.keys().map(|id| (*id, 0)).collect();
    for next in before.values().flatten() {
        *predecessors.entry(*next).or_default() += 1;
    }
    let mut free: Vec<u64> = predecessors.iter().filter(|(_, count)| **count == 0).map(|(id, _)| *id).collect();
    while let Some(id) = free.pop() {
        predecessors.remove(&id);
        for next in before.get(&id).into_iter().flatten() {
            if let Some(count) = predecessors.get_mut(next) {
                *count -= 1;
                if *count == 0 {
                    free.push(*next);
                }
            }
        }
    }
    predecessors.into_keys().next()
}

#[test]
fn histories_have_no_cycles() {
    let each = scaled(1_500, 12) as u64;
    let mut committed = 0;
    for seed in 0..deep(scaled(12, 1)) as u64 {
        let history = run(seed, 4, each);
        let found = cycle(&graph(&history));
        assert_eq!(found, None, "seed {seed}: {:?}", history.iter().flatten().find(|done| Some(done.id) == found));
        committed += history.iter().map(Vec::len).sum::<usize>();
    }
    assert!(committed > 0);
}

#[test]
fn the_checker_finds_a_cycle() {
    // Write skew: each reads what the other overwrites.
    let one = Done { id: 1, reads: vec![(0, 5, 0), (1, 5, 0)], writes: vec![0] };
    let two = Done { id: 2, reads: vec![(0, 5, 0), (1, 5, 0)], writes: vec![1] };
    let later = Done { id: 3, reads: vec![(0, 6, 1), (1, 6, 2)], writes: vec![] };
    let mut history = vec![vec![one], vec![two], vec![later]];
    assert!(cycle(&graph(&history)).is_some());
    history[1][0].reads[0] = (0, 6, 1);
    assert_eq!(cycle(&graph(&history)), None);
}

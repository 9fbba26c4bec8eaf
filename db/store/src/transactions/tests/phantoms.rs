//! A range that a transaction has read is unchanged when it is committed: no thread has added to it, removed from it,
//! or changed it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Records that there may be between the two ends, at most.
const SEATS: usize = 3;

/// One of the running threads, until it is dropped, after a failure too.
struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Takes a seat if one is free, or gives one back; returns whether that was committed. Alone, it never lets there be
/// too many; two that each see the last free seat and take different ones would.
fn sit(table: &RecordTable, participant: &Participant, random: &mut Random) -> bool {
    let guard = participant.guard();
    let span = KeyRange::new(b"b", b"y", random.below(2) == 0);
    let records = read_all(&guard, table, span);
    let mut ranges = [range_read(table, span, &records)];
    if random.below(2) == 0 {
        // That they are so many is all that counts: which they are may change.
        ranges[0].met = MetInRange::Keys(records.len() as u64);
    }
    let key = [b'b' + random.below(20) as u8, random.below(200) as u8];
    let taken = records.iter().any(|record| record.key() == key);
    let mut changes = Vec::new();
    if records.len() < SEATS && random.below(4) != 0 {
        if !taken {
            changes.push(writes(table, &key, b"taken"));
        }
    } else if let Some(record) = records.first() {
        changes.push(deletes(table, record.key()));
    }
    match commit_with_ranges(participant, &[], &ranges, &mut changes, 0) {
        Ok(()) => true,
        Err(CommitError::Conflict) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn no_two_take_the_last_seat() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let (table, rounds) = (&tables[0], scaled(4_000, 20));
    let (running, committed) = (AtomicUsize::new(3), AtomicUsize::new(0));
    let first = epochs.register();
    // Records beside the range play no part in it.
    put(table, &first, b"a", b"");
    put(table, &first, b"y", b"");
    drop(first);
    std::thread::scope(|scope| {
        let (epochs, running, committed) = (&epochs, &running, &committed);
        for thread in 0..3 {
            scope.spawn(move || {
                let _leaves = Leaves(running);
                let (mut participant, mut random) = (epochs.register(), Random(thread * 77 + 5));
                for _ in 0..rounds {
                    committed.fetch_add(usize::from(sit(table, &participant, &mut random)), Ordering::Relaxed);
                    participant.quiescent();
                }
            });
        }
        let mut participant = epochs.register();
        while running.load(Ordering::Acquire) != 0 {
            let guard = participant.guard();
            let span = KeyRange::new(b"b", b"y", false);
            let seats = at_once(&participant, &guard, table, span, 100).records.len();
            assert!(seats <= SEATS, "{seats} have a seat");
            participant.quiescent();
        }
    });
    assert!(committed.into_inner() > 0);
}

/// The rows that were read.
fn rows<'s, 'k>(seen: &'s mut RangeRead<'k>) -> &'s mut Vec<(&'k [u8], u64)> {
    let MetInRange::Records(rows) = &mut seen.met else { panic!("its keys were counted") };
    rows
}

#[test]
fn what_is_committed_against_a_count_is_refused_when_there_are_more_or_fewer_keys() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let (table, participant) = (&tables[0], epochs.register());
    [&b"a"[..], b"c", b"m", b"z"].iter().for_each(|key| _ = put(table, &participant, key, b""));
    let span = KeyRange::new(b"b", b"y", false);
    let outcome = |count| {
        let seen = [RangeRead { table, span, met: MetInRange::Keys(count) }];
        commit_with_ranges(&participant, &[], &seen, &mut [], 0)
    };
    assert_eq!((table.count_keys(&span), outcome(2)), (Ok(2), Ok(())));
    assert_eq!([1, 3].map(outcome), [Err(CommitError::Conflict); 2]);
    put(table, &participant, b"azzz", b"before it");
    put(table, &participant, b"m", b"changed, and as many as before");
    commit(&participant, &[], &mut [deletes(table, b"c"), writes(table, b"d", b"")], 0).expect("nobody else writes");
    assert_eq!(outcome(2), Ok(()), "others, and as many");
    put(table, &participant, b"n", b"");
    assert_eq!((outcome(2), outcome(3)), (Err(CommitError::Conflict), Ok(())));
}

#[test]
fn what_is_committed_against_a_range_is_refused_when_a_row_has_come_gone_or_changed() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let (table, participant) = (&tables[0], epochs.register());
    [&b"a"[..], b"c", b"m", b"z"].iter().for_each(|key| _ = put(table, &participant, key, b""));
    let guard = participant.guard();
    for backward in [false, true] {
        let span = KeyRange::new(b"b", b"y", backward);
        let mut seen = range_read(table, span, &read_all(&guard, table, span));
        let validate =
            |seen: &RangeRead<'_>| commit_with_ranges(&participant, &[], std::slice::from_ref(seen), &mut [], 0);
        assert_eq!(validate(&seen), Ok(()));
        let row = rows(&mut seen).pop().expect("two rows");
        assert_eq!(validate(&seen), Err(CommitError::Conflict), "a row more than was seen");
        rows(&mut seen).extend([row, (b"zz", 1)]);
        assert_eq!(validate(&seen), Err(CommitError::Conflict), "a row less");
        rows(&mut seen).pop();
        rows(&mut seen).reverse();
        assert_eq!(validate(&seen), Err(CommitError::Conflict), "in another order");
        rows(&mut seen).reverse();
        put(table, &participant, b"azzz", b"before it");
        put(table, &participant, b"y", b"at its end");
        assert_eq!(validate(&seen), Ok(()));
        put(table, &participant, b"m", b"changed");
        assert_eq!(validate(&seen), Err(CommitError::Conflict), "a changed row");
    }
}

/// Other records may come and go between two checks: a record that is there again has another version.
#[test]
fn a_row_that_went_and_came_again_is_another() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let (table, participant) = (&tables[0], epochs.register());
    put(table, &participant, b"c", b"same");
    let guard = participant.guard();
    let span = KeyRange::new(b"", b"", false);
    let seen = [range_read(table, span, &read_all(&guard, table, span))];
    commit(&participant, &[], &mut [deletes(table, b"c")], 0).expect("nobody else writes");
    put(table, &participant, b"c", b"same");
    let outcome = commit_with_ranges(&participant, &[], &seen, &mut [writes(table, b"d", b"")], 0);
    assert_eq!((outcome, get(table, &participant, b"d", 0)), (Err(CommitError::Conflict), None));
}

#[test]
fn a_range_full_of_expired_records_is_got_through_in_several_tries() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let (table, mut participant) = (&tables[0], epochs.register());
    let expired = crate::limits::RANGE_EXPIRED_PER_COMMIT * 2 + 10;
    let write = WriteOptions { expires_at_ms: 5, ..WriteOptions::default() };
    for number in 0..if cfg!(miri) { 0 } else { expired as u32 } {
        let key = number.to_be_bytes();
        table.put(&participant, table.hash(&key), &key, b"", &write, 0).expect("there is room");
    }
    let span = KeyRange::new(b"", b"", false);
    let mut tries = 0;
    loop {
        let seen = [RangeRead { table, span, met: MetInRange::Records(Vec::new()) }];
        match commit_with_ranges(&participant, &[], &seen, &mut [], 10) {
            Ok(()) => break,
            Err(error) => assert_eq!(error, CommitError::Conflict),
        }
        tries += 1;
        participant.quiescent();
    }
    assert!(tries <= 3, "{tries} tries");
    assert_eq!(table.stats().records, 0);
}

/// Signals when it is dropped, after a failure too, so that threads that wait for that end as well.
struct Says<'a>(&'a AtomicBool);

impl Drop for Says<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Readers of one moment beside a writer that never stops.
#[test]
fn a_snapshot_of_a_range_shows_both_records_of_a_commit_or_none() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let (table, done) = (&tables[0], AtomicBool::new(false));
    let commits = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (epochs, done, commits) = (&epochs, &done, &commits);
        let _says = Says(done);
        scope.spawn(move || {
            let (mut participant, mut random) = (epochs.register(), Random(3));
            while !done.load(Ordering::Acquire) {
                let number = random.below(100) as u8;
                // Far from each other in the range.
                let keys = [[0, number], [1, number]];
                let inserts = random.below(2) == 0;
                let change = |key| if inserts { writes(table, key, b"") } else { deletes(table, key) };
                let mut changes = [change(&keys[0][..]), change(&keys[1][..])];
                commit(&participant, &[], &mut changes, 0).expect("nobody else writes");
                commits.fetch_add(1, Ordering::Release);
                participant.quiescent();
            }
        });
        let mut participant = epochs.register();
        // Rounds that the writer had no part in do not count.
        let mut rounds = 0;
        while rounds < scaled(2_000, 3) {
            let before = commits.load(Ordering::Acquire);
            let guard = participant.guard();
            let span = KeyRange::new(b"", b"", false);
            let all = at_once(&participant, &guard, table, span, 1_000);
            let (first, second): (Vec<_>, Vec<_>) = all.records.iter().map(RecordRef::key).partition(|key| key[0] == 0);
            assert!(first.iter().map(|key| key[1]).eq(second.iter().map(|key| key[1])), "{first:?} {second:?}");
            rounds += usize::from(commits.load(Ordering::Acquire) != before);
            participant.quiescent();
        }
    });
}

/// A range of many rows takes long to check; a reader of a key that the transaction changes does not wait for that.
#[test]
fn who_reads_a_change_does_not_wait_until_ranges_were_looked_at() {
    let (epochs, tables) = tables(1, StorageMode::Store, u64::MAX);
    let (participant, tables) = (epochs.register(), std::sync::Arc::new(tables));
    put(&tables[0], &participant, b"key", b"1");
    put(&tables[0], &participant, b"other", b"1");
    let records = read_all(&participant.guard(), &tables[0], KeyRange::new(b"a", b"z", false))
        .iter()
        .map(|record| (record.key().to_vec(), record.version()))
        .collect::<Vec<_>>();
    let rows = records.iter().map(|(key, version)| (&key[..], *version)).collect();
    let met = MetInRange::Records(rows);
    let ranges = [RangeRead { table: &tables[0], span: KeyRange::new(b"a", b"z", false), met }];
    let read = std::sync::Arc::new(AtomicBool::new(false));
    let (table, has_read) = (std::sync::Arc::clone(&tables), std::sync::Arc::clone(&read));
    pause::next_ranges(move || {
        let hash = table[0].hash(b"key");
        assert!(table[0].is_write_locked(hash), "nobody else writes it meanwhile");
        assert!(!table[0].is_commit_announced(hash), "but it can be read");
        has_read.store(true, Ordering::SeqCst);
    });
    let mut changes = [writes(&tables[0], b"key", b"2"), writes(&tables[0], b"other", b"2")];
    assert_eq!(commit_with_ranges(&participant, &[], &ranges, &mut changes, 0), Ok(()));
    assert!(read.load(Ordering::SeqCst));
    assert_eq!(get(&tables[0], &participant, b"key", 0).expect("it is there").0, b"2");
}

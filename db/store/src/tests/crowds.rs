//! Keys that a tenant chooses so that they collide: they are refused at a bound, and harm no other key.

use super::*;
use crate::limits::{CHAIN_RECORDS, DOUBLING_BUCKETS, MAX_CHAIN_BUCKETS, MAX_MOVED_CHAIN_BUCKETS};
use crate::slabs::scarce;
use crate::transactions::{CommitError, KeyChange, NewRecord, commit};
use crate::{StoreCondition, StoreError};

/// A record whose hash is given, since callers give it: finding a key of that hash would take some time.
fn put_at(table: &RecordTable, participant: &Participant, hash: u64) -> Result<u64, StoreError> {
    table.put(participant, hash, &hash.to_le_bytes(), b"value", &WriteOptions::default(), 0)
}

fn is_at(table: &RecordTable, participant: &Participant, hash: u64) -> bool {
    table.get(&participant.guard(), hash, &hash.to_le_bytes(), 0).is_some_and(|record| record.value() == b"value")
}

/// Distinct hashes in no order.
fn spread(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Such hashes whose first eight bits are given: a bucket with a crowd has no room, for any writer.
fn others(are: impl Fn(u64) -> bool) -> impl Iterator<Item = u64> {
    (0..u64::MAX).map(spread).filter(move |hash| are(hash >> 56))
}

fn buckets(table: &RecordTable) -> u64 {
    table.stats().capacity / 4
}

/// The first hash of bucket `index` of the table's array.
fn border(table: &RecordTable, index: u64) -> u64 {
    (u128::from(index) << 64).div_ceil(u128::from(buckets(table))) as u64
}

#[test]
fn chosen_keys_of_one_bucket_do_not_stop_growth() {
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    // Keys of the last 4,096th of all hashes: one bucket of every array up to there, which is moved last.
    let chosen: Vec<_> =
        (0..u64::MAX).map(u64::to_be_bytes).filter(|key| table.hash(key) >> 52 == 0xfff).take(44).collect();
    let (first, second) = chosen.split_at(CHAIN_RECORDS);
    first.iter().for_each(|key| {
        put(&table, &participant, key, b"chosen");
    });
    // Others, of all stripes but theirs: the bucket itself has no room, for any writer.
    let mut others = (0..u64::MAX).filter(|key| table.hash(&key.to_le_bytes()) >> 58 != 63);
    let (mut records, mut there) = (Vec::new(), first.to_vec());
    let mut put_another = |participant: &Participant| {
        let key = others.next().expect("there are many");
        put(&table, participant, &key.to_le_bytes(), b"other");
        records.push(key);
    };
    while !table.is_growing(&participant.guard()) {
        put_another(&participant);
    }
    for key in second {
        // It may be refused, for good or until the bucket has moved; an acknowledged record is there.
        match table.put(&participant, table.hash(key), key, b"chosen", &WriteOptions::default(), 0) {
            Ok(_) => there.push(*key),
            Err(error) => assert_eq!(error, StoreError::OutOfMemory),
        }
    }
    for _ in 0..scaled(50_000, 3_000) {
        put_another(&participant);
        participant.quiescent();
    }
    let stats = table.stats();
    assert!(stats.capacity >= records.len() as u64 && stats.growths > 2, "it grows: {stats:?}");
    for key in &records {
        assert_eq!(get(&table, &participant, &key.to_le_bytes()).as_deref(), Some(&b"other"[..]), "{key}");
    }
    for key in &there {
        assert_eq!(get(&table, &participant, key).as_deref(), Some(&b"chosen"[..]));
    }
    assert_eq!(stats.records, (records.len() + there.len()) as u64);
}

#[test]
#[cfg_attr(miri, ignore = "needs an array that grows by half")]
fn two_full_buckets_that_become_one_do_not_stop_growth() {
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    let (mut others, mut records, mut chosen) = (others(|top| top != 0xff), Vec::new(), Vec::new());
    while buckets(&table) < DOUBLING_BUCKETS as u64 || table.is_growing(&participant.guard()) {
        records.extend(others.next());
        put_at(&table, &participant, records[records.len() - 1]).expect("there is room");
        participant.quiescent();
    }
    // The first hash of an odd bucket is a bucket's middle once the array is half as large again.
    let middle = border(&table, DOUBLING_BUCKETS as u64 - 7);
    for distance in 0..200 {
        for hash in [middle + distance, middle - 1 - distance] {
            match put_at(&table, &participant, hash) {
                Ok(_) => chosen.push(hash),
                Err(error) => assert_eq!(error, StoreError::OutOfMemory),
            }
        }
    }
    assert!(chosen.len() >= 2 * CHAIN_RECORDS - 8, "both buckets are full: {}", chosen.len());
    while buckets(&table) < 2 * DOUBLING_BUCKETS as u64 {
        records.extend(others.next());
        put_at(&table, &participant, records[records.len() - 1]).expect("others are not refused");
        participant.quiescent();
        assert!(records.len() < 4 * 4 * DOUBLING_BUCKETS, "it does not grow: {:?}", table.stats());
    }
    assert!(records.iter().all(|hash| is_at(&table, &participant, *hash)));
    assert!(chosen.iter().all(|hash| is_at(&table, &participant, *hash)));
    assert_eq!(put_at(&table, &participant, middle + 1_000), Err(StoreError::OutOfMemory), "the crowd gets no larger");
}

/// An attacker that sees every array's borders and puts as much as is taken on both sides of some of them, all the
/// time.
#[test]
#[cfg_attr(miri, ignore = "needs arrays that grow by half")]
fn chains_are_bounded_whatever_is_put_where_buckets_meet() {
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    let (aim, mut random, mut longest) = (0x7321_9abc_def0_1234_u64, 7u64, 0);
    let (mut others, mut records, mut chosen) = (others(|top| !(0x60..0x90).contains(&top)), Vec::new(), Vec::new());
    while table.stats().growths < 13 || table.is_growing(&participant.guard()) {
        for _ in 0..1_000 {
            records.extend(others.next());
            put_at(&table, &participant, records[records.len() - 1]).expect("others are not refused");
            participant.quiescent();
        }
        let count = buckets(&table);
        let index = ((u128::from(aim) * u128::from(count)) >> 64) as u64;
        for border in (index - 2..index + 4).map(|index| border(&table, index)) {
            for _ in 0..40 {
                random = spread(random);
                let distance = (random >> 8) % (u64::MAX / count / (1 + random % 7 * 100));
                let hash = if random & 1 == 0 { border + distance } else { border - distance };
                match put_at(&table, &participant, hash) {
                    Ok(_) => chosen.push(hash),
                    Err(error) => assert_eq!(error, StoreError::OutOfMemory),
                }
                participant.quiescent();
            }
        }
        longest = longest.max(table.longest_chain(&participant.guard()));
    }
    assert!(longest > MAX_CHAIN_BUCKETS, "nothing was tried: {longest}");
    assert!(longest <= MAX_MOVED_CHAIN_BUCKETS, "{longest} buckets in a row");
    assert!(records.iter().chain(&chosen).all(|hash| is_at(&table, &participant, *hash)));
    let shown = scan_all(&table, &mut participant, 1_000, 0);
    chosen.sort_unstable();
    chosen.dedup();
    assert_eq!(shown.len(), records.len() + chosen.len(), "a scan shows every record once");
}

#[test]
fn without_memory_for_a_bucket_a_write_is_refused_and_a_commit_whole() {
    let (epochs, table) = open_table();
    let participant = epochs.register();
    let put = |hash| put_at(&table, &participant, hash);
    (1..=4).for_each(|hash| assert!(put(hash).is_ok(), "a bucket has four slots"));
    let fifth = scarce::with(0, || put(5));
    assert_eq!(fifth, Err(StoreError::NoMemory));
    assert_eq!((table.stats().no_memory_refusals, table.stats().refusals), (1, 0), "no quota was reached");
    let before = table.stats();
    let keys: Vec<_> = (5..13u64).map(u64::to_le_bytes).collect();
    let commit_all = |memory| {
        let becomes = Some(NewRecord { value: b"value", flags: 0, expires_at_ms: 0 });
        let change = |key: &'_ [u8; 8]| u64::from_le_bytes(*key);
        let mut changes: Vec<_> =
            keys.iter().map(|key| KeyChange { table: &table, hash: change(key), key, becomes }).collect();
        scarce::with(memory, || commit(&participant, &[], &mut changes, 0))
    };
    // Eight more records need three more buckets.
    for memory in 0..3 {
        assert_eq!(commit_all(memory), Err(CommitError::Refused(StoreError::NoMemory)));
        assert_eq!(table.stats().bytes, before.bytes);
        assert!((1..=4).all(|hash| is_at(&table, &participant, hash)) && !is_at(&table, &participant, 5));
    }
    assert_eq!(commit_all(3), Ok(()));
    assert!((1..=12).all(|hash| is_at(&table, &participant, hash)));
    assert_eq!(table.overflow_buckets(&participant.guard()), 3);
    assert_eq!(table.stats().bytes, before.bytes * 3 + 3 * 64, "twelve records rather than four, and the buckets");
    // In an order in which the buckets in the midst of the row are empty before the last.
    for hash in 1..=12u64 {
        assert_eq!(table.delete(&participant, hash, &hash.to_le_bytes(), StoreCondition::Always, 0), Ok(true));
    }
    assert_eq!((table.stats().bytes, table.overflow_buckets(&participant.guard())), (0, 0));
}

/// An attacker that fills rows of buckets, and leaves one record in the last of each: cheap, if only records counted.
#[test]
fn overflow_buckets_count_against_the_quota_however_empty_they_are() {
    const QUOTA: u64 = 8_000;
    let (epochs, table) = super::table(StorageMode::Store, QUOTA);
    let mut participant = epochs.register();
    let charged = |participant: &Participant| {
        let overflow = table.overflow_buckets(&participant.guard()) as u64 * 64;
        (overflow, overflow + table.stats().records * charge_of_one())
    };
    let mut refused = false;
    for index in 0..buckets(&table) {
        let first = border(&table, index) + 1;
        for hash in first..first + CHAIN_RECORDS as u64 {
            refused |= put_at(&table, &participant, hash).is_err();
        }
        for hash in first..first + CHAIN_RECORDS as u64 - 1 {
            let _may_not_be_there = table.delete(&participant, hash, &hash.to_le_bytes(), StoreCondition::Always, 0);
        }
        participant.quiescent();
        let (_, all) = charged(&participant);
        assert!(all <= QUOTA, "{all} bytes are held at bucket {index}");
        assert_eq!(table.stats().bytes, all, "and counted");
    }
    assert!(refused, "the quota was reached");
    assert!(charged(&participant).0 > QUOTA / 2, "by buckets: {:?}", charged(&participant));
    // The remaining records are deleted, and all of the room is there again.
    for index in 0..buckets(&table) {
        let last = border(&table, index) + CHAIN_RECORDS as u64;
        let _may_not_be_there = table.delete(&participant, last, &last.to_le_bytes(), StoreCondition::Always, 0);
    }
    assert_eq!((table.stats().bytes, charged(&participant)), (0, (0, 0)));
}

/// Returns the charge of a record of [`put_at`].
fn charge_of_one() -> u64 {
    let (epochs, table) = open_table();
    let participant = epochs.register();
    put_at(&table, &participant, 1).expect("there is room");
    table.stats().bytes
}

#[test]
fn growth_that_has_no_memory_goes_on_when_there_is_some() {
    let (epochs, table) = open_table();
    let mut participant = epochs.register();
    let mut records = 0;
    for round in 0..scaled(40, 8) {
        // Every other time there is hardly any: some writes are refused, and some buckets stay where they are.
        scarce::with(if round % 2 == 0 { 2 } else { usize::MAX }, || {
            for _ in 0..300 {
                match put_at(&table, &participant, spread(records)) {
                    Ok(_) => records += 1,
                    Err(error) => assert_eq!((error, round % 2), (StoreError::NoMemory, 0)),
                }
            }
        });
        participant.quiescent();
        assert!((0..records).all(|number| is_at(&table, &participant, spread(number))), "round {round}");
    }
    assert!(table.stats().growths > 1 && records > 1_000);
}

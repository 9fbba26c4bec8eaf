//! Promise: counts and positions are those of a sorted map, in a transaction with its own writes laid over the table,
//! and it is begun anew when others change them.

use std::cell::Cell;
use std::collections::BTreeMap;

use sandstorm_api::prelude::*;
use sandstorm_api::testing::TestStore;

fn random(state: &mut u64, end: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % end
}

fn key(state: &mut u64) -> Vec<u8> {
    let len = random(state, 3) as usize;
    (0..len).map(|_| random(state, 4) as u8).collect()
}

#[test]
fn a_transaction_counts_what_it_would_leave_behind() {
    let mut state = 1;
    for _ in 0..400 {
        let (mut store, mut model) = (TestStore::new(), BTreeMap::new());
        let table = store.ordered_table("t");
        for _ in 0..random(&mut state, 20) {
            let key = key(&mut state);
            store.put(table, &key, b"");
            model.insert(key, ());
        }
        let shared = Cell::new(Some((&mut state, &mut model)));
        let run = async |db: Db<'_>, _: &[u8]| {
            let tx = db.transaction();
            let (state, model) = shared.take().expect("nobody else writes, so it runs once");
            for _ in 0..random(state, 6) {
                let key = key(state);
                if random(state, 2) == 0 {
                    tx.put(table, &key, b"")?;
                    model.insert(key, ());
                } else {
                    tx.delete(table, &key).await?;
                    model.remove(&key);
                }
            }
            for _ in 0..4 {
                let (from, to) = (key(state), key(state));
                let in_range = |key: &&Vec<u8>| **key >= from && (to.is_empty() || **key < to);
                let expected = model.keys().filter(in_range).count() as u64;
                assert_eq!(tx.count(table, &from, &to).await?, expected, "{from:?}..{to:?} of {model:?}");
                let rank = model.keys().filter(|key| **key < from).count() as u64;
                assert_eq!(tx.rank(table, &from).await?, rank);
                let position = random(state, model.len() as u64 + 2);
                let found = tx.nth(table, position).await?;
                assert_eq!(found.as_ref(), model.keys().nth(position as usize), "{position} of {model:?}");
            }
            Ok(())
        };
        assert_eq!(store.invoke(run, b""), Ok(vec![]));
        assert_eq!(store.tries(), 1);
        let left = async |db: Db<'_>, _: &[u8]| {
            for (position, key) in model.keys().enumerate() {
                assert_eq!(db.nth(table, position as u64).await?.as_ref(), Some(key));
                assert_eq!(db.rank(table, key).await?, position as u64);
            }
            assert_eq!(db.count(table, b"", b"").await?, model.len() as u64);
            assert_eq!(db.nth(table, model.len() as u64).await?, None);
            Ok(())
        };
        assert_eq!(store.invoke(left, b""), Ok(vec![]));
    }
}

/// Others write once, between a count and the commit.
fn tries_with(change: fn(&mut TestStore, TableId), read: impl AsyncFn(Transaction<'_>, TableId)) -> u32 {
    let mut store = TestStore::new();
    let (table, other) = (store.ordered_table("t"), store.table("other"));
    for key in [b"b", b"d", b"f"] {
        store.put(table, key, b"");
    }
    let mut left = 1;
    store.between_polls(move |store| {
        if left == 1 {
            change(store, table);
        }
        left = 0;
    });
    let run = async |db: Db<'_>, _: &[u8]| {
        let tx = db.transaction();
        read(tx, table).await;
        yield_now().await;
        tx.put(other, b"k", b"")
    };
    assert_eq!(store.invoke(run, b""), Ok(vec![]));
    store.tries()
}

#[test]
fn a_count_that_no_longer_holds_begins_the_call_anew() {
    let count = async |tx: Transaction<'_>, table| assert!(tx.count(table, b"b", b"e").await.is_ok());
    assert_eq!(tries_with(|store, table| _ = store.put(table, b"c", b""), count), 2, "a key came");
    assert_eq!(tries_with(|store, table| assert!(store.delete(table, b"b")), count), 2, "a key went");
    assert_eq!(tries_with(|store, table| _ = store.put(table, b"f", b"new"), count), 1, "outside of it");
    assert_eq!(tries_with(|store, table| _ = store.put(table, b"b", b"new"), count), 1, "the same keys");
    let nth = async |tx: Transaction<'_>, table| assert!(tx.nth(table, 1).await.is_ok());
    assert_eq!(tries_with(|store, table| _ = store.put(table, b"a", b""), nth), 2, "another is at the position");
    assert_eq!(tries_with(|store, table| _ = store.put(table, b"g", b""), nth), 1, "behind it");
    let beyond = async |tx: Transaction<'_>, table| assert!(tx.nth(table, 3).await.is_ok());
    assert_eq!(tries_with(|store, table| _ = store.put(table, b"g", b""), beyond), 2, "there is one now");
}

#[test]
fn unordered_tables_have_no_positions() {
    let mut store = TestStore::new();
    let table = store.table("t");
    let run = async |db: Db<'_>, _: &[u8]| {
        assert_eq!(db.count(table, b"", b"").await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(db.rank(table, b"").await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(db.nth(table, 0).await.unwrap_err().kind(), ErrorKind::Invalid);
        Ok(())
    };
    assert_eq!(store.invoke(run, b""), Ok(vec![]));
}

#[test]
fn many_records_are_written_and_deleted_and_the_first_refusal_is_named() {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    let run = async |db: Db<'_>, _: &[u8]| {
        let entries: Vec<([u8; 2], &[u8])> = (0..300_u16).map(|number| (number.to_be_bytes(), &b"value"[..])).collect();
        db.put_many(table, &entries).await?;
        assert_eq!(db.count(table, b"", b"").await?, 300);
        assert_eq!(db.delete_many(table, &[&[0, 1][..], &[0, 2], &[9]]).await?, 2);
        assert_eq!(db.delete_range(table, &[0, 1], &[1, 0], 100).await?, 100);
        assert_eq!(db.delete_range(table, &[0, 1], &[1, 0], 1_000).await?, 153);
        assert_eq!(db.count(table, b"", b"").await?, 300 - 2 - 253);
        let error = db.put_many(table, &[(&b"fits"[..], vec![0; 10]), (b"not", vec![0; 9 << 20])]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(error.text().contains("entry 2 of 2"), "{error}");
        Ok(())
    };
    assert_eq!(store.invoke(run, b""), Ok(vec![]));
    assert!(store.get(table, b"fits").is_some());
}

#[test]
fn a_value_is_compared_and_replaced_whatever_others_write() {
    let mut store = TestStore::new();
    let table = store.table("t");
    store.put(table, b"k", b"old");
    let run = async |db: Db<'_>, _: &[u8]| {
        assert_eq!(db.put(table, b"k", b"new").if_value(b"other").await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(db.put(table, b"none", b"new").if_value(b"").await.unwrap_err().kind(), ErrorKind::Conflict);
        db.put(table, b"k", b"new").if_value(b"old").flags(7).expires_in_ms(50).await?;
        assert_eq!(db.ttl(table, b"k").await?, Some(TimeToLive::Ms(50)));
        assert!(db.touch(table, b"k", 0).await?);
        assert_eq!(db.ttl(table, b"k").await?, Some(TimeToLive::Never));
        assert_eq!(db.get(table, b"k").await?.map(|record| (record.value(), record.flags())), Some((&b"new"[..], 7)));
        assert!(!db.touch(table, b"none", 5).await?);
        assert_eq!(db.ttl(table, b"none").await?, None);
        Ok(())
    };
    assert_eq!(store.invoke(run, b""), Ok(vec![]));
}

#[test]
fn random_numbers_are_as_likely_as_each_other_and_the_clock_has_microseconds() {
    let mut store = TestStore::new();
    store.set_now_us(1_700_000_000_123_456);
    let run = async |db: Db<'_>, _: &[u8]| {
        assert_eq!((db.now_us(), db.now_ms()), (1_700_000_000_123_456, 1_700_000_000_123));
        let mut counts = [0_u32; 3];
        (0..3_000).for_each(|_| counts[db.random_below(3) as usize] += 1);
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
        assert_eq!((db.random_below(0), db.random_below(1)), (0, 0));
        assert!((0..100).any(|_| db.random_below(u64::MAX / 3 * 2) > u64::MAX / 2));
        let mut bytes = [0; 3_000];
        db.random_bytes(&mut bytes);
        assert!(bytes.chunks(30).all(|part| part.iter().any(|byte| *byte != 0)));
        Ok(())
    };
    assert_eq!(store.invoke(run, b""), Ok(vec![]));
}

//! Promise: in a transaction, times to live, writes of many records and deletes of ranges are those of a map; they hold
//! at the commit, and are made whole.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sandstorm_api::limits::{TRANSACTION_BYTES, TRANSACTION_WRITES};
use sandstorm_api::prelude::*;
use sandstorm_api::testing::TestStore;

fn random(state: &mut u64, end: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % end
}

/// A record of the model: value, flags, and milliseconds that it has left; 0: it does not expire.
type KnownRecord = (Vec<u8>, u32, u64);

fn some_keys(state: &mut u64) -> Vec<Vec<u8>> {
    (0..random(state, 5)).map(|_| vec![b'k', random(state, 8) as u8]).collect()
}

/// Does something in a transaction and in the model, which agree on what it finds.
async fn step(tx: Transaction<'_>, table: TableId, state: &mut u64, model: &mut BTreeMap<Vec<u8>, KnownRecord>) {
    let (keys, ttl_ms) = (some_keys(state), random(state, 3) * 1_000);
    let one = vec![b'k', random(state, 8) as u8];
    match random(state, 8) {
        0 => {
            let value = vec![random(state, 256) as u8; 3];
            tx.put_with(table, &one, &value, 5, ttl_ms).expect("it is small");
            model.insert(one, (value, 5, ttl_ms));
        }
        1 => {
            let entries: Vec<(Vec<u8>, [u8; 1])> =
                keys.into_iter().map(|key| (key, [random(state, 256) as u8])).collect();
            tx.put_many(table, &entries).expect("they are small");
            model.extend(entries.into_iter().map(|(key, value)| (key, (value.to_vec(), 0, 0))));
        }
        2 => {
            let there = keys.iter().filter(|key| model.remove(*key).is_some()).count();
            assert_eq!(tx.delete_many(table, &keys).await, Ok(there));
        }
        3 | 4 => {
            let known = model.get_mut(&one);
            assert_eq!(tx.touch(table, &one, ttl_ms).await, Ok(known.is_some()));
            known.into_iter().for_each(|known| known.2 = ttl_ms);
        }
        5 => {
            let (end, limit) = (vec![b'k', random(state, 9) as u8], random(state, 5) as usize);
            let there = model.keys().filter(|key| **key >= one && **key < end).take(limit).cloned();
            let there: Vec<Vec<u8>> = there.collect();
            assert_eq!(tx.delete_range(table, &one, &end, limit).await, Ok(there.len()), "{one:?} {end:?} {limit}");
            there.iter().for_each(|key| drop(model.remove(key)));
        }
        _ => {
            let left = model.get(&one).map(|known| match known.2 {
                0 => TimeToLive::Never,
                ms => TimeToLive::Ms(ms),
            });
            assert_eq!(tx.ttl(table, &one).await, Ok(left), "{one:?}");
        }
    }
}

#[test]
fn a_transaction_leaves_what_it_has_said_it_would() {
    let mut state = 3;
    for _ in 0..300 {
        let (mut store, mut model) = (TestStore::new(), BTreeMap::new());
        let table = store.ordered_table("t");
        for key in some_keys(&mut state) {
            let ttl_ms = random(&mut state, 3) * 1_000;
            store.put_with(table, &key, b"before", 7, ttl_ms);
            model.insert(key, (b"before".to_vec(), 7, ttl_ms));
        }
        let shared = Cell::new(Some((&mut state, &mut model)));
        let run = async |db: Db<'_>, _: &[u8]| {
            let tx = db.transaction();
            let (state, model) = shared.take().expect("nobody else writes, so it runs once");
            for _ in 0..random(state, 12) {
                step(tx, table, state, model).await;
            }
            Ok(())
        };
        assert_eq!(store.invoke(run, b""), Ok(vec![]));
        assert_eq!(store.tries(), 1);
        let left = async |db: Db<'_>, _: &[u8]| {
            for (key, (value, flags, ttl_ms)) in &model {
                let record = db.get(table, key).await?.expect("the model has it");
                assert_eq!((record.value(), record.flags()), (&value[..], *flags));
                let left = if *ttl_ms == 0 { TimeToLive::Never } else { TimeToLive::Ms(*ttl_ms) };
                assert_eq!(db.ttl(table, key).await?, Some(left), "{key:?}");
            }
            Ok(())
        };
        assert_eq!(store.invoke(left, b""), Ok(vec![]));
        assert_eq!(store.len(table), model.len());
    }
}

/// Others change the record once, between what a transaction does and its commit.
fn tries_with(change: fn(&mut TestStore, TableId), act: impl AsyncFn(Transaction<'_>, TableId)) -> u32 {
    let mut store = TestStore::new();
    let (table, other) = (store.ordered_table("t"), store.table("other"));
    store.put_with(table, b"k", b"v", 7, 1_000);
    // Reads yield, too: the change is to come behind them.
    let (has_acted, mut is_changed) = (Rc::new(Cell::new(false)), false);
    let acted = Rc::clone(&has_acted);
    store.between_polls(move |store| {
        if acted.get() && !is_changed {
            change(store, table);
            is_changed = true;
        }
    });
    let run = async |db: Db<'_>, _: &[u8]| {
        let tx = db.transaction();
        act(tx, table).await;
        has_acted.set(true);
        yield_now().await;
        tx.put(other, b"k", b"")
    };
    assert_eq!(store.invoke(run, b""), Ok(vec![]));
    store.tries()
}

#[test]
fn what_was_read_for_it_has_to_hold_at_the_commit() {
    let written: fn(&mut TestStore, TableId) = |store, table| _ = store.put_with(table, b"k", b"v", 7, 1_000);
    let expired: fn(&mut TestStore, TableId) = |store, _| {
        store.set_now_ms(store.now_ms() + 1_001);
    };
    let elsewhere: fn(&mut TestStore, TableId) = |store, table| _ = store.put(table, b"other", b"");
    for (change, tries) in [(written, 2), (expired, 2), (elsewhere, 1)] {
        let ttl = async |tx: Transaction<'_>, table| _ = tx.ttl(table, b"k").await;
        assert_eq!(tries_with(change, ttl), tries);
        let touch = async |tx: Transaction<'_>, table| _ = tx.touch(table, b"k", 5_000).await;
        assert_eq!(tries_with(change, touch), tries);
        let delete = async |tx: Transaction<'_>, table| _ = tx.delete_many(table, &[b"k"]).await;
        assert_eq!(tries_with(change, delete), tries);
        // What it does not read may change.
        let put = async |tx: Transaction<'_>, table| _ = tx.put_many(table, &[(b"k", b"new")]);
        assert_eq!(tries_with(change, put), 1);
    }
    // A range as far as it was deleted: who comes into it conflicts, who comes behind it does not.
    let before: fn(&mut TestStore, TableId) = |store, table| _ = store.put(table, b"a", b"");
    for (change, limit, tries) in
        [(written, 9, 2), (expired, 9, 2), (before, 9, 2), (before, 1, 2), (elsewhere, 9, 2), (elsewhere, 1, 1)]
    {
        let delete = async move |tx: Transaction<'_>, table| {
            let there = tx.delete_range(table, b"", b"", limit).await;
            assert!(there.is_ok_and(|there| there <= limit), "{limit}");
        };
        assert_eq!(tries_with(change, delete), tries, "{limit}");
    }
    for (change, tries) in [(elsewhere, 2), (written, 1)] {
        let nothing = async |tx: Transaction<'_>, table| _ = tx.delete_range(table, b"l", b"", 9).await;
        assert_eq!(tries_with(change, nothing), tries);
    }
    // One that was not there has to be absent still.
    let absent = async |tx: Transaction<'_>, table| _ = tx.touch(table, b"other", 5).await;
    assert_eq!(tries_with(elsewhere, absent), 2);
}

#[test]
fn what_does_not_fit_is_refused_with_its_number_and_nothing_is_written() {
    let mut store = TestStore::new();
    let table = store.table("t");
    let keys: Vec<[u8; 2]> = (0..=TRANSACTION_WRITES as u16).map(u16::to_be_bytes).collect();
    let entries: Vec<([u8; 2], &[u8])> = keys.iter().map(|key| (*key, &b"v"[..])).collect();
    let all = async |db: Db<'_>, _: &[u8]| db.transaction().put_many(table, &entries);
    let refused = store.invoke(all, b"").expect_err("too many");
    assert_eq!(refused.kind(), ErrorKind::TooLarge);
    assert!(refused.text().contains("256 keys") && refused.text().contains("entry 257 of 257"), "{refused}");
    assert_eq!(store.len(table), 0);
    keys.iter().for_each(|key| _ = store.put(table, key, b"v"));
    let all = async |db: Db<'_>, _: &[u8]| db.transaction().delete_many(table, &keys).await.map(drop);
    assert!(store.invoke(all, b"").expect_err("too many").text().contains("entry 257 of 257"));
    assert_eq!(store.len(table), keys.len());
    let large = vec![7; TRANSACTION_BYTES / 2];
    let two = async |db: Db<'_>, _: &[u8]| db.transaction().put_many(table, &[(b"a", &large), (b"b", &large)]);
    assert!(store.invoke(two, b"").expect_err("too long").text().contains("entry 2 of 2"));
    // A touch writes the whole record.
    for key in [b"a", b"b"] {
        store.put(table, key, &large);
    }
    let both = async |db: Db<'_>, _: &[u8]| {
        let tx = db.transaction();
        assert_eq!(tx.touch(table, b"a", 5_000).await, Ok(true));
        tx.touch(table, b"b", 5_000).await.map(drop)
    };
    assert_eq!(store.invoke(both, b"").expect_err("too long").kind(), ErrorKind::TooLarge);
    // Of a table as large as may be, in several parts.
    let most = async |db: Db<'_>, _: &[u8]| db.transaction().put_many(table, &entries[..TRANSACTION_WRITES]);
    assert_eq!(store.invoke(most, b""), Ok(vec![]));
}

#[test]
fn a_range_that_has_more_than_may_be_written_is_refused_whole() {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    (0..TRANSACTION_WRITES as u16).for_each(|number| _ = store.put(table, &number.to_be_bytes(), b"v"));
    store.put(table, b"last", b"v");
    // The error may be handled: then none of them is deleted, and what is written besides is.
    let all = async |db: Db<'_>, _: &[u8]| {
        let tx = db.transaction();
        tx.put(table, b"more", b"")?;
        for limit in [TRANSACTION_WRITES, TRANSACTION_WRITES + 1, usize::MAX] {
            let refused = tx.delete_range(table, b"", b"", limit).await.expect_err("too many");
            assert_eq!(refused.kind(), ErrorKind::TooLarge);
            assert!(refused.text().contains("256 keys") && refused.text().contains("smaller limit"), "{refused}");
        }
        Ok(())
    };
    assert_eq!(store.invoke(all, b""), Ok(vec![]));
    assert_eq!(store.len(table), TRANSACTION_WRITES + 2);
    // What it has written itself is one write, however often.
    let most = async |db: Db<'_>, _: &[u8]| {
        let tx = db.transaction();
        tx.put(table, b"last", b"anew")?;
        tx.put(table, b"none", b"")?;
        assert_eq!(tx.delete_range(table, b"", b"", 0).await, Ok(0));
        assert_eq!(tx.delete_range(table, &[1], b"", usize::MAX).await, Ok(3), "last, more and none");
        assert_eq!(tx.delete_range(table, b"", b"", TRANSACTION_WRITES - 3).await, Ok(TRANSACTION_WRITES - 3));
        assert_eq!(tx.count(table, b"", b"").await.map(|_| ()).map_err(|error| error.kind()), Err(ErrorKind::TooLarge));
        Ok(())
    };
    assert_eq!(store.invoke(most, b""), Ok(vec![]));
    assert_eq!(store.len(table), 3);
    let unordered = store.table("u");
    let wrong = async |db: Db<'_>, _: &[u8]| db.transaction().delete_range(unordered, b"", b"", 1).await.map(drop);
    assert_eq!(store.invoke(wrong, b"").expect_err("no order").kind(), ErrorKind::Invalid);
}

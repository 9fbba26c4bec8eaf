//! Ranges over the test store: against a model, with own writes laid over them, and under the checks of a commit.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sandstorm_api::limits::{
    RANGE_LIMIT, TRANSACTION_RANGES, TRANSACTION_ROW_BYTES, TRANSACTION_ROWS, TRANSACTION_TRIES,
};
use sandstorm_api::prelude::*;
use sandstorm_api::testing::{MAX_KEY_LEN, TestStore};

/// The records that a range shows of a model.
type Shown = Vec<(Vec<u8>, Vec<u8>)>;

fn expected(model: &BTreeMap<Vec<u8>, Vec<u8>>, from: &[u8], to: &[u8], limit: usize, direction: Direction) -> Shown {
    let inside = model.iter().filter(|(key, _)| &key[..] >= from && (to.is_empty() || &key[..] < to));
    let inside = inside.map(|(key, value)| (key.clone(), value.clone()));
    match direction {
        Direction::Forward => inside.take(limit).collect(),
        Direction::Backward => inside.rev().take(limit).collect(),
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// Short keys of few letters: prefixes of each other, the empty one, equal ones.
    fn key(&mut self) -> Vec<u8> {
        (0..self.below(5)).map(|_| [0, 1, b'a', 255][self.below(4) as usize]).collect()
    }

    fn direction(&mut self) -> Direction {
        if self.below(2) == 0 { Direction::Forward } else { Direction::Backward }
    }
}

/// One thing that the invocation of a test does.
#[derive(Clone)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Range { from: Vec<u8>, to: Vec<u8>, limit: usize, direction: Direction, shows: Shown },
}

fn invoke(store: &mut TestStore, steps: &[Step], in_transaction: bool) -> Result<Vec<u8>, Error> {
    store.invoke(
        async move |db: Db<'_>, _: &[u8]| {
            let (table, tx) = (db.table("t")?, in_transaction.then(|| db.transaction()));
            for step in steps {
                match (step, &tx) {
                    (Step::Put(key, value), Some(tx)) => tx.put(table, key, value)?,
                    (Step::Put(key, value), None) => _ = db.put(table, key, value).await?,
                    (Step::Delete(key), Some(tx)) => _ = tx.delete(table, key).await?,
                    (Step::Delete(key), None) => _ = db.delete(table, key).await?,
                    (Step::Range { from, to, limit, direction, shows }, tx) => {
                        let found: Shown = match tx {
                            Some(tx) => (tx.range(table, from, to, *limit, *direction).await?.iter())
                                .map(|seen| (seen.key().to_vec(), seen.value().to_vec()))
                                .collect(),
                            None => (db.range(table, from, to, *limit, *direction).await?.iter())
                                .map(|record| (record.key().to_vec(), record.value().to_vec()))
                                .collect(),
                        };
                        assert_eq!(&found, shows, "from {from:?} to {to:?}, {limit}, {direction:?}");
                        if tx.is_none() {
                            let keys = db.range_keys(table, from, to, *limit, *direction).await?;
                            // Those of expired records are among them.
                            let mut left = keys.iter();
                            let has_all = shows.iter().all(|(key, _)| left.any(|one| one == key));
                            assert!(keys.len() == *limit || has_all, "{keys:?} without some of {shows:?}");
                        }
                    }
                }
            }
            Ok(())
        },
        b"",
    )
}

#[test]
fn ranges_are_those_of_a_sorted_map_within_transactions_too() {
    let mut random = Random(0x5eed_1234_5678);
    let rounds = if cfg!(miri) { 3 } else { 120 };
    for round in 0..rounds {
        let mut store = TestStore::new();
        let table = store.ordered_table("t");
        let mut model = BTreeMap::new();
        for _ in 0..random.below(120) {
            let (key, value) = (random.key(), vec![random.below(256) as u8]);
            store.put(table, &key, &value);
            model.insert(key, value);
        }
        let steps: Vec<Step> = (0..30)
            .map(|_| match random.below(4) {
                0 => {
                    let (key, value) = (random.key(), vec![random.below(256) as u8]);
                    model.insert(key.clone(), value.clone());
                    Step::Put(key, value)
                }
                1 => {
                    let key = random.key();
                    model.remove(&key);
                    Step::Delete(key)
                }
                _ => {
                    let (from, to, direction) = (random.key(), random.key(), random.direction());
                    let limit = if random.below(2) == 0 { 1 + random.below(6) as usize } else { RANGE_LIMIT };
                    let shows = expected(&model, &from, &to, limit, direction);
                    Step::Range { from, to, limit, direction, shows }
                }
            })
            .collect();
        invoke(&mut store, &steps, round % 2 == 0).unwrap();
        assert_eq!(store.tries(), 1, "nobody else has written");
        let all = expected(&model, b"", b"", usize::MAX, Direction::Forward);
        assert_eq!(store.len(table), all.len());
        assert!(all.iter().all(|(key, value)| store.get(table, key) == Some(value)));
    }
}

#[test]
fn going_on_from_the_last_key_shows_each_record_once() {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    let longest = vec![255; MAX_KEY_LEN];
    for key in [&b""[..], b"\0", b"a", b"a\0", b"a\0\0", b"ab", b"b", &longest] {
        store.put(table, key, key);
    }
    let all = [&b""[..], b"\0", b"a", b"a\0", b"a\0\0", b"ab", b"b", &longest];
    let run = async |db: Db<'_>, _: &[u8]| {
        let table = db.table("t")?;
        let (mut from, mut seen) = (Vec::new(), Vec::new());
        while let Some(record) = db.range(table, &from, b"", 1, Direction::Forward).await?.first() {
            seen.push(record.key());
            from = [record.key(), b"\0"].concat();
        }
        assert_eq!(seen, all);
        let (mut to, mut seen) = (&b""[..], Vec::new());
        while let Some(record) = db.range(table, b"", to, 1, Direction::Backward).await?.first() {
            seen.insert(0, record.key());
            to = record.key();
            if to.is_empty() {
                break;
            }
        }
        assert_eq!(seen, all);
        let backward = db.range(table, b"", b"", RANGE_LIMIT, Direction::Backward).await?;
        assert!(backward.iter().rev().map(Record::key).eq(all));
        Ok(())
    };
    store.invoke(run, b"").unwrap();
}

#[test]
fn what_is_no_range_is_refused_with_what_to_do() {
    let mut store = TestStore::new();
    store.table("hashed");
    let granted = store.ordered_table("shop/prices");
    let run = async |db: Db<'_>, args: &[u8]| {
        let table = db.table(if args == b"hashed" { "hashed" } else { "shop/prices" })?;
        let limit = match args {
            b"none" => 0,
            b"many" => RANGE_LIMIT + 1,
            _ => RANGE_LIMIT,
        };
        let to = vec![1; if args == b"long" { MAX_KEY_LEN + 2 } else { MAX_KEY_LEN + 1 }];
        let plain = db.range(table, b"", &to, limit, Direction::Forward).await.map(|found| found.len());
        let within = db.transaction().range(table, b"", &to, limit, Direction::Backward).await;
        assert_eq!(plain, within.map(|found| found.len()));
        plain.map(drop)
    };
    for (args, kind, word) in [
        (&b"hashed"[..], ErrorKind::Invalid, "--ordered"),
        (b"none", ErrorKind::Invalid, "at least 1"),
        (b"many", ErrorKind::Invalid, "read on"),
        (b"long", ErrorKind::TooLarge, "longer"),
    ] {
        let error = store.invoke(run, args).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.text().contains(word), "{error}");
    }
    assert!(store.invoke(run, b"").is_ok());
    let polls = RefCell::new(0);
    store.between_polls(move |store| {
        *polls.borrow_mut() += 1;
        store.revoke(granted);
    });
    let revoked = async |db: Db<'_>, _: &[u8]| {
        let table = db.table("shop/prices")?;
        yield_now().await;
        db.range(table, b"", b"", 1, Direction::Forward).await.map(drop)
    };
    assert_eq!(store.invoke(revoked, b"").unwrap_err().kind(), ErrorKind::UnknownTable);
}

#[test]
fn what_has_expired_is_in_no_range() {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    for number in 0..100_u8 {
        store.put_with(table, &[number], b"", 0, if number % 3 == 0 { 0 } else { 1000 });
    }
    let shows = |step: usize| (0..100).step_by(step).map(|number| (vec![number], vec![])).collect::<Shown>();
    let all =
        |shows| [Step::Range { from: vec![], to: vec![], limit: RANGE_LIMIT, direction: Direction::Forward, shows }];
    invoke(&mut store, &all(shows(1)), true).unwrap();
    let later = store.now_ms() + 1000;
    store.set_now_ms(later);
    invoke(&mut store, &all(shows(3)), true).unwrap();
    invoke(&mut store, &all(shows(3)), false).unwrap();
}

/// Reads a range, waits, writes; answers how many records it has met.
async fn counts(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, tx) = (db.table("t")?, db.transaction());
    let limit = usize::from(args[0]);
    let direction = if args[1] == 0 { Direction::Forward } else { Direction::Backward };
    let found = tx.range(table, b"b", b"y", limit, direction).await?;
    yield_now().await;
    tx.put(table, b"count", &[found.len() as u8])?;
    Ok(())
}

/// The writes by others while [`counts`] waits, once.
type Meanwhile = fn(&mut TestStore, TableId);

#[test]
fn whatever_changes_in_a_range_begins_the_transaction_anew_and_nothing_else_does() {
    let inserts: Meanwhile = |store, table| _ = store.put(table, b"n", b"new");
    let changes: Meanwhile = |store, table| _ = store.put(table, b"m", b"changed");
    let deletes: Meanwhile = |store, table| _ = store.delete(table, b"m");
    let again: Meanwhile = |store, table| {
        store.delete(table, b"m");
        store.put(table, b"m", b"m");
    };
    let expires: Meanwhile = |store, _| _ = store.set_now_ms(store.now_ms() + 10_000);
    let at_its_end: Meanwhile = |store, table| _ = store.put(table, b"y", b"at the end");
    let before: Meanwhile = |store, table| _ = store.put(table, b"azzz", b"before");
    let behind: Meanwhile = |store, table| _ = store.put(table, b"p", b"behind the second");
    let front: Meanwhile = |store, table| _ = store.put(table, b"bb", b"before the second to last");
    for (what, limit, backward, tries) in [
        (inserts, 100, 0, 2),
        (changes, 100, 0, 2),
        (deletes, 100, 1, 2),
        (again, 100, 1, 2),
        (expires, 100, 0, 2),
        (at_its_end, 100, 0, 1),
        (before, 100, 1, 1),
        // The last key shown of those was "m".
        (behind, 2, 0, 1),
        (front, 2, 0, 2),
        (inserts, 2, 1, 2),
        // Backward the last that was shown was "m", too.
        (front, 2, 1, 1),
    ] {
        let mut store = TestStore::new();
        let table = store.ordered_table("t");
        for key in [&b"a"[..], b"c", b"m", b"z"] {
            store.put(table, key, key);
        }
        store.put_with(table, b"x", b"", 0, 5_000);
        let done = Rc::new(RefCell::new(false));
        store.between_polls(move |store| {
            if !done.replace(true) {
                what(store, table);
            }
        });
        store.invoke(counts, &[limit, backward]).unwrap();
        assert_eq!(store.tries(), tries);
    }
}

#[test]
fn a_range_that_always_changes_is_given_up_with_nothing_written() {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    let next = RefCell::new(0_u32);
    store.between_polls(move |store| {
        *next.borrow_mut() += 1;
        store.put(table, &[b"k", &next.borrow().to_be_bytes()[..]].concat(), b"");
    });
    assert_eq!(store.invoke(counts, &[100, 0]).unwrap_err().kind(), ErrorKind::Contended);
    assert_eq!((store.tries(), store.get(table, b"count")), (TRANSACTION_TRIES, None));
}

#[test]
#[cfg_attr(miri, ignore = "reaches limits of thousands of rows and megabytes of keys")]
fn what_ranges_of_a_transaction_may_meet_is_bounded() {
    let mut store = TestStore::new();
    let (table, long) = (store.ordered_table("t"), store.ordered_table("long"));
    for number in 0..RANGE_LIMIT as u32 {
        store.put(table, &number.to_be_bytes(), b"");
    }
    for number in 0..=(TRANSACTION_ROW_BYTES / MAX_KEY_LEN) as u8 {
        store.put(long, &[number].repeat(MAX_KEY_LEN), b"");
    }
    store.ordered_table("empty");
    let run = async |db: Db<'_>, args: &[u8]| {
        let tx = db.transaction();
        match args {
            b"ranges" => {
                for _ in 0..TRANSACTION_RANGES {
                    tx.range(db.table("t")?, b"", b"", 1, Direction::Forward).await?;
                }
                tx.range(db.table("t")?, b"", b"", 1, Direction::Forward).await?;
            }
            b"rows" => {
                assert_eq!(
                    tx.range(db.table("t")?, b"", b"", RANGE_LIMIT, Direction::Forward).await?.len(),
                    RANGE_LIMIT
                );
                let left = TRANSACTION_ROWS - RANGE_LIMIT;
                assert_eq!(tx.range(db.table("t")?, b"", b"", left, Direction::Backward).await?.len(), left);
                tx.range(db.table("t")?, b"", b"", 1, Direction::Forward).await?;
            }
            // Each ends with a key that the transaction has written.
            b"ends" => {
                let empty = db.table("empty")?;
                tx.put(empty, &[7; MAX_KEY_LEN], b"")?;
                for _ in 0..=TRANSACTION_ROW_BYTES / MAX_KEY_LEN {
                    tx.range(empty, b"", b"", 1, Direction::Forward).await?;
                }
                panic!("not left to the commit");
            }
            _ => drop(tx.range(db.table("long")?, b"", b"", RANGE_LIMIT, Direction::Forward).await?),
        }
        Ok(())
    };
    for args in [&b"ranges"[..], b"rows", b"bytes", b"ends"] {
        assert_eq!(store.invoke(run, args).unwrap_err().kind(), ErrorKind::TooLarge);
    }
}

#[test]
fn what_another_future_of_the_transaction_writes_during_a_range_leaves_no_gap() {
    let name = |number: u8| [b'k', number];
    for direction in [Direction::Forward, Direction::Backward] {
        let mut store = TestStore::new();
        let table = store.ordered_table("t");
        (0..60).for_each(|number| _ = store.put(table, &name(number), b""));
        let at = |number: u8| name(if direction == Direction::Forward { number } else { 59 - number });
        let run = async |db: Db<'_>, _: &[u8]| {
            let tx = db.transaction();
            let (last, before_last) = if direction == Direction::Forward { (b"z", b"y") } else { (b"a", b"b") };
            tx.put(table, last, b"")?;
            let mut range = std::pin::pin!(tx.range(table, b"", b"", 35, direction));
            let mut waited = false;
            let found = std::future::poll_fn(|context| {
                let found = range.as_mut().poll(context);
                if found.is_pending() && !std::mem::replace(&mut waited, true) {
                    for number in 0..3 {
                        let key = at(number);
                        let mut delete = std::pin::pin!(tx.delete(table, &key));
                        while delete.as_mut().poll(context).is_pending() {}
                    }
                    tx.put(table, before_last, b"").expect("room");
                }
                found
            });
            let found: Vec<Vec<u8>> = found.await?.iter().map(|seen| seen.key().to_vec()).collect();
            let expected: Vec<Vec<u8>> = (3..38).map(|number| at(number).to_vec()).collect();
            assert!(waited, "the range does not come in one call");
            assert_eq!(found, expected);
            Ok(())
        };
        store.invoke(run, b"").expect("it runs");
    }
}

#[test]
fn keys_alone_are_all_there_however_long_and_many_they_are() {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    // Short ones by the hundred, among them ever longer ones, and the longest that there may be.
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|number| vec![number]).collect();
    keys.extend((0..=16).map(|power| vec![power * 10; 1 << power]));
    keys.push(Vec::new());
    keys.sort();
    keys.dedup();
    for key in &keys {
        store.put(table, key, b"");
    }
    let shown = store.invoke(
        async |db: Db<'_>, _: &[u8]| {
            let forward = db.range_keys(db.table("t")?, b"", b"", RANGE_LIMIT, Direction::Forward).await?;
            assert!(forward.iter().eq(keys.iter().map(|key| &key[..])), "{} of {} keys", forward.len(), keys.len());
            assert_eq!((forward.get(0), forward.last()), (Some(&b""[..]), Some(&[255_u8][..])));
            assert_eq!((forward.len(), forward.get(keys.len())), (keys.len(), None));
            let backward = db.range_keys(db.table("t")?, b"", b"", RANGE_LIMIT, Direction::Backward).await?;
            assert!(backward.iter().eq(keys.iter().rev().map(|key| &key[..])));
            // A loop takes them as they are, borrowed or not, from either end.
            let mut seen = 0;
            for key in &forward {
                assert_eq!(key, &keys[seen][..]);
                seen += 1;
            }
            assert_eq!((seen, forward.iter().len()), (keys.len(), keys.len()));
            assert!(forward.iter().rev().eq(backward.iter()) && forward.clone().into_iter().rev().eq(backward));
            assert!(forward.into_iter().eq(keys.iter().cloned()));
            let none = db.range_keys(db.table("t")?, b"b", b"b", 1, Direction::Forward).await?;
            assert!(none.is_empty() && none.last().is_none());
            for wrong in [0, RANGE_LIMIT + 1] {
                assert!(db.range_keys(db.table("t")?, b"", b"", wrong, Direction::Forward).await.is_err());
            }
            Ok(())
        },
        b"",
    );
    shown.expect("it finds them");
}

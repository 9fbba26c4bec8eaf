//! Transactions over the test store: their views, the time of their writes, and their repeats.

use std::pin::pin;
use std::task::Poll;

use sandstorm_api::limits::{TRANSACTION_BYTES, TRANSACTION_READS, TRANSACTION_TRIES, TRANSACTION_WRITES};
use sandstorm_api::prelude::*;
use sandstorm_api::testing::TestStore;

fn store() -> (TestStore, TableId) {
    let mut store = TestStore::new();
    let table = store.table("t");
    store.put_with(table, b"old", b"1", 7, 0);
    (store, table)
}

#[test]
fn it_sees_its_own_writes_and_nobody_else_does_before_the_end() {
    async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
        let table = db.table("t")?;
        let tx = db.transaction();
        let old = tx.get(table, b"old").await?.ok_or("there is one")?;
        assert_eq!((old.key(), old.value(), old.flags()), (&b"old"[..], &b"1"[..], 7));
        assert_eq!(tx.get(table, b"new").await?, None);
        tx.put_with(table, b"new", b"2", 3, 1000)?;
        let new = tx.get(table, b"new").await?.ok_or("just written")?;
        assert_eq!((new.key(), new.value(), new.flags()), (&b"new"[..], &b"2"[..], 3));
        assert!(tx.delete(table, b"old").await? && !tx.delete(table, b"old").await?);
        tx.put(table, b"new", b"22")?;
        let both = tx.get_many(table, &[&b"old"[..], b"new", b"never"]).await?;
        assert_eq!(both.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!((new.value(), both[1].map(|new| new.value())), (&b"2"[..], Some(&b"22"[..])), "both stay");
        // Another handle is of the same transaction; plain reads are none of it.
        assert_eq!(db.transaction().get(table, b"new").await?.map(|new| new.flags()), Some(0));
        assert_eq!(db.get(table, b"new").await?, None);
        assert!(db.get(table, b"old").await?.is_some());
        db.reply(b"done")
    }
    let (mut store, table) = store();
    assert_eq!(store.invoke(run, b""), Ok(b"done".to_vec()));
    assert_eq!((store.get(table, b"old"), store.get(table, b"new")), (None, Some(&b"22"[..])));
    assert_eq!(store.tries(), 1);
}

/// Replies with what it reads, after it has waited and written as the arguments say.
async fn waits(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let tx = db.transaction();
    let found = tx.get(table, b"old").await?.map_or(&b"none"[..], |record| record.value());
    db.reply(found)?;
    tx.put(table, b"new", found)?;
    yield_now().await;
    if args == b"fails" { Err(Error::new("as asked")) } else { Ok(()) }
}

#[test]
fn what_met_another_write_runs_again_from_the_beginning() {
    for (change, value) in [(Some(&b"2"[..]), &b"2"[..]), (None, b"none")] {
        for (args, tries) in [(&b""[..], 2), (b"fails", 2)] {
            let (mut store, table) = store();
            let mut polls = 0;
            store.between_polls(move |store| {
                polls += 1;
                // The read has taken one yield: the second is its own.
                match change {
                    Some(value) if polls == 2 => {
                        store.put(table, b"old", value);
                    }
                    None if polls == 2 => assert!(store.delete(table, b"old")),
                    _ => {}
                }
            });
            let outcome = store.invoke(waits, args);
            assert_eq!(store.tries(), tries, "an error may come of what was not of one moment");
            if args.is_empty() {
                assert_eq!(outcome, Ok(value.to_vec()), "the reply is that of the last run alone");
                assert_eq!(store.get(table, b"new"), Some(value));
            } else {
                assert_eq!(outcome, Err(Error::new("as asked")));
                assert_eq!(store.get(table, b"new"), None, "what fails writes nothing");
            }
        }
    }
}

#[test]
fn it_is_run_so_many_times_and_then_there_is_a_conflict() {
    let (mut store, table) = store();
    store.between_polls(move |store| {
        store.put(table, b"old", b"x");
    });
    let error = store.invoke(waits, b"").unwrap_err();
    assert_eq!((error.kind(), store.tries()), (ErrorKind::Contended, TRANSACTION_TRIES));
    assert_eq!(store.get(table, b"new"), None);
    store.between_polls(|_| ());
    assert_eq!(store.invoke(waits, b""), Ok(b"x".to_vec()), "the next call is a new one");
    assert_eq!(store.tries(), 1);
}

#[test]
fn a_record_that_was_absent_must_still_be() {
    async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
        let (table, tx) = (db.table("t")?, db.transaction());
        let found = tx.get_many(table, &[b"a", b"b"]).await?.into_iter().flatten().count();
        yield_now().await;
        tx.put(table, b"sum", &[found as u8])
    }
    let (mut store, table) = store();
    let mut polls = 0;
    store.between_polls(move |store| {
        polls += 1;
        if polls == 3 {
            store.put(table, b"b", b"");
        }
    });
    assert_eq!(store.invoke(run, b""), Ok(Vec::new()));
    assert_eq!((store.get(table, b"sum"), store.tries()), (Some(&[1][..]), 2));
}

#[test]
fn what_is_written_is_refused_whole() {
    async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let tx = db.transaction();
        tx.put(db.table("t")?, b"old", b"22")?;
        tx.put(db.table("shop/prices")?, args, b"")
    }
    let (mut store, table) = store();
    let prices = store.table("shop/prices");
    store.limit_bytes(10);
    assert_eq!(store.invoke(run, b"toolong").unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(store.get(table, b"old"), Some(&b"1"[..]));
    assert_eq!(store.invoke(run, b"fits"), Ok(Vec::new()));
    assert_eq!(store.get(table, b"old"), Some(&b"22"[..]));
    store.put(table, b"old", b"1");
    store.revoke(prices);
    assert_eq!(store.invoke(run, b"x").unwrap_err().kind(), ErrorKind::UnknownTable);
    store.read_only_table("shop/prices");
    let error = store.invoke(run, b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert!(error.text().contains("nothing was written"), "{error}");
    assert_eq!(store.get(table, b"old"), Some(&b"1"[..]));
}

#[test]
fn its_size_is_bounded_with_a_clear_error() {
    async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let (table, tx) = (db.table("t")?, db.transaction());
        match args {
            b"reads" => {
                for key in 0..=TRANSACTION_READS as u32 {
                    // A second read of a key is none.
                    tx.get(table, &key.to_le_bytes()).await?;
                    tx.get(table, &key.to_le_bytes()).await?;
                }
            }
            b"writes" => {
                for key in 0..=TRANSACTION_WRITES as u32 {
                    tx.put(table, &key.to_le_bytes(), b"")?;
                    tx.put(table, &key.to_le_bytes(), b"again")?;
                }
            }
            b"keys" => {
                let keys: Vec<_> = (0..=16_u8).map(|key| vec![key; TRANSACTION_BYTES / 16]).collect();
                for key in &keys {
                    tx.get(table, key).await?;
                }
            }
            _ => {
                let large = vec![0; TRANSACTION_BYTES / 2];
                tx.put(table, b"a", &large)?;
                tx.put(table, b"a", &large)?;
                tx.put(table, b"b", &large)?;
            }
        }
        Ok(())
    }
    let (mut store, table) = store();
    store.interleave(false);
    let parts = [
        ("reads", TRANSACTION_READS),
        ("writes", TRANSACTION_WRITES),
        ("keys", TRANSACTION_BYTES),
        ("bytes", TRANSACTION_BYTES),
    ];
    for (args, limit) in parts {
        let error = store.invoke(run, args.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(error.text().contains(&limit.to_string()), "{error}");
    }
    assert_eq!(store.len(table), 1);
}

#[test]
fn what_was_polled_too_often_commits_nothing() {
    let (mut store, table) = store();
    store.limit_polls(2);
    assert!(store.invoke(waits, b"").is_err());
    assert_eq!(store.get(table, b"new"), None);
}

#[test]
fn a_get_that_has_waited_finds_what_another_future_of_it_has_written() {
    async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
        let (table, tx) = (db.table("t")?, db.transaction());
        let mut reader = pin!(tx.get(table, b"old"));
        let first = std::future::poll_fn(|context| Poll::Ready(reader.as_mut().poll(context))).await;
        assert!(first.is_pending(), "it waits for the record");
        tx.put(table, b"old", b"own")?;
        db.reply(reader.await?.ok_or("just written")?.value())
    }
    let (mut store, table) = store();
    assert_eq!(store.invoke(run, b""), Ok(b"own".to_vec()));
    assert_eq!(store.get(table, b"old"), Some(&b"own"[..]));
}

#[test]
fn an_increment_adds_to_what_the_transaction_sees() {
    async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
        let (table, tx) = (db.table("t")?, db.transaction());
        assert_eq!(tx.increment(table, b"old", 41).await, Ok(42));
        assert_eq!(tx.increment(table, b"old", -50).await, Ok(-8), "its own write is seen");
        let old = tx.get(table, b"old").await?.ok_or("there is one")?;
        assert_eq!((old.value(), old.flags()), (&b"-8"[..], 7), "flags stay");
        assert_eq!(tx.increment(table, b"new", 5).await, Ok(5), "absent is 0");
        assert!(tx.delete(table, b"new").await?);
        assert_eq!(tx.increment(table, b"new", 6).await, Ok(6), "and so is deleted");
        tx.put_with(table, b"expires", b"1", 3, 1000)?;
        tx.increment(table, b"expires", 1).await?;
        assert_eq!(tx.increment(table, b"least", i64::MIN).await, Ok(i64::MIN));
        assert_eq!(db.get(table, b"new").await?, None, "nobody sees it yet");
        db.reply(b"done")
    }
    let (mut store, table) = store();
    assert_eq!(store.invoke(run, b""), Ok(b"done".to_vec()));
    assert_eq!((store.get(table, b"old"), store.get(table, b"new")), (Some(&b"-8"[..]), Some(&b"6"[..])));
    assert_eq!(store.get(table, b"least"), Some(i64::MIN.to_string().as_bytes()));
    assert_eq!(store.get(table, b"expires"), Some(&b"2"[..]));
    let later = store.now_ms() + 1000;
    store.set_now_ms(later);
    assert_eq!(store.get(table, b"expires"), None, "the expiry that it wrote itself stays");
}

#[test]
fn an_increment_of_what_is_no_number_fails_as_the_plain_one_and_writes_nothing() {
    async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
        let (table, tx) = (db.table("t")?, db.transaction());
        let plain = db.increment(table, b"number", 1).await.map(|_| ());
        let own = tx.increment(table, b"number", 1).await.map(|_| ());
        assert_eq!(own, plain);
        own
    }
    let too_many = i64::MAX.to_string();
    for value in ["", "x", "+5", "1.5", " 1", "1 ", "9223372036854775808", &too_many] {
        let (mut store, table) = store();
        store.put(table, b"number", value.as_bytes());
        assert_eq!(store.invoke(run, b"").unwrap_err().kind(), ErrorKind::NotANumber, "{value:?}");
        assert_eq!(store.get(table, b"number"), Some(value.as_bytes()));
    }
}

#[test]
fn an_increment_beside_another_is_not_lost() {
    async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
        let (table, tx) = (db.table("t")?, db.transaction());
        let sum = tx.increment(table, b"old", 10).await?;
        yield_now().await;
        db.reply(sum.to_string().as_bytes())
    }
    let (mut store, table) = store();
    let mut polls = 0;
    store.between_polls(move |store| {
        polls += 1;
        if polls == 2 {
            store.put(table, b"old", b"100");
        }
    });
    assert_eq!(store.invoke(run, b""), Ok(b"110".to_vec()));
    assert_eq!((store.get(table, b"old"), store.tries()), (Some(&b"110"[..]), 2));
}

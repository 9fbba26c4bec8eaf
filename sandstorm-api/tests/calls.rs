//! Promise: in a test store extensions call each other as on a server: outcomes, depth, one transaction.

use sandstorm_api::limits::{CALL_BYTES, CALL_DEPTH};
use sandstorm_api::prelude::*;
use sandstorm_api::testing::TestStore;

/// Adds one, in the transaction.
async fn add(db: Db<'_>, key: &[u8]) -> Result<(), Error> {
    let sum = db.transaction().increment(db.table("t")?, key, 1).await?;
    yield_now().await;
    db.reply(sum.to_string().as_bytes())
}

/// Adds one before and after `add` does, and tells the sums.
async fn around(db: Db<'_>, key: &[u8]) -> Result<(), Error> {
    let (table, tx) = (db.table("t")?, db.transaction());
    let first = tx.increment(table, key, 1).await?;
    let second = db.call("add", key).await?;
    let third = tx.increment(table, key, 1).await?;
    db.reply(format!("{first} {} {third}", String::from_utf8_lossy(&second)).as_bytes())
}

async fn itself(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    match db.call("itself", b"").await {
        Ok(reply) => db.reply(&[&reply[..], b"."].concat()),
        Err(error) => db.reply(error.text().as_bytes()),
    }
}

fn store() -> (TestStore, TableId) {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    store.extension("add", add).extension("around", around).extension("itself", itself);
    (store, table)
}

#[test]
fn a_callee_sees_the_transaction_and_adds_to_it() {
    let (mut store, table) = store();
    assert_eq!(store.invoke(around, b"k"), Ok(b"1 2 3".to_vec()));
    assert_eq!(store.get(table, b"k"), Some(&b"3"[..]));
    let outer = async |db: Db<'_>, key: &[u8]| db.reply(&db.call("around", key).await?);
    assert_eq!(store.invoke(outer, b"k"), Ok(b"4 5 6".to_vec()), "none but the callee began it");
    assert_eq!(store.get(table, b"k"), Some(&b"6"[..]));
}

#[test]
fn what_a_failed_callee_wrote_is_dropped_and_all_is_if_the_caller_fails() {
    let (mut store, table) = store();
    let failing = async |db: Db<'_>, key: &[u8]| {
        db.call("add", key).await?;
        Err(Error::new("no"))
    };
    store.extension("failing", failing);
    let outer = async |db: Db<'_>, key: &[u8]| {
        let error = db.call("failing", key).await.unwrap_err();
        db.transaction().put(db.table("t")?, b"told", error.text().as_bytes())
    };
    assert_eq!(store.invoke(outer, b"k"), Ok(vec![]));
    assert_eq!((store.get(table, b"k"), store.get(table, b"told")), (None, Some(&b"failing: no"[..])));
    assert_eq!(store.invoke(failing, b"k").unwrap_err().text(), "no");
    assert_eq!(store.get(table, b"k"), None);
}

#[test]
fn ranges_and_counts_of_a_callee_lie_over_its_callers_writes_and_are_checked_at_the_commit() {
    let (mut store, table) = store();
    let list = async |db: Db<'_>, _: &[u8]| {
        let (table, tx) = (db.table("t")?, db.transaction());
        let found = tx.range(table, b"", b"", 10, Direction::Forward).await?;
        let keys: Vec<&[u8]> = found.iter().map(TransactionRecord::key).collect();
        db.reply(&[&keys.concat()[..], tx.count(table, b"", b"").await?.to_string().as_bytes()].concat())
    };
    store.extension("list", list);
    let writes = async |db: Db<'_>, _: &[u8]| {
        let (table, tx) = (db.table("t")?, db.transaction());
        tx.put(table, b"b", b"")?;
        tx.delete(table, b"c").await?;
        db.reply(&db.call("list", b"").await?)?;
        yield_now().await;
        tx.put(table, b"d", b"")
    };
    store.put(table, b"a", b"");
    store.put(table, b"c", b"");
    assert_eq!(store.invoke(writes, b""), Ok(b"ab2".to_vec()));
    store.put(table, b"c", b"");
    store.delete(table, b"b");
    let mut added = false;
    // Before the last poll, when the callee has read the range.
    store.between_polls(move |store| {
        if store.polls() == 4 && !added {
            added = true;
            let table = store.table("t");
            store.put(table, b"aa", b"");
        }
    });
    let reply = String::from_utf8(store.invoke(writes, b"").unwrap()).unwrap();
    assert!(store.tries() == 2 && reply == "aaabd4", "{} tries, {reply}", store.tries());
}

#[test]
fn a_conflict_in_a_callee_begins_all_anew() {
    let (mut store, table) = store();
    let looks = async |db: Db<'_>, key: &[u8]| {
        let found = db.transaction().get(db.table("t")?, key).await?.is_some();
        yield_now().await;
        if found { db.reply(b"there") } else { Err(Error::new("not there")) }
    };
    store.extension("looks", looks);
    let outer = async |db: Db<'_>, key: &[u8]| db.reply(&db.call("looks", key).await?);
    store.between_polls(|store| {
        let table = store.table("t");
        if store.is_empty(table) {
            store.put(table, b"k", b"");
        }
    });
    // Its reads do not yield, so that the hook comes between the read and the end.
    assert_eq!(store.interleave(false).invoke(outer, b"k"), Ok(b"there".to_vec()));
    assert_eq!((store.tries(), store.len(table)), (2, 1));
}

#[test]
fn depth_length_and_names_have_bounds() {
    let (mut store, _) = store();
    let reply = String::from_utf8(store.invoke(itself, b"").unwrap()).unwrap();
    let dots = ".".repeat(CALL_DEPTH as usize);
    assert_eq!(reply, format!("itself: extensions call each other {CALL_DEPTH} deep at most{dots}"));
    let named = async |db: Db<'_>, name: &[u8]| db.reply(&db.call(core::str::from_utf8(name)?, b"").await?);
    assert_eq!(store.invoke(named, b"nowhere").unwrap_err().kind(), ErrorKind::NotFound);
    let long = async |db: Db<'_>, _: &[u8]| db.reply(&db.call("add", &vec![0; CALL_BYTES + 1]).await?);
    assert_eq!(store.invoke(long, b"").unwrap_err().kind(), ErrorKind::TooLarge);
    store.extension("long", async |db: Db<'_>, _: &[u8]| db.reply(&vec![0; CALL_BYTES + 1]));
    assert_eq!(store.invoke(named, b"long").unwrap_err().kind(), ErrorKind::TooLarge);
}

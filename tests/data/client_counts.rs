//! Promise: counts, ranks, positions and deletes of ranges within a client's transaction are those of a sorted map with
//! the transaction's own writes laid over the table, and they hold at the commit: a write into a range that was counted
//! or deleted is found, on two workers and beside many others. So do times to live.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_catalog::{NewTable, QuotaChanges};
use sandstorm_client::blocking::{BlockingTransaction, Client};
use sandstorm_client::raw::CommitMessage;
use sandstorm_client::{Bytes, Error, PutOptions, RecordExpiry};
use sandstorm_metrics::text::flat;
use sandstorm_net::rpc::{
    COMMIT_RANGES, COMMIT_WRITES, CommitStep, MAX_KEY_LEN, Operation, RpcStatus, push_commit_step,
};
use sandstorm_server::limits::POSITION_REQUESTS;
use sandstorm_store::slots::SlotOwnership;

use super::client_transactions::{SORTED, world};
use crate::common::{Wire, client, client_at, data_plane, eventually, rounds, tenant_with};

/// A table without an order.
const TABLE: u64 = 1;

fn put(client: &Client, table: u64, key: &[u8]) {
    client.put(table, key, b"v", &PutOptions::default()).expect("there is room");
}

/// Keys of few letters: equal ones, prefixes of others, the empty one.
fn some_key(random: &mut StdRng) -> Vec<u8> {
    (0..random.random_range(0..4)).map(|_| [0, 7, 255][random.random_range(0..3)]).collect()
}

#[test]
fn a_transaction_counts_what_it_would_leave_behind() {
    let (plane, id) = world();
    let (client, mut random) = (client(&plane, id), StdRng::seed_from_u64(24));
    let mut model = BTreeMap::new();
    for _ in 0..rounds(200) {
        let (mut transaction, mut left) = (client.transaction(), model.clone());
        for _ in 0..random.random_range(0..7) {
            let key = some_key(&mut random);
            if random.random_bool(0.2) {
                let (to, limit) = (some_key(&mut random), random.random_range(0..5));
                let within = left.keys().filter(|other| **other >= key && (to.is_empty() || **other < to));
                let gone: Vec<Vec<u8>> = within.take(limit).cloned().collect();
                let deleted = transaction.delete_range(SORTED, &key, &to, limit);
                assert_eq!(deleted, Ok(gone.len()), "{limit} of {key:?}..{to:?} of {left:?}");
                gone.iter().for_each(|key| _ = left.remove(key));
            } else if random.random_bool(0.6) {
                transaction.put(SORTED, &key, b"v");
                left.insert(key, ());
            } else {
                transaction.delete(SORTED, &key);
                left.remove(&key);
            }
        }
        for _ in 0..4 {
            let (from, to) = (some_key(&mut random), some_key(&mut random));
            let in_range = |key: &&Vec<u8>| **key >= from && (to.is_empty() || **key < to);
            let expected = left.keys().filter(in_range).count() as u64;
            assert_eq!(transaction.count(SORTED, &from, &to), Ok(expected), "{from:?}..{to:?} of {left:?}");
            let rank = left.keys().filter(|key| **key < from).count() as u64;
            assert_eq!(transaction.rank(SORTED, &from), Ok(rank), "{from:?} of {left:?}");
            let position = random.random_range(0..left.len() + 2);
            let found = left.keys().nth(position).cloned().map(Bytes::from);
            assert_eq!(transaction.nth(SORTED, position as u64), Ok(found), "{position} of {left:?}");
        }
        assert_eq!(transaction.nth(SORTED, u64::MAX), Ok(None));
        if random.random_bool(0.2) {
            // One that is dropped changes nothing.
            continue;
        }
        assert_eq!(transaction.commit(), Ok(()), "nobody else writes");
        model = left;
        assert_eq!(client.count(SORTED, b"", b""), Ok(model.len() as u64));
    }
    // The same of the async client.
    let (found, all) = (model.keys().next().cloned().map(Bytes::from), model.len() as u64);
    let asked = client.run(|client| async move {
        let mut transaction = client.transaction();
        let answers = (transaction.nth(SORTED, 0).await?, transaction.count(SORTED, b"", b"").await?);
        transaction.commit().await.map(|()| answers)
    });
    assert_eq!(asked, Ok((found, all)));
}

/// Whether a commit holds of a transaction that asks something of a table with `b`, `d` and `f`, while another writes.
fn holds(ask: fn(&mut BlockingTransaction), change: fn(&Client)) -> bool {
    let (plane, id) = world();
    let client = client(&plane, id);
    [b"b", b"d", b"f"].iter().for_each(|key| put(&client, SORTED, *key));
    let mut transaction = client.transaction();
    ask(&mut transaction);
    transaction.put(TABLE, b"written", b"");
    change(&client);
    let committed = transaction.commit();
    let is_written = client.get(TABLE, b"written").expect("an answer").is_some();
    assert_eq!(is_written, committed.is_ok(), "all or nothing");
    match committed {
        Ok(()) => true,
        Err(Error::TransactionConflict { table: SORTED, .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn who_comes_into_what_was_counted_is_found() {
    let count = |t: &mut BlockingTransaction| assert_eq!(t.count(SORTED, b"b", b"e"), Ok(2));
    assert!(!holds(count, |c| put(c, SORTED, b"c")), "a key came");
    assert!(!holds(count, |c| drop(c.delete(SORTED, b"b"))), "a key went");
    assert!(holds(count, |c| put(c, SORTED, b"g")), "outside of it");
    assert!(holds(count, |c| put(c, SORTED, b"b")), "the same keys");
    let swap = |c: &Client| {
        put(c, SORTED, b"c");
        drop(c.delete(SORTED, b"b"));
    };
    assert!(holds(count, swap), "as many, whichever they are");
    let rank = |t: &mut BlockingTransaction| assert_eq!(t.rank(SORTED, b"e"), Ok(2));
    assert!(!holds(rank, |c| put(c, SORTED, b"a")), "a key came before it");
    assert!(holds(rank, |c| put(c, SORTED, b"e")), "itself does not count");
    assert!(holds(|t| assert_eq!(t.rank(SORTED, b""), Ok(0)), |c| put(c, SORTED, b"")), "nothing is before it");
    let nth = |t: &mut BlockingTransaction| assert_eq!(t.nth(SORTED, 1).unwrap().as_deref(), Some(&b"d"[..]));
    assert!(!holds(nth, |c| put(c, SORTED, b"c")), "another is at the position");
    assert!(!holds(nth, |c| drop(c.delete(SORTED, b"d"))), "it went");
    assert!(holds(nth, |c| put(c, SORTED, b"g")), "behind it");
    let first = |t: &mut BlockingTransaction| assert_eq!(t.nth(SORTED, 0).unwrap().as_deref(), Some(&b"b"[..]));
    assert!(!holds(first, |c| put(c, SORTED, b"")), "the smallest of all");
    let beyond = |t: &mut BlockingTransaction| assert_eq!(t.nth(SORTED, 3), Ok(None));
    assert!(!holds(beyond, |c| put(c, SORTED, b"g")), "there is one now");
    assert!(holds(beyond, |c| put(c, SORTED, b"f")), "there are as many");
    // What the transaction writes itself counts by whether the table has it.
    let own = |t: &mut BlockingTransaction| {
        t.put(SORTED, b"c", b"");
        t.delete(SORTED, b"f");
        assert_eq!(t.count(SORTED, b"", b""), Ok(3));
        assert_eq!(t.nth(SORTED, 1).unwrap().as_deref(), Some(&b"c"[..]));
    };
    assert!(!holds(own, |c| put(c, SORTED, b"c")), "it is there by now");
    assert!(!holds(own, |c| drop(c.delete(SORTED, b"f"))), "it is gone by now");
    assert!(holds(own, |c| put(c, SORTED, b"f")), "it is there as before");
    // Asked twice, with others between: only one answer can hold.
    let (plane, id) = world();
    let client = client(&plane, id);
    ["b", "d"].iter().for_each(|key| put(&client, SORTED, key.as_bytes()));
    let mut torn = client.transaction();
    assert_eq!(torn.rank(SORTED, b"d"), Ok(1));
    drop(client.delete(SORTED, b"b"));
    assert_eq!(torn.nth(SORTED, 0).unwrap().as_deref(), Some(&b"d"[..]));
    put(&client, SORTED, b"b");
    assert!(matches!(torn.commit(), Err(Error::TransactionConflict { table: SORTED, .. })), "the second did not hold");
}

#[test]
fn who_comes_into_a_range_that_is_deleted_is_found() {
    let within = |t: &mut BlockingTransaction| assert_eq!(t.delete_range(SORTED, b"b", b"e", 9), Ok(2));
    assert!(!holds(within, |c| put(c, SORTED, b"c")), "a key came");
    assert!(!holds(within, |c| drop(c.delete(SORTED, b"b"))), "a key went");
    assert!(!holds(within, |c| put(c, SORTED, b"b")), "a record that is deleted was written");
    assert!(holds(within, |c| put(c, SORTED, b"e")), "behind its end");
    assert!(holds(within, |c| put(c, SORTED, b"a")), "before its beginning");
    let first = |t: &mut BlockingTransaction| assert_eq!(t.delete_range(SORTED, b"", b"", 1), Ok(1));
    assert!(!holds(first, |c| put(c, SORTED, b"a")), "before the first");
    assert!(holds(first, |c| put(c, SORTED, b"c")), "behind the last that is deleted");
    let none = |t: &mut BlockingTransaction| assert_eq!(t.delete_range(SORTED, b"g", b"", 9), Ok(0));
    assert!(!holds(none, |c| put(c, SORTED, b"h")), "there is one now");
    assert!(holds(|t| assert_eq!(t.delete_range(SORTED, b"", b"", 0), Ok(0)), |c| put(c, SORTED, b"a")), "nothing");

    // What goes is what was counted; more than may be written is refused, and nothing of it noted.
    let (plane, id) = world();
    let client = client(&plane, id);
    let keys: Vec<[u8; 2]> = (0..=COMMIT_WRITES as u16).map(u16::to_be_bytes).collect();
    keys.iter().for_each(|key| put(&client, SORTED, key));
    let mut transaction = client.transaction();
    let refused = transaction.delete_range(SORTED, b"", b"", usize::MAX);
    assert!(matches!(&refused, Err(Error::TooLarge { what }) if what.contains("smaller limit")), "{refused:?}");
    assert_eq!(transaction.delete_range(SORTED, &keys[1], b"", usize::MAX), Ok(COMMIT_WRITES));
    assert!(transaction.delete_range(SORTED, b"", b"", 1).is_err(), "one more");
    assert_eq!(transaction.commit(), Ok(()));
    assert_eq!(client.nth(SORTED, 0).unwrap().as_deref(), Some(&keys[0][..]));
    assert_eq!(client.count(SORTED, b"", b""), Ok(1));
    let refused = client.transaction().delete_range(TABLE, b"", b"", 1);
    assert!(matches!(&refused, Err(Error::Malformed { text }) if text.contains("--ordered")), "{refused:?}");
}

/// Takes seats, as many as there are: each has the number that those before have left free.
#[test]
fn no_more_come_than_are_counted() {
    const SEATS: u64 = 40;
    let (plane, id) = world();
    let mut taken: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let plane = &plane;
                scope.spawn(move || {
                    let (client, mut taken, mut tries) = (client_at(plane, id, thread as usize), Vec::new(), 0_u64);
                    loop {
                        tries += 1;
                        let key = [thread.to_be_bytes(), tries.to_be_bytes()].concat();
                        let take = |transaction: &mut BlockingTransaction| {
                            let before = transaction.count(SORTED, b"", b"")?;
                            if before < SEATS {
                                transaction.put(SORTED, &key, b"");
                            }
                            Ok(before)
                        };
                        match client.transact(take) {
                            Ok(SEATS) => return taken,
                            Ok(seat) => taken.push(seat),
                            Err(Error::TransactionConflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    });
    taken.sort_unstable();
    assert_eq!(taken, (0..SEATS).collect::<Vec<_>>(), "each seat once");
    assert_eq!(client(&plane, id).count(SORTED, b"", b""), Ok(SEATS));
}

/// Keys of the next test, which move and stay as many.
const MOVED: u64 = 30;

/// Looks at the keys by every question that there is; whether all answers held at one moment.
fn watch(client: &Client, middle: &[u8]) -> bool {
    let mut transaction = client.transaction();
    let left = transaction.count(SORTED, b"", middle).expect("a count");
    let right = transaction.count(SORTED, middle, b"").expect("a count");
    let at = transaction.nth(SORTED, left).expect("a position");
    let last = transaction.nth(SORTED, left + right - 1).expect("a position");
    let beyond = transaction.nth(SORTED, left + right).expect("a position");
    match transaction.commit() {
        Err(Error::TransactionConflict { .. }) => return false,
        committed => assert_eq!(committed, Ok(())),
    }
    assert_eq!(left + right, MOVED, "it is found where it was and where it went, or nowhere");
    assert_eq!(at.is_some(), right > 0);
    assert!(at.is_none_or(|key| key[..] >= *middle), "the first one behind the middle");
    assert!(last.is_some() && beyond.is_none(), "{last:?} {beyond:?}");
    true
}

#[test]
fn positions_of_one_moment_are_of_one_moment() {
    let (plane, id) = world();
    let key = |position: u64, number: u64| [position.to_be_bytes(), number.to_be_bytes()].concat();
    {
        let client = client(&plane, id);
        (0..MOVED).for_each(|number| put(&client, SORTED, &key(number, number)));
    }
    let (moved, conflicts, moving) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(2));
    let has_watched = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (plane, moved, conflicts, moving, has_watched) = (&plane, &moved, &conflicts, &moving, &has_watched);
            scope.spawn(move || {
                let (client, mut random) = (client_at(plane, id, thread as usize), StdRng::seed_from_u64(thread));
                let mut number = 0;
                while number < rounds(300) || !has_watched.load(SeqCst) {
                    number += 1;
                    let goes = random.random_range(0..MOVED);
                    let comes = key(random.random_range(0..MOVED), (thread + 1) << 32 | number);
                    let move_one = |transaction: &mut BlockingTransaction| {
                        let Some(found) = transaction.nth(SORTED, goes)? else { return Ok(false) };
                        transaction.delete(SORTED, &found);
                        transaction.put(SORTED, &comes, b"");
                        Ok(true)
                    };
                    match client.transact(move_one) {
                        Ok(is_moved) => drop(moved.fetch_add(usize::from(is_moved), SeqCst)),
                        Err(Error::TransactionConflict { .. }) => drop(conflicts.fetch_add(1, SeqCst)),
                        Err(error) => panic!("{error}"),
                    }
                }
                moving.fetch_sub(1, SeqCst);
            });
        }
        for thread in 2..4_u64 {
            let (plane, conflicts, moving, has_watched) = (&plane, &conflicts, &moving, &has_watched);
            scope.spawn(move || {
                let (client, mut random) = (client_at(plane, id, thread as usize), StdRng::seed_from_u64(thread));
                while moving.load(SeqCst) > 0 {
                    let holds = watch(&client, &key(random.random_range(0..MOVED), 0));
                    conflicts.fetch_add(usize::from(!holds), SeqCst);
                    has_watched.store(true, SeqCst);
                }
            });
        }
    });
    assert!(watch(&client(&plane, id), &key(MOVED / 2, 0)), "nobody moves any more");
    let (moved, conflicts) = (moved.load(SeqCst), conflicts.load(SeqCst));
    println!("{moved} moved, {conflicts} met others");
    assert!(moved > 0 && conflicts > 0, "{moved} moved, {conflicts} met others: nothing was tried");
}

#[test]
fn what_a_commit_may_not_count_is_refused() {
    let (plane, id) = world();
    let (client, mut wire) = (client(&plane, id), Wire::new(&plane, 0, id));
    put(&client, SORTED, b"k");
    let mut unordered = client.transaction();
    for refused in [
        unordered.count(TABLE, b"", b"").map(drop),
        unordered.rank(TABLE, b"").map(drop),
        unordered.nth(TABLE, 0).map(drop),
    ] {
        assert!(matches!(&refused, Err(Error::Malformed { text }) if text.contains("--ordered")), "{refused:?}");
    }
    let mut ask = |steps: &[CommitStep<'_>]| {
        let mut body = Vec::new();
        steps.iter().for_each(|step| push_commit_step(&mut body, step));
        wire.one(Operation::commit(steps.len() as u64, &body))
    };
    let count = |table, keys| CommitStep::Count { table, from: b"a", to: b"", keys };
    let conflict = ask(&[count(SORTED, 1), count(SORTED, 7)]);
    assert_eq!((conflict.status, &conflict.key[..], conflict.number), (RpcStatus::Conflict, &b"a"[..], 1));
    assert_eq!(ask(&[count(SORTED, 1)]).status, RpcStatus::Ok);
    assert_eq!(ask(&[count(SORTED, u64::MAX)]).status, RpcStatus::Conflict);
    let refused = ask(&[count(TABLE, 1)]);
    assert!(refused.status == RpcStatus::Malformed && refused.text().contains("--ordered"), "{}", refused.text());
    assert_eq!(ask(&[count(99, 1)]).status, RpcStatus::UnknownTable);
    // As many as there may be, as long as they may be, and one more.
    let mut many = client.transaction();
    let mut counted = (0..).map(|number: u32| many.count(SORTED, &number.to_be_bytes(), b""));
    let refused = counted.position(|counted| matches!(counted, Err(Error::TooLarge { .. })));
    assert_eq!(refused, Some(COMMIT_RANGES), "the client does not ask for more");
    assert_eq!(many.commit(), Ok(()));
    let (mut lengthy, long) = (client.transaction(), vec![b'a'; MAX_KEY_LEN - 1]);
    let mut counted = (0..).map(|last: u8| lengthy.rank(SORTED, &[&long[..], &[last]].concat()));
    assert_eq!(counted.position(|counted| matches!(counted, Err(Error::TooLarge { .. }))), Some(16));
    assert_eq!(lengthy.commit(), Ok(()));
    let step = |from| CommitStep::Count { table: SORTED, from, to: b"", keys: 1 };
    let mut message = CommitMessage::default();
    (0..COMMIT_RANGES).for_each(|_| message.push(&step(b"k")).expect("so many"));
    let refused = message.push(&step(b"k")).expect_err("too many").to_string();
    assert!(refused.contains("256 ranges and counts"), "{refused}");
    assert_eq!(client.run(|client| async move { client.commit_steps(&message).await }), Ok(()));
    // Of a table whose other keys are on other servers it would be a part only.
    let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
    let snapshot = plane.directory.snapshot();
    snapshot.by_name("bank").and_then(|view| view.table_by_name("sorted")).expect("it").table.set_slots(&slots);
    slots.set_owned(|slot| slot > 10_000);
    let refused = ask(&[count(SORTED, 1)]);
    assert!(refused.status == RpcStatus::Malformed && refused.text().contains("one server"), "{}", refused.text());
}

#[test]
fn counts_of_a_commit_count_as_what_they_cost() {
    let plane = data_plane(1);
    let (id, _) = tenant_with(&plane, "bank", true, QuotaChanges::default());
    let ordered = NewTable { id: Some(SORTED), ordered: true, ..NewTable::named("sorted") };
    plane.directory.create_table("bank", ordered).expect("a table");
    let longest = || flat(&plane.metrics.read_worker(0)).find(|(name, _)| name == "longest_piece").map(|found| found.1);
    let (mut wire, long) = (Wire::new(&plane, 0, id), [b'a'; 640]);
    assert_eq!(wire.one(Operation::get(TABLE, b"k")).status, RpcStatus::NotFound);
    assert!(longest() < Some(u64::from(POSITION_REQUESTS)), "{:?}", longest());
    for (keys, requests) in [([b"a", b"b"].map(|key| &key[..]), 0), ([&long[..], &long], 10)] {
        let mut body = Vec::new();
        for from in keys {
            push_commit_step(&mut body, &CommitStep::Count { table: SORTED, from, to: b"", keys: 0 });
        }
        assert_eq!(wire.one(Operation::commit(2, &body)).status, RpcStatus::Ok);
        let least = 2 * u64::from(POSITION_REQUESTS) + requests;
        // The bytes of the message are work as well.
        assert!((least..least + 4).contains(&longest().expect("a gauge")), "{:?}, not {least}", longest());
    }
}

#[test]
fn times_to_live_hold_until_the_commit() {
    let (plane, id) = world();
    let (own, other) = (client(&plane, id), client(&plane, id));
    let (hour, minute) = (Some(Duration::from_secs(3_600)), Some(Duration::from_secs(60)));
    let lives = |client: &Client, key: &[u8]| match client.ttl(TABLE, key).expect("an answer") {
        Some(RecordExpiry::After(left)) => Some(left),
        Some(RecordExpiry::Never) => Some(Duration::MAX),
        None => None,
    };
    own.put(TABLE, b"k", b"value", &PutOptions { flags: 7, ttl: hour, ..PutOptions::default() }).expect("a put");
    let mut transaction = own.transaction();
    let read = transaction.ttl(TABLE, b"k").expect("an answer");
    // A record is never gone before its time, and may be seen some milliseconds longer.
    let is_so = |left: Duration| Some(left) > minute && left.as_secs() <= 3_600;
    assert!(matches!(read, Some(RecordExpiry::After(left)) if is_so(left)), "{read:?}");
    assert_eq!(transaction.ttl(TABLE, b"none"), Ok(None));
    assert_eq!(transaction.touch(TABLE, b"none", minute), Ok(false));
    assert_eq!(transaction.touch(TABLE, b"k", minute), Ok(true));
    assert_eq!(transaction.ttl(TABLE, b"k"), Ok(minute.map(RecordExpiry::After)), "its own writes count");
    transaction.put(TABLE, b"fresh", b"");
    assert_eq!(transaction.ttl(TABLE, b"fresh"), Ok(Some(RecordExpiry::Never)));
    assert_eq!(transaction.touch(TABLE, b"fresh", minute), Ok(true));
    transaction.delete(TABLE, b"gone");
    assert_eq!((transaction.ttl(TABLE, b"gone"), transaction.touch(TABLE, b"gone", None)), (Ok(None), Ok(false)));
    assert!(lives(&other, b"k") > minute, "nothing is written yet");
    assert_eq!(transaction.commit(), Ok(()));
    for key in [&b"k"[..], b"fresh"] {
        assert!(lives(&other, key).is_some_and(|left| left.as_secs() <= 60), "{key:?}");
    }
    let record = other.get(TABLE, b"k").unwrap().expect("a record");
    assert_eq!((&record.value[..], record.flags), (&b"value"[..], 7));
    let mut forever = own.transaction();
    assert_eq!(forever.touch(TABLE, b"k", None), Ok(true));
    assert_eq!(forever.commit(), Ok(()));
    assert_eq!(lives(&other, b"k"), Some(Duration::MAX));
    // A change meanwhile is found, also a touch, which leaves the value.
    let conflict = || Err(Error::TransactionConflict { table: TABLE, key: b"k".to_vec() });
    let mut read = own.transaction();
    assert_eq!(read.ttl(TABLE, b"k"), Ok(Some(RecordExpiry::Never)));
    assert_eq!(other.touch(TABLE, b"k", hour), Ok(true));
    assert_eq!(read.commit(), conflict());
    let mut touched = own.transaction();
    assert_eq!(touched.touch(TABLE, b"k", minute), Ok(true));
    other.put(TABLE, b"k", b"other", &PutOptions::default()).expect("a put");
    assert_eq!(touched.commit(), conflict());
    assert_eq!(other.get(TABLE, b"k").unwrap().expect("a record").value, "other");
}

#[test]
fn a_key_whose_record_has_expired_counts_once() {
    let (plane, id) = world();
    let client = client(&plane, id);
    put(&client, SORTED, b"stays");
    let short = PutOptions { ttl: Some(Duration::from_millis(1)), ..PutOptions::default() };
    for _ in 0..20 {
        client.put(SORTED, b"goes", b"", &short).expect("a put");
        assert!(eventually(|| client.get(SORTED, b"goes") == Ok(None)));
        // It may be in the order still, or not any more.
        let write = |transaction: &mut BlockingTransaction| {
            transaction.put(SORTED, b"goes", b"");
            transaction.count(SORTED, b"", b"")
        };
        assert_eq!(client.transact(write), Ok(2));
        assert_eq!(client.count(SORTED, b"", b""), Ok(2));
        let delete = |transaction: &mut BlockingTransaction| {
            transaction.delete(SORTED, b"goes");
            transaction.count(SORTED, b"", b"")
        };
        assert_eq!((client.transact(delete), client.count(SORTED, b"", b"")), (Ok(1), Ok(1)));
    }
}

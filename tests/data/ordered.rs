//! Promise: over the wire, ranges of ordered tables are those of a sorted map, both ways, within limits, with long keys
//! and large values. A range of one moment never shows half of a transaction. Grants allow ranges, and their end
//! forbids them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{Wire, client, client_at, data_plane, library_of, tenant};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use sandstorm_catalog::{GrantAccess, GrantIssuer, NewTable};
use sandstorm_client::blocking::Client;
use sandstorm_client::{Direction, Error, KeyedRecord, PutOptions};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{Operation, RpcStatus};
use sandstorm_store::StorageMode;

/// The ordered table of a test.
const SORTED: u64 = 2;

fn world() -> (DataPlane, Client) {
    let plane = data_plane(2);
    let (id, _) = tenant(&plane, "ada", true);
    let sorted =
        NewTable { id: Some(SORTED), ordered: true, quota_bytes: Some(256 << 20), ..NewTable::named("sorted") };
    plane.directory.create_table("ada", sorted).expect("a table is created");
    let client = client(&plane, id);
    (plane, client)
}

fn put(client: &Client, key: &[u8], value: &[u8]) {
    client.put(SORTED, key, value, &PutOptions::default()).expect("there is room");
}

fn shown(records: Vec<KeyedRecord>) -> Vec<(Vec<u8>, Vec<u8>)> {
    records.into_iter().map(|record| (record.key.to_vec(), record.value.to_vec())).collect()
}

fn expected(
    model: &BTreeMap<Vec<u8>, Vec<u8>>,
    from: &[u8],
    to: &[u8],
    limit: usize,
    direction: Direction,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let inside = model.iter().filter(|(key, _)| &key[..] >= from && (to.is_empty() || &key[..] < to));
    let mut inside: Vec<_> = inside.map(|(key, value)| (key.clone(), value.clone())).collect();
    if direction == Direction::Backward {
        inside.reverse();
    }
    inside.truncate(limit);
    inside
}

/// One action of a client.
#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, u8),
    PutExpired(Vec<u8>),
    Delete(Vec<u8>),
    Increment(Vec<u8>),
    Range { from: Vec<u8>, to: Vec<u8>, limit: usize, backward: bool },
}

/// Keys of few letters: equal ones, prefixes of others, the empty one.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![Just(0), Just(7), Just(255)], 0..5)
}

fn step() -> impl Strategy<Value = Step> {
    let limit = prop_oneof![1..8usize, Just(10_000)];
    prop_oneof![
        4 => (key(), any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        1 => key().prop_map(Step::PutExpired),
        2 => key().prop_map(Step::Delete),
        1 => key().prop_map(Step::Increment),
        4 => (key(), key(), limit, any::<bool>())
            .prop_map(|(from, to, limit, backward)| Step::Range { from, to, limit, backward }),
    ]
}

fn take(client: &Client, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, step: Step) {
    match step {
        Step::Put(key, value) => {
            put(client, &key, &[value]);
            model.insert(key, vec![value]);
        }
        Step::PutExpired(key) => {
            let options = PutOptions { ttl: Some(std::time::Duration::from_millis(1)), ..PutOptions::default() };
            client.put(SORTED, &key, b"gone", &options).expect("there is room");
            while client.get(SORTED, &key).expect("an answer").is_some() {}
            model.remove(&key);
        }
        Step::Delete(key) => {
            let was = client.delete(SORTED, &key).expect("an answer");
            assert_eq!(was, model.remove(&key).is_some());
        }
        Step::Increment(key) => {
            if let Ok(sum) = client.increment(SORTED, &key, 1) {
                model.insert(key, sum.to_string().into_bytes());
            }
        }
        Step::Range { from, to, limit, backward } => {
            let direction = if backward { Direction::Backward } else { Direction::Forward };
            let expected = expected(model, &from, &to, limit, direction);
            let found = client.range(SORTED, &from, &to, limit, direction).expect("an answer");
            assert_eq!(shown(found), expected, "from {from:?} to {to:?}, {limit}, {direction:?}");
            let page = client.range_at_once(SORTED, &from, &to, limit, direction).expect("an answer");
            let is_all = expected.len() == super_len(model, &from, &to);
            let on = expected.last().filter(|_| !is_all).map(|(key, _)| key.clone());
            assert_eq!(shown(page.records), expected, "at once, from {from:?} to {to:?}, {limit}, {direction:?}");
            assert_eq!(page.on.map(|on| on.to_vec()), on, "from {from:?} to {to:?}, {limit}, {direction:?}");
        }
    }
}

/// The number of records between two keys.
fn super_len(model: &BTreeMap<Vec<u8>, Vec<u8>>, from: &[u8], to: &[u8]) -> usize {
    expected(model, from, to, usize::MAX, Direction::Forward).len()
}

#[test]
fn ranges_over_the_wire_are_those_of_a_sorted_map() {
    let (_plane, client) = world();
    let mut runner = proptest::test_runner::TestRunner::default();
    let mut model = BTreeMap::new();
    let steps = prop::collection::vec(step(), 600).new_tree(&mut runner).expect("steps").current();
    steps.into_iter().for_each(|step| take(&client, &mut model, step));
}

#[test]
fn a_long_range_comes_in_several_answers_and_in_order() {
    let (_plane, client) = world();
    let longest = |last: u8| [&vec![255; (64 << 10) - 1][..], &[last]].concat();
    let mut model = BTreeMap::new();
    for number in 0..2_500_u32 {
        model.insert(number.to_be_bytes().to_vec(), number.to_le_bytes().to_vec());
    }
    for last in [0, 9, 254, 255] {
        model.insert(longest(last), b"long".to_vec());
    }
    // No two of these fit into one answer, and the last of them only just fits alone.
    for number in 0..3_u8 {
        model.insert(vec![200, number], vec![number; 5 << 20]);
    }
    model.insert([&[201][..], &vec![1; (64 << 10) - 1]].concat(), vec![3; 8 << 20]);
    model.insert(Vec::new(), b"empty".to_vec());
    model.iter().for_each(|(key, value)| put(&client, key, value));
    for direction in [Direction::Forward, Direction::Backward] {
        for limit in [10_000, 2_499, 1_001, 1] {
            let found = shown(client.range(SORTED, b"", b"", limit, direction).expect("an answer"));
            assert!(found == expected(&model, b"", b"", limit, direction), "{limit} {direction:?}");
        }
        let page = client.range_at_once(SORTED, &[1], &[202], 10, direction).expect("an answer");
        assert!(page.records.len() == 1 && page.on.as_ref() == Some(&page.records[0].key), "one fits");
    }
}

#[test]
fn what_is_no_range_is_refused() {
    let (plane, client) = world();
    put(&client, b"k", b"v");
    for limit in [0, 10_001] {
        // The client library requests no more than a page at a time, so the message is made by hand.
        let refused =
            client.send(client.batch().range(SORTED, b"", b"", limit, Direction::Forward)).expect("an answer");
        assert!(matches!(&refused[0], Err(Error::Malformed { text }) if text.contains("10000")), "{refused:?}");
    }
    let ada = plane.directory.snapshot().by_name("ada").expect("a tenant").tenant.id;
    let mut wire = Wire::new(&plane, 0, ada);
    for (limit, status) in [(500, RpcStatus::Ok), (501, RpcStatus::TooLarge)] {
        // The client library does not send so many, so the test sends the message itself.
        let range = || Operation::range(SORTED, b"", b"", limit, false);
        let answered: Vec<RpcStatus> = wire.ask(&[range(), range()]).iter().map(|answer| answer.status).collect();
        assert_eq!(answered, [status; 2], "{limit}");
        let batch = client.batch().range(SORTED, b"", b"", limit, Direction::Forward);
        let sent = client.send(batch.range(SORTED, b"", b"", limit, Direction::Forward));
        assert_eq!(matches!(sent, Err(Error::TooLarge { .. })), status == RpcStatus::TooLarge, "{sent:?}");
    }
    let unordered = client.range(1, b"", b"", 10, Direction::Forward);
    assert!(matches!(&unordered, Err(Error::Malformed { text }) if text.contains("--ordered")), "{unordered:?}");
    let output_text = unordered.expect_err("refused").to_string();
    assert!(output_text.contains("is not ordered") && !output_text.contains("version"), "{output_text}");
    assert_eq!(client.range(9, b"", b"", 10, Direction::Forward), Err(Error::UnknownTable));
    for (from, to) in [(&b"k"[..], &b"k"[..]), (b"l", b"k"), (b"l", b"")] {
        assert_eq!(client.range(SORTED, from, to, 10, Direction::Backward), Ok(Vec::new()));
    }
    assert_eq!(
        client.range(SORTED, b"", b"", 10, Direction::Forward).expect("an answer").len(),
        1,
        "it goes on serving"
    );
}

#[test]
fn a_grant_allows_ranges_as_long_as_it_lasts() {
    let (plane, ada) = world();
    put(&ada, b"k", b"v");
    let (bob, _) = tenant(&plane, "bob", true);
    let bob = client(&plane, bob);
    plane.directory.grant("ada", "sorted", "bob", GrantAccess::Read, GrantIssuer::Owner).expect("a grant");
    let id = plane.directory.snapshot().by_name("bob").expect("bob").granted_by_name("ada/sorted").expect("it").id;
    assert_eq!(
        shown(bob.range(id, b"", b"", 10, Direction::Forward).expect("an answer")),
        [(b"k".into(), b"v".into())]
    );
    plane.directory.revoke("ada", "sorted", "bob").expect("a grant is revoked");
    assert_eq!(bob.range(id, b"", b"", 10, Direction::Forward), Err(Error::UnknownTable));
}

/// Sets the flag when it is dropped, after a failure too: threads that wait for it end as well.
struct Says<'a>(&'a AtomicBool);

impl Drop for Says<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Moves the record of one key to the next in a transaction, so that there are always as many.
const MOVES: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, tx) = (db.table("sorted")?, db.transaction());
    let all = tx.range(table, b"", b"", 100, Direction::Forward).await?;
    let moved = all[usize::from(args[0]) % all.len()];
    let mut key = moved.key().to_vec();
    let mut sum = 0;
    for record in &all {
        sum += u32::from(record.value()[0]);
    }
    key[0] = key[0].wrapping_add(args[1]);
    let moves = tx.get(table, &key).await?.is_none();
    if moves {
        tx.delete(table, moved.key()).await?;
        tx.put(table, &key, moved.value())?;
    }
    db.reply(&sum.to_le_bytes())?;
    db.reply(&[u8::from(moves)])
}
"#;

#[test]
fn a_range_of_one_moment_never_shows_half_of_a_transaction() {
    let (plane, ada) = world();
    let moves = crate::common::loaded("moves", 1, library_of("moves", MOVES), BudgetOverride::default());
    plane.directory.put_extension("ada", Arc::new(moves)).expect("an extension is loaded");
    let records = 24_u8;
    (0..records).for_each(|number| put(&ada, &[number * 10], &[1]));
    let id = plane.directory.snapshot().by_name("ada").expect("ada").tenant.id;
    let (done, ended, moved) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (plane, done, ended, moved) = (&plane, &done, &ended, &moved);
        let _says = Says(done);
        for thread in 0..2_u8 {
            scope.spawn(move || {
                let _says = Says(ended);
                let client = client_at(plane, id, thread.into());
                let mut round = thread;
                while !done.load(Ordering::Acquire) {
                    round = round.wrapping_mul(29).wrapping_add(7);
                    match client.invoke("moves", &[round, round | 1]) {
                        Ok(reply) => {
                            assert_eq!(reply[..4], u32::from(records).to_le_bytes(), "a transaction sees one moment");
                            moved.fetch_add(usize::from(reply[4]), Ordering::Release);
                        }
                        Err(Error::Conflict) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        // Rounds without a move do not count.
        let mut rounds = 0;
        while rounds < 400 && !ended.load(Ordering::Acquire) {
            let before = moved.load(Ordering::Acquire);
            let direction = if rounds % 2 == 0 { Direction::Forward } else { Direction::Backward };
            let page = ada.range_at_once(SORTED, b"", b"", 1_000, direction).expect("an answer");
            assert_eq!((page.records.len(), page.on), (records.into(), None));
            rounds += usize::from(moved.load(Ordering::Acquire) != before);
        }
        assert!(!ended.load(Ordering::Acquire), "nobody who moves records has failed");
    });
}

#[test]
fn an_ordered_cache_keeps_its_order_while_it_evicts() {
    let (plane, ada) = world();
    let cache = NewTable {
        id: Some(3),
        ordered: true,
        mode: StorageMode::Cache,
        quota_bytes: Some(1 << 20),
        ..NewTable::named("cache")
    };
    plane.directory.create_table("ada", cache).expect("a table is created");
    for number in 0..20_000_u32 {
        ada.put(3, &number.to_be_bytes(), &[0; 40], &PutOptions::default()).expect("a cache makes room");
    }
    let found = ada.range(3, b"", b"", usize::MAX, Direction::Forward).expect("an answer");
    assert!((1_000..20_000).contains(&found.len()) && found.is_sorted_by(|a, b| a.key < b.key), "{}", found.len());
    assert!(found.iter().all(|record| ada.get(3, &record.key).expect("an answer").is_some()));
}

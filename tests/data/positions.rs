//! Promise: counts, ranks and positions of an ordered table, over the wire, are those of a sorted set. What has no
//! order of all its keys refuses them, and they count as what they cost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_catalog::{GrantAccess, GrantIssuer, NewTable, QuotaChanges};
use sandstorm_client::blocking::Client;
use sandstorm_client::{Bytes, Error, PutOptions, Reply};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{MAX_KEY_LEN, Operation, RpcStatus};
use sandstorm_server::limits::POSITION_REQUESTS;
use sandstorm_store::slots::SlotOwnership;

use crate::common::{Wire, client, data_plane, eventually, tenant, tenant_with};

const TABLE: u64 = 1;
/// The ordered table of a test.
const SORTED: u64 = 2;

fn world() -> (DataPlane, u32) {
    let plane = data_plane(2);
    let (id, _) = tenant(&plane, "ada", true);
    sorted(&plane, "ada");
    (plane, id)
}

fn sorted(plane: &DataPlane, tenant: &str) {
    let table = NewTable { id: Some(SORTED), ordered: true, ..NewTable::named("sorted") };
    plane.directory.create_table(tenant, table).expect("a table is created");
}

fn put(client: &Client, key: &[u8]) {
    client.put(SORTED, key, b"v", &PutOptions::default()).expect("there is room");
}

/// Keys of few letters: equal ones, prefixes of others, the empty one.
fn some_key(random: &mut StdRng) -> Vec<u8> {
    (0..random.random_range(0..5)).map(|_| [0, 7, 255][random.random_range(0..3)]).collect()
}

/// The keys with `from <= key < to` of the model.
fn within(model: &BTreeSet<Vec<u8>>, from: &[u8], to: &[u8]) -> u64 {
    model.iter().filter(|key| &key[..] >= from && (to.is_empty() || &key[..] < to)).count() as u64
}

#[test]
fn counts_ranks_and_positions_are_those_of_a_sorted_set() {
    let (plane, id) = world();
    let (client, mut random) = (client(&plane, id), StdRng::seed_from_u64(24));
    let mut model = BTreeSet::new();
    for _ in 0..crate::common::rounds(600) {
        let key = some_key(&mut random);
        match random.random_range(0..4) {
            0 => assert_eq!(client.delete(SORTED, &key).expect("an answer"), model.remove(&key)),
            _ => {
                put(&client, &key);
                model.insert(key);
            }
        }
        let (from, to) = (some_key(&mut random), some_key(&mut random));
        assert_eq!(client.count(SORTED, &from, &to), Ok(within(&model, &from, &to)), "from {from:?} to {to:?}");
        let before = model.iter().filter(|known| **known < from).count() as u64;
        assert_eq!(client.rank(SORTED, &from), Ok(before), "{from:?}");
        let position = random.random_range(0..model.len() + 2);
        let expected = model.iter().nth(position).cloned().map(Bytes::from);
        assert_eq!(client.nth(SORTED, position as u64), Ok(expected), "{position}");
    }
    assert_eq!(client.nth(SORTED, u64::MAX), Ok(None));
    // All in one message, each in its place.
    let replies = client.send(client.batch().count(SORTED, b"", b"").rank(SORTED, &[255]).nth(SORTED, 0)).unwrap();
    let all = model.len() as u64;
    let before = model.iter().filter(|known| **known < vec![255]).count() as u64;
    let first = model.first().cloned().map(Bytes::from);
    assert_eq!(replies, [Ok(Reply::Counted(all)), Ok(Reply::Counted(before)), Ok(Reply::Key(first))]);
}

#[test]
fn the_longest_keys_have_positions() {
    let (plane, id) = world();
    let (client, mut wire) = (client(&plane, id), Wire::new(&plane, 0, id));
    let longest = |last: u8| [&vec![7; MAX_KEY_LEN - 1][..], &[last]].concat();
    (0..40).for_each(|last| put(&client, &longest(last)));
    assert_eq!(client.rank(SORTED, &longest(17)), Ok(17));
    assert_eq!(client.count(SORTED, &longest(3), &longest(20)), Ok(17));
    assert_eq!(client.nth(SORTED, 5).unwrap().as_deref(), Some(&longest(5)[..]));
    // The end may be a byte longer than a key, to end behind the longest one.
    let end = |more: usize| vec![7; MAX_KEY_LEN + more];
    assert_eq!(client.count(SORTED, b"", &end(1)), Ok(8), "those before the one of sevens, and itself");
    let refused = client.count(SORTED, b"", &end(2));
    assert!(matches!(&refused, Err(Error::TooLarge { what }) if what.contains("65536")), "{refused:?}");
    // As many keys as fit one answer, and the rest is told so.
    let answers = client.send((0..200).fold(client.batch(), |batch, at| batch.nth(SORTED, at % 40))).expect("answers");
    let whole = answers.iter().filter(|answer| matches!(answer, Ok(Reply::Key(Some(key))) if key.len() == MAX_KEY_LEN));
    let (whole, refused) = (whole.count(), answers.iter().filter(|answer| answer.is_err()).count());
    assert!(whole > 100 && whole + refused == 200, "{whole} and {refused}");
    assert_eq!(wire.one(Operation::rank(SORTED, b"")).number, 0);
}

#[test]
fn a_key_counts_until_its_expired_record_is_removed() {
    let (plane, id) = world();
    let client = client(&plane, id);
    put(&client, b"stays");
    let short = PutOptions { ttl: Some(Duration::from_millis(1)), ..PutOptions::default() };
    client.put(SORTED, b"goes", b"", &short).expect("a put");
    assert!(eventually(|| client.get(SORTED, b"goes") == Ok(None)));
    assert!(eventually(|| client.count(SORTED, b"", b"") == Ok(1)), "it is removed by itself");
    assert_eq!(client.nth(SORTED, 0).unwrap().as_deref(), Some(&b"stays"[..]));
}

#[test]
fn what_has_no_order_of_all_its_keys_refuses_positions() {
    let (plane, id) = world();
    let (client, mut wire) = (client(&plane, id), Wire::new(&plane, 0, id));
    put(&client, b"k");
    let all = |table| [Operation::count(table, b"", b""), Operation::rank(table, b""), Operation::nth(table, 0)];
    for answer in wire.ask(&all(TABLE)) {
        assert!(answer.status == RpcStatus::Malformed && answer.text().contains("positions need one"), "{answer:?}");
        assert!(answer.text().contains("--ordered"), "{answer:?}");
    }
    assert!(wire.ask(&all(9)).iter().all(|answer| answer.status == RpcStatus::UnknownTable));
    assert!(wire.ask(&all(SORTED)).iter().all(|answer| answer.status == RpcStatus::Ok));
    // Of a table whose other keys are on other servers it would be a part only.
    let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
    let snapshot = plane.directory.snapshot();
    snapshot.by_name("ada").and_then(|view| view.table_by_name("sorted")).expect("it").table.set_slots(&slots);
    slots.set_owned(|slot| slot > 10_000);
    for answer in wire.ask(&all(SORTED)) {
        assert!(answer.status == RpcStatus::Malformed && answer.text().contains("on one server"), "{answer:?}");
    }
    slots.set_owned(|_| true);
    assert_eq!((client.count(SORTED, b"", b""), client.rank(SORTED, b"l")), (Ok(1), Ok(1)));
}

#[test]
fn a_grant_allows_positions_as_long_as_it_lasts() {
    let (plane, ada) = world();
    put(&client(&plane, ada), b"k");
    let (bob, _) = tenant(&plane, "bob", true);
    let bob = client(&plane, bob);
    plane.directory.grant("ada", "sorted", "bob", GrantAccess::Read, GrantIssuer::Owner).expect("a grant");
    let id = plane.directory.snapshot().by_name("bob").expect("bob").granted_by_name("ada/sorted").expect("it").id;
    assert_eq!((bob.count(id, b"", b""), bob.rank(id, b"z")), (Ok(1), Ok(1)));
    plane.directory.revoke("ada", "sorted", "bob").expect("a grant is revoked");
    assert_eq!((bob.count(id, b"", b""), bob.nth(id, 0)), (Err(Error::UnknownTable), Err(Error::UnknownTable)));
}

#[test]
fn positions_count_as_what_they_cost() {
    let plane = data_plane(1);
    let (ada, _) = tenant(&plane, "ada", true);
    let quotas = QuotaChanges { requests_per_s: Some(100), ..QuotaChanges::default() };
    let (bob, _) = tenant_with(&plane, "bob", true, quotas);
    ["ada", "bob"].iter().for_each(|tenant| sorted(&plane, tenant));
    let work = || plane.directory.snapshot().by_name("ada").expect("ada").tenant.usage.worker(0).packet_work.get();
    let before = work();
    let mut wire = Wire::new(&plane, 0, ada);
    wire.ask(&[Operation::count(SORTED, b"", b""), Operation::rank(SORTED, b"k"), Operation::nth(SORTED, 0)]);
    assert_eq!(work() - before, 3 * u64::from(POSITION_REQUESTS));
    let (mut limited, ranks) = (Wire::new(&plane, 0, bob), vec![Operation::rank(SORTED, b"k"); 30]);
    let answers: Vec<_> = (0..20).map(|_| limited.ask(&ranks)[0].status).collect();
    assert_eq!(answers[0], RpcStatus::Ok);
    assert!(answers.contains(&RpcStatus::OverQuota), "600 ranks are as much as 9,600 requests: {answers:?}");
}

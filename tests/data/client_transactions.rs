//! Promise: the reads and writes of a client's transaction hold together, or nothing is written. What does not hold, or
//! may not be, is named. `client_histories.rs` beside it has many of them at a time.

use std::sync::Arc;
use std::time::Duration;

use sandstorm_catalog::{GrantAccess, GrantIssuer, NewTable, QuotaChanges};
use sandstorm_client::blocking::{BlockingTransaction, Client};
use sandstorm_client::{Direction, Error, ExpectedRecord, PutOptions};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{
    COMMIT_ROWS, COMMIT_WRITES, CommitRows, CommitStep, Condition, Operation, RpcStatus, encode_operation,
    push_commit_step,
};
use sandstorm_store::slots::SlotOwnership;

use super::spill;
use crate::common::{Wire, client, data_plane, tenant};

const TABLE: u64 = 1;
/// An ordered table of the tenant.
pub(super) const SORTED: u64 = 2;

pub(super) fn world() -> (DataPlane, u32) {
    let plane = data_plane(2);
    let (id, _) = tenant(&plane, "bank", true);
    let ordered = NewTable { id: Some(SORTED), ordered: true, ..NewTable::named("sorted") };
    plane.directory.create_table("bank", ordered).expect("a table");
    (plane, id)
}

fn put(client: &Client, table: u64, key: &[u8], value: &[u8]) -> u64 {
    client.put(table, key, value, &PutOptions::default()).expect("a put")
}

fn value(client: &Client, table: u64, key: &[u8]) -> Option<Vec<u8>> {
    client.get(table, key).expect("an answer").map(|record| record.value.to_vec())
}

fn conflict(table: u64, key: &[u8]) -> Result<(), Error> {
    Err(Error::TransactionConflict { table, key: key.to_vec() })
}

#[test]
fn a_transaction_shows_its_own_writes_and_makes_all_of_them_at_its_commit() {
    let (plane, id) = world();
    let client = client(&plane, id);
    put(&client, TABLE, b"a", b"1");
    for key in [b"s1", b"s3", b"s5"] {
        put(&client, SORTED, key, b"old");
    }
    let mut transaction = client.transaction();
    assert_eq!(transaction.get(TABLE, b"a").unwrap().expect("a record").value, "1");
    assert_eq!(transaction.get(TABLE, b"b").unwrap(), None);
    transaction.put(TABLE, b"b", b"2");
    transaction.delete(TABLE, b"a");
    transaction.put_with(SORTED, b"s2", b"new", 7, Some(Duration::from_secs(600)));
    transaction.delete(SORTED, b"s3");
    assert_eq!(transaction.get(TABLE, b"a").unwrap(), None);
    let own = transaction.multi_get(TABLE, &[&b"b"[..], b"c", b"b"]).unwrap();
    let own: Vec<_> =
        own.into_iter().map(|found| found.map(|record| (record.value.to_vec(), record.version))).collect();
    assert_eq!(own, [Some((b"2".to_vec(), 0)), None, Some((b"2".to_vec(), 0))]);
    let keys = |transaction: &mut BlockingTransaction, limit, direction| -> Vec<String> {
        let found = transaction.range(SORTED, b"s", b"", limit, direction).expect("a range");
        found.iter().map(|record| String::from_utf8_lossy(&record.key).into_owned()).collect()
    };
    assert_eq!(keys(&mut transaction, 9, Direction::Forward), ["s1", "s2", "s5"]);
    assert_eq!(keys(&mut transaction, 2, Direction::Forward), ["s1", "s2"]);
    assert_eq!(keys(&mut transaction, 2, Direction::Backward), ["s5", "s2"]);
    assert_eq!(value(&client, TABLE, b"b"), None, "nothing is written yet");
    assert_eq!(value(&client, TABLE, b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(transaction.commit(), Ok(()));
    assert_eq!((value(&client, TABLE, b"a"), value(&client, TABLE, b"b")), (None, Some(b"2".to_vec())));
    let written = client.get(SORTED, b"s2").unwrap().expect("a record");
    assert_eq!((&written.value[..], written.flags), (&b"new"[..], 7));
    assert_eq!(value(&client, SORTED, b"s3"), None);
    // One that does nothing, and one that is dropped.
    assert_eq!(client.transaction().commit(), Ok(()));
    client.transaction().put(TABLE, b"b", b"dropped");
    assert_eq!(value(&client, TABLE, b"b").as_deref(), Some(&b"2"[..]));
    let mut short = client.transaction();
    short.put_with(TABLE, b"short", b"", 0, Some(Duration::from_millis(1)));
    assert_eq!(short.commit(), Ok(()));
    assert!(crate::common::eventually(|| value(&client, TABLE, b"short").is_none()), "it expires");
}

type Reads = fn(&mut BlockingTransaction);
type Changes = fn(&Client);

/// What is read, what others change then, and the table and the key that the conflict names.
fn conflicts() -> [(&'static str, Reads, Changes, u64, &'static [u8]); 7] {
    [
        (
            "a changed record",
            |t| drop(t.get(TABLE, b"a")),
            |c| {
                put(c, TABLE, b"a", b"2");
            },
            TABLE,
            b"a",
        ),
        ("a deleted one", |t| drop(t.get(TABLE, b"a")), |c| drop(c.delete(TABLE, b"a")), TABLE, b"a"),
        (
            "one that came",
            |t| drop(t.get(TABLE, b"new")),
            |c| {
                put(c, TABLE, b"new", b"");
            },
            TABLE,
            b"new",
        ),
        (
            "one of many",
            |t| drop(t.multi_get(TABLE, &[&b"x"[..], b"y", b"z"])),
            |c| {
                put(c, TABLE, b"y", b"");
            },
            TABLE,
            b"y",
        ),
        (
            "one that came into a range",
            |t| drop(t.range(SORTED, b"m", b"n", 9, Direction::Forward)),
            |c| {
                put(c, SORTED, b"m9", b"");
            },
            SORTED,
            b"m",
        ),
        (
            "one that left it",
            |t| drop(t.range(SORTED, b"m", b"n", 9, Direction::Backward)),
            |c| drop(c.delete(SORTED, b"m5")),
            SORTED,
            b"m",
        ),
        (
            "one that was changed in it",
            |t| drop(t.range(SORTED, b"m", b"", 9, Direction::Forward)),
            |c| {
                put(c, SORTED, b"m9", b"again");
            },
            SORTED,
            b"m",
        ),
    ]
}

#[test]
fn what_others_have_changed_is_named_and_nothing_is_written() {
    let (plane, id) = world();
    let client = client(&plane, id);
    put(&client, TABLE, b"a", b"1");
    put(&client, SORTED, b"m5", b"");
    for (what, reads, changes, table, key) in conflicts() {
        let mut transaction = client.transaction();
        reads(&mut transaction);
        transaction.put(TABLE, b"never", b"");
        changes(&client);
        assert_eq!(transaction.commit(), conflict(table, key), "{what}");
        assert_eq!(value(&client, TABLE, b"never"), None, "{what}");
    }
    // What came behind the records that a limit has cut off does not matter, and neither do other keys.
    for number in 1..=5 {
        put(&client, SORTED, format!("q{number}").as_bytes(), b"");
    }
    for (direction, beside) in [(Direction::Forward, b"q4"), (Direction::Backward, b"q1")] {
        let mut transaction = client.transaction();
        assert_eq!(transaction.range(SORTED, b"q", b"r", 2, direction).unwrap().len(), 2);
        transaction.put(TABLE, b"written", b"");
        put(&client, SORTED, beside, b"changed");
        put(&client, TABLE, b"other", b"");
        assert_eq!(transaction.commit(), Ok(()), "{direction:?}");
    }
    assert!(conflict(1, b"k\0").unwrap_err().to_string().contains("the key \"k\\x00\" of table 1"));
}

#[test]
fn a_transaction_that_meets_others_is_run_again_and_not_for_ever() {
    let (plane, id) = world();
    let (own, other) = (client(&plane, id), client(&plane, id));
    let mut runs = 0;
    let sum: Result<u64, Error> = own.transact(|transaction| {
        let read = transaction.get(TABLE, b"n")?.map_or(0, |record| record.value.len() as u64);
        runs += 1;
        if runs < 4 {
            put(&other, TABLE, b"n", &vec![0; runs]);
        }
        transaction.put(TABLE, b"n", &vec![0; read as usize + 1]);
        Ok(read + 1)
    });
    assert_eq!((sum, runs), (Ok(4), 4), "three times others came first");
    let mut runs = 0;
    let ended: Result<(), Error> = own.transact(|transaction| {
        runs += 1;
        transaction.get(TABLE, b"n")?;
        put(&other, TABLE, b"n", &[1; 9]);
        Ok(())
    });
    assert_eq!(ended, conflict(TABLE, b"n"));
    assert_eq!(runs, sandstorm_client::limits::TRANSACTION_TRIES);
    let failed: Result<(), Error> = own.transact(|transaction| {
        transaction.put(TABLE, b"n", b"lost");
        Err(Error::Overloaded)
    });
    assert_eq!(failed, Err(Error::Overloaded), "an error of its own ends it");
    // Two records that others change together: what it reads between is of no moment, and so is its error.
    put(&own, TABLE, b"left", b"1");
    put(&own, TABLE, b"right", b"1");
    let mut runs = 0;
    let same: Result<(), Error> = own.transact(|transaction| {
        runs += 1;
        transaction.get(TABLE, b"left")?;
        if runs == 1 {
            put(&other, TABLE, b"left", b"2");
            put(&other, TABLE, b"right", b"2");
        }
        let left = transaction.get(TABLE, b"left")?.map(|record| record.value).unwrap_or_default();
        transaction.check(TABLE, b"right", ExpectedRecord::Value(&left))
    });
    assert_eq!((same, runs), (Ok(()), 2));
    let mut runs = 0;
    let unmet: Result<(), Error> = own.transact(|transaction| {
        runs += 1;
        transaction.check(TABLE, b"left", ExpectedRecord::Absent)
    });
    assert_eq!((unmet, runs), (Err(Error::Conflict), 1), "it is so");
    assert_eq!(value(&own, TABLE, b"n").as_deref(), Some(&[1; 9][..]));
    // The async client's.
    let written = own.run(|client| async move {
        let body = async |transaction: &mut sandstorm_client::ClientTransaction| {
            let found = transaction.get(TABLE, b"async").await?;
            transaction.put(TABLE, b"async", b"1");
            Ok::<_, Error>(found.is_none())
        };
        client.transact(body).await
    });
    assert_eq!(written, Ok(true));
}

fn commit_of(steps: &[CommitStep<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    steps.iter().for_each(|step| push_commit_step(&mut body, step));
    body
}

fn write<'m>(table: u64, key: &'m [u8], value: &'m [u8]) -> CommitStep<'m> {
    CommitStep::Put { table, key, value, user_flags: 0, ttl_ms: 0 }
}

#[test]
fn what_a_commit_may_not_do_is_refused_by_name_and_changes_nothing() {
    let (plane, id) = world();
    let (owner, _) = tenant(&plane, "owner", true);
    plane.directory.grant("owner", "t", "bank", GrantAccess::Read, GrantIssuer::Owner).expect("a grant");
    let snapshot = plane.directory.snapshot();
    let granted = snapshot.by_name("bank").expect("the tenant").granted_by_name("owner/t").expect("a grant").id;
    put(&client(&plane, owner), TABLE, b"theirs", b"1");
    let mut wire = Wire::new(&plane, 0, id);
    let first = write(TABLE, b"first", b"");
    let none = CommitRows::new(0, &[]);
    let mut ask = |steps: &[CommitStep<'_>], status: RpcStatus, key: &[u8], says: &str| {
        let body = commit_of(&[&[first][..], steps].concat());
        let answer = wire.one(Operation::commit(steps.len() as u64 + 1, &body));
        assert_eq!((answer.status, &answer.key[..]), (status, key), "{}", answer.text());
        assert!(answer.text().contains(says), "{}, not {says}", answer.text());
    };
    ask(&[write(99, b"k", b"")], RpcStatus::UnknownTable, b"k", "table list");
    ask(&[CommitStep::Read { table: 99, key: b"k", version: 0 }], RpcStatus::UnknownTable, b"k", "table list");
    ask(&[write(granted, b"k", b"")], RpcStatus::ReadOnly, b"k", "--read-write");
    ask(&[CommitStep::Read { table: granted, key: b"theirs", version: 77 }], RpcStatus::Conflict, b"theirs", "");
    ask(&[write(TABLE, b"first", b"2")], RpcStatus::Malformed, b"", "changes a key twice");
    let unordered = CommitStep::Range { table: TABLE, from: b"a", to: b"", backward: false, rows: none };
    ask(&[unordered], RpcStatus::Malformed, b"a", "--ordered");
    let mut conditional = Vec::new();
    encode_operation(&Operation::put(TABLE, b"first", b"").under(Condition::Absent, 0), &mut conditional);
    let answer = wire.one(Operation::commit(1, &conditional));
    assert!(answer.status == RpcStatus::Malformed && answer.text().contains("condition"), "{}", answer.text());
    let fewer = wire.one(Operation::commit(2, &commit_of(&[first])));
    assert!(fewer.status == RpcStatus::Malformed && fewer.text().contains("step"), "{}", fewer.text());
    assert_eq!(wire.one(Operation::commit(0, b"")).status, RpcStatus::Ok);
    assert_eq!(wire.one(Operation::get(TABLE, b"first")).status, RpcStatus::NotFound, "nothing of these is written");
    // The client does not send what is too large.
    let own = client(&plane, id);
    let mut transaction = own.transaction();
    (0..=COMMIT_WRITES as u32).for_each(|number| transaction.put(TABLE, &number.to_le_bytes(), b""));
    let refused = transaction.commit().expect_err("too many").to_string();
    assert!(refused.contains("256 keys"), "{refused}");
}

#[test]
fn a_commit_that_arrives_twice_is_made_once() {
    let (plane, id) = world();
    let mut wire = Wire::new(&plane, 0, id);
    let steps = [CommitStep::Read { table: TABLE, key: b"k", version: 0 }, write(TABLE, b"k", b"1")];
    let (body, header) = (commit_of(&steps), wire.header(1));
    for _ in 0..3 {
        let answers = wire.ask_as(&header, &[Operation::commit(2, &body)]);
        assert_eq!(answers[0].status, RpcStatus::Ok, "a second run would be a conflict");
    }
    let again = wire.one(Operation::commit(2, &body));
    assert_eq!((again.status, &again.key[..], again.number), (RpcStatus::Conflict, &b"k"[..], 0));
}

#[test]
fn each_step_counts_against_the_rate() {
    let plane = data_plane(1);
    let quotas = QuotaChanges { requests_per_s: Some(100), ..QuotaChanges::default() };
    let (id, _) = crate::common::tenant_with(&plane, "bank", true, quotas);
    let mut wire = Wire::new(&plane, 0, id);
    let keys: Vec<_> = (0..30_u32).map(u32::to_le_bytes).collect();
    let reads: Vec<_> = keys.iter().map(|key| CommitStep::Read { table: TABLE, key, version: 0 }).collect();
    let body = commit_of(&reads);
    let answers: Vec<_> = (0..20).map(|_| wire.one(Operation::commit(30, &body)).status).collect();
    assert_eq!(answers[0], RpcStatus::Ok);
    assert!(answers.contains(&RpcStatus::OverQuota), "20 requests are allowed, 600 are not: {answers:?}");
}

#[test]
fn keys_of_another_server_are_not_committed() {
    let (plane, id) = world();
    let snapshot = plane.directory.snapshot();
    let view = snapshot.by_name("bank").expect("the tenant");
    let slots = Arc::new(SlotOwnership::new("a".repeat(40)));
    for name in ["t", "sorted"] {
        view.table_by_name(name).expect("a table").table.set_slots(&slots);
    }
    // `foo` is of slot 12182, `bar` of slot 5061.
    slots.set_owned(|slot| slot > 10_000);
    // It asks again while no server has the key: its time is over then.
    let config = crate::common::network::config(&plane, id).deadline(Duration::from_secs(2));
    let client = Client::connect(config).expect("a client");
    let mut transaction = client.transaction();
    transaction.put(TABLE, b"foo", b"1");
    transaction.put(TABLE, b"bar", b"1");
    let refused = transaction.commit();
    assert!(matches!(&refused, Err(Error::WrongServer { .. })), "{refused:?}");
    let mut own = client.transaction();
    own.put(TABLE, b"foo", b"1");
    assert_eq!(own.commit(), Ok(()), "one whose keys are all here is made");
    let mut wire = Wire::new(&plane, 0, id);
    let read = [CommitStep::Read { table: TABLE, key: b"bar", version: 0 }];
    let answer = wire.one(Operation::commit(1, &commit_of(&read)));
    assert_eq!((answer.status, &answer.key[..]), (RpcStatus::WrongServer, &b"bar"[..]), "{}", answer.text());
    let rows = CommitRows::new(0, &[]);
    let range = [CommitStep::Range { table: SORTED, from: b"", to: b"", backward: false, rows }];
    assert_eq!(wire.one(Operation::commit(1, &commit_of(&range))).status, RpcStatus::Malformed, "a part of the range");
}

#[test]
fn cold_records_are_read_and_replaced_in_transactions() {
    let (plane, id, _folder) = spill::server(QuotaChanges::default());
    let mut wire = Wire::new(&plane, 0, id);
    spill::fill(&mut wire, 8_000);
    assert!(spill::stats(&plane).cold_records > 4_000);
    let client = client(&plane, id);
    for number in (0..4_000_u32).step_by(501) {
        let key = number.to_le_bytes();
        let moves = |transaction: &mut BlockingTransaction| {
            let found = transaction.get(spill::LARGE, &key)?.expect("a record");
            transaction.delete(spill::LARGE, &key);
            transaction.put(TABLE, &key, &found.value);
            Ok(found.value.to_vec())
        };
        // The table's memory is small: a record may leave it again before it is shown.
        let mut tries = std::iter::repeat_with(|| client.transact(moves)).take(1_000);
        let moved: Result<Vec<u8>, Error> =
            tries.find(|moved| *moved != Err(Error::Overloaded)).expect("it is moved in the end");
        assert_eq!(moved, Ok(spill::value(number)));
        assert_eq!(value(&client, TABLE, &key), Some(spill::value(number)));
        assert_eq!(value(&client, spill::LARGE, &key), None);
    }
    // A record that went cold since it was read is still the same.
    let key = 7_999_u32.to_le_bytes();
    let version = wire.one(Operation::get(spill::LARGE, &key)).number;
    spill::fill(&mut wire, 4_000);
    let read = CommitStep::Read { table: spill::LARGE, key: &key, version };
    let body = commit_of(&[read, write(spill::LARGE, &key, b"new")]);
    assert_eq!(wire.one(Operation::commit(2, &body)).status, RpcStatus::Ok);
    assert_eq!(wire.one(Operation::get(spill::LARGE, &key)).value, b"new");
}

/// As large as they may be, in one go.
#[test]
fn the_largest_transaction_is_committed() {
    let (plane, id) = world();
    let client = client(&plane, id);
    let keys: Vec<Vec<u8>> = (0..COMMIT_ROWS as u32 / 2).map(|number| number.to_be_bytes().to_vec()).collect();
    for chunk in keys.chunks(200) {
        let batch = chunk.iter().fold(client.batch(), |batch, key| batch.put(SORTED, key, b""));
        client.send(batch).expect("written");
    }
    let mut transaction = client.transaction();
    for direction in [Direction::Forward, Direction::Backward] {
        assert_eq!(transaction.range(SORTED, b"", b"", 5_000, direction).unwrap().len(), keys.len());
    }
    transaction.multi_get(TABLE, &keys).expect("records");
    let value = vec![7; 4_000];
    keys.iter().take(COMMIT_WRITES).for_each(|key| transaction.put(TABLE, key, &value));
    assert_eq!(transaction.commit(), Ok(()));
    assert_eq!(client.multi_get(TABLE, &keys).unwrap().iter().flatten().count(), COMMIT_WRITES);
}

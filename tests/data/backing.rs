//! Promise: a table in front of a folder shows what the folder has, and the folder has what a write-through was
//! answered for. Workers wait for none of it.

use std::path::Path;
use std::time::Duration;

use crate::common::{Wire, client, data_plane, eventually, load, tenant_with};
use sandstorm_catalog::{BackingAlteration, BackingPolicy, BackingSettings, ConflictChoice, NewTable, QuotaChanges};
use sandstorm_client::{Error, PutOptions};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{CommitStep, Condition, Operation, RpcStatus, push_commit_step};
use sandstorm_store::StorageMode;

/// The table with a backing.
const BACKED: u64 = 2;

/// A server whose tenant `a` has a table in front of a folder.
fn server(folder: &Path, policy: BackingPolicy) -> (DataPlane, u32) {
    let plane = data_plane(2);
    plane.directory.open_backings().expect("threads");
    let (id, _) = tenant_with(&plane, "a", true, QuotaChanges::default());
    let url = format!("file://{}", folder.display());
    let backing = Some(BackingSettings { policy, ..BackingSettings::of(&url) });
    let table = NewTable { id: Some(BACKED), mode: StorageMode::Cache, backing, ..NewTable::named("backed") };
    plane.directory.create_table("a", table).expect("a table");
    (plane, id)
}

fn has(folder: &Path, name: &str, value: &[u8]) -> bool {
    std::fs::read(folder.join(name)).is_ok_and(|bytes| bytes.ends_with(value))
}

#[test]
fn a_write_through_is_in_the_folder_when_it_is_answered_and_another_server_reads_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, id) = server(folder.path(), BackingPolicy::WriteThrough);
    let (two, other) = server(folder.path(), BackingPolicy::WriteThrough);
    let (mut ours, mut theirs) = (Wire::new(&one, 0, id), Wire::new(&two, 0, other));
    for number in 0..30_u32 {
        let (key, value) = (format!("key-{number}"), format!("value-{number}"));
        let answer = ours.one(Operation::put(BACKED, key.as_bytes(), value.as_bytes()));
        assert_eq!(answer.status, RpcStatus::Ok, "{}", answer.text());
        assert!(has(folder.path(), &key, value.as_bytes()), "{key} is there when its put is answered");
        assert_eq!(theirs.one(Operation::get(BACKED, key.as_bytes())).value, value.as_bytes());
    }
    assert_eq!(theirs.one(Operation::get(BACKED, b"nothing")).status, RpcStatus::NotFound);
    // Several at once, some of which are not there.
    let (three, third) = server(folder.path(), BackingPolicy::WriteThrough);
    let reader = client(&three, third);
    let keys: Vec<String> = (0..40_u32).map(|number| format!("key-{number}")).collect();
    let found = reader.multi_get(BACKED, &keys).expect("answers");
    assert_eq!(found.iter().flatten().count(), 30);
    let found = reader.snapshot(BACKED, &keys).expect("answers");
    assert_eq!(found.iter().flatten().count(), 30);
    // Conditions and increments see what the folder has.
    let absent = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
    let (four, fourth) = server(folder.path(), BackingPolicy::WriteThrough);
    let writer = client(&four, fourth);
    let refused = writer.put(BACKED, b"key-1", b"x", &absent);
    assert!(matches!(refused, Err(Error::Conflict)), "{refused:?}");
    assert_eq!(writer.increment(BACKED, b"count", 5).expect("a sum"), 5);
    assert!(has(folder.path(), "count", b"5"));
    assert_eq!(reader.increment(BACKED, b"count", 2).expect("a sum"), 7);
    assert!(writer.delete(BACKED, b"key-2").expect("deleted") && !folder.path().join("key-2").exists());
    assert!(!writer.delete(BACKED, b"key-2").expect("it was not there"));
    // The first server has read nothing since: its write is not made, and it is told.
    let answer = ours.one(Operation::put(BACKED, b"key-2", b"late"));
    assert_eq!(answer.status, RpcStatus::NotDurable, "another writer was there: {}", answer.text());
    assert_eq!(ours.one(Operation::get(BACKED, b"key-2")).status, RpcStatus::NotFound);
}

#[test]
fn a_transaction_deletes_what_only_the_folder_has_and_the_folder_has_it_when_it_is_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, id) = server(folder.path(), BackingPolicy::WriteThrough);
    for key in [&b"deleted"[..], b"changed"] {
        client(&one, id).put(BACKED, key, b"1", &PutOptions::default()).expect("put");
    }
    // Another server, which has read nothing.
    let (two, other) = server(folder.path(), BackingPolicy::WriteThrough);
    let theirs = client(&two, other);
    let mut transaction = theirs.transaction();
    transaction.delete(BACKED, b"deleted");
    transaction.delete(BACKED, b"nothing");
    assert_eq!(transaction.get(BACKED, b"changed").expect("an answer").expect("a record").value, "1");
    transaction.put(BACKED, b"changed", b"2");
    assert_eq!(transaction.commit(), Ok(()));
    assert!(!folder.path().join("deleted").exists() && has(folder.path(), "changed", b"2"));
    assert_eq!(theirs.get(BACKED, b"deleted").expect("an answer"), None);
}

#[test]
fn a_damaged_object_is_an_answer_and_a_backing_that_is_gone_another_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, id) = server(folder.path(), BackingPolicy::WriteThrough);
    let mut ours = Wire::new(&one, 0, id);
    for key in [&b"flipped"[..], b"short"] {
        assert_eq!(ours.one(Operation::put(BACKED, key, b"a value of some length")).status, RpcStatus::Ok);
    }
    let mut bytes = std::fs::read(folder.path().join("flipped")).expect("an object");
    bytes[50] ^= 1;
    std::fs::write(folder.path().join("flipped"), &bytes).expect("written");
    std::fs::write(folder.path().join("short"), &bytes[..20]).expect("written");
    let (two, other) = server(folder.path(), BackingPolicy::WriteThrough);
    let mut theirs = Wire::new(&two, 0, other);
    for key in [&b"flipped"[..], b"short"] {
        let answer = theirs.one(Operation::get(BACKED, key));
        assert_eq!(answer.status, RpcStatus::NotRead, "{}", answer.text());
        assert_eq!(ours.one(Operation::get(BACKED, key)).value, b"a value of some length", "memory has it");
    }
    // A folder that is gone refuses writes; what is in memory is served, and the folder gets all once it is back.
    let aside = folder.path().with_extension("aside");
    std::fs::rename(folder.path(), &aside).expect("renamed");
    let answer = ours.one(Operation::put(BACKED, b"later", b"1"));
    assert_eq!(answer.status, RpcStatus::NotDurable, "{}", answer.text());
    assert_eq!(ours.one(Operation::get(BACKED, b"short")).value, b"a value of some length");
    std::fs::rename(&aside, folder.path()).expect("renamed");
    assert!(eventually(|| has(folder.path(), "later", b"1")), "it is tried again");
}

#[test]
fn a_write_back_is_answered_at_once_and_its_policy_changes_while_it_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    // In memory only, so with write-through at first: write-back needs the log.
    let (plane, id) = server(folder.path(), BackingPolicy::WriteThrough);
    let mut wire = Wire::new(&plane, 0, id);
    let refused = plane.directory.set_backing(
        "a",
        "backed",
        &BackingAlteration { policy: Some(BackingPolicy::WriteBack), ..BackingAlteration::default() },
    );
    assert!(refused.is_err_and(|error| error.to_string().contains("interval or disk")));
    let read_only = BackingAlteration { policy: Some(BackingPolicy::ReadThrough), ..BackingAlteration::default() };
    assert_eq!(wire.one(Operation::put(BACKED, b"a", b"1")).status, RpcStatus::Ok);
    plane.directory.set_backing("a", "backed", &read_only).expect("changed");
    assert_eq!(wire.one(Operation::put(BACKED, b"a", b"2")).status, RpcStatus::ReadOnly);
    assert_eq!(wire.one(Operation::delete(BACKED, b"a")).status, RpcStatus::Ok, "it forgets the record");
    assert_eq!(wire.one(Operation::get(BACKED, b"a")).value, b"1", "and loads it again");
    let flushed = plane.directory.flush_backing("a", "backed", ConflictChoice::Keep, Duration::from_secs(10));
    assert_eq!(flushed.expect("nothing is dirty"), 0);
}

#[test]
fn calls_load_what_they_read_and_are_answered_when_the_backing_has_what_they_wrote() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, id) = server(folder.path(), BackingPolicy::WriteThrough);
    for name in ["get", "put", "transfer"] {
        load(&one, "a", name, 1);
    }
    let (two, other) = server(folder.path(), BackingPolicy::WriteThrough);
    let mut theirs = Wire::new(&two, 0, other);
    for account in [&b"from"[..], b"into"] {
        assert_eq!(theirs.one(Operation::put(BACKED, account, &100_u64.to_le_bytes())).status, RpcStatus::Ok);
    }
    let mut ours = Wire::new(&one, 0, id);
    let table = BACKED.to_le_bytes();
    let got = ours.one(Operation::invoke(b"get", &[&table[..], b"from"].concat()));
    assert_eq!((got.status, got.value), (RpcStatus::Ok, 100_u64.to_le_bytes().to_vec()));
    let absent = ours.one(Operation::invoke(b"get", &[&table[..], b"nothing"].concat()));
    assert_eq!(absent.status, RpcStatus::Failed, "{}", absent.text());
    // A transaction: one record that is in memory, and one that is not.
    let args = [&table[..], &30_u64.to_le_bytes(), &4_u16.to_le_bytes(), b"from", b"into"].concat();
    let moved = ours.one(Operation::invoke(b"transfer", &args));
    let balances = [70_u64.to_le_bytes(), 130_u64.to_le_bytes()];
    assert_eq!((moved.status, &moved.value), (RpcStatus::Ok, &balances.concat()), "{}", moved.text());
    assert!(has(folder.path(), "from", &balances[0]) && has(folder.path(), "into", &balances[1]));
    let written = [&table[..], &3_u32.to_le_bytes(), b"new", b"value"].concat();
    assert_eq!(ours.one(Operation::invoke(b"put", &written)).status, RpcStatus::Ok);
    assert!(has(folder.path(), "new", b"value"));
    // The other server knows nothing of it: its write is not made, and its client is told.
    assert_eq!(theirs.one(Operation::put(BACKED, b"from", b"stale")).status, RpcStatus::NotDurable);
    assert_eq!(theirs.one(Operation::get(BACKED, b"from")).value, balances[0]);
}

#[test]
fn a_refused_transaction_names_the_change_that_the_backing_does_not_take() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plane, id) = server(folder.path(), BackingPolicy::WriteThrough);
    let bound = BackingAlteration { dirty_limit_bytes: Some(700), ..BackingAlteration::default() };
    plane.directory.set_backing("a", "backed", &bound).expect("changed");
    let mut wire = Wire::new(&plane, 0, id);
    // A key of the same name in another table is another one.
    let keys: Vec<String> = (0..8).map(|number| format!("key-{number}")).collect();
    // All of it is one packet, of any driver.
    let long = [7; 500];
    for refused in &keys {
        let steps = keys.iter().flat_map(|key| {
            let value = if key == refused { &long[..] } else { b"1" };
            let put = |table, value| CommitStep::Put { table, key: key.as_bytes(), value, user_flags: 0, ttl_ms: 0 };
            [put(1, b"1"), put(BACKED, value)]
        });
        let (mut body, mut count) = (Vec::new(), 0);
        for step in steps {
            push_commit_step(&mut body, &step);
            count += 1;
        }
        let answer = wire.one(Operation::commit(count, &body));
        assert_eq!((answer.status, answer.key), (RpcStatus::NotBacked, refused.clone().into_bytes()));
    }
    assert_eq!(wire.one(Operation::get(1, b"key-0")).status, RpcStatus::NotFound, "nothing of it is made");
}

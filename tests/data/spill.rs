//! Promise: a table of mode `spill` holds more than its memory. Whatever left memory comes back as it was, by gets and
//! multigets, while requests for what is in memory do not wait. Damage is an answer, never other bytes.

use std::time::{Duration, Instant};

use crate::common::{Wire, client, data_plane, eventually, tenant_with};
use sandstorm_catalog::{DirectoryError, NewTable, QuotaChanges};
use sandstorm_client::{Error, Reply};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{Operation, RpcStatus};
use sandstorm_store::StorageMode;
use sandstorm_store::spill::SpillStats;

/// The table of mode `spill`.
pub(super) const LARGE: u64 = 2;
/// Its memory.
const MEMORY: u64 = 2 << 20;

pub(super) fn spill_table(name: &str) -> NewTable {
    NewTable { id: Some(LARGE), mode: StorageMode::Spill, quota_bytes: Some(MEMORY), ..NewTable::named(name) }
}

/// A server whose tenant `a` has such a table, and the folder of its spill file.
pub(super) fn server(quotas: QuotaChanges) -> (DataPlane, u32, tempfile::TempDir) {
    let plane = data_plane(2);
    let folder = tempfile::tempdir().expect("a folder");
    plane.directory.open_spill_folder(folder.path()).expect("a folder");
    let (id, _) = tenant_with(&plane, "a", true, quotas);
    plane.directory.create_table("a", spill_table("large")).expect("a table");
    (plane, id, folder)
}

pub(super) fn stats(plane: &DataPlane) -> SpillStats {
    let snapshot = plane.directory.snapshot();
    let view = snapshot.iter().find(|view| &*view.tenant.name == "a").expect("the tenant");
    view.table_by_name("large").and_then(|entry| entry.table.spill_stats()).expect("a spill file")
}

pub(super) fn value(number: u32) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(200 + number as usize % 1_000, number as u8);
    value
}

/// Writes so many records.
pub(super) fn fill(wire: &mut Wire, records: u32) {
    for number in 0..records {
        loop {
            let answer = wire.one(Operation::put(LARGE, &number.to_le_bytes(), &value(number)));
            match answer.status {
                RpcStatus::Ok => break,
                // The disk is slower than the writes.
                RpcStatus::Overloaded => std::thread::sleep(Duration::from_millis(1)),
                other => panic!("{other:?}: {}", answer.text()),
            }
        }
    }
}

#[test]
fn a_slow_call_tells_how_long_it_waited_for_records_on_the_disk() {
    const RECORDS: u32 = 12_000;
    let (plane, id, _folder) = server(QuotaChanges::default());
    crate::common::load(&plane, "a", "get", 1);
    let mut wire = Wire::new(&plane, 0, id);
    fill(&mut wire, RECORDS);
    assert!(stats(&plane).cold_records > 0);
    // From now on all requests are slow.
    plane.metrics.slow.set_ns(0);
    let mut numbers = (0..RECORDS).cycle().step_by(7);
    let gets = std::cell::Cell::new(0);
    let told = || {
        let number = numbers.next().expect("it goes on");
        let args = [&LARGE.to_le_bytes()[..], &number.to_le_bytes()].concat();
        let answer = wire.one(Operation::invoke(b"get", &args));
        assert_eq!((answer.status, &answer.value), (RpcStatus::Ok, &value(number)), "{number}: {}", answer.text());
        let snapshot = plane.directory.snapshot();
        let slow = snapshot.by_name("a").expect("the tenant").tenant.usage.slow_requests.recent();
        for one in slow.iter().filter(|one| one.class as usize == 0 && one.waits.disk_ns > 0) {
            assert!(one.waits.disk_ns <= one.waiting_ns, "a get of a record on the disk: {one:?}");
            gets.set(gets.get() + 1);
        }
        let calls: Vec<_> = slow.into_iter().filter_map(|one| Some((one.waiting_ns, one.waits, one.call?))).collect();
        for (waiting_ns, waits, call) in &calls {
            assert_eq!(waits.disk_ns, call.cold_ns, "{call:?}");
            assert!(call.cold_ns <= *waiting_ns && call.cold_waits < call.polls, "{call:?}");
            assert_eq!(call.pauses.cold.count, call.cold_waits, "{call:?}");
        }
        let answer = wire.one(Operation::get(LARGE, &(RECORDS - number - 1).to_le_bytes()));
        assert_eq!(answer.status, RpcStatus::Ok, "{}", answer.text());
        calls.iter().any(|(.., call)| call.cold_waits > 0 && call.cold_ns > 0)
            && calls.iter().any(|(.., call)| (call.cold_waits, call.cold_ns) == (0, 0))
            && gets.get() > 0
    };
    assert!(eventually(told), "a call of a record in memory, one of a record on the disk, and a get of such a one");
}

#[test]
fn a_table_holds_several_times_its_memory() {
    const RECORDS: u32 = 12_000;
    let (plane, id, _folder) = server(QuotaChanges::default());
    let mut wire = Wire::new(&plane, 0, id);
    fill(&mut wire, RECORDS);
    let after = stats(&plane);
    assert!(after.cold_records > u64::from(RECORDS) / 2, "{after:?}");
    for number in (0..RECORDS).step_by(7) {
        let answer = wire.one(Operation::get(LARGE, &number.to_le_bytes()));
        assert_eq!((answer.status, &answer.value), (RpcStatus::Ok, &value(number)), "{number}: {}", answer.text());
    }
    // Several at once, and some that are not there.
    let client = client(&plane, id);
    for first in (0..RECORDS).step_by(1_000) {
        let keys: Vec<[u8; 4]> = (first..first + 20).map(|number| (number * 3).to_le_bytes()).collect();
        // The table's memory is small: a record may leave it again before its message goes on, and is asked for again.
        let answers = loop {
            let batch = keys.iter().fold(client.batch(), |batch, key| batch.get(LARGE, key));
            match client.send(batch) {
                Err(Error::Overloaded) => {}
                answers => break answers.expect("answers"),
            }
        };
        for (key, answer) in keys.iter().zip(answers) {
            let number = u32::from_le_bytes(*key);
            let found = match answer.expect("an answer") {
                Reply::Record(found) => found.map(|record| record.value),
                other => panic!("{other:?}"),
            };
            let expected = Some(value(number)).filter(|_| number < RECORDS);
            assert_eq!(found.as_deref(), expected.as_deref(), "{number}");
        }
    }
    let reads = stats(&plane);
    assert!(reads.reads > 1_000 && reads.read_errors == 0, "{reads:?}");
    // Writes and deletes of cold records.
    assert_eq!(wire.one(Operation::put(LARGE, &5_u32.to_le_bytes(), b"new")).status, RpcStatus::Ok);
    assert_eq!(wire.one(Operation::get(LARGE, &5_u32.to_le_bytes())).value, b"new");
    assert_eq!(wire.one(Operation::delete(LARGE, &7_u32.to_le_bytes())).status, RpcStatus::Ok);
    assert_eq!(wire.one(Operation::get(LARGE, &7_u32.to_le_bytes())).status, RpcStatus::NotFound);
    // The multiget of a client.
    let keys: Vec<[u8; 4]> = (0..300_u32).map(|number| (number * 37 + 100).to_le_bytes()).collect();
    let found = loop {
        match client.multi_get(LARGE, &keys) {
            Err(Error::Overloaded) => {}
            found => break found.expect("answers"),
        }
    };
    for (key, record) in keys.iter().zip(found) {
        assert_eq!(record.expect("it is there").value, value(u32::from_le_bytes(*key)));
    }
}

#[test]
fn who_reads_cold_waits_and_who_reads_hot_does_not() {
    let quotas = QuotaChanges { cold_reads_per_s: Some(20), ..QuotaChanges::default() };
    let (plane, id, _folder) = server(quotas);
    let mut wire = Wire::new(&plane, 0, id);
    fill(&mut wire, 6_000);
    let (cold, mut hot) = (client(&plane, id), Wire::new(&plane, 0, id));
    assert_eq!(hot.one(Operation::put(1, b"hot", b"hot")).status, RpcStatus::Ok);
    // Forty reads take two seconds, but for the burst.
    let keys: Vec<[u8; 4]> = (0..40_u32).map(|number| (number * 50).to_le_bytes()).collect();
    let begun = Instant::now();
    let (mut answers, mut slowest) = (0, Duration::ZERO);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| cold.multi_get(LARGE, &keys).expect("answers").iter().flatten().count());
        while !waits.is_finished() {
            let one = Instant::now();
            assert_eq!(hot.one(Operation::get(1, b"hot")).value, b"hot");
            slowest = slowest.max(one.elapsed());
            answers += 1;
        }
        assert_eq!(waits.join().expect("no panic"), 40);
    });
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(500), "{took:?}");
    assert!(answers > 100 && slowest < took / 2, "{answers} answers, the slowest after {slowest:?} of {took:?}");
}

#[test]
fn what_a_table_of_this_mode_cannot_be_is_refused() {
    let (plane, id, _folder) = server(QuotaChanges::default());
    let refused = |table: NewTable| plane.directory.create_table("a", table).expect_err("refused").to_string();
    let other = |table: NewTable| NewTable { id: None, name: "other".into(), ..table };
    let ordered = refused(other(NewTable { ordered: true, ..spill_table("other") }));
    assert!(ordered.contains("larger than memory") && ordered.contains("ordered"), "{ordered}");
    let without = data_plane(1);
    let (_, _) = tenant_with(&without, "a", true, QuotaChanges::default());
    let nowhere = without.directory.create_table("a", spill_table("large"));
    assert!(matches!(nowhere, Err(DirectoryError::CannotSpill { .. })), "{nowhere:?}");
    let _ = id;
}

#[test]
fn the_spill_file_goes_with_its_table() {
    let (plane, id, folder) = server(QuotaChanges::default());
    let files = || std::fs::read_dir(folder.path()).expect("a folder").count();
    fill(&mut Wire::new(&plane, 0, id), 3_000);
    assert_eq!(files(), 1);
    plane.directory.drop_table("a", "large").expect("dropped");
    let is_gone = || plane.directory.reap() + files() == 0;
    assert!(eventually(is_gone), "{} tables wait to be freed", plane.directory.dropped_tables());
    // A start empties the folder of what an earlier one has left.
    std::fs::write(folder.path().join("1-2-3.spill"), b"left").expect("written");
    let next = data_plane(1);
    next.directory.open_spill_folder(folder.path()).expect("a folder");
    assert_eq!(files(), 0);
}

//! Promise: what a tenant may take of the disk bounds its tables larger than memory: the bytes of their files, and
//! those of its reads. A client of memcached over UDP, which cannot wait, is told to ask again.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::spill::{LARGE, fill, server, stats, value};
use super::spill_clients::{MEMCACHED, REDIS, RawClient, bulk, server_with_ports, set, text_value};
use crate::common::{Wire, eventually, library_with, loaded};
use sandstorm_catalog::{QuotaChanges, TenantChange};
use sandstorm_client::control::{CallLevelReport, CallReport, CallsReport, Control, ControlError};
use sandstorm_control::admin::{AdminServer, ArtifactBuilder, ArtifactSources, ControlState, OperatorCredentials};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{Operation, RpcStatus};

const OPERATOR: &str = "the operator's token of this test";

/// Reads cold records one after the other; returns how long that took.
fn read_cold(plane: &DataPlane, wire: &mut Wire, numbers: std::ops::Range<u32>) -> Duration {
    let before = stats(plane);
    let (begun, count) = (Instant::now(), u64::from(numbers.end - numbers.start));
    for number in numbers {
        let answer = wire.one(Operation::get(LARGE, &number.to_le_bytes()));
        assert_eq!((answer.status, &answer.value), (RpcStatus::Ok, &value(number)), "{number}: {}", answer.text());
    }
    let after = stats(plane);
    assert_eq!((after.reads - before.reads, after.read_errors), (count, 0), "each was on the disk");
    assert_eq!(after.read_bytes - before.read_bytes, count * 4_096, "a block each");
    begun.elapsed()
}

#[test]
fn cold_bytes_per_s_bounds_what_a_tenants_reads_take_of_the_disk() {
    let (plane, id, _folder) = server(QuotaChanges::default());
    let mut wire = Wire::new(&plane, 0, id);
    fill(&mut wire, 8_000);
    read_cold(&plane, &mut wire, 0..10);
    assert_eq!(stats(&plane).held_by_quota, 0, "there is no such quota");
    // Two blocks a second.
    let quotas = QuotaChanges { cold_bytes_per_s: Some(8_192), ..QuotaChanges::default() };
    plane.directory.update_tenant("a", &TenantChange { quotas, ..TenantChange::default() }).expect("changed");
    let took = read_cold(&plane, &mut wire, 100..106);
    assert!(took >= Duration::from_secs(2) && stats(&plane).held_by_quota > 0, "{took:?}, {:?}", stats(&plane));
    // What is in memory does not wait.
    let held = stats(&plane).held_by_quota;
    for number in 100..106_u32 {
        assert_eq!(wire.one(Operation::get(LARGE, &number.to_le_bytes())).value, value(number));
    }
    assert_eq!(stats(&plane).held_by_quota, held);
}

#[test]
fn spill_bytes_bounds_the_file_and_a_higher_quota_makes_room_at_once() {
    const VALUE_BYTES: usize = 64 << 10;
    const LEAST: u64 = 64 << 20;
    let (plane, _, _folder) = server_with_ports(QuotaChanges { spill_bytes: Some(LEAST), ..QuotaChanges::default() });
    let mut redis = RawClient::new(&plane, REDIS);
    let large = "v".repeat(VALUE_BYTES);
    // Returns why there is no room, if there is none.
    let mut put = |number: u64| loop {
        redis.send(&set(&format!("k{number}"), &large));
        match redis.line() {
            said if said == "+OK" => return Ok(()),
            said if said.contains("busy") => std::thread::sleep(Duration::from_millis(2)),
            said => return Err(said),
        }
    };
    let mut stored = 0;
    let refused = loop {
        match put(stored) {
            Ok(()) => stored += 1,
            Err(said) => break said,
        }
        assert!(stored * (VALUE_BYTES as u64) < 2 * LEAST, "it takes more than it may");
    };
    assert!(refused.contains("spill file has reached its limit"), "{refused}");
    let full = stats(&plane);
    assert!(full.file_bytes <= LEAST && full.refused_by_quota > 0 && full.cold_records > 500, "{full:?}");
    RawClient::new(&plane, REDIS).expect("GET k0\r\n", &bulk(&large));
    let quotas = QuotaChanges { spill_bytes: Some(2 * LEAST), ..QuotaChanges::default() };
    plane.directory.update_tenant("a", &TenantChange { quotas, ..TenantChange::default() }).expect("changed");
    for number in stored..stored + 200 {
        assert_eq!(put(number), Ok(()));
    }
    let more = stats(&plane);
    assert!(more.file_bytes > full.file_bytes && more.file_bytes <= 2 * LEAST, "{more:?}");
}

#[test]
fn a_datagram_of_memcached_does_not_wait_and_the_next_one_finds_the_record() {
    const COLD: &str = "SERVER_ERROR the record is not in memory, and is fetched: ask again\r\n";
    let (plane, _, _folder) = server_with_ports(QuotaChanges::default());
    let mut memcached = RawClient::new(&plane, MEMCACHED);
    memcached.write("set number 0 0 2\r\n41\r\n", "STORED\r\n");
    for number in 0..6_000_u32 {
        let value = text_value(number);
        memcached.write(&format!("set k{number} 7 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    }
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(plane.listening()[MEMCACHED]).expect("an address");
    socket.set_read_timeout(Some(Duration::from_secs(300))).expect("a timeout");
    let ask = |command: &str| {
        socket.send(&[&[0, 7, 0, 0, 0, 1, 0, 0], command.as_bytes()].concat()).expect("sent");
        let mut answer = [0; 1_500];
        let len = socket.recv(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer[8..len]).into_owned()
    };
    let found =
        |number: u32| format!("VALUE k{number} 7 {}\r\n{}\r\nEND\r\n", text_value(number).len(), text_value(number));
    for number in [0, 100, 1_000] {
        let get = format!("get k{number}\r\n");
        assert_eq!(ask(&get), COLD);
        assert!(eventually(|| ask(&get) == found(number)), "k{number} comes into memory");
    }
    // What was done before the command that would wait is answered.
    assert_eq!(ask("delete k3\r\nget k4\r\n"), format!("DELETED\r\n{COLD}"));
    assert!(eventually(|| ask("get k4\r\n") == found(4)));
    assert_eq!(ask("get k3\r\n"), "END\r\n");
    assert_eq!(stats(&plane).read_errors, 0);
}

const WAITS: &str = "#![no_std]
#![forbid(unsafe_code)]
use core::future::{Future, poll_fn};
use core::pin::pin;
use sandstorm_api::prelude::*;

/// The number of a record; behind `>` that of one which the other extension reads.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    match args {
        [b'>', number @ ..] => ask(db, number).await,
        number => load(db, number).await,
    }
}

async fn ask(db: Db<'_>, number: &[u8]) -> Result<(), Error> {
    let reply = db.call(\"inner\", number).await?;
    db.reply(&reply)
}

async fn load(db: Db<'_>, number: &[u8]) -> Result<(), Error> {
    let table = db.table(\"large\")?;
    let mut get = pin!(db.get(table, number));
    let found = poll_fn(|context| {
        let found = get.as_mut().poll(context);
        // A record in memory: nothing is waited for here.
        let _counted = pin!(db.increment(table, b\"polls\", 1)).poll(context);
        found
    });
    db.reply(found.await?.ok_or(Error::not_found(\"it is gone\"))?.value())
}
";

/// The number of the line of that source that has this text.
fn line_of(text: &str) -> u32 {
    WAITS.lines().position(|line| line.contains(text)).expect("a line") as u32 + 1
}

/// Whether a call waits for the disk in the line of its read, and its caller for it. Callers have no line: nothing of
/// them may run meanwhile.
fn is_found(call: &CallReport) -> bool {
    let at = |level: &CallLevelReport, line| {
        level.places.iter().any(|place| place.file == "src/lib.rs" && place.line == line)
    };
    let [inner, outer] = &call.levels[..] else { return false };
    let states = (call.state.as_str(), inner.state.as_str(), outer.state.as_str());
    states == ("disk", "disk", "call")
        && at(inner, line_of("get.as_mut()"))
        && !at(inner, line_of("db.increment("))
        && outer.places.is_empty()
}

/// The polls that the calls have counted.
fn counted_polls(plane: &DataPlane, id: u32) -> u64 {
    let counted = Wire::new(plane, 0, id).one(Operation::increment(LARGE, b"polls", 0));
    assert_eq!(counted.status, RpcStatus::Ok, "{}", counted.text());
    counted.number
}

#[test]
fn a_call_that_waits_for_the_disk_is_found_at_its_line_and_then_goes_on() {
    const CALLS: u32 = 10;
    let (plane, id, _folder) = server(QuotaChanges::default());
    fill(&mut Wire::new(&plane, 0, id), 8_000);
    let library = library_with("waits", "", WAITS);
    for name in ["inner", "outer"] {
        // So that none is ended for being under way for long.
        let budget = BudgetOverride { total_us: Some(10_000_000), ..BudgetOverride::default() };
        let extension = loaded(name, 1, Arc::clone(&library), budget);
        plane.directory.put_extension("a", Arc::new(extension)).expect("it is loaded");
    }
    // Two blocks a second: the others wait.
    let quotas = QuotaChanges { cold_bytes_per_s: Some(8_192), ..QuotaChanges::default() };
    plane.directory.update_tenant("a", &TenantChange { quotas, ..TenantChange::default() }).expect("changed");
    let none: Result<Arc<dyn ArtifactBuilder>, String> = Err("none in this test".to_owned());
    let operator = OperatorCredentials::new(OPERATOR, None);
    let state = ControlState::new(plane.served(), ArtifactSources::from(none), operator, || {});
    let admin = AdminServer::start("127.0.0.1:0".parse().expect("an address"), state, None).expect("a port");
    let control = Control::new(&admin.address().to_string(), Some(OPERATOR));
    assert_eq!(control.calls("a", None, true).expect("an answer"), CallsReport::default(), "none is under way");
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLS)
            .map(|number| {
                let plane = &plane;
                scope.spawn(move || {
                    let args = [b">", &(100 + number).to_le_bytes()[..]].concat();
                    let mut wire = Wire::new(plane, number as u16 % 2, id);
                    (number, wire.one(Operation::invoke(b"outer", &args)))
                })
            })
            .collect();
        let mut shown = CallsReport::default();
        let is_seen = eventually(|| {
            shown = control.calls("a", Some("outer"), true).expect("an answer");
            shown.calls.iter().any(is_found)
        });
        assert!(is_seen, "{shown:?}");
        let one = shown.calls.iter().find(|call| is_found(call)).expect("it is there");
        assert_eq!((one.extension.as_str(), one.version), ("outer", 1), "the one that was called by the client");
        assert!(one.age_us >= one.waiting_us && shown.silent_workers.is_empty(), "{shown:?}");
        let without = control.calls("a", None, false).expect("an answer");
        assert!(without.calls.iter().flat_map(|call| &call.levels).all(|level| level.places.is_empty()));
        assert_eq!(control.calls("a", Some("inner"), true).expect("an answer").calls, [], "no client has called it");
        for caller in callers {
            let (number, answer) = caller.join().expect("it has an answer");
            assert_eq!((answer.status, &answer.value), (RpcStatus::Ok, &value(100 + number)), "{}", answer.text());
        }
    });
    let polls = counted_polls(&plane, id);
    assert!(polls >= u64::from(CALLS), "each has counted its polls: {polls}");
    let unknown = control.calls("a", Some("nothing"), false);
    assert!(matches!(unknown, Err(ControlError::NotFound { .. })), "{unknown:?}");
}

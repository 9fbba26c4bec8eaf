//! Promise: a slow request of every protocol is found by its command, its table and its key, and tells what it waited
//! for; a call by its extension and, where its author wants that, by its arguments. The time of what waits for the
//! log, or for a backing, counts.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use super::spill_clients::{MEMCACHED, REDIS, RawClient};
use crate::common::{Wire, durable_data_plane_with, eventually, library_with, load, loaded, tenant};
use sandstorm_accounts::{CallPauses, SlowRequest};
use sandstorm_catalog::TableDurability;
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_metrics::histogram::{LatencyCounts, RequestClass};
use sandstorm_net::rpc::{Operation, RpcStatus};

const PORTS: &str = "workers = 1\npin = false\n\
    [[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'alice'\ntable = 't'\n\
    [[redis]]\naddress = '127.0.0.1:0'\ntenant = 'alice'\ntable = 't'\n";

/// A server with both ports on a durable table, for which all requests are slow.
fn server(folder: &tempfile::TempDir) -> (DataPlane, u32) {
    let plane = durable_data_plane_with(PORTS, &folder.path().join("state"));
    let (alice, _) = tenant(&plane, "alice", true);
    plane.directory.set_durability("alice", "t", TableDurability::Disk).expect("a durable table");
    plane.metrics.slow.set_ns(0);
    (plane, alice)
}

/// Asks again until a slow request is kept that is the one meant.
fn kept(plane: &DataPlane, mut ask: impl FnMut(), is_meant: impl Fn(&SlowRequest) -> bool) -> SlowRequest {
    let mut found = None;
    let is_found = eventually(|| {
        ask();
        // One is kept in 5 ms.
        std::thread::sleep(Duration::from_millis(6));
        let snapshot = plane.directory.snapshot();
        let recent = snapshot.by_name("alice").expect("the tenant").tenant.usage.slow_requests.recent();
        found = recent.into_iter().find(&is_meant);
        found.is_some()
    });
    assert!(is_found, "it is not among those that are kept");
    found.expect("it is")
}

/// What a request is about: its kind, its command, its table and its key.
fn subject(slow: &SlowRequest) -> (RequestClass, &str, u64, &[u8]) {
    (slow.class, slow.subject.operation, slow.subject.table, slow.subject.key_prefix())
}

/// A datagram of memcached's protocol.
fn datagram(command: &str) -> Vec<u8> {
    [&[0, 7, 0, 0, 0, 1, 0, 0], command.as_bytes()].concat()
}

fn udp_client(plane: &DataPlane) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(plane.listening()[MEMCACHED]).expect("an address");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    socket
}

/// Sends a command by itself; it has the answer that is expected of it.
fn ask_by_udp(socket: &UdpSocket, command: &str, expected: &str) {
    socket.send(&datagram(command)).expect("sent");
    let mut answer = [0; 1_500];
    let len = socket.recv(&mut answer).expect("an answer");
    assert_eq!(std::str::from_utf8(&answer[8..len]), Ok(expected), "{command}");
}

#[test]
fn slow_commands_of_redis_and_memcached_are_found_by_name_table_and_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plane, _) = server(&folder);
    let (mut redis, mut memcached) = (RawClient::new(&plane, REDIS), RawClient::new(&plane, MEMCACHED));
    let udp = udp_client(&plane);
    let found =
        kept(&plane, || redis.expect("SET apple 3\r\nGET apple\r\n", "+OK\r\n$1\r\n3\r\n"), |one| one.waits.log_ns > 0);
    assert_eq!(subject(&found), (RequestClass::Redis, "set", 1, &b"apple"[..]), "of several, the first");
    assert!(found.waits.log_ns <= found.waiting_ns, "{found:?}");
    let transaction = "MULTI\r\nINCR plum\r\nGET apple\r\nEXEC\r\n";
    let answers = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:";
    let ask = || {
        redis.expect(transaction, answers);
        while !redis.read(1).ends_with('$') {}
        redis.read(6);
    };
    let found = kept(&plane, ask, |one| one.subject.operation == "incr");
    assert_eq!(subject(&found), (RequestClass::Redis, "incr", 1, &b"plum"[..]), "a transaction by its first key");
    let found = kept(&plane, || redis.expect("PING\r\n", "+PONG\r\n"), |one| one.subject.operation == "ping");
    assert_eq!(subject(&found), (RequestClass::Redis, "ping", 0, &b""[..]), "about no table");
    for (command, answer, name, key) in [
        ("set banana 0 0 1\r\nx\r\n", "STORED\r\n", "set", "banana"),
        ("get banana\r\n", "VALUE banana 0 1\r\nx\r\nEND\r\n", "get", "banana"),
        ("gets none nowhere\r\n", "END\r\n", "gets", "none"),
        ("append none 0 0 1\r\nx\r\n", "NOT_STORED\r\n", "append", "none"),
        ("incr none 1\r\n", "NOT_FOUND\r\n", "incr", "none"),
        ("delete none\r\n", "NOT_FOUND\r\n", "delete", "none"),
        ("mg none\r\n", "EN\r\n", "mg", "none"),
        ("version\r\n", "VERSION ", "version", ""),
    ] {
        let meant = |one: &SlowRequest| one.class == RequestClass::Memcached && one.subject.operation == name;
        let ask = || {
            memcached.expect(command, answer);
            while answer == "VERSION " && !memcached.read(1).ends_with('\n') {}
        };
        let found = kept(&plane, ask, meant);
        let table = u64::from(!key.is_empty());
        assert_eq!(subject(&found), (RequestClass::Memcached, name, table, key.as_bytes()), "{command}");
    }
    let found = kept(
        &plane,
        || ask_by_udp(&udp, "add cherry 0 0 1\r\nx\r\ndelete cherry\r\n", "STORED\r\nDELETED\r\n"),
        |one| one.subject.operation == "add",
    );
    assert_eq!(subject(&found), (RequestClass::Memcached, "add", 1, &b"cherry"[..]));
    assert!(found.waits.log_ns > 0, "its answer waited for the disk: {found:?}");
}

#[test]
fn memcached_is_counted_over_tcp_and_udp_once_with_its_wait_for_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plane, _) = server(&folder);
    let (mut memcached, udp) = (RawClient::new(&plane, MEMCACHED), udp_client(&plane));
    for _ in 0..3 {
        memcached.expect("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        memcached.expect("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
        ask_by_udp(&udp, "set b 0 0 1\r\nx\r\n", "STORED\r\n");
        ask_by_udp(&udp, "get b\r\n", "VALUE b 0 1\r\nx\r\nEND\r\n");
    }
    let counts = || {
        let latencies = plane.directory.snapshot().by_name("alice").expect("the tenant").tenant.usage.latencies();
        latencies[RequestClass::Memcached as usize].clone()
    };
    assert!(eventually(|| counts().total.count() >= 12));
    let LatencyCounts { total, waiting, service, sending } = counts();
    assert_eq!((total.count(), waiting.count(), service.count()), (12, 12, 12), "each once");
    assert_eq!(total.sum_ns, waiting.sum_ns + service.sum_ns);
    assert!(sending.count() <= total.count());
    // Sending is measured in one turn of sixteen that answers anything.
    assert!(eventually(|| {
        ask_by_udp(&udp, "get b\r\n", "VALUE b 0 1\r\nx\r\nEND\r\n");
        let LatencyCounts { total, sending, .. } = counts();
        sending.count() > 0 && total.count() > 12
    }));
}

#[test]
fn a_slow_durable_put_is_found_by_its_key_and_tells_that_it_waited_for_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plane, alice) = server(&folder);
    let mut wire = Wire::new(&plane, 0, alice);
    let ask = || assert_eq!(wire.one(Operation::put(1, b"durian", b"v")).status, RpcStatus::Ok);
    let found = kept(&plane, ask, |one| one.class == RequestClass::Put && one.waits.log_ns > 0);
    assert_eq!(subject(&found), (RequestClass::Put, "put", 1, &b"durian"[..]));
    assert!(found.waits.log_ns <= found.waiting_ns, "{found:?}");
    let ask = || assert_eq!(wire.one(Operation::get(1, b"none")).status, RpcStatus::NotFound);
    let found = kept(&plane, ask, |one| one.class == RequestClass::Get);
    assert_eq!(found.waits, Default::default(), "what waits for nothing says so");
}

const KEEPS: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;
pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
";

#[test]
fn a_slow_call_has_its_arguments_and_counts_until_its_reply_may_leave() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plane, alice) = server(&folder);
    let library = library_with("keeps", "keep_arguments = 5\n", KEEPS);
    let extension = loaded("keeps", 1, library, BudgetOverride::default());
    plane.directory.put_extension("alice", Arc::new(extension)).expect("it is loaded");
    load(&plane, "alice", "transfer", 1);
    let mut wire = Wire::new(&plane, 0, alice);
    let calls_of = |extension: &'static str| {
        move |one: &SlowRequest| one.call.as_ref().is_some_and(|call| call.extension == extension)
    };
    let ask = || assert_eq!(wire.one(Operation::invoke(b"keeps", b"\x00abcdefgh")).status, RpcStatus::Ok);
    let found = kept(&plane, ask, calls_of("keeps"));
    assert_eq!(found.call.expect("a call").arguments, b"\x00abcd");
    assert_eq!(found.waits, Default::default(), "it has written nothing");
    for key in [b"ann", b"bob"] {
        assert_eq!(wire.one(Operation::put(1, key, &10u64.to_le_bytes())).status, RpcStatus::Ok);
    }
    let transfer = [&1u64.to_le_bytes()[..], &0u64.to_le_bytes(), &3u16.to_le_bytes(), b"annbob"].concat();
    let mut asked = 0;
    // Alone in its message, and several in one.
    for together in [1, 3] {
        let ask = || {
            asked += together as u64;
            let answers = wire.ask(&vec![Operation::invoke(b"transfer", &transfer); together]);
            assert!(answers.iter().all(|one| one.status == RpcStatus::Ok));
        };
        let found = kept(&plane, ask, |one| calls_of("transfer")(one) && one.waits.log_ns > 0);
        let call = found.call.expect("a call");
        let total_ns = found.waiting_ns + found.service_ns;
        assert!(call.arguments.is_empty(), "its author has not asked for them");
        assert!(call.first_turn_ns + found.waits.log_ns <= total_ns && call.cpu_ns == found.service_ns, "{call:?}");
    }
    let view = plane.directory.snapshot().by_name("alice").cloned().expect("the tenant");
    let extension = view.extension("transfer").expect("it is loaded");
    assert!(eventually(|| extension.latency.read().total.count() >= asked));
    assert_eq!(extension.latency.read().total.count(), asked, "each call is counted once");
}

const YIELDS: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;
pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    yield_now().await;
    yield_now().await;
    Ok(())
}
";

#[test]
fn a_slow_call_tells_what_it_waited_for_between_its_turns() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plane, alice) = server(&folder);
    let extension = loaded("yields", 1, library_with("yields", "", YIELDS), BudgetOverride::default());
    plane.directory.put_extension("alice", Arc::new(extension)).expect("it is loaded");
    let mut wire = Wire::new(&plane, 0, alice);
    let ask = || assert_eq!(wire.one(Operation::invoke(b"yields", b"")).status, RpcStatus::Ok);
    let found = kept(&plane, ask, |one| one.call.is_some());
    let (call, total_ns) = (found.call.expect("a call"), found.waiting_ns + found.service_ns);
    let CallPauses { switched, yields, .. } = call.pauses;
    assert_eq!((call.polls, yields.count), (3 + call.switches, 2), "{call:?}");
    assert_eq!(call.pauses, CallPauses { switched, yields, ..CallPauses::default() }, "it reads and writes nothing");
    assert!(call.queue_ns <= call.first_turn_ns && call.first_turn_ns <= total_ns, "{call:?}");
}

//! Promise: the server counts how long each request took, once, for its tenant and its kind; and a call for its
//! extension, too. It keeps what explains those that took long. (The histograms' error: `db/metrics`. What a message's
//! parts are: `db/server`'s latency ledger.)

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::{Wire, data_plane, data_plane_with, get_args, load, tenant};
use sandstorm_catalog::{NewTable, TableDurability};
use sandstorm_instance::DataPlane;
use sandstorm_metrics::histogram::{LatencyCounts, REQUEST_CLASSES};
use sandstorm_net::rpc::{Operation, RpcStatus};

/// The numbers of a tenant's requests by kind, as soon as there are `expected` in all. A worker counts the last answers
/// at its next turn.
fn counted(plane: &DataPlane, name: &str, expected: u64) -> Vec<(&'static str, LatencyCounts)> {
    let until = Instant::now() + crate::common::EVENTUALLY;
    loop {
        let snapshot = plane.directory.snapshot();
        let latencies = snapshot.by_name(name).expect("the tenant").tenant.usage.latencies();
        let all: u64 = latencies.iter().map(|counts| counts.total.count()).sum();
        if all >= expected || Instant::now() > until {
            return REQUEST_CLASSES.iter().copied().zip(latencies).collect();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn each_request_is_counted_once_for_its_tenant_kind_and_extension() {
    let plane = data_plane(1);
    let (alice, _) = tenant(&plane, "alice", true);
    let (bob, _) = tenant(&plane, "bob", true);
    plane
        .directory
        .create_table("alice", NewTable { id: Some(2), ordered: true, ..NewTable::named("sorted") })
        .expect("a table");
    load(&plane, "alice", "get", 1);
    let (mut of_alice, mut of_bob) = (Wire::new(&plane, 0, alice), Wire::new(&plane, 0, bob));
    let args = get_args(b"k");
    for _ in 0..5 {
        assert_eq!(of_alice.one(Operation::put(1, b"k", b"v")).status, RpcStatus::Ok);
        // A message counts once, by its first operation.
        assert_eq!(of_alice.ask(&vec![Operation::get(1, b"k"); 30]).len(), 30);
        assert_eq!(of_alice.one(Operation::delete(1, b"none")).status, RpcStatus::NotFound);
        assert_eq!(of_alice.one(Operation::range(2, b"", b"", 10, false)).status, RpcStatus::Ok);
        assert_eq!(of_alice.one(Operation::count(2, b"", b"")).status, RpcStatus::Ok);
        assert_eq!(of_alice.one(Operation::rank(2, b"k")).status, RpcStatus::Ok);
        assert_eq!(of_alice.one(Operation::nth(2, 0)).status, RpcStatus::NotFound);
        assert_eq!(of_alice.one(Operation::ttl(1, b"k")).status, RpcStatus::Ok);
        assert_eq!(of_alice.one(Operation::touch(1, b"k", 0)).status, RpcStatus::Ok);
        // Each call counts for itself.
        assert!(of_alice.ask(&[Operation::invoke(b"get", &args); 3]).iter().all(|one| one.status == RpcStatus::Ok));
        assert_eq!(of_bob.one(Operation::get(1, b"k")).status, RpcStatus::NotFound);
    }
    let expected = [("get", 10), ("put", 15), ("range", 20), ("call", 15), ("redis", 0), ("memcached", 0)];
    let counts = counted(&plane, "alice", 60);
    let found: Vec<(&str, u64)> = counts.iter().map(|(class, counts)| (*class, counts.total.count())).collect();
    assert_eq!(found, expected);
    for (class, LatencyCounts { total, waiting, service, .. }) in &counts {
        assert_eq!([waiting.count(), service.count()], [total.count(); 2], "{class}: each has all parts");
        assert_eq!(total.sum_ns, waiting.sum_ns + service.sum_ns, "{class}: and they are the whole");
        assert_eq!(total.sum_ns > 0, total.count() > 0, "{class}");
    }
    let snapshot = plane.directory.snapshot();
    let extension = snapshot.by_name("alice").and_then(|view| view.extension("get")).expect("it is loaded");
    let (calls, of_extension) = (&counts[3].1, extension.latency.read());
    assert_eq!(of_extension, *calls, "the only extension has all calls, and how long their replies were sent");
    assert_eq!(of_extension.service.sum_ns / 1000, extension.stats.read().cpu_us, "a call's service is its CPU time");
    let of_bob = counted(&plane, "bob", 5);
    assert_eq!(of_bob.iter().map(|(_, counts)| counts.total.count()).sum::<u64>(), 5, "nobody else's");
}

/// Asks again until each of these kinds of a tenant's requests has so many whose sending was measured.
fn ask_until_sending_is_measured(
    plane: &DataPlane,
    name: &str,
    (kinds, least): (&[&str], u64),
    mut ask: impl FnMut(),
) -> Vec<(&'static str, LatencyCounts)> {
    let until = Instant::now() + crate::common::EVENTUALLY;
    loop {
        ask();
        let counts = counted(plane, name, 1);
        let is_measured = |kind: &str| counts.iter().any(|(class, one)| *class == kind && one.sending.count() >= least);
        if kinds.iter().all(|kind| is_measured(kind)) {
            for (class, one) in &counts {
                assert!(one.sending.count() <= one.total.count(), "{class}: each is counted once at most");
                assert_eq!(one.sending.sum_ns > 0, one.sending.count() > 0, "{class}");
            }
            return counts;
        }
        assert!(Instant::now() < until, "{kinds:?} in {counts:?}");
    }
}

#[test]
fn how_long_answers_are_sent_is_measured_for_some_of_each_kind() {
    let plane = data_plane(1);
    let (alice, _) = tenant(&plane, "alice", true);
    load(&plane, "alice", "get", 1);
    let mut of_alice = Wire::new(&plane, 0, alice);
    let args = get_args(b"k");
    assert_eq!(of_alice.one(Operation::put(1, b"k", b"v")).status, RpcStatus::Ok);
    // Where there are calls alone, too: more than the first turn of a server is one of those that are measured.
    ask_until_sending_is_measured(&plane, "alice", (&["call"], 3), || {
        assert_eq!(of_alice.one(Operation::invoke(b"get", &args)).status, RpcStatus::Ok);
    });
    ask_until_sending_is_measured(&plane, "alice", (&["get", "put", "call"], 1), || {
        assert_eq!(of_alice.one(Operation::put(1, b"k", b"v")).status, RpcStatus::Ok);
        assert_eq!(of_alice.one(Operation::get(1, b"k")).status, RpcStatus::Ok);
        assert_eq!(of_alice.one(Operation::invoke(b"get", &args)).status, RpcStatus::Ok);
    });
}

/// A Redis client.
struct RedisClient(BufReader<TcpStream>);

impl RedisClient {
    fn new(plane: &DataPlane) -> RedisClient {
        RedisClient(BufReader::new(TcpStream::connect(plane.listening()[0]).expect("a port for Redis")))
    }

    /// Sends commands together; each has the answer that is expected of it.
    fn ask(&mut self, commands: &[(&str, &str)]) {
        let lines: String = commands.iter().map(|(command, _)| format!("{command}\r\n")).collect();
        self.0.get_mut().write_all(lines.as_bytes()).expect("it takes them");
        for (command, expected) in commands {
            let mut answer = String::new();
            self.0.read_line(&mut answer).expect("an answer");
            if answer.starts_with('$') {
                answer.clear();
                self.0.read_line(&mut answer).expect("a value");
            }
            assert_eq!(answer.trim_end(), *expected, "{command}");
        }
    }
}

const REDIS_PORT: &str =
    "workers = 1\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\ntenant = 'alice'\ntable = 't'\n";
const SET: (&str, &str) = ("SET apple 3", "+OK");
const CALL: (&str, &str) = ("FCALL total 1 apple t", "3");

#[test]
fn how_long_replies_to_connections_are_sent_is_measured_as_well() {
    let plane = data_plane_with(REDIS_PORT);
    tenant(&plane, "alice", true);
    load(&plane, "alice", "total", 1);
    let mut redis = RedisClient::new(&plane);
    redis.ask(&[SET]);
    let counts = ask_until_sending_is_measured(&plane, "alice", (&["call"], 3), || redis.ask(&[CALL]));
    let snapshot = plane.directory.snapshot();
    let extension = snapshot.by_name("alice").and_then(|view| view.extension("total")).expect("it is loaded");
    assert_eq!(extension.latency.read().sending, counts[3].1.sending, "by extension, too");
    ask_until_sending_is_measured(&plane, "alice", (&["redis", "call"], 4), || redis.ask(&[SET, CALL, SET]));
}

#[test]
fn answers_that_wait_for_the_log_are_counted_once_with_their_sending() {
    let folder = tempfile::tempdir().expect("a folder");
    let plane = crate::common::durable_data_plane_with(REDIS_PORT, &folder.path().join("state"));
    let (alice, _) = tenant(&plane, "alice", true);
    plane.directory.set_durability("alice", "t", TableDurability::Disk).expect("a durable table");
    for extension in ["total", "transfer"] {
        load(&plane, "alice", extension, 1);
    }
    let (mut redis, mut wire) = (RedisClient::new(&plane), Wire::new(&plane, 0, alice));
    // A call that comes with commands has its time to itself, whether or not its reply waits.
    (0..4).for_each(|_| redis.ask(&[SET]));
    (0..3).for_each(|_| redis.ask(&[SET, CALL]));
    let counts = counted(&plane, "alice", 7);
    let found: Vec<(&str, u64)> = counts.iter().map(|(class, counts)| (*class, counts.total.count())).collect();
    assert_eq!(found, [("get", 0), ("put", 0), ("range", 0), ("call", 3), ("redis", 4), ("memcached", 0)]);
    let delayed = plane.metrics.worker(0).map_or(0, |counters| counters.answers_delayed.get());
    assert!(delayed > 0, "answers waited for the disk");
    for key in [b"ann", b"bob"] {
        assert_eq!(wire.one(Operation::put(1, key, &10u64.to_le_bytes())).status, RpcStatus::Ok);
    }
    let transfer = [&1u64.to_le_bytes()[..], &0u64.to_le_bytes(), &3u16.to_le_bytes(), b"annbob"].concat();
    ask_until_sending_is_measured(&plane, "alice", (&["put", "call", "redis"], 2), || {
        redis.ask(&[SET]);
        assert_eq!(wire.one(Operation::put(1, b"k", b"v")).status, RpcStatus::Ok);
        assert_eq!(wire.one(Operation::invoke(b"transfer", &transfer)).status, RpcStatus::Ok);
    });
    ask_until_sending_is_measured(&plane, "alice", (&["call"], 6), || redis.ask(&[SET, CALL]));
}

#[test]
fn a_slow_request_is_kept_with_what_it_did_and_whose_turns_it_waited_for() {
    let plane = data_plane_with("workers = 1\npin = false\nslow_us = 0\n");
    let (alice, _) = tenant(&plane, "alice", true);
    let (bob, _) = tenant(&plane, "bob", true);
    load(&plane, "alice", "get", 1);
    load(&plane, "bob", "get", 1);
    let (mut of_alice, mut of_bob) = (Wire::new(&plane, 0, alice), Wire::new(&plane, 0, bob));
    let args = get_args(b"k");
    let kept = |name: &str| {
        let snapshot = plane.directory.snapshot();
        snapshot.by_name(name).expect("the tenant").tenant.usage.slow_requests.recent()
    };
    assert_eq!(of_alice.one(Operation::put(1, b"k", b"value")).status, RpcStatus::Ok);
    assert_eq!(of_bob.one(Operation::put(1, b"k", b"of bob")).status, RpcStatus::Ok);
    assert_eq!(of_alice.one(Operation::invoke(b"get", &args)).status, RpcStatus::Ok);
    assert_eq!(kept("alice"), [], "none is slow at first: this server's threshold is off");
    // From now on all are. The worker takes the threshold over with the next requests.
    plane.metrics.slow.set_ns(0);
    let until = Instant::now() + crate::common::EVENTUALLY;
    let mut found = Vec::new();
    while found.len() < 2 && Instant::now() < until {
        assert_eq!(of_bob.one(Operation::invoke(b"get", &args)).status, RpcStatus::Ok);
        assert_eq!(of_alice.one(Operation::get(1, b"k")).status, RpcStatus::Ok);
        assert_eq!(of_alice.one(Operation::invoke(b"get", &args)).status, RpcStatus::Ok);
        std::thread::sleep(Duration::from_millis(6));
        found = kept("alice");
        found.sort_by_key(|one| one.class as usize);
        found.dedup_by_key(|one| one.class as usize);
    }
    let [get, call] = &found[..] else { panic!("{found:?}") };
    assert_eq!((get.subject.operation, get.subject.table, get.subject.key_prefix()), ("get", 1, &b"k"[..]));
    assert_eq!((get.count, get.call.is_none()), (1, true));
    let own = get.turns.iter().find(|share| share.tenant == alice).expect("its own requests");
    assert!(own.requests >= 1, "the get itself, and those of the last second: {own:?}");
    let did = call.call.as_ref().expect("a call");
    assert_eq!((did.extension.as_str(), did.version, did.outcome), ("get", 1, "ok"));
    assert_eq!((did.reads, did.read_bytes, did.switches), (1, 5, 0));
    assert!(did.polls >= 1 && did.cpu_ns > 0 && did.cpu_ns == call.service_ns, "{did:?}");
    assert!(did.first_turn_ns <= call.waiting_ns + call.service_ns, "{did:?}");
    let own = call.turns.iter().find(|share| share.tenant == alice).expect("its own turns");
    assert!(own.turns >= did.polls && own.cpu_ns >= did.cpu_ns, "{own:?} {did:?}");
    assert_eq!(kept("bob").iter().filter(|one| one.class as usize != 3).count(), 0, "bob made calls alone");
    plane.metrics.slow.set_us(0);
}

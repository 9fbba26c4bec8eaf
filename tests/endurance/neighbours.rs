//! Promise: a hostile tenant may do anything at once: calls that never end, recurse or allocate, floods of requests,
//! and junk in others' names. Every request of its neighbour on the same worker is answered rightly, none is refused
//! for lack of room. When the attack stops, the server is as it was.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::alone::ran_alone;
use crate::common::{Stop, data_plane, get_args, load, network, single_packet, tenant};
use sandstorm_client::raw::Connection;
use sandstorm_client::{Config, PutOptions};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{MessageHeader, OpKind, Operation, RpcStatus, encode_message};

/// Requests of the victim.
const REQUESTS: u64 = 3_000;
/// Timeout of everything that must come in the end; for machines under load.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most growth of the process: a worker's intake, sessions and idle invocations, and the test's own memory.
const GROWTH_BYTES: u64 = 768 << 20;

fn counter(plane: &DataPlane, name: &str) -> u64 {
    plane.metrics.read().iter().find(|reading| reading.metric.name == name).expect("a metric").values.iter().sum()
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4096
}

fn datagram(tenant: u32, session: u64, sequence: u64, operation: &Operation<'_>) -> Vec<u8> {
    let header = MessageHeader { flags: 0, operations: 1, tenant, session, sequence, acked: sequence - 1 };
    let mut message = Vec::new();
    encode_message(&header, std::slice::from_ref(operation), &mut message);
    [&single_packet(0, sequence as u16)[..], &message].concat()
}

/// Sends the packets that `next` makes of a counter, without end, from one address, and ignores all answers.
fn flood(plane: &DataPlane, stop: &AtomicBool, sent: &AtomicU64, next: impl Fn(u64) -> Vec<u8>) {
    let socket = network::Socket::to(plane, 0);
    socket.set_nonblocking().expect("a socket that does not wait");
    let mut buffer = [0; 2048];
    let mut number = 0;
    while !stop.load(Relaxed) {
        number += 1;
        if socket.send(&next(number)).is_ok() {
            sent.fetch_add(1, Relaxed);
        } else {
            // There is no room: other threads have work.
            std::thread::yield_now();
        }
        while socket.recv(&mut buffer).is_ok() {}
    }
}

/// Keeps calls of `ext/bad` in flight.
fn call_badly(config: &Config, stop: &AtomicBool) {
    const WAYS: [&[u8]; 6] = [b"loop", b"recursion", b"allocation", b"loop-gets", b"slow-drop", b"memcpy"];
    let mut connection = Connection::connect(config).expect("a connection");
    let mut number = 0;
    while !stop.load(Relaxed) || connection.in_flight() > 0 {
        while connection.in_flight() < 16 && !stop.load(Relaxed) {
            let mut message = connection.message();
            message.invoke("bad", 0, &[&1u64.to_le_bytes()[..], WAYS[number % WAYS.len()]].concat());
            connection.send(0, message).expect("room");
            number += 1;
        }
        connection.poll(|_, _| {});
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The victim's requests: writes that must run once, reads, calls; at most 16 in flight.
fn ask_for_all(connection: &mut Connection) {
    let (mut sent, mut done) = (0, 0);
    let begun = Instant::now();
    while done < REQUESTS {
        while sent < REQUESTS && connection.in_flight() < 16 {
            let mut message = connection.message();
            match sent % 4 {
                0 => message.get(1, b"k"),
                1 => message.invoke("get", 0, &get_args(b"k")),
                2 => message.increment(1, b"n", 1),
                _ => message.put(1, b"other", b"value", &PutOptions::default()),
            }
            connection.send(sent, message).expect("room");
            sent += 1;
        }
        let ended = connection.poll(|number, answer| {
            let answer = answer.unwrap_or_else(|error| panic!("request {number}: {error}"));
            let operation = answer.operations().next().expect("an answer").expect("a readable one");
            assert_eq!(
                operation.status,
                RpcStatus::Ok,
                "request {number}: {}",
                String::from_utf8_lossy(operation.value)
            );
            if number % 4 < 2 {
                assert_eq!(operation.value, b"value", "request {number}");
            }
        });
        done += ended as u64;
        if ended == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
        assert!(begun.elapsed() < 10 * PATIENCE, "{done} of {REQUESTS} answered");
    }
}

fn one(connection: &mut Connection, write: impl FnOnce(&mut sandstorm_client::raw::Message)) -> u64 {
    let mut message = connection.message();
    write(&mut message);
    connection.send(0, message).expect("room");
    let mut number = None;
    while number.is_none() {
        connection.poll(|_, answer| {
            let answer = answer.expect("an answer");
            number = answer.operations().next().and_then(Result::ok).map(|operation| operation.number);
        });
    }
    number.expect("a number")
}

#[test]
fn whatever_one_tenant_does_the_others_requests_are_answered_rightly() {
    if ran_alone(module_path!(), "whatever_one_tenant_does_the_others_requests_are_answered_rightly") {
        return;
    }
    let plane = data_plane(1);
    let (victim, token) = tenant(&plane, "victim", false);
    let (attacker, attackers_token) = tenant(&plane, "attacker", false);
    load(&plane, "victim", "get", 1);
    load(&plane, "attacker", "get", 1);
    load(&plane, "attacker", "bad", 1);
    // As clients of other machines would; their deadlines are long enough for a machine that is busy with tests.
    let config = |tenant, token: &str| network::config(&plane, tenant).token(token).deadline(PATIENCE);
    let mut connection = Connection::connect(&config(victim, &token)).expect("a connection");
    one(&mut connection, |message| message.put(1, b"k", b"value", &PutOptions::default()));
    let before = resident_bytes();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (plane, stop, sent, token) = (&plane, &stop, &sent, &attackers_token);
        scope.spawn(|| call_badly(&config(attacker, token), stop));
        for operation in [Operation::get(1, b"k"), Operation::invoke(b"get", b"not its arguments")] {
            scope.spawn(move || {
                flood(plane, stop, sent, |number| match number % 1_000 {
                    1 => datagram(attacker, 7, number, &Operation::hello(token.as_bytes())),
                    _ => datagram(attacker, 7, number, &operation),
                });
            });
        }
        scope.spawn(move || {
            flood(plane, stop, sent, |number| match number % 5 {
                0 => vec![number as u8; 90],
                1 => datagram(victim, number, 1, &Operation::get(1, b"k")),
                2 => datagram(victim, number, 1, &Operation::hello(b"not the token")),
                3 => datagram(number as u32 | 1 << 31, number, 1, &Operation::new(OpKind::Ping)),
                _ => [&[0xCE, 1, 1, 0][..], &victim.to_le_bytes(), &number.to_le_bytes(), &[5; 80]].concat(),
            });
        });
        let _stopped = Stop(stop);
        ask_for_all(&mut connection);
    });
    assert!(sent.load(Relaxed) > 1_000, "the floods did flood");
    assert_eq!(one(&mut connection, |message| message.increment(1, b"n", 0)), REQUESTS / 4, "every increment ran once");
    let begun = Instant::now();
    let at_rest = |plane: &DataPlane| {
        let snapshot = plane.directory.snapshot();
        let running: u32 = snapshot.iter().map(|view| view.tenant.usage.running()).sum();
        running == 0 && counter(plane, "invocations_live") == 0 && counter(plane, "throttled") == 0
    };
    while !at_rest(&plane) {
        assert!(begun.elapsed() < PATIENCE, "something is left of the attack");
        std::thread::sleep(Duration::from_millis(10));
    }
    let refused: u64 = plane
        .directory
        .snapshot()
        .iter()
        .filter(|view| view.tenant.id == victim)
        .flat_map(|view| view.tenant.usage.read())
        .filter(|reading| reading.metric.name == "tenant_over_quota")
        .flat_map(|reading| reading.values)
        .sum();
    assert_eq!(refused, 0, "nothing was charged to the victim");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES, "{grown} bytes more than before");
}

//! Promise: whatever packets come in, from any sender, while tenants come and go, a good client gets right answers and
//! nothing grows without bound. Malformed packets are counted. The run is seeded: a failed one prints its seed, and
//! `SANDSTORM_TORTURE_SEED` repeats it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::common::alone::ran_alone;
use crate::common::network::{Socket, most};
use crate::common::{Wire, data_plane, get_args, load, single_packet, tenant};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use sandstorm_catalog::{NewTable, NewTenant};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{MessageHeader, OpKind, Operation, RpcStatus, encode_message};

/// Hostile packets of each sender.
const PACKETS: usize = 50_000;
/// Senders, each with sockets of its own.
const SENDERS: u64 = 3;
/// Most growth of the process, bytes: less than the sum of the endpoints' limits, and more than they should need.
const MOST_GROWTH: u64 = 400 << 20;

/// These tests measure the process, so they run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// The sum of a metric's values on all workers.
fn metric(plane: &DataPlane, name: &str) -> u64 {
    plane.metrics.read().iter().filter(|r| r.metric.name == name).flat_map(|r| r.values.clone()).sum()
}

/// A message as a client would send it, of a session that occurs again.
fn message(dice: &mut StdRng, tenant: u32) -> Vec<u8> {
    let key = [b'a' + dice.random_range(0..4)];
    let args = get_args(&key);
    let value = vec![7; dice.random_range(0..900)];
    let all = [
        Operation::get(1, &key),
        Operation::put(1, &key, &value),
        Operation::increment(1, b"n", i64::MAX),
        Operation::delete(1, &key),
        Operation::multiget(1, 3, &value),
        Operation::invoke(b"get", &args),
        Operation::hello(&value),
        Operation::new(OpKind::Ping),
    ];
    let operations: Vec<_> = (0..dice.random_range(0..6)).map(|_| all[dice.random_range(0..all.len())]).collect();
    let header = MessageHeader {
        flags: dice.random_range(0..4),
        operations: operations.len() as u16,
        tenant,
        session: dice.random_range(0..5000),
        sequence: dice.random_range(0..2000),
        acked: dice.random_range(0..2000),
    };
    let mut message = Vec::new();
    encode_message(&header, &operations, &mut message);
    message
}

/// A packet of a longer message, or an ack or drop, with fields that may contradict each other.
fn long_packet(dice: &mut StdRng) -> Vec<u8> {
    let kind: u8 = [0, 0, 0, 1, 3, 4][dice.random_range(0..6)];
    let mut packet = vec![0xCC, 24, kind << 4, [0x80, 0, 0x40, 0xC0][dice.random_range(0..4)], 0];
    packet.push(dice.random_range(0..8));
    packet.extend_from_slice(&dice.random_range(0..8u16).to_be_bytes());
    packet.extend_from_slice(&dice.random_range(0..4u32).to_be_bytes());
    packet.extend_from_slice(&dice.random_range(0..4u32).to_be_bytes());
    let length = [3000, 8_400_000, u32::MAX, 0, 2 * 1448][dice.random_range(0..5)];
    packet.extend_from_slice(&u32::to_be_bytes(length));
    packet.extend_from_slice(&[1448u16, 232, 65_535, 0][dice.random_range(0..4)].to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    if dice.random_bool(0.3) {
        packet.resize(24 + [1448, 232, 104, 1][dice.random_range(0..4)], 9);
    }
    packet
}

/// One hostile datagram.
fn datagram(dice: &mut StdRng, tenants: &[u32]) -> Vec<u8> {
    let mut packet = match dice.random_range(0..10) {
        0 => {
            let mut bytes = vec![0; dice.random_range(0..1472)];
            dice.fill_bytes(&mut bytes);
            return bytes;
        }
        1..=3 => long_packet(dice),
        _ => {
            let tenant = tenants[dice.random_range(0..tenants.len())];
            let kind = dice.random_range(0..20u8) / 19;
            [&single_packet(kind, dice.random())[..], &message(dice, tenant)].concat()
        }
    };
    for _ in 0..dice.random_range(0..4) {
        let at = dice.random_range(0..packet.len());
        packet[at] = [0, 1, 255, dice.random()][dice.random_range(0..4)];
    }
    if dice.random_bool(0.1) {
        packet.truncate(dice.random_range(0..packet.len()));
    }
    packet
}

/// Sends hostile packets from several sockets, some of which never read the answers.
fn attack(plane: &DataPlane, seed: u64, tenants: &[u32]) {
    let mut dice = StdRng::seed_from_u64(seed);
    let sockets: Vec<Socket> = (0..4).map(|_| Socket::to_all(plane)).collect();
    sockets.iter().for_each(|socket| socket.set_nonblocking().expect("a socket"));
    let mut buffer = vec![0; 65_536];
    for number in 0..PACKETS {
        let mut address = plane.address();
        address.set_port(address.port() + dice.random_range(0..2));
        let socket = &sockets[dice.random_range(0..sockets.len())];
        let packet = datagram(&mut dice, tenants);
        // A full socket is the network's reaction to a flood; the packet is not needed.
        let _full = socket.send_to(&packet[..packet.len().min(most())], address);
        if number % 16 == 0 {
            while sockets[0].recv(&mut buffer).is_ok() {}
        }
        if number % 64 == 0 {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Tenants, tables and extensions come and go.
fn churn(plane: &DataPlane, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let (view, _) = plane
            .directory
            .create_tenant(NewTenant { open: true, id: Some(50), ..NewTenant::named("comes-and-goes") })
            .expect("a tenant");
        let table = NewTable { id: Some(1), ..NewTable::named("t") };
        plane.directory.create_table(view.tenant.id, table).expect("a table");
        std::thread::sleep(Duration::from_millis(1));
        plane.directory.rotate_token(view.tenant.id).expect("a token");
        plane.directory.drop_table(view.tenant.id, "t").expect("dropped");
        plane.directory.delete_tenant(view.tenant.id).expect("deleted");
        plane.directory.reap();
    }
}

/// Repeats a request until there is an answer: a flood may cost packets, and a client repeats unanswered requests.
fn request(wire: &mut Wire, operation: Operation<'_>) -> (RpcStatus, u64, Vec<u8>) {
    let header = wire.header(1);
    let mut message = Vec::new();
    encode_message(&header, &[operation], &mut message);
    for _ in 0..200 {
        wire.send(header.sequence as u16, &message);
        let mut buffer = vec![0; 65_536];
        while let Ok(len) = wire.socket.recv(&mut buffer) {
            let Ok((answered, mut operations)) = MessageHeader::decode(&buffer[8..len]) else { continue };
            if (answered.session, answered.sequence) == (header.session, header.sequence) {
                let answer = operations.next().expect("an answer").expect("well-formed");
                return (answer.status, answer.number, answer.value.to_vec());
            }
        }
    }
    panic!("no answer to {operation:?}");
}

/// A client whose every answer is checked, until `stop`.
fn good(plane: &DataPlane, worker: u16, id: u32, token: &str, stop: &AtomicBool) -> u64 {
    let mut wire = Wire::new(plane, worker, id);
    wire.socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    assert_eq!(request(&mut wire, Operation::hello(token.as_bytes())).0, RpcStatus::Ok);
    let counter = format!("counter {worker}");
    let mut rounds = 0;
    while !stop.load(Relaxed) || rounds < 20 {
        rounds += 1;
        let value = format!("{worker} says {rounds}");
        let key = [b'k', worker as u8, (rounds % 7) as u8];
        assert_eq!(request(&mut wire, Operation::put(1, &key, value.as_bytes())).0, RpcStatus::Ok);
        let (status, _, got) = request(&mut wire, Operation::get(1, &key));
        assert_eq!((status, got), (RpcStatus::Ok, value.clone().into_bytes()));
        let (status, sum, _) = request(&mut wire, Operation::increment(1, counter.as_bytes(), 1));
        assert_eq!((status, sum), (RpcStatus::Ok, rounds), "each increment ran once");
        let (status, _, reply) = request(&mut wire, Operation::invoke(b"get", &get_args(&key)));
        assert_eq!((status, reply), (RpcStatus::Ok, value.into_bytes()));
    }
    rounds
}

#[test]
fn a_good_client_gets_right_answers_whatever_the_others_send() {
    if ran_alone(module_path!(), "a_good_client_gets_right_answers_whatever_the_others_send") {
        return;
    }
    let _alone = ALONE.lock();
    let seed = std::env::var("SANDSTORM_TORTURE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("SANDSTORM_TORTURE_SEED={seed}");
    let plane = data_plane(2);
    let (id, token) = tenant(&plane, "good", false);
    let (evil, _) = tenant(&plane, "evil", true);
    load(&plane, "good", "get", 1);
    load(&plane, "evil", "get", 1);
    let before = resident();
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let attacks: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let plane = &plane;
                scope.spawn(move || attack(plane, seed.wrapping_add(sender), &[evil, id, 50, 999]))
            })
            .collect();
        scope.spawn(|| churn(&plane, &stop));
        let clients: Vec<_> = (0..2)
            .map(|worker| {
                let (plane, token, stop) = (&plane, &token, &stop);
                scope.spawn(move || good(plane, worker, id, token, stop))
            })
            .collect();
        let attacked: Vec<_> = attacks.into_iter().map(|attack| attack.join()).collect();
        stop.store(true, Relaxed);
        assert!(attacked.iter().all(Result::is_ok), "the attackers sent all they had");
        clients.into_iter().map(|client| client.join().expect("right answers")).collect::<Vec<_>>()
    });
    assert!(rounds.iter().all(|rounds| *rounds >= 20), "{rounds:?} rounds");
    let grown = resident().saturating_sub(before);
    assert!(grown < MOST_GROWTH, "{grown} bytes more than before; seed {seed}");
    for name in ["malformed", "packets_dropped"] {
        assert!(metric(&plane, name) > 0, "{name} is counted; seed {seed}");
    }
}

/// Promise: one packet's request does not decide how much memory the server uses.
#[test]
fn a_message_that_asks_for_more_than_a_message_can_carry_is_answered_with_what_fits() {
    if ran_alone(module_path!(), "a_message_that_asks_for_more_than_a_message_can_carry_is_answered_with_what_fits") {
        return;
    }
    let _alone = ALONE.lock();
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    let view = plane.directory.snapshot().by_name("alice").expect("the tenant").clone();
    let table = &view.table_by_name("t").expect("the table").table;
    let participant = plane.epochs.register();
    let (large, hash) = (vec![5; 8 << 20], table.hash(b"large"));
    table.put(&participant, hash, b"large", &large, &Default::default(), 1).expect("a put");
    drop(participant);
    let before = resident();
    let mut wire = Wire::new(&plane, 0, id);
    for round in 0..4u16 {
        let operations = [Operation::get(1, b"large"); 37];
        let header = wire.header(operations.len());
        let mut message = Vec::new();
        encode_message(&header, &operations, &mut message);
        wire.send(round, &message);
        // The first packet of a longer response shows its length: it is one that can be sent.
        let mut buffer = vec![0; 65_536];
        let len = wire.socket.recv(&mut buffer).expect("an answer, not a refusal");
        assert_eq!((buffer[1], buffer[2] >> 4), (24, 1), "the first of {len} bytes of a longer response");
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 4 * (9 << 20) + (32 << 20), "{grown} bytes for four responses of 8 MiB");
}

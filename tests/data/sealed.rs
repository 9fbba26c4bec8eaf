//! Promise: no attacker in between reads, forges or repeats the content of a sealed session, and the token never
//! travels. Whatever port a session's packets come from, sealed or not, each request of it runs once and is answered.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::common;
use crate::common::network::{self, Socket, is_memif};
use crate::common::{Wire, data_plane, data_plane_with, eventually, get_args, load, single_packet, tenant};
use sandstorm_client::blocking::Client;
use sandstorm_client::{Config, Error, Sealing, raw};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{
    HELLO_BIND_SESSION, MessageHeader, Operation, RpcStatus, STALE_PREVIOUS_START, encode_message,
};
use sandstorm_net::seal::{ClientSeal, MAGIC};

/// A man in the middle between a client and a server: records packets, changes and repeats them as the test asks. It is
/// on loopback to the client, and on [`network`]'s driver to the server.
struct Middle {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    backs: Arc<Mutex<Vec<Socket>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Middle {
    /// With `hostile`, every packet is followed by copies: one unchanged, one with a changed bit, one cut short.
    fn start(plane: &DataPlane, hostile: bool) -> Middle {
        // As large as the client's datagrams, so the server receives them.
        let local = if plane.address().is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
        let front = UdpSocket::bind(local).expect("a socket");
        let address = front.local_addr().expect("an address");
        let (seen, stop) = (Arc::<Mutex<Vec<Vec<u8>>>>::default(), Arc::<AtomicBool>::default());
        let backs = Arc::<Mutex<Vec<Socket>>>::default();
        let (record, to, end) = (seen.clone(), backs.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (mut client, mut buffer) = (None, vec![0; 65_536]);
            front.set_read_timeout(Some(Duration::from_micros(200))).expect("a timeout");
            while !end.load(SeqCst) {
                let came = front.recv_from(&mut buffer);
                let backs = to.lock().expect("nobody panics");
                if let (Ok((len, from)), Some(back)) = (came, backs.last()) {
                    client = Some(from);
                    for packet in copies(&buffer[..len], hostile) {
                        let _lost = back.send(&packet);
                    }
                    record.lock().expect("nobody panics").push(buffer[..len].to_vec());
                }
                for back in backs.iter() {
                    while let (Ok(len), Some(client)) = (back.recv(&mut buffer), client) {
                        for packet in copies(&buffer[..len], hostile) {
                            let _lost = front.send_to(&packet, client);
                        }
                        record.lock().expect("nobody panics").push(buffer[..len].to_vec());
                    }
                }
            }
        });
        let middle = Middle { address, seen, backs, stop, thread: Some(thread) };
        middle.move_to(plane);
        middle
    }

    /// From here on the client's packets go to that server, from another address than before.
    fn move_to(&self, plane: &DataPlane) {
        let back = Socket::to(plane, 0);
        back.set_nonblocking().expect("a mode");
        self.backs.lock().expect("nobody panics").push(back);
    }

    fn seen(&self) -> Vec<Vec<u8>> {
        self.seen.lock().expect("nobody panics").clone()
    }
}

impl Drop for Middle {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

fn copies(packet: &[u8], hostile: bool) -> Vec<Vec<u8>> {
    let mut copies = vec![packet.to_vec()];
    if hostile {
        let mut changed = packet.to_vec();
        let at = packet.iter().map(|byte| usize::from(*byte)).sum::<usize>() % packet.len();
        changed[at] ^= 0x10;
        copies.insert(0, changed);
        copies.push(packet.to_vec());
        copies.push(packet[..at].to_vec());
    }
    copies
}

/// A client configuration through the man in the middle.
fn through(middle: &Middle, tenant: u32, token: &str) -> Config {
    always_sealed(Config::new(middle.address, tenant), token)
}

fn config(plane: &DataPlane, tenant: u32, token: &str) -> Config {
    always_sealed(network::config(plane, tenant), token)
}

fn always_sealed(config: Config, token: &str) -> Config {
    config.token(token).sealing(Sealing::Always).deadline(Duration::from_secs(20))
}

fn refused(plane: &DataPlane, reason: usize) -> u64 {
    let readings = plane.metrics.read();
    let found = readings.into_iter().find(|reading| reading.metric.name == "sealed_refused").expect("a metric");
    found.values[reason]
}

#[test]
fn a_sealed_client_does_all_that_a_plain_one_does_and_shows_nothing() {
    let plane = data_plane(1);
    let (id, token) = tenant(&plane, "alice", false);
    load(&plane, "alice", "get", 1);
    let middle = Middle::start(&plane, false);
    let client = Client::connect(through(&middle, id, &token)).expect("a session");
    let secret = b"the value that nobody else may read";
    client.put(1, b"color of secrets", secret, &Default::default()).expect("a put");
    assert_eq!(client.get(1, b"color of secrets").expect("a get").expect("a record").value, secret[..]);
    assert_eq!(client.invoke("get", &get_args(b"color of secrets")).expect("a reply"), secret[..]);
    assert_eq!(client.increment(1, b"n", 5), Ok(5));
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    client.put(1, b"large", &large, &Default::default()).expect("a large put");
    assert!(client.get(1, b"large").expect("a large get").expect("a record").value == large[..]);
    let seen = middle.seen();
    assert!(seen.len() > 4000 && seen.iter().all(|packet| packet[0] == MAGIC && packet.len() <= 1472));
    let shows = |what: &[u8]| seen.iter().any(|packet| packet.windows(what.len()).any(|part| part == what));
    assert!(!shows(&token.as_bytes()[..16]) && !shows(b"secrets") && !shows(&secret[..12]) && !shows(&large[..12]));
}

#[test]
fn forged_repeated_and_cut_packets_change_nothing() {
    let plane = data_plane(1);
    let (id, token) = tenant(&plane, "alice", false);
    let middle = Middle::start(&plane, true);
    let client = Client::connect(through(&middle, id, &token)).expect("a session");
    for number in 1..=200 {
        assert_eq!(client.increment(1, b"n", 1), Ok(number));
    }
    // Later, every packet that was ever sent, once more.
    let attacker = Socket::to(&plane, 0);
    for packet in middle.seen() {
        attacker.send(&packet).expect("sent");
    }
    assert_eq!(client.increment(1, b"n", 1), Ok(201));
    let are_counted = || [1, 2, 4].iter().all(|reason| refused(&plane, *reason) > 0);
    assert!(eventually(are_counted), "counted by reason");
}

#[test]
fn a_wrong_token_is_told_soon_and_another_tenant_stays_closed() {
    let plane = data_plane(1);
    let (alice, token) = tenant(&plane, "alice", false);
    let (bob, _) = tenant(&plane, "bob", false);
    let begun = Instant::now();
    let wrong = Client::connect(config(&plane, alice, "not the token of alice")).expect_err("refused");
    assert_eq!(wrong, Error::Unauthenticated);
    assert_eq!(Client::connect(config(&plane, bob, &token)).expect_err("refused"), Error::Unauthenticated);
    assert_eq!(Client::connect(config(&plane, 999, &token)).expect_err("refused"), Error::Unauthenticated);
    assert!(begun.elapsed() < Duration::from_secs(20), "long before the deadlines");
    Client::connect(config(&plane, alice, &token)).expect("the right one works");
}

#[test]
fn a_client_that_moves_goes_on_in_the_same_session() {
    let plane = data_plane(1);
    let (id, token) = tenant(&plane, "alice", false);
    let middle = Middle::start(&plane, false);
    let client = Client::connect(through(&middle, id, &token)).expect("a session");
    let value = vec![7; 100_000];
    client.put(1, b"large", &value, &Default::default()).expect("a put");
    let hellos = || middle.seen().iter().filter(|packet| packet[1] == 2).count();
    // There is more than one where the first was answered late.
    let first = hellos();
    assert!(first >= 1);
    for number in 1..=20 {
        middle.move_to(&plane);
        assert_eq!(client.increment(1, b"n", 1), Ok(number));
        assert!(client.get(1, b"large").expect("a get").expect("a record").value == value[..]);
    }
    assert_eq!(hellos(), first, "no further handshake was needed");
}

#[test]
fn a_server_that_restarts_is_greeted_anew_and_a_replaced_token_ends_its_sessions() {
    let settings = "workers = 1\npin = false\n[[tenants]]\nname = 'alice'\nid = 7\ntoken = 'a-token-of-twenty-characters'\n\
                    tables = [{ name = 't', id = 1 }]";
    let mut plane = data_plane_with(settings);
    let middle = Middle::start(&plane, false);
    let client = Client::connect(through(&middle, 7, "a-token-of-twenty-characters")).expect("a session");
    for number in 0..3 {
        client.put(1, b"k", &[number], &Default::default()).expect("a put");
        plane = data_plane_with(settings);
        middle.move_to(&plane);
        assert_eq!(client.get(1, b"k"), Ok(None), "the records are gone, the client is not");
        assert_eq!(client.increment(1, b"n", 1), Ok(1));
    }
    plane.directory.rotate_token("alice").expect("a tenant");
    assert_eq!(client.get(1, b"k").expect_err("refused"), Error::Unauthenticated);
}

#[test]
fn the_polled_connection_is_sealed_as_well() {
    let plane = data_plane(2);
    let (id, token) = tenant(&plane, "alice", false);
    let mut connection = raw::Connection::connect(&config(&plane, id, &token)).expect("a session");
    let mut left = 0;
    for mark in 0..1000 {
        let mut message = connection.message();
        message.increment(1, b"n", 1);
        connection.send(mark, message).expect("room");
        left += 1;
    }
    while left > 0 {
        left -= connection.poll(|_, answer| drop(answer.expect("an answer")));
    }
    let client = Client::connect(config(&plane, id, &token)).expect("a session");
    assert_eq!(client.increment(1, b"n", 0), Ok(1000));
}

/// An address of this machine that is not loopback, if it has one.
fn own_address() -> Option<IpAddr> {
    // No packet is sent: connecting a datagram socket chooses its source address.
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[test]
fn from_another_address_than_loopback_plain_packets_are_refused_unless_allowed() {
    if is_memif() {
        return println!(
            "skipped: it is about kernel sockets' addresses; that over shared memory packets are sealed, tests/devices/dpdk.rs looks after"
        );
    }
    let Some(ip) = own_address() else { return println!("this machine has no address but loopback's") };
    for (allow, status) in [("", RpcStatus::SealRequired), ("allow_plaintext = true\n", RpcStatus::NotFound)] {
        let text = format!("{allow}workers = 1\npin = false\n");
        let state = std::env::temp_dir().join(format!("sandstorm-test-{}", std::process::id()));
        let overrides = sandstorm_control::config::CliOverrides {
            data: Some((ip, 0).into()),
            state: Some(state),
            ephemeral: Some(true),
            ..Default::default()
        };
        let config_file = sandstorm_control::config::ServerSettings::parse(&text, "test", &overrides).expect("good");
        let plane = DataPlane::start(&config_file).expect("a data plane starts");
        let (id, token) = tenant(&plane, "alice", false);
        let mut wire = Wire::new(&plane, 0, id);
        let socket = UdpSocket::bind((ip, 0)).expect("a socket");
        socket.connect(plane.address()).expect("an address");
        wire.socket = socket.into();
        wire.socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let hello = wire.one(Operation::hello(token.as_bytes()));
        assert_eq!(
            hello.status,
            if allow.is_empty() { RpcStatus::SealRequired } else { RpcStatus::Ok },
            "{}",
            hello.text()
        );
        assert_eq!(wire.one(Operation::get(1, b"k")).status, status);
        let plain = Config::new(plane.address(), id).token(&*token).sealing(Sealing::Never).deadline(common::PATIENT);
        assert_eq!(Client::connect(plain).err(), allow.is_empty().then_some(Error::SealRequired));
        let auto = Config::new(plane.address(), id).token(&*token).deadline(common::PATIENT);
        assert!(auto.is_sealed());
        assert_eq!(Client::connect(auto).expect("a session").get(1, b"k"), Ok(None));
    }
}

#[test]
fn a_sealed_session_acts_for_its_own_tenant_alone() {
    let plane = data_plane(1);
    let (alice, token) = tenant(&plane, "alice", false);
    let (bob, _) = tenant(&plane, "bob", false);
    let (open, _) = tenant(&plane, "open", true);
    let socket = Socket::to(&plane, 0);
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let now_ms = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64;
    let mut seal = ClientSeal::new(plane.address(), alice, token.as_bytes(), rand::random(), now_ms);
    let (mut sent, mut buffer, mut opened) = (Vec::new(), vec![0; 2048], Vec::new());
    seal.begin(0, &mut sent);
    let mut sequence = 0;
    let mut ask = |tenant: u32, operation: Operation<'_>| {
        sequence += 1;
        let head = MessageHeader { flags: 0, operations: 1, tenant, session: 5, sequence, acked: sequence - 1 };
        let mut message = Vec::new();
        encode_message(&head, &[operation], &mut message);
        loop {
            for (_, datagram) in sent.drain(..) {
                socket.send(&datagram).expect("sent");
            }
            let ready = seal.is_ready();
            if ready && !message.is_empty() {
                seal.send(&[&single_packet(0, sequence as u16), &message], &mut sent);
                message.clear();
                continue;
            }
            let len = socket.recv(&mut buffer).expect("an answer");
            if let Some(part) = seal.receive(0, &buffer[..len], &mut opened, &mut sent) {
                let (_, mut operations) = MessageHeader::decode(&opened[part][8..]).expect("a response");
                break operations.next().expect("an answer").expect("well-formed").status;
            }
        }
    };
    assert_eq!(ask(alice, Operation::get(1, b"k")), RpcStatus::Unauthenticated, "the hello is said all the same");
    assert_eq!(ask(alice, Operation::hello(b"")), RpcStatus::Ok, "without a token");
    assert_eq!(ask(alice, Operation::get(1, b"k")), RpcStatus::NotFound);
    for other in [bob, open] {
        assert_eq!(ask(other, Operation::hello(token.as_bytes())), RpcStatus::Unauthenticated);
        assert_eq!(ask(other, Operation::put(1, b"k", b"v")), RpcStatus::Unauthenticated);
    }
    assert_eq!(ask(alice, Operation::get(1, b"k")), RpcStatus::NotFound, "and goes on acting for its own");
}

/// Acts as a gateway between a client and a server that keeps changing the client's port: packets in flight to the
/// previous port are lost. It loses and repeats packets as well, some of them late and from yet another port.
fn gateway(plane: &DataPlane, front: &UdpSocket, seed: u64, end: &AtomicBool) {
    front.set_read_timeout(Some(Duration::from_micros(200))).expect("a timeout");
    let open = || {
        let back = Socket::to(plane, 0);
        back.set_nonblocking().expect("a mode");
        back
    };
    let (mut dice, mut buffer) = (SmallRng::seed_from_u64(seed), vec![0; 65_536]);
    let mut percent = |percent: u32| dice.random_range(0..100) < percent;
    let (mut back, mut client, mut late) = (open(), None, Vec::<Vec<u8>>::new());
    while !end.load(SeqCst) {
        if let Ok((len, from)) = front.recv_from(&mut buffer) {
            client = Some(from);
            let packet = &buffer[..len];
            if percent(30) {
                back = open();
            }
            let _lost = percent(90) && back.send(packet).is_ok();
            if percent(30) {
                late.push(packet.to_vec());
            }
            if percent(30) && !late.is_empty() {
                let repeated = if percent(50) { late.remove(0) } else { late.swap_remove(late.len() / 2) };
                let _lost = open().send(&repeated);
            }
        }
        while let (Ok(len), Some(client)) = (back.recv(&mut buffer), client) {
            let _lost = percent(90) && front.send_to(&buffer[..len], client).is_ok();
        }
    }
}

#[test]
fn each_increment_runs_once_and_is_answered_whatever_port_its_packets_come_from() {
    if is_memif() {
        return;
    }
    const EACH: i64 = 150;
    let plane = data_plane(1);
    let (open, _) = tenant(&plane, "open", true);
    let (closed, token) = tenant(&plane, "closed", false);
    let kinds =
        [(open, "", Sealing::Auto), (closed, token.as_str(), Sealing::Never), (closed, &token, Sealing::Always)];
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ended = common::Stop(&end);
        let clients: Vec<_> = (0u64..)
            .zip(kinds)
            .map(|(seed, (tenant, token, sealing))| {
                let local = if plane.address().is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
                let front = UdpSocket::bind(local).expect("a socket");
                let config = Config::new(front.local_addr().expect("an address"), tenant).token(token).sealing(sealing);
                let (plane, end) = (&plane, &end);
                scope.spawn(move || gateway(plane, &front, seed, end));
                scope.spawn(move || {
                    let client = Client::connect(config.deadline(Duration::from_secs(30))).expect("a session");
                    let key = [seed as u8];
                    for number in 1..=EACH {
                        assert_eq!(client.increment(1, &key, 1), Ok(number), "{sealing:?}, tenant {tenant}");
                    }
                    assert_eq!(client.increment(1, &key, 0), Ok(EACH), "and none of them later");
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("all are answered"));
    });
}

/// Sends the hello of a session that will be bound, and binds it; returns the server's start.
fn bind(wire: &mut Wire, token: &str) -> u32 {
    let answer = wire.one(Operation { number: HELLO_BIND_SESSION, ..Operation::hello(token.as_bytes()) });
    assert_eq!(answer.status, RpcStatus::Ok);
    wire.sequence = u64::from(answer.user_flags) << 32;
    answer.user_flags
}

#[test]
fn a_bound_session_goes_on_from_another_port_and_one_that_is_not_does_not() {
    let plane = data_plane(1);
    for (name, open) in [("open", true), ("closed", false)] {
        let (id, token) = tenant(&plane, name, open);
        let mut first = Wire::new(&plane, 0, id);
        let start = bind(&mut first, &token);
        assert!(start != 0);
        let header = first.header(1);
        let (session, sequence) = (first.session, first.sequence);
        let moved = |session, sequence| {
            let mut wire = Wire::new(&plane, 0, id);
            (wire.session, wire.sequence) = (session, sequence);
            wire
        };
        for repeat in 0..5 {
            let answer = &moved(session, sequence).ask_as(&header, &[Operation::increment(1, b"n", 1)])[0];
            assert_eq!((answer.status, answer.number), (RpcStatus::Ok, 1), "repeat {repeat}: {}", answer.text());
        }
        assert_eq!(moved(session, sequence).one(Operation::increment(1, b"n", 1)).number, 2);
        // One session's number does not work for another, and none is known before its hello.
        let mut guessed = moved(session ^ 1, sequence);
        let expected = if open { RpcStatus::Ok } else { RpcStatus::Unauthenticated };
        assert_eq!(guessed.one(Operation::increment(1, b"other", 1)).status, expected);
        // A session that did not ask for it is known at its own address alone, however other senders number their
        // messages.
        let mut unbound = Wire::new(&plane, 0, id);
        assert_eq!(unbound.one(Operation::hello(token.as_bytes())).status, RpcStatus::Ok);
        assert_eq!(unbound.one(Operation::put(1, b"k", b"v")).status, RpcStatus::Ok);
        let mut elsewhere = moved(unbound.session, u64::from(start) << 32);
        assert_eq!(elsewhere.one(Operation::put(1, b"k", b"v")).status, expected);
        // A request that names another start of the server does not run, whatever else is right about it.
        let former = MessageHeader { sequence: (u64::from(start ^ 2) << 32) + 9, acked: 0, ..first.header(1) };
        let answer = &first.ask_as(&former, &[Operation::increment(1, b"n", 1)])[0];
        assert_eq!((answer.status, answer.number), (RpcStatus::Stale, STALE_PREVIOUS_START), "{}", answer.text());
        assert_eq!(first.one(Operation::increment(1, b"n", 0)).number, 2);
    }
}

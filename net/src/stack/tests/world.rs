//! R2P2 over stacks on a network that loses, repeats, reorders and damages frames, in simulated time. A run depends on
//! its seed alone.

use super::*;
use crate::driver::Burst;
use crate::limits::{ClientLimits, ServerLimits};
use crate::r2p2::{ClientEndpoint, ServerEndpoint};
use crate::rpc::{MessageHeader, OpKind, Operation, encode_message};
use crate::sim::SeededRng;
use proptest::prelude::*;

/// One side: its driver and its buffers.
struct Side<E> {
    driver: StackDriver<MemoryPort>,
    endpoint: E,
    burst: Burst,
    outbox: Outbox,
}

impl<E> Side<E> {
    fn new(driver: StackDriver<MemoryPort>, endpoint: E) -> Side<E> {
        Side { burst: driver.burst(), outbox: driver.outbox(), driver, endpoint }
    }
}

fn serve(side: &mut Side<ServerEndpoint>, now_us: u64) {
    let Side { driver, endpoint, burst, outbox } = side;
    driver.receive(burst);
    for (peer, datagram) in burst.iter() {
        if let Some(request) = endpoint.receive_for_owner(now_us, peer, datagram, outbox, || 1) {
            endpoint.respond(now_us, peer, request.request_id, &request.message, outbox);
            endpoint.recycle(request.message);
        }
    }
    endpoint.poll_timers(now_us, outbox);
    driver.transmit(outbox);
}

struct Client {
    side: Side<ClientEndpoint>,
    session: u64,
    open_request: Option<(u16, Vec<u8>)>,
    left: u64,
}

impl Client {
    fn turn(&mut self, now_us: u64, dice: &mut SeededRng) {
        let Side { driver, endpoint, burst, outbox } = &mut self.side;
        driver.receive(burst);
        for (_, datagram) in burst.iter() {
            if let Some(response) = endpoint.receive(now_us, datagram, outbox) {
                let (id, message) = self.open_request.take().expect("an answer to what was asked");
                assert!(response.request_id == id && *response.message == message[..], "another answer than was sent");
                self.left -= 1;
            }
        }
        endpoint.poll_timers(now_us, outbox, &mut |ended| panic!("{ended:?}"));
        if self.open_request.is_none() && self.left > 0 {
            let value = vec![dice.any() as u8; [300, 5000, 100_000][dice.below(3) as usize]];
            let (session, sequence) = (self.session, self.left);
            let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session, sequence, acked: 0 };
            let mut message = Vec::new();
            encode_message(&header, &[Operation { value: &value, ..Operation::new(OpKind::Ping) }], &mut message);
            let id = endpoint.request_with_timeout(now_us, 60_000_000, &message, outbox).unwrap();
            self.open_request = Some((id, message));
        }
        driver.transmit(outbox);
    }
}

fn server_of(driver: StackDriver<MemoryPort>) -> Side<ServerEndpoint> {
    let (max_datagram, largest_datagram) = (driver.usual_datagram(), driver.max_datagram());
    Side::new(driver, ServerEndpoint::new(ServerLimits { max_datagram, largest_datagram, ..Default::default() }))
}

fn client_of(driver: StackDriver<MemoryPort>, server: PeerAddr, session: u64, left: u64) -> Client {
    let (max_datagram, largest_datagram) = (driver.usual_datagram(), driver.max_datagram());
    let limits = ClientLimits { max_datagram, largest_datagram, ..Default::default() };
    let mut endpoint = ClientEndpoint::new(server, limits);
    endpoint.start_mtu_probing(0);
    Client { side: Side::new(driver, endpoint), session, open_request: None, left }
}

/// Runs a world to its end, and returns how long it took and the values that were received.
fn play(seed: u64) -> (u64, Vec<u64>) {
    let (mut dice, time) = (SeededRng::new(seed), Time::new());
    let faults = NetworkFaults {
        loss: dice.below(12),
        duplication: dice.below(12),
        reorder: dice.below(30),
        corruption: dice.below(5),
        // Some networks lose long frames.
        longest: [0, 0, 1514, 4000][dice.below(4) as usize],
    };
    let net = MemoryNetwork::new(seed, faults, 200);
    let workers = 1 + dice.below(3) as usize;
    let mtus: [usize; 4] = std::array::from_fn(|_| [1500, 9000, 3000][dice.below(3) as usize]);
    let drivers = host_of(&net, &time, 1, mtus[0], StackOptions { workers, ..options(1) });
    let mut servers: Vec<_> = drivers.into_iter().map(server_of).collect();
    let mut clients: Vec<_> = (0..3u8)
        .map(|number| {
            let mtu = mtus[usize::from(number) + 1];
            let driver = host_of(&net, &time, 10 + number, mtu, options(10 + number)).remove(0);
            let ip = [ip("10.0.0.1"), ip("fd00::1")][usize::from(number % 2)];
            let server = PeerAddr::new(ip, 7000 + dice.below(workers as u64) as u16);
            client_of(driver, server, dice.any(), 12)
        })
        .collect();
    let now = || time.now_us();
    while clients.iter().any(|client| client.left > 0) {
        time.pass(200);
        assert!(now() < 600_000_000, "seed {seed}: the run does not end");
        clients.iter_mut().for_each(|client| client.turn(now(), &mut dice));
        servers.iter_mut().for_each(|server| serve(server, now()));
    }
    let frames = servers.iter().map(|server| server.driver.stack_counters().frames_in);
    (now(), frames.collect())
}

/// Lets a client ask and a server answer until the condition is true.
fn until(
    time: &Time,
    dice: &mut SeededRng,
    client: &mut Client,
    server: &mut Side<ServerEndpoint>,
    is_true: impl Fn(&Client) -> bool,
) {
    let end_us = time.now_us() + 120_000_000;
    while !is_true(client) {
        time.pass(200);
        assert!(
            time.now_us() < end_us,
            "it never holds: {} bytes, {} left",
            client.side.endpoint.datagram(),
            client.left
        );
        client.turn(time.now_us(), dice);
        serve(server, time.now_us());
    }
}

#[test]
fn datagrams_are_as_large_as_both_interfaces_and_the_network_let_through() {
    for (server_mtu, client_mtu, longest, least, most) in [
        (9000, 9000, 0, 8952, 8952),
        (9000, 1500, 0, 1452, 1452),
        (1500, 9000, 0, 1452, 1452),
        (9000, 9000, 1514, 1452, 1452),
        // Sizes tried: half of the last one, and half again.
        (9000, 9000, 5000, 4476, 4986),
        (3000, 9000, 0, 2238, 2952),
    ] {
        let (time, mut dice) = (Time::new(), SeededRng::new(1));
        let net = MemoryNetwork::new(1, NetworkFaults { longest, ..NetworkFaults::default() }, 200);
        let server = host_of(&net, &time, 1, server_mtu, options(1)).remove(0);
        let client = host_of(&net, &time, 2, client_mtu, options(2)).remove(0);
        let (mut server, to) = (server_of(server), PeerAddr::new(ip("fd00::1"), 7000));
        let mut client = client_of(client, to, 1, u64::MAX);
        // All sizes have been tried.
        let tried_us = time.now_us() + 2_000_000;
        until(&time, &mut dice, &mut client, &mut server, |_| time.now_us() > tried_us);
        let found = client.side.endpoint.datagram();
        assert!((least..=most).contains(&found), "{server_mtu} {client_mtu} {longest}: {found}");
        // The server has learnt the size as well: an answer that fits is one datagram.
        let (before, size) = (server.driver.counters().sent, found - 8);
        let (header, mut message) = (header_of(&client), Vec::new());
        let value = vec![7; size - 64];
        encode_message(&header, &[Operation { value: &value, ..Operation::new(OpKind::Ping) }], &mut message);
        assert_eq!(message.len(), size);
        let from = PeerAddr::new(ip("fd00::2"), 7000);
        server.endpoint.respond(time.now_us(), from, 1, &message, &mut server.outbox);
        server.driver.transmit(&mut server.outbox);
        assert_eq!(server.driver.counters().sent, before + 1, "{found} bytes");
    }
}

fn header_of(client: &Client) -> MessageHeader {
    MessageHeader { flags: 0, operations: 1, tenant: 1, session: client.session, sequence: 9999, acked: 0 }
}

/// Large datagrams are lost silently from some moment on, and come through again later.
#[test]
fn a_way_that_becomes_narrow_is_left_for_small_datagrams_and_taken_again() {
    let (time, mut dice) = (Time::new(), SeededRng::new(3));
    let net = MemoryNetwork::new(3, NetworkFaults::default(), 200);
    let server = host_of(&net, &time, 1, 9000, options(1)).remove(0);
    let client = host_of(&net, &time, 2, 9000, options(2)).remove(0);
    let (mut server, to) = (server_of(server), PeerAddr::new(ip("10.0.0.1"), 7000));
    let mut client = client_of(client, to, 1, u64::MAX);
    let size = |client: &Client| client.side.endpoint.datagram();
    until(&time, &mut dice, &mut client, &mut server, |client| size(client) > 8000);
    for _ in 0..3 {
        net.set_faults(NetworkFaults { longest: 1514, ..NetworkFaults::default() });
        until(&time, &mut dice, &mut client, &mut server, |client| size(client) < 1500);
        // All requests are answered, whatever the size of requests and responses, with none given up.
        let left = client.left;
        until(&time, &mut dice, &mut client, &mut server, |client| client.left < left - 50);
        net.set_faults(NetworkFaults::default());
        until(&time, &mut dice, &mut client, &mut server, |client| size(client) > 8000);
        let left = client.left;
        until(&time, &mut dice, &mut client, &mut server, |client| client.left < left - 50);
    }
}

/// A server that has forgotten, or has been restarted, is told again.
#[test]
fn a_server_that_has_forgotten_how_large_datagrams_may_be_is_told_again() {
    let (time, mut dice) = (Time::new(), SeededRng::new(4));
    let net = MemoryNetwork::new(4, NetworkFaults::default(), 200);
    let server = host_of(&net, &time, 1, 9000, options(1)).remove(0);
    let client = host_of(&net, &time, 2, 9000, options(2)).remove(0);
    let limits = ServerLimits { largest_datagram: 8952, ..ServerLimits::default() };
    let (mut server, to) = (server_of(server), PeerAddr::new(ip("10.0.0.1"), 7000));
    let mut client = client_of(client, to, 1, u64::MAX);
    until(&time, &mut dice, &mut client, &mut server, |client| client.side.endpoint.datagram() > 8000);
    server.endpoint = ServerEndpoint::new(limits);
    // The client reports it once a second at most.
    let deadline_us = time.now_us() + 2_000_000;
    until(&time, &mut dice, &mut client, &mut server, |_| time.now_us() > deadline_us);
    let left = client.left;
    let (sent, bytes) = (server.driver.counters().sent, server.driver.counters().sent_bytes);
    until(&time, &mut dice, &mut client, &mut server, |client| client.left < left - 100);
    let now = server.driver.counters();
    assert!((now.sent_bytes - bytes) / (now.sent - sent) > 1500, "{now:?}");
}

#[test]
fn whatever_the_network_does_to_frames_each_request_is_answered_by_what_was_sent() {
    (0..30).for_each(|seed| {
        play(seed);
    });
}

#[test]
fn a_run_depends_on_its_seed_alone() {
    assert_eq!(play(7), play(7));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn no_frame_stops_the_stack(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        crate::stack::fuzzing::frames(&bytes);
    }
}

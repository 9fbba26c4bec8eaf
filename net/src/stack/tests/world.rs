//! R2P2 over stacks on a network that loses, repeats, reorders and damages frames, in a time of its own: a run depends on its seed alone.

use super::*;
use crate::driver::Burst;
use crate::limits::{ClientLimits, ServerLimits};
use crate::r2p2::{ClientEndpoint, ServerEndpoint};
use crate::rpc::{MessageHeader, Op, Operation, encode_message};
use crate::sim::Dice;
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
        Side { burst: driver.burst(), driver, endpoint, outbox: Outbox::default() }
    }
}

fn serve(side: &mut Side<ServerEndpoint>, now_us: u64) {
    let Side { driver, endpoint, burst, outbox } = side;
    driver.receive(burst);
    for (peer, datagram) in burst.iter() {
        if let Some(request) = endpoint.receive(now_us, peer, datagram, outbox) {
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
    asked: Option<(u16, Vec<u8>)>,
    left: u64,
}

impl Client {
    fn turn(&mut self, now_us: u64, dice: &mut Dice) {
        let Side { driver, endpoint, burst, outbox } = &mut self.side;
        driver.receive(burst);
        for (_, datagram) in burst.iter() {
            if let Some(response) = endpoint.receive(now_us, datagram, outbox) {
                let (id, message) = self.asked.take().expect("an answer to what was asked");
                assert!(response.request_id == id && *response.message == message[..], "another answer than was sent");
                self.left -= 1;
            }
        }
        endpoint.poll_timers(now_us, outbox, &mut |ended| panic!("{ended:?}"));
        if self.asked.is_none() && self.left > 0 {
            let value = vec![dice.any() as u8; [300, 5000, 100_000][dice.below(3) as usize]];
            let (session, sequence) = (self.session, self.left);
            let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session, sequence, acked: 0 };
            let mut message = Vec::new();
            encode_message(&header, &[Operation { value: &value, ..Operation::new(Op::Ping) }], &mut message);
            let id = endpoint.request_for(now_us, 60_000_000, &message, outbox).unwrap();
            self.asked = Some((id, message));
        }
        driver.transmit(outbox);
    }
}

/// Runs a world to its end, and returns how long it took and what was received.
fn play(seed: u64) -> (u64, Vec<u64>) {
    let (mut dice, time) = (Dice::new(seed), Time::new());
    let faults = Faults {
        loss: dice.below(12),
        duplication: dice.below(12),
        reorder: dice.below(30),
        corruption: dice.below(5),
    };
    let net = MemoryNetwork::new(seed, faults, 200);
    let workers = 1 + dice.below(3) as usize;
    let drivers = host(&net, &time, 1, StackOptions { workers, ..options(1) });
    let limits = ServerLimits { max_datagram: drivers[0].max_datagram(), ..ServerLimits::default() };
    let mut servers: Vec<_> =
        drivers.into_iter().map(|driver| Side::new(driver, ServerEndpoint::new(limits))).collect();
    let mut clients: Vec<_> = (0..3u8)
        .map(|number| {
            let driver = host(&net, &time, 10 + number, options(10 + number)).remove(0);
            let ip = [ip("10.0.0.1"), ip("fd00::1")][usize::from(number % 2)];
            let server = Peer::new(ip, 7000 + dice.below(workers as u64) as u16);
            let limits = ClientLimits { max_datagram: driver.max_datagram(), ..ClientLimits::default() };
            let side = Side::new(driver, ClientEndpoint::new(server, limits));
            Client { side, session: dice.any(), asked: None, left: 12 }
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

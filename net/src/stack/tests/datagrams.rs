//! Promises about datagrams between stacks.

use super::super::handover::HandoverBatch;
use super::super::wire::arp::ArpPacket;
use super::frames::bench;
use super::*;
use crate::driver::Burst;
use crate::limits::{
    BURST, CLOSED_PORTS_PER_S, NEIGHBOUR_REACHABLE_US, UNRESOLVED_DATAGRAMS, UNRESOLVED_PER_NEIGHBOUR,
};
use crate::sim::SeededRng;

fn peers(number: u8) -> [PeerAddr; 2] {
    [format!("10.0.0.{number}:7000").parse().unwrap(), format!("[fd00::{number:x}]:7000").parse().unwrap()]
}

#[test]
fn datagrams_of_all_lengths_arrive_over_both_families_with_and_without_offload() {
    for round in 0..6 {
        let (net, time) = (network(), Time::new());
        let (mut one, mut two) =
            (host(&net, &time, 1, options(1)).remove(0), host(&net, &time, 2, options(2)).remove(0));
        two.port_mut().verify = round & 1 == 1;
        if round > 1 {
            let ports = net.interface(mac(9), 1500, 1);
            let mut port = ports.into_iter().next().unwrap();
            port.offload = PortOffloads { ip_fill: true, udp_fill: true, udp_checksum_optional: round > 3 };
            let interface = StackInterface::new(&port, options(9), time.clock()).unwrap();
            one = StackDriver::new(interface, 0, port).unwrap();
        }
        let from = if round > 1 { 9 } else { 1 };
        for (family, most) in [(0, 1472), (1, 1452)] {
            let mut sent = Vec::new();
            for len in (0..70).chain([575, 576, 1000, 1001, most - 1, most]) {
                let datagram: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
                send(&mut one, peers(2)[family], &datagram);
                sent.push((peers(from)[family], datagram));
                if sent.len() == 20 {
                    // Datagrams that wait for the neighbour's answer go out with it.
                    let got = settle(&mut [&mut one, &mut two]).remove(1);
                    assert_eq!(got, sent);
                    sent.clear();
                }
            }
            assert_eq!(settle(&mut [&mut one, &mut two]).remove(1), sent);
            assert_eq!(one.counters().send_errors, family as u64);
            send(&mut one, peers(2)[family], &vec![0; most + 1]);
            assert_eq!(one.stack_counters().too_large, 1 + family as u64);
        }
        assert_eq!(two.stack_counters().malformed(), 0);
        assert_eq!(one.max_datagram(), 1452, "what fits a packet of either family");
    }
}

#[test]
fn a_damaged_frame_is_never_taken_for_another_datagram() {
    for verify in [false, true] {
        let (net, time) = (network(), Time::new());
        let (mut one, mut two) =
            (host(&net, &time, 1, options(1)).remove(0), host(&net, &time, 2, options(2)).remove(0));
        two.port_mut().verify = verify;
        peers(2).iter().for_each(|peer| send(&mut one, *peer, b"who are you"));
        settle(&mut [&mut one, &mut two]);
        net.set_faults(NetworkFaults { corruption: 100, ..NetworkFaults::default() });
        let datagram = b"sixty-four bytes or so, of which one bit is going to be changed";
        let mut got = Vec::new();
        for round in 0..4000 {
            send(&mut one, peers(2)[round % 2], datagram);
            got.extend(receive(&mut two));
        }
        // No checksum covers Ethernet's sender address, or IPv6's header but for addresses and lengths.
        assert!(got.len() < 1000, "{} of 4000 arrived", got.len());
        for (from, bytes) in got {
            assert!(peers(1).contains(&from) && bytes == datagram, "{from} {bytes:?}");
        }
    }
}

#[test]
fn a_neighbour_that_answers_late_gets_what_waited_and_a_silent_one_is_given_up() {
    let (net, time) = (network(), Time::new());
    let mut one = host(&net, &time, 1, options(1)).remove(0);
    for round in 0..UNRESOLVED_PER_NEIGHBOUR + 8 {
        send(&mut one, peers(2)[0], &[round as u8]);
    }
    assert_eq!(one.stack_counters().unresolved, 8, "what waits for one neighbour is bounded");
    nothing(&mut one);
    let mut two = host(&net, &time, 2, options(2)).remove(0);
    time.pass(300_000);
    let got = settle(&mut [&mut one, &mut two]).remove(1);
    assert_eq!(got.len(), UNRESOLVED_PER_NEIGHBOUR, "asked again, it answers");
    // No host has this address.
    send(&mut one, peers(3)[1], b"lost");
    for _ in 0..40 {
        time.pass(100_000);
        nothing(&mut one);
    }
    assert_eq!(one.stack_counters().unresolved, 9);
    assert_eq!(one.interface().neighbour_counters().failures, 1);
    let questions = one.interface().neighbour_counters().questions;
    send(&mut one, peers(3)[1], b"lost as well");
    assert_eq!(one.interface().neighbour_counters().questions, questions, "it is not asked again at once");
    time.pass(5_000_000);
    let mut three = host(&net, &time, 3, options(3)).remove(0);
    send(&mut one, peers(3)[1], b"here at last");
    assert_eq!(settle(&mut [&mut one, &mut three])[1], [(peers(1)[1], b"here at last".to_vec())]);
}

/// Datagrams for silent neighbours fill all the room for waiting: other neighbours are asked for and found all the
/// same.
#[test]
fn a_neighbour_is_resolved_even_if_the_queue_is_full() {
    let (mut one, mut other, _time) = bench();
    for number in 0..UNRESOLVED_DATAGRAMS {
        send(&mut one, peers(100 + (number / UNRESOLVED_PER_NEIGHBOUR) as u8)[0], b"waits");
    }
    assert_eq!(
        (one.stack_counters().awaiting_neighbour, one.stack_counters().unresolved),
        (UNRESOLVED_DATAGRAMS as u64, 0)
    );
    other.receive_raw();
    let far: PeerAddr = "192.0.2.5:9".parse().unwrap();
    send(&mut one, far, b"lost");
    assert_eq!(one.stack_counters().unresolved, 1);
    let questions = other.receive_raw().iter().find_map(|frame| wire_arp(frame)).expect("the router is asked for");
    assert_eq!(IpAddr::from(questions.target), ip("10.0.0.254"));
    let answer = ArpPacket {
        is_request: false,
        sender_mac: mac(2),
        sender: questions.target,
        target_mac: mac(1),
        target: questions.sender,
    };
    other.send_raw(&answer.frame(mac(1)));
    nothing(&mut one);
    send(&mut one, far, b"arrives");
    assert!(other.receive_raw().iter().any(|frame| frame.ends_with(b"arrives")));
}

/// A burst full of questions from other hosts needs more answers than may wait. Our own questions leave all the same,
/// and unsent ones are not counted.
#[test]
fn a_flood_of_questions_does_not_keep_ours_from_leaving() {
    let (mut one, mut other, time) = bench();
    send(&mut one, peers(3)[0], b"waits");
    let own = |frames: &[Vec<u8>]| {
        let arps = frames.iter().filter_map(|frame| wire_arp(frame));
        arps.filter(|arp| arp.is_request && IpAddr::from(arp.target) == ip("10.0.0.3")).count()
    };
    assert_eq!(own(&other.receive_raw()), 1);
    for number in 0..100 {
        let (sender, target) = ([10, 0, 0, 100 + number].into(), [10, 0, 0, 1].into());
        let arp = ArpPacket { is_request: true, sender_mac: mac(2), sender, target_mac: MacAddress::ZERO, target };
        other.send_raw(&arp.frame(MacAddress::BROADCAST));
    }
    // The time to ask again has come, and the port is full when the answers are to leave.
    time.pass(crate::limits::NEIGHBOUR_RETRIES_US[0]);
    one.port_mut().room = 0;
    nothing(&mut one);
    one.port_mut().room = usize::MAX;
    nothing(&mut one);
    let answer = other.receive_raw();
    assert_eq!(own(&answer), 1, "asked again");
    let answers = answer.iter().filter_map(|frame| wire_arp(frame)).filter(|arp| !arp.is_request).count();
    let counters = one.stack_counters();
    assert_eq!(
        (counters.questions_answered, counters.questions_answered + counters.frames_lost),
        (answers as u64, 100)
    );
}

/// Creates a driver whose port signals when a frame has come: nothing else has to end a sleep.
fn interrupt_driven(net: &MemoryNetwork, time: &Time, number: u8) -> StackDriver<MemoryPort> {
    use rustix::event::{EventfdFlags, eventfd};
    let mut port = net.interface(mac(number), 1500, 1).remove(0);
    port.descriptor = Some(Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()));
    let interface = StackInterface::new(&port, options(number), time.clock()).unwrap();
    StackDriver::new(interface, 0, port).unwrap()
}

/// Returns whether a driver lets a waiting thread sleep for longer than any test.
fn sleeps_long(driver: &StackDriver<MemoryPort>) -> bool {
    const LONG_US: u64 = 20_000_000;
    let begin = std::time::Instant::now();
    let woken = driver.waiter().wait(Some(LONG_US), false).unwrap();
    assert_eq!(woken, crate::driver::WakeReason::default(), "there is no datagram, and nobody signals");
    begin.elapsed().as_micros() as u64 >= LONG_US
}

#[test]
fn an_idle_driver_says_when_it_has_to_be_called_again() {
    let (net, time) = (network(), Time::new());
    // A port without a descriptor is polled often.
    let mut polled = host(&net, &time, 1, options(1)).remove(0);
    nothing(&mut polled);
    assert!(!sleeps_long(&polled));
    // A port with one is not, but for datagrams that wait for a neighbour's answer, or for room.
    let mut waits = interrupt_driven(&net, &time, 2);
    send(&mut waits, peers(9)[0], b"waits");
    assert!(!sleeps_long(&waits));
    let mut full = interrupt_driven(&net, &time, 3);
    nothing(&mut full);
    full.port_mut().room = 0;
    send(&mut polled, peers(3)[0], b"asks first");
    nothing(&mut full);
    assert!(!full.worker.queue.frames.is_empty() && full.worker.unresolved.is_empty(), "its answer waits");
    assert!(!sleeps_long(&full));
    full.port_mut().room = usize::MAX;
    nothing(&mut full);
    assert_eq!(full.max_sleep_us(), u64::MAX, "then it sleeps until a frame comes");
}

#[test]
fn a_port_that_says_nothing_is_looked_at_less_often_when_nothing_comes_or_goes() {
    use crate::limits::{
        POLLED_DEEP_IDLE_AFTER_US, POLLED_DEEP_SLEEP_US, POLLED_IDLE_AFTER_US, POLLED_IDLE_SLEEP_US, POLLED_SLEEP_US,
    };
    let (net, time) = (network(), Time::new());
    let (mut one, mut two) = (host(&net, &time, 1, options(1)).remove(0), host(&net, &time, 2, options(2)).remove(0));
    let rest = |driver: &mut StackDriver<MemoryPort>| {
        assert_eq!(driver.max_sleep_us(), POLLED_SLEEP_US);
        time.pass(POLLED_IDLE_AFTER_US - 1);
        nothing(driver);
        assert_eq!(driver.max_sleep_us(), POLLED_SLEEP_US);
        time.pass(1);
        nothing(driver);
        assert_eq!(driver.max_sleep_us(), POLLED_IDLE_SLEEP_US);
        time.pass(POLLED_DEEP_IDLE_AFTER_US - POLLED_IDLE_AFTER_US - 1);
        nothing(driver);
        assert_eq!(driver.max_sleep_us(), POLLED_IDLE_SLEEP_US);
        time.pass(1);
        nothing(driver);
        assert_eq!(driver.max_sleep_us(), POLLED_DEEP_SLEEP_US);
    };
    // Both hosts learn each other's address.
    send(&mut one, peers(2)[0], b"x");
    settle(&mut [&mut one, &mut two]);
    rest(&mut one);
    nothing(&mut two);
    assert_eq!(two.max_sleep_us(), POLLED_DEEP_SLEEP_US);
    // A sender expects an answer soon; a receiver expects another datagram.
    send(&mut one, peers(2)[0], b"y");
    assert_eq!(receive(&mut two).len(), 1);
    rest(&mut one);
    send(&mut one, peers(2)[0], b"z");
    assert_eq!(receive(&mut two).len(), 1);
    rest(&mut two);
}

#[test]
fn a_port_that_lets_no_groups_in_does_for_ipv4_alone() {
    let (net, time) = (network(), Time::new());
    let drive = |options: StackOptions| {
        let mut port = net.interface(mac(1), 1500, 1).remove(0);
        port.listens = false;
        let interface = StackInterface::new(&port, options, time.clock()).unwrap();
        StackDriver::new(interface, 0, port).map(|_| ())
    };
    assert_eq!(drive(options(1)), Err(StackError::Groups));
    let v4 = InterfaceNetwork { address: ip("10.0.0.1"), prefix: 24, gateway: None };
    assert_eq!(drive(StackOptions::new(v4, 7000)), Ok(()));
}

#[test]
fn what_is_far_away_goes_to_the_router_and_what_has_no_way_is_counted() {
    let (net, time) = (network(), Time::new());
    let mut one = host(&net, &time, 1, options(1)).remove(0);
    let mut router = net.interface(mac(77), 1500, 1).remove(0);
    let far: [PeerAddr; 2] = ["192.0.2.5:9".parse().unwrap(), "[2001:db8::5]:9".parse().unwrap()];
    far.iter().for_each(|peer| send(&mut one, *peer, b"far"));
    let questions: Vec<_> = router.receive_raw();
    let arp = questions.iter().filter_map(|frame| wire_arp(frame)).find(|arp| arp.target != arp.sender).unwrap();
    assert_eq!(IpAddr::from(arp.target), ip("10.0.0.254"));
    let answer = ArpPacket {
        is_request: false,
        sender_mac: mac(77),
        sender: arp.target,
        target_mac: mac(1),
        target: arp.sender,
    };
    router.send_raw(&answer.frame(mac(1)));
    nothing(&mut one);
    let got = router.receive_raw();
    assert_eq!(got.len(), 1, "the datagram that waited");
    assert_eq!((&got[0][..6], &got[0][30..34]), (&mac(77).0[..], &[192, 0, 2, 5][..]));
    let alone = InterfaceNetwork { address: ip("10.0.0.4"), prefix: 24, gateway: None };
    let mut alone = host(&net, &time, 4, StackOptions::new(alone, 7000)).remove(0);
    for to in ["192.0.2.5:9", "[fd00::1]:9", "10.0.0.255:9", "10.0.0.0:9", "10.0.0.4:7000", "127.0.0.1:9", "10.0.0.1:0"]
    {
        send(&mut alone, to.parse().unwrap(), b"x");
    }
    assert_eq!(alone.stack_counters().no_route, 7);
}

fn wire_arp(frame: &[u8]) -> Option<ArpPacket> {
    ArpPacket::read(frame.get(14..)?).ok().filter(|_| frame[12..14] == [8, 6])
}

#[test]
fn datagrams_reach_their_worker_whichever_queue_they_come_to() {
    let (net, time) = (network(), Time::new());
    let mut server = host(&net, &time, 1, StackOptions { workers: 3, ..options(1) });
    let mut client = host(&net, &time, 2, options(2)).remove(0);
    let mut dice = SeededRng::new(5);
    let (mut sent, mut got) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
    for number in 0..3000u32 {
        let (worker, family) = (dice.below(3) as usize, dice.below(2) as usize);
        let mut to = peers(1)[family];
        to.set_port(7000 + worker as u16);
        send(&mut client, to, &number.to_be_bytes());
        sent[worker].push((peers(2)[family], number.to_be_bytes().to_vec()));
        if number % 10 == 0 || number == 2999 {
            for _ in 0..3 {
                nothing(&mut client);
                server.iter_mut().zip(&mut got).for_each(|(worker, got)| got.extend(receive(worker)));
            }
        }
    }
    for (sent, got) in sent.iter_mut().zip(&mut got) {
        sent.sort();
        got.sort();
        assert_eq!(sent, got);
    }
    assert!(server.iter().all(|worker| worker.stack_counters().handed_over > 300));
    // Each worker answers from its own port, whichever worker has heard the neighbour's answer.
    for (index, worker) in server.iter_mut().enumerate() {
        send(worker, peers(2)[1], b"hello");
        let got = receive(&mut client);
        assert_eq!(got.len(), 1);
        assert_eq!(usize::from(got[0].0.port()), 7000 + index);
    }
}

#[test]
fn a_worker_that_sleeps_is_woken_by_what_another_one_hands_over() {
    let (net, time) = (network(), Time::new());
    let mut server = host(&net, &time, 1, StackOptions { workers: 2, ..options(1) });
    let mut client = host(&net, &time, 2, options(2)).remove(0);
    server.iter_mut().for_each(nothing);
    let sleeps = server[0].waiter();
    let sleeper = std::thread::spawn(move || {
        // Sleeps again until it is woken: each sleep of a port without a descriptor is short.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !sleeps.wait(None, false).unwrap().signal {
            assert!(std::time::Instant::now() < end, "nobody wakes it");
        }
    });
    // Some of them come to the second worker's queue.
    while !sleeper.is_finished() {
        send(&mut client, peers(1)[0], b"x");
        nothing(&mut client);
        assert_eq!(receive(&mut server[1]), []);
        std::thread::yield_now();
    }
    sleeper.join().unwrap();
    assert!(server[1].stack_counters().handed_over > 0 && !receive(&mut server[0]).is_empty());
}

/// A flood on the other workers' queues keeps a worker's inbox full. Its own queue, which carries its neighbours'
/// answers, is read in each turn.
#[test]
fn what_others_hand_over_does_not_keep_a_worker_from_its_own_queue() {
    let (mut one, mut other, _time) = bench();
    let (own, sender) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let (mut burst, mut batch) = (one.burst(), HandoverBatch::default());
    for turn in 0..4 {
        let request =
            ArpPacket { is_request: true, sender_mac: mac(2), sender, target_mac: MacAddress::ZERO, target: own };
        other.send_raw(&request.frame(MacAddress::BROADCAST));
        while batch.push(peers(2)[0], b"handed over") {}
        one.interface().inboxes[0].put(&mut batch);
        assert!(one.receive(&mut burst) >= BURST / 2 && !burst.has_drained());
        assert_eq!(other.receive_raw().len(), 1, "turn {turn}: the question is answered");
    }
}

#[test]
fn a_port_that_is_full_keeps_datagrams_in_the_outbox_once() {
    let (net, time) = (network(), Time::new());
    let (mut one, mut two) = (host(&net, &time, 1, options(1)).remove(0), host(&net, &time, 2, options(2)).remove(0));
    send(&mut one, peers(2)[0], b"first");
    settle(&mut [&mut one, &mut two]);
    let mut dice = SeededRng::new(9);
    let (mut outbox, mut sent, mut got) = (Outbox::default(), 0u32, Vec::new());
    let (mut silent, mut nowhere, mut long) = (0, 0, 0);
    for _ in 0..400 {
        for _ in 0..dice.below(6) {
            // Some go to a silent neighbour, some have no route, between those that go out.
            match dice.below(7) {
                0 => {
                    outbox.send(peers(3)[0], &[b"silent"]);
                    silent += 1;
                }
                1 => {
                    outbox.send("10.0.0.255:1".parse().unwrap(), &[b"nowhere"]);
                    nowhere += 1;
                }
                2 => {
                    outbox.send(peers(2)[0], &[&[0; 1473]]);
                    long += 1;
                }
                _ => {
                    outbox.send(peers(2)[0], &[&sent.to_be_bytes()]);
                    sent += 1;
                }
            }
        }
        // Now and then the silent neighbour is given up, and asked again.
        time.pass(50_000);
        one.port_mut().room = dice.below(4) as usize;
        one.transmit(&mut outbox);
        got.extend(receive(&mut two));
    }
    one.port_mut().room = usize::MAX;
    one.transmit(&mut outbox);
    got.extend(receive(&mut two));
    assert!(outbox.is_empty());
    let numbers: Vec<_> = got.iter().map(|(_, bytes)| u32::from_be_bytes(bytes[..].try_into().unwrap())).collect();
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
    assert!(one.counters().send_full > 10);
    // However often the driver was polled.
    time.pass(5_000_000);
    nothing(&mut one);
    time.pass(5_000_000);
    nothing(&mut one);
    time.pass(5_000_000);
    nothing(&mut one);
    let counters = one.stack_counters();
    assert_eq!((counters.unresolved, counters.no_route, counters.too_large), (silent, nowhere, long));
}

#[test]
fn closed_ports_answer_if_they_are_to_and_never_faster_than_their_rate() {
    for answer_closed_ports in [true, false] {
        let (net, time) = (network(), Time::new());
        let mut one = host(&net, &time, 1, StackOptions { answer_closed_ports, ..options(1) }).remove(0);
        let (mut two, mut closed) = (host(&net, &time, 2, options(2)).remove(0), peers(1));
        closed.iter_mut().for_each(|peer| peer.set_port(7001));
        let mut answers = 0;
        for round in 0..500 {
            send(&mut two, closed[round % 2], b"anybody?");
            let before = two.stack_counters().refused(FrameDropReason::Ignored);
            settle(&mut [&mut one, &mut two]);
            // Each answer is a message of ICMP that this stack ignores.
            answers += two.stack_counters().refused(FrameDropReason::Ignored) - before;
            time.pass(1000);
        }
        assert_eq!(one.stack_counters().refused(FrameDropReason::Port), 500);
        assert_eq!(answers, one.stack_counters().closed_answered);
        // The rate for half a second, and the burst that was saved up.
        let rate = if answer_closed_ports { CLOSED_PORTS_PER_S } else { 0 };
        assert!((rate..=rate * 3 / 2).contains(&answers), "{answers}");
    }
}

#[test]
fn a_stale_neighbour_is_probed_again_and_used_meanwhile() {
    let (net, time) = (network(), Time::new());
    let (mut one, mut two) = (host(&net, &time, 1, options(1)).remove(0), host(&net, &time, 2, options(2)).remove(0));
    for round in 1..6 {
        for peer in peers(2) {
            send(&mut one, peer, b"x");
            let got = settle(&mut [&mut one, &mut two]).remove(1);
            assert_eq!(got.len(), 1);
        }
        assert_eq!(one.interface().neighbour_counters().questions, 2 * round);
        time.pass(NEIGHBOUR_REACHABLE_US + 1);
    }
    assert_eq!(one.interface().neighbours().len(), 2);
}

#[test]
fn large_datagrams_stay_in_their_buffers_until_they_are_let_go_of_or_changed() {
    let (net, time) = (network(), Time::new());
    let mut one = host(&net, &time, 1, options(1)).remove(0);
    let mut two = host(&net, &time, 2, options(2)).remove(0);
    two.port_mut().zero_copy_from = 1000;
    let to = PeerAddr::new(ip("10.0.0.2"), 7000);
    let datagram = |len: usize| (0..len).map(|n| (n * 7 + len) as u8).collect::<Vec<u8>>();
    send(&mut one, to, &[1]);
    settle(&mut [&mut one, &mut two]);
    let lengths = [999, 1000, 1001, 40, 1400, 0];
    for len in lengths {
        send(&mut one, to, &datagram(len));
    }
    let mut burst = two.burst();
    assert_eq!(two.receive(&mut burst), lengths.len());
    let mut taken = Vec::new();
    for (index, len) in lengths.into_iter().enumerate() {
        let (_, bytes) = burst.get(index).unwrap();
        assert_eq!(bytes, datagram(len));
        let share = burst.share(index);
        assert_eq!(share.is_some(), len >= 1000, "{len}");
        taken.extend(share.and_then(|share| share.slice_ref(&bytes[100..900])));
    }
    assert!(burst.iter().map(|(_, bytes)| bytes.to_vec()).eq(lengths.map(datagram)));
    // The changed datagram is a copy.
    burst.open(2, |peer, bytes| {
        bytes[100..900].fill(0);
        Some((peer, 50..1001))
    });
    assert_eq!(burst.get(2).unwrap().1, [&datagram(1001)[50..100], &[0; 800], &datagram(1001)[900..]].concat());
    assert!(burst.share(2).is_none() && burst.share(1).is_some());
    // Another burst holds the datagrams that it takes over.
    let mut pack = Burst::new(1, 3000);
    for index in [4, 1, 3] {
        let (peer, bytes) = burst.get(index).unwrap();
        let packed = match burst.share(index) {
            None => pack.pack(peer, bytes),
            Some(share) => pack.pack_shared(peer, share),
        };
        assert!(packed);
    }
    assert!(!pack.pack_shared(to, burst.share(1).unwrap()), "as if it had been copied");
    burst.let_go();
    assert!(burst.get(1).is_none() && burst.get(0).is_some());
    assert!(pack.iter().map(|(_, bytes)| bytes.to_vec()).eq([1400, 1000, 40].map(datagram)));
    pack.open(0, |peer, bytes| {
        bytes.fill(9);
        Some((peer, 0..1400))
    });
    assert!(pack.iter().map(|(_, bytes)| bytes.to_vec()).eq([vec![9; 1400], datagram(1000), datagram(40)]));
    pack.clear();
    assert!(taken.iter().zip([1000, 1001, 1400]).all(|(taken, len)| **taken == datagram(len)[100..900]));
    // A sealed datagram is decrypted in its buffer.
    send(&mut one, to, &[&[crate::seal::MAGIC], &datagram(1200)[..]].concat());
    assert_eq!((two.receive(&mut burst), burst.share(0).is_some()), (1, false));
}

//! Promise: the stack and the kernel's own understand each other. Each test makes two network namespaces with a pair of
//! virtual interfaces between them. In one the kernel's stack has an address; in the other ours does, over a packet
//! socket. That needs root; without it each test says so and ends.

#[path = "../../tests/common/namespaces.rs"]
mod namespaces;

use namespaces::{Pair, run_in, within};
use sandstorm_net::driver::{Burst, DatagramDriver, Outbox, UdpDriver, UdpOptions};
use sandstorm_net::r2p2::{ClientEndpoint, DatagramSink, PeerAddr, ServerEndpoint};
use sandstorm_net::rpc::{MessageHeader, OpKind, Operation, encode_message};
use sandstorm_net::stack::{
    ChecksumFill, FrameDropReason, FramePort, InterfaceNetwork, PacketOptions, PacketPort, RxFrame, StackCounters,
    StackDriver, StackInterface, StackOptions, TxFrame, monotonic_clock,
};
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const KERNEL: [&str; 2] = ["10.66.0.1", "fd66::1"];
const OURS: [&str; 2] = ["10.66.0.2", "fd66::2"];
const PORT: u16 = 7000;
/// The time limit for each step.
const LONG: Duration = Duration::from_secs(60);

fn networks() -> Vec<InterfaceNetwork> {
    let network = |text: &str, prefix| InterfaceNetwork { address: text.parse().unwrap(), prefix, gateway: None };
    vec![network(OURS[0], 24), network(OURS[1], 64)]
}

/// Our workers, in the namespace of our end.
fn workers(lab: &Pair, workers: usize, packets: PacketOptions) -> Vec<StackDriver<PacketPort>> {
    within(&lab.ours, || {
        let options = StackOptions { networks: networks(), workers, ..StackOptions::new(networks()[0], PORT) };
        let ports = PacketPort::open_all("ours0", packets, PORT, workers).unwrap();
        let interface = StackInterface::new(&ports[0], options, monotonic_clock()).unwrap();
        let numbered = ports.into_iter().enumerate();
        numbered.map(|(index, port)| StackDriver::new(Arc::clone(&interface), index, port).unwrap()).collect()
    })
}

/// A thread that serves until it is stopped, and is then inspected.
struct Running<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Running<T> {
    fn new(mut value: T, mut turn: impl FnMut(&mut T) + Send + 'static) -> Running<T> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                turn(&mut value);
            }
            value
        });
        Running { stop, thread: Some(thread) }
    }

    fn end(mut self) -> T {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Sends every datagram back.
fn echo(driver: StackDriver<PacketPort>) -> Running<StackDriver<PacketPort>> {
    let (mut burst, mut outbox, waiter) = (driver.burst(), Outbox::default(), driver.waiter());
    Running::new(driver, move |driver| {
        driver.receive(&mut burst);
        burst.iter().for_each(|(peer, datagram)| outbox.send(peer, &[datagram]));
        driver.transmit(&mut outbox);
        if burst.is_empty() {
            waiter.wait(Some(20_000), !outbox.is_empty()).unwrap();
        }
    })
}

fn at(ip: &str, port: u16) -> PeerAddr {
    PeerAddr::new(ip.parse().unwrap(), port)
}

/// A socket of the kernel's, which waits a little for datagrams.
fn socket(lab: &Pair, ip: &str) -> UdpSocket {
    let socket = within(&lab.kernel, || UdpSocket::bind(at(ip, 0)).unwrap());
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// Sends until the answer comes; other datagrams are skipped.
fn ask(socket: &UdpSocket, to: PeerAddr, datagram: &[u8]) -> bool {
    let (end, mut buffer) = (Instant::now() + LONG, vec![0; 65_536]);
    while Instant::now() < end {
        socket.send_to(datagram, to).unwrap();
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if from == to && buffer[..len] == *datagram {
                return true;
            }
        }
    }
    false
}

/// Returns all counters of a stack, by name.
fn counted(counters: &StackCounters) -> Vec<(&'static str, u64)> {
    counters.named().collect()
}

#[test]
fn the_kernel_pings_us_and_keeps_us_as_its_neighbour() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let running = echo(workers(&lab, 1, PacketOptions::default()).remove(0));
    for ip in OURS {
        for size in [0, 56, 1400] {
            match run_in(&lab.kernel, &format!("ping -c 3 -i 0.2 -w 60 -s {size} {ip}")) {
                Ok(_) => {}
                Err(why) if why.contains("No such file") => return println!("skipped: no ping here: {why}"),
                Err(why) => panic!("{why}"),
            }
        }
        let neighbours = run_in(&lab.kernel, &format!("ip neigh show {ip}")).unwrap();
        assert!(neighbours.contains("lladdr"), "{neighbours}");
    }
    let stack = running.end();
    assert!(stack.stack_counters().echoes_answered >= 18);
    assert_eq!(stack.stack_counters().malformed(), 0, "{:?}", counted(stack.stack_counters()));
}

#[test]
fn the_kernel_is_found_by_who_speaks_first() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let sockets = KERNEL.map(|ip| socket(&lab, ip));
    let driver = workers(&lab, 1, PacketOptions::default()).remove(0);
    let peers = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
    let mut outbox = Outbox::default();
    peers.iter().for_each(|peer| outbox.send(*peer, &[b"first"]));
    let (mut burst, waiter) = (driver.burst(), driver.waiter());
    let running = Running::new(driver, move |driver| {
        driver.transmit(&mut outbox);
        if driver.receive(&mut burst) == 0 {
            waiter.wait(Some(20_000), false).unwrap();
        }
    });
    for (socket, ours) in sockets.iter().zip(OURS) {
        socket.set_read_timeout(Some(LONG)).unwrap();
        let mut buffer = [0; 100];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from), (&b"first"[..], at(ours, PORT)));
    }
    let stack = running.end();
    assert_eq!(stack.interface().neighbours().len(), 2);
    assert!(stack.interface().neighbour_counters().answers >= 2);
}

#[test]
fn datagrams_of_all_lengths_go_there_and_back_with_and_without_offload() {
    for offload in [true, false] {
        let Some(lab) = Pair::new(KERNEL, 1500) else { return };
        let running = echo(workers(&lab, 1, PacketOptions { offload, ..PacketOptions::default() }).remove(0));
        for ((kernel, ours), most) in KERNEL.iter().zip(OURS).zip([1472, 1452]) {
            let socket = socket(&lab, kernel);
            for len in [0, 1, 2, 3, 17, 18, 19, 100, 511, 1000, most - 1, most] {
                let datagram: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
                assert!(ask(&socket, at(ours, PORT), &datagram), "{len} bytes to {ours}, offload {offload}");
            }
        }
        let stack = running.end();
        assert_eq!(stack.stack_counters().malformed(), 0, "{:?}", counted(stack.stack_counters()));
    }
}

#[test]
fn frames_as_large_as_a_large_mtu_has_them_go_through() {
    let Some(lab) = Pair::new(KERNEL, 9000) else { return };
    let running = echo(workers(&lab, 1, PacketOptions::default()).remove(0));
    for ((kernel, ours), most) in KERNEL.iter().zip(OURS).zip([8972, 8952]) {
        let datagram: Vec<u8> = (0..most).map(|at| at as u8).collect();
        assert!(ask(&socket(&lab, kernel), at(ours, PORT), &datagram));
    }
    assert_eq!(running.end().max_datagram(), 8952);
}

#[test]
fn fragments_are_dropped_and_counted_and_the_next_datagram_is_served() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let running = echo(workers(&lab, 1, PacketOptions::default()).remove(0));
    for (kernel, ours) in KERNEL.iter().zip(OURS) {
        let socket = socket(&lab, kernel);
        let mut buffer = vec![0; 65_536];
        assert!(ask(&socket, at(ours, PORT), b"whole"));
        socket.send_to(&[7; 4000], at(ours, PORT)).unwrap();
        assert!(ask(&socket, at(ours, PORT), b"whole"));
        // Earlier datagrams have been handled by now.
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        while let Ok((len, _)) = socket.recv_from(&mut buffer) {
            assert_eq!(&buffer[..len], b"whole");
        }
    }
    let stack = running.end();
    assert!(stack.stack_counters().refused(FrameDropReason::Fragment) >= 6, "{:?}", counted(stack.stack_counters()));
}

#[test]
fn closed_ports_refuse_as_the_kernel_understands_it() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let running = echo(workers(&lab, 1, PacketOptions::default()).remove(0));
    for (kernel, ours) in KERNEL.iter().zip(OURS) {
        let socket = socket(&lab, kernel);
        socket.connect(at(ours, PORT + 1)).unwrap();
        let end = Instant::now() + LONG;
        loop {
            let _ = socket.send(b"anybody?");
            match socket.recv(&mut [0; 10]) {
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => break,
                other => assert!(other.is_err() && Instant::now() < end, "{ours}: {other:?}"),
            }
        }
    }
    assert!(running.end().stack_counters().closed_answered >= 2);
}

#[test]
fn wrong_checksums_are_dropped_and_counted() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let running = echo(workers(&lab, 1, PacketOptions::default()).remove(0));
    let peer = socket(&lab, KERNEL[0]);
    assert!(ask(&peer, at(OURS[0], PORT), b"hello"));
    // The same datagram by hand, on the same path, with one bit of its payload changed; and one with a bit of its IP
    // header changed.
    let mut raw = within(&lab.kernel, || PacketPort::open("kern0", PacketOptions::default()).unwrap());
    let neighbours = run_in(&lab.kernel, &format!("ip neigh show {}", OURS[0])).unwrap();
    let words: Vec<_> = neighbours.split_whitespace().collect();
    let address = words[words.iter().position(|word| *word == "lladdr").unwrap() + 1];
    let to: Vec<u8> = address.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let port = peer.local_addr().unwrap().port();
    let frame = by_hand(&to, raw.mac().0, port, b"by hand");
    let (mut payload, mut header) = (frame.clone(), frame.clone());
    *payload.last_mut().unwrap() ^= 1;
    header[24] ^= 1;
    let mut buffer = [0; 100];
    peer.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let end = Instant::now() + LONG;
    let got = loop {
        for frame in [&payload, &header, &frame] {
            raw.transmit(&[TxFrame { header: frame, ip_header_len: 0, fill: ChecksumFill::default(), parts: &[] }]);
        }
        match peer.recv(&mut buffer) {
            Ok(len) if buffer[..len] != *b"hello" => break buffer[..len].to_vec(),
            _ => assert!(Instant::now() < end, "the frame that is right is not served"),
        }
    };
    assert_eq!(got, b"by hand");
    let stack = running.end();
    assert!(stack.stack_counters().refused(FrameDropReason::UdpChecksum) > 0);
    assert!(stack.stack_counters().refused(FrameDropReason::IpChecksum) > 0);
}

/// Returns a frame with a datagram from the kernel's address to ours.
fn by_hand(to: &[u8], from: [u8; 6], port: u16, payload: &[u8]) -> Vec<u8> {
    let octets = |ip: &str| match ip.parse().unwrap() {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => unreachable!(),
    };
    let mut frame = Vec::new();
    let (mut to_mac, mac) = ([0; 6], from);
    to_mac.copy_from_slice(to);
    let builder = etherparse::PacketBuilder::ethernet2(mac, to_mac).ipv4(octets(KERNEL[0]), octets(OURS[0]), 64);
    builder.udp(port, PORT).write(&mut frame, payload).unwrap();
    frame
}

#[test]
fn many_datagrams_that_the_kernel_has_not_taken_apart_arrive_one_by_one() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let running = echo(workers(&lab, 1, PacketOptions::default()).remove(0));
    for (kernel, ours) in KERNEL.iter().zip(OURS) {
        let peer = socket(&lab, kernel);
        assert!(ask(&peer, at(ours, PORT), b"hello"));
        let mut client = within(&lab.kernel, || UdpDriver::bind(at(kernel, 0), UdpOptions::default()).unwrap());
        let (mut outbox, mut burst, waiter) = (Outbox::default(), Burst::default(), client.waiter());
        let (end, mut round) = (Instant::now() + LONG, 0u8);
        loop {
            round += 1;
            let sent: Vec<Vec<u8>> = (0..64).map(|number| [[number, round]; 350].concat()).collect();
            sent.iter().for_each(|datagram| outbox.send(at(ours, PORT), &[datagram]));
            client.transmit(&mut outbox);
            let mut got = Vec::new();
            while got.len() < sent.len() && waiter.wait(Some(2_000_000), false).unwrap().readable {
                client.receive(&mut burst);
                // Late datagrams of the round before are skipped.
                let of_round = burst.iter().filter(|(_, datagram)| datagram.get(1) == Some(&round));
                got.extend(of_round.map(|(_, datagram)| datagram.to_vec()));
            }
            if got == sent {
                break;
            }
            assert!(Instant::now() < end, "{} of {} came back", got.len(), sent.len());
        }
    }
    let counters = running.end().counters();
    assert!(counters.received_messages * 2 < counters.received, "they came together: {counters:?}");
}

#[test]
fn each_worker_gets_what_is_for_its_port_from_the_kernel() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let running: Vec<_> = workers(&lab, 3, PacketOptions::default()).into_iter().map(echo).collect();
    for (kernel, ours) in KERNEL.iter().zip(OURS) {
        let peer = socket(&lab, kernel);
        for worker in 0..3 {
            assert!(ask(&peer, at(ours, PORT + worker), b"to each its own"));
        }
    }
    for (index, running) in running.into_iter().enumerate() {
        let stack = running.end();
        assert!(stack.counters().received >= 2);
        assert_eq!(stack.stack_counters().handed_over, 0, "worker {index}: the kernel's program has chosen");
    }
}

/// Sockets of one process and with equal ports, as two servers with the same number might have: each set sees all
/// frames.
#[test]
fn two_sets_of_workers_on_one_interface_take_nothing_from_each_other() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let running: Vec<_> = workers(&lab, 2, PacketOptions::default()).into_iter().map(echo).collect();
    let mut others = within(&lab.ours, || PacketPort::open_all("ours0", PacketOptions::default(), PORT, 2).unwrap());
    let peer = socket(&lab, KERNEL[0]);
    for (worker, other) in (0..2).zip(&mut others) {
        let marked = |frame: Option<RxFrame<'_>>| frame.is_some_and(|frame| frame.bytes.ends_with(b"seen by both"));
        let end = Instant::now() + LONG;
        loop {
            assert!(ask(&peer, at(OURS[0], PORT + worker), b"seen by both"));
            let count = other.receive(32);
            if (0..count).any(|index| marked(other.frame(index))) {
                break;
            }
            assert!(Instant::now() < end, "the second set's worker {worker} gets nothing");
        }
    }
    running.into_iter().for_each(|running| assert!(running.end().counters().received >= 1));
}

#[test]
fn the_kernel_is_found_again_when_its_interface_has_another_address() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let running = echo(workers(&lab, 1, PacketOptions::default()).remove(0));
    let peer = socket(&lab, KERNEL[0]);
    assert!(ask(&peer, at(OURS[0], PORT), b"before"));
    run_in(&lab.kernel, "ip link set kern0 address 02:11:22:33:44:55").unwrap();
    assert!(ask(&peer, at(OURS[0], PORT), b"after"));
    let known = running.end().interface().neighbours();
    assert!(known.iter().any(|(_, mac, _)| mac.to_string() == "02:11:22:33:44:55"), "{known:?}");
}

/// Requests and responses of up to a megabyte, from our client on a socket of the kernel's to our server on the stack.
#[test]
fn messages_of_all_sizes_go_through_the_stack_and_the_kernel() {
    let Some(lab) = Pair::new(KERNEL, 1500) else { return };
    let driver = workers(&lab, 1, PacketOptions::default()).remove(0);
    let (mut burst, mut outbox, waiter) = (driver.burst(), Outbox::default(), driver.waiter());
    let limits = sandstorm_net::limits::ServerLimits { max_datagram: driver.max_datagram(), ..Default::default() };
    let (mut endpoint, begin) = (ServerEndpoint::new(limits), Instant::now());
    let running = Running::new(driver, move |driver| {
        let now_us = begin.elapsed().as_micros() as u64;
        driver.receive(&mut burst);
        for (peer, datagram) in burst.iter() {
            if let Some(request) = endpoint.receive(now_us, peer, datagram, &mut outbox) {
                endpoint.respond(now_us, peer, request.request_id, &request.message, &mut outbox);
                endpoint.recycle(request.message);
            }
        }
        endpoint.poll_timers(now_us, &mut outbox);
        driver.transmit(&mut outbox);
        if burst.is_empty() {
            waiter.wait(Some(2000), !outbox.is_empty()).unwrap();
        }
    });
    for (kernel, ours) in KERNEL.iter().zip(OURS) {
        let client = within(&lab.kernel, || UdpDriver::bind(at(kernel, 0), UdpOptions::default()).unwrap());
        exchange(client, at(ours, PORT));
    }
    let stack = running.end();
    assert_eq!(stack.stack_counters().malformed(), 0, "{:?}", counted(stack.stack_counters()));
    assert_eq!(stack.stack_counters().too_large, 0);
}

fn exchange(mut driver: UdpDriver, server: PeerAddr) {
    let max_datagram = driver.max_datagram().min(sandstorm_net::limits::MAX_DATAGRAM);
    let limits = sandstorm_net::limits::ClientLimits { max_datagram, ..Default::default() };
    let mut endpoint = ClientEndpoint::new(server, limits);
    let (begin, waiter, mut outbox, mut burst) = (Instant::now(), driver.waiter(), Outbox::default(), Burst::default());
    for (sequence, size) in (1u64..).zip([0usize, 100, 1300, 1500, 20_000, 1 << 20]) {
        let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session: 5, sequence, acked: 0 };
        let value: Vec<u8> = (0..size).map(|at| (at / 3) as u8).collect();
        let mut message = Vec::new();
        encode_message(&header, &[Operation { value: &value, ..Operation::new(OpKind::Ping) }], &mut message);
        let now = || begin.elapsed().as_micros() as u64;
        let id = endpoint.request_with_timeout(now(), 60_000_000, &message, &mut outbox).unwrap();
        let mut got = None;
        while got.is_none() {
            let due_us = endpoint.poll_timers(now(), &mut outbox, &mut |ended| panic!("{ended:?}")).unwrap();
            driver.transmit(&mut outbox);
            if driver.receive(&mut burst) == 0 {
                waiter.wait(Some(due_us.saturating_sub(now()).min(10_000)), !outbox.is_empty()).unwrap();
            }
            for (_, datagram) in burst.iter() {
                if let Some(response) = endpoint.receive(now(), datagram, &mut outbox) {
                    got = Some((response.request_id, response.message.into_vec()));
                }
            }
            driver.transmit(&mut outbox);
        }
        assert!(got == Some((id, message)), "{size} bytes from {server} are not what was sent");
    }
}

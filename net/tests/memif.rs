//! Promise: two processes talk over shared memory (memif), with neither root nor hugepages. Frames go both ways on two
//! queues, whole and in order. A full queue accepts no more frames and loses none. A peer may be killed in the middle
//! and come back.
//!
//! The test executable runs itself: once for each test, and once more for the peer, which sends back what it receives.
#![cfg(feature = "dpdk")]

use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_net::dpdk::{ClientDevice, DeviceError, DeviceOptions, DpdkPort, Eal, PortOptions, QueuePair};
use sandstorm_net::limits::BURST;
use sandstorm_net::stack::{ChecksumFill, FramePort, InterfaceNetwork, TxFrame};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Tells a child which test it runs.
const ALONE: &str = "SANDSTORM_DPDK_ALONE";
/// The peer's socket, and its role.
const PEER: &str = "SANDSTORM_MEMIF_PEER";
/// The time limit of steps that may be slow on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a test in a process of its own, with a folder for its socket.
fn alone(name: &str, test: impl FnOnce(&Path)) {
    if std::env::var(ALONE).as_deref() == Ok(name) {
        let folder = std::env::temp_dir().join(format!("sandstorm-memif-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        test(&folder.join("socket"));
        return std::fs::remove_dir_all(folder).unwrap();
    }
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(["--exact", name, "--nocapture"]).env(ALONE, name).output().unwrap();
    let (said, cried) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} in its own process: {}\n{said}\n{cried}", output.status);
    assert!(said.contains("1 passed"), "{name} did not run: {said}");
}

fn open(role: &str, socket: &Path) -> (Arc<Eal>, DpdkPort, Vec<QueuePair>) {
    let vdev = format!("net_memif0,role={role},id=0,socket={},socket-abstract=no,rsize=8", socket.display());
    let eal = Eal::start(&["--no-huge", "--no-pci", "--no-shconf", "-m", "64", "--vdev", &vdev]).unwrap();
    let (port, queues) = DpdkPort::open(&eal, "", &PortOptions::new(2)).unwrap();
    (eal, port, queues)
}

fn frame(bytes: &[u8]) -> TxFrame<'_> {
    TxFrame { header: bytes, ip_header_len: 0, fill: ChecksumFill::default(), parts: &[] }
}

/// Waits until the condition is true.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// Returns whether a process listens there. The file exists a moment earlier, and memif's client tries once.
fn listens(socket: &Path) -> bool {
    // The entry of a listening socket in `/proc/net/unix`: its flags, and its path.
    const LISTENS: &str = "00010000";
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    all.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.nth(3) == Some(LISTENS) && words.next_back().is_some_and(|path| Path::new(path) == socket)
    })
}

/// A process that sends back the frames that it receives, as long as it lives. It pauses on command.
struct Peer(Child);

impl Peer {
    fn start(role: &str, socket: &Path) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_peer", "--nocapture"]).env(PEER, format!("{role} {}", socket.display()));
        Peer(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// `r`: pause, `g`: go on.
    fn tell(&mut self, what: &[u8]) {
        self.0.stdin.as_mut().unwrap().write_all(what).unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test: the process of [`Peer`].
#[test]
fn the_peer() {
    let Ok(wanted) = std::env::var(PEER) else { return };
    let (role, socket) = wanted.split_once(' ').unwrap();
    let (_eal, _port, mut queues) = open(role, Path::new(socket));
    let resting = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&resting);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut word = [0];
        while input.read(&mut word).is_ok_and(|read| read == 1) {
            told.store(word == *b"r", Relaxed);
        }
        // The parent process has gone.
        std::process::exit(0);
    });
    loop {
        if resting.load(Relaxed) {
            std::thread::yield_now();
            continue;
        }
        let mut moved = 0;
        for queue in &mut queues {
            let received = queue.receive(BURST);
            let frames: Vec<Vec<u8>> = (0..received).map(|index| queue.frame(index).unwrap().bytes.to_vec()).collect();
            let out: Vec<_> = frames.iter().map(|bytes| frame(bytes)).collect();
            let mut sent = 0;
            while sent < out.len() {
                sent += queue.transmit(&out[sent..]);
            }
            moved += received;
        }
        if moved == 0 {
            std::thread::yield_now();
        }
    }
}

/// Sends random frames on both queues and expects them back, in order; until so many have been sent.
fn exchange(queues: &mut [QueuePair], seed: u64, frames: usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut under_way = vec![VecDeque::new(); queues.len()];
    let (mut sent, mut back) = (0, 0);
    let begun = Instant::now();
    while back < frames {
        assert!(begun.elapsed() < PATIENCE, "{sent} sent, {back} of {frames} back");
        for (queue, model) in queues.iter_mut().zip(&mut under_way) {
            let batch: Vec<Vec<u8>> = (0..random.random_range(1..=BURST).min(frames - sent))
                .map(|_| (0..random.random_range(60..1514)).map(|_| random.random()).collect())
                .collect();
            let out: Vec<_> = batch.iter().map(|bytes| frame(bytes)).collect();
            let taken = queue.transmit(&out);
            sent += taken;
            model.extend(batch.into_iter().take(taken));
            let received = queue.receive(BURST);
            for index in 0..received {
                assert_eq!(Some(queue.frame(index).unwrap().bytes), model.pop_front().as_deref(), "whole and in order");
            }
            back += received;
            if received == 0 {
                std::thread::yield_now();
            }
        }
    }
    assert!(under_way.iter().all(VecDeque::is_empty) && sent == back, "{sent} sent, {back} back");
}

/// Returns a client's error about such memory options.
fn refused(socket: &Path, memory: &str, queues: Option<u16>) -> DeviceError {
    let vdev = format!("net_memif0,role=client,id=0,socket={},socket-abstract=no{memory}", socket.display());
    let eal = ["--no-huge", "--no-pci", "--no-shconf", "-m", "64", "--vdev", &vdev].map(str::to_owned);
    let options = DeviceOptions {
        eal: eal.to_vec(),
        device: String::new(),
        networks: vec![InterfaceNetwork { address: [10, 9, 0, 2].into(), prefix: 24, gateway: None }],
        port: 0,
        workers: 2,
        mtu: None,
        checksums: true,
        kept_buffers: 0,
        sleeps: true,
        dma_from_tables: true,
        isolate: false,
    };
    ClientDevice::open(&options, "10.9.0.1:7400".parse().unwrap(), queues).unwrap_err()
}

#[test]
fn a_client_with_another_number_of_queues_than_the_server_has_workers_is_refused() {
    alone("a_client_with_another_number_of_queues_than_the_server_has_workers_is_refused", |socket| {
        let refused = refused(socket, "", Some(1));
        assert!(matches!(refused, DeviceError::MemifQueues { queues: 1, workers: 2, .. }), "{refused}");
    });
}

#[test]
fn a_client_whose_buffers_are_too_small_for_its_packets_is_refused() {
    alone("a_client_whose_buffers_are_too_small_for_its_packets_is_refused", |socket| {
        let refused = refused(socket, ",bsize=1024", None);
        assert!(
            matches!(refused, DeviceError::MemifBufferSize { mtu: 1500, buffer_bytes: 1024, needed: 1518, .. }),
            "{refused}"
        );
    });
}

#[test]
fn frames_go_both_ways_on_two_queues_whichever_side_listens() {
    for (role, other) in [("client", "server"), ("server", "client")] {
        let name = "frames_go_both_ways_on_two_queues_whichever_side_listens";
        // One process for each role: DPDK starts once.
        let marked = std::env::var("SANDSTORM_MEMIF_ROLE");
        if marked.as_deref().is_ok_and(|marked| marked != role) {
            continue;
        }
        if marked.is_err() {
            let this = std::env::current_exe().unwrap();
            let mut command = Command::new(this);
            command.args(["--exact", name, "--nocapture"]).env(ALONE, name).env("SANDSTORM_MEMIF_ROLE", role);
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{role}: {}", String::from_utf8_lossy(&output.stderr));
            assert!(said.contains("1 passed"), "{role} did not run: {said}");
            continue;
        }
        alone(name, |socket| {
            // The listening side starts first.
            let (mut peer, opened);
            if role == "client" {
                peer = Peer::start(other, socket);
                until("the peer listens", || listens(socket));
                opened = open(role, socket);
            } else {
                opened = open(role, socket);
                peer = Peer::start(other, socket);
            }
            let (eal, port, mut queues) = opened;
            until("the link is up", || port.is_up());
            let resting = port.buffers_in_use();
            exchange(&mut queues, 1, 20_000);

            // The queue is full: accepted frames arrive, and rejected ones stay the sender's.
            peer.tell(b"r");
            let (mut taken, mut refusals) = (0u32, 0);
            let begun = Instant::now();
            while refusals < 100 {
                assert!(begun.elapsed() < PATIENCE, "never full");
                // Frames that the peer has sent back before its pause are counted as well.
                let sent = queues[0].transmit(&[frame(&[9; 100]); BURST]) as u32;
                taken += sent;
                refusals += u32::from(sent == 0);
                std::thread::yield_now();
            }
            peer.tell(b"g");
            let mut back = 0;
            until("all that was taken is back", || {
                back += queues[0].receive(BURST) as u32;
                back >= taken
            });
            assert_eq!((back, queues[0].send_errors()), (taken, 0));
            exchange(&mut queues, 2, 2000);
            // The next poll gives back the frames received last.
            assert_eq!((queues[0].receive(BURST), queues[1].receive(BURST)), (0, 0));
            assert_eq!(port.buffers_in_use(), resting, "every buffer is back");
            drop((queues, port));
            assert_eq!(eal.orphaned_pools(), 0);
        });
    }
}

#[test]
fn a_peer_is_killed_and_comes_back() {
    alone("a_peer_is_killed_and_comes_back", |socket| {
        let (_eal, port, mut queues) = open("server", socket);
        assert!(!port.is_up() && !queues[0].came_up());
        let resting = port.buffers_in_use();
        for round in 0..5 {
            let mut peer = Peer::start("client", socket);
            until("the link is up", || port.is_up());
            if round == 0 {
                until("the first queue says that it came up", || queues[0].came_up());
                assert!(!queues[0].came_up() && !queues[1].came_up(), "once, and no other queue");
            }
            exchange(&mut queues, round, 1000);
            // The peer is killed in the middle of it: it has frames of ours, and we may have some of its.
            peer.tell(b"r");
            for _ in 0..8 {
                queues[0].transmit(&[frame(&[1; 100]); BURST]);
            }
            drop(peer);
            until("the link is down", || !port.is_up());
            // The link is down: frames are dropped and counted, and the sender does not block.
            let before = queues[1].send_errors();
            until("frames are dropped", || queues[1].transmit(&[frame(&[1; 100])]) == 1);
            assert_eq!(queues[1].send_errors(), before + 1);
            assert_eq!((queues[0].receive(BURST), queues[1].receive(BURST)), (0, 0), "nothing comes from nobody");
        }
        assert_eq!(port.buffers_in_use(), resting, "every buffer is back");
    });
}

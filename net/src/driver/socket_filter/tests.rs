//! Tests the program with an interpreter of its own, against its expected decisions, and in the kernel.

use super::*;
use crate::driver::{Burst, DatagramDriver, UdpDriver, UdpOptions};
use crate::rpc::{MessageHeader, Operation, encode_message};
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Runs a program over a datagram's payload from `peer`, with a random word of the test's choice. It asserts what the
/// kernel checks of a program: jumps stay inside and lead forward, the last instruction returns.
fn lets_in(program: &[BpfInstruction], peer: SocketAddr, payload: &[u8], random: u32) -> bool {
    let udp = [&peer.port().to_be_bytes()[..], &[0; 6], payload].concat();
    let network: Vec<u8> = match peer.ip() {
        IpAddr::V4(ip) => [&[0x45; 12][..], &ip.octets(), &[127, 0, 0, 1]].concat(),
        IpAddr::V6(ip) => [&[0x60; 8][..], &ip.octets(), &[0; 16]].concat(),
    };
    let (mut a, mut x, mut scratch, mut at) = (0u32, 0u32, [0u32; 16], 0);
    let load = |k: u32, len: usize| -> Option<u32> {
        let (bytes, from) = match k {
            RANDOM => return Some(random),
            PROTOCOL => return Some(if peer.is_ipv4() { PROTOCOL_IPV4 } else { 0x86dd }),
            NETWORK..ANCILLARY => (&network, (k - NETWORK) as usize),
            _ => (&udp, k as usize),
        };
        let word = bytes.get(from..from + len)?;
        Some(word.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    };
    if program.is_empty() {
        return true;
    }
    assert!(program.len() <= MAX_INSTRUCTIONS && program.last().is_some_and(|last| last.code == RETURN));
    loop {
        let BpfInstruction { code, jt, jf, k } = program[at];
        at += 1;
        let jump = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            LOAD_WORD | LOAD_HALF | LOAD_BYTE => {
                let len = match code {
                    LOAD_WORD => 4,
                    LOAD_HALF => 2,
                    _ => 1,
                };
                let Some(word) = load(k, len) else { return false };
                a = word;
            }
            LOAD_X_SCRATCH => x = scratch[k as usize],
            STORE => scratch[k as usize] = a,
            MULTIPLY => a = a.wrapping_mul(k),
            XOR => a ^= k,
            XOR_X => a ^= x,
            JUMP => at += k as usize,
            JUMP_EQUAL => at += jump(a == k),
            JUMP_AT_LEAST => at += jump(a >= k),
            RETURN => return k != 0,
            _ => panic!("no such instruction: {code:#x}"),
        }
    }
}

fn plain(tenant: u32) -> Vec<u8> {
    let header = MessageHeader { flags: 0, operations: 1, tenant, session: 5, sequence: 1, acked: 0 };
    let mut message = Vec::new();
    encode_message(&header, &[Operation::get(1, b"key")], &mut message);
    [&crate::r2p2::header::single_header(crate::r2p2::header::R2p2Kind::Request, 7)[..], &message].concat()
}

fn sealed(tenant: u32) -> Vec<u8> {
    [&[0x5d, 1, 0, 0][..], &tenant.to_le_bytes(), &[9; 40]].concat()
}

fn part() -> Vec<u8> {
    [&[MAGIC, 24, 0, 0x80][..], &[0xff; 60]].concat()
}

fn peer(port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, 1), port).into()
}

#[test]
fn a_tenant_over_its_share_is_dropped_in_part_plain_or_sealed_and_others_are_not() {
    let throttle = EarlyDropFilter {
        tenants: vec![(7, 1 << 30), (0x0102_0304, 0)],
        keys: [1, 2, 3, 4, 5],
        ..EarlyDropFilter::default()
    };
    let program = throttle.program();
    for wrap in [plain, sealed] {
        assert!(lets_in(&program, peer(1), &wrap(7), (1 << 30) - 1), "below its share");
        assert!(!lets_in(&program, peer(1), &wrap(7), 1 << 30), "above it");
        assert!(!lets_in(&program, peer(1), &wrap(0x0102_0304), 0), "a share of nothing");
        for other in [0, 8, 0x0403_0201, u32::MAX] {
            assert!(lets_in(&program, peer(1), &wrap(other), u32::MAX), "tenant {other}");
        }
    }
    assert!(lets_in(&program, peer(1), &part(), u32::MAX), "a part of a longer message names no tenant");
    assert!(EarlyDropFilter::default().program().is_empty() && EarlyDropFilter::default().is_idle());
}

#[test]
fn unknown_senders_are_dropped_in_part_whatever_they_send_and_known_addresses_are_not() {
    for known in [0, 1, 8, 9, 100, MAX_VERIFIED_PEERS] {
        let known: Vec<SocketAddr> = (0..known as u16).map(|number| peer(1000 + number)).collect();
        let throttle = EarlyDropFilter {
            unauthenticated: Some(1 << 31),
            known: known.clone(),
            keys: [9, 99, 999, 77, 7],
            ..EarlyDropFilter::default()
        };
        let program = throttle.program();
        for datagram in [plain(7), sealed(7), part(), vec![0; 30]] {
            for friend in &known {
                assert!(lets_in(&program, *friend, &datagram, u32::MAX), "{friend} of {}", known.len());
            }
            for unknown in [peer(999), peer(1000 + known.len() as u16), (Ipv4Addr::new(10, 0, 0, 2), 1000).into()] {
                assert!(!lets_in(&program, unknown, &datagram, 1 << 31), "{unknown} of {}", known.len());
                assert!(lets_in(&program, unknown, &datagram, (1 << 31) - 1));
            }
        }
    }
    let many = (0..=MAX_VERIFIED_PEERS as u16).map(peer).collect();
    let throttle = EarlyDropFilter { unauthenticated: Some(0), known: many, ..EarlyDropFilter::default() };
    assert!(throttle.program().is_empty(), "more friends than a program can know: strangers are let in");
}

proptest! {
    #[test]
    fn the_program_decides_as_the_rules_say(
        tenants in prop::collection::vec((0u32..6, any::<u32>()), 0..4),
        unauthenticated in prop::option::of(any::<u32>()),
        known in prop::collection::vec((any::<bool>(), 0u16..40), 0..30),
        keys: [u32; 5],
        from in (any::<bool>(), 0u16..40),
        datagram in prop_oneof![
            (0u32..6).prop_map(plain),
            (0u32..6).prop_map(sealed),
            Just(part()),
            prop::collection::vec(any::<u8>(), 0..60),
        ],
        random: u32,
    ) {
        let address = |(old, port): (bool, u16)| -> SocketAddr {
            if old { peer(port) } else { ("fe80::1:2:3".parse::<std::net::Ipv6Addr>().unwrap(), port).into() }
        };
        let known: Vec<SocketAddr> = known.into_iter().map(address).collect();
        let throttle = EarlyDropFilter { tenants, unauthenticated, known, keys };
        let named = claimed_tenant(&datagram);
        let heavy = throttle.tenants.iter().find(|(tenant, _)| Some(*tenant) == named);
        let friend = throttle.known.contains(&address(from));
        let expected = match (heavy, throttle.unauthenticated) {
            (Some((_, share)), _) => random < *share,
            (None, Some(share)) if !friend => random < share,
            _ => true,
        };
        if datagram.len() >= 16 || throttle.is_idle() {
            prop_assert_eq!(lets_in(&throttle.program(), address(from), &datagram, random), expected);
        }
    }
}

fn collect(driver: &mut UdpDriver, burst: &mut Burst, until: usize) -> Vec<Vec<u8>> {
    let (waiter, mut all) = (driver.waiter(), Vec::new());
    let end = Instant::now() + Duration::from_secs(20);
    while all.len() < until && Instant::now() < end {
        if driver.receive(burst) == 0 {
            waiter.wait(Some(10_000), false).unwrap();
        }
        all.extend(burst.iter().map(|(_, datagram)| datagram.to_vec()));
    }
    all
}

#[test]
fn the_kernel_takes_the_program_and_decides_alike() {
    for bound in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(mut server) = UdpDriver::bind(bound.parse().unwrap(), UdpOptions::default()) else { continue };
        let mut burst = server.burst();
        let address = bound.parse::<SocketAddr>().unwrap();
        let (friend, unknown) = (UdpSocket::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
        let throttle = EarlyDropFilter {
            tenants: vec![(7, 0)],
            unauthenticated: Some(0),
            known: (1..60).map(peer).chain([friend.local_addr().unwrap()]).collect(),
            keys: [0x1234_5671, 0x89ab_cdef, 0x1111_7777, 0x3141_5927, 0x2718_2819],
        };
        if !server.set_filter(&throttle.program()) {
            eprintln!("this kernel takes no filters: nothing to see");
            return;
        }
        for datagram in [plain(7), plain(8), sealed(7), sealed(8), part()] {
            friend.send_to(&datagram, server.local()).unwrap();
            unknown.send_to(&datagram, server.local()).unwrap();
        }
        assert_eq!(collect(&mut server, &mut burst, 3), [plain(8), sealed(8), part()], "of the friend alone");
        // The last datagram of the unknown sender may still be under way.
        let end = Instant::now() + Duration::from_secs(20);
        while server.pressure().thrown_away < 7 {
            assert!(Instant::now() < end, "{:?}", server.pressure());
            std::thread::yield_now();
        }
        assert!(server.set_filter(&[]));
        unknown.send_to(&plain(7), server.local()).unwrap();
        assert_eq!(collect(&mut server, &mut burst, 1), [plain(7)], "lifted");
        let largest = EarlyDropFilter {
            tenants: (0..MAX_THROTTLED_TENANTS as u32).map(|tenant| (tenant, 1 << 31)).collect(),
            known: (0..MAX_VERIFIED_PEERS as u16).map(peer).collect(),
            ..throttle
        };
        assert!(server.set_filter(&largest.program()), "{} instructions", largest.program().len());
    }
}

#[test]
fn a_share_lets_in_about_as_much_in_the_kernel() {
    let mut server = UdpDriver::bind("127.0.0.1:0".parse().unwrap(), UdpOptions::default()).unwrap();
    let mut burst = server.burst();
    let throttle = EarlyDropFilter { tenants: vec![(7, u32::MAX / 4)], ..EarlyDropFilter::default() };
    if !server.set_filter(&throttle.program()) {
        return;
    }
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (waiter, end, mut came) = (server.waiter(), Instant::now() + Duration::from_secs(20), 0);
    for round in 0..40 {
        for _ in 0..100 {
            client.send_to(&plain(7), server.local()).unwrap();
        }
        // The kernel hands datagrams over when it has time to: one that is surely let in comes after the others.
        client.send_to(&plain(8), server.local()).unwrap();
        let mut last = false;
        while !last {
            assert!(Instant::now() < end, "the last datagram of round {round} does not come");
            if server.receive(&mut burst) == 0 {
                waiter.wait(Some(10_000), false).unwrap();
            }
            for (_, datagram) in burst.iter() {
                let counted = datagram == plain(7);
                came += usize::from(counted);
                last |= !counted;
            }
        }
    }
    // A thousand are to be expected; ten standard deviations to both sides.
    assert!((720..1280).contains(&came), "{came} of 4000");
}

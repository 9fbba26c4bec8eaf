mod alarm;
mod datagrams;
mod frames;
mod isolated;
mod path_mtus;
mod wire;
mod world;

use super::*;
use crate::driver::{DatagramDriver, Outbox};
use crate::r2p2::{DatagramSink, PeerAddr};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// A clock that stands still until a test advances it.
#[derive(Clone, Debug)]
pub(super) struct Time(Arc<AtomicU64>);

impl Time {
    pub(super) fn new() -> Time {
        Time(Arc::new(AtomicU64::new(1_000_000)))
    }

    pub(super) fn pass(&self, us: u64) {
        self.0.fetch_add(us, SeqCst);
    }

    pub(super) fn now_us(&self) -> u64 {
        self.0.load(SeqCst)
    }

    pub(super) fn clock(&self) -> StackClock {
        let time = Arc::clone(&self.0);
        Arc::new(move || time.load(SeqCst))
    }
}

pub(super) fn mac(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The options of host `number` of the tests' networks, with both families.
pub(super) fn options(number: u8) -> StackOptions {
    let v4 =
        InterfaceNetwork { address: IpAddr::from([10, 0, 0, number]), prefix: 24, gateway: Some(ip("10.0.0.254")) };
    let v6 = InterfaceNetwork { address: ip(&format!("fd00::{number:x}")), prefix: 64, gateway: Some(ip("fe80::254")) };
    StackOptions { networks: vec![v4, v6], ..StackOptions::new(v4, 7000) }
}

/// Creates a host's drivers, one for each worker.
pub(super) fn host(
    network: &MemoryNetwork,
    time: &Time,
    number: u8,
    options: StackOptions,
) -> Vec<StackDriver<MemoryPort>> {
    host_of(network, time, number, 1500, options)
}

/// The same, with packets of up to so many bytes.
pub(super) fn host_of(
    network: &MemoryNetwork,
    time: &Time,
    number: u8,
    mtu: usize,
    options: StackOptions,
) -> Vec<StackDriver<MemoryPort>> {
    let ports = network.interface(mac(number), mtu, options.workers);
    let interface = StackInterface::new(&ports[0], options, time.clock()).unwrap();
    let drivers = ports.into_iter().enumerate();
    drivers.map(|(index, port)| StackDriver::new(Arc::clone(&interface), index, port).unwrap()).collect()
}

pub(super) fn network() -> MemoryNetwork {
    MemoryNetwork::new(1, NetworkFaults::default(), 1000)
}

/// Sends one datagram.
pub(super) fn send(driver: &mut StackDriver<MemoryPort>, to: PeerAddr, datagram: &[u8]) {
    let mut outbox = Outbox::default();
    outbox.send(to, &[datagram]);
    driver.transmit(&mut outbox);
    assert!(outbox.is_empty());
}

/// Returns the received datagrams.
pub(super) fn receive(driver: &mut StackDriver<MemoryPort>) -> Vec<(PeerAddr, Vec<u8>)> {
    let mut burst = driver.burst();
    let mut all = Vec::new();
    while driver.receive(&mut burst) > 0 || !burst.has_drained() {
        all.extend(burst.iter().map(|(peer, datagram)| (peer, datagram.to_vec())));
    }
    all
}

/// Lets all drivers receive and answer until the network is empty, and returns the datagrams of each.
pub(super) fn settle(drivers: &mut [&mut StackDriver<MemoryPort>]) -> Vec<Vec<(PeerAddr, Vec<u8>)>> {
    let mut got: Vec<Vec<_>> = drivers.iter().map(|_| Vec::new()).collect();
    for _ in 0..10 {
        for (driver, got) in drivers.iter_mut().zip(&mut got) {
            got.extend(receive(driver));
        }
    }
    got
}

/// Receives, and expects no datagram.
pub(super) fn nothing(driver: &mut StackDriver<MemoryPort>) {
    assert_eq!(receive(driver), []);
}

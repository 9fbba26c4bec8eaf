//! A device with everything that a server's workers, or a client, need from it.

use super::device_error::DeviceError;
use super::kernel::check_kernel_addresses;
use super::open_port::FRAME_OVERHEAD;
use super::port::find_port;
use super::shared_port::SharedPort;
use super::{
    DmaMemory, DpdkError, DpdkPort, Eal, FlowError, FlowRule, InterruptsUnavailable, MergedPort, PortCounters,
    PortDescription, PortOptions, PortWatch, QueuePair, UdpRule,
};
use crate::driver::{
    AnyDriver, Burst, DatagramDriver, DriverCounters, DriverFactory, DriverWaiter, DriverWaker, Outbox, ReceivePressure,
};
use crate::limits::{DPDK_CONNECTIONS, DPDK_LINK_TIMEOUT_S, LEARNED_NEIGHBOURS};
use crate::r2p2::PeerAddr;
use crate::stack::{
    InterfaceNetwork, StackDriver, StackError, StackInterface, StackOptions, choose_client_port, monotonic_clock,
};
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The device and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// DPDK's own arguments.
    pub eal: Vec<String>,
    /// The device's name or number; empty: the only one.
    pub device: String,
    /// This host's addresses on it: one of each family at most.
    pub networks: Vec<InterfaceNetwork>,
    /// UDP port of the first worker; worker `n` has this port plus `n`.
    pub port: u16,
    /// Workers, a pair of queues each.
    pub workers: usize,
    /// Bytes of the largest IP packet; none: the device's own setting.
    pub mtu: Option<u16>,
    /// Let the device check and fill in checksums where it can.
    pub checksums: bool,
    /// See [`PortOptions::kept_buffers`].
    pub kept_buffers: u32,
    /// Whether idle workers sleep: then the device is asked for interrupts.
    pub sleeps: bool,
    /// See [`PortOptions::dma_from_tables`].
    pub dma_from_tables: bool,
    /// Receive only the workers' datagrams, by rules. The kernel, which has the same addresses, receives all other
    /// packets of the device. For a server's device.
    pub isolate: bool,
}

/// The path of a packet to its worker.
#[derive(Clone, Debug)]
pub enum PacketSteering {
    /// There is one worker.
    SingleWorker,
    /// The device steers, by a rule for each worker's port.
    Rules,
    /// The same, and the kernel receives all other packets.
    Isolated,
    /// The device spreads packets by addresses and ports, and workers hand over those of other workers.
    Rss(FlowError),
    /// Packets come to any queue, and its worker hands over those of other workers.
    HandedOver(FlowError),
}

impl fmt::Display for PacketSteering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PacketSteering::SingleWorker => f.write_str("one worker, one queue"),
            PacketSteering::Rules => f.write_str("the device brings each packet to its worker (flow rules)"),
            PacketSteering::Isolated => f.write_str(
                "the device brings each worker its packets (flow rules), and leaves all else to the kernel (isolated)",
            ),
            PacketSteering::Rss(why) => {
                write!(
                    f,
                    "the device spreads packets (RSS), workers hand over packets of other workers; no flow rules: {why}"
                )
            }
            PacketSteering::HandedOver(why) => {
                write!(f, "workers hand over packets of other workers; no flow rules: {why}")
            }
        }
    }
}

/// A server's device. Its drivers keep the parts that they need. It must live as long as they are used, for its rules.
#[derive(Debug)]
pub struct DpdkDevice {
    // Dropped before the port.
    flows: Vec<FlowRule>,
    steering: PacketSteering,
    interface: Arc<StackInterface>,
    port: DpdkPort,
}

impl DpdkDevice {
    /// Starts DPDK, opens the device, and returns a driver for each worker.
    ///
    /// # Errors
    /// [`DeviceError`]: the reason, and what to do. DPDK starts once in a process: further devices are opened with the
    /// same arguments.
    pub fn open(options: &DeviceOptions) -> Result<(DpdkDevice, Vec<StackDriver<QueuePair>>), DeviceError> {
        let (port, pairs) = open(options, |_| Ok(u16::try_from(options.workers).unwrap_or(u16::MAX)))?;
        let interface = new_interface(&pairs, options)?;
        let drivers = pairs.into_iter().enumerate().map(|(index, pair)| {
            let driver = StackDriver::new(Arc::clone(&interface), index, pair)?;
            Ok(driver)
        });
        let drivers = drivers.collect::<Result<Vec<_>, StackError>>()?;
        let (flows, steering) = if options.isolate { steer_isolated(&port, options)? } else { steer(&port, options) };
        Ok((DpdkDevice { flows, steering, interface, port }, drivers))
    }

    /// Returns how packets come to their workers.
    pub fn steering(&self) -> &PacketSteering {
        &self.steering
    }

    /// Returns the rules that the device keeps.
    pub fn rules(&self) -> impl Iterator<Item = &UdpRule> {
        self.flows.iter().map(FlowRule::rule)
    }

    /// Returns the device's description.
    pub fn info(&self) -> &PortDescription {
        self.port.info()
    }

    /// Returns whether the link is up.
    pub fn is_up(&self) -> bool {
        self.port.is_up()
    }

    /// Returns the device's counters.
    pub fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    /// Returns a watch, which reads the status without keeping the device open.
    pub fn watch(&self) -> PortWatch {
        self.port.watch()
    }

    /// Returns the reason why no interrupts wake the workers; none if they do.
    pub fn interrupts_unavailable(&self) -> Option<InterruptsUnavailable> {
        self.port.interrupts_unavailable()
    }

    /// Returns the number of packet buffers in use.
    pub fn buffers_in_use(&self) -> u32 {
        self.port.buffers_in_use()
    }

    /// Returns the memory that the device reads by itself, for tables whose values it sends in place. None if it can
    /// read any memory, or none but DPDK's.
    pub fn dma(&self) -> Option<&Arc<DmaMemory>> {
        self.port.dma()
    }

    /// Returns the state that the workers share.
    pub fn interface(&self) -> &Arc<StackInterface> {
        &self.interface
    }
}

impl fmt::Display for DpdkDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortDescription { name, driver, mac, mtu, .. } = self.info();
        let values = match (self.port.copies(), self.dma()) {
            (None, None) => "sent from where they are stored".to_owned(),
            (None, Some(_)) => "sent from where they are stored, which the device reads".to_owned(),
            (Some(why), _) => format!("copied into packets, since {why}"),
        };
        write!(f, "{name} ({driver}, {mac}, packets of {mtu} bytes, large values {values}): {}", self.steering)
    }
}

/// Starts DPDK and opens the device, with the number of queues that `queues` returns for it.
fn open(
    options: &DeviceOptions,
    queues: impl FnOnce(&PortDescription) -> Result<u16, DeviceError>,
) -> Result<(DpdkPort, Vec<QueuePair>), DeviceError> {
    // Checked before DPDK starts, which it does once.
    options.networks.iter().try_for_each(InterfaceNetwork::check)?;
    let eal = shared_eal(&options.eal)?;
    // Checked before the port is opened: over shared memory, opening it connects it.
    let info = find_port(&eal, &options.device)?;
    check_memif_buffers(&info, options)?;
    let queues = queues(&info)?;
    let DeviceOptions { mtu, checksums, kept_buffers, sleeps: interrupts, isolate, dma_from_tables, .. } = *options;
    let port_options =
        PortOptions { mtu, checksums, kept_buffers, interrupts, isolate, dma_from_tables, ..PortOptions::new(queues) };
    let opened = DpdkPort::open(&eal, &options.device, &port_options).map_err(|error| match error {
        DpdkError::Isolation { why, .. } => {
            DeviceError::Isolation { device: info.name.clone(), driver: info.driver.clone(), why }
        }
        error => error.into(),
    })?;
    if isolate {
        // Checked after the device's abilities, which are the same at any address.
        check_kernel_addresses(&info, &options.networks)?;
    }
    Ok(opened)
}

/// Checks that a packet fits one buffer of memif's ring: DPDK 22.11 corrupts packets in several. memif's client makes
/// the rings.
fn check_memif_buffers(info: &PortDescription, options: &DeviceOptions) -> Result<(), DeviceError> {
    if !info.is_shared_memory() {
        return Ok(());
    }
    let mtu = options.mtu.unwrap_or(info.mtu);
    let is_this = |text: &&str| text.split(',').next() == Some(info.name.as_str());
    let words = options.eal.iter().map(|word| word.strip_prefix("--vdev=").unwrap_or(word));
    let Some(device) = words.filter(|text| text.contains(',')).find(is_this) else { return Ok(()) };
    let value = |name: &str| device.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    if value("role").is_some_and(|role| role != "client") {
        return Ok(());
    }
    let buffer_bytes = value("bsize").and_then(|bytes| bytes.parse().ok()).unwrap_or(MEMIF_BUFFER_BYTES);
    let needed = u32::from(mtu) + u32::from(FRAME_OVERHEAD);
    if needed <= buffer_bytes {
        return Ok(());
    }
    Err(DeviceError::MemifBufferSize { device: info.name.clone(), mtu, buffer_bytes, needed })
}

/// DPDK as it was started for devices of this process, with its arguments.
static SHARED_EAL: Mutex<Option<(Vec<String>, Weak<Eal>)>> = Mutex::new(None);

/// Starts DPDK, which can be done once. While it runs, callers with the same arguments share it.
pub(super) fn shared_eal(arguments: &[String]) -> Result<Arc<Eal>, DpdkError> {
    let mut running = SHARED_EAL.lock().unwrap_or_else(PoisonError::into_inner);
    let same = running.as_ref().filter(|(started_with, _)| started_with == arguments);
    if let Some(eal) = same.and_then(|(_, eal)| eal.upgrade()) {
        return Ok(eal);
    }
    let eal = Eal::start(arguments)?;
    *running = Some((arguments.to_vec(), Arc::downgrade(&eal)));
    Ok(eal)
}

fn new_interface(pairs: &[QueuePair], options: &DeviceOptions) -> Result<Arc<StackInterface>, DeviceError> {
    let first = pairs.first().ok_or(StackError::Workers { workers: 0, port: options.port })?;
    let mut stack = StackOptions::of(&options.networks, options.port, options.workers)?;
    if options.isolate {
        stack = StackOptions { isolated: true, neighbours: LEARNED_NEIGHBOURS, ..stack };
    }
    Ok(StackInterface::new(first, stack, monotonic_clock())?)
}

/// Has the device keep a rule for each worker and family, or finds out how packets are steered without rules.
fn steer(port: &DpdkPort, options: &DeviceOptions) -> (Vec<FlowRule>, PacketSteering) {
    if options.workers <= 1 {
        return (Vec::new(), PacketSteering::SingleWorker);
    }
    match create_worker_rules(port, options) {
        Ok(flows) => (flows, PacketSteering::Rules),
        Err(why) if port.info().supports_rss => (Vec::new(), PacketSteering::Rss(why)),
        Err(why) => (Vec::new(), PacketSteering::HandedOver(why)),
    }
}

/// Has a device that is shared with the kernel keep a rule for each worker and family. Without these no packet would
/// come.
fn steer_isolated(port: &DpdkPort, options: &DeviceOptions) -> Result<(Vec<FlowRule>, PacketSteering), DeviceError> {
    let refused = |why| DeviceError::IsolatedRules { device: port.info().name.clone(), why };
    Ok((create_worker_rules(port, options).map_err(refused)?, PacketSteering::Isolated))
}

/// Creates a rule for each worker and family.
fn create_worker_rules(port: &DpdkPort, options: &DeviceOptions) -> Result<Vec<FlowRule>, FlowError> {
    let rules = |to_address: bool| {
        let of = move |network: &InterfaceNetwork, worker: usize| {
            let (port, queue) = (options.port.saturating_add(worker as u16), worker as u16);
            match to_address {
                true => UdpRule::to(network.address, port, queue),
                false => UdpRule::any(network.address.is_ipv6(), port, queue),
            }
        };
        options.networks.iter().flat_map(move |network| (0..options.workers).map(move |worker| of(network, worker)))
    };
    // Some drivers accept rules only without an address.
    let isolated = create_rules(port, rules(true));
    // On a shared device those would catch packets for the kernel's other addresses, too.
    if options.isolate { isolated } else { isolated.or_else(|_| create_rules(port, rules(false))) }
}

/// Creates all of these rules, or none.
fn create_rules(port: &DpdkPort, rules: impl Iterator<Item = UdpRule> + Clone) -> Result<Vec<FlowRule>, FlowError> {
    rules.clone().try_for_each(|rule| port.validate(&rule))?;
    rules.map(|rule| port.create(rule)).collect()
}

/// A client's device: many connections, each at a UDP port of its own, over all of the device's queues.
#[derive(Debug)]
pub struct ClientDevice {
    drivers: Arc<Mutex<VecDeque<SharedDriver>>>,
    idle_port: IdlePort,
    interface: Arc<StackInterface>,
    port: DpdkPort,
}

/// Returns the number of a client's queues: the number asked for, or the number that the device needs for a server with
/// so many workers. memif's driver polls every queue of its own side, whether or not the peer has it too. Nothing tells
/// the server how many queues the peer has.
fn client_queues(info: &PortDescription, requested: Option<u16>, workers: usize) -> Result<u16, DeviceError> {
    if !info.is_shared_memory() {
        return Ok(requested.unwrap_or(1));
    }
    match requested {
        Some(queues) if usize::from(queues) != workers => {
            Err(DeviceError::MemifQueues { device: info.name.clone(), queues, workers })
        }
        _ => Ok(u16::try_from(workers).unwrap_or(u16::MAX)),
    }
}

/// Bytes of a buffer in memif's rings, unless set otherwise.
const MEMIF_BUFFER_BYTES: u32 = 2048;

impl ClientDevice {
    /// Starts DPDK and opens the device, to talk to a server that has `options.workers` workers. Its `port` is ignored.
    /// Default of `queues`: over shared memory (memif) as many as the server has workers, else one.
    ///
    /// # Errors
    /// As [`DpdkDevice::open`]; also if the number of queues over memif differs from the server's workers, since the
    /// server would then read and write memory outside of the rings.
    pub fn open(options: &DeviceOptions, server: SocketAddr, queues: Option<u16>) -> Result<ClientDevice, DeviceError> {
        // A thread that waits for a client's connection polls the device by the clock: another thread uses it
        // meanwhile.
        let options = &DeviceOptions { sleeps: false, isolate: false, dma_from_tables: false, ..options.clone() };
        let (port, pairs) = open(options, |info| client_queues(info, queues, options.workers))?;
        // An announcement before the link is up is lost; then neighbours would keep the Ethernet address of an earlier
        // host with this address.
        let begun = Instant::now();
        while !port.is_up() {
            if begun.elapsed() > Duration::from_secs(DPDK_LINK_TIMEOUT_S) {
                return Err(DeviceError::NoLink(port.info().name.clone()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let own = choose_client_port();
        let interface =
            new_interface(&pairs, &DeviceOptions { workers: DPDK_CONNECTIONS, port: own, ..options.clone() })?;
        let merged = MergedPort::new(pairs, server.port()).ok_or(StackError::Workers { workers: 0, port: own })?;
        let mut merged = Some(Box::new(merged));
        let mut drivers = VecDeque::new();
        for index in 0..DPDK_CONNECTIONS {
            let mut driver = StackDriver::new(Arc::clone(&interface), index, SharedPort::new(merged.take()))?;
            merged = driver.port_mut().take_back();
            drivers.push_back(Arc::new(Mutex::new(driver)));
        }
        Ok(ClientDevice {
            drivers: Arc::new(Mutex::new(drivers)),
            idle_port: Arc::new(Mutex::new(merged)),
            interface,
            port,
        })
    }

    /// Returns whether the link is up.
    pub fn is_up(&self) -> bool {
        self.port.is_up()
    }

    /// Returns the device's description.
    pub fn info(&self) -> &PortDescription {
        self.port.info()
    }

    /// Returns the number of packet buffers in use.
    pub fn buffers_in_use(&self) -> u32 {
        self.port.buffers_in_use()
    }

    /// Returns the state that the connections share.
    pub fn interface(&self) -> &Arc<StackInterface> {
        &self.interface
    }
}

impl DriverFactory for ClientDevice {
    fn open(&self) -> Result<AnyDriver, String> {
        // The driver that was given back last is lent last, so that packets for its earlier connection have time to
        // come.
        let driver = self.drivers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let driver = driver.ok_or_else(|| {
            format!("a device has {DPDK_CONNECTIONS} connections at a time: use fewer, with more under way")
        })?;
        let (home, idle_port) = (Arc::clone(&self.drivers), Arc::clone(&self.idle_port));
        Ok(AnyDriver::other(PooledDriver { driver, home, idle_port }))
    }
}

/// A driver that one connection uses at a time, so that its lock is always free.
type SharedDriver = Arc<Mutex<StackDriver<SharedPort>>>;

/// The port while no connection uses it.
type IdlePort = Arc<Mutex<Option<Box<MergedPort>>>>;

/// The driver while a connection uses it.
struct PooledDriver {
    driver: SharedDriver,
    home: Arc<Mutex<VecDeque<SharedDriver>>>,
    idle_port: IdlePort,
}

impl PooledDriver {
    fn driver(&self) -> MutexGuard<'_, StackDriver<SharedPort>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` with the port, while no other connection uses it. All received frames are handled by then: they lie
    /// in the device's buffers, and are not copied for the other connections.
    fn with_port<T>(&self, work: impl FnOnce(&mut StackDriver<SharedPort>) -> T) -> T {
        let mut driver = self.driver();
        let mut idle_port = self.idle_port.lock().unwrap_or_else(PoisonError::into_inner);
        driver.port_mut().give(idle_port.take());
        let done = work(&mut driver);
        *idle_port = driver.port_mut().take_back();
        done
    }
}

impl Drop for PooledDriver {
    fn drop(&mut self) {
        self.home.lock().unwrap_or_else(PoisonError::into_inner).push_back(Arc::clone(&self.driver));
    }
}

impl DatagramDriver for PooledDriver {
    fn local(&self) -> PeerAddr {
        self.driver().local()
    }

    fn burst(&self) -> Burst {
        self.driver().burst()
    }

    fn receive(&mut self, burst: &mut Burst) -> usize {
        self.with_port(|driver| driver.receive(burst))
    }

    fn transmit(&mut self, outbox: &mut Outbox) -> usize {
        self.with_port(|driver| driver.transmit(outbox))
    }

    fn waiter(&self) -> DriverWaiter {
        self.driver().waiter()
    }

    fn waker(&self) -> DriverWaker {
        self.driver().waker()
    }

    fn pressure(&mut self) -> ReceivePressure {
        self.with_port(|driver| driver.pressure())
    }

    fn counters(&self) -> DriverCounters {
        self.with_port(|driver| driver.counters())
    }

    fn max_datagram(&self) -> usize {
        self.driver().max_datagram()
    }

    fn usual_datagram(&self) -> usize {
        self.driver().usual_datagram()
    }

    fn outbox(&self) -> Outbox {
        self.driver().outbox()
    }

    fn details(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.driver().details(each);
    }
}

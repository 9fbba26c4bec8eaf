//! Opens the network of the workers' datagrams: kernel sockets, packet sockets, or the queues of a device.

use sandstorm_net::driver::{AnyDriver, DatagramDriver, UdpDriver, UdpOptions};
use sandstorm_net::rx_budget::RxBufferBudget;
use sandstorm_net::stack::{InterfaceOptions, open_interface};
use std::net::SocketAddr;
use std::sync::Arc;

use super::latency_ledger::IS_OBSERVED;
use super::options::{NetworkOptions, WorkerOptions, WorkerStartError};
use sandstorm_metrics::DeviceProbe;
#[cfg(feature = "dpdk")]
use sandstorm_metrics::DeviceState;

/// The network, open.
pub(super) struct OpenNetwork {
    /// The drivers, one for each worker.
    pub(super) drivers: Vec<AnyDriver>,
    /// The device buffers of each one's queue in which values may stay; none for other drivers.
    pub(super) rx_budgets: Vec<Option<Arc<RxBufferBudget>>>,
    /// A description: the network, and the mechanism that brings packets to their workers.
    pub(super) about: String,
    pub(super) device: DeviceHandle,
}

/// A handle that stays open while the drivers are used.
#[cfg(feature = "dpdk")]
pub(super) type DeviceHandle = Option<sandstorm_net::dpdk::DpdkDevice>;
/// No handle is needed.
#[cfg(not(feature = "dpdk"))]
pub(super) type DeviceHandle = ();

/// The probe of the device's state.
#[cfg(feature = "dpdk")]
pub(super) fn device_state_reader(device: &DeviceHandle) -> Option<DeviceProbe> {
    use sandstorm_net::dpdk::{InterruptsUnavailable, PortCounters, PortStatus};
    let device = device.as_ref()?;
    let (watch, is_peer_process) = (device.watch(), device.info().is_shared_memory());
    Some(Box::new(move || {
        let PortStatus { up, refused, counters, interrupts_unavailable } = watch.look()?;
        let PortCounters { missed, no_buffer, receive_errors, send_errors, rx_retained, rx_copied, .. } = counters;
        let PortCounters { in_place, copied, reads_bytes, interrupts, .. } = counters;
        let wakes = match interrupts_unavailable {
            None => "interrupt".to_owned(),
            Some(InterruptsUnavailable::NotRequested) => "nothing (workers never sleep)".to_owned(),
            Some(why) => format!("clock ({why})"),
        };
        Some(DeviceState {
            up,
            is_peer_process,
            wakes,
            missed,
            no_buffer,
            receive_errors,
            send_errors,
            rx_retained,
            rx_copied,
            in_place,
            copied,
            reads_bytes,
            refused: refused.map(|why| why.to_string()),
            interrupts,
        })
    }))
}

/// The probe: there is no device.
#[cfg(not(feature = "dpdk"))]
pub(super) fn device_state_reader(_device: &DeviceHandle) -> Option<DeviceProbe> {
    None
}

/// Packet buffers in use.
#[cfg(feature = "dpdk")]
pub(super) fn buffers_in_use(device: &DeviceHandle) -> Option<u32> {
    device.as_ref().map(sandstorm_net::dpdk::DpdkDevice::buffers_in_use)
}

/// Packet buffers in use: there is no device.
#[cfg(not(feature = "dpdk"))]
pub(super) fn buffers_in_use((): &DeviceHandle) -> Option<u32> {
    None
}

/// Opens a driver for each worker.
pub(super) fn open_network(options: &WorkerOptions) -> Result<OpenNetwork, WorkerStartError> {
    match &options.network {
        NetworkOptions::Sockets(udp) => {
            let drivers = bind_all(options, *udp)?.into_iter().map(AnyDriver::from).collect();
            Ok(OpenNetwork {
                drivers,
                rx_budgets: Vec::new(),
                about: "kernel sockets".to_owned(),
                device: DeviceHandle::default(),
            })
        }
        NetworkOptions::Packets(interface) => {
            let (port, workers) = (options.address.port(), options.workers);
            let (about, drivers) = open_interface(&InterfaceOptions { port, workers, ..interface.clone() })?;
            let about = format!("packet sockets, {about}");
            tracing::info!("network: {about}");
            let drivers = drivers.into_iter().map(AnyDriver::other).collect();
            Ok(OpenNetwork { drivers, rx_budgets: Vec::new(), about, device: DeviceHandle::default() })
        }
        #[cfg(feature = "dpdk")]
        NetworkOptions::Device(device) => {
            let (port, workers) = (options.address.port(), options.workers);
            let sleeps = !options.poll;
            let wanted = sandstorm_net::dpdk::DeviceOptions { port, workers, sleeps, ..device.clone() };
            let (device, drivers) = sandstorm_net::dpdk::DpdkDevice::open(&wanted)?;
            if let Some(dma) = device.dma() {
                sandstorm_store::set_extent_source(Arc::<sandstorm_net::dpdk::DmaMemory>::clone(dma));
            }
            let about = format!("DPDK, {device}");
            tracing::info!("network: {about}");
            let rx_budgets = drivers.iter().map(|driver| driver.port().rx_budget().cloned()).collect();
            let drivers = drivers.into_iter().map(AnyDriver::other).collect();
            Ok(OpenNetwork { drivers, rx_budgets, about, device: Some(device) })
        }
    }
}

/// Attempts to find adjacent free ports for a base port of 0: a free port's neighbours are mostly free, too.
const FREE_PORT_TRIES: usize = 32;

fn bind_all(options: &WorkerOptions, udp: UdpOptions) -> Result<Vec<UdpDriver>, WorkerStartError> {
    let tries = if options.address.port() == 0 { FREE_PORT_TRIES } else { 1 };
    let mut last = WorkerStartError::Workers(options.workers);
    for _ in 0..tries {
        match bind_consecutive(options.address, options.workers, udp) {
            Ok(drivers) => return Ok(drivers),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind_consecutive(address: SocketAddr, workers: usize, udp: UdpOptions) -> Result<Vec<UdpDriver>, WorkerStartError> {
    // What waits in a socket waits for its worker.
    let udp = UdpOptions { receive_times: IS_OBSERVED, ..udp };
    let first = UdpDriver::bind(address, udp)?;
    let mut address = first.local();
    let mut drivers = vec![first];
    while drivers.len() < workers {
        address.set_port(address.port().checked_add(1).ok_or(WorkerStartError::Workers(workers))?);
        drivers.push(UdpDriver::bind(address, udp)?);
    }
    Ok(drivers)
}

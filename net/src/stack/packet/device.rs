//! A network interface of Linux with everything that a server's workers, or a client, need from it.

use super::{PacketError, PacketOptions, PacketPort, sys};
use crate::driver::{AnyDriver, DriverFactory};
use crate::limits::CLIENT_PORTS;
use crate::stack::{
    FramePort, InterfaceNetwork, StackDriver, StackError, StackInterface, StackOptions, choose_client_port,
    monotonic_clock,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use thiserror::Error;

/// The interface and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceOptions {
    /// The interface's name, such as `eth1`.
    pub interface: String,
    /// This host's addresses there, which the kernel does not have: one of each family at most.
    pub networks: Vec<InterfaceNetwork>,
    /// UDP port of the first worker; worker `n` has this port plus `n`.
    pub port: u16,
    /// Workers, a packet socket each.
    pub workers: usize,
    /// The options of the sockets.
    pub packets: PacketOptions,
}

/// The reason why an interface cannot be used.
#[derive(Debug, Error)]
pub enum InterfaceError {
    /// No packet socket can be opened.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The addresses cannot be used.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// No frame can come or go there.
    #[error("the network interface {0:?} is down: bring it up with `ip link set dev {0} up`")]
    Down(String),
    /// The kernel has the address, too, and would answer for it.
    #[error(
        "the kernel has the address {0} on {1}, and would answer for it, too: choose another of that network, or take it away with \
         `ip addr del`"
    )]
    KernelOwned(IpAddr, String),
}

impl InterfaceOptions {
    /// Opens packet sockets, and checks the addresses that the kernel has on its interfaces.
    fn ports(&self, workers: usize) -> Result<Vec<PacketPort>, InterfaceError> {
        self.networks.iter().try_for_each(InterfaceNetwork::check)?;
        let ports = PacketPort::open_all(&self.interface, self.packets, self.port, workers)?;
        if ports.iter().any(|port| !port.was_up()) {
            return Err(InterfaceError::Down(self.interface.clone()));
        }
        let kernels = sys::kernel_addresses();
        let both = self.networks.iter().find_map(|own| kernels.iter().find(|(ip, _)| *ip == own.address));
        match both {
            Some((ip, name)) => Err(InterfaceError::KernelOwned(*ip, name.clone())),
            None => Ok(ports),
        }
    }

    fn stack(&self) -> Result<StackOptions, StackError> {
        StackOptions::of(&self.networks, self.port, self.workers)
    }
}

/// Opens an interface in the calling thread's network namespace. Returns a description of it in words, and a driver for
/// each worker.
///
/// # Errors
/// [`InterfaceError`]: the reason, and what to do.
pub fn open_interface(options: &InterfaceOptions) -> Result<(String, Vec<StackDriver<PacketPort>>), InterfaceError> {
    let stack = options.stack()?;
    let ports = options.ports(options.workers)?;
    let first = ports.first().ok_or(StackError::Workers { workers: options.workers, port: options.port })?;
    let steering = if options.workers > 1 { "the kernel brings each packet to its worker" } else { "one worker" };
    let about = format!("{} ({}, packets of {} bytes): {steering}", options.interface, first.mac(), first.mtu());
    let interface = StackInterface::new(first, stack, monotonic_clock())?;
    let numbered = ports.into_iter().enumerate();
    let drivers = numbered.map(|(index, port)| StackDriver::new(Arc::clone(&interface), index, port));
    Ok((about, drivers.collect::<Result<Vec<_>, StackError>>()?))
}

/// A client's interface: a packet socket, and a UDP port, for each connection.
#[derive(Debug)]
pub struct ClientInterface {
    options: InterfaceOptions,
    /// The next connection's port, less the first of [`CLIENT_PORTS`].
    next: AtomicU16,
}

impl ClientInterface {
    /// Creates a client at these addresses. `port` and `workers` of the options are ignored.
    ///
    /// # Errors
    /// As [`open_interface`].
    pub fn new(options: InterfaceOptions) -> Result<ClientInterface, InterfaceError> {
        let next = AtomicU16::new(choose_client_port() - CLIENT_PORTS.start);
        let client = ClientInterface { options: InterfaceOptions { workers: 1, ..options }, next };
        client.driver()?;
        Ok(client)
    }

    fn driver(&self) -> Result<StackDriver<PacketPort>, InterfaceError> {
        let port = CLIENT_PORTS.start + self.next.fetch_add(1, Relaxed) % CLIENT_PORTS.len() as u16;
        let options = InterfaceOptions { port, ..self.options.clone() };
        let mut ports = options.ports(1)?;
        let opened = ports.pop().ok_or(StackError::Workers { workers: 1, port })?;
        // Every socket sees the frames for all connections.
        let stack = StackOptions { answer_closed_ports: false, ..options.stack()? };
        Ok(StackDriver::new(StackInterface::new(&opened, stack, monotonic_clock())?, 0, opened)?)
    }
}

impl DriverFactory for ClientInterface {
    fn open(&self) -> Result<AnyDriver, String> {
        self.driver().map(AnyDriver::other).map_err(|error| error.to_string())
    }
}

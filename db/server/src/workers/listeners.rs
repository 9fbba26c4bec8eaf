//! Where workers listen for connections: addresses of TCP, with TLS or without, and Unix sockets.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use sandstorm_net::driver::{StreamListener, UdpDriver, UdpOptions};

use super::connections::{StreamPort, UdpPort};
use super::start::{WorkerOptions, WorkerStartError};
use sandstorm_catalog::DirectorySnapshot;
use sandstorm_dialects::PortService;

/// A port for connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Where it is.
    pub address: PortAddress,
    /// Whether datagrams are served there, too.
    pub udp: bool,
    /// What it is for.
    pub service: PortService,
}

/// Where a port for connections is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortAddress {
    /// An address of TCP. Port 0: any that is free.
    Tcp(SocketAddr),
    /// The same, with TLS.
    Tls(SocketAddr),
    /// A Unix socket: those connect whom its file's mode lets write to it.
    Unix {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortAddress::Tcp(address) => write!(f, "{address}"),
            PortAddress::Tls(address) => write!(f, "tls:{address}"),
            PortAddress::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

impl ListenerConfig {
    /// Those of these ports whose tenant or table is not there, in a line each that says what to do.
    pub fn in_want(ports: &[ListenerConfig], snapshot: &DirectorySnapshot) -> Vec<String> {
        let said = |port: &ListenerConfig| Some(format!("{}: {}", port.address, port.service.missing(snapshot)?));
        ports.iter().filter_map(said).collect()
    }

    /// Its address, if it has one of TCP.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self.address {
            PortAddress::Tcp(address) | PortAddress::Tls(address) => Some(address),
            PortAddress::Unix { .. } => None,
        }
    }

    /// Whether TLS is spoken there.
    pub fn is_tls(&self) -> bool {
        matches!(self.address, PortAddress::Tls(_))
    }
}

/// What one worker listens at.
#[derive(Default)]
pub(super) struct ConnectionPorts {
    pub(super) stream_ports: Vec<StreamPort>,
    pub(super) udp_ports: Vec<UdpPort>,
}

/// Listens where it is asked for: the ports as they were bound, and each worker's doors.
pub(super) fn bind_listeners(
    options: &WorkerOptions,
) -> Result<(Vec<ListenerConfig>, Vec<ConnectionPorts>), WorkerStartError> {
    let mut doors: Vec<ConnectionPorts> = (0..options.workers).map(|_| ConnectionPorts::default()).collect();
    let mut ports = Vec::new();
    for at in &options.listen {
        let mut bound = at.clone();
        let listeners = match &mut bound.address {
            PortAddress::Tcp(address) | PortAddress::Tls(address) => {
                let listeners = StreamListener::bind(*address, options.workers)?;
                *address = listeners.first().and_then(StreamListener::local).unwrap_or(*address);
                listeners
            }
            PortAddress::Unix { path, mode } => StreamListener::bind_unix(path, *mode, options.workers)?,
        };
        let tls = match (at.is_tls(), &options.tls) {
            (false, _) => None,
            (true, Some(tls)) => Some(Arc::clone(tls)),
            (true, None) => return Err(WorkerStartError::NoCertificate(bound.address.to_string())),
        };
        let service = Arc::new(at.service.clone());
        for (doors, listener) in doors.iter_mut().zip(listeners) {
            doors.stream_ports.push(StreamPort { listener, service: Arc::clone(&service), tls: tls.clone() });
            if at.udp
                && let PortAddress::Tcp(address) = bound.address
            {
                let driver = UdpDriver::bind(address, UdpOptions { shared: true, ..options.network.udp() })?;
                doors.udp_ports.push(UdpPort::new(driver, &service));
            }
        }
        ports.push(bound);
    }
    Ok((ports, doors))
}

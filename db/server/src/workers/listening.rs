//! Where workers listen for connections: addresses of TCP, with TLS or without, and Unix sockets.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use sandstorm_net::driver::{Listener, UdpDriver, UdpOptions};

use super::connections::{Gate, Wicket};
use super::start::{WorkerOptions, WorkerStartError};
use sandstorm_catalog::Snapshot;
use sandstorm_dialects::Entrance;

/// A port for connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAt {
    /// Where it is.
    pub address: PortAddress,
    /// Whether datagrams are served there, too.
    pub udp: bool,
    /// What it is for.
    pub entrance: Entrance,
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

impl ListenAt {
    /// Those of these ports whose tenant or table is not there, in a line each that says what to do.
    pub fn in_want(ports: &[ListenAt], snapshot: &Snapshot) -> Vec<String> {
        let said = |port: &ListenAt| Some(format!("{}: {}", port.address, port.entrance.missing(snapshot)?));
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
pub(super) struct Doors {
    pub(super) gates: Vec<Gate>,
    pub(super) wickets: Vec<Wicket>,
}

/// Listens where it is asked for: the ports as they were bound, and each worker's doors.
pub(super) fn listen(options: &WorkerOptions) -> Result<(Vec<ListenAt>, Vec<Doors>), WorkerStartError> {
    let mut doors: Vec<Doors> = (0..options.workers).map(|_| Doors::default()).collect();
    let mut ports = Vec::new();
    for at in &options.listen {
        let mut bound = at.clone();
        let listeners = match &mut bound.address {
            PortAddress::Tcp(address) | PortAddress::Tls(address) => {
                let listeners = Listener::bind(*address, options.workers)?;
                *address = listeners.first().and_then(Listener::local).unwrap_or(*address);
                listeners
            }
            PortAddress::Unix { path, mode } => Listener::bind_unix(path, *mode, options.workers)?,
        };
        let tls = match (at.is_tls(), &options.tls) {
            (false, _) => None,
            (true, Some(tls)) => Some(Arc::clone(tls)),
            (true, None) => return Err(WorkerStartError::NoCertificate(bound.address.to_string())),
        };
        let entrance = Arc::new(at.entrance.clone());
        for (doors, listener) in doors.iter_mut().zip(listeners) {
            doors.gates.push(Gate { listener, entrance: Arc::clone(&entrance), tls: tls.clone() });
            if at.udp
                && let PortAddress::Tcp(address) = bound.address
            {
                let driver = UdpDriver::bind(address, UdpOptions { shared: true, ..options.network.udp() })?;
                doors.wickets.push(Wicket::new(driver, &entrance));
            }
        }
        ports.push(bound);
    }
    Ok((ports, doors))
}

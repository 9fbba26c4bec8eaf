//! The ports for connections, as they are configured.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use sandstorm_catalog::DirectorySnapshot;
use sandstorm_dialects::PortService;

/// A port for connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its address.
    pub address: PortAddress,
    /// Whether datagrams are served there, too.
    pub udp: bool,
    /// The protocol and the tenant that it serves.
    pub service: PortService,
}

/// The address of a port for connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortAddress {
    /// An address of TCP. Port 0: any that is free.
    Tcp(SocketAddr),
    /// The same, with TLS.
    Tls(SocketAddr),
    /// A Unix socket: a process may connect if the file's mode lets it write.
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
    /// Returns a line for each port whose tenant or table does not exist, with the remedy.
    pub fn in_want(ports: &[ListenerConfig], snapshot: &DirectorySnapshot) -> Vec<String> {
        let missing = |port: &ListenerConfig| Some(format!("{}: {}", port.address, port.service.missing(snapshot)?));
        ports.iter().filter_map(missing).collect()
    }

    /// Its TCP address, if it has one.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self.address {
            PortAddress::Tcp(address) | PortAddress::Tls(address) => Some(address),
            PortAddress::Unix { .. } => None,
        }
    }

    /// Whether TLS is used there.
    pub fn is_tls(&self) -> bool {
        matches!(self.address, PortAddress::Tls(_))
    }
}

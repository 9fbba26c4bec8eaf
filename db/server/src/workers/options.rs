//! Options of the workers, and the errors of their start.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use sandstorm_metrics::limits::MAX_WORKERS;
use sandstorm_net::driver::{ListenError, UdpBindError, UdpOptions};
use sandstorm_net::forwarding::CommandForwarder;
use sandstorm_net::stack::InterfaceOptions;
use tokio_rustls::rustls::ServerConfig;

use super::listener_config::ListenerConfig;

/// Options of the workers.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Number of workers, 1 to [`MAX_WORKERS`].
    pub workers: usize,
    /// Address of the first worker's port; worker `n` has this port plus `n`. Port 0: any that are free, in a row.
    pub address: SocketAddr,
    /// Bind each worker to a processor.
    pub pin: bool,
    /// Never sleep: lowest latency, a whole processor each.
    pub poll: bool,
    /// Whether idle workers take over work of others.
    pub steal: bool,
    /// Invocations that wait for a record take turns.
    pub interleave: bool,
    /// Large values are sent from where they are stored.
    pub zero_copy: bool,
    /// The network of the workers' datagrams.
    pub network: NetworkOptions,
    /// Whether other machines may use closed tenants' data without a sealed session.
    pub allow_plaintext: bool,
    /// Ports for connections; every worker listens there.
    pub listen: Vec<ListenerConfig>,
    /// TLS of those that have it.
    pub tls: Option<Arc<ServerConfig>>,
    /// In a cluster: sends commands of memcached clients to the servers that have their keys.
    pub forwarder: Option<Arc<dyn CommandForwarder>>,
}

/// The reason that the workers did not start.
#[derive(Debug, thiserror::Error)]
pub enum WorkerStartError {
    /// A port cannot be bound.
    #[error(transparent)]
    Bind(#[from] UdpBindError),
    /// A port for connections cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The interface cannot be used.
    #[error(transparent)]
    Interface(#[from] sandstorm_net::stack::InterfaceError),
    /// The device cannot be used.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Device(#[from] sandstorm_net::dpdk::DeviceError),
    /// A number of workers out of range.
    #[error("{0} workers asked for: choose 1 to {MAX_WORKERS}, with {0} ports in a row from the first")]
    Workers(usize),
    /// A port with TLS, without a certificate.
    #[error("{0}: a port with TLS needs a certificate; say --port-tls, or name one")]
    NoCertificate(String),
    /// The system refused something that a worker needs.
    #[error("cannot start a worker: {0}")]
    System(#[from] io::Error),
}

/// The network of the workers' datagrams.
#[derive(Clone, Debug)]
pub enum NetworkOptions {
    /// A kernel socket for each worker.
    Sockets(UdpOptions),
    /// A packet socket for each worker. Its port and number of workers are the workers'.
    Packets(InterfaceOptions),
    /// A pair of a device's queues for each worker. Its port, number of workers and whether they sleep are the
    /// workers'.
    #[cfg(feature = "dpdk")]
    Device(sandstorm_net::dpdk::DeviceOptions),
}

impl NetworkOptions {
    /// The options of further sockets: the ports for memcached clients are the kernel's in any case.
    pub(super) fn udp(&self) -> UdpOptions {
        match self {
            NetworkOptions::Sockets(udp) => *udp,
            _ => UdpOptions::default(),
        }
    }
}

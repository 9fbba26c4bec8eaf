//! Binds the ports for connections: TCP addresses, with or without TLS, and Unix sockets.

use std::sync::Arc;

use sandstorm_net::driver::{StreamListener, UdpDriver, UdpOptions};

use super::connections::stream_port::StreamPort;
use super::connections::udp_port::UdpPort;
use super::latency_ledger::IS_OBSERVED;
use super::listener_config::{ListenerConfig, PortAddress};
use super::options::{WorkerOptions, WorkerStartError};

/// The ports of one worker for connections.
#[derive(Default)]
pub(super) struct ConnectionPorts {
    pub(super) stream_ports: Vec<StreamPort>,
    pub(super) udp_ports: Vec<UdpPort>,
}

/// Binds the configured ports. Returns them with their bound addresses, and the listeners of each worker.
pub(super) fn bind_listeners(
    options: &WorkerOptions,
) -> Result<(Vec<ListenerConfig>, Vec<ConnectionPorts>), WorkerStartError> {
    let mut worker_ports: Vec<ConnectionPorts> = (0..options.workers).map(|_| ConnectionPorts::default()).collect();
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
        for (of_worker, listener) in worker_ports.iter_mut().zip(listeners) {
            of_worker.stream_ports.push(StreamPort { listener, service: Arc::clone(&service), tls: tls.clone() });
            if at.udp
                && let PortAddress::Tcp(address) = bound.address
            {
                let udp = UdpOptions { shared: true, receive_times: IS_OBSERVED, ..options.network.udp() };
                let driver = UdpDriver::bind(address, udp)?;
                of_worker.udp_ports.push(UdpPort::new(driver, &service));
            }
        }
        ports.push(bound);
    }
    Ok((ports, worker_ports))
}

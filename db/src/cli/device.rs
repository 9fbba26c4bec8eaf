//! Options for a device of DPDK, of the server and of the load generator.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use clap::Args;
use sandstorm_db::config::{DriverName, NetOverrides};
use sandstorm_net::driver::Drivers;

use super::output::Failure;

/// A device past the kernel.
#[derive(Debug, Default, Args)]
pub(super) struct DeviceArgs {
    /// DPDK's own arguments, in one word, such as "--no-huge --no-pci -m 128 --vdev net_memif0,…"
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    pub(super) eal: Option<String>,
    /// DPDK's name or number of the device [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,
    /// This host's address on the device, with the length of its network's prefix; may be given once for IPv4 and once for IPv6
    #[arg(long, value_name = "IP/PREFIX")]
    pub(super) address: Vec<String>,
    /// The router of that network
    #[arg(long, value_name = "IP")]
    pub(super) gateway: Vec<IpAddr>,
    /// Bytes of the largest IP packet on the device [default: as it is]
    #[arg(long, value_name = "BYTES")]
    pub(super) mtu: Option<u16>,
}

impl DeviceArgs {
    /// What the command line says of the network.
    pub(super) fn overrides(&self, driver: Option<DriverName>) -> NetOverrides {
        let DeviceArgs { eal, device, address, gateway, mtu } = self;
        let (eal, device) = (eal.clone(), device.clone());
        NetOverrides { driver, eal, device, address: address.clone(), gateway: gateway.clone(), mtu: *mtu }
    }
    /// The device, for a client of that server, which has so many workers.
    #[cfg(feature = "dpdk")]
    pub(super) fn drivers(
        &self,
        server: SocketAddr,
        workers: usize,
        queues: Option<u16>,
    ) -> Result<Arc<dyn Drivers>, Failure> {
        let refuse = |error: &dyn std::fmt::Display| Failure::new(error.to_string()).code("config");
        let networks = sandstorm_db::config::networks(&self.address, &self.gateway).map_err(|error| refuse(&error))?;
        let options = sandstorm_net::dpdk::DeviceOptions {
            eal: self.eal.as_deref().unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
            device: self.device.clone().unwrap_or_default(),
            networks,
            port: server.port(),
            workers,
            mtu: self.mtu,
        };
        let device = sandstorm_net::dpdk::ClientDevice::open(&options, server, queues);
        let device = device.map_err(|error| refuse(&error))?;
        Ok(Arc::new(device))
    }

    /// There is none.
    #[cfg(not(feature = "dpdk"))]
    pub(super) fn drivers(
        &self,
        _server: SocketAddr,
        _workers: usize,
        _queues: Option<u16>,
    ) -> Result<Arc<dyn Drivers>, Failure> {
        Err(Failure::new(sandstorm_db::config::WITHOUT_DPDK).code("config"))
    }
}

//! Options of the server and of the load generator for drivers beside the kernel's network stack.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use clap::Args;
use sandstorm_control::config::{DriverName, NetOverrides, NetSettings};
use sandstorm_net::driver::DriverFactory;
use sandstorm_net::stack::ClientInterface;

use sandstorm_terminal::output::CliError;

/// A device past the kernel's own stack.
#[derive(Clone, Debug, Default, Args)]
pub struct DeviceArgs {
    /// DPDK's own arguments, in one word, such as "--no-huge --no-pci -m 128 --vdev net_memif0,…"
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    pub eal: Option<String>,
    /// The interface's name (packet), or DPDK's name or number of the device [default: the only one]
    #[arg(long, visible_alias = "interface", value_name = "NAME")]
    pub device: Option<String>,
    /// This host's address on the device, with the length of its network's prefix; may be given once for IPv4 and once
    /// for IPv6
    #[arg(long, value_name = "IP/PREFIX")]
    pub address: Vec<String>,
    /// The router of that network
    #[arg(long, value_name = "IP")]
    pub gateway: Vec<IpAddr>,
    /// Bytes of the largest IP packet on the device [default: as it is]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u16>,
}

impl DeviceArgs {
    /// The network settings of the command line.
    pub fn overrides(&self, driver: Option<DriverName>, offload: Option<bool>) -> NetOverrides {
        let DeviceArgs { eal, device, address, gateway, mtu } = self.clone();
        NetOverrides { driver, eal, device, address, gateway, mtu, offload, ..NetOverrides::default() }
    }

    /// Returns a client's driver factory for a server with so many workers; `None`: kernel sockets.
    pub fn drivers(
        &self,
        driver: DriverName,
        server: SocketAddr,
        workers: usize,
        queues: Option<u16>,
    ) -> Result<Option<Arc<dyn DriverFactory>>, CliError> {
        let settings = NetSettings::of(&self.overrides(Some(driver), None));
        let settings = settings.map_err(|error| CliError::new(error.to_string()).code("config"))?;
        drivers(&settings, server, workers, queues)
    }
}

/// Returns a client's driver factory for a server with so many workers; `None`: kernel sockets. `queues` applies to
/// DPDK's devices.
pub fn drivers(
    settings: &NetSettings,
    server: SocketAddr,
    workers: usize,
    queues: Option<u16>,
) -> Result<Option<Arc<dyn DriverFactory>>, CliError> {
    let refuse = |error: &dyn std::fmt::Display| CliError::new(error.to_string()).code("config");
    if settings.driver != DriverName::Udp
        && !settings.networks.iter().any(|own| own.address.is_ipv4() == server.is_ipv4())
    {
        let (family, address) = if server.is_ipv4() { ("IPv4", "10.0.0.2/24") } else { ("IPv6", "fd00::2/64") };
        let text = format!(
            "the server's data address is {server}, and this side has no {family} address: add --address {address}"
        );
        return Err(refuse(&text));
    }
    match settings.driver {
        DriverName::Udp => Ok(None),
        DriverName::Packet => {
            let client = ClientInterface::new(settings.interface_options(server.port(), 1));
            Ok(Some(Arc::new(client.map_err(|error| refuse(&error))?)))
        }
        #[cfg(feature = "dpdk")]
        DriverName::Dpdk => {
            let options = settings.device_options(server.port(), workers);
            let device = sandstorm_net::dpdk::ClientDevice::open(&options, server, queues);
            Ok(Some(Arc::new(device.map_err(|error| refuse(&error))?)))
        }
        #[cfg(not(feature = "dpdk"))]
        DriverName::Dpdk => {
            let _without = (workers, queues);
            Err(CliError::new(sandstorm_control::config::WITHOUT_DPDK).code("config"))
        }
    }
}

//! `[net]`: what datagrams come and go through.

use std::net::{IpAddr, SocketAddr};

use sandstorm_net::stack::Network;
use serde::Deserialize;

use super::ConfigError;

/// How to get a server with DPDK.
#[cfg(not(feature = "dpdk"))]
pub const WITHOUT_DPDK: &str = "this sandstorm was built without DPDK: install its development files (Debian: dpdk-dev libdpdk-dev \
                                libclang-dev clang) and build it with `cargo build --release --features dpdk`";

/// What moves datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverName {
    /// Kernel sockets.
    #[default]
    Udp,
    /// A device through DPDK.
    Dpdk,
}

impl std::str::FromStr for DriverName {
    type Err = String;

    fn from_str(text: &str) -> Result<DriverName, String> {
        match text {
            "udp" => Ok(DriverName::Udp),
            "dpdk" => Ok(DriverName::Dpdk),
            other => Err(format!("{other:?} is none of udp, dpdk")),
        }
    }
}

/// What the command line says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetOverrides {
    /// Which driver.
    pub driver: Option<DriverName>,
    /// DPDK's arguments, as a shell would have them.
    pub eal: Option<String>,
    /// See [`NetSettings::device`].
    pub device: Option<String>,
    /// Addresses, `IP/PREFIX` each.
    pub address: Vec<String>,
    /// Routers.
    pub gateway: Vec<IpAddr>,
    /// See [`NetSettings::mtu`].
    pub mtu: Option<u16>,
}

/// A device, and this host's addresses on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetSettings {
    /// DPDK's arguments.
    pub eal: Vec<String>,
    /// Its name or number; empty: the only one.
    pub device: String,
    /// Addresses: one of each family at most.
    pub networks: Vec<Network>,
    /// Bytes of the largest IP packet; none: as the device has it.
    pub mtu: Option<u16>,
}

/// `[net]`, as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FileNet {
    driver: DriverName,
    eal: Option<String>,
    device: Option<String>,
    address: Vec<String>,
    gateway: Vec<IpAddr>,
    mtu: Option<u16>,
}

impl NetSettings {
    /// The file's section with the command line over it; none: kernel sockets.
    pub(super) fn build(file: FileNet, over: &NetOverrides) -> Result<Option<NetSettings>, ConfigError> {
        let driver = over.driver.unwrap_or(file.driver);
        let address = if over.address.is_empty() { file.address } else { over.address.clone() };
        let gateway = if over.gateway.is_empty() { file.gateway } else { over.gateway.clone() };
        let eal = over.eal.clone().or(file.eal);
        if driver == DriverName::Udp {
            if eal.is_some() || !address.is_empty() {
                return Err(ConfigError::new(
                    "eal and address are for DPDK: say --driver dpdk, or driver = \"dpdk\" in [net]",
                ));
            }
            return Ok(None);
        }
        #[cfg(not(feature = "dpdk"))]
        let refused: Result<(), ConfigError> = Err(ConfigError::new(WITHOUT_DPDK));
        #[cfg(feature = "dpdk")]
        let refused: Result<(), ConfigError> = Ok(());
        refused?;
        let settings = NetSettings {
            eal: eal.unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
            device: over.device.clone().or(file.device).unwrap_or_default(),
            networks: networks(&address, &gateway)?,
            mtu: over.mtu.or(file.mtu),
        };
        Ok(Some(settings))
    }

    /// The address of the first worker: the first of the device's, with the port of `data`.
    pub(super) fn data(&self, data: SocketAddr) -> SocketAddr {
        let first = self.networks.first().map_or(data.ip(), |network| network.address);
        SocketAddr::new(first, data.port())
    }

    /// The same for whoever opens the device.
    #[cfg(feature = "dpdk")]
    pub fn device_options(&self, port: u16, workers: usize) -> sandstorm_net::dpdk::DeviceOptions {
        let NetSettings { eal, device, networks, mtu } = self.clone();
        sandstorm_net::dpdk::DeviceOptions { eal, device, networks, port, workers, mtu }
    }
}

/// Addresses (`IP/PREFIX`) and the routers of their networks.
///
/// # Errors
/// Which of them cannot be, and why.
pub fn networks(addresses: &[String], gateways: &[IpAddr]) -> Result<Vec<Network>, ConfigError> {
    if addresses.is_empty() {
        return Err(ConfigError::new(
            "a device of DPDK needs an address of its own, which the kernel does not have: say --address 10.0.0.2/24, or address = \
             [\"10.0.0.2/24\"] in [net]",
        ));
    }
    let mut networks = Vec::new();
    for text in addresses {
        let parsed = text.split_once('/').and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
        let (address, prefix): (IpAddr, u8) = parsed
            .ok_or_else(|| ConfigError::new(format!("address {text:?}: write it as 10.0.0.2/24 or fd00::2/64")))?;
        let gateway = gateways.iter().copied().find(|gateway| gateway.is_ipv4() == address.is_ipv4());
        let network = Network { address, prefix, gateway };
        network.check().map_err(|error| ConfigError::new(error.to_string()))?;
        if networks.iter().any(|other: &Network| other.address.is_ipv4() == address.is_ipv4()) {
            return Err(ConfigError::new(format!(
                "address {text:?} is the second of its family: give one of each at most"
            )));
        }
        networks.push(network);
    }
    let routes = |gateway: &IpAddr| networks.iter().any(|network| network.gateway == Some(*gateway));
    if let Some(gateway) = gateways.iter().find(|gateway| !routes(gateway)) {
        return Err(ConfigError::new(format!("gateway {gateway} goes with no address: one for each family at most")));
    }
    Ok(networks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};

    #[test]
    fn kernel_sockets_unless_said_and_devices_say_their_addresses() {
        let parse = |text: &str| Config::parse(text, "c.toml", &Overrides::default());
        assert_eq!(parse("").unwrap().net, None);
        assert_eq!(parse("[net]\ndriver = 'udp'").unwrap().net, None);
        let error = parse("[net]\naddress = ['10.0.0.2/24']").unwrap_err().to_string();
        assert!(error.contains("--driver dpdk"), "{error}");
        assert!(parse("[net]\ndriver = 'tcp'").is_err());

        let device = "[net]\ndriver = 'dpdk'\neal = '--no-huge  -m 64'\naddress = ['10.0.0.2/24', 'fd00::2/64']\ngateway = ['10.0.0.1']";
        let parsed = parse(device);
        #[cfg(not(feature = "dpdk"))]
        assert!(parsed.unwrap_err().to_string().contains("--features dpdk"));
        #[cfg(feature = "dpdk")]
        {
            let config = parsed.unwrap();
            assert_eq!(config.data, ([10, 0, 0, 2], 7400).into());
            assert!(config.data_is_public() && !config.may_be_open(), "others reach it");
            let net = config.net.unwrap();
            assert_eq!((net.eal.len(), net.networks.len(), net.networks[0].prefix), (3, 2, 24));
            assert_eq!(net.networks[0].gateway, Some(IpAddr::from([10, 0, 0, 1])));
        }
    }

    #[test]
    fn addresses_that_cannot_be_are_refused_each_with_its_reason() {
        let refused = |addresses: &[&str], gateways: &[&str]| {
            let addresses: Vec<String> = addresses.iter().map(|text| (*text).to_owned()).collect();
            let gateways: Vec<IpAddr> = gateways.iter().map(|text| text.parse().unwrap()).collect();
            networks(&addresses, &gateways).unwrap_err().to_string()
        };
        assert!(refused(&[], &[]).contains("--address 10.0.0.2/24"));
        assert!(refused(&["10.0.0.2"], &[]).contains("write it as"));
        assert!(refused(&["10.0.0.2/33"], &[]).contains("prefix"));
        assert!(refused(&["10.0.0.0/24"], &[]).contains("network"));
        assert!(refused(&["10.0.0.2/24", "10.0.1.2/24"], &[]).contains("second of its family"));
        assert!(refused(&["10.0.0.2/24"], &["10.1.0.1"]).contains("gateway"));
        assert!(refused(&["10.0.0.2/24"], &["fd00::1"]).contains("goes with no address"));
    }
}

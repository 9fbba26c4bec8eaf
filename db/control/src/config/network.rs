//! `[net]`: the network of the workers' datagrams.

use std::net::{IpAddr, SocketAddr};

use sandstorm_net::driver::UdpOptions;
use sandstorm_net::stack::{InterfaceNetwork, InterfaceOptions, PacketOptions};
use serde::Deserialize;

use super::ConfigError;
use sandstorm_server::workers::NetworkOptions;

/// The text that tells how to get a server with DPDK.
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
    /// An interface of the kernel's through packet sockets, with this server's own stack above.
    Packet,
    /// A device through DPDK.
    Dpdk,
}

impl std::str::FromStr for DriverName {
    type Err = String;

    fn from_str(text: &str) -> Result<DriverName, String> {
        match text {
            "udp" => Ok(DriverName::Udp),
            "packet" => Ok(DriverName::Packet),
            "dpdk" => Ok(DriverName::Dpdk),
            other => Err(format!("{other:?} is none of udp, packet, dpdk")),
        }
    }
}

/// The network options of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetOverrides {
    /// The driver.
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
    /// See [`NetSettings::offload`].
    pub offload: Option<bool>,
    /// See [`NetSettings::zero_copy`].
    pub zero_copy: Option<bool>,
    /// See [`NetSettings::kept_buffers`].
    pub kept_buffers: Option<u32>,
    /// See [`NetSettings::isolate`].
    pub isolate: Option<bool>,
}

/// The network driver. For kernel bypass: the device, and this host's addresses on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetSettings {
    /// The driver.
    pub driver: DriverName,
    /// DPDK's arguments.
    pub eal: Vec<String>,
    /// The interface's name, or DPDK's name or number of the device; empty: the only one.
    pub device: String,
    /// Addresses: one of each family at most; none with kernel sockets.
    pub networks: Vec<InterfaceNetwork>,
    /// Whether the kernel coalesces and segments datagrams. For an interface or a device: whether the kernel or the
    /// device checks and fills in checksums. Off for measuring.
    pub offload: bool,
    /// Bytes of the largest IP packet; none: the device's default.
    pub mtu: Option<u16>,
    /// Whether large values are sent from where they are stored. Off for measuring.
    pub zero_copy: bool,
    /// Packet buffers of a device that may store large values. 0: these are copied.
    pub kept_buffers: u32,
    /// Whether only the workers' datagrams are taken from a device. The rest stays with the kernel, whose addresses the
    /// server then shares.
    pub isolate: bool,
}

/// `[net]`, as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NetSection {
    driver: DriverName,
    eal: Option<String>,
    device: Option<String>,
    address: Vec<String>,
    gateway: Vec<IpAddr>,
    mtu: Option<u16>,
    offload: Option<bool>,
    zero_copy: Option<bool>,
    kept_buffers: Option<u32>,
    isolate: Option<bool>,
}

impl Default for NetSettings {
    /// Kernel sockets.
    fn default() -> NetSettings {
        let (driver, device) = (DriverName::Udp, String::new());
        NetSettings {
            driver,
            eal: Vec::new(),
            device,
            networks: Vec::new(),
            offload: true,
            mtu: None,
            zero_copy: true,
            kept_buffers: 0,
            isolate: false,
        }
    }
}

impl NetSettings {
    /// The settings of the command line alone.
    ///
    /// # Errors
    /// The option that is not valid.
    pub fn of(over: &NetOverrides) -> Result<NetSettings, ConfigError> {
        NetSettings::build(NetSection::default(), over)
    }

    /// The file's section with the command line's overrides.
    pub(super) fn build(file: NetSection, over: &NetOverrides) -> Result<NetSettings, ConfigError> {
        let said = file.under(over);
        said.check()?;
        let NetSection { driver, eal, device, address, gateway, mtu, .. } = said;
        let (offload, zero_copy) = (said.offload.unwrap_or(true), said.zero_copy.unwrap_or(true));
        if driver == DriverName::Udp {
            return Ok(NetSettings { offload, zero_copy, ..NetSettings::default() });
        }
        Ok(NetSettings {
            driver,
            eal: eal.unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
            device: device.unwrap_or_default(),
            networks: parse_networks(&address, &gateway)?,
            offload,
            mtu,
            zero_copy,
            kept_buffers: said.kept_buffers.unwrap_or(0),
            isolate: said.isolate.unwrap_or(false),
        })
    }

    /// The address of the first worker: the first of the device's, with the port of `data`.
    pub(super) fn data(&self, data: SocketAddr) -> SocketAddr {
        let first = self.networks.first().map_or(data.ip(), |network| network.address);
        SocketAddr::new(first, data.port())
    }

    /// The options of kernel sockets.
    pub fn udp_options(&self) -> UdpOptions {
        UdpOptions { gro: self.offload, gso: self.offload, ..UdpOptions::default() }
    }

    /// The options of packet sockets.
    pub fn interface_options(&self, port: u16, workers: usize) -> InterfaceOptions {
        let packets = PacketOptions { offload: self.offload, ..PacketOptions::default() };
        let (interface, networks) = (self.device.clone(), self.networks.clone());
        InterfaceOptions { interface, networks, port, workers, packets }
    }

    /// The options of a DPDK device.
    #[cfg(feature = "dpdk")]
    pub fn device_options(&self, port: u16, workers: usize) -> sandstorm_net::dpdk::DeviceOptions {
        let NetSettings { eal, device, networks, mtu, offload: checksums, kept_buffers, isolate, .. } = self.clone();
        let sleeps = true;
        sandstorm_net::dpdk::DeviceOptions {
            eal,
            device,
            networks,
            port,
            workers,
            mtu,
            checksums,
            kept_buffers,
            sleeps,
            dma_from_tables: self.zero_copy,
            isolate,
        }
    }

    /// The network that the workers open.
    pub fn network(&self, port: u16, workers: usize) -> NetworkOptions {
        match self.driver {
            DriverName::Packet => NetworkOptions::Packets(self.interface_options(port, workers)),
            #[cfg(feature = "dpdk")]
            DriverName::Dpdk => NetworkOptions::Device(self.device_options(port, workers)),
            // Without DPDK a configuration that names it is refused.
            _ => NetworkOptions::Sockets(self.udp_options()),
        }
    }
}

impl NetSection {
    /// The section with the command line's overrides.
    fn under(self, over: &NetOverrides) -> NetSection {
        NetSection {
            driver: over.driver.unwrap_or(self.driver),
            eal: over.eal.clone().or(self.eal),
            device: over.device.clone().or(self.device),
            address: if over.address.is_empty() { self.address } else { over.address.clone() },
            gateway: if over.gateway.is_empty() { self.gateway } else { over.gateway.clone() },
            mtu: over.mtu.or(self.mtu),
            offload: over.offload.or(self.offload),
            zero_copy: over.zero_copy.or(self.zero_copy),
            kept_buffers: over.kept_buffers.or(self.kept_buffers),
            isolate: over.isolate.or(self.isolate),
        }
    }

    /// Checks that the settings fit the driver.
    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, text: &str| Err(ConfigError::new(text).at(&[format!("net.{key}")]));
        if self.driver != DriverName::Dpdk && self.kept_buffers.is_some() {
            return wrong(
                "kept_buffers",
                "kept_buffers is for DPDK, whose packet buffers it counts: say --driver dpdk, or leave it out",
            );
        }
        if self.driver != DriverName::Dpdk && self.isolate == Some(true) {
            return wrong(
                "isolate",
                "isolate is for DPDK, whose device the kernel is to share: say --driver dpdk, or leave it out",
            );
        }
        match self.driver {
            DriverName::Udp => self.check_sockets(),
            DriverName::Packet => self.check_packets(),
            DriverName::Dpdk => self.check_device(),
        }
    }

    fn check_sockets(&self) -> Result<(), ConfigError> {
        let wrong = |keys: &[&str], text: &str| Err(ConfigError::new(text).at(keys));
        if self.eal.is_some() || self.device.is_some() || !self.address.is_empty() || !self.gateway.is_empty() {
            return wrong(
                &["net.eal", "net.device", "net.address", "net.gateway"],
                "eal, device, address and gateway are for kernel-bypass drivers: say --driver packet or --driver dpdk, or driver = \
                 \"packet\" in [net]",
            );
        }
        if self.mtu.is_some() {
            return wrong(
                &["net.mtu"],
                "mtu is for DPDK, whose device it sets: say --driver dpdk; the kernel's interfaces have theirs, `ip link set dev eth1 mtu \
                 9000`",
            );
        }
        Ok(())
    }

    fn check_packets(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, text: &str| Err(ConfigError::new(text).at(&[format!("net.{key}")]));
        if self.device.as_deref().is_none_or(str::is_empty) {
            return wrong(
                "driver",
                "packet sockets need an interface: say --device eth1, or device = \"eth1\" in [net]",
            );
        }
        if self.eal.is_some() {
            return wrong("eal", "eal is for DPDK: leave it out, or say --driver dpdk");
        }
        if self.mtu.is_some() {
            return wrong(
                "mtu",
                "packets are as large as the interface has them: `ip link set dev eth1 mtu 9000` in place of mtu",
            );
        }
        Ok(())
    }

    #[cfg(not(feature = "dpdk"))]
    fn check_device(&self) -> Result<(), ConfigError> {
        Err(ConfigError::new(WITHOUT_DPDK).at(&["net.driver"]))
    }

    #[cfg(feature = "dpdk")]
    fn check_device(&self) -> Result<(), ConfigError> {
        if self.isolate != Some(true) {
            return Ok(());
        }
        if self.address.is_empty() {
            return Err(ConfigError::new(
                "a device shared with the kernel (isolate) has the kernel's address there: say it, --address 10.0.0.1/24, or address = \
                 [\"10.0.0.1/24\"] in [net]",
            )
            .at(&["net.isolate"]));
        }
        if !self.gateway.is_empty() {
            return Err(ConfigError::new(
                "on a device shared with the kernel (isolate) replies go to the Ethernet address that their requests came from: leave gateway out",
            )
            .at(&["net.gateway"]));
        }
        Ok(())
    }
}

/// Addresses (`IP/PREFIX`) and the routers of their networks.
///
/// # Errors
/// The address or router that is not valid, and the reason.
fn parse_networks(addresses: &[String], gateways: &[IpAddr]) -> Result<Vec<InterfaceNetwork>, ConfigError> {
    if addresses.is_empty() {
        return Err(ConfigError::new(
            "a kernel-bypass driver needs an address that the kernel does not have: say --address 10.0.0.2/24, or address = \
             [\"10.0.0.2/24\"] in [net]",
        )
        .at(&["net.driver"]));
    }
    let mut networks = Vec::new();
    for (number, text) in addresses.iter().enumerate() {
        let wrong = |text: String| ConfigError::new(text).at(&[format!("net.address.{number}"), "net.address".into()]);
        let parsed = text.split_once('/').and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
        let (address, prefix): (IpAddr, u8) =
            parsed.ok_or_else(|| wrong(format!("address {text:?}: write it as 10.0.0.2/24 or fd00::2/64")))?;
        let gateway = gateways.iter().copied().find(|gateway| gateway.is_ipv4() == address.is_ipv4());
        let network = InterfaceNetwork { address, prefix, gateway };
        network.check().map_err(|error| wrong(error.to_string()))?;
        if networks.iter().any(|other: &InterfaceNetwork| other.address.is_ipv4() == address.is_ipv4()) {
            return Err(wrong(format!("address {text:?} is the second of its family: give one of each at most")));
        }
        networks.push(network);
    }
    let routes = |gateway: &IpAddr| networks.iter().any(|network| network.gateway == Some(*gateway));
    if let Some(gateway) = gateways.iter().find(|gateway| !routes(gateway)) {
        return Err(ConfigError::new(format!("gateway {gateway} goes with no address: one for each family at most"))
            .at(&["net.gateway"]));
    }
    Ok(networks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CliOverrides, ServerSettings};

    #[test]
    fn kernel_sockets_unless_said_and_devices_say_their_addresses() {
        let parse = |text: &str| ServerSettings::parse(text, "c.toml", &CliOverrides::default());
        assert_eq!(parse("").unwrap().net, NetSettings::default());
        assert_eq!(parse("[net]\ndriver = 'udp'").unwrap().net, NetSettings::default());
        let single = parse("[net]\noffload = false").unwrap().net.udp_options();
        assert!(!single.gro && !single.gso);
        assert!(!parse("[net]\nzero_copy = false").unwrap().net.zero_copy);
        for section in ["address = ['10.0.0.2/24']", "eal = '--no-huge'", "device = 'eth1'", "gateway = ['10.0.0.1']"] {
            let error = parse(&format!("[net]\n{section}")).unwrap_err().to_string();
            assert!(error.contains("--driver packet"), "{error}");
        }
        let error = parse("[net]\nmtu = 9000").unwrap_err().to_string();
        assert!(error.contains("--driver dpdk") && error.contains("ip link set"), "{error}");
        for section in ["kept_buffers = 1", "isolate = true"] {
            let error = parse(&format!("[net]\n{section}")).unwrap_err().to_string();
            assert!(error.contains("--driver dpdk"), "{error}");
        }
        assert!(parse("[net]\ndriver = 'tcp'").is_err());

        let device = "[net]\ndriver = 'dpdk'\neal = '--no-huge  -m 64'\naddress = ['10.0.0.2/24', 'fd00::2/64']\ngateway = ['10.0.0.1']";
        let parsed = parse(device);
        #[cfg(not(feature = "dpdk"))]
        assert!(parsed.unwrap_err().to_string().contains("--features dpdk"));
        #[cfg(feature = "dpdk")]
        {
            let config = parsed.unwrap();
            assert_eq!(config.data, ([10, 0, 0, 2], 7400).into());
            assert!(config.data_is_public() && !config.allows_open_tenants(), "others reach it");
            let net = config.net;
            assert_eq!((net.eal.len(), net.networks.len(), net.networks[0].prefix), (3, 2, 24));
            assert_eq!(net.networks[0].gateway, Some(IpAddr::from([10, 0, 0, 1])));
            assert!(net.device_options(7400, 2).checksums);
            let net = parse(&format!("{device}\noffload = false\nmtu = 9000")).unwrap().net;
            let options = net.device_options(7400, 2);
            assert_eq!((options.checksums, options.mtu, options.kept_buffers), (false, Some(9000), 0));
            let net = parse(&format!("{device}\nkept_buffers = 4096")).unwrap().net;
            assert_eq!(net.device_options(7400, 2).kept_buffers, 4096);
            assert!(!net.isolate);
            let shared = "[net]\ndriver = 'dpdk'\nisolate = true\n";
            assert!(parse(&format!("{shared}address = ['10.0.0.1/24']")).unwrap().net.device_options(7400, 1).isolate);
            for (more, says) in [
                ("", "the kernel's address there"),
                ("address = ['10.0.0.1/24']\ngateway = ['10.0.0.2']", "leave gateway out"),
            ] {
                let error = parse(&format!("{shared}{more}")).unwrap_err().to_string();
                assert!(error.contains(says), "{error}");
            }
        }
    }

    #[test]
    fn packet_sockets_say_their_interface_and_their_addresses() {
        let parse = |text: &str| ServerSettings::parse(text, "c.toml", &CliOverrides::default());
        let interface = "[net]\ndriver = 'packet'\ndevice = 'eth1'\n";
        let config = parse(&format!("{interface}address = ['fd00::2/64', '10.0.0.2/24']")).unwrap();
        assert_eq!(config.data, "[fd00::2]:7400".parse().unwrap(), "that of IPv6 was named first");
        assert!(config.data_is_public() && !config.allows_open_tenants(), "others reach it");
        let options = config.net.interface_options(7400, 3);
        assert_eq!((options.interface.as_str(), options.networks.len(), options.workers), ("eth1", 2, 3));
        for (text, says) in [
            (interface.to_owned(), "--address 10.0.0.2/24"),
            ("[net]\ndriver = 'packet'\naddress = ['10.0.0.2/24']".to_owned(), "--device eth1"),
            (format!("{interface}eal = '-m 64'"), "--driver dpdk"),
            (format!("{interface}mtu = 9000"), "ip link set"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn addresses_that_cannot_be_are_refused_each_with_its_reason() {
        let refused = |addresses: &[&str], gateways: &[&str]| {
            let addresses: Vec<String> = addresses.iter().map(|text| (*text).to_owned()).collect();
            let gateways: Vec<IpAddr> = gateways.iter().map(|text| text.parse().unwrap()).collect();
            parse_networks(&addresses, &gateways).unwrap_err().to_string()
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

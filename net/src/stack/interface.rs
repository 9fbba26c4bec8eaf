//! The state that the workers of one network interface share: its addresses and routes, its neighbours, and which
//! worker serves which port.

use super::clock::StackClock;
use super::handover::HandoverInbox;
use super::neighbours::{NeighbourCounters, NeighbourTable};
use super::path_mtu::PathMtuCache;
use super::wire::{ALL_NODES, is_host_address, multicast_mac, solicited_node_group};
use super::{FramePort, MacAddress};
use crate::driver::PathMtu;
use crate::limits::{CLIENT_PORTS, CLOSED_PORTS_PER_S, ECHOES_PER_S, NEIGHBOURS};
use crate::r2p2::PeerAddr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// An address of an interface, its network, and that network's gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceNetwork {
    /// The address.
    pub address: IpAddr,
    /// Bits that the addresses of this network share with it.
    pub prefix: u8,
    /// The router to all other networks. Without one they cannot be reached.
    pub gateway: Option<IpAddr>,
}

/// The options of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackOptions {
    /// At most one of each family, one at least. Datagrams are served at these addresses.
    pub networks: Vec<InterfaceNetwork>,
    /// UDP port of the first worker; worker `n` has this port plus `n`.
    pub port: u16,
    /// Number of workers, 1 to 64.
    pub workers: usize,
    /// Whether a datagram to another port is answered with "port unreachable"; if not, it is dropped in silence.
    /// Default: true.
    pub answer_closed_ports: bool,
    /// Answers to closed ports per second, each worker. Default [`CLOSED_PORTS_PER_S`].
    pub closed_ports_per_s: u64,
    /// Answers to echoes per second, each worker; 0: none. Default [`ECHOES_PER_S`].
    pub echoes_per_s: u64,
    /// Slots of the neighbour table. Default [`NEIGHBOURS`].
    pub neighbours: usize,
    /// Whether the kernel has these addresses, too, and the stack's ports bring nothing but datagrams for its workers.
    /// The kernel then receives and answers the messages of neighbours, routers and groups. Each datagram is sent to
    /// the Ethernet address that its receiver's last one came from; nothing is asked or announced. Default: false.
    pub isolated: bool,
}

impl StackOptions {
    /// Returns the options of one worker at this address and port.
    pub fn new(network: InterfaceNetwork, port: u16) -> StackOptions {
        StackOptions {
            networks: vec![network],
            port,
            workers: 1,
            answer_closed_ports: true,
            closed_ports_per_s: CLOSED_PORTS_PER_S,
            echoes_per_s: ECHOES_PER_S,
            neighbours: NEIGHBOURS,
            isolated: false,
        }
    }

    /// Returns the options of several workers at these addresses, with UDP ports from `port` on.
    ///
    /// # Errors
    /// [`StackError::NoAddress`]; all other mistakes are refused when the options are used.
    pub fn of(networks: &[InterfaceNetwork], port: u16, workers: usize) -> Result<StackOptions, StackError> {
        let first = networks.first().copied().ok_or(StackError::NoAddress)?;
        Ok(StackOptions { networks: networks.to_vec(), workers, ..StackOptions::new(first, port) })
    }
}

/// Chooses one of [`CLIENT_PORTS`], another one than a moment ago. Packets that are under way for an earlier client at
/// this address do not match it.
pub(crate) fn choose_client_port() -> u16 {
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_micros());
    CLIENT_PORTS.start + (now_us % CLIENT_PORTS.len() as u32) as u16
}

/// The reason why a stack cannot be set up with these options.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StackError {
    /// No address.
    #[error("the stack has no address: give it one, with the length of its network's prefix, such as 10.0.0.2/24")]
    NoAddress,
    /// Two addresses of one family.
    #[error("the stack has two addresses of one family, {0} and {1}: give it one of each at most")]
    TwoAddresses(IpAddr, IpAddr),
    /// An address that no host has.
    #[error("{0} cannot be a host's address: give the stack one of the network that its port is in")]
    Address(IpAddr),
    /// A prefix that is longer than the address.
    #[error("a prefix of {1} bits does not go with {0}: give the length of the network's prefix, such as 24 or 64")]
    Prefix(IpAddr, u8),
    /// The network's own address or its broadcast.
    #[error("{0}/{1} stands for its network or for all of its hosts: choose an address between them")]
    NotAHost(IpAddr, u8),
    /// A router outside of the network.
    #[error("gateway {0} is not in the network of {1}: give the router's address in that network")]
    Gateway(IpAddr, IpAddr),
    /// Too few or too many workers, or ports.
    #[error("{workers} workers from port {port} on: choose 1 to 64, whose ports are 1 to 65535")]
    Workers {
        /// Workers asked for.
        workers: usize,
        /// The first one's port.
        port: u16,
    },
    /// The port's frames are too small.
    #[error("packets of {mtu} bytes are too small for {family}, which needs {least}: set the interface's MTU higher")]
    Mtu {
        /// The interface's MTU, bytes.
        mtu: usize,
        /// The family.
        family: &'static str,
        /// The bytes that it needs.
        least: usize,
    },
    /// The port's own address cannot be used.
    #[error("the interface has the Ethernet address {0}, which no interface can have: set one")]
    Mac(MacAddress),
    /// A worker that does not exist, or has a port already.
    #[error("there is no worker {0} left to be given a port")]
    Worker(usize),
    /// The port does not let groups in.
    #[error(
        "the interface lets no groups of IPv6 in, in which others ask for its address: leave the stack's address of IPv6 out, or choose an \
         interface that does"
    )]
    Groups,
    /// The process has no file descriptor left.
    #[error("cannot make a signal for worker {0}: {1}; raise the limit of open files")]
    Waker(usize, String),
}

impl InterfaceNetwork {
    /// Checks the address, the prefix and the gateway.
    ///
    /// # Errors
    /// The first mistake found.
    pub fn check(&self) -> Result<(), StackError> {
        let bits = if self.address.is_ipv4() { 32 } else { 128 };
        if !is_host_address(self.address) {
            return Err(StackError::Address(self.address));
        }
        if self.prefix > bits || self.prefix == 0 {
            return Err(StackError::Prefix(self.address, self.prefix));
        }
        if self.is_special(self.address) {
            return Err(StackError::NotAHost(self.address, self.prefix));
        }
        match self.gateway {
            Some(gateway) if !self.reaches(gateway) || gateway == self.address || self.is_special(gateway) => {
                Err(StackError::Gateway(gateway, self.address))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a host is in this network and so reached without a router.
    #[inline]
    pub fn reaches(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(mine), IpAddr::V4(other)) => (u32::from(mine) ^ u32::from(other)) & ipv4_mask(self.prefix) == 0,
            (IpAddr::V6(mine), IpAddr::V6(other)) => {
                other.is_unicast_link_local() || (u128::from(mine) ^ u128::from(other)) & ipv6_mask(self.prefix) == 0
            }
            _ => false,
        }
    }

    /// Returns whether this is the network's own address or its broadcast address. Networks of two hosts have neither.
    #[inline]
    fn is_special(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(_), IpAddr::V4(ip)) if self.prefix < 31 && self.reaches(ip.into()) => {
                let host = u32::from(ip) & !ipv4_mask(self.prefix);
                host == 0 || host == !ipv4_mask(self.prefix)
            }
            _ => false,
        }
    }
}

#[inline]
fn ipv4_mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

#[inline]
fn ipv6_mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0)
}

/// The state that the workers of one interface share.
pub struct StackInterface {
    pub(super) mac: MacAddress,
    pub(super) mtu: usize,
    pub(super) v4: Option<InterfaceNetwork>,
    pub(super) v6: Option<InterfaceNetwork>,
    /// The address that every interface with IPv6 has, for neighbours alone.
    pub(super) link_local: Option<Ipv6Addr>,
    pub(super) options: StackOptions,
    pub(super) neighbours: NeighbourTable,
    pub(super) path_mtus: PathMtuCache,
    pub(super) inboxes: Box<[HandoverInbox]>,
    pub(super) clock: StackClock,
    /// The time of the last announcement in defence of an address.
    pub(super) defended_us: AtomicU64,
    /// The number of times that another host claimed an address of this interface.
    pub(super) conflicts: AtomicU64,
}

impl fmt::Debug for StackInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface").field("mac", &self.mac).field("options", &self.options).finish_non_exhaustive()
    }
}

impl StackInterface {
    /// Creates the state that the workers on the interface of `port` share. Each worker is to have a port of its own
    /// there ([`super::StackDriver::new`]).
    ///
    /// # Errors
    /// The mistake in the options, and what to do about it.
    pub fn new(
        port: &impl FramePort,
        options: StackOptions,
        clock: StackClock,
    ) -> Result<Arc<StackInterface>, StackError> {
        for network in &options.networks {
            network.check()?;
        }
        let of = |v4: bool| {
            let mut same = options.networks.iter().filter(|network| network.address.is_ipv4() == v4);
            match (same.next(), same.next()) {
                (Some(one), Some(two)) => Err(StackError::TwoAddresses(one.address, two.address)),
                (one, _) => Ok(one.copied()),
            }
        };
        let (v4, v6) = (of(true)?, of(false)?);
        if v4.is_none() && v6.is_none() {
            return Err(StackError::NoAddress);
        }
        let last = usize::from(options.port) + options.workers;
        if !(1..=64).contains(&options.workers) || options.port == 0 || last > 65_536 {
            return Err(StackError::Workers { workers: options.workers, port: options.port });
        }
        let (mac, mtu) = (port.mac(), port.mtu());
        let (family, least) = if v6.is_some() { ("IPv6", 1280) } else { ("IPv4", 576) };
        if mtu < least {
            return Err(StackError::Mtu { mtu, family, least });
        }
        if !mac.is_unicast() {
            return Err(StackError::Mac(mac));
        }
        // An isolated stack sends back to where a datagram came from, so it asks for no router.
        let networks = options.networks.iter().filter(|_| !options.isolated);
        let routers: Vec<_> = networks.filter_map(|network| network.gateway).collect();
        Ok(Arc::new(StackInterface {
            mac,
            mtu: mtu.min(65_535),
            v4,
            v6,
            link_local: v6.is_some().then(|| link_local(mac)),
            neighbours: NeighbourTable::new(options.neighbours, &routers),
            path_mtus: PathMtuCache::new(),
            inboxes: (0..options.workers).map(|_| HandoverInbox::default()).collect(),
            options,
            clock,
            defended_us: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
        }))
    }

    /// Returns the address that peers send to, of worker `index`: the IPv4 one if there are both.
    pub fn local(&self, index: usize) -> SocketAddr {
        let network = self.v4.or(self.v6);
        let ip = network.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |network| network.address);
        SocketAddr::new(ip, self.options.port.saturating_add(index as u16))
    }

    /// Returns the bytes of the largest datagram that fits a packet of the interface, for every peer.
    pub fn max_datagram(&self) -> usize {
        let header = if self.v6.is_some() { super::wire::IPV6_HEADER_LEN } else { super::wire::IPV4_HEADER_LEN };
        self.mtu - header - super::wire::UDP_HEADER_LEN
    }

    /// Returns the known neighbours, with the time of their last answer (0: none yet), microseconds of the clock.
    pub fn neighbours(&self) -> Vec<(IpAddr, MacAddress, u64)> {
        self.neighbours.list()
    }

    /// Returns the counters of the neighbour table.
    pub fn neighbour_counters(&self) -> NeighbourCounters {
        self.neighbours.counters()
    }

    /// Returns how often another host claimed an address of this interface: two hosts have it.
    pub fn conflicts(&self) -> u64 {
        self.conflicts.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the worker of a UDP port.
    #[inline]
    pub(super) fn worker_for(&self, port: u16) -> Option<usize> {
        let index = usize::from(port.wrapping_sub(self.options.port));
        (index < self.inboxes.len()).then_some(index)
    }

    /// Returns whether datagrams are served at this address.
    #[inline]
    pub(super) fn serves(&self, ip: IpAddr) -> bool {
        self.network_for(ip).is_some_and(|network| network.address == ip)
    }

    /// Returns whether it is an address of this interface.
    pub(super) fn is_local(&self, ip: IpAddr) -> bool {
        self.serves(ip) || self.link_local.is_some_and(|own| ip == own)
    }

    /// Returns the network of an address's family.
    #[inline]
    pub(super) fn network_for(&self, ip: IpAddr) -> Option<&InterfaceNetwork> {
        if ip.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }
    }

    /// Returns whether another host's packet may come from this address.
    #[inline]
    pub(super) fn may_send(&self, ip: IpAddr) -> bool {
        let special = self.network_for(ip).is_some_and(|network| network.is_special(ip));
        is_host_address(ip) && !special && !self.is_local(ip)
    }

    /// Returns the next hop of a packet to `ip`: the host itself, or a router. None if there is no route.
    #[inline]
    pub(super) fn next_hop(&self, ip: IpAddr) -> Option<IpAddr> {
        let network = self.network_for(ip)?;
        if !self.may_send(ip) {
            return None;
        }
        // An isolated stack sends back to where a datagram came from: it needs no router.
        if self.options.isolated || network.reaches(ip) { Some(ip) } else { network.gateway }
    }

    /// Returns all IPv6 addresses.
    pub(super) fn ipv6_addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        let served = self.v6.and_then(|network| match network.address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        });
        let link_local = self.link_local.filter(|own| Some(*own) != served);
        served.into_iter().chain(link_local)
    }

    /// Returns the IPv6 groups in which other hosts ask for the interface.
    pub(super) fn ipv6_groups(&self) -> Vec<Ipv6Addr> {
        let mut groups: Vec<_> = self.ipv6_addresses().map(solicited_node_group).collect();
        groups.dedup();
        groups
    }

    /// Returns the Ethernet groups whose frames the stack needs.
    pub(super) fn groups(&self) -> Vec<MacAddress> {
        let groups = self.ipv6_groups();
        let all = (!groups.is_empty()).then_some(ALL_NODES);
        groups.into_iter().chain(all).map(multicast_mac).collect()
    }
}

impl PathMtu for StackInterface {
    #[inline]
    fn most(&self, peer: PeerAddr) -> usize {
        let header = if peer.is_ipv4() { super::wire::IPV4_HEADER_LEN } else { super::wire::IPV6_HEADER_LEN };
        let mtu = self.path_mtus.most(&self.clock, peer.ip()).unwrap_or(self.mtu);
        self.mtu.min(mtu) - header - super::wire::UDP_HEADER_LEN
    }
}

/// Returns the address that an interface gives itself.
fn link_local(mac: MacAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xFE, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xFF, 0xFE, d, e, f])
}

//! Descriptions of devices.
//!
//! Guarantees: strings and numbers from a driver are copied before it is asked again.
#![allow(unsafe_code)]

use super::c_strings::c_chars_to_string;
use super::error::{DpdkErrno, DpdkError};
use crate::stack::MacAddress;
use sandstorm_dpdk_sys as sys;

/// A device's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortDescription {
    /// Its number.
    pub port: u16,
    /// Its name: a PCI address, or the name given with `--vdev`.
    pub name: String,
    /// The driver, such as `net_ixgbe`.
    pub driver: String,
    /// The memory node that it is next to; none if that does not matter.
    pub node: Option<u32>,
    /// Its Ethernet address.
    pub mac: MacAddress,
    /// Bytes of the largest IP packet, as set.
    pub mtu: u16,
    /// The largest MTU that can be set; 0 if unknown.
    pub max_mtu: u16,
    /// Queues in each direction, the smaller number of both.
    pub max_queues: u16,
    /// Whether it checks checksums of received frames: of IPv4 headers, of UDP.
    pub checks: (bool, bool),
    /// Whether it fills in checksums of sent frames: of IPv4 headers, of UDP.
    pub tx_checksums: (bool, bool),
    /// Whether it sends values in place; if not, they are copied into its packets.
    pub sends_in_place: bool,
    /// Whether it sends packets of several pieces.
    pub sends_segments: bool,
    /// Whether it can be shared with the kernel ([`super::PortOptions::isolate`]). For a port that is not open: whether
    /// that is possible.
    pub supports_isolation: bool,
    /// Whether it spreads packets of UDP over queues by their addresses and ports (RSS).
    pub supports_rss: bool,
}

/// The driver of memif, shared memory between two processes.
const MEMIF: &str = "net_memif";
/// The driver of AF_XDP, an interface of the kernel's.
pub(super) const AF_XDP_DRIVER: &str = "net_af_xdp";
/// The driver of the kernel's tap devices, which may receive from another kernel interface.
const TAP: &str = "net_tap";
/// Drivers that read sent bytes with the processor, anywhere within this process: the memory need not be registered.
const CPU_READ_DRIVERS: [&str; 5] = [MEMIF, "net_ring", "net_null", TAP, "net_af_packet"];
/// Drivers without interrupts that a request for them would start twice. For memif, starting is connecting.
pub(super) const INTERRUPTLESS_DRIVERS: [&str; 5] = [MEMIF, AF_XDP_DRIVER, "net_ring", "net_null", "net_af_packet"];
/// Drivers whose frames go from memory to memory, and are read by processors alone.
const IN_MEMORY_DRIVERS: [&str; 3] = [MEMIF, "net_ring", "net_null"];

impl PortDescription {
    /// Returns whether it is memory shared with another process (memif), where both sides need the same number of
    /// queues. Opening it connects to that process.
    pub fn is_shared_memory(&self) -> bool {
        self.driver == MEMIF
    }

    /// Returns whether its frames never leave this machine's memory, so that checksums protect nothing.
    pub fn stays_in_memory(&self) -> bool {
        IN_MEMORY_DRIVERS.contains(&self.driver.as_str())
    }
}

/// Returns a locally administered address, for a port between two ends of one process, whose device has none.
fn local_mac(port: u16) -> [u8; 6] {
    let [high, low] = port.to_be_bytes();
    [2, 0, 0, 0, high, low]
}

/// Asks a port for its description. For modules that hold the [`super::Eal`].
pub(super) fn describe(port: u16) -> Result<PortDescription, DpdkError> {
    // SAFETY: all-zero is a value of the structure, which holds numbers alone.
    let mut raw: sys::ss_port_info = unsafe { std::mem::zeroed() };
    // SAFETY: DPDK is started, as the callers' `Eal` shows; it checks the number and fills the structure in.
    let failed = unsafe { sys::ss_port_info(port, &mut raw) };
    if failed != 0 {
        return Err(DpdkError::Info { port, code: DpdkErrno::of(failed) });
    }
    let can = |what: u32| raw.can & what != 0;
    let driver = c_chars_to_string(&raw.driver);
    // A real device reads memory by itself, and only mapped memory: see `dma`.
    let reads_all = CPU_READ_DRIVERS.contains(&driver.as_str()) && !can(sys::SS_OWN_MEMORY_ONLY);
    let supports_isolation = driver != TAP || can(sys::SS_HAS_REMOTE);
    Ok(PortDescription {
        port,
        name: c_chars_to_string(&raw.name),
        driver,
        sends_in_place: reads_all && can(sys::SS_CAN_SEND_SEGMENTS),
        sends_segments: can(sys::SS_CAN_SEND_SEGMENTS),
        supports_isolation,
        node: u32::try_from(raw.socket).ok(),
        mac: MacAddress(if raw.mac == MacAddress::ZERO.0 { local_mac(port) } else { raw.mac }),
        mtu: raw.mtu,
        max_mtu: if raw.max_mtu == u16::MAX { 0 } else { raw.max_mtu },
        max_queues: raw.max_rx_queues.min(raw.max_tx_queues),
        checks: (can(sys::SS_CAN_CHECK_IP), can(sys::SS_CAN_CHECK_UDP)),
        tx_checksums: (can(sys::SS_CAN_FILL_IP), can(sys::SS_CAN_FILL_UDP)),
        supports_rss: can(sys::SS_CAN_SPREAD),
    })
}

#[cfg(test)]
impl PortDescription {
    /// Returns a device that supports nothing beyond packets.
    pub(super) fn plain() -> PortDescription {
        PortDescription {
            port: 0,
            name: String::new(),
            driver: String::new(),
            node: None,
            mac: MacAddress::ZERO,
            mtu: 1500,
            max_mtu: 0,
            max_queues: 1,
            checks: (false, false),
            tx_checksums: (false, false),
            sends_in_place: false,
            sends_segments: false,
            supports_isolation: false,
            supports_rss: false,
        }
    }
}

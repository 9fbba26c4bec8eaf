//! The memory that a port sends from: any memory, mapped memory of tables, or DPDK's alone.

use super::dma::{DmaMemory, DmaUnavailable};
use super::eal::Eal;
use super::info::PortDescription;
use std::sync::Arc;

/// Drivers that release memory outside of their pools once it has left, with addresses of 64 bits. These are the
/// drivers of DPDK 22.11 that were tried (e1000_em, virtio, vmxnet3), and Intel's others, whose rings do it in the same
/// way.
const ZERO_COPY_DRIVERS: [&str; 11] = [
    "net_e1000_em",
    "net_virtio",
    "net_vmxnet3",
    "net_e1000_igb",
    "net_e1000_igb_vf",
    "net_i40e",
    "net_iavf",
    "net_ice",
    "net_igc",
    "net_ixgbe",
    "net_ixgbe_vf",
];

/// The memory that a port sends from.
#[derive(Clone, Debug)]
pub(super) enum SendMemory {
    /// Any memory: a processor reads it.
    Any,
    /// Memory that was mapped for its device.
    Mapped(Arc<DmaMemory>),
    /// DPDK's memory alone.
    PoolOnly(DmaUnavailable),
}

impl SendMemory {
    /// Decides which memory a port is to send from.
    pub(super) fn of(eal: &Arc<Eal>, dma_from_tables: bool, info: &PortDescription) -> SendMemory {
        if info.sends_in_place {
            return SendMemory::Any;
        }
        let dma = match (dma_from_tables, info.sends_segments) {
            (_, false) => Err(DmaUnavailable::SingleSegment),
            (false, _) => Err(DmaUnavailable::NotRequested),
            (true, true) if !ZERO_COPY_DRIVERS.contains(&info.driver.as_str()) => Err(DmaUnavailable::Driver),
            (true, true) => DmaMemory::of(eal, &mut eal.dma(), info.port, &info.name),
        };
        dma.map_or_else(SendMemory::PoolOnly, SendMemory::Mapped)
    }

    /// Returns whether the port sends these bytes in place.
    #[inline]
    pub(super) fn reach(&self, bytes: &[u8]) -> bool {
        match self {
            SendMemory::Any => true,
            SendMemory::Mapped(dma) => dma.reads(bytes),
            SendMemory::PoolOnly(_) => false,
        }
    }

    /// Returns the memory that was mapped for its device.
    pub(super) fn dma(&self) -> Option<&Arc<DmaMemory>> {
        match self {
            SendMemory::Mapped(dma) => Some(dma),
            _ => None,
        }
    }

    /// Returns the reason why it copies sent bytes; none if it does not.
    pub(super) fn why_not(&self) -> Option<DmaUnavailable> {
        match self {
            SendMemory::PoolOnly(why) => Some(*why),
            _ => None,
        }
    }
}

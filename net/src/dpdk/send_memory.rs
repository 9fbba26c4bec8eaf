//! From where a port sends: from anywhere, from memory of tables that its device was told of, or from DPDK's alone.

use super::dma::{DmaMemory, DmaUnavailable};
use super::eal::Eal;
use super::info::PortDescription;
use std::sync::Arc;

/// Drivers that let go of memory that is not their pool's once it has left, with addresses of 64 bits: those of DPDK
/// 22.11 that were tried (e1000_em, virtio, vmxnet3), and Intel's others, whose rings do it in the same way.
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

/// From where a port sends.
#[derive(Clone, Debug)]
pub(super) enum SendMemory {
    /// From anywhere: a processor reads it.
    Any,
    /// From what its device was told of.
    Mapped(Arc<DmaMemory>),
    /// From DPDK's memory alone.
    PoolOnly(DmaUnavailable),
}

impl SendMemory {
    /// From where a port is to send.
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

    /// Whether it sends these bytes from where they lie.
    #[inline]
    pub(super) fn reach(&self, bytes: &[u8]) -> bool {
        match self {
            SendMemory::Any => true,
            SendMemory::Mapped(dma) => dma.reads(bytes),
            SendMemory::PoolOnly(_) => false,
        }
    }

    /// The memory that its device was told of.
    pub(super) fn told(&self) -> Option<&Arc<DmaMemory>> {
        match self {
            SendMemory::Mapped(dma) => Some(dma),
            _ => None,
        }
    }

    /// Why it copies what it sends; none: it does not.
    pub(super) fn why_not(&self) -> Option<DmaUnavailable> {
        match self {
            SendMemory::PoolOnly(why) => Some(*why),
            _ => None,
        }
    }
}

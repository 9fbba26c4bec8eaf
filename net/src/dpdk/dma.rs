//! Memory of tables that a device reads by itself (DMA).
//!
//! A real device reads memory by its address on the bus, through the IOMMU, and only where it is mapped. On vfio-pci
//! `rte_dev_dma_map` maps it, here with the address that the memory has in this process, as DPDK does it with its own
//! (`--iova-mode=va`). Mapped memory stays resident (it counts against `ulimit -l`). In all other cases values are
//! copied into packets. Without an IOMMU the bus addresses are unknown; where DPDK has the IOMMU translate physical
//! addresses ours could collide with them. A device that is not of the PCI bus reports success and maps nothing. mlx5,
//! which maps memory by itself, rebuilds all its mappings each time some is unmapped, while others send (22.11:
//! `mlx5_common_dev_dma_unmap`). Not every driver keeps memory outside its pool until it has left, or has room for its
//! addresses: `ZERO_COPY_DRIVERS` do.
//!
//! Guarantees: memory that was mapped for a device is not given back to the kernel before it was unmapped.
#![allow(unsafe_code)]

use super::dma_arena::{DmaArena, DmaMapper, UnmapOutcome};
use super::error::DpdkErrno;
use crate::extents::ExtentSource;
use crate::limits::{DMA_EXTENT_BYTES, DMA_EXTENTS, DMA_RETRY_MS};
use sandstorm_dpdk_sys as sys;
use std::fmt;
use std::fs;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The reason why a device reads no memory but DPDK's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaUnavailable {
    /// The options did not ask for it.
    NotRequested,
    /// It sends packets of one piece.
    SingleSegment,
    /// Its driver is none of those that are known to support it.
    Driver,
    /// The device is not on vfio-pci.
    NoVfio,
    /// vfio without an IOMMU: no address is translated, and the bus addresses are unknown.
    NoIommu,
    /// DPDK has the IOMMU translate physical addresses.
    Physical,
    /// No address range to reserve.
    Addresses,
    /// DPDK has no room for external memory.
    Register(DpdkErrno),
    /// DPDK, or the kernel, rejected the mapping.
    Map(DpdkErrno),
    /// Another device of this process reads it.
    OtherDevice,
}

impl fmt::Display for DmaUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DmaUnavailable::NotRequested => f.write_str("it was not asked to send from elsewhere"),
            DmaUnavailable::SingleSegment => f.write_str("its driver sends packets of one piece"),
            DmaUnavailable::Driver => f.write_str("its driver is not known to send from memory that is not DPDK's"),
            DmaUnavailable::NoVfio => f.write_str("it is none on vfio-pci, and reads no memory but DPDK's"),
            DmaUnavailable::NoIommu => f.write_str("vfio runs without an IOMMU"),
            DmaUnavailable::Physical => {
                f.write_str("DPDK has the IOMMU translate physical addresses (its --iova-mode)")
            }
            DmaUnavailable::Addresses => f.write_str("there are no addresses to reserve"),
            DmaUnavailable::Register(code) => write!(f, "DPDK has no room for further memory: {code}"),
            DmaUnavailable::Map(code) => write!(
                f,
                "the kernel maps it no memory: {code}; look at `ulimit -l`, and at how many bits the IOMMU has"
            ),
            DmaUnavailable::OtherDevice => f.write_str("another device of this process reads its tables"),
        }
    }
}

/// Proves that DPDK runs.
///
/// # Safety
/// DPDK has started, and does not end as long as there is an owner of this.
pub(super) unsafe trait RunningDpdk: Send + Sync {}

/// The device that memory is mapped for.
struct DmaDevice {
    device: NonNull<sys::rte_device>,
    eal: Weak<dyn RunningDpdk>,
}

// SAFETY: DPDK keeps the device until it ends, which `eal` is asked of before each use; on vfio mapping takes DPDK's
// own lock.
unsafe impl Send for DmaDevice {}
// SAFETY: as above.
unsafe impl Sync for DmaDevice {}

impl DmaMapper for DmaDevice {
    fn map(&self, at: NonNull<u8>, bytes: usize) -> Result<(), DpdkErrno> {
        let Some(_runs) = self.eal.upgrade() else { return Err(DpdkErrno(libc::ENODEV)) };
        // SAFETY: DPDK runs, so the device is there; the memory is mapped in this process until after `unmap`.
        let failed = unsafe { sys::ss_dma_map(self.device.as_ptr(), at.as_ptr().cast(), bytes) };
        if failed == 0 { Ok(()) } else { Err(DpdkErrno::of(failed)) }
    }

    fn unmap(&self, at: NonNull<u8>, bytes: usize) -> UnmapOutcome {
        // DPDK has ended, or ends: no port is open, nothing is sent any more, and none of these addresses gets other
        // memory (`map`).
        let Some(_runs) = self.eal.upgrade() else { return UnmapOutcome::Released };
        // SAFETY: as in `map`.
        match -unsafe { sys::ss_dma_unmap(self.device.as_ptr(), at.as_ptr().cast(), bytes) } {
            0 => UnmapOutcome::Released,
            // DPDK has no room for the remainders on both sides, and has changed nothing.
            libc::ENOMEM => UnmapOutcome::StillMapped,
            _ => UnmapOutcome::Unknown,
        }
    }
}

/// Memory that a device reads, for tables.
#[derive(Debug)]
pub struct DmaMemory {
    arena: DmaArena<DmaDevice>,
    /// The device's name.
    of: String,
}

impl DmaMemory {
    /// Reserves memory for the device of a port, which DPDK has found. Its addresses suffice for all memory of the
    /// machine.
    pub(super) fn of<E: RunningDpdk + 'static>(
        eal: &Arc<E>,
        cached: &mut Option<Arc<DmaMemory>>,
        port: u16,
        name: &str,
    ) -> Result<Arc<DmaMemory>, DmaUnavailable> {
        if let Some(dma) = cached {
            return if dma.of == name { Ok(Arc::clone(dma)) } else { Err(DmaUnavailable::OtherDevice) };
        }
        check_vfio(name)?;
        // SAFETY: DPDK runs.
        if !unsafe { sys::ss_maps_as_here() } {
            return Err(DmaUnavailable::Physical);
        }
        // SAFETY: DPDK runs; the number is looked up.
        let device =
            NonNull::new(unsafe { sys::ss_device(port) }).ok_or(DmaUnavailable::Map(DpdkErrno(libc::ENOTSUP)))?;
        let extents = machine_bytes().div_ceil(DMA_EXTENT_BYTES).min(DMA_EXTENTS);
        let eal: Weak<E> = Arc::downgrade(eal);
        let device = DmaDevice { device, eal };
        let arena =
            DmaArena::reserve(extents, Duration::from_millis(DMA_RETRY_MS), device).ok_or(DmaUnavailable::Addresses)?;
        let (base, bytes) = arena.range();
        // SAFETY: DPDK runs; the addresses stay reserved as long as the arena.
        let failed = unsafe { sys::ss_dma_register(base.as_ptr().cast(), bytes, DMA_EXTENT_BYTES) };
        if failed != 0 {
            return Err(DmaUnavailable::Register(DpdkErrno::of(failed)));
        }
        let Some(extent) = arena.take() else {
            // SAFETY: registered above, and nothing of it is mapped.
            unsafe { sys::ss_dma_unregister(base.as_ptr().cast(), bytes) };
            return Err(DmaUnavailable::Map(arena.refused().unwrap_or(DpdkErrno(libc::ENOMEM))));
        };
        // SAFETY: just taken, and not used.
        unsafe { arena.give(extent) };
        let dma = Arc::new(DmaMemory { arena, of: name.to_owned() });
        *cached = Some(Arc::clone(&dma));
        Ok(dma)
    }

    /// Returns why the last mapping was refused; none if it was not.
    pub fn refused(&self) -> Option<DpdkErrno> {
        self.arena.refused()
    }

    /// Returns whether the device reads these bytes in place.
    #[inline]
    pub(super) fn reads(&self, bytes: &[u8]) -> bool {
        self.arena.reads(bytes)
    }

    /// Returns the bytes that the device reads for tables.
    pub fn bytes(&self) -> usize {
        self.arena.bytes()
    }
}

// SAFETY: as the arena guarantees.
unsafe impl ExtentSource for DmaMemory {
    fn take(&self) -> Option<NonNull<u8>> {
        self.arena.take()
    }

    fn has(&self, at: usize) -> bool {
        self.arena.has(at)
    }

    unsafe fn give(&self, at: NonNull<u8>) {
        // SAFETY: the caller's promise; whatever is on its way to the device holds its record, and a record its extent.
        unsafe { self.arena.give(at) }
    }
}

/// Checks that a port is a PCI device on vfio-pci, behind an IOMMU. Such ports have the device's name.
fn check_vfio(name: &str) -> Result<(), DmaUnavailable> {
    let device = format!("/sys/bus/pci/devices/{name}");
    let driver = fs::read_link(format!("{device}/driver")).map_err(|_| DmaUnavailable::NoVfio)?;
    if !driver.ends_with("vfio-pci") {
        return Err(DmaUnavailable::NoVfio);
    }
    match fs::read_to_string(format!("{device}/iommu_group/name")) {
        // vfio makes such groups where there is no IOMMU.
        Ok(group) if group.contains("noiommu") => Err(DmaUnavailable::NoIommu),
        _ if !fs::exists(format!("{device}/iommu_group")).unwrap_or_default() => Err(DmaUnavailable::NoIommu),
        _ => Ok(()),
    }
}

/// Returns the bytes of memory that this machine has.
fn machine_bytes() -> usize {
    let info = rustix::system::sysinfo();
    let bytes = info.totalram.saturating_mul(u64::from(info.mem_unit.max(1)));
    usize::try_from(bytes).unwrap_or(usize::MAX / 2)
}

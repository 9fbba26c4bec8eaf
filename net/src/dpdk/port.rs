//! Ports: a network device with its queues, which are handed out once each.

use super::dma::{DmaMemory, DmaUnavailable};
use super::eal::Eal;
use super::error::{DpdkErrno, DpdkError, FlowError, InterruptsUnavailable, RulePart};
use super::info::{AF_XDP_DRIVER, PortDescription, describe};
use super::open_port::{FRAME_OVERHEAD, OpenPort, PortClaim, PortCounters, PortOptions, mtu_to_set};
use super::payload_source::PayloadCounts;
use super::pool::MbufPool;
use super::queue::QueuePair;
use super::rule_errors::isolate;
use super::send_memory::SendMemory;
use crate::limits::{DPDK_POOL_CACHE, DPDK_SPARE_BUFFERS, XDP_FILL_BUFFERS, XDP_HEADROOM};
use crate::rx_budget::RxBufferBudget;
use std::sync::{Arc, Mutex, Weak};

/// An open port.
#[derive(Debug)]
pub struct DpdkPort {
    shared: Arc<OpenPort>,
}

impl DpdkPort {
    /// Opens a port by its name, its number, or an empty string for the only one. Configures it, starts it, and hands
    /// out its queues.
    ///
    /// # Errors
    /// [`DpdkError`]: no such port, one that is open, too many queues, no memory, or its driver's refusal. After an
    /// error nothing is left open.
    pub fn open(eal: &Arc<Eal>, which: &str, options: &PortOptions) -> Result<(DpdkPort, Vec<QueuePair>), DpdkError> {
        let mut info = find_port(eal, which)?;
        let port = info.port;
        if options.queues == 0 || options.queues > info.max_queues {
            return Err(DpdkError::Queues { port, requested: options.queues, most: info.max_queues });
        }
        let (mut claim, eal) = (PortClaim::take(eal, port)?, Arc::clone(eal));
        let mtu = mtu_to_set(options.mtu, &info);
        let reads = SendMemory::of(&eal, options.dma_from_tables, &info);
        info.sends_in_place = reads.why_not().is_none();
        let node = info.node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1);
        let (pools, external_pools) = create_pools(&eal, options, &info, mtu, node)?;
        let most = rx_zero_copy_buffers_per_queue(options, &info);
        let buffer = usize::from(mtu) + usize::from(FRAME_OVERHEAD);
        let rx_budgets = (0..options.queues).map(|_| Arc::new(RxBufferBudget::new(most, buffer))).collect();
        // Asked for its default mode, the driver shows whether it knows isolation at all.
        let supports_isolation = if info.supports_isolation { isolate(port, false) } else { Err(no_remote_error()) };
        info.supports_isolation = supports_isolation.is_ok();
        if options.isolate {
            // Refused before anything is set up, so that the port can be opened without it.
            supports_isolation.map_err(|why| DpdkError::Isolation { port, why })?;
        }
        claim.start(options, &info, &pools)?;
        // memif has no such setting, and its packets are as large as its buffers: both sides' own sizes matter.
        info.mtu = if info.is_shared_memory() { mtu } else { describe(port)?.mtu };
        if !options.checksums {
            (info.checks, info.tx_checksums) = ((false, false), (false, false));
        }
        let groups = Mutex::new(vec![Vec::new(); usize::from(options.queues)]);
        let rx_descriptors = u32::from(options.rx_descriptors);
        let checksums_optional = options.checksums && info.stays_in_memory();
        let ends = (0..options.queues).map(|_| PayloadCounts::default()).collect();
        let shared = OpenPort {
            claim,
            info,
            checksums_optional,
            rx_descriptors,
            groups,
            pools,
            external_pools,
            reads,
            ends,
            rx_budgets,
            eal,
        };
        let shared = Arc::new(shared);
        let queues = (0..options.queues).map(|queue| QueuePair::new(Arc::clone(&shared), queue)).collect();
        Ok((DpdkPort { shared }, queues))
    }

    /// Returns the device's description, with the features that were switched on.
    pub fn info(&self) -> &PortDescription {
        &self.shared.info
    }

    /// Returns whether the link is up.
    pub fn is_up(&self) -> bool {
        self.shared.is_up()
    }

    /// Returns the reason why no interrupts wake waiting threads; none if they do.
    pub fn interrupts_unavailable(&self) -> Option<InterruptsUnavailable> {
        self.shared.interrupts().why_not()
    }

    /// Returns the device's counters; zeros if it does not count.
    pub fn counters(&self) -> PortCounters {
        self.shared.counters()
    }

    /// Returns the number of buffers in use of all its pools.
    pub fn buffers_in_use(&self) -> u32 {
        self.shared.pools.iter().chain(&self.shared.external_pools).map(MbufPool::in_use).sum()
    }

    /// Returns the memory that was mapped for the device, for tables. None if a processor reads sent bytes, or if the
    /// device reads DPDK's memory alone.
    pub fn dma(&self) -> Option<&Arc<DmaMemory>> {
        self.shared.reads.dma()
    }

    /// Returns the reason why values are copied into packets; none if they are sent in place.
    pub fn copies(&self) -> Option<DmaUnavailable> {
        self.shared.reads.why_not()
    }

    /// Returns a watch, which reads the status while the port is open, without keeping it open.
    pub fn watch(&self) -> PortWatch {
        PortWatch { port: Arc::downgrade(&self.shared) }
    }

    pub(super) fn shared(&self) -> &Arc<OpenPort> {
        &self.shared
    }
}

/// Reads the status of a port, from any thread.
#[derive(Clone, Debug)]
pub struct PortWatch {
    port: Weak<OpenPort>,
}

impl PortWatch {
    /// Returns the status. None if the port is closed.
    pub fn look(&self) -> Option<PortStatus> {
        let port = self.port.upgrade()?;
        let refused = port.reads.dma().and_then(|dma| dma.refused());
        let (up, counters, interrupts_unavailable) = (port.is_up(), port.counters(), port.interrupts().why_not());
        Some(PortStatus { up, refused, counters, interrupts_unavailable })
    }
}

/// The status of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// The link is up.
    pub up: bool,
    /// The reason why the last mapping of table memory was refused; none if it was not.
    pub refused: Option<DpdkErrno>,
    /// The device's counters.
    pub counters: PortCounters,
    /// The reason why no interrupts wake waiting threads; none if they do.
    pub interrupts_unavailable: Option<InterruptsUnavailable>,
}

/// Finds the port of this name or number, or the only one.
pub(super) fn find_port(eal: &Eal, which: &str) -> Result<PortDescription, DpdkError> {
    let mut ports = eal.ports()?;
    let number = which.parse().ok();
    let at = match (which, ports.as_slice()) {
        ("", [_]) => Some(0),
        _ => ports.iter().position(|info| info.name == which || Some(info.port) == number),
    };
    match at {
        Some(at) => Ok(ports.swap_remove(at)),
        None => {
            let names: Vec<String> =
                ports.iter().map(|info| format!("{} ({}, {})", info.port, info.name, info.driver)).collect();
            let present = if names.is_empty() {
                "none; bind a device to vfio-pci, or add --vdev to --eal".to_owned()
            } else {
                names.join(", ")
            };
            Err(DpdkError::NoPort { requested: which.to_owned(), present })
        }
    }
}

/// Returns the error of net_tap without an interface to share: it accepts isolation, and then drops all unmatched
/// packets.
fn no_remote_error() -> FlowError {
    let message = "its arguments name no interface to share: add remote=NAME to its --vdev".to_owned();
    FlowError { part: RulePart::Unspecified, code: DpdkErrno(libc::ENOTSUP), message }
}

/// Returns the number of buffers of each queue that may be kept.
fn rx_zero_copy_buffers_per_queue(options: &PortOptions, info: &PortDescription) -> u32 {
    // A peer can change shared buffers (memif's zero-copy) as long as it likes. AF_XDP's buffers are the kernel's, too,
    // and keeping them was not tried.
    let is_own = info.driver != AF_XDP_DRIVER && (!info.is_shared_memory() || info.sends_in_place);
    if is_own { options.kept_buffers / u32::from(options.queues) } else { 0 }
}

/// Creates a pool of buffers for each queue. If the port sends from external memory, also one of buffers for that.
fn create_pools(
    eal: &Arc<Eal>,
    options: &PortOptions,
    info: &PortDescription,
    mtu: u16,
    node: i32,
) -> Result<(Vec<MbufPool>, Vec<MbufPool>), DpdkError> {
    // Each worker's cache of a pool may hold one and a half times its size.
    let cached = u32::from(options.queues) * (DPDK_POOL_CACHE + DPDK_POOL_CACHE / 2);
    let frame = mtu.saturating_add(FRAME_OVERHEAD);
    let shares = u32::from(options.tx_descriptors) + DPDK_SPARE_BUFFERS + cached;
    let share_queues = if info.sends_in_place { options.queues } else { 0 };
    let external_pools =
        (0..share_queues).map(|_| MbufPool::for_external_buffers(eal, shares, node)).collect::<Result<_, _>>()?;
    let pool = |_| {
        if info.driver != AF_XDP_DRIVER {
            let buffers = shares + u32::from(options.rx_descriptors);
            return MbufPool::new(
                eal,
                buffers.saturating_add(rx_zero_copy_buffers_per_queue(options, info)),
                frame,
                node,
            );
        }
        // The driver registers as much memory with the kernel as its buffers take side by side, from the first on.
        // Memory behind that is silently neither sent nor received into; other pools leave the end of each page free.
        let buffers = shares + u32::from(options.rx_descriptors.max(XDP_FILL_BUFFERS));
        MbufPool::contiguous(eal, buffers, frame.saturating_add(XDP_HEADROOM), node)
    };
    Ok(((0..options.queues).map(pool).collect::<Result<_, _>>()?, external_pools))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_keeps_the_mtu_that_it_has_and_gets_the_one_that_is_asked_for() {
        let info = |mtu, max_mtu| PortDescription { mtu, max_mtu, ..PortDescription::plain() };
        for (requested, mtu, max_mtu, set) in [
            (None, 9000, 0, 9000),
            (None, 9000, 9216, 9000),
            (None, 1500, 1280, 1280),
            (Some(9000), 9000, 9216, 9000),
            (Some(9000), 1500, 9216, 9000),
            // The device refuses this, in words.
            (Some(9000), 1500, 1500, 9000),
        ] {
            assert_eq!(mtu_to_set(requested, &info(mtu, max_mtu)), set, "{requested:?} {mtu} {max_mtu}");
        }
    }
}

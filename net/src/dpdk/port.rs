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

/// A port that runs.
#[derive(Debug)]
pub struct DpdkPort {
    shared: Arc<OpenPort>,
}

impl DpdkPort {
    /// Opens a port by its name, its number, or an empty string: the only one. Configures it, starts it, and hands out
    /// its queues.
    ///
    /// # Errors
    /// [`DpdkError`]: no such port, one that is open, too many queues, no memory, or what its driver refuses. Nothing
    /// stays behind.
    pub fn open(eal: &Arc<Eal>, which: &str, options: &PortOptions) -> Result<(DpdkPort, Vec<QueuePair>), DpdkError> {
        let mut info = find_port(eal, which)?;
        let port = info.port;
        if options.queues == 0 || options.queues > info.max_queues {
            return Err(DpdkError::Queues { port, asked: options.queues, most: info.max_queues });
        }
        let (mut claim, eal) = (PortClaim::take(eal, port)?, Arc::clone(eal));
        let mtu = mtu_to_set(options.mtu, &info);
        let reads = SendMemory::of(&eal, options.dma_from_tables, &info);
        info.sends_in_place = reads.why_not().is_none();
        let node = info.node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1);
        let (pools, external_pools) = create_pools(&eal, options, &info, mtu, node)?;
        let most = held_buffers_per_queue(options, &info);
        let buffer = usize::from(mtu) + usize::from(FRAME_OVERHEAD);
        let kept = (0..options.queues).map(|_| Arc::new(RxBufferBudget::new(most, buffer))).collect();
        // Asked for what it does anyway, it says whether it knows of this at all.
        let supports_isolation = if info.supports_isolation { isolate(port, false) } else { Err(no_remote_error()) };
        info.supports_isolation = supports_isolation.is_ok();
        if options.isolate {
            // Refused before anything is set up, so that the port can be had without.
            supports_isolation.map_err(|why| DpdkError::Isolation { port, why })?;
        }
        claim.start(options, &info, &pools)?;
        // memif has no such setting, and its packets are as large as their places: both sides' own matter.
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
            kept,
            eal,
        };
        let shared = Arc::new(shared);
        let queues = (0..options.queues).map(|queue| QueuePair::new(Arc::clone(&shared), queue)).collect();
        Ok((DpdkPort { shared }, queues))
    }

    /// What the device is, and what was switched on of what it can do.
    pub fn info(&self) -> &PortDescription {
        &self.shared.info
    }

    /// Whether the other end is there.
    pub fn is_up(&self) -> bool {
        self.shared.is_up()
    }

    /// Why no interrupts wake those who wait for packets; none: they do.
    pub fn interrupts_unavailable(&self) -> Option<InterruptsUnavailable> {
        self.shared.interrupts().why_not()
    }

    /// What the device has counted; zeros if it does not count.
    pub fn counters(&self) -> PortCounters {
        self.shared.counters()
    }

    /// Buffers that are out of all its pools: in queues, or held.
    pub fn buffers_in_use(&self) -> u32 {
        self.shared.pools.iter().chain(&self.shared.external_pools).map(MbufPool::in_use).sum()
    }

    /// Memory that the device was told of, for tables; none if a processor reads what is sent, or if it reads DPDK's
    /// memory alone.
    pub fn dma(&self) -> Option<&Arc<DmaMemory>> {
        self.shared.reads.told()
    }

    /// Why values are copied into packets; none: they are sent from where they are stored.
    pub fn copies(&self) -> Option<DmaUnavailable> {
        self.shared.reads.why_not()
    }

    /// To ask how it stands for as long as it is open, without keeping it open.
    pub fn watch(&self) -> PortWatch {
        PortWatch { port: Arc::downgrade(&self.shared) }
    }

    pub(super) fn shared(&self) -> &Arc<OpenPort> {
        &self.shared
    }
}

/// Asks how a port stands, from anywhere.
#[derive(Clone, Debug)]
pub struct PortWatch {
    port: Weak<OpenPort>,
}

impl PortWatch {
    /// How it stands. None: the port is closed.
    pub fn look(&self) -> Option<PortStatus> {
        let port = self.port.upgrade()?;
        let refused = port.reads.told().and_then(|dma| dma.refused());
        let (up, counters, interrupts_unavailable) = (port.is_up(), port.counters(), port.interrupts().why_not());
        Some(PortStatus { up, refused, counters, interrupts_unavailable })
    }
}

/// How a port stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// The other end is there.
    pub up: bool,
    /// Why the device was told of no more memory of tables when it was last to be; none: it was.
    pub refused: Option<DpdkErrno>,
    /// What the device has counted.
    pub counters: PortCounters,
    /// Why no interrupts wake those who wait for packets; none: they do.
    pub interrupts_unavailable: Option<InterruptsUnavailable>,
}

/// The port of this name or number, or the only one.
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
            Err(DpdkError::NoPort { asked: which.to_owned(), present })
        }
    }
}

/// net_tap without an interface to share says yes to isolation, and then drops what no rule names.
fn no_remote_error() -> FlowError {
    let message = "its arguments name no interface to share: add remote=NAME to its --vdev".to_owned();
    FlowError { part: RulePart::Unspecified, code: DpdkErrno(libc::ENOTSUP), message }
}

/// Buffers of each queue that may be kept.
fn held_buffers_per_queue(options: &PortOptions, info: &PortDescription) -> u32 {
    // What a peer shares (memif's zero-copy) it can change as long as it likes; AF_XDP's buffers are the kernel's, too,
    // and it was not tried there.
    let is_own = info.driver != AF_XDP_DRIVER && (!info.is_shared_memory() || info.sends_in_place);
    if is_own { options.kept_buffers / u32::from(options.queues) } else { 0 }
}

/// For each queue, a pool of buffers, and one of those that stand for bytes elsewhere if the port sends such.
fn create_pools(
    eal: &Arc<Eal>,
    options: &PortOptions,
    info: &PortDescription,
    mtu: u16,
    node: i32,
) -> Result<(Vec<MbufPool>, Vec<MbufPool>), DpdkError> {
    // Each worker's cache may hold half as much again as its size, of each pool.
    let cached = u32::from(options.queues) * (DPDK_POOL_CACHE + DPDK_POOL_CACHE / 2);
    let frame = mtu.saturating_add(FRAME_OVERHEAD);
    let shares = u32::from(options.tx_descriptors) + DPDK_SPARE_BUFFERS + cached;
    let share_queues = if info.sends_in_place { options.queues } else { 0 };
    let external_pools =
        (0..share_queues).map(|_| MbufPool::for_external_buffers(eal, shares, node)).collect::<Result<_, _>>()?;
    let pool = |_| {
        if info.driver != AF_XDP_DRIVER {
            let buffers = shares + u32::from(options.rx_descriptors);
            return MbufPool::new(eal, buffers.saturating_add(held_buffers_per_queue(options, info)), frame, node);
        }
        // It tells the kernel of as much memory as its buffers take side by side, from the first on. What lies behind
        // that is neither sent nor received into, without a word; pools otherwise leave the end of each page free.
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
        for (asked, mtu, max_mtu, set) in [
            (None, 9000, 0, 9000),
            (None, 9000, 9216, 9000),
            (None, 1500, 1280, 1280),
            (Some(9000), 9000, 9216, 9000),
            (Some(9000), 1500, 9216, 9000),
            // Which the device refuses, in words.
            (Some(9000), 1500, 1500, 9000),
        ] {
            assert_eq!(mtu_to_set(asked, &info(mtu, max_mtu)), set, "{asked:?} {mtu} {max_mtu}");
        }
    }
}

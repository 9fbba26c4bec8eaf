//! Ports: a network device with its queues.
//!
//! Guarantees: a port has one owner in this process. It is configured before it starts, its queues are handed out once
//! each, and it stops and closes when its owner, all its queues, its rules and everything received from it have gone;
//! its pools go after it.
#![allow(unsafe_code)]

use super::dma::{DmaMemory, DmaUnavailable, SendMemory};
use super::eal::Eal;
use super::error::{ConfigureStage, DpdkErrno, DpdkError, FlowError, InterruptsUnavailable, RulePart};
use super::flow::isolate;
use super::info::{AF_XDP_DRIVER, INTERRUPTLESS_DRIVERS, PortDescription, describe};
use super::interrupt::PortInterrupts;
use super::payload_source::PayloadCounts;
use super::pool::MbufPool;
use super::queue::QueuePair;
use crate::limits::{DPDK_DESCRIPTORS, DPDK_POOL_CACHE, DPDK_SPARE_BUFFERS, XDP_FILL_BUFFERS, XDP_HEADROOM};
use crate::rx_budget::RxBufferBudget;
use crate::stack::MacAddress;
use sandstorm_dpdk_sys as sys;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes of a frame around an IP packet: addresses and type, and one VLAN tag.
pub(super) const FRAME_OVERHEAD: u16 = 18;

/// How to open a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Queues each way.
    pub queues: u16,
    /// Packets that a receive queue holds; the driver may round. Default [`DPDK_DESCRIPTORS`].
    pub rx_descriptors: u16,
    /// The same of a transmit queue.
    pub tx_descriptors: u16,
    /// Bytes of the largest IP packet; none: as the device has it.
    pub mtu: Option<u16>,
    /// Let the device check and fill in checksums where it can. Default: true.
    pub checksums: bool,
    /// Take only what a rule names, and leave the rest to the kernel, on devices that it shares. Default: false.
    pub isolate: bool,
    /// Buffers of all queues together that may be taken out ([`crate::stack::FramePort::take`]) and kept: pools have as
    /// many more. Default: 0.
    pub kept_buffers: u32,
    /// Have the device, if it reads memory by itself, send from that of tables ([`DpdkPort::dma`]). Default: false.
    pub dma_from_tables: bool,
    /// Have receive queues interrupt where the driver can, once [`crate::stack::FramePort::arm`] asks for it. Default:
    /// false.
    pub interrupts: bool,
}

impl PortOptions {
    /// So many queues, all else by default.
    pub fn new(queues: u16) -> PortOptions {
        PortOptions {
            queues,
            rx_descriptors: DPDK_DESCRIPTORS,
            tx_descriptors: DPDK_DESCRIPTORS,
            mtu: None,
            checksums: true,
            isolate: false,
            kept_buffers: 0,
            dma_from_tables: false,
            interrupts: false,
        }
    }
}

/// What a device has counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost because a receive queue was full.
    pub missed: u64,
    /// Packets that came damaged.
    pub receive_errors: u64,
    /// Packets that could not be sent.
    pub send_errors: u64,
    /// Packets lost because a pool was empty.
    pub no_buffer: u64,
    /// Buffers that were taken out and are kept now.
    pub kept: u64,
    /// Packets that were worth keeping and had to be copied, since as many were kept as may be, or were to wait as
    /// copies.
    pub not_kept: u64,
    /// Packets whose last bytes were sent from where they are stored.
    pub in_place: u64,
    /// Packets whose last bytes were copied, though they are stored where they stay.
    pub copied: u64,
    /// Bytes of tables that the device reads by itself.
    pub reads_bytes: u64,
    /// Interrupts that came to workers that waited for one.
    pub interrupts: u64,
}

/// A port that runs.
#[derive(Debug)]
pub struct DpdkPort {
    shared: Arc<OpenPort>,
}

/// What a port, its queues and its rules share. The order of the fields is that in which they go.
pub(super) struct OpenPort {
    claim: PortClaim,
    pub(super) info: PortDescription,
    /// Nobody needs checksums of UDP: packets stay in this machine's memory.
    pub(super) checksums_optional: bool,
    /// Packets that a receive queue holds.
    pub(super) rx_descriptors: u32,
    /// Groups listened to, each queue's. Whoever asks or sets something of the whole device holds this: drivers allow
    /// one at a time.
    groups: Mutex<Vec<Vec<MacAddress>>>,
    pub(super) pools: Vec<MbufPool>,
    /// One for each queue, of buffers for what is sent from elsewhere; none if the port does not do that.
    pub(super) external_pools: Vec<MbufPool>,
    /// From where it sends.
    pub(super) reads: SendMemory,
    /// What each queue has sent.
    pub(super) ends: Vec<PayloadCounts>,
    /// What was taken out of each queue.
    pub(super) kept: Vec<Arc<RxBufferBudget>>,
    pub(super) eal: Arc<Eal>,
}

impl std::fmt::Debug for OpenPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenPort").field("info", &self.info).field("pools", &self.pools).finish_non_exhaustive()
    }
}

/// The right to a port; its end closes it.
struct PortClaim {
    port: u16,
    configured: bool,
    started: bool,
    /// Go after the port has stopped.
    interrupts: PortInterrupts,
    eal: Arc<Eal>,
}

impl PortClaim {
    /// Configures the port and starts it, with interrupts if they are asked for and can be had.
    fn start(&mut self, options: &PortOptions, info: &PortDescription, pools: &[MbufPool]) -> Result<(), DpdkError> {
        self.configured = true;
        let never = INTERRUPTLESS_DRIVERS.contains(&info.driver.as_str());
        let why = match (options.interrupts, never) {
            (false, _) => InterruptsUnavailable::NotRequested,
            (true, true) => InterruptsUnavailable::Driver,
            (true, false) => match self.start_as(options, info, pools, true) {
                Ok(()) => {
                    self.interrupts = PortInterrupts::of(self.port, options.queues);
                    let Some(why) = self.interrupts.why_not() else { return Ok(()) };
                    why
                }
                Err(DpdkError::Configure { stage, code, .. }) => InterruptsUnavailable::Refused { stage, code },
                Err(other) => return Err(other),
            },
        };
        if std::mem::take(&mut self.started) {
            // SAFETY: the port is claimed and runs; nobody has a queue of it yet.
            unsafe { sys::rte_eth_dev_stop(self.port) };
        }
        self.interrupts = PortInterrupts::without(why);
        self.start_as(options, info, pools, false)
    }

    fn start_as(
        &mut self,
        options: &PortOptions,
        info: &PortDescription,
        pools: &[MbufPool],
        interrupts: bool,
    ) -> Result<(), DpdkError> {
        let port = self.port;
        configure(port, options, info, pools, interrupts)?;
        if options.isolate {
            // Not earlier: net_tap forgets it where it has no queues yet, and keeps taking all.
            isolate(port, true).map_err(|why| DpdkError::Isolation { port, why })?;
        }
        // SAFETY: the port is claimed and configured.
        let failed = unsafe { sys::rte_eth_dev_start(port) };
        self.started = failed == 0;
        if self.started {
            Ok(())
        } else {
            Err(DpdkError::Configure { port, stage: ConfigureStage::Start, code: DpdkErrno::of(failed) })
        }
    }
}

impl Drop for PortClaim {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the port; queues and rules hold it, so there are none.
        unsafe {
            if self.started {
                sys::rte_eth_dev_stop(self.port);
            }
            if self.configured {
                sys::rte_eth_dev_close(self.port);
            }
        }
        self.eal.release(self.port);
    }
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
        eal.claim(port)?;
        let (interrupts, eal) = (PortInterrupts::without(InterruptsUnavailable::NotRequested), Arc::clone(eal));
        let mut claim = PortClaim { port, configured: false, started: false, interrupts, eal: Arc::clone(&eal) };
        let mtu = mtu_to_set(options.mtu, &info);
        let reads = SendMemory::of(&eal, options, &info);
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

impl OpenPort {
    pub(super) fn number(&self) -> u16 {
        self.claim.port
    }

    pub(super) fn interrupts(&self) -> &PortInterrupts {
        &self.claim.interrupts
    }

    fn one_at_a_time(&self) -> MutexGuard<'_, Vec<Vec<MacAddress>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_up(&self) -> bool {
        let _one_asks = self.one_at_a_time();
        // SAFETY: the port is open, and nobody else asks.
        unsafe { sys::ss_port_link(self.claim.port) == 1 }
    }

    pub(super) fn counters(&self) -> PortCounters {
        // SAFETY: all-zero is a value of the structure, which holds numbers alone.
        let mut said: sys::ss_port_stats = unsafe { std::mem::zeroed() };
        let _one_asks = self.one_at_a_time();
        // SAFETY: the port is open, and nobody else asks; the structure is filled in, with zeros if the driver does not
        // count.
        unsafe { sys::ss_port_stats(self.claim.port, &mut said) };
        PortCounters {
            received: said.received,
            sent: said.sent,
            missed: said.missed,
            receive_errors: said.receive_errors,
            send_errors: said.send_errors,
            no_buffer: said.no_buffer,
            kept: self.kept.iter().map(|kept| u64::from(kept.out())).sum(),
            not_kept: self.kept.iter().map(|kept| kept.refused()).sum(),
            in_place: self.ends.iter().map(|ends| ends.get().0).sum(),
            copied: self.ends.iter().map(|ends| ends.get().1).sum(),
            reads_bytes: self.reads.told().map_or(0, |dma| dma.bytes() as u64),
            interrupts: self.interrupts().came(),
        }
    }

    /// Lets frames to the groups of all queues in. Whether it does: a device that knows no groups lets all in.
    pub(super) fn listen(&self, queue: u16, groups: &[MacAddress]) -> bool {
        let mut all = self.one_at_a_time();
        if let Some(own) = all.get_mut(usize::from(queue)) {
            own.clear();
            own.extend_from_slice(groups);
        }
        let mut union: Vec<[u8; 6]> = all.iter().flatten().map(|group| group.0).collect();
        union.sort_unstable();
        union.dedup();
        // SAFETY: the port is open; so many addresses of six bytes lie there during the call, which copies them.
        let failed = unsafe { sys::ss_port_listen(self.claim.port, union.as_ptr().cast(), union.len() as u32) };
        failed == 0 || DpdkErrno::of(failed).is_unsupported()
    }
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

/// The MTU that a device is configured with. To leave that out is not to leave it as it is: DPDK then sets 1500.
fn mtu_to_set(asked: Option<u16>, info: &PortDescription) -> u16 {
    let most = if info.max_mtu == 0 { u16::MAX } else { info.max_mtu };
    asked.unwrap_or(info.mtu.min(most))
}

fn configure(
    port: u16,
    options: &PortOptions,
    info: &PortDescription,
    pools: &[MbufPool],
    interrupts: bool,
) -> Result<(), DpdkError> {
    let checksums = sys::SS_CAN_CHECK_IP | sys::SS_CAN_CHECK_UDP | sys::SS_CAN_FILL_IP | sys::SS_CAN_FILL_UDP;
    let want = if options.checksums { checksums } else { 0 };
    let conf = sys::ss_port_conf {
        queues: options.queues,
        rx_descriptors: options.rx_descriptors,
        tx_descriptors: options.tx_descriptors,
        mtu: if info.is_shared_memory() { info.mtu } else { mtu_to_set(options.mtu, info) },
        want: want | sys::SS_CAN_SPREAD | sys::SS_CAN_SEND_SEGMENTS,
        interrupts: u32::from(interrupts),
    };
    let pointers: Vec<_> = pools.iter().map(MbufPool::pointer).collect();
    let mut stage = 0;
    // SAFETY: the port is claimed and not started; there is a pool for each queue, and pools outlive the port.
    let failed = unsafe { sys::ss_port_configure(port, &conf, pointers.as_ptr(), &mut stage) };
    if failed == 0 {
        return Ok(());
    }
    let stage = match stage {
        sys::SS_STAGE_MTU => ConfigureStage::Mtu,
        sys::SS_STAGE_RX_QUEUE => ConfigureStage::ReceiveQueue,
        sys::SS_STAGE_TX_QUEUE => ConfigureStage::TransmitQueue,
        _ => ConfigureStage::Device,
    };
    Err(DpdkError::Configure { port, stage, code: DpdkErrno::of(failed) })
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

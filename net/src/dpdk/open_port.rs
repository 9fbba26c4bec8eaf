//! The state of an open port, which its owner, its queues and its rules share.
//!
//! Guarantees: a port has one owner in this process. It is configured before it starts. It stops and closes when its
//! owner, all its queues, its rules and everything received from it have gone; its pools go after it.
#![allow(unsafe_code)]

use super::eal::Eal;
use super::error::{ConfigureStage, DpdkErrno, DpdkError, InterruptsUnavailable};
use super::info::{INTERRUPTLESS_DRIVERS, PortDescription};
use super::interrupt::PortInterrupts;
use super::payload_source::PayloadCounts;
use super::pool::MbufPool;
use super::rule_errors::isolate;
use super::send_memory::SendMemory;
use crate::limits::DPDK_DESCRIPTORS;
use crate::rx_budget::RxBufferBudget;
use crate::stack::MacAddress;
use sandstorm_dpdk_sys as sys;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a frame around an IP packet: addresses and type, and one VLAN tag.
pub(super) const FRAME_OVERHEAD: u16 = 18;

/// The options of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Queues in each direction.
    pub queues: u16,
    /// Packets that a receive queue holds; the driver may round. Default [`DPDK_DESCRIPTORS`].
    pub rx_descriptors: u16,
    /// Packets that a transmit queue holds.
    pub tx_descriptors: u16,
    /// Bytes of the largest IP packet; none: the device's own setting.
    pub mtu: Option<u16>,
    /// Let the device check and fill in checksums where it can. Default: true.
    pub checksums: bool,
    /// Receive only packets that a rule matches, and leave the others to the kernel, on devices that it shares.
    /// Default: false.
    pub isolate: bool,
    /// Buffers of all queues together that may be taken out ([`crate::stack::FramePort::take`]) and kept: pools have as
    /// many more. Default: 0.
    pub kept_buffers: u32,
    /// If the device reads memory by itself, have it send from that of tables ([`super::DpdkPort::dma`]).
    /// Default: false.
    pub dma_from_tables: bool,
    /// Have receive queues interrupt where the driver can, once [`crate::stack::FramePort::arm`] asks for it. Default:
    /// false.
    pub interrupts: bool,
}

impl PortOptions {
    /// Returns options with so many queues and all defaults.
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

/// A device's counters since it started.
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
    pub rx_retained: u64,
    /// Packets that were worth keeping but had to be copied, since the limit of kept buffers was reached, or they were
    /// to wait as copies.
    pub rx_copied: u64,
    /// Packets whose last bytes were sent in place.
    pub in_place: u64,
    /// Packets whose last bytes were copied, though they are stored in shared memory.
    pub copied: u64,
    /// Bytes of tables that the device reads by itself.
    pub reads_bytes: u64,
    /// Interrupts that came to workers that waited for one.
    pub interrupts: u64,
}

/// The state that a port, its queues and its rules share. The fields are dropped in their order.
pub(super) struct OpenPort {
    pub(super) claim: PortClaim,
    pub(super) info: PortDescription,
    /// UDP checksums are not needed: packets stay in this machine's memory.
    pub(super) checksums_optional: bool,
    /// Packets that a receive queue holds.
    pub(super) rx_descriptors: u32,
    /// The groups of each queue. Threads that ask or set the whole device lock this: drivers allow one at a time.
    pub(super) groups: Mutex<Vec<Vec<MacAddress>>>,
    pub(super) pools: Vec<MbufPool>,
    /// One pool for each queue, of buffers for external memory; none if the port does not send from there.
    pub(super) external_pools: Vec<MbufPool>,
    /// The memory that the port sends from.
    pub(super) reads: SendMemory,
    /// Counters of the packets that each queue has sent.
    pub(super) ends: Vec<PayloadCounts>,
    /// The budgets of buffers taken out of each queue.
    pub(super) rx_budgets: Vec<Arc<RxBufferBudget>>,
    pub(super) eal: Arc<Eal>,
}

impl std::fmt::Debug for OpenPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenPort").field("info", &self.info).field("pools", &self.pools).finish_non_exhaustive()
    }
}

/// The right to a port; dropping it closes the port.
pub(super) struct PortClaim {
    port: u16,
    configured: bool,
    started: bool,
    /// Dropped after the port has stopped.
    interrupts: PortInterrupts,
    eal: Arc<Eal>,
}

impl PortClaim {
    /// Claims the port, which must not be claimed yet.
    pub(super) fn take(eal: &Arc<Eal>, port: u16) -> Result<PortClaim, DpdkError> {
        eal.claim(port)?;
        let (interrupts, eal) = (PortInterrupts::without(InterruptsUnavailable::NotRequested), Arc::clone(eal));
        Ok(PortClaim { port, configured: false, started: false, interrupts, eal })
    }

    /// Configures the port and starts it, with interrupts if they are requested and supported.
    pub(super) fn start(
        &mut self,
        options: &PortOptions,
        info: &PortDescription,
        pools: &[MbufPool],
    ) -> Result<(), DpdkError> {
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
            // SAFETY: the port is claimed and runs; no thread has a queue of it yet.
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
            // Not earlier: net_tap forgets the isolation while it has no queues, and keeps receiving all.
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
        let _query_lock = self.one_at_a_time();
        // SAFETY: the port is open, and no other thread asks.
        unsafe { sys::ss_port_link(self.claim.port) == 1 }
    }

    pub(super) fn counters(&self) -> PortCounters {
        // SAFETY: all-zero is a value of the structure, which holds numbers alone.
        let mut raw: sys::ss_port_stats = unsafe { std::mem::zeroed() };
        let _query_lock = self.one_at_a_time();
        // SAFETY: the port is open, and no other thread asks; the structure is filled in, with zeros if the driver does
        // not count.
        unsafe { sys::ss_port_stats(self.claim.port, &mut raw) };
        PortCounters {
            received: raw.received,
            sent: raw.sent,
            missed: raw.missed,
            receive_errors: raw.receive_errors,
            send_errors: raw.send_errors,
            no_buffer: raw.no_buffer,
            rx_retained: self.rx_budgets.iter().map(|budget| u64::from(budget.out())).sum(),
            rx_copied: self.rx_budgets.iter().map(|budget| budget.refused()).sum(),
            in_place: self.ends.iter().map(|ends| ends.get().0).sum(),
            copied: self.ends.iter().map(|ends| ends.get().1).sum(),
            reads_bytes: self.reads.dma().map_or(0, |dma| dma.bytes() as u64),
            interrupts: self.interrupts().arrived(),
        }
    }

    /// Lets frames to the groups of all queues in. Returns whether it does: a device without group filters lets all in.
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

/// Returns the MTU that a device is configured with. Omitting it does not keep the old one: DPDK then sets 1500.
pub(super) fn mtu_to_set(requested: Option<u16>, info: &PortDescription) -> u16 {
    let most = if info.max_mtu == 0 { u16::MAX } else { info.max_mtu };
    requested.unwrap_or(info.mtu.min(most))
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

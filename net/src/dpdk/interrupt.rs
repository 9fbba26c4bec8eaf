//! Interrupts of receive queues, which wake sleeping workers where a device offers them.
//!
//! Guarantees: the descriptor that a driver's interrupts go to stays open until the port has stopped, which detaches
//! them. Queues' interrupts are armed and disarmed one call at a time for the whole port: some drivers keep those of
//! all queues in one word.
#![allow(unsafe_code)]

use super::error::{ConfigureStage, DpdkErrno, InterruptsUnavailable};
use crate::stack::InterruptFault;
use rustix::event::epoll::{CreateFlags, create};
use sandstorm_dpdk_sys as sys;
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

fn refusal(returned: i32) -> InterruptsUnavailable {
    InterruptsUnavailable::Refused { stage: ConfigureStage::Interrupt, code: DpdkErrno::of(returned) }
}

/// Checks that a port that was started has an interrupt for each of so many queues.
fn check_supported(port: u16, queues: u16) -> Result<(), InterruptsUnavailable> {
    let mut descriptors = BTreeSet::new();
    for queue in 0..queues {
        // SAFETY: the caller's port runs; these are calls of numbers alone. On and off again shows that the driver has
        // it.
        let (failed, descriptor) = unsafe {
            let on = sys::rte_eth_dev_rx_intr_enable(port, queue);
            let failed = if on == 0 { sys::rte_eth_dev_rx_intr_disable(port, queue) } else { on };
            (failed, if failed == 0 { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port, queue) } else { -1 })
        };
        if failed != 0 || descriptor < 0 {
            return Err(refusal(failed));
        }
        if !descriptors.insert(descriptor) {
            return Err(InterruptsUnavailable::Shared);
        }
    }
    Ok(())
}

/// The interrupts of a port's queues; none, and the reason.
#[derive(Debug)]
pub(super) struct PortInterrupts {
    queues: Vec<QueueInterrupt>,
    without: Option<InterruptsUnavailable>,
    one_at_a_time: Mutex<()>,
}

/// The interrupt of one queue.
#[derive(Debug)]
struct QueueInterrupt {
    /// An epoll descriptor, readable once an interrupt has come.
    events: Arc<OwnedFd>,
    arrived: AtomicU64,
    /// 0, or why it is not used any more: the index in [`InterruptFault::ALL`], from 1 on.
    forgone: AtomicU8,
}

impl PortInterrupts {
    /// Returns a port without interrupts.
    pub(super) fn without(why: InterruptsUnavailable) -> PortInterrupts {
        PortInterrupts { queues: Vec::new(), without: Some(why), one_at_a_time: Mutex::default() }
    }

    /// Sets up the interrupts of the first `queues` queues of a port that was started and asked for them, off until
    /// they are armed. If that fails, there are none. The result must live until the port has stopped in any case.
    pub(super) fn of(port: u16, queues: u16) -> PortInterrupts {
        let mut all = PortInterrupts { queues: Vec::new(), without: None, one_at_a_time: Mutex::default() };
        all.without = check_supported(port, queues).and_then(|()| all.collect(port, queues)).err();
        all
    }

    /// Connects each queue's interrupt to a descriptor of its own.
    fn collect(&mut self, port: u16, queues: u16) -> Result<(), InterruptsUnavailable> {
        for queue in 0..queues {
            let events = create(CreateFlags::CLOEXEC).map_err(|_| InterruptsUnavailable::Descriptor)?;
            let (epoll, arrived, forgone) = (events.as_raw_fd(), AtomicU64::new(0), AtomicU8::new(0));
            self.queues.push(QueueInterrupt { events: Arc::new(events), arrived, forgone });
            // SAFETY: the port runs; the descriptor is an epoll one, and open until the port has stopped, which takes
            // DPDK's pointer off it.
            let failed = unsafe { sys::ss_interrupts_to(port, queue, epoll) };
            if failed != 0 {
                return Err(refusal(failed));
            }
        }
        Ok(())
    }

    /// Returns the reason why no interrupts are used; none if they are.
    pub(super) fn why_not(&self) -> Option<InterruptsUnavailable> {
        let given = self.queues.iter().find_map(|queue| {
            let index = usize::from(queue.forgone.load(Relaxed)).checked_sub(1)?;
            InterruptFault::ALL.get(index).copied()
        });
        self.without.or(given.map(InterruptsUnavailable::Faulty))
    }

    /// Returns how many interrupts have come to waiting workers.
    pub(super) fn arrived(&self) -> u64 {
        self.queues.iter().map(|queue| queue.arrived.load(Relaxed)).sum()
    }

    fn queue(&self, queue: u16) -> Option<&QueueInterrupt> {
        self.queues.get(usize::from(queue))
    }

    /// Returns the descriptor that is readable once an interrupt has come for this queue.
    pub(super) fn descriptor(&self, queue: u16) -> Option<Arc<OwnedFd>> {
        self.queue(queue).map(|queue| Arc::clone(&queue.events))
    }

    /// Arms or disarms the interrupt for the next frame of a queue. Returns whether the driver did it.
    pub(super) fn set(&self, port: u16, queue: u16, on: bool) -> bool {
        let _one_sets = self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        if self.queue(queue).is_none() {
            return false;
        }
        // SAFETY: the port runs, which the owner of a queue of it sees to; both are calls of numbers alone.
        let failed = unsafe {
            if on {
                sys::rte_eth_dev_rx_intr_enable(port, queue)
            } else {
                sys::rte_eth_dev_rx_intr_disable(port, queue)
            }
        };
        failed == 0
    }

    /// Returns whether an interrupt has come since the last call. For the thread that owns the queue.
    pub(super) fn take(&self, queue: u16) -> bool {
        let Some(queue) = self.queue(queue) else { return false };
        // SAFETY: the descriptor is an epoll one that is open, and holds what DPDK has put there alone.
        let arrived = unsafe { sys::ss_interrupted(queue.events.as_raw_fd()) } > 0;
        if arrived {
            queue.arrived.fetch_add(1, Relaxed);
        }
        arrived
    }

    /// Stops using this queue's interrupt.
    pub(super) fn forgo(&self, queue: u16, why: InterruptFault) {
        let index = InterruptFault::ALL.iter().position(|one| *one == why).unwrap_or(0);
        if let Some(queue) = self.queue(queue) {
            queue.forgone.store(index as u8 + 1, Relaxed);
        }
    }
}

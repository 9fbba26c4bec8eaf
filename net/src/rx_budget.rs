//! Counts the packet buffers that are out of a receive queue: those of waiting datagrams, and those with stored values.
//!
//! The driver takes a buffer before the sender is known. Once it is known, the code that queues its datagrams decides
//! whether they wait in their buffers, for which a part of all buffers is reserved.

use crate::limits::{DPDK_QUEUED_BUFFER_PARTS, DPDK_ZERO_COPY_MIN_BYTES, DPDK_ZERO_COPY_MIN_PARTS};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The buffers of one queue. Queues have threads of their own, so each stands on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct RxBufferBudget {
    most: u32,
    value_bytes: usize,
    /// Out of the queue, stored or not.
    out: AtomicU32,
    /// The part of these in which a value is stored.
    stored: AtomicU32,
    refused: AtomicU64,
}

impl RxBufferBudget {
    /// Makes a budget of `most` buffers, each for a packet of `buffer_bytes` bytes.
    pub fn new(most: u32, buffer_bytes: usize) -> RxBufferBudget {
        let value_bytes = DPDK_ZERO_COPY_MIN_BYTES.max(buffer_bytes / DPDK_ZERO_COPY_MIN_PARTS);
        RxBufferBudget {
            most,
            value_bytes,
            out: AtomicU32::new(0),
            stored: AtomicU32::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns the most that may be out.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Bytes of a value from which on it is worth the whole buffer in which it came.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Returns the number that are out.
    pub fn out(&self) -> u32 {
        self.out.load(Relaxed)
    }

    /// Returns the number in which a value is stored.
    pub fn stored(&self) -> u32 {
        self.stored.load(Relaxed)
    }

    /// Returns the number of refused requests for one.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Returns the number that are out and store no value.
    pub fn waiting(&self) -> u32 {
        self.out().saturating_sub(self.stored())
    }

    /// Returns the most that may be out and store no value.
    pub fn max_waiting(&self) -> u32 {
        self.most.div_ceil(DPDK_QUEUED_BUFFER_PARTS)
    }

    /// Takes one, unless as many are out as may be; for one thread at a time. Other threads may only give back during
    /// it.
    pub fn take(&self) -> bool {
        let may = self.out() < self.most;
        if may {
            self.out.fetch_add(1, Relaxed);
        } else {
            self.refuse();
        }
        may
    }

    /// Counts a refused request for one.
    pub fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// One is back.
    pub fn give_back(&self) {
        self.out.fetch_sub(1, Relaxed);
    }

    /// A value is stored in one that is out.
    pub fn store(&self) {
        self.stored.fetch_add(1, Relaxed);
    }

    /// The value in one is gone; its buffer is given back next.
    pub fn let_go(&self) {
        self.stored.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_waits_until_a_value_is_stored_in_it_and_is_no_more_than_may_be() {
        let budget = RxBufferBudget::new(9, 2000);
        let fill = || (0..100).filter(|_| budget.take()).count();
        assert_eq!((fill(), budget.out(), budget.waiting(), budget.refused()), (9, 9, 9, 91));
        (0..6).for_each(|_| budget.store());
        assert_eq!((fill(), budget.out(), budget.stored(), budget.waiting()), (0, 9, 6, 3));
        (0..4).for_each(|_| {
            budget.let_go();
            budget.give_back();
        });
        assert_eq!((fill(), budget.out(), budget.stored(), budget.waiting()), (4, 9, 2, 7));
        assert_eq!((budget.max_waiting(), RxBufferBudget::new(1, 2000).max_waiting()), (5, 1), "half of all");
        assert!(!RxBufferBudget::new(0, 2000).take());
    }

    #[test]
    fn a_value_is_worth_a_buffer_of_which_it_fills_a_good_part() {
        assert_eq!(RxBufferBudget::new(1, 1518).value_bytes(), DPDK_ZERO_COPY_MIN_BYTES);
        assert_eq!(RxBufferBudget::new(1, 9018).value_bytes(), 9018 / DPDK_ZERO_COPY_MIN_PARTS);
    }
}

//! How many packet buffers of a receive queue are out of it: those of datagrams that wait, and those in which values
//! are stored.
//!
//! Who receives takes a buffer before anything is known of its sender. Once that is known, whoever has these wait
//! decides whether they do so in their buffers, of which a part of all is for that.

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
    /// Of these, those in which a value is stored.
    stored: AtomicU32,
    refused: AtomicU64,
}

impl RxBufferBudget {
    /// So many may be out; each is for a packet of `buffer_bytes` bytes.
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

    /// How many may be out.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Bytes of a value from which on it is worth the whole buffer in which it came.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// How many are out.
    pub fn out(&self) -> u32 {
        self.out.load(Relaxed)
    }

    /// In how many a value is stored.
    pub fn stored(&self) -> u32 {
        self.stored.load(Relaxed)
    }

    /// How many were asked for in vain.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// How many are out in which no value is stored.
    pub fn waiting(&self) -> u32 {
        self.out().saturating_sub(self.stored())
    }

    /// How many of these there are to be.
    pub fn max_waiting(&self) -> u32 {
        self.most.div_ceil(DPDK_QUEUED_BUFFER_PARTS)
    }

    /// Takes one, unless as many are out as may be; for one thread at a time. Others only give back meanwhile.
    pub fn take(&self) -> bool {
        let may = self.out() < self.most;
        if may {
            self.out.fetch_add(1, Relaxed);
        } else {
            self.refuse();
        }
        may
    }

    /// One was asked for in vain.
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

    /// That value is gone; its buffer goes after it.
    pub fn let_go(&self) {
        self.stored.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_waits_until_a_value_is_stored_in_it_and_is_no_more_than_may_be() {
        let kept = RxBufferBudget::new(9, 2000);
        let fill = || (0..100).filter(|_| kept.take()).count();
        assert_eq!((fill(), kept.out(), kept.waiting(), kept.refused()), (9, 9, 9, 91));
        (0..6).for_each(|_| kept.store());
        assert_eq!((fill(), kept.out(), kept.stored(), kept.waiting()), (0, 9, 6, 3));
        (0..4).for_each(|_| {
            kept.let_go();
            kept.give_back();
        });
        assert_eq!((fill(), kept.out(), kept.stored(), kept.waiting()), (4, 9, 2, 7));
        assert_eq!((kept.max_waiting(), RxBufferBudget::new(1, 2000).max_waiting()), (5, 1), "half of all");
        assert!(!RxBufferBudget::new(0, 2000).take());
    }

    #[test]
    fn a_value_is_worth_a_buffer_of_which_it_fills_a_good_part() {
        assert_eq!(RxBufferBudget::new(1, 1518).value_bytes(), DPDK_ZERO_COPY_MIN_BYTES);
        assert_eq!(RxBufferBudget::new(1, 9018).value_bytes(), 9018 / DPDK_ZERO_COPY_MIN_PARTS);
    }
}

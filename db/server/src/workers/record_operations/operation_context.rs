//! The context of a message's operations besides the table.

use std::cell::Cell;

use sandstorm_metrics::WorkerCounters;
use sandstorm_store::{Participant, ScanBudget};

use crate::workers::rx_zero_copy::ZeroCopyPacket;

/// The context of a plain operation besides the table.
pub(crate) struct OperationContext<'w> {
    pub(crate) participant: &'w Participant,
    pub(crate) now_ms: u64,
    pub(crate) counters: &'w WorkerCounters,
    pub(crate) ranges: &'w RangeWork,
    /// The message's packet, if it is still in the buffer that it was received into: a large value may stay there.
    pub(crate) packet: Option<ZeroCopyPacket<'w>>,
}

/// The scan work of one message's ranges, and the requests that ranges and writes cost beyond the usual.
pub(crate) struct RangeWork {
    pub(super) scan_budget: Cell<ScanBudget>,
    /// Requests beyond those that admission has counted: for what ranges have scanned, and what writes have evicted.
    deferred_requests: Cell<u32>,
}

impl RangeWork {
    pub(crate) fn new() -> RangeWork {
        RangeWork { scan_budget: Cell::new(ScanBudget::MESSAGE), deferred_requests: Cell::new(0) }
    }

    /// Adds requests that are to be billed.
    pub(super) fn owe(&self, requests: usize) {
        self.deferred_requests
            .set(self.deferred_requests.get().saturating_add(u32::try_from(requests).unwrap_or(u32::MAX)));
    }

    /// Requests that are still to be billed.
    #[inline]
    pub(crate) fn deferred_requests(&self) -> u32 {
        self.deferred_requests.get()
    }

    /// Takes the owed requests, which are billed now.
    pub(crate) fn take_deferred(&self) -> u32 {
        self.deferred_requests.take()
    }
}

impl Default for RangeWork {
    fn default() -> RangeWork {
        RangeWork::new()
    }
}

//! The budget of one piece: about a slice's worth of work, and the operation that ends it.

use std::cell::Cell;

use sandstorm_dialects::limits::MULTIGET_KEYS;
use sandstorm_dialects::limits::protocols::{CONTENDED_PIECE_WORK, PIECE_WORK};
use sandstorm_net::rpc::{COMMIT_STEPS, OpKind, Operation};

use crate::limits::{COPY_BYTES_PER_GET, POSITION_REQUESTS};

/// The number of plain gets that take as long as copying so many bytes.
pub(super) fn copy_cost_gets(bytes: usize) -> u32 {
    (bytes / COPY_BYTES_PER_GET) as u32
}

/// The work of one piece, and the part that is done. The unit is bytes that are moved; a plain request counts as many
/// as can be copied in its time.
pub(super) struct PieceBudget {
    limit: u64,
    used: u64,
}

impl PieceBudget {
    /// A piece; a shorter one where two tenants have sent requests lately.
    pub(super) fn new(is_contended: bool) -> PieceBudget {
        let requests = if is_contended { CONTENDED_PIECE_WORK } else { PIECE_WORK };
        PieceBudget { limit: u64::from(requests) * COPY_BYTES_PER_GET as u64, used: 0 }
    }

    /// Counts work that was done.
    #[inline]
    pub(super) fn spend(&mut self, requests: u32, bytes: usize) {
        self.used += u64::from(requests) * COPY_BYTES_PER_GET as u64 + bytes as u64;
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.used >= self.limit
    }

    /// The work that was done, in plain requests.
    pub(super) fn requests(&self) -> u64 {
        self.used / COPY_BYTES_PER_GET as u64
    }
}

/// The number of requests that an operation counts as.
#[inline]
pub(super) fn operation_requests(operation: &Operation<'_>) -> u32 {
    match operation.op {
        OpKind::MultiGet => operation.number.clamp(1, MULTIGET_KEYS) as u32,
        OpKind::Range => u64::from(operation.number as u32).clamp(1, MULTIGET_KEYS) as u32,
        OpKind::Commit => operation.number.clamp(1, COMMIT_STEPS as u64) as u32,
        OpKind::Count | OpKind::Rank | OpKind::Nth => POSITION_REQUESTS,
        OpKind::Ping
        | OpKind::Hello
        | OpKind::Get
        | OpKind::Put
        | OpKind::Delete
        | OpKind::Increment
        | OpKind::Invoke
        | OpKind::Ttl
        | OpKind::Touch => 1,
    }
}

/// The work that was done of a message in one piece.
#[derive(Default)]
pub(super) struct MessageWork {
    requests: Cell<u32>,
    bytes: Cell<usize>,
}

impl MessageWork {
    #[inline]
    pub(super) fn add(&self, requests: u32, bytes: usize) {
        self.requests.set(self.requests.get().saturating_add(requests));
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests.get()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }
}

/// The end of a piece: the number of a message in its batch, and its first operation that was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceEnd {
    pub(super) number: usize,
    pub(super) index: usize,
}

//! Messages that had not finished when a piece was over. Their bytes and their answers so far are kept. They continue
//! in a further turn of their tenant's flow ([`super::ingress`]), so that other tenants have theirs in between.

use std::sync::Arc;

use sandstorm_catalog::TenantView;
use sandstorm_net::r2p2::PeerAddr;
use sandstorm_net::rpc::{MessageHeader, Operation, OperationIter};

use super::cold_wait::ColdWait;
use super::record_operations::operation_context::RangeWork;
use super::response_assembly::{RequestOrigin, ResponseId};

/// A message that has not finished, without its bytes.
pub(super) struct SuspendedMessage {
    /// Its number in the batch in which it was last run.
    pub(super) number: usize,
    pub(super) origin: RequestOrigin<PeerAddr>,
    pub(super) response_id: Option<ResponseId>,
    pub(super) view: Arc<TenantView>,
    pub(super) ranges: RangeWork,
    /// How far the log has to be on the disk before these may leave.
    pub(super) shown: u64,
    /// The index of its first operation that was not run.
    pub(super) index: usize,
    /// The answers to those before; empty if there are none.
    pub(super) response: Vec<u8>,
    /// The cold records that it waits for.
    pub(super) cold: ColdWait,
}

/// A message that waits for a further turn of its tenant's flow.
pub(super) struct PostponedMessage {
    pub(super) message: Vec<u8>,
    pub(super) suspended: SuspendedMessage,
}

impl PostponedMessage {
    /// A tenant's message of which nothing was run.
    #[cfg(test)]
    pub(super) fn unbegun(view: &Arc<TenantView>, message: Vec<u8>) -> PostponedMessage {
        let (header, _) = MessageHeader::decode(&message).expect("a message");
        let query = super::pending_queries::QueryTag::NONE;
        let peer = ([127, 0, 0, 1], 1).into();
        let origin = RequestOrigin { peer, request_id: 1, header, remembered: false, query, received_ns: 0 };
        let (view, ranges, response) = (Arc::clone(view), RangeWork::new(), Vec::new());
        let suspended = SuspendedMessage {
            number: 0,
            origin,
            response_id: None,
            view,
            ranges,
            shown: 0,
            index: 0,
            response,
            cold: ColdWait::default(),
        };
        PostponedMessage { message, suspended }
    }

    /// Its tenant's id.
    pub(super) fn tenant(&self) -> u32 {
        self.suspended.origin.header.tenant
    }

    /// Its tenant's weight.
    pub(super) fn weight(&self) -> u32 {
        self.suspended.view.tenant.quotas.weight
    }

    /// Bytes of its memory.
    pub(super) fn bytes(&self) -> usize {
        self.message.capacity() + self.suspended.response.capacity() + size_of::<PostponedMessage>()
    }

    /// The operations that were not run.
    pub(super) fn rest(&self) -> Option<(Operation<'_>, OperationIter<'_>)> {
        // It was well-formed when it was admitted.
        let (_, mut operations) = MessageHeader::decode(&self.message).ok()?;
        let first = operations.nth(self.suspended.index)?.ok()?;
        Some((first, operations))
    }
}

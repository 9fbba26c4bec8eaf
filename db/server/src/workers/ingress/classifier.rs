//! Finds the flow that a datagram belongs to.

use sandstorm_catalog::DirectorySnapshot;
use sandstorm_net::driver::socket_filter::claimed_tenant;
use sandstorm_net::r2p2::PeerAddr;
use sandstorm_net::rx_budget::RxBufferBudget;

use crate::limits::TENANT_TO_UNAUTHENTICATED_WEIGHT;
use crate::workers::verified_peers::VerifiedPeers;

/// A flow: a tenant's, or that of all unauthenticated senders.
pub(in crate::workers) type FlowKey = Option<u32>;

/// Finds the flow of each datagram.
pub(in crate::workers) struct DatagramClassifier<'s> {
    pub(in crate::workers) snapshot: &'s DirectorySnapshot,
    pub(in crate::workers) verified_peers: &'s mut VerifiedPeers,
    pub(in crate::workers) now_us: u64,
    /// The device buffers in which datagrams may wait.
    pub(in crate::workers) rx_budget: Option<&'s RxBufferBudget>,
    /// The last answer: datagrams come in runs.
    pub(in crate::workers) last: Option<(PeerAddr, Option<u32>, FlowKey)>,
}

impl DatagramClassifier<'_> {
    /// Whether a datagram is of the same flow as the last one: it comes from the same peer and names the same tenant.
    #[inline]
    pub(super) fn matches_last(&self, peer: PeerAddr, datagram: &[u8]) -> bool {
        self.last.is_some_and(|(last, named, _)| named == claimed_tenant(datagram) && last == peer)
    }

    /// The flow of a datagram.
    pub(super) fn flow(&mut self, peer: PeerAddr, datagram: &[u8]) -> FlowKey {
        if let Some((_, _, flow)) = self.last
            && self.matches_last(peer, datagram)
        {
            return flow;
        }
        let named = claimed_tenant(datagram);
        let flow = match named {
            Some(tenant) => match self.snapshot.tenant(tenant) {
                Some(view) if view.tenant.open || self.verified_peers.allows(peer, tenant, self.now_us) => Some(tenant),
                _ => None,
            },
            // Acks and packets of longer messages name no tenant.
            None => self.verified_peers.tenant_of(peer, self.now_us),
        };
        self.last = Some((peer, named, flow));
        flow
    }

    /// The weight of a flow, in quarters of a usual tenant's.
    pub(super) fn weight(&self, flow: FlowKey) -> u64 {
        let tenant = flow.and_then(|tenant| self.snapshot.tenant(tenant));
        tenant.map_or(1, |view| u64::from(view.tenant.quotas.weight) * TENANT_TO_UNAUTHENTICATED_WEIGHT)
    }
}

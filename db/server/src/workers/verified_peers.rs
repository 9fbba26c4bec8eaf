//! The addresses that have shown a tenant's token on a port. They only decide in which flow a datagram waits and which
//! are dropped first; admission decides for each message what it may do. The number of addresses is limited: at the
//! limit, the tenant that has brought most addresses loses its oldest.

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;
use sandstorm_net::r2p2::PeerAddr;

use crate::limits::VERIFIED_PEER_US;

/// Tenants that are remembered for one address. An address that acts for more is unverified now and then.
const TENANTS_PER_PEER: usize = 4;

#[derive(Debug, Default)]
struct VerifiedPeer {
    /// Newest first; 0: none.
    tenants: [u32; TENANTS_PER_PEER],
    seen_us: u64,
}

/// The verified addresses: see the head of this file.
pub(super) struct VerifiedPeers {
    limit: usize,
    peers: HashMap<PeerAddr, VerifiedPeer>,
    /// The addresses that each tenant was the first to act from, in the order in which they came.
    brought: HashMap<u32, VecDeque<PeerAddr>>,
    /// These tenants by the number of their addresses.
    tenants_by_count: BTreeSet<(usize, u32)>,
    /// Grows with each new address.
    changes: u64,
    /// What was noted last: all packets of a burst mostly say the same.
    last: Option<(PeerAddr, u32, u64)>,
}

impl VerifiedPeers {
    /// A table for `limit` addresses.
    pub(super) fn new(limit: usize) -> VerifiedPeers {
        VerifiedPeers {
            limit: limit.max(1),
            peers: HashMap::new(),
            brought: HashMap::new(),
            tenants_by_count: BTreeSet::new(),
            changes: 0,
            last: None,
        }
    }

    /// Notes that the address has shown the token of a tenant (or the tenant needs none).
    pub(super) fn note(&mut self, peer: PeerAddr, tenant: u32, now_us: u64) {
        if self.last.replace((peer, tenant, now_us)) == Some((peer, tenant, now_us)) {
            return;
        }
        let entry = self.peers.entry(peer).or_default();
        let new = entry.tenants == [0; TENANTS_PER_PEER];
        entry.seen_us = now_us;
        if !entry.tenants.contains(&tenant) {
            self.changes += 1;
            entry.tenants.rotate_right(1);
            entry.tenants[0] = tenant;
        }
        if new {
            self.change(tenant, |own| own.push_back(peer));
        }
        while self.peers.len() > self.limit {
            let Some(&(_, largest)) = self.tenants_by_count.last() else { return };
            let mut oldest = None;
            self.change(largest, |own| oldest = own.pop_front());
            let Some(oldest) = oldest else { return };
            self.peers.remove(&oldest);
        }
    }

    /// Changes the list of addresses that a tenant has brought, and its rank among the tenants.
    fn change(&mut self, tenant: u32, change: impl FnOnce(&mut VecDeque<PeerAddr>)) {
        let own = self.brought.entry(tenant).or_default();
        self.tenants_by_count.remove(&(own.len(), tenant));
        change(own);
        if own.is_empty() {
            self.brought.remove(&tenant);
        } else {
            self.tenants_by_count.insert((own.len(), tenant));
        }
    }

    /// Whether the address has shown the token of that tenant.
    pub(super) fn allows(&mut self, peer: PeerAddr, tenant: u32, now_us: u64) -> bool {
        let Some(entry) = self.peers.get_mut(&peer).filter(|entry| entry.tenants.contains(&tenant)) else {
            return false;
        };
        self.changes += u64::from(now_us - entry.seen_us.min(now_us) > VERIFIED_PEER_US);
        entry.seen_us = now_us;
        true
    }

    /// The tenant for which the address has acted last.
    pub(super) fn tenant_of(&mut self, peer: PeerAddr, now_us: u64) -> Option<u32> {
        let entry = self.peers.get_mut(&peer)?;
        entry.seen_us = now_us;
        Some(entry.tenants[0]).filter(|tenant| *tenant != 0)
    }

    /// Grows when an address is new, or sends again after a long time.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Recently active addresses that act for a tenant not in `throttled`; at most `limit` and one more.
    pub(super) fn unthrottled_peers(
        &self,
        now_us: u64,
        throttled: impl Fn(u32) -> bool,
        limit: usize,
    ) -> Vec<PeerAddr> {
        let recent = |entry: &VerifiedPeer| now_us.saturating_sub(entry.seen_us) <= VERIFIED_PEER_US;
        let friend = |entry: &VerifiedPeer| entry.tenants.iter().any(|tenant| *tenant != 0 && !throttled(*tenant));
        let friends = self.peers.iter().filter(|(_, entry)| recent(entry) && friend(entry));
        friends.map(|(peer, _)| *peer).take(limit + 1).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> PeerAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn an_address_is_known_for_the_tenants_whose_token_it_showed_and_no_other() {
        let mut known = VerifiedPeers::new(2);
        known.note(peer(1), 7, 0);
        known.note(peer(1), 8, 0);
        assert!(known.allows(peer(1), 7, 1) && known.allows(peer(1), 8, 1) && !known.allows(peer(1), 9, 1));
        assert!(!known.allows(peer(2), 7, 1) && !known.allows(peer(1), 0, 1) || known.tenant_of(peer(2), 1).is_none());
        assert_eq!(known.tenant_of(peer(1), 1), Some(8));
        for tenant in 20..30 {
            known.note(peer(1), tenant, 2);
        }
        assert!(known.allows(peer(1), 29, 2) && !known.allows(peer(1), 7, 2), "few tenants for one address");
        known.note(peer(2), 7, 3);
        known.note(peer(3), 7, 3);
        assert!(!known.allows(peer(1), 29, 3) && known.allows(peer(2), 7, 3), "the oldest address has left");
    }

    #[test]
    fn a_tenant_that_acts_from_addresses_without_end_pushes_out_its_own() {
        let mut known = VerifiedPeers::new(100);
        (0..10).for_each(|port| known.note(peer(port), 1, 0));
        for port in 1000..20_000 {
            known.note(peer(port), 2, 1);
        }
        assert!((0..10).all(|port| known.allows(peer(port), 1, 2)), "who has few keeps them");
        known.note(peer(50), 3, 2);
        assert!(known.allows(peer(50), 3, 2), "and who comes late is let in");
        assert_eq!((known.peers.len(), known.brought.values().map(VecDeque::len).sum::<usize>()), (100, 100));
        assert_eq!(known.tenants_by_count.iter().map(|(number, _)| number).sum::<usize>(), 100);
    }

    #[test]
    fn an_address_that_has_lost_its_place_gets_it_back_when_it_shows_its_token_again() {
        let mut known = VerifiedPeers::new(1);
        for _ in 0..3 {
            for port in [1, 1, 2, 2] {
                known.note(peer(port), 7, 0);
                assert!(known.allows(peer(port), 7, 0), "port {port}");
            }
        }
    }

    #[test]
    fn friends_are_those_heard_of_lately_whose_tenant_is_not_throttled() {
        let mut known = VerifiedPeers::new(100);
        (0..10).for_each(|port| known.note(peer(port), 1 + u32::from(port % 2), 0));
        assert_eq!(known.unthrottled_peers(0, |tenant| tenant == 1, 100).len(), 5);
        assert_eq!(
            known.unthrottled_peers(0, |_| false, 3).len(),
            4,
            "one more than the limit tells that there are more"
        );
        let later = VERIFIED_PEER_US + 1;
        let before = known.changes();
        assert!(known.allows(peer(3), 2, later) && known.changes() > before);
        assert_eq!(known.unthrottled_peers(later, |_| false, 100), [peer(3)]);
    }
}

//! Which sessions have presented which tenant's token on a port. Bounded: the oldest leave first, and a client that is
//! told `Unauthenticated` presents its token again.

use std::collections::VecDeque;
use std::hash::Hash;

use hashbrown::HashMap;

/// Authenticated sessions of one port, by peer and session number.
pub(crate) struct Sessions<P> {
    limit: usize,
    tenants: HashMap<(P, u64), u32>,
    /// In the order in which they were let in; entries of sessions that were let in again or removed are stale.
    order: VecDeque<(P, u64)>,
}

impl<P: Copy + Eq + Hash> Sessions<P> {
    /// Room for `limit` sessions.
    pub(crate) fn new(limit: usize) -> Sessions<P> {
        Sessions { limit, tenants: HashMap::new(), order: VecDeque::new() }
    }

    /// Lets a session act for a tenant from here on (and for no other).
    pub(crate) fn admit(&mut self, peer: P, session: u64, tenant: u32) {
        if self.tenants.insert((peer, session), tenant).is_some() {
            return;
        }
        self.order.push_back((peer, session));
        while self.tenants.len() > self.limit {
            let Some(oldest) = self.order.pop_front() else { return };
            self.tenants.remove(&oldest);
        }
    }

    /// Whether the session may act for the tenant.
    pub(crate) fn allows(&self, peer: P, session: u64, tenant: u32) -> bool {
        self.tenants.get(&(peer, session)) == Some(&tenant)
    }

    /// Forgets all sessions of a tenant: it was deleted, or its token was changed.
    pub(crate) fn forget(&mut self, tenant: u32) {
        self.tenants.retain(|_, of| *of != tenant);
        let tenants = &self.tenants;
        self.order.retain(|name| tenants.contains_key(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_acts_for_the_tenant_whose_token_it_showed_and_no_other() {
        let mut sessions = Sessions::new(10);
        sessions.admit(1u8, 100, 7);
        assert!(sessions.allows(1, 100, 7));
        assert!(!sessions.allows(1, 100, 8) && !sessions.allows(1, 101, 7) && !sessions.allows(2, 100, 7));
        sessions.admit(1, 100, 8);
        assert!(sessions.allows(1, 100, 8) && !sessions.allows(1, 100, 7));
        sessions.forget(8);
        assert!(!sessions.allows(1, 100, 8));
    }

    #[test]
    fn the_oldest_sessions_leave_when_there_is_no_room() {
        let mut sessions = Sessions::new(3);
        for session in 0..10 {
            sessions.admit(1u8, session, 7);
            sessions.admit(1u8, session, 7);
        }
        let left: Vec<u64> = (0..10).filter(|session| sessions.allows(1, *session, 7)).collect();
        assert_eq!(left, [7, 8, 9]);
        assert_eq!((sessions.tenants.len(), sessions.order.len()), (3, 3));
    }
}

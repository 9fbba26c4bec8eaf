//! Which sessions have shown which credential on a port. A tenant whose token is changed gets a new credential, so no
//! session has to be looked for then. Bounded: the oldest leave first, and a client that is
//! told `Unauthenticated` presents its token again.

use std::collections::VecDeque;
use std::hash::Hash;

use hashbrown::HashMap;

/// Authenticated sessions of one port, by peer and session number.
pub(crate) struct Sessions<P> {
    limit: usize,
    credentials: HashMap<(P, u64), u64>,
    /// In the order in which they were let in; entries of sessions that were let in again or removed are stale.
    order: VecDeque<(P, u64)>,
    /// The session that was looked up last: packets come in runs.
    last: Option<((P, u64), u64)>,
}

impl<P: Copy + Eq + Hash> Sessions<P> {
    /// Room for `limit` sessions.
    pub(crate) fn new(limit: usize) -> Sessions<P> {
        Sessions { limit, credentials: HashMap::new(), order: VecDeque::new(), last: None }
    }

    /// Lets a session act under a credential from here on (and under no other).
    pub(crate) fn admit(&mut self, peer: P, session: u64, credential: u64) {
        self.last = None;
        if self.credentials.insert((peer, session), credential).is_some() {
            return;
        }
        self.order.push_back((peer, session));
        while self.credentials.len() > self.limit {
            let Some(oldest) = self.order.pop_front() else { return };
            self.credentials.remove(&oldest);
        }
    }

    /// Whether the session has shown that credential.
    pub(crate) fn allows(&mut self, peer: P, session: u64, credential: u64) -> bool {
        let name = (peer, session);
        if self.last.as_ref().is_none_or(|(last, _)| *last != name) {
            self.last = self.credentials.get(&name).map(|shown| (name, *shown));
        }
        self.last.as_ref().is_some_and(|(_, shown)| *shown == credential)
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
        assert_eq!((sessions.credentials.len(), sessions.order.len()), (3, 3));
    }
}

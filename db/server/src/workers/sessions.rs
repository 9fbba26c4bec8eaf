//! The sessions that have authenticated on a port, each with its credential. A tenant whose token is changed gets a new
//! credential, so its sessions need not be found then. The number of sessions is limited. At the limit, the tenant with
//! the most sessions loses its oldest, so a tenant that opens sessions without end loses its own. A client that gets
//! `Unauthenticated` presents its token again.
//!
//! A session is also identified by its home address: the address that its token came from. For a bound session it is an
//! address that stands for all addresses ([`sandstorm_net::reply_cache::session_addr`]), and the address of its last
//! message is noted.

use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;

use hashbrown::HashMap;

/// Home address, session number and tenant.
type SessionKey<P> = (P, u64, u32);

/// The credential of a session.
#[derive(Clone, Copy)]
struct SessionCredential<P> {
    credential: u64,
    /// The address that its last message came from.
    verified: P,
}

/// Authenticated sessions of one port.
pub(crate) struct AuthenticatedSessions<P> {
    limit: usize,
    /// The presented credentials.
    shown: HashMap<SessionKey<P>, SessionCredential<P>>,
    /// Each tenant's sessions in the order of their admission.
    tenants: HashMap<u32, VecDeque<(P, u64)>>,
    /// The tenants by the number of their sessions.
    tenants_by_count: BTreeSet<(usize, u32)>,
    /// The session that was looked up last: packets come in runs.
    last: Option<(SessionKey<P>, SessionCredential<P>)>,
}

impl<P: Copy + Eq + Hash> AuthenticatedSessions<P> {
    /// A table for `limit` sessions.
    pub(crate) fn new(limit: usize) -> AuthenticatedSessions<P> {
        AuthenticatedSessions {
            limit,
            shown: HashMap::new(),
            tenants: HashMap::new(),
            tenants_by_count: BTreeSet::new(),
            last: None,
        }
    }

    /// Allows a session to act for a tenant with this credential from now on, and with no other of that tenant.
    pub(crate) fn admit(&mut self, (home, verified): (P, P), session: u64, tenant: u32, credential: u64) {
        self.last = None;
        if self.shown.insert((home, session, tenant), SessionCredential { credential, verified }).is_some() {
            return;
        }
        let name = (home, session);
        self.change(tenant, |own| own.push_back(name));
        while self.shown.len() > self.limit {
            let Some(&(_, largest)) = self.tenants_by_count.last() else { return };
            let mut oldest = None;
            self.change(largest, |own| oldest = own.pop_front());
            let Some((home, session)) = oldest else { return };
            self.shown.remove(&(home, session, largest));
        }
    }

    /// Changes the list of a tenant's sessions, and its rank among the tenants.
    fn change(&mut self, tenant: u32, change: impl FnOnce(&mut VecDeque<(P, u64)>)) {
        let own = self.tenants.entry(tenant).or_default();
        self.tenants_by_count.remove(&(own.len(), tenant));
        change(own);
        if own.is_empty() {
            self.tenants.remove(&tenant);
        } else {
            self.tenants_by_count.insert((own.len(), tenant));
        }
    }

    /// The credential of the tenant that the session has presented.
    #[inline]
    pub(crate) fn shown(&mut self, home: P, session: u64, tenant: u32) -> Option<u64> {
        match &self.last {
            Some(((last, of, by), shown)) if (*of, *by) == (session, tenant) && *last == home => Some(shown.credential),
            _ => self.find_credential((home, session, tenant)),
        }
    }

    /// The same of a session that is not the last one.
    fn find_credential(&mut self, name: SessionKey<P>) -> Option<u64> {
        let shown = *self.shown.get(&name)?;
        self.last = Some((name, shown));
        Some(shown.credential)
    }

    /// Notes the address of a message of the session that was looked up last. Returns whether it differs from the last
    /// one.
    #[inline]
    pub(crate) fn verified(&mut self, from: P) -> bool {
        let Some((name, shown)) = self.last.as_mut().filter(|(_, shown)| shown.verified != from) else { return false };
        shown.verified = from;
        if let Some(known) = self.shown.get_mut(name) {
            known.verified = from;
        }
        true
    }
}

#[cfg(test)]
impl<P: Copy + Eq + Hash> AuthenticatedSessions<P> {
    /// Whether the session has presented that credential of the tenant.
    fn allows(&mut self, home: P, session: u64, tenant: u32, credential: u64) -> bool {
        self.shown(home, session, tenant) == Some(credential)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_acts_for_the_tenant_whose_token_it_showed_and_no_other() {
        let mut sessions = AuthenticatedSessions::new(10);
        sessions.admit((1u8, 1), 100, 1, 7);
        assert!(sessions.allows(1, 100, 1, 7));
        assert!(!sessions.allows(1, 100, 1, 8) && !sessions.allows(1, 101, 1, 7) && !sessions.allows(2, 100, 1, 7));
        assert!(!sessions.allows(1, 100, 2, 7));
        sessions.admit((1, 1), 100, 1, 8);
        assert!(sessions.allows(1, 100, 1, 8) && !sessions.allows(1, 100, 1, 7));
    }

    #[test]
    fn a_session_that_is_heard_from_elsewhere_is_known_to_have_moved() {
        let mut sessions = AuthenticatedSessions::new(10);
        sessions.admit((0u8, 1), 100, 1, 7);
        assert!(sessions.allows(0, 100, 1, 7) && !sessions.verified(1), "where its token came from");
        assert!(sessions.verified(2) && !sessions.verified(2));
        sessions.admit((0, 5), 101, 1, 7);
        assert!(sessions.allows(0, 101, 1, 7) && !sessions.verified(5));
        assert!(sessions.allows(0, 100, 1, 7) && !sessions.verified(2), "each of its own");
        assert!(!sessions.allows(0, 102, 1, 7));
    }

    #[test]
    fn the_oldest_sessions_leave_when_there_is_no_room() {
        let mut sessions = AuthenticatedSessions::new(3);
        for session in 0..10 {
            sessions.admit((1u8, 1), session, 1, 7);
            sessions.admit((1u8, 1), session, 1, 7);
        }
        let left: Vec<u64> = (0..10).filter(|session| sessions.allows(1, *session, 1, 7)).collect();
        assert_eq!(left, [7, 8, 9]);
        assert_eq!((sessions.shown.len(), sessions.tenants[&1].len()), (3, 3));
    }

    #[test]
    fn a_tenant_that_opens_sessions_without_end_pushes_out_its_own() {
        let mut sessions = AuthenticatedSessions::new(100);
        for session in 0..20 {
            sessions.admit((1u8, 1), session, 1, 7);
        }
        for session in 0..100_000 {
            sessions.admit((2u8, 2), session, 2, 8);
            if session % 1000 == 0 {
                sessions.admit((3u8, 3), session, 3, 9);
            }
        }
        assert!((0..20).all(|session| sessions.allows(1, session, 1, 7)), "who holds little keeps it");
        assert!(sessions.allows(3, 99_000, 3, 9), "and who comes late gets in");
        assert_eq!(sessions.shown.len(), 100);
        assert_eq!(sessions.tenants_by_count.iter().map(|(number, _)| number).sum::<usize>(), 100);
    }
}

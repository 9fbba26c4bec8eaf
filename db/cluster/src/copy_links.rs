//! What is known of the copies of this server's log, and where the next one is made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::copy_coordinator::{CopyName, CopyPosition, KnownPeers};
use crate::given_up_copies::GivenUpCopies;
use crate::limits::{FILL_FULL, FILL_REFUSED, FILL_SILENCE};
use crate::stream_copies::STREAM_HOLDER;

/// A link to a copy.
pub(crate) struct CopyLink {
    pub(crate) held: CopyPosition,
    /// When it was begun.
    pub(crate) begun: Instant,
    /// Whether the copy is a new one: it is made, until it has confirmed something.
    pub(crate) is_new: bool,
    /// When it has confirmed something last.
    pub(crate) confirmed: Option<Instant>,
    /// The position from which the log's files are needed for it.
    pub(crate) needs_from: u64,
    pub(crate) behind: u64,
    pub(crate) trouble: Option<String>,
    /// Whether it can never be gone on with.
    pub(crate) is_over: bool,
    /// Whether its server has no room for more: it has what it had.
    pub(crate) is_full: bool,
    /// Whether it confirms all, and another one is to take its place nevertheless.
    pub(crate) is_worn: bool,
    pub(crate) stop: Arc<AtomicBool>,
}

impl CopyLink {
    pub(crate) fn is_silent(&self, time: Duration) -> bool {
        self.confirmed.unwrap_or(self.begun).elapsed() >= time
    }

    /// Whether a new copy is not filled there: it is silent, or refused from the beginning on. A stream that is refused
    /// has more time: no other place is there, and it may have no leader yet.
    pub(crate) fn is_given_up(&self, holder: &str) -> bool {
        let may_be_elsewhere = holder != STREAM_HOLDER;
        let is_refused = self.confirmed.is_none() && self.trouble.is_some() && self.is_silent(FILL_REFUSED);
        let is_refused = is_refused && may_be_elsewhere;
        let is_full = self.is_full && self.begun.elapsed() >= FILL_FULL;
        self.is_over || is_full || is_refused || self.is_silent(FILL_SILENCE)
    }

    /// What its server has said, if a new copy was made there and there was no room for all of it.
    pub(crate) fn overfull(&self) -> Option<String> {
        self.trouble.clone().filter(|_| self.is_full && self.confirmed.is_some())
    }
}

pub(crate) type CopyLinks = BTreeMap<CopyName, CopyLink>;

/// How far the copies are.
pub(crate) fn held_of(links: &CopyLinks) -> BTreeMap<CopyName, CopyPosition> {
    links.iter().map(|(name, link)| (name.clone(), link.held)).collect()
}

/// The next server behind this one, in the order of their ids, that lives and has no copy. One that has not taken a
/// copy comes behind the others: it may refuse it for as long as its disk is full, or its leases are others.
/// `in_stream`: copies are in streams, and not on servers.
pub(crate) fn candidate(
    own: &str,
    (peers, in_stream): (&KnownPeers, bool),
    links: &CopyLinks,
    given_up: &GivenUpCopies,
) -> Option<String> {
    let now = Instant::now();
    if in_stream {
        let is_one = |(holder, _): &CopyName, link: &CopyLink| {
            holder == STREAM_HOLDER && !link.is_over && !link.is_worn && !link.is_silent(FILL_SILENCE)
        };
        let is_free = given_up.may_be_asked(STREAM_HOLDER, now) && !links.iter().any(|(name, link)| is_one(name, link));
        return is_free.then(|| STREAM_HOLDER.to_owned());
    }
    let free = |may_have_lost: bool| {
        let has_copy = |id: &String, link: &CopyLink, server: &String| {
            server == id && !(may_have_lost && link.is_over) && !link.is_silent(FILL_SILENCE)
        };
        let is_free = |id: &&String| {
            peers.live.contains(*id)
                && !peers.map.draining.contains_key(*id)
                && *id != own
                && given_up.may_be_asked(id, now)
                && !links.iter().any(|((server, _), link)| has_copy(id, link, server))
        };
        let (after, before): (Vec<&String>, Vec<&String>) =
            peers.servers.keys().filter(is_free).partition(|id| id.as_str() > own);
        after.into_iter().chain(before).min_by_key(|id| given_up.turn(id)).cloned()
    };
    // One whose copy cannot be gone on with comes last.
    free(false).or_else(|| free(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ServerState;

    #[test]
    fn a_server_that_has_not_taken_a_copy_is_asked_again_behind_the_others() {
        let ids = ["a", "b", "c", "d"].map(str::to_owned);
        let servers = ids.iter().map(|id| (id.clone(), ServerState::example())).collect();
        let peers = KnownPeers { servers, live: ids.into_iter().collect(), ..KnownPeers::default() };
        let next = |given_up: &[&str]| {
            let mut known = GivenUpCopies::default();
            given_up.iter().for_each(|id| known.note(id, None, Instant::now()));
            candidate("b", (&peers, false), &CopyLinks::new(), &known).expect("three others live")
        };
        assert_eq!([next(&[]), next(&["c"]), next(&["c", "d"])], ["c", "d", "a"]);
        assert_eq!([next(&["c", "d", "a"]), next(&["d", "a", "c"])], ["c", "d"]);
    }

    fn link(confirmed: Option<Instant>) -> CopyLink {
        CopyLink {
            held: CopyPosition::default(),
            begun: Instant::now(),
            is_new: false,
            confirmed,
            needs_from: 0,
            behind: 0,
            trouble: None,
            is_over: false,
            is_full: false,
            is_worn: false,
            stop: Arc::default(),
        }
    }

    #[test]
    fn a_stream_that_is_refused_from_the_beginning_on_is_waited_for_longer_than_a_server() {
        let begun = Instant::now().checked_sub(FILL_REFUSED).unwrap();
        let refused = CopyLink { begun, trouble: Some("it has no leader".to_owned()), ..link(None) };
        assert!(refused.is_given_up("c") && !refused.is_given_up(STREAM_HOLDER));
        let begun = Instant::now().checked_sub(FILL_SILENCE).unwrap();
        assert!(CopyLink { begun, ..link(None) }.is_given_up(STREAM_HOLDER));
        assert!(CopyLink { is_over: true, ..link(None) }.is_given_up(STREAM_HOLDER));
    }

    #[test]
    fn another_stream_is_made_where_there_is_none_that_can_be_gone_on_with() {
        let next = |links: CopyLinks| candidate("b", (&KnownPeers::default(), true), &links, &GivenUpCopies::default());
        let of = |link| CopyLinks::from([((STREAM_HOLDER.to_owned(), 7), link)]);
        assert_eq!(next(CopyLinks::new()).as_deref(), Some(STREAM_HOLDER));
        assert_eq!(next(of(link(None))), None);
        assert_eq!(next(of(CopyLink { is_worn: true, ..link(None) })).as_deref(), Some(STREAM_HOLDER));
        assert_eq!(next(of(CopyLink { is_over: true, ..link(None) })).as_deref(), Some(STREAM_HOLDER));
        // The one that takes its place is being filled.
        let mut both = of(CopyLink { is_worn: true, ..link(None) });
        both.insert((STREAM_HOLDER.to_owned(), 8), link(None));
        assert_eq!(next(both), None);
        // One on a server is none.
        assert_eq!(next(CopyLinks::from([(("c".to_owned(), 7), link(None))])).as_deref(), Some(STREAM_HOLDER));
    }
}

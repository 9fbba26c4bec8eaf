//! Servers on which a new copy of this server's log was given up. Other servers are asked before them. One whose disk
//! was too small is not asked for a while: each try writes as much as there is room for.

use std::time::{Duration, Instant};

use crate::limits::{OVERFULL_PAUSE, OVERFULL_PAUSE_MOST};

/// A server.
#[derive(Debug)]
struct GivenUpServer {
    server: String,
    /// Copies one after the other that did not fit.
    overfull: u32,
    /// When the next one is tried, and why not before.
    paused: Option<(Instant, String)>,
}

/// See the head of this file. The one on which a copy was given up last comes last.
#[derive(Debug, Default)]
pub(crate) struct GivenUpCopies(Vec<GivenUpServer>);

impl GivenUpCopies {
    /// Notes that a copy was given up. `overfull`: what the server has said, if it had no room for all of it.
    pub(crate) fn note(&mut self, server: &str, overfull: Option<String>, now: Instant) {
        let at = self.0.iter().position(|one| one.server == server);
        let before = at.map_or(0, |at| self.0.remove(at).overfull);
        let paused = overfull.map(|why| (now + pause_after(before), why));
        let overfull = if paused.is_some() { before.saturating_add(1) } else { before };
        self.0.push(GivenUpServer { server: server.to_owned(), overfull, paused });
    }

    /// A server has a copy again.
    pub(crate) fn forget(&mut self, server: &str) {
        self.0.retain(|one| one.server != server);
    }

    /// After how many others a server is asked.
    pub(crate) fn turn(&self, server: &str) -> usize {
        self.0.iter().position(|one| one.server == server).map_or(0, |at| at + 1)
    }

    /// Whether a server may be asked now.
    pub(crate) fn may_be_asked(&self, server: &str, now: Instant) -> bool {
        let until = |one: &GivenUpServer| one.paused.as_ref().is_some_and(|(until, _)| *until > now);
        !self.0.iter().any(|one| one.server == server && until(one))
    }

    /// The servers that are left alone now, each with the reason, for people.
    pub(crate) fn paused(&self, now: Instant) -> Vec<(String, String)> {
        let told = |one: &GivenUpServer| {
            let (until, why) = one.paused.as_ref().filter(|(until, _)| *until > now)?;
            let (count, left_s) = (one.overfull, (*until - now).as_secs() + 1);
            let text = format!(
                "{why}; new copies in a row that did not fit there: {count}; the next one is tried in {left_s} s"
            );
            Some((one.server.clone(), text))
        };
        self.0.iter().filter_map(told).collect()
    }
}

/// Time until the next try, after so many that did not fit before this one.
fn pause_after(before: u32) -> Duration {
    OVERFULL_PAUSE.saturating_mul(2_u32.saturating_pow(before)).min(OVERFULL_PAUSE_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_room_is_asked_less_and_less_often_and_never_given_up_for_good() {
        let (mut known, mut now) = (GivenUpCopies::default(), Instant::now());
        known.note("a", None, now);
        assert!(known.may_be_asked("a", now) && known.paused(now).is_empty(), "it was only silent");
        let mut pauses = Vec::new();
        for _ in 0..50 {
            known.note("a", Some("10 MiB are free".to_owned()), now);
            let begun = now;
            while !known.may_be_asked("a", now) {
                let told = known.paused(now);
                assert!(told.len() == 1 && told[0].1.contains("10 MiB are free"), "{told:?}");
                now += Duration::from_secs(1);
            }
            pauses.push((now - begun).as_secs());
        }
        assert_eq!(pauses[..4], [10, 20, 40, 80]);
        assert_eq!(pauses[49], OVERFULL_PAUSE_MOST.as_secs());
        assert!(known.may_be_asked("b", now));
        known.note("b", None, now);
        assert_eq!(["c", "a", "b"].map(|server| known.turn(server)), [0, 1, 2]);
        known.forget("a");
        known.note("a", Some(String::new()), now);
        assert!(known.may_be_asked("a", now + OVERFULL_PAUSE), "it begins anew");
    }
}

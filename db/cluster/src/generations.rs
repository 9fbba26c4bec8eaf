//! Changes of the map by copies of servers' logs. Each makes a new map of the next epoch; the caller writes it if the
//! old map is still the current one.
//!
//! A *generation* names the copies of one server's log. They all have what the server's tables of durability `copies`
//! have acknowledged, so a server that seals one of them has all of it, and ends the generation. Only the server
//! changes its generation, until another one takes its place: that is decided in the map first, and then sealed.

use std::collections::BTreeSet;

use crate::broken_rules::{MemberRule, is_broken};
use crate::slot_moves::overlap;
use crate::slot_plans::{KnownServers, count, new_move};
use crate::state::{StoredGeneration, StoredMove, StoredSlots};
use crate::stream_copies::STREAM_HOLDER;

impl StoredSlots {
    /// With this start of a server in its generation; `None`: it is there, or has none.
    pub(crate) fn take_up_generation(&self, owner: &str, boot: u64) -> Option<StoredSlots> {
        let known = self.generations.get(owner)?;
        if known.boot == boot || known.successor.is_some() {
            return None;
        }
        let mut map = self.next_epoch();
        let number = known.number + 1;
        map.generations.insert(owner.to_owned(), StoredGeneration { number, boot, ..known.clone() });
        Some(map)
    }

    /// With other copies of a server's log; `None`: it has these, or another server takes its place.
    pub(crate) fn set_copies(&self, owner: &str, boot: u64, copies: &[(String, u64)]) -> Option<StoredSlots> {
        let known = self.generations.get(owner).cloned().unwrap_or_default();
        if known.copies == copies || known.successor.is_some() {
            return None;
        }
        let mut map = self.next_epoch();
        let (number, copies) = (known.number + 1, copies.to_vec());
        map.generations.insert(owner.to_owned(), StoredGeneration { number, boot, copies, successor: None });
        Some(map)
    }

    /// Whether another server takes a server's place, or has taken it, and an earlier map did not show it.
    pub(crate) fn has_taken_place(&self, owner: &str, earlier: &StoredSlots) -> bool {
        let known = earlier.generations.get(owner).map_or(0, |one| one.number);
        let is_taken = |one: &StoredGeneration| one.successor.is_some() || one.boot == 0;
        self.generations.get(owner).is_some_and(|one| is_taken(one) && one.number != known)
    }

    /// Whether a server takes the place of another one now.
    pub(crate) fn is_succeeded_by(&self, owner: &str, successor: &str) -> bool {
        let known = self.generations.get(owner).filter(|_| !is_broken(MemberRule::InheritedStays));
        known.is_some_and(|one| one.successor.as_deref() == Some(successor))
    }

    /// Whether the place of a server is taken, or was, and it has had no copies since: it is gone, most likely.
    pub(crate) fn is_out_of_its_place(&self, server: &str) -> bool {
        self.generations.get(server).is_some_and(|one| one.successor.is_some() || one.boot == 0)
    }

    /// Whether another server has taken the place of a server, which has had no copies since.
    pub(crate) fn has_lost_place(&self, server: &str) -> bool {
        self.generations.get(server).is_some_and(|one| one.successor.is_none() && one.boot == 0)
    }

    /// The server whose place a server takes now.
    pub(crate) fn succession_by(&self, successor: &str) -> Option<&str> {
        let is_by = |one: &StoredGeneration| one.successor.as_deref() == Some(successor);
        self.generations.iter().find(|(_, one)| is_by(one)).map(|(owner, _)| owner.as_str())
    }

    /// The first server whose place another one takes now.
    pub(crate) fn succession(&self) -> Option<(&str, &str)> {
        self.generations.iter().find_map(|(owner, one)| Some((owner.as_str(), one.successor.as_deref()?)))
    }

    /// Refuses what would change owners while a server takes the place of another.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn check_succession(&self) -> Result<(), String> {
        match self.succession() {
            None => Ok(()),
            Some((owner, successor)) => Err(format!(
                "server {successor} takes the place of server {owner}: wait until `sandstorm cluster status` does not \
                 show it any more"
            )),
        }
    }

    /// Has another server take the place of one: it has a copy of its log.
    ///
    /// # Errors
    /// One line: there is no copy there, or what it has is not enough.
    pub(crate) fn fail_over(
        &self,
        owner: &str,
        to: Option<&str>,
        known: KnownServers<'_>,
    ) -> Result<StoredSlots, String> {
        let generation = self.generations.get(owner).filter(|generation| !generation.copies.is_empty());
        let generation = generation.ok_or_else(|| {
            format!("no other server has a copy of the log of server {owner}: nothing can take its place")
        })?;
        let lives = |server: &str| known.live.contains(server) && known.all.contains_key(server) && server != owner;
        // What is in a stream each of the others can read that is told of streams.
        let in_stream = generation.copies.iter().any(|(holder, _)| holder == STREAM_HOLDER);
        let readers = known.all.iter().filter(|(id, server)| in_stream && server.reads_streams && *id != owner);
        let holders = generation.copies.iter().map(|(holder, _)| holder).filter(|holder| *holder != STREAM_HOLDER);
        let candidates = holders.chain(readers.map(|(id, _)| id)).map(String::as_str);
        let successor = match to {
            Some(to) if !candidates.clone().any(|server| server == to) => {
                let with: Vec<&str> = candidates.collect();
                return Err(format!("server {to} cannot read a copy of that log; these can: {}", with.join(", ")));
            }
            Some(to) if !lives(to) => return Err(format!("server {to} is silent")),
            Some(to) => Some(to),
            // The one with the fewest slots of those that can: it has to have copies of its own, and stays.
            None => candidates.filter(|server| lives(server)).min_by_key(|server| {
                let has_copies = self.generations.get(*server).is_some_and(|one| !one.copies.is_empty());
                (self.draining.contains_key(*server), !has_copies, count(self.spans_of(server)))
            }),
        };
        let successor = successor.ok_or(match in_stream {
            true => "no other server lives that was started with --cluster-streams: that log is in a stream",
            false => "none of the servers with a copy of that log lives",
        })?;
        let successor = successor.to_owned();
        if let Some((other, _)) = self.succession().filter(|(other, _)| *other != owner) {
            return Err(format!("another server takes the place of server {other}: wait until that is over"));
        }
        Ok(self.begin_succession(owner, successor))
    }

    /// Has a server take the place of another one by itself, with the copy of its log that it has; `None`: it may not,
    /// there is nothing to take, or another place is being taken. Where that is the place of a third server, and the
    /// one that is gone was to take it, this one takes that first, if it can.
    pub(crate) fn take_place(&self, owner: &str, successor: &str) -> Option<StoredSlots> {
        let may =
            owner != successor && !self.draining.contains_key(successor) && !self.on_probation.contains(successor);
        let first = self.place_to_take(owner)?;
        let has_copy = |of: &str| {
            let known = self.generations.get(of);
            // Whether the successor can read a stream it has looked at itself.
            let is_its = |holder: &String| holder == successor || holder == STREAM_HOLDER;
            known.is_some_and(|one| one.copies.iter().any(|(holder, _)| is_its(holder)))
        };
        if !may || first == successor || !has_copy(first) || self.spans_of(first).next().is_none() {
            return None;
        }
        let mut map = self.begin_succession(first, successor.to_owned());
        map.on_probation.insert(first.to_owned());
        Some(map)
    }

    /// The place that is taken first where a server is gone: its own, or the one that it was to take; `None`: a third
    /// server takes a place now.
    pub(crate) fn place_to_take<'a>(&'a self, owner: &'a str) -> Option<&'a str> {
        match self.succession() {
            None => Some(owner),
            Some((first, to)) if to == owner => Some(first),
            Some(_) => None,
        }
    }

    /// With a server that may take places by itself again; `None`: it may.
    pub(crate) fn end_probation(&self, server: &str) -> Option<StoredSlots> {
        // It is asked at each look, and a map of all slots is long.
        if !self.on_probation.contains(server) {
            return None;
        }
        let mut map = self.next_epoch();
        map.on_probation.remove(server);
        Some(map)
    }

    fn begin_succession(&self, owner: &str, successor: String) -> StoredSlots {
        let mut map = self.next_epoch();
        // What was to come to it, or to leave it, stays where it is.
        let is_over = |one: &StoredMove| one.is_clearing() && one.source == owner;
        map.moves.retain(|one| !is_over(one) && (one.handed_over || one.source != owner && one.target != owner));
        if let Some(generation) = map.generations.get_mut(owner) {
            generation.number += 1;
            generation.successor = Some(successor);
        }
        map
    }

    /// With a server in another one's place: its slots are the successor's, and it has to remove its records of them.
    pub(crate) fn succeed(&self, owner: &str, successor: &str, mut new_id: impl FnMut() -> u64) -> Option<StoredSlots> {
        let generation = self.generations.get(owner)?;
        if generation.successor.as_deref() != Some(successor) {
            return None;
        }
        let mut map = self.next_epoch();
        // Its number goes on: what copies it has later have seen the earlier ones. No start has made it.
        let none = StoredGeneration { number: generation.number + 1, ..StoredGeneration::default() };
        map.generations.insert(owner.to_owned(), none);
        for span in self.spans_of(owner) {
            map.assign(span, successor);
            let moved = StoredMove { handed_over: true, ..new_move(span, owner, successor, 0, new_id()) };
            // Moves are disjoint. Where another server removes its records still, this one's stay until slots move
            // there.
            if !map.moves.iter().any(|one| overlap(one.span(), span)) {
                map.moves.push(moved);
            }
        }
        Some(map)
    }
}

/// The copies that have to confirm what is acknowledged: those of the generation as it was read, and those of changes
/// of it that are wanted or may have been made.
pub(crate) fn needed(
    read: &[(String, u64)],
    wanted: &[(String, u64)],
    sent: &[(String, u64)],
) -> BTreeSet<(String, u64)> {
    let later = wanted.iter().chain(sent).filter(|_| !is_broken(MemberRule::SentCopiesAreNeeded));
    read.iter().chain(later).cloned().collect()
}

//! Plans for whole servers: which slots go where, so that a server is left with none of them, has its share of them, or
//! belongs to the cluster no more. Each plan makes a new map of the next epoch, as [`crate::slot_moves`] does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use sandstorm_net::slots::SLOTS;
use sandstorm_store::slots::SlotSpan;

use crate::limits::REMOVED_SERVERS;
use crate::state::{ServerState, StoredMove, StoredSlots};

/// What a server is to be in the cluster from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerChange {
    /// It gives all its slots to the others, and gets none: it is to be stopped.
    Drain {
        /// MiB that are copied in a second, at most; 0: as many as can be.
        mib_per_s: u64,
    },
    /// It takes its share of the slots from those that have more. Ends a drain.
    Add {
        /// MiB that are copied in a second, at most; 0: as many as can be.
        mib_per_s: u64,
    },
    /// It belongs to the cluster no more, whatever starts with its id.
    Remove {
        /// Whether the slots that it owns go to the others without their records.
        gives_up_records: bool,
    },
}

/// A part of a plan: slots that one server gives to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMove {
    /// The slots.
    pub span: SlotSpan,
    /// The id of the server that gives them away.
    pub source: String,
    /// The id of the server that takes them.
    pub target: String,
}

/// The servers that a plan can count on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownServers<'s> {
    pub(crate) all: &'s BTreeMap<String, ServerState>,
    /// Servers with a recent sign of life: a hint, by which no slot is taken from any server.
    pub(crate) live: &'s BTreeSet<String>,
}

impl KnownServers<'_> {
    pub(crate) fn check(&self, server: &str) -> Result<(), String> {
        match self.all.contains_key(server) {
            true => Ok(()),
            false => Err(format!("{server:?} is the id of no server of the cluster")),
        }
    }

    /// The servers that live and keep their slots, but for one.
    pub(crate) fn takers(&self, map: &StoredSlots, but: &str) -> Vec<String> {
        let takes = |id: &&String| self.live.contains(*id) && !map.draining.contains_key(*id) && *id != but;
        self.all.keys().filter(takes).cloned().collect()
    }
}

/// How many slots these are.
pub(crate) fn count(spans: impl IntoIterator<Item = SlotSpan>) -> usize {
    spans.into_iter().map(|span| usize::from(span.last - span.first) + 1).sum()
}

/// Divides slots among servers, in whole ranges where that is possible: `(server, how many)` each. What is not wanted
/// is left out.
fn divide(spans: &[SlotSpan], wanted: &[(String, usize)]) -> Vec<(SlotSpan, String)> {
    let mut parts = Vec::new();
    let mut left = spans.iter().copied();
    let mut rest: Option<SlotSpan> = None;
    for (server, many) in wanted {
        let mut missing = *many;
        while missing > 0 {
            let Some(span) = rest.take().or_else(|| left.next()) else { return parts };
            let taken = missing.min(count([span]));
            // At most all slots, which a u16 counts.
            let last = span.first + (taken - 1) as u16;
            parts.push((SlotSpan { first: span.first, last }, server.clone()));
            if last < span.last {
                rest = Some(SlotSpan { first: last + 1, last: span.last });
            }
            missing -= taken;
        }
    }
    parts
}

pub(crate) fn new_move(span: SlotSpan, source: &str, target: &str, mib_per_s: u64, id: u64) -> StoredMove {
    let (SlotSpan { first, last }, handed_over, boot) = (span, false, 0);
    StoredMove { id, first, last, source: source.to_owned(), target: target.to_owned(), handed_over, boot, mib_per_s }
}

impl StoredSlots {
    pub(crate) fn spans_of(&self, server: &str) -> impl Iterator<Item = SlotSpan> {
        let own = self.ranges.iter().filter(move |(_, _, owner)| owner == server);
        own.map(|(first, last, _)| SlotSpan { first: *first, last: *last })
    }

    /// The slots of a server that no move has anything to do with.
    pub(crate) fn free_spans(&self, server: &str) -> Vec<SlotSpan> {
        let mut moved: Vec<SlotSpan> = self.moves.iter().map(StoredMove::span).collect();
        moved.sort_unstable_by_key(|span| span.first);
        let mut free = Vec::new();
        for span in self.spans_of(server) {
            // One beyond the last slot is no slot: counted in 32 bits.
            let mut next = u32::from(span.first);
            for other in moved.iter().filter(|other| other.first <= span.last && span.first <= other.last) {
                if u32::from(other.first) > next {
                    free.push(SlotSpan { first: next as u16, last: other.first - 1 });
                }
                next = u32::from(other.last) + 1;
            }
            if next <= u32::from(span.last) {
                free.push(SlotSpan { first: next as u16, last: span.last });
            }
        }
        free
    }

    /// The owners once all moves have ended.
    pub(crate) fn after_moves(&self) -> StoredSlots {
        let mut map = self.clone();
        self.moves.iter().filter(|one| !one.handed_over).for_each(|one| map.assign(one.span(), &one.target));
        map
    }

    /// How many of `slots` slots each server gets, so that their numbers are as equal as possible in the end.
    fn levelled(&self, takers: &[String], slots: usize) -> Vec<(String, usize)> {
        let after = self.after_moves();
        let mut fewest: BinaryHeap<_> =
            takers.iter().map(|id| Reverse((count(after.spans_of(id)), id.as_str()))).collect();
        let mut gains: BTreeMap<&str, usize> = BTreeMap::new();
        for _ in 0..slots {
            let Some(Reverse((has, id))) = fewest.pop() else { break };
            *gains.entry(id).or_default() += 1;
            fewest.push(Reverse((has + 1, id)));
        }
        gains.into_iter().map(|(id, gained)| (id.to_owned(), gained)).collect()
    }

    /// Divides the slots of a server among the others that live and keep theirs, so that those have as equal numbers as
    /// can be in the end.
    ///
    /// # Errors
    /// One line: there is no other.
    fn dealt(
        &self,
        server: &str,
        spans: &[SlotSpan],
        known: KnownServers<'_>,
    ) -> Result<Vec<(SlotSpan, String)>, String> {
        let takers = known.takers(self, server);
        if takers.is_empty() {
            return Err(format!("no other server lives that could take the slots of server {server}"));
        }
        Ok(divide(spans, &self.levelled(&takers, count(spans.iter().copied()))))
    }

    pub(crate) fn push_move(&mut self, span: SlotSpan, source: &str, target: &str, mib_per_s: u64, id: u64) {
        self.moves.push(new_move(span, source, target, mib_per_s, id));
    }

    /// Begins to give away what a server has yet; returns the number of moves.
    ///
    /// # Errors
    /// As [`StoredSlots::dealt`].
    fn give_away(
        &mut self,
        server: &str,
        mib_per_s: u64,
        known: KnownServers<'_>,
        new_id: &mut impl FnMut() -> u64,
    ) -> Result<usize, String> {
        let parts = self.dealt(server, &self.free_spans(server), known)?;
        parts.iter().for_each(|(span, target)| self.push_move(*span, server, target, mib_per_s, new_id()));
        Ok(parts.len())
    }

    /// With moves of what a server that is drained owns besides; `None`: there is nothing, or no server to have it.
    pub(crate) fn drain_on(
        &self,
        server: &str,
        known: KnownServers<'_>,
        mut new_id: impl FnMut() -> u64,
    ) -> Option<StoredSlots> {
        let mib_per_s = *self.draining.get(server).filter(|_| self.succession().is_none())?;
        let mut map = self.next_epoch();
        let begun = map.give_away(server, mib_per_s, known, &mut new_id).ok()?;
        (begun > 0).then_some(map)
    }

    /// With a change of a server's part in the cluster; and the number of moves that it begins.
    ///
    /// # Errors
    /// One line: there is no such server, or what is wanted cannot be.
    pub(crate) fn change_server(
        &self,
        server: &str,
        change: ServerChange,
        known: KnownServers<'_>,
        mut new_id: impl FnMut() -> u64,
    ) -> Result<(StoredSlots, usize), String> {
        known.check(server)?;
        // A server that is gone for good is removed also in the midst of a succession, which ends with that.
        let is_part = self.succession().is_some_and(|(owner, to)| owner == server || to == server);
        if !is_part || !matches!(change, ServerChange::Remove { .. }) {
            self.check_succession()?;
        }
        match change {
            ServerChange::Drain { mib_per_s } => self.drain(server, mib_per_s, known, &mut new_id),
            ServerChange::Add { mib_per_s } => self.add(server, mib_per_s, known, &mut new_id),
            ServerChange::Remove { gives_up_records } => {
                self.remove(server, gives_up_records, known, &mut new_id).map(|map| (map, 0))
            }
        }
    }

    fn drain(
        &self,
        server: &str,
        mib_per_s: u64,
        known: KnownServers<'_>,
        new_id: &mut impl FnMut() -> u64,
    ) -> Result<(StoredSlots, usize), String> {
        let mut map = self.next_epoch();
        map.draining.insert(server.to_owned(), mib_per_s);
        // What it was to get stays where it is.
        map.moves.retain(|one| one.handed_over || one.target != server);
        let begun = map.give_away(server, mib_per_s, known, new_id)?;
        Ok((map, begun))
    }

    fn add(
        &self,
        server: &str,
        mib_per_s: u64,
        known: KnownServers<'_>,
        new_id: &mut impl FnMut() -> u64,
    ) -> Result<(StoredSlots, usize), String> {
        if !known.live.contains(server) {
            return Err(format!("server {server} is silent: start it, then add it"));
        }
        let mut map = self.next_epoch();
        // The operator that adds it says that it is well.
        map.on_probation.remove(server);
        if map.draining.remove(server).is_some() {
            // What it was to give away stays.
            map.moves.retain(|one| !one.is_copied_from(server));
        }
        let share = usize::from(SLOTS) / known.takers(&map, "").len().max(1);
        let after = map.after_moves();
        let mut missing = share.saturating_sub(count(after.spans_of(server)));
        // The server with the most gives, one slot after the other.
        let others = after.ranges.iter().map(|(_, _, owner)| owner.as_str()).filter(|owner| *owner != server);
        let others: BTreeSet<&str> = others.collect();
        let mut most: BinaryHeap<_> = others.iter().map(|id| (count(after.spans_of(id)), *id)).collect();
        let mut gives: BTreeMap<String, usize> = BTreeMap::new();
        while missing > 0
            && let Some((has, id)) = most.pop()
            && has > share
        {
            *gives.entry(id.to_owned()).or_default() += 1;
            most.push((has - 1, id));
            missing -= 1;
        }
        let old: BTreeSet<u64> = map.moves.iter().map(|one| one.id).collect();
        for (giver, many) in gives {
            let parts = divide(&map.free_spans(&giver), &[(server.to_owned(), many)]);
            let found = count(parts.iter().map(|(span, _)| *span));
            parts.iter().for_each(|(span, target)| map.push_move(*span, &giver, target, mib_per_s, new_id()));
            map.redirect(&giver, server, many - found, mib_per_s, new_id);
        }
        let begun = map.moves.iter().filter(|one| !old.contains(&one.id)).count();
        Ok((map, begun))
    }

    /// Sends some of the slots that are on their way to a server to another one instead, from where they are. What is
    /// left of a move that loses some begins again, with a number of its own.
    fn redirect(&mut self, from: &str, to: &str, mut many: usize, mib_per_s: u64, new_id: &mut impl FnMut() -> u64) {
        for one in std::mem::take(&mut self.moves) {
            if many == 0 || one.handed_over || one.target != from {
                self.moves.push(one);
                continue;
            }
            let taken = many.min(count([one.span()]));
            many -= taken;
            let wanted = [(to.to_owned(), taken), (one.target.clone(), count([one.span()]) - taken)];
            for (span, target) in divide(&[one.span()], &wanted) {
                let rate = if target == to { mib_per_s } else { one.mib_per_s };
                // What comes from the server itself just stays there.
                if target != one.source {
                    self.push_move(span, &one.source, &target, rate, new_id());
                }
            }
        }
    }

    fn remove(
        &self,
        server: &str,
        gives_up_records: bool,
        known: KnownServers<'_>,
        new_id: &mut impl FnMut() -> u64,
    ) -> Result<StoredSlots, String> {
        if known.live.contains(server) {
            return Err(format!(
                "server {server} lives: stop it first. One that was killed counts as silent ten seconds later"
            ));
        }
        // What it has handed over, and would have to remove yet, is not asked for any more. Nor do moves between others
        // matter: one of them may be silent, too, and to be removed next.
        let is_over = |one: &StoredMove| one.handed_over && one.source == server;
        let is_own = |one: &StoredMove| one.source == server || one.target == server;
        if let Some(one) = self.moves.iter().find(|one| is_own(one) && !is_over(one)) {
            let what = match one.handed_over {
                true => "wait until that server has removed its records of them, or remove it first",
                false => &format!("`sandstorm cluster move {}-{} --cancel` ends that", one.first, one.last),
            };
            return Err(format!(
                "slots {}-{} are moving from server {} to {}: {what}",
                one.first, one.last, one.source, one.target
            ));
        }
        let owned: Vec<SlotSpan> = self.spans_of(server).collect();
        let mut map = self.next_epoch();
        map.moves.retain(|one| !is_over(one));
        if !owned.is_empty() {
            if !gives_up_records {
                return Err(format!(
                    "server {server} owns {} slots: drain it while it lives. If its disk is lost, \
                     `sandstorm cluster fail-over` has another take its place with a copy of its log, or \
                     `--give-up-records` gives its slots to the others, without their records",
                    count(owned.iter().copied())
                ));
            }
            for (span, taker) in map.dealt(server, &owned, known)? {
                map.assign(span, &taker);
                // It may have copies of an earlier move that was not ended: it removes them before it serves the slots.
                let clearing = StoredMove { handed_over: true, ..new_move(span, &taker, &taker, 0, new_id()) };
                map.moves.push(clearing);
            }
        }
        map.draining.remove(server);
        map.on_probation.remove(server);
        map.generations.remove(server);
        for one in map.generations.values_mut().filter(|one| one.successor.as_deref() == Some(server)) {
            // Its owner goes on, if it lives, and may be succeeded by another one.
            (one.number, one.successor) = (one.number + 1, None);
        }
        map.removed.push(server.to_owned());
        let forgotten = map.removed.len().saturating_sub(REMOVED_SERVERS);
        map.removed.drain(..forgotten);
        Ok(map)
    }

    /// What a change would move, before it is made.
    pub(crate) fn planned(&self, change: &StoredSlots) -> Vec<PlannedMove> {
        let is_new = |one: &&StoredMove| !one.is_clearing() && self.moves.iter().all(|old| old.id != one.id);
        let moves = change.moves.iter().filter(is_new).map(|one| PlannedMove {
            span: one.span(),
            source: one.source.clone(),
            target: one.target.clone(),
        });
        // Slots that change their owner at once are those of a server whose records are given up.
        let given_up = change.ranges.iter().flat_map(|(first, last, owner)| {
            let (span, target) = (SlotSpan { first: *first, last: *last }, owner.clone());
            let taken = self
                .ranges
                .iter()
                .filter(move |(from, to, old)| *old != target && *from <= span.last && span.first <= *to);
            taken.map(move |(from, to, source)| PlannedMove {
                span: SlotSpan { first: (*from).max(span.first), last: (*to).min(span.last) },
                source: source.clone(),
                target: owner.clone(),
            })
        });
        moves.chain(given_up).collect()
    }
}

//! Changes of the map of slots by moves. Each makes a new map of the next epoch; the caller writes it if the old map is
//! still the current one.

use sandstorm_store::slots::SlotSpan;

use crate::slot_plans::{KnownServers, new_move};
use crate::state::{StoredMove, StoredSlots};

/// Slots that are to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedMove {
    /// The slots.
    pub spans: Vec<SlotSpan>,
    /// The id of the server that is to have them.
    pub target: String,
    /// MiB that are copied in a second, at most; 0: as many as can be.
    pub mib_per_s: u64,
}

/// Whether two ranges have slots in common.
pub(crate) fn overlap(one: SlotSpan, other: SlotSpan) -> bool {
    one.first <= other.last && other.first <= one.last
}

impl StoredSlots {
    /// The parts of some slots that one server owns each, with that server.
    fn owners(&self, span: SlotSpan) -> Result<Vec<(SlotSpan, String)>, String> {
        let (mut parts, mut next) = (Vec::new(), u32::from(span.first));
        for (first, last, owner) in &self.ranges {
            let part = SlotSpan { first: span.first.max(*first), last: span.last.min(*last) };
            if part.first > part.last {
                continue;
            }
            if u32::from(part.first) != next {
                break;
            }
            next = u32::from(part.last) + 1;
            parts.push((part, owner.clone()));
        }
        match next > u32::from(span.last) {
            true => Ok(parts),
            false => Err(format!("no server owns slot {next}")),
        }
    }

    pub(crate) fn next_epoch(&self) -> StoredSlots {
        StoredSlots { epoch: self.epoch + 1, ..self.clone() }
    }

    /// With the moves that a caller wants. `new_id` gives each a number.
    ///
    /// # Errors
    /// One line: the target is no server of the cluster, the slots have no owner, or are moving already.
    pub(crate) fn begin(
        &self,
        wanted: &WantedMove,
        known: KnownServers<'_>,
        mut new_id: impl FnMut() -> u64,
    ) -> Result<(StoredSlots, usize), String> {
        self.check_succession()?;
        let target = &wanted.target;
        if !known.all.contains_key(target) {
            return Err(format!("{target:?} is the id of no server of the cluster"));
        }
        if !known.live.contains(target) {
            return Err(format!("server {target} is silent: start it, then move slots to it"));
        }
        if self.draining.contains_key(target) {
            return Err(format!("server {target} gives its slots away: `sandstorm cluster add` ends that"));
        }
        let mut map = self.next_epoch();
        for span in &wanted.spans {
            for (part, source) in self.owners(*span)? {
                if let Some(other) = map.moves.iter().find(|other| overlap(other.span(), part)) {
                    let what = if other.handed_over { "was moved, and is being cleared at" } else { "is moved from" };
                    return Err(format!(
                        "slots {}-{}: a part of them {what} server {}; wait until `sandstorm cluster status` does not \
                         show it any more",
                        part.first, part.last, other.source
                    ));
                }
                if source != *target {
                    map.moves.push(new_move(part, &source, target, wanted.mib_per_s, new_id()));
                }
            }
        }
        let begun = map.moves.len() - self.moves.len();
        if begun == 0 {
            return Err(format!("server {target} owns these slots already"));
        }
        Ok((map, begun))
    }

    /// Without the moves of some slots, which stay where they are.
    ///
    /// # Errors
    /// One line: there is none that can be cancelled.
    pub(crate) fn cancel(&self, spans: &[SlotSpan]) -> Result<(StoredSlots, usize), String> {
        let mut map = self.next_epoch();
        let is_meant = |one: &StoredMove| spans.iter().any(|span| overlap(*span, one.span()));
        map.moves.retain(|one| one.handed_over || !is_meant(one));
        match self.moves.len() - map.moves.len() {
            0 if self.moves.iter().any(is_meant) => {
                Err("these slots are handed over already: move them back instead".to_owned())
            }
            0 => Err("none of these slots is moving".to_owned()),
            count => Ok((map, count)),
        }
    }

    /// With this start of a server in all moves that it is the source of; `None`: it is already.
    pub(crate) fn take_up(&self, source: &str, boot: u64) -> Option<StoredSlots> {
        let is_new = |one: &StoredMove| one.is_copied_from(source) && one.boot != boot;
        if !self.moves.iter().any(is_new) {
            return None;
        }
        let mut map = self.next_epoch();
        map.moves.iter_mut().filter(|one| is_new(one)).for_each(|one| one.boot = boot);
        Some(map)
    }

    /// With the target of a move as the owner of its slots.
    pub(crate) fn hand_over(&self, id: u64) -> Option<StoredSlots> {
        let mut map = self.next_epoch();
        let moved = map.moves.iter_mut().find(|one| one.id == id && !one.handed_over)?;
        moved.handed_over = true;
        let (span, target) = (moved.span(), moved.target.clone());
        map.assign(span, &target);
        Some(map)
    }

    /// Without moves that are over.
    pub(crate) fn end(&self, ids: &[u64]) -> Option<StoredSlots> {
        let mut map = self.next_epoch();
        map.moves.retain(|one| !(one.handed_over && ids.contains(&one.id)));
        (map.moves.len() < self.moves.len()).then_some(map)
    }

    /// Gives slots to a server.
    pub(crate) fn assign(&mut self, span: SlotSpan, owner: &str) {
        let mut ranges: Vec<(u16, u16, String)> = Vec::new();
        for (first, last, other) in self.ranges.drain(..) {
            if first < span.first {
                ranges.push((first, last.min(span.first - 1), other.clone()));
            }
            if last > span.last {
                ranges.push((first.max(span.last + 1), last, other));
            }
        }
        ranges.push((span.first, span.last, owner.to_owned()));
        ranges.sort_unstable();
        for range in ranges {
            match self.ranges.last_mut() {
                Some(before) if before.2 == range.2 && before.1 + 1 == range.0 => before.1 = range.1,
                _ => self.ranges.push(range),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use sandstorm_net::slots::SLOTS;

    use super::*;
    use crate::state::ServerState;

    fn servers(ids: &[&str]) -> BTreeMap<String, ServerState> {
        ids.iter().map(|id| ((*id).to_owned(), ServerState::example())).collect()
    }

    fn owners(map: &StoredSlots) -> Vec<Option<&str>> {
        (0..SLOTS).map(|slot| ["a", "b", "c"].into_iter().find(|id| map.owns(id, slot))).collect()
    }

    #[test]
    fn slots_change_their_owner_and_no_others_do() {
        let mut random = StdRng::seed_from_u64(1);
        let mut map = StoredSlots::divided(&["a", "b", "c"].map(str::to_owned));
        for epoch in 2..200 {
            let first = random.random_range(0..SLOTS);
            let span = SlotSpan { first, last: random.random_range(first..SLOTS) };
            let target = ["a", "b", "c"][random.random_range(0..3)];
            let before = map.clone();
            map = before.next_epoch();
            map.assign(span, target);
            assert_eq!((map.check(), map.epoch), (Ok(()), epoch));
            let expected = (0..SLOTS).zip(owners(&before));
            let expected = expected.map(|(slot, old)| if span.contains(slot) { Some(target) } else { old });
            assert!(owners(&map).into_iter().eq(expected), "{span:?} to {target}");
        }
    }

    #[test]
    fn a_move_is_one_for_each_server_that_has_some_of_the_slots() {
        let map = StoredSlots::divided(&["a", "b", "c"].map(str::to_owned));
        let (all_servers, live) = (servers(&["a", "b", "c"]), ["a", "b"].map(str::to_owned).into());
        let known = KnownServers { all: &all_servers, live: &live };
        let all = SlotSpan { first: 0, last: SLOTS - 1 };
        let wanted = |target: &str| WantedMove { spans: vec![all], target: target.to_owned(), mib_per_s: 0 };
        let mut ids = 0;
        let (moving, count) = map
            .begin(&wanted("b"), known, || {
                ids += 1;
                ids
            })
            .unwrap();
        assert_eq!((count, moving.check()), (2, Ok(())));
        assert!(owners(&moving).into_iter().eq(owners(&map)), "nobody's slots have changed");
        assert!(moving.begin(&wanted("a"), known, || 9).unwrap_err().contains("is moved from server a"));
        assert!(map.begin(&wanted("c"), known, || 9).unwrap_err().contains("is silent"));
        assert!(map.begin(&wanted("d"), known, || 9).unwrap_err().contains("no server"));
        let taken = moving.take_up("a", 7).unwrap();
        assert_eq!((taken.take_up("a", 7), taken.moves[0].boot, taken.moves[1].boot), (None, 7, 0));
        let over = taken.hand_over(1).unwrap();
        assert!(over.owns("b", 0) && over.owns("c", SLOTS - 1) && over.hand_over(1).is_none());
        assert!(over.cancel(&[SlotSpan { first: 0, last: 0 }]).unwrap_err().contains("handed over"));
        assert_eq!(over.cancel(&[all]).map(|(map, count)| (map.moves.len(), count)), Ok((1, 1)));
        assert!(over.end(&[2]).is_none() && over.end(&[1]).is_some_and(|map| map.moves.len() == 1));
        assert!(map.cancel(&[all]).unwrap_err().contains("none of these"));
    }
}

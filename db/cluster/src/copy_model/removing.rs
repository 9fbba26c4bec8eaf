//! What servers of the model remove: copies that are in no generation, and records whose slots they do not own.

use super::{CopyName, CopyWorld, IDLE, LEASE, ModelCopy, SLOTS};

impl CopyWorld {
    /// Removes a copy of which the map says that no generation has it. Questions and changes of the map are under way
    /// for less time than that.
    pub(super) fn sweep(&mut self, at: usize) {
        let (own, now) = (self.servers[at].id.clone(), self.now);
        let map = self.servers[at].member.copies().peers().map;
        let is_needed = |(owner, number): &CopyName| {
            let known = map.generations.get(owner);
            known.is_some_and(|one| one.copies.contains(&(own.clone(), *number)))
        };
        let is_under_way = |name: &CopyName| self.late.iter().any(|(to, of, _)| *to == at && of == name);
        let read_at = self.servers[at].read_at;
        let is_over = |name: &CopyName, copy: &ModelCopy| {
            !is_needed(name) && copy.granted + IDLE < read_at && !is_under_way(name)
        };
        if self.store.between.is_empty() && now < read_at + LEASE {
            let gone: Vec<CopyName> = (self.servers[at].copies.iter())
                .filter(|(name, copy)| is_over(name, copy))
                .map(|(name, _)| name.clone())
                .collect();
            self.removed += gone.len();
            gone.iter().for_each(|name| drop(self.servers[at].copies.remove(name)));
        }
    }

    pub(super) fn clear(&mut self, at: usize) {
        let server = &mut self.servers[at];
        if let Some((move_id, span)) = server.coordinator.next_to_clear() {
            for slot in SLOTS.into_iter().filter(|slot| span.contains(*slot)) {
                if !server.coordinator.slots().owns_slot(slot) && server.coordinator.is_foreign(span) {
                    server.set(slot, None);
                }
            }
            server.coordinator.set_cleared(move_id);
        }
    }
}

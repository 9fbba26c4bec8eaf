//! The owners of a window's sessions: each tenant's use, and its sessions from the longest idle to the newest.

use super::NO_SLOT;
use hashbrown::HashMap;

#[derive(Debug)]
struct SessionOwner {
    tenant: u32,
    sessions: usize,
    bytes: usize,
    newest: u32,
    oldest: u32,
    /// Sessions that were evicted and are remembered by name: in this period, and in the one before.
    tombstones: [usize; 2],
    /// Sessions were evicted that are not remembered by name.
    closed: [bool; 2],
}

impl SessionOwner {
    fn new(tenant: u32) -> SessionOwner {
        SessionOwner {
            tenant,
            sessions: 0,
            bytes: 0,
            newest: NO_SLOT,
            oldest: NO_SLOT,
            tombstones: [0; 2],
            closed: [false; 2],
        }
    }

    /// Returns its part of so many sessions or bytes, whichever is larger.
    fn part(&self, sessions: usize, bytes: usize) -> f64 {
        (self.sessions as f64 / sessions.max(1) as f64).max(self.bytes as f64 / bytes.max(1) as f64)
    }

    /// Nothing of it need be known.
    fn is_empty(&self) -> bool {
        self.sessions == 0 && self.tombstones == [0; 2] && self.closed == [false; 2]
    }
}

/// All tenants of a window, each at an index that stays the same while the window knows anything of it.
#[derive(Debug, Default)]
pub(super) struct SessionOwners {
    index: HashMap<u32, u32>,
    places: Vec<SessionOwner>,
    free: Vec<u32>,
}

impl SessionOwners {
    /// Returns the index of a tenant, new or known.
    pub(super) fn enter(&mut self, tenant: u32) -> u32 {
        if let Some(place) = self.index.get(&tenant) {
            return *place;
        }
        let place = match self.free.pop() {
            Some(place) => {
                if let Some(owner) = self.places.get_mut(place as usize) {
                    *owner = SessionOwner::new(tenant);
                }
                place
            }
            None => {
                self.places.push(SessionOwner::new(tenant));
                self.places.len() as u32 - 1
            }
        };
        self.index.insert(tenant, place);
        place
    }

    fn with(&mut self, place: u32, change: impl FnOnce(&mut SessionOwner)) {
        if let Some(owner) = self.places.get_mut(place as usize) {
            change(owner);
        }
    }

    pub(super) fn add_bytes(&mut self, place: u32, bytes: usize) {
        self.with(place, |owner| owner.bytes += bytes);
    }

    pub(super) fn remove_bytes(&mut self, place: u32, bytes: usize) {
        self.with(place, |owner| owner.bytes -= bytes);
    }

    pub(super) fn add_session(&mut self, place: u32) {
        self.with(place, |owner| owner.sessions += 1);
    }

    /// Counts a session that is gone.
    pub(super) fn leave(&mut self, place: u32) {
        self.with(place, |owner| owner.sessions -= 1);
    }

    pub(super) fn add_tombstone(&mut self, place: u32) {
        self.with(place, |owner| owner.tombstones[0] += 1);
    }

    pub(super) fn tombstones(&self, place: u32) -> usize {
        self.places.get(place as usize).map_or(0, |owner| owner.tombstones[0])
    }

    /// From now on an unknown session of this tenant may have been known before.
    pub(super) fn close(&mut self, place: u32) {
        self.with(place, |owner| owner.closed[0] = true);
    }

    pub(super) fn is_closed(&self, place: u32) -> bool {
        self.places.get(place as usize).is_some_and(|owner| owner.closed != [false; 2])
    }

    pub(super) fn newest(&self, place: u32) -> u32 {
        self.places.get(place as usize).map_or(NO_SLOT, |owner| owner.newest)
    }

    pub(super) fn oldest(&self, place: u32) -> u32 {
        self.places.get(place as usize).map_or(NO_SLOT, |owner| owner.oldest)
    }

    pub(super) fn set_newest(&mut self, place: u32, slot: u32) {
        self.with(place, |owner| owner.newest = slot);
    }

    pub(super) fn set_oldest(&mut self, place: u32, slot: u32) {
        self.with(place, |owner| owner.oldest = slot);
    }

    /// Returns the owner that should give something up for the owner that asks: itself if it holds its part of the
    /// sessions or bytes, else the one that holds the largest part.
    pub(super) fn largest(&self, asks: u32, sessions: usize, bytes: usize) -> u32 {
        let own = self.places.get(asks as usize).map_or(0.0, |owner| owner.part(sessions, bytes));
        if own * self.index.len() as f64 >= 1.0 {
            return asks;
        }
        let other = self.largest_other(asks, sessions, bytes);
        let others = self.places.get(other as usize).map_or(0.0, |owner| owner.part(sessions, bytes));
        if others > own { other } else { asks }
    }

    /// Returns the other owner with the largest part; `NO_SLOT` if there is none.
    pub(super) fn largest_other(&self, asks: u32, sessions: usize, bytes: usize) -> u32 {
        let others = (0u32..).zip(&self.places).filter(|(place, owner)| *place != asks && owner.sessions > 0);
        let parts = others.map(|(place, owner)| (owner.part(sessions, bytes), place));
        parts.max_by(|one, other| one.0.total_cmp(&other.0)).map_or(NO_SLOT, |(_, place)| place)
    }

    /// Ends a period: forgets the losses before the one that ends, and the tenants of which nothing is left.
    pub(super) fn turn(&mut self) {
        for (place, owner) in self.places.iter_mut().enumerate() {
            owner.tombstones = [0, owner.tombstones[0]];
            owner.closed = [false, owner.closed[0]];
            if owner.is_empty() && self.index.get(&owner.tenant) == Some(&(place as u32)) {
                self.index.remove(&owner.tenant);
                self.free.push(place as u32);
            }
        }
    }
}

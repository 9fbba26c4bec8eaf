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
    by_tenant: HashMap<u32, u32>,
    owners: Vec<SessionOwner>,
    free: Vec<u32>,
}

impl SessionOwners {
    /// Returns the index of a tenant, new or known.
    pub(super) fn index_of(&mut self, tenant: u32) -> u32 {
        if let Some(index) = self.by_tenant.get(&tenant) {
            return *index;
        }
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(owner) = self.owners.get_mut(index as usize) {
                    *owner = SessionOwner::new(tenant);
                }
                index
            }
            None => {
                self.owners.push(SessionOwner::new(tenant));
                self.owners.len() as u32 - 1
            }
        };
        self.by_tenant.insert(tenant, index);
        index
    }

    fn with(&mut self, index: u32, change: impl FnOnce(&mut SessionOwner)) {
        if let Some(owner) = self.owners.get_mut(index as usize) {
            change(owner);
        }
    }

    pub(super) fn add_bytes(&mut self, index: u32, bytes: usize) {
        self.with(index, |owner| owner.bytes += bytes);
    }

    pub(super) fn remove_bytes(&mut self, index: u32, bytes: usize) {
        self.with(index, |owner| owner.bytes -= bytes);
    }

    pub(super) fn add_session(&mut self, index: u32) {
        self.with(index, |owner| owner.sessions += 1);
    }

    /// Counts a session that is gone.
    pub(super) fn remove_session(&mut self, index: u32) {
        self.with(index, |owner| owner.sessions -= 1);
    }

    pub(super) fn add_tombstone(&mut self, index: u32) {
        self.with(index, |owner| owner.tombstones[0] += 1);
    }

    pub(super) fn tombstones(&self, index: u32) -> usize {
        self.owners.get(index as usize).map_or(0, |owner| owner.tombstones[0])
    }

    /// From now on an unknown session of this tenant may have been known before.
    pub(super) fn close(&mut self, index: u32) {
        self.with(index, |owner| owner.closed[0] = true);
    }

    pub(super) fn is_closed(&self, index: u32) -> bool {
        self.owners.get(index as usize).is_some_and(|owner| owner.closed != [false; 2])
    }

    pub(super) fn newest(&self, index: u32) -> u32 {
        self.owners.get(index as usize).map_or(NO_SLOT, |owner| owner.newest)
    }

    pub(super) fn oldest(&self, index: u32) -> u32 {
        self.owners.get(index as usize).map_or(NO_SLOT, |owner| owner.oldest)
    }

    pub(super) fn set_newest(&mut self, index: u32, slot: u32) {
        self.with(index, |owner| owner.newest = slot);
    }

    pub(super) fn set_oldest(&mut self, index: u32, slot: u32) {
        self.with(index, |owner| owner.oldest = slot);
    }

    /// Returns the owner that should give something up for the owner that asks: itself if it holds its part of the
    /// sessions or bytes, else the one that holds the largest part.
    pub(super) fn largest(&self, asking: u32, sessions: usize, bytes: usize) -> u32 {
        let own = self.owners.get(asking as usize).map_or(0.0, |owner| owner.part(sessions, bytes));
        if own * self.by_tenant.len() as f64 >= 1.0 {
            return asking;
        }
        let other = self.largest_other(asking, sessions, bytes);
        let others = self.owners.get(other as usize).map_or(0.0, |owner| owner.part(sessions, bytes));
        if others > own { other } else { asking }
    }

    /// Returns the other owner with the largest part; `NO_SLOT` if there is none.
    pub(super) fn largest_other(&self, asking: u32, sessions: usize, bytes: usize) -> u32 {
        let others = (0u32..).zip(&self.owners).filter(|(index, owner)| *index != asking && owner.sessions > 0);
        let parts = others.map(|(index, owner)| (owner.part(sessions, bytes), index));
        parts.max_by(|one, other| one.0.total_cmp(&other.0)).map_or(NO_SLOT, |(_, index)| index)
    }

    /// Ends a period: forgets the losses before the one that ends, and the tenants of which nothing is left.
    pub(super) fn turn(&mut self) {
        for (index, owner) in self.owners.iter_mut().enumerate() {
            owner.tombstones = [0, owner.tombstones[0]];
            owner.closed = [false, owner.closed[0]];
            if owner.is_empty() && self.by_tenant.get(&owner.tenant) == Some(&(index as u32)) {
                self.by_tenant.remove(&owner.tenant);
                self.free.push(index as u32);
            }
        }
    }
}

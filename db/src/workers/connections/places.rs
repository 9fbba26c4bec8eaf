//! The places of a worker's connections, and who holds how many.

use hashbrown::HashMap;

use super::connection::Connection;
use super::inbox::Name;
use crate::limits::PLACES_PER_FREE;

/// A place: free, or a connection's.
#[derive(Default)]
struct Place {
    /// Grows whenever a connection leaves it.
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// All places of one worker.
#[derive(Default)]
pub(super) struct Places {
    places: Vec<Place>,
    free: Vec<u32>,
    /// Connections of each tenant; 0: of those that have not shown whose they are.
    held: HashMap<u32, usize>,
    live: usize,
}

/// Whether one that holds `held` of `live` places may take one more of `limit`: as many as it leaves free, times
/// [`PLACES_PER_FREE`].
pub(super) fn may_hold(limit: usize, live: usize, held: usize) -> bool {
    held < limit.saturating_sub(live) * PLACES_PER_FREE
}

impl Places {
    /// Connections.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Connections of a tenant.
    pub(super) fn held(&self, tenant: u32) -> usize {
        self.held.get(&tenant).copied().unwrap_or(0)
    }

    fn count(&mut self, tenant: u32, change: isize) {
        let held = self.held.entry(tenant).or_default();
        *held = held.saturating_add_signed(change);
        if *held == 0 {
            self.held.remove(&tenant);
        }
    }

    /// Gives a connection a place.
    pub(super) fn insert(&mut self, connection: Box<Connection>) -> Name {
        self.count(connection.tenant, 1);
        self.live += 1;
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[at as usize];
        place.connection = Some(connection);
        Name { place: at, generation: place.generation }
    }

    /// The connection of that name, if it is still there.
    pub(super) fn get(&mut self, name: Name) -> Option<&mut Connection> {
        let place = self.places.get_mut(name.place as usize)?;
        if place.generation == name.generation { place.connection.as_deref_mut() } else { None }
    }

    /// Takes a connection out of its place.
    pub(super) fn remove(&mut self, name: Name) -> Option<Box<Connection>> {
        let place = self.places.get_mut(name.place as usize)?;
        if place.generation != name.generation {
            return None;
        }
        let connection = place.connection.take()?;
        // The highest bit is not the generation's: see `token`.
        place.generation = (place.generation + 1) & (u32::MAX >> 1);
        self.free.push(name.place);
        self.live -= 1;
        self.count(connection.tenant, -1);
        Some(connection)
    }

    /// Counts a connection for a tenant.
    pub(super) fn belongs(&mut self, name: Name, tenant: u32) {
        let Some(connection) = self.get(name) else { return };
        let before = std::mem::replace(&mut connection.tenant, tenant);
        self.count(before, -1);
        self.count(tenant, 1);
    }

    /// The names of those that are so.
    pub(super) fn which(&self, mut are: impl FnMut(&Connection) -> bool) -> Vec<Name> {
        let names = self.places.iter().enumerate().filter_map(|(at, place)| {
            let name = Name { place: at as u32, generation: place.generation };
            place.connection.as_deref().filter(|connection| are(connection)).map(|_| name)
        });
        names.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_take_all_they_can_get_another_one_still_gets_in() {
        for tenants in [1usize, 2, 5] {
            let mut held = vec![0; tenants];
            while let Some(next) = (0..tenants).find(|next| may_hold(10_000, held.iter().sum(), held[*next])) {
                held[next] += 1;
            }
            assert!(may_hold(10_000, held.iter().sum(), 0), "{tenants}: {held:?}");
        }
        assert!(!may_hold(10, 10, 0));
    }
}

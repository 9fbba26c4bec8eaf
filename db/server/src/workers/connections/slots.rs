//! The slots of a worker's connections, and who holds how many of them and of the bytes of their buffers.

use hashbrown::HashMap;

use super::connection::ClientConnection;
use super::connection_id::ConnectionId;
use crate::limits::DYNAMIC_THRESHOLD_ALPHA;
use crate::limits::connections::BUFFER_BYTES;

/// A place: free, or a connection's.
#[derive(Default)]
struct ConnectionSlot {
    /// Grows whenever a connection leaves it.
    generation: u32,
    connection: Option<Box<ClientConnection>>,
}

/// What one tenant has of a worker's.
#[derive(Clone, Copy, Default)]
struct TenantBufferUsage {
    connections: usize,
    /// Of the connections' buffers.
    bytes: usize,
}

/// All slots of one worker.
#[derive(Default)]
pub(super) struct ConnectionSlots {
    slots: Vec<ConnectionSlot>,
    free: Vec<u32>,
    /// What each tenant has; 0: those that have not shown whose they are.
    held: HashMap<u32, TenantBufferUsage>,
    live: usize,
    /// Bytes of all connections' buffers.
    bytes: usize,
}

/// Whether one that holds `held` of `live` slots (or bytes) may take one more of `limit`: as many as it leaves free,
/// times [`DYNAMIC_THRESHOLD_ALPHA`]. So nobody can take so much that another one gets none.
pub(in crate::workers) fn dynamic_threshold_admits(limit: usize, live: usize, held: usize) -> bool {
    held < limit.saturating_sub(live) * DYNAMIC_THRESHOLD_ALPHA
}

impl ConnectionSlots {
    /// Connections.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Connections of a tenant.
    pub(super) fn held(&self, tenant: u32) -> usize {
        self.held.get(&tenant).map_or(0, |held| held.connections)
    }

    /// Whether the buffers of a tenant's connections may take what they do.
    pub(super) fn admits_buffers(&self, tenant: u32) -> bool {
        dynamic_threshold_admits(BUFFER_BYTES, self.bytes, self.held.get(&tenant).map_or(0, |held| held.bytes))
    }

    /// Notes that the buffers of a tenant's connection have changed.
    pub(super) fn buffered(&mut self, tenant: u32, before: usize, now: usize) {
        if before != now {
            self.count(tenant, 0, now as isize - before as isize);
            self.bytes = self.bytes + now - before;
        }
    }

    fn count(&mut self, tenant: u32, connections: isize, bytes: isize) {
        let held = self.held.entry(tenant).or_default();
        held.connections = held.connections.saturating_add_signed(connections);
        held.bytes = held.bytes.saturating_add_signed(bytes);
        if held.connections == 0 {
            self.held.remove(&tenant);
        }
    }

    /// Gives a connection a place.
    pub(super) fn insert(&mut self, connection: Box<ClientConnection>) -> ConnectionId {
        let bytes = connection.buffered();
        self.count(connection.tenant, 1, bytes as isize);
        self.live += 1;
        self.bytes += bytes;
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(ConnectionSlot::default());
            (self.slots.len() - 1) as u32
        });
        let place = &mut self.slots[at as usize];
        place.connection = Some(connection);
        ConnectionId { slot: at, generation: place.generation }
    }

    /// The connection of that name, if it is still there.
    pub(super) fn get(&mut self, name: ConnectionId) -> Option<&mut ClientConnection> {
        let place = self.slots.get_mut(name.slot as usize)?;
        if place.generation == name.generation { place.connection.as_deref_mut() } else { None }
    }

    /// Takes a connection out of its place.
    pub(super) fn remove(&mut self, name: ConnectionId) -> Option<Box<ClientConnection>> {
        let place = self.slots.get_mut(name.slot as usize)?;
        if place.generation != name.generation {
            return None;
        }
        let connection = place.connection.take()?;
        // The highest bit is not the generation's: see `token`.
        place.generation = (place.generation + 1) & (u32::MAX >> 1);
        self.free.push(name.slot);
        self.live -= 1;
        self.bytes = self.bytes.saturating_sub(connection.buffered());
        self.count(connection.tenant, -1, -(connection.buffered() as isize));
        Some(connection)
    }

    /// Counts a connection for a tenant: it is no stranger any more.
    pub(super) fn assign_tenant(&mut self, name: ConnectionId, tenant: u32) {
        let Some(connection) = self.get(name) else { return };
        let before = std::mem::replace(&mut connection.tenant, tenant);
        connection.seat = None;
        let bytes = connection.buffered() as isize;
        self.count(before, -1, -bytes);
        self.count(tenant, 1, bytes);
    }

    /// The names of those that are so.
    pub(super) fn which(&self, mut are: impl FnMut(&ClientConnection) -> bool) -> Vec<ConnectionId> {
        let names = self.slots.iter().enumerate().filter_map(|(at, place)| {
            let name = ConnectionId { slot: at as u32, generation: place.generation };
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
            while let Some(next) =
                (0..tenants).find(|next| dynamic_threshold_admits(10_000, held.iter().sum(), held[*next]))
            {
                held[next] += 1;
            }
            assert!(dynamic_threshold_admits(10_000, held.iter().sum(), 0), "{tenants}: {held:?}");
        }
        assert!(!dynamic_threshold_admits(10, 10, 0));
    }
}

//! The slots of a worker's connections, and how many connections and bytes of buffers each tenant has.

use hashbrown::HashMap;

use super::connection::ClientConnection;
use super::connection_id::ConnectionId;
use crate::limits::DYNAMIC_THRESHOLD_ALPHA;
use crate::limits::connections::BUFFER_BYTES;

/// A slot: free, or a connection's.
#[derive(Default)]
struct ConnectionSlot {
    /// Grows whenever a connection leaves it.
    generation: u32,
    connection: Option<Box<ClientConnection>>,
}

/// The connections of one tenant.
#[derive(Clone, Copy, Default)]
struct TenantBufferUsage {
    connections: usize,
    /// Bytes of their buffers.
    bytes: usize,
}

/// All slots of one worker.
#[derive(Default)]
pub(super) struct ConnectionSlots {
    slots: Vec<ConnectionSlot>,
    free: Vec<u32>,
    /// By tenant; 0: unauthenticated.
    by_tenant: HashMap<u32, TenantBufferUsage>,
    live: usize,
    /// Bytes of all connections' buffers.
    bytes: usize,
}

/// The dynamic threshold: whether an owner of `own` of `live` units may take one more of `limit`. It may have
/// [`DYNAMIC_THRESHOLD_ALPHA`] times as many as are free, so no owner can take so much that another gets none.
pub(in crate::workers) fn dynamic_threshold_admits(limit: usize, live: usize, own: usize) -> bool {
    own < limit.saturating_sub(live) * DYNAMIC_THRESHOLD_ALPHA
}

impl ConnectionSlots {
    /// The number of connections.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// The number of connections of a tenant.
    pub(super) fn connections_of(&self, tenant: u32) -> usize {
        self.by_tenant.get(&tenant).map_or(0, |usage| usage.connections)
    }

    /// Whether the buffers of a tenant's connections are within its share.
    pub(super) fn admits_buffers(&self, tenant: u32) -> bool {
        dynamic_threshold_admits(BUFFER_BYTES, self.bytes, self.by_tenant.get(&tenant).map_or(0, |usage| usage.bytes))
    }

    /// Notes that the buffers of a tenant's connection have changed.
    pub(super) fn buffered(&mut self, tenant: u32, before: usize, now: usize) {
        if before != now {
            self.count(tenant, 0, now as isize - before as isize);
            self.bytes = self.bytes + now - before;
        }
    }

    fn count(&mut self, tenant: u32, connections: isize, bytes: isize) {
        let usage = self.by_tenant.entry(tenant).or_default();
        usage.connections = usage.connections.saturating_add_signed(connections);
        usage.bytes = usage.bytes.saturating_add_signed(bytes);
        if usage.connections == 0 {
            self.by_tenant.remove(&tenant);
        }
    }

    /// Puts a connection into a slot.
    pub(super) fn insert(&mut self, connection: Box<ClientConnection>) -> ConnectionId {
        let bytes = connection.buffered();
        self.count(connection.tenant, 1, bytes as isize);
        self.live += 1;
        self.bytes += bytes;
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(ConnectionSlot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[at as usize];
        slot.connection = Some(connection);
        ConnectionId { slot: at, generation: slot.generation }
    }

    /// The connection with this id, if it is still there.
    pub(super) fn get(&mut self, id: ConnectionId) -> Option<&mut ClientConnection> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation == id.generation { slot.connection.as_deref_mut() } else { None }
    }

    /// Takes a connection out of its slot.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Box<ClientConnection>> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let connection = slot.connection.take()?;
        // The highest bit stays clear: see `ConnectionId::token`.
        slot.generation = (slot.generation + 1) & (u32::MAX >> 1);
        self.free.push(id.slot);
        self.live -= 1;
        self.bytes = self.bytes.saturating_sub(connection.buffered());
        self.count(connection.tenant, -1, -(connection.buffered() as isize));
        Some(connection)
    }

    /// Counts a connection that has authenticated for its tenant.
    pub(super) fn assign_tenant(&mut self, id: ConnectionId, tenant: u32) {
        let Some(connection) = self.get(id) else { return };
        let before = std::mem::replace(&mut connection.tenant, tenant);
        connection.seat = None;
        let bytes = connection.buffered() as isize;
        self.count(before, -1, -bytes);
        self.count(tenant, 1, bytes);
    }

    /// The ids of the connections that match.
    pub(super) fn which(&self, mut matches: impl FnMut(&ClientConnection) -> bool) -> Vec<ConnectionId> {
        let ids = self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let id = ConnectionId { slot: at as u32, generation: slot.generation };
            slot.connection.as_deref().filter(|connection| matches(connection)).map(|_| id)
        });
        ids.collect()
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

//! The slots of a worker's connections, and the number of connections and bytes of buffers of each tenant.

use hashbrown::HashMap;
use sandstorm_net::dynamic_threshold::DynamicThreshold;

use super::connection::ClientConnection;
use super::connection_id::ConnectionId;
use super::connection_id::ConnectionKind;
use crate::limits::connections::BUFFER_BYTES;
use crate::workers::generational_slab::GenerationalSlab;

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
    slots: GenerationalSlab<Option<Box<ClientConnection>>, ConnectionKind>,
    /// By tenant; 0: unauthenticated.
    by_tenant: HashMap<u32, TenantBufferUsage>,
    /// Bytes of all connections' buffers.
    bytes: usize,
}

impl ConnectionSlots {
    /// The number of connections.
    pub(super) fn live(&self) -> usize {
        self.slots.live()
    }

    /// The number of connections of a tenant.
    pub(super) fn connections_of(&self, tenant: u32) -> usize {
        self.by_tenant.get(&tenant).map_or(0, |usage| usage.connections)
    }

    /// The tenants that have connections here; 0: unauthenticated ones.
    pub(super) fn tenants(&self) -> impl Iterator<Item = u32> {
        self.by_tenant.keys().copied()
    }

    /// Whether the buffers of a tenant's connections are within its part of the budget.
    pub(super) fn admits_buffers(&self, tenant: u32) -> bool {
        let own = self.by_tenant.get(&tenant).map_or(0, |usage| usage.bytes);
        DynamicThreshold::of(BUFFER_BYTES).admits(self.bytes, own)
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
        self.bytes += bytes;
        let (id, slot) = self.slots.open();
        *slot = Some(connection);
        id
    }

    /// The connection with this id, if it is still there.
    pub(super) fn get(&mut self, id: ConnectionId) -> Option<&mut ClientConnection> {
        self.slots.get_mut(id)?.as_deref_mut()
    }

    /// Takes a connection out of its slot.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Box<ClientConnection>> {
        let connection = self.slots.get_mut(id)?.take()?;
        self.slots.close(id);
        self.bytes = self.bytes.saturating_sub(connection.buffered());
        self.count(connection.tenant, -1, -(connection.buffered() as isize));
        Some(connection)
    }

    /// Counts a connection that has authenticated for its tenant.
    pub(super) fn assign_tenant(&mut self, id: ConnectionId, tenant: u32) {
        let Some(connection) = self.get(id) else { return };
        let before = std::mem::replace(&mut connection.tenant, tenant);
        connection.permit = None;
        let bytes = connection.buffered() as isize;
        self.count(before, -1, -bytes);
        self.count(tenant, 1, bytes);
    }

    /// The ids of the connections that match.
    pub(super) fn which(&self, mut matches: impl FnMut(&ClientConnection) -> bool) -> Vec<ConnectionId> {
        let slots = self.slots.iter();
        slots.filter_map(|(id, slot)| slot.as_deref().filter(|connection| matches(connection)).map(|_| id)).collect()
    }
}

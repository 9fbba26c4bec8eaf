//! The places of a worker's connections, and who holds how many of them and of the bytes of their buffers.

use hashbrown::HashMap;
use sandstorm_net::dynamic_threshold::DynamicThreshold;

use super::connection::ClientConnection;
use super::inbox::{ConnectionId, ConnectionSlot};
use crate::limits::connections::BUFFER_BYTES;
use crate::workers::slot_map::SlotMap;

/// What one tenant has of a worker's.
#[derive(Clone, Copy, Default)]
struct TenantBufferUsage {
    connections: usize,
    /// Of the connections' buffers.
    bytes: usize,
}

/// All places of one worker.
#[derive(Default)]
pub(super) struct ConnectionSlots {
    places: SlotMap<Option<Box<ClientConnection>>, ConnectionSlot>,
    /// What each tenant has; 0: those that have not shown whose they are.
    held: HashMap<u32, TenantBufferUsage>,
    /// Bytes of all connections' buffers.
    bytes: usize,
}

impl ConnectionSlots {
    /// Connections.
    pub(super) fn live(&self) -> usize {
        self.places.live()
    }

    /// Connections of a tenant.
    pub(super) fn held(&self, tenant: u32) -> usize {
        self.held.get(&tenant).map_or(0, |held| held.connections)
    }

    /// Whether the buffers of a tenant's connections may take what they do.
    pub(super) fn admits_buffers(&self, tenant: u32) -> bool {
        let held = self.held.get(&tenant).map_or(0, |held| held.bytes);
        DynamicThreshold::of(BUFFER_BYTES).admits(self.bytes, held)
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
        self.bytes += bytes;
        let (name, place) = self.places.open();
        *place = Some(connection);
        name
    }

    /// The connection of that name, if it is still there.
    pub(super) fn get(&mut self, name: ConnectionId) -> Option<&mut ClientConnection> {
        self.places.get_mut(name)?.as_deref_mut()
    }

    /// Takes a connection out of its place.
    pub(super) fn remove(&mut self, name: ConnectionId) -> Option<Box<ClientConnection>> {
        let connection = self.places.get_mut(name)?.take()?;
        self.places.close(name);
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
        let named = self.places.iter();
        named.filter_map(|(name, place)| place.as_deref().filter(|one| are(one)).map(|_| name)).collect()
    }
}

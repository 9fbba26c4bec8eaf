//! A connection's registration among its tenant's Redis connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use parking_lot::Mutex;

use super::client_list::{RedisClientEntry, RedisClientStatus};
use super::usage::TenantUsage;

/// A connection's registration; removed when this is dropped.
#[derive(Debug)]
pub struct ClientRegistration {
    usage: Arc<TenantUsage>,
    /// The client.
    pub client: Arc<RedisClientEntry>,
    /// The published state.
    pub published: RedisClientStatus,
}

impl ClientRegistration {
    /// Registers a connection among a tenant's.
    pub fn new(
        usage: &Arc<TenantUsage>,
        id: u64,
        addresses: Option<(SocketAddr, SocketAddr)>,
        location: (u32, u64),
        now_ms: u64,
    ) -> ClientRegistration {
        let client = Arc::new(RedisClientEntry {
            id,
            addresses,
            since_ms: now_ms,
            last_active_ms: AtomicU64::new(now_ms),
            command: AtomicU32::new(u32::MAX),
            worker: AtomicU32::new(location.0),
            word: AtomicU64::new(location.1),
            killed: AtomicBool::new(false),
            attributes: Mutex::default(),
        });
        usage.clients.0.lock().insert(id, Arc::clone(&client));
        ClientRegistration { usage: Arc::clone(usage), client, published: RedisClientStatus::default() }
    }

    /// Whether it is registered for that tenant.
    #[inline]
    pub fn belongs_to(&self, usage: &Arc<TenantUsage>) -> bool {
        Arc::ptr_eq(&self.usage, usage)
    }
}

impl Drop for ClientRegistration {
    fn drop(&mut self) {
        self.usage.clients.0.lock().remove(&self.client.id);
    }
}

//! A tenant's Redis connections, of all workers: for CLIENT LIST and CLIENT KILL. It is off the path of commands: a
//! connection is registered when its tenant is known, and only rare changes are stored here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// One connection.
#[derive(Debug)]
pub struct RedisClientEntry {
    /// Its number, unique among all connections of the server.
    pub id: u64,
    /// The addresses of its client and of its port; none for a connection without addresses.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// The time of its registration, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The time of its last command, likewise.
    pub last_active_ms: AtomicU64,
    /// The number of the last command among all commands.
    pub command: AtomicU32,
    /// The worker that has it, and its name there.
    pub(super) worker: AtomicU32,
    pub(super) word: AtomicU64,
    /// Whether it is to end with its next command.
    pub(super) killed: AtomicBool,
    /// The attributes that it has set.
    pub attributes: Mutex<RedisClientAttributes>,
}

/// The attributes that a connection has set itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisClientAttributes {
    pub name: Box<[u8]>,
    pub library: (Box<[u8]>, Box<[u8]>),
    pub state: RedisClientStatus,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisClientStatus {
    /// Number of the table that it has selected.
    pub database: i64,
    /// Whether it speaks RESP3.
    pub resp3: bool,
    /// Commands since MULTI; -1: no transaction has begun.
    pub queued: i64,
    /// Keys that it watches.
    pub watches: usize,
}

impl RedisClientEntry {
    /// Sets the worker that has the connection, and its name there.
    #[inline]
    pub fn set_location(&self, (worker, word): (u32, u64)) {
        self.worker.store(worker, Relaxed);
        self.word.store(word, Relaxed);
    }

    /// Whether another connection has killed it.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.killed.load(Relaxed)
    }

    /// Kills it. Returns the worker that must be told, and the connection's name there.
    #[inline]
    pub fn kill(&self) -> (u32, u64) {
        self.killed.store(true, Relaxed);
        (self.worker.load(Relaxed), self.word.load(Relaxed))
    }
}

/// All connections of a tenant, by their numbers.
#[derive(Debug, Default)]
pub struct ClientList(pub(super) Mutex<BTreeMap<u64, Arc<RedisClientEntry>>>);

impl ClientList {
    /// The number of connections.
    #[inline]
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// The connection of that number.
    #[inline]
    pub fn of(&self, id: u64) -> Option<Arc<RedisClientEntry>> {
        self.0.lock().get(&id).cloned()
    }

    /// The connections that match, the oldest first.
    #[inline]
    pub fn which(&self, mut are: impl FnMut(&RedisClientEntry) -> bool) -> Vec<Arc<RedisClientEntry>> {
        self.0.lock().values().filter(|client| are(client)).cloned().collect()
    }
}

//! A tenant's Redis connections, of all workers: what CLIENT LIST tells of them, and how one ends another. Off the way
//! of commands: a connection is entered when it is known whose it is, and keeps what changes seldom here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// One connection.
#[derive(Debug)]
pub struct RedisClientEntry {
    /// Its number, of which no other connection of the server has the same.
    pub id: u64,
    /// Where it comes from and where it came to; none of a connection without addresses.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// When it was entered, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// When it last said something, likewise.
    pub last_active_ms: AtomicU64,
    /// The number of the last command among all commands.
    pub command: AtomicU32,
    /// The worker that has it, and the connection's name there.
    pub(super) worker: AtomicU32,
    pub(super) word: AtomicU64,
    /// It is to end with the next thing that it says.
    pub(super) killed: AtomicBool,
    /// What it has said about itself.
    pub said: Mutex<RedisClientAttributes>,
}

/// What a connection has said about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisClientAttributes {
    pub name: Box<[u8]>,
    pub library: (Box<[u8]>, Box<[u8]>),
    pub state: RedisClientStatus,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisClientStatus {
    /// Number of the table that it has selected.
    pub database: i64,
    /// Whether it speaks RESP3.
    pub resp3: bool,
    /// Commands since MULTI; -1: none was said.
    pub queued: i64,
    /// Keys that it watches.
    pub watches: usize,
}

impl RedisClientEntry {
    /// It stands there now.
    #[inline]
    pub fn place(&self, (worker, word): (u32, u64)) {
        self.worker.store(worker, Relaxed);
        self.word.store(word, Relaxed);
    }

    /// Whether somebody has ended it.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.killed.load(Relaxed)
    }

    /// Ends it: tells the worker to which that has to be said, and the connection's name there.
    #[inline]
    pub fn kill(&self) -> (u32, u64) {
        self.killed.store(true, Relaxed);
        (self.worker.load(Relaxed), self.word.load(Relaxed))
    }
}

/// All of a tenant's, by their numbers.
#[derive(Debug, Default)]
pub struct ClientList(pub(super) Mutex<BTreeMap<u64, Arc<RedisClientEntry>>>);

impl ClientList {
    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// The one of that number.
    #[inline]
    pub fn of(&self, id: u64) -> Option<Arc<RedisClientEntry>> {
        self.0.lock().get(&id).cloned()
    }

    /// Those that are so, the oldest first.
    #[inline]
    pub fn which(&self, mut are: impl FnMut(&RedisClientEntry) -> bool) -> Vec<Arc<RedisClientEntry>> {
        self.0.lock().values().filter(|client| are(client)).cloned().collect()
    }
}

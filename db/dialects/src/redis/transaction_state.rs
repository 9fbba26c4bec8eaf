//! What a connection has queued since MULTI, and what it watches.

use super::commands::RedisCommandSpec;
use sandstorm_store::WatchedState;

/// A command that waits for EXEC.
pub(super) struct QueuedCommand {
    pub(super) spec: &'static RedisCommandSpec,
    bytes: Box<[u8]>,
    ends: Box<[u32]>,
}

impl QueuedCommand {
    pub(super) fn new(spec: &'static RedisCommandSpec, args: &[&[u8]]) -> QueuedCommand {
        let mut bytes = Vec::with_capacity(args.iter().map(|arg| arg.len()).sum());
        let ends = args.iter().map(|arg| {
            bytes.extend_from_slice(arg);
            bytes.len() as u32
        });
        let ends = ends.collect();
        QueuedCommand { spec, bytes: bytes.into(), ends }
    }

    pub(super) fn args(&self) -> Vec<&[u8]> {
        let mut from = 0;
        self.ends.iter().map(|end| &self.bytes[std::mem::replace(&mut from, *end as usize)..*end as usize]).collect()
    }

    pub(super) fn size(&self) -> usize {
        self.bytes.len() + 8 * self.ends.len() + 64
    }
}

/// The commands that a connection has queued since MULTI.
#[derive(Default)]
pub(super) struct PendingTransaction {
    pub(super) queued: Vec<QueuedCommand>,
    pub(super) bytes: usize,
    /// Keys that the commands name, each command counted as one at least.
    pub(super) keys: usize,
    /// Whether a command was refused: then EXEC fails, too.
    pub(super) broken: bool,
}

impl PendingTransaction {
    /// Bytes that it uses.
    pub(super) fn used_bytes(&self) -> usize {
        if self.queued.is_empty() { 0 } else { self.bytes }
    }
}

/// The keys that a connection watches.
#[derive(Default)]
pub(super) struct WatchedKeys {
    pub(super) keys: Vec<WatchedKey>,
    pub(super) bytes: usize,
}

impl WatchedKeys {
    pub(super) fn count(&self) -> usize {
        self.keys.len()
    }

    /// Bytes that it uses.
    pub(super) fn used_bytes(&self) -> usize {
        self.bytes + self.keys.capacity() * (size_of::<WatchedKey>() + ABSENCE_BYTES)
    }
}

/// A key whose record must not change until EXEC.
pub(super) struct WatchedKey {
    pub(super) table: u64,
    pub(super) key: Box<[u8]>,
    pub(super) seen: WatchedState,
}

/// Bytes that the store takes for the watch of an absent key.
const ABSENCE_BYTES: usize = 64;

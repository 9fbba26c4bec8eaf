//! The sessions of a server's port: found by tenant and number, bounded, and shared fairly by tenants.

use super::aead::SessionKeys;
use super::limits::{
    PATH_QUEUE_BYTES, PATH_QUEUE_BYTES_TOTAL, PATH_QUEUE_PACKETS, PREVIOUS_KEYS_LIFETIME_US, WELCOME_LEN,
};
use crate::dynamic_threshold::DynamicThreshold;
use crate::r2p2::PeerAddr;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// A session's tenant and number.
pub(super) type SealSessionId = (u32, u64);

/// Keys that no packet has come under yet.
pub(super) struct UnconfirmedKeys {
    pub(super) keys: Box<SessionKeys>,
    /// The end of the hello that it answers, and the answer: a repeated hello gets the same.
    pub(super) hello_tag: [u8; 16],
    pub(super) welcome: [u8; WELCOME_LEN],
    /// The address of the hello; `None` when it came from several addresses, of which one may be made up.
    pub(super) from: Option<PeerAddr>,
    /// The number of the tenant's token that it was made with.
    pub(super) credential: u64,
}

/// The address of a client.
pub(super) struct ClientPath {
    pub(super) peer: PeerAddr,
    /// True if the client has shown that it receives there.
    pub(super) proven: bool,
    /// Otherwise: how many bytes may still be sent there, which are as many as came from there.
    pub(super) credit: usize,
    /// The bytes that it has been asked to repeat, and the time.
    pub(super) challenge: [u8; 8],
    pub(super) challenged_us: Option<u64>,
}

/// Answers for a client that may not be sent before its address is proven. No layer sends them again, so they wait for
/// that.
#[derive(Default)]
pub(super) struct PathQueue {
    packets: VecDeque<Box<[u8]>>,
    bytes: usize,
}

/// Bytes of the answers that wait in all sessions. Tenants share their pool, so one tenant's answers never keep
/// another's from waiting, however many of its clients move.
#[derive(Default)]
pub(super) struct QueuedBytes {
    all: usize,
    tenants: HashMap<u32, usize>,
}

impl QueuedBytes {
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// Takes room for so many more bytes of a tenant, if it may have that.
    fn take(&mut self, tenant: u32, size: usize) -> bool {
        let own = self.tenants.get(&tenant).copied().unwrap_or(0);
        let fits = DynamicThreshold::of(PATH_QUEUE_BYTES_TOTAL).admits_size(self.all, own, size);
        if fits {
            self.all += size;
            *self.tenants.entry(tenant).or_default() += size;
        }
        fits
    }

    fn give_back(&mut self, tenant: u32, size: usize) {
        self.all -= size;
        if let Some(own) = self.tenants.get_mut(&tenant) {
            *own -= size;
            if *own == 0 {
                self.tenants.remove(&tenant);
            }
        }
    }
}

impl PathQueue {
    /// Adds one answer of a tenant, unless it waits already, if there is room; `in_all` counts the bytes of all
    /// sessions. Returns whether it waits here.
    pub(super) fn push(&mut self, tenant: u32, parts: &[&[u8]], in_all: &mut QueuedBytes) -> bool {
        let packet = parts.concat();
        if self.packets.iter().any(|queued| **queued == *packet) {
            return true;
        }
        let size = packet.len();
        let fits = self.packets.len() < PATH_QUEUE_PACKETS && self.bytes + size <= PATH_QUEUE_BYTES;
        if !fits || !in_all.take(tenant, size) {
            return false;
        }
        self.bytes += size;
        self.packets.push_back(packet.into());
        true
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Takes all that wait.
    pub(super) fn take(&mut self, tenant: u32, in_all: &mut QueuedBytes) -> VecDeque<Box<[u8]>> {
        if self.bytes > 0 {
            in_all.give_back(tenant, std::mem::take(&mut self.bytes));
        }
        std::mem::take(&mut self.packets)
    }
}

pub(super) struct SealedSession {
    pub(super) name: SealSessionId,
    pub(super) path: ClientPath,
    pub(super) queued: PathQueue,
    /// The last address that was proven.
    pub(super) home: Option<PeerAddr>,
    pub(super) credential: u64,
    pub(super) next: Option<UnconfirmedKeys>,
    pub(super) current: Option<Box<SessionKeys>>,
    /// Keys that may still open packets under way, and the time until which they may.
    pub(super) previous: Option<(Box<SessionKeys>, u64)>,
    pub(super) last_used_us: u64,
}

/// The generation of the keys that a packet is sealed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyGeneration {
    Unconfirmed,
    Current,
    Previous,
}

impl SealedSession {
    pub(super) fn new(name: SealSessionId, next: UnconfirmedKeys, from: PeerAddr, now_us: u64) -> SealedSession {
        let path = ClientPath { peer: from, proven: false, credit: 0, challenge: [0; 8], challenged_us: None };
        let credential = next.credential;
        let queued = PathQueue::default();
        SealedSession {
            name,
            path,
            queued,
            home: None,
            credential,
            next: Some(next),
            current: None,
            previous: None,
            last_used_us: now_us,
        }
    }

    /// The newest epoch that is known of it.
    pub(super) fn epoch(&self) -> u64 {
        let epochs = [self.next.as_ref().map(|next| next.keys.epoch), self.current.as_ref().map(|keys| keys.epoch)];
        epochs.into_iter().flatten().max().unwrap_or(0)
    }

    /// The keys of that phase. Two sets have the same phase only when 256 handshakes lie between them.
    #[inline]
    pub(super) fn keys(&mut self, phase: u8, now_us: u64) -> Option<(&mut SessionKeys, KeyGeneration)> {
        if let Some(keys) = self.current.as_mut().filter(|keys| keys.phase() == phase) {
            return Some((keys, KeyGeneration::Current));
        }
        if let Some(next) = self.next.as_mut().filter(|next| next.keys.phase() == phase) {
            return Some((&mut next.keys, KeyGeneration::Unconfirmed));
        }
        let (keys, _) = self.previous.as_mut().filter(|(keys, until)| keys.phase() == phase && *until > now_us)?;
        Some((keys, KeyGeneration::Previous))
    }

    /// A packet came under the new keys: the client has them, so they are the ones to use. If the welcome that brought
    /// them was sent only to where the packet comes from, the client is there.
    pub(super) fn confirm(&mut self, now_us: u64, from: PeerAddr) {
        let Some(next) = self.next.take() else { return };
        self.credential = next.credential;
        let proven = next.from == Some(from) || self.home == Some(from);
        self.migrate(from, proven);
        self.previous = self.current.replace(next.keys).map(|keys| (keys, now_us + PREVIOUS_KEYS_LIFETIME_US));
    }

    pub(super) fn migrate(&mut self, peer: PeerAddr, proven: bool) {
        self.path = ClientPath { peer, proven, credit: 0, challenge: [0; 8], challenged_us: None };
        if proven {
            self.home = Some(peer);
        }
    }
}

/// All sessions of a port.
#[derive(Default)]
pub(super) struct SealedSessionTable {
    index: HashMap<SealSessionId, u32>,
    slots: Vec<Option<Box<SealedSession>>>,
    free: Vec<u32>,
    per_tenant: HashMap<u32, usize>,
    /// The slot that is looked at next for being idle.
    sweep_slot: usize,
    /// The session found last: packets come in runs.
    last: Option<(SealSessionId, u32)>,
    /// Bytes that wait for addresses to be proven.
    pub(super) queued: QueuedBytes,
}

impl SealedSessionTable {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    #[inline]
    pub(super) fn get(&mut self, name: SealSessionId) -> Option<&mut SealedSession> {
        self.get_with_queued_bytes(name).map(|(session, _)| session)
    }

    /// The same, and the bytes that all sessions hold.
    #[inline]
    pub(super) fn get_with_queued_bytes(
        &mut self,
        name: SealSessionId,
    ) -> Option<(&mut SealedSession, &mut QueuedBytes)> {
        let slot = match self.last {
            Some((last, slot)) if last == name => slot,
            _ => {
                let slot = *self.index.get(&name)?;
                self.last = Some((name, slot));
                slot
            }
        };
        let session = self.slots.get_mut(slot as usize)?.as_deref_mut()?;
        Some((session, &mut self.queued))
    }

    /// Inserts a session. At `limit` another has to leave: the longest idle one of the tenant that has the most. That
    /// tenant is the new session's own as soon as it has as many as any. Returns whether one left.
    pub(super) fn insert(&mut self, session: SealedSession, limit: usize) -> bool {
        let name = session.name;
        let full = self.index.len() >= limit.max(1) && !self.index.contains_key(&name);
        if full && let Some(leaves) = self.longest_idle_of(self.largest(name.0)) {
            self.remove(leaves);
        }
        self.remove(name);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            *slot = Some(Box::new(session));
        }
        self.index.insert(name, slot);
        *self.per_tenant.entry(name.0).or_default() += 1;
        full
    }

    /// The tenant with the most sessions; the one that asks, if no other has more.
    fn largest(&self, asking: u32) -> u32 {
        let own = self.per_tenant.get(&asking).copied().unwrap_or(0);
        let most = self.per_tenant.iter().max_by_key(|(_, sessions)| **sessions);
        most.map_or(asking, |(tenant, sessions)| if *sessions > own { *tenant } else { asking })
    }

    /// A pass over all sessions, 20 us for the default limit: a handshake takes five times as long, and only those come
    /// here.
    fn longest_idle_of(&self, tenant: u32) -> Option<SealSessionId> {
        let of_tenant = self.slots.iter().flatten().filter(|session| session.name.0 == tenant);
        of_tenant.min_by_key(|session| session.last_used_us).map(|session| session.name)
    }

    pub(super) fn remove(&mut self, name: SealSessionId) -> bool {
        let Some(slot) = self.index.remove(&name) else { return false };
        self.last = None;
        if let Some(slot) = self.slots.get_mut(slot as usize)
            && let Some(mut session) = slot.take()
        {
            session.queued.take(name.0, &mut self.queued);
        }
        self.free.push(slot);
        if let Some(sessions) = self.per_tenant.get_mut(&name.0) {
            *sessions -= 1;
            if *sessions == 0 {
                self.per_tenant.remove(&name.0);
            }
        }
        true
    }

    /// Checks a few sessions and removes those that were idle since `before_us`. Returns the number removed.
    pub(super) fn sweep(&mut self, slots: usize, before_us: u64) -> u64 {
        let mut left = 0;
        for _ in 0..slots.min(self.slots.len()) {
            self.sweep_slot = (self.sweep_slot + 1) % self.slots.len().max(1);
            let Some(Some(session)) = self.slots.get(self.sweep_slot) else { continue };
            if session.last_used_us < before_us {
                let name = session.name;
                left += u64::from(self.remove(name));
            }
        }
        left
    }
}
